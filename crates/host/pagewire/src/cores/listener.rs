//! Listeners of several cores ([`CoresListener`]).

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use pagewire_sockets::Blocking;

use crate::{TcpListener, TcpStream, net};

/// A socket that listens on every shard of a host: [`Cores::listen`](crate::Cores::listen). Clones are the same
/// listener, which closes when the last is dropped.
#[derive(Clone, Debug)]
pub struct CoresListener {
    /// The listener of each shard.
    shards: Arc<[TcpListener]>,
    /// The shard that is asked first next.
    first: Arc<AtomicUsize>,
}

impl CoresListener {
    pub(super) fn new(shards: Vec<TcpListener>) -> Self {
        Self { shards: shards.into(), first: Arc::default() }
    }

    /// The listener of each shard, in the order of [`Cores::shards`](crate::Cores::shards): for a thread or a
    /// task on each core, which accepts the connections of its own shard.
    pub fn shards(&self) -> &[TcpListener] {
        &self.shards
    }

    /// The address that all shards listen at.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.any()?.local_addr()
    }

    /// Accepts the next connection of any shard, waiting for one without a limit. The shards take turns.
    ///
    /// # Errors
    /// `NetworkDown` when the host is gone.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let shards = self.in_turn().cloned().map(net::TcpListener::from).collect::<Vec<_>>();
        let mut waits: Vec<_> = shards.iter().map(|shard| Box::pin(shard.accept())).collect();
        let accepted = pin!(poll_fn(|cx| {
            let mut all = waits.iter_mut().map(|wait| wait.as_mut().poll(cx));
            all.find(Poll::is_ready).unwrap_or(Poll::Pending)
        }));
        let (stream, peer) = self.any()?.runtime().block_on(accepted)??;
        Ok((stream.into(), peer))
    }

    /// The listeners, beginning with the next in turn.
    fn in_turn(&self) -> impl Iterator<Item = &TcpListener> {
        let first = self.first.fetch_add(1, Ordering::Relaxed) % self.shards.len().max(1);
        let (end, begin) = self.shards.split_at(first);
        begin.iter().chain(end)
    }

    fn any(&self) -> io::Result<&TcpListener> {
        self.shards.first().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
