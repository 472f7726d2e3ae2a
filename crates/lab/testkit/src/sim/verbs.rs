//! Verbs of a stack's sockets by their ids.

use std::net::{Shutdown, SocketAddr};

use pagewire_mem::Instant;
use pagewire_stack::{
    DatagramPayload, DatagramTaker, Error, ListenerId, Payload, RecvFlags, SendFlags, Stack, Taker,
    TcpId, UdpId, UdpTarget,
};

/// Plain calls on sockets, for tests that need neither flags nor views.
pub trait Verbs {
    /// Sends on a connection, without flags.
    fn send(&mut self, now: Instant, id: TcpId, data: impl Payload) -> Result<usize, Error>;

    /// Receives from a connection, without flags.
    fn recv<T: Taker<Error = Error>>(
        &mut self,
        now: Instant,
        id: TcpId,
        taker: T,
    ) -> Result<T::Taken, Error>;

    /// Ends one or both directions of a connection.
    fn shutdown(&mut self, now: Instant, id: TcpId, how: Shutdown) -> Result<(), Error>;

    /// Takes a connection that a listener has.
    fn accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), Error>;

    /// Sends a datagram.
    fn send_to(
        &mut self,
        now: Instant,
        id: UdpId,
        data: impl DatagramPayload,
        to: impl Into<UdpTarget>,
    ) -> Result<usize, Error>;

    /// Receives a datagram, without flags.
    fn recv_from<T: DatagramTaker>(&mut self, id: UdpId, taker: T) -> Result<T::Taken, Error>;
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

    fn shutdown(&mut self, now: Instant, id: TcpId, how: Shutdown) -> Result<(), Error> {
        self.tcp(id)?.shutdown(now, how)
    }

    fn accept(&mut self, id: ListenerId) -> Result<(TcpId, SocketAddr), Error> {
        self.listener(id)?.accept()
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
}
