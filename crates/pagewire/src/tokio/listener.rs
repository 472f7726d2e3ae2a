//! A listener for tasks.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use pagewire_stack::{Listener, ListenerId};

use super::stream::TcpStream;
use super::wait::Seat;
use crate::Host;
use crate::addr::{ToSocketAddrs, addresses};
use crate::host::DEFAULT_BACKLOG;
use crate::socket::Socket;
use crate::stream as sync;
use crate::waiters::Interest as Until;

/// A socket that listens for connections, as tokio's. It closes when it is dropped.
pub struct TcpListener {
    listener: sync::TcpListener,
    accepts: Seat,
}

impl TcpListener {
    /// Listens; see [`Host::listen`].
    ///
    /// # Errors
    /// Those of [`Host::listen`].
    pub async fn bind(host: &Host, on: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(host, on, DEFAULT_BACKLOG).await
    }

    /// [`bind`](Self::bind) with room for `backlog` connections that wait for `accept`.
    ///
    /// # Errors
    /// Those of [`Host::listen`].
    pub async fn bind_with(
        host: &Host,
        on: impl ToSocketAddrs,
        backlog: usize,
    ) -> io::Result<Self> {
        host.listen_with(&*addresses(&on)?, backlog).map(Self::from)
    }

    /// Waits for the next connection. It is established, and the address is the peer's.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let accept = |mut listener: Listener<'_>, _| listener.accept();
        let (conn, remote) = self.socket().later(Until::Read, accept).await?;
        Ok((sync::TcpStream::new(Arc::clone(&self.socket().host), conn).into(), remote))
    }

    /// [`accept`](Self::accept) for tasks that poll: only the one that polled last is woken.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accept = |mut listener: Listener<'_>, _| listener.accept();
        let accepted = self.socket().poll(&self.accepts, Until::Read, cx, accept);
        accepted.map_ok(|(conn, remote)| {
            (sync::TcpStream::new(Arc::clone(&self.socket().host), conn).into(), remote)
        })
    }

    /// The address it listens on.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The same listener for threads: options and state.
    pub fn as_sync(&self) -> &sync::TcpListener {
        &self.listener
    }

    /// The same listener for threads.
    pub fn into_sync(self) -> sync::TcpListener {
        self.listener
    }

    fn socket(&self) -> &Socket<ListenerId> {
        &self.listener.0
    }
}

impl From<sync::TcpListener> for TcpListener {
    fn from(listener: sync::TcpListener) -> Self {
        Self { listener, accepts: Seat::default() }
    }
}

impl From<TcpListener> for sync::TcpListener {
    fn from(listener: TcpListener) -> Self {
        listener.listener
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.listener.fmt(f)
    }
}
