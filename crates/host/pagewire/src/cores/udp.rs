//! Datagram sockets of several cores ([`CoresUdp`]).

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use pagewire_sockets::{Blocking, ToSocketAddrs};

use crate::reentrancy::thread_number;
use crate::{UdpSocket, net};

/// A datagram socket on every shard of a host: [`Cores::udp`](crate::Cores::udp). Clones are the same
/// socket. The datagrams of a peer to one address come to one shard.
#[derive(Clone, Debug)]
pub struct CoresUdp {
    /// The socket of each shard.
    shards: Arc<[UdpSocket]>,
    /// The shard that is asked first next.
    first: Arc<AtomicUsize>,
}

impl CoresUdp {
    pub(super) fn new(shards: Vec<UdpSocket>) -> Self {
        Self { shards: shards.into(), first: Arc::default() }
    }

    /// The socket of each shard, in the order of [`Cores::shards`](crate::Cores::shards): for a thread or a
    /// task on each core, which answers the peers of its own shard.
    pub fn shards(&self) -> &[UdpSocket] {
        &self.shards
    }

    /// The address that all shards have bound.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.any()?.local_addr()
    }

    /// Receives the next datagram of any shard, waiting for one without a limit. The shards take turns.
    ///
    /// # Errors
    /// `NetworkDown` when the host is gone.
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let sockets = self.in_turn().cloned().map(net::UdpSocket::from).collect::<Vec<_>>();
        loop {
            for socket in &sockets {
                match socket.try_recv_from(into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
            }
            let mut waits: Vec<_> = sockets.iter().map(|s| Box::pin(s.readable())).collect();
            let readable = poll_fn(|cx| {
                let mut all = waits.iter_mut().map(|wait| wait.as_mut().poll(cx));
                all.find(Poll::is_ready).unwrap_or(Poll::Pending)
            });
            self.any()?.runtime().block_on(readable)??;
        }
    }

    /// Sends a datagram by the shard that this thread drives, or else by one that other threads rarely use.
    ///
    /// # Errors
    /// Those of [`UdpSocket::send_to`](crate::UdpSocket::send_to).
    pub fn send_to(&self, payload: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let own = |socket: &UdpSocket| socket.runtime().shared().is_driven_by_waits();
        let any = || thread_number() as usize % self.shards.len().max(1);
        let shard = self.shards.iter().position(own).unwrap_or_else(any);
        self.shards.get(shard).map_or_else(|| self.any(), Ok)?.send_to(payload, to)
    }

    /// The sockets, beginning with the next in turn.
    fn in_turn(&self) -> impl Iterator<Item = &UdpSocket> {
        let first = self.first.fetch_add(1, Ordering::Relaxed) % self.shards.len().max(1);
        let (end, begin) = self.shards.split_at(first);
        begin.iter().chain(end)
    }

    fn any(&self) -> io::Result<&UdpSocket> {
        self.shards.first().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
