//! Verbs of sockets by id, for tests that need neither flags nor views.

use std::net::SocketAddr;

use pagewire_mem::Instant;
use pagewire_stack::{
    DatagramPayload, DatagramTaker, Error, ListenerId, Payload, RecvFlags, SendFlags, Stack, Taker,
    TcpId, UdpId, UdpTarget,
};

pub(crate) trait Verbs {
    fn send(&mut self, now: Instant, id: TcpId, data: impl Payload) -> Result<usize, Error>;

    fn recv<T: Taker<Error = Error>>(
        &mut self,
        now: Instant,
        id: TcpId,
        taker: T,
    ) -> Result<T::Taken, Error>;

    fn send_to(
        &mut self,
        now: Instant,
        id: UdpId,
        data: impl DatagramPayload,
        to: impl Into<UdpTarget>,
    ) -> Result<usize, Error>;

    fn recv_from<T: DatagramTaker>(&mut self, id: UdpId, taker: T) -> Result<T::Taken, Error>;

    fn accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), Error>;
}

impl Verbs for Stack {
    fn send(&mut self, now: Instant, id: TcpId, data: impl Payload) -> Result<usize, Error> {
        self.tcp(id)?.send(now, data, SendFlags::empty())
    }

    fn recv<T: Taker<Error = Error>>(
        &mut self,
        now: Instant,
        id: TcpId,
        taker: T,
    ) -> Result<T::Taken, Error> {
        self.tcp(id)?.recv(now, taker, RecvFlags::empty())
    }

    fn send_to(
        &mut self,
        now: Instant,
        id: UdpId,
        data: impl DatagramPayload,
        to: impl Into<UdpTarget>,
    ) -> Result<usize, Error> {
        self.udp(id)?.send(now, data, to)
    }

    fn recv_from<T: DatagramTaker>(&mut self, id: UdpId, taker: T) -> Result<T::Taken, Error> {
        self.udp(id)?.recv(taker, RecvFlags::empty())
    }

    fn accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), Error> {
        self.listener(id)?.accept()
    }
}
