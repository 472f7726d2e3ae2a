//! Datagram sockets of several cores ([`CoresUdp`]).

use std::io;
use std::net::SocketAddr;

use pagewire_sockets::{Blocking, ToSocketAddrs};

use super::each::{OfEach, first_of};
use crate::reentrancy::thread_number;
use crate::{UdpSocket, net};

/// A datagram socket on every shard of a host: [`Cores::udp`](crate::Cores::udp). Clones are the same
/// socket. The datagrams of a peer to one address come to one shard.
#[derive(Clone, Debug)]
pub struct CoresUdp(OfEach<UdpSocket>);

impl CoresUdp {
    pub(super) fn new(shards: Vec<UdpSocket>) -> Self {
        Self(OfEach::new(shards))
    }

    /// The socket of each shard, in the order of [`Cores::shards`](crate::Cores::shards): for a thread or a
    /// task on each core, which answers the peers of its own shard.
    pub fn shards(&self) -> &[UdpSocket] {
        self.0.all()
    }

    /// The address that all shards have bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.first()?.local_addr()
    }

    /// Receives the next datagram of any shard, waiting for one without a limit. The shards take turns.
    ///
    /// # Errors
    /// `NetworkDown` when the host is gone.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let sockets: Vec<_> = self.0.in_turn().cloned().map(net::UdpSocket::from).collect();
        loop {
            for socket in &sockets {
                match socket.try_recv_from(into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
            }
            let readable = first_of(sockets.iter().map(net::UdpSocket::readable));
            self.0.first()?.runtime().block_on(readable)??;
        }
    }

    /// Sends a datagram by the shard that this thread drives, or else by one that other threads rarely use.
    ///
    /// # Errors
    /// Those of [`UdpSocket::send_to`](crate::UdpSocket::send_to).
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let own = |socket: &UdpSocket| socket.runtime().shared().is_driven_by_waits();
        let own = self.0.all().iter().position(own);
        let mut from = self.0.beginning_at(own.unwrap_or_else(|| thread_number() as usize));
        from.next().ok_or(io::ErrorKind::NotFound)?.send_to(payload, to)
    }
}
