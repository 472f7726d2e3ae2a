//! [`TcpListener`]: listeners of tasks, shaped as tokio's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use pagewire_stack::{ListenerId, Stack, TcpId};

use super::TcpStream;
use crate::addr::{ToSocketAddrs, target};
use crate::blocking;
use crate::connect::{BindOptions, first};
use crate::options::{no_descriptor, of_every_listener};
use crate::runtime::{Clock, Runtime};
use crate::socket::{READ, Socket};
use crate::waiters::{Call, WaiterId};

/// A socket that listens for connections, as tokio's. It closes when it is dropped.
pub struct TcpListener<R: Runtime> {
    socket: Arc<Socket<R, ListenerId>>,
    /// The task that polled an accept last.
    accepts: WaiterId,
}

/// Connections that may wait to be accepted by a listener of `bind`: tokio's number.
const BACKLOG: usize = 1024;

of_every_listener!(TcpListener);

impl<R: Runtime> TcpListener<R> {
    pub(crate) fn new(socket: Arc<Socket<R, ListenerId>>) -> Self {
        Self { socket, accepts: WaiterId::new() }
    }

    fn socket(&self) -> &Socket<R, ListenerId> {
        &self.socket
    }

    /// Listens at the first address that can be had, on the stack of the code that runs; port 0 stands for
    /// a free one. As tokio does on Unix, connections in TIME-WAIT do not count. 1,024 connections may
    /// wait to be accepted.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable` for an address that the host does not have; those of the resolver;
    /// those of [`Runtime::current`](crate::Runtime::current).
    pub fn bind(at: impl ToSocketAddrs) -> impl Future<Output = io::Result<Self>> {
        let at = target(&at);
        async move {
            let runtime = R::current()?;
            let found = at?.resolve(&runtime).await?;
            let options = BindOptions::new().backlog(BACKLOG);
            first(found, |at| options.listen(&runtime, at)).map(Self::new)
        }
    }

    /// [`bind`](Self::bind) on a stack.
    pub async fn bind_on(runtime: &R, at: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(runtime, at, &BindOptions::new().backlog(BACKLOG)).await
    }

    /// [`bind_on`](Self::bind_on) with options.
    pub fn bind_with(
        runtime: &R,
        at: impl ToSocketAddrs,
        options: &BindOptions,
    ) -> impl Future<Output = io::Result<Self>> {
        let at = target(&at);
        async move {
            let found = at?.resolve(runtime).await?;
            first(found, |at| options.listen(runtime, at)).map(Self::new)
        }
    }

    /// Waits for the next connection: that, and its peer's address.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, no connection was taken.
    #[track_caller]
    pub fn accept(
        &self,
    ) -> impl Future<Output = io::Result<(TcpStream<R>, SocketAddr)>> + Send + Sync {
        let (id, call) = (self.socket.id(), Call::here("to accept"));
        async move {
            let accept = |stack: &mut Stack, _: &Clock<'_>| stack.listener(id)?.accept();
            Ok(self.accepted(self.socket.wait(READ, call, accept).await?))
        }
    }

    /// [`accept`](Self::accept) for tasks that poll: only the one that polled last is woken.
    pub fn poll_accept(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(TcpStream<R>, SocketAddr)>> {
        let (id, call) = (self.socket.id(), Call::new("to accept"));
        let accept = |stack: &mut Stack, _: &Clock<'_>| stack.listener(id)?.accept();
        let accepted = self.socket.poll((self.accepts, READ), call, cx, accept);
        accepted.map_ok(|accepted| self.accepted(accepted))
    }

    fn accepted(&self, (id, peer): (TcpId, SocketAddr)) -> (TcpStream<R>, SocketAddr) {
        let socket = Socket::new(self.socket.runtime().clone(), id, self.socket.is_v6());
        (TcpStream::new(socket), self.socket.shown(peer))
    }

    /// Fails: there is no descriptor.
    pub fn from_std(_: std::net::TcpListener) -> io::Result<Self> {
        Err(no_descriptor())
    }

    /// Fails: there is no descriptor.
    pub fn into_std(self) -> io::Result<std::net::TcpListener> {
        Err(no_descriptor())
    }
}

impl<R: Runtime> From<blocking::TcpListener<R>> for TcpListener<R> {
    fn from(listener: blocking::TcpListener<R>) -> Self {
        Self::new(listener.0)
    }
}

impl<R: Runtime> From<TcpListener<R>> for blocking::TcpListener<R> {
    fn from(listener: TcpListener<R>) -> Self {
        Self(listener.socket)
    }
}

impl<R: Runtime> TryFrom<std::net::TcpListener> for TcpListener<R> {
    type Error = io::Error;

    fn try_from(listener: std::net::TcpListener) -> io::Result<Self> {
        Self::from_std(listener)
    }
}

impl<R: Runtime> std::fmt::Debug for TcpListener<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TcpListener").field(&self.socket).finish()
    }
}
