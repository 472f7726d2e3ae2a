//! Listeners of several cores ([`CoresListener`]).

use std::io;
use std::net::SocketAddr;

use pagewire_sockets::Blocking;

use super::each::{OfEach, first_of};
use crate::{TcpListener, TcpStream, net};

/// A socket that listens on every shard of a host: [`Cores::listen`](crate::Cores::listen). Clones are the same
/// listener, which closes when the last is dropped.
///
/// A part of the connections belongs to each shard, whether the shard listens or not. A shard whose own listener
/// ([`shards`](Self::shards)) closes before the others resets those that wait there, and refuses its part of the new
/// ones: the other shards do not take it, as the rest of an `SO_REUSEPORT` group does. The shard has its part again
/// when it listens with [`BindOptions::every_shard`](crate::BindOptions::every_shard).
#[derive(Clone, Debug)]
pub struct CoresListener(OfEach<TcpListener>);

impl CoresListener {
    pub(super) fn new(shards: Vec<TcpListener>) -> Self {
        Self(OfEach::new(shards))
    }

    /// The listener of each shard, in the order of [`Cores::shards`](crate::Cores::shards): for a thread or a
    /// task on each core, which accepts the connections of its own shard.
    pub fn shards(&self) -> &[TcpListener] {
        self.0.all()
    }

    /// The address that all shards listen at.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.first()?.local_addr()
    }

    /// Accepts the next connection of any shard, waiting for one without a limit. The shards take turns.
    ///
    /// # Errors
    /// `NetworkDown` when the host is gone.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let shards: Vec<_> = self.0.in_turn().cloned().map(net::TcpListener::from).collect();
        let accepted = first_of(shards.iter().map(net::TcpListener::accept));
        let (stream, peer) = self.0.first()?.runtime().block_on(accepted)??;
        Ok((stream.into(), peer))
    }
}
