//! [`TcpListener`]: listeners of threads.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_stack::ListenerId;

use super::tcp::TcpStream;
use crate::addr::ToSocketAddrs;
use crate::connect::{BindOptions, first, resolve_blocking};
use crate::options::of_every_listener;
use crate::runtime::{Blocking, Runtime};
use crate::socket::{READ, Socket};

/// A socket that listens for connections, as that of `std::net`. Clones are the same listener, which
/// closes when the last is dropped.
pub struct TcpListener<R: Runtime>(pub(crate) Arc<Socket<R, ListenerId>>);

of_every_listener!(TcpListener);

impl<R: Runtime> TcpListener<R> {
    fn socket(&self) -> &Socket<R, ListenerId> {
        &self.0
    }

    /// Whether `accept` returns `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }
}

impl<R: Blocking> TcpListener<R> {
    /// Listens at the first address that can be had. An unspecified address (`0.0.0.0`, `[::]`) means all
    /// of this host's, port 0 a free one.
    ///
    /// # Errors
    /// `AddrInUse`; `AddrNotAvailable` if the address is not one of this host's; those of the resolver.
    pub fn bind_on(runtime: &R, at: impl ToSocketAddrs, options: &BindOptions) -> io::Result<Self> {
        let found = resolve_blocking(runtime, at)?;
        first(found, |at| options.listen(runtime, at)).map(Self)
    }

    /// Accepts the next connection, waiting for one unless the listener is non-blocking.
    ///
    /// # Errors
    /// `NetworkDown` when the stack is gone; `WouldBlock` on a non-blocking listener.
    pub fn accept(&self) -> io::Result<(TcpStream<R>, SocketAddr)> {
        let id = self.0.id();
        let (id, peer) = self.0.block(READ, |stack, _| stack.listener(id)?.accept())?;
        let stream = Socket::new(self.0.runtime().clone(), id, self.0.is_v6());
        Ok((TcpStream(stream), self.0.shown(peer)))
    }

    /// The connections that arrive, for ever.
    pub fn incoming(&self) -> Incoming<'_, R> {
        Incoming(self)
    }
}

/// Iterator over the connections of a listener; never ends.
#[derive(Debug)]
pub struct Incoming<'a, R: Blocking>(&'a TcpListener<R>);

impl<R: Blocking> Iterator for Incoming<'_, R> {
    type Item = io::Result<TcpStream<R>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

impl<'a, R: Blocking> IntoIterator for &'a TcpListener<R> {
    type Item = io::Result<TcpStream<R>>;
    type IntoIter = Incoming<'a, R>;

    fn into_iter(self) -> Incoming<'a, R> {
        self.incoming()
    }
}

impl<R: Runtime> Clone for TcpListener<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Runtime> std::fmt::Debug for TcpListener<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener").field("local", &self.local_addr().ok()).finish()
    }
}
