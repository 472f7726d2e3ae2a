//! Listens for connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::task::{Context, Poll};

use pagewire_mem::Instant;
use pagewire_stack::{Error, PacketMarks, SocketOption, Stack, TcpId};

use super::stream::TcpStream;
use crate::limits::LISTEN_BACKLOG;
use crate::net::addr::{ToSocketAddrs, resolve, shown};
use crate::net::error::{io_error, no_address, no_descriptor};
use crate::net::reserved::Reserved;
use crate::net::socket::{Direction, Socket};
use crate::world::Here;

/// `tokio::net::TcpListener`, simulated.
pub struct TcpListener {
    pub(super) socket: Socket,
    /// Of a listener made of a [`TcpSocket`](super::TcpSocket).
    pub(super) _address: Option<Reserved>,
}

impl TcpListener {
    /// Listens at the first address that can be had; port 0 stands for a free one. As tokio does on
    /// Unix, connections in TIME-WAIT do not count. 1,024 connections may wait to be accepted.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable` for an address that the host does not have, and those of
    /// [`lookup_host`](crate::net::lookup_host).
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<Self> {
        let here = Here::get()?;
        let mut last = None;
        for addr in resolve(&here, addr)? {
            match here.with_stack(|stack, _| stack.listen(addr, LISTEN_BACKLOG))? {
                Ok(id) => {
                    let socket = Socket::new(here, id, addr.is_ipv6());
                    return Ok(Self { socket, _address: None });
                }
                Err(error) => last = Some(io_error(error)),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    /// The next connection, and its peer's address.
    #[track_caller]
    pub fn accept(
        &self,
    ) -> impl Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send + Sync {
        let call = ("to accept", Some(Location::caller()));
        async move {
            let taken = self.socket.wait(Direction::Read, call, self.take()).await?;
            Ok(self.stream(taken))
        }
    }

    /// [`accept`](Self::accept) for tasks that poll.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let taken = self.socket.poll(Direction::Read, ("to accept", None), cx, self.take());
        taken.map_ok(|taken| self.stream(taken))
    }

    /// Takes a connection, which inherits what was set on the listener.
    fn take(
        &self,
    ) -> impl FnMut(&mut Stack, Instant) -> Result<(TcpId, SocketAddr), Error> + Send + Sync + use<>
    {
        let (id, marks) = (self.socket.id, self.socket.marks());
        move |stack, _| {
            let (id, peer) = stack.as_listener(id)?.accept()?;
            if marks != PacketMarks::default() {
                stack.set_option(id, SocketOption::Marks(marks))?;
            }
            Ok((id, peer))
        }
    }

    fn stream(&self, (id, peer): (TcpId, SocketAddr)) -> (TcpStream, SocketAddr) {
        let Socket { here, v6, .. } = &self.socket;
        let socket = Socket::new(here.clone(), id, *v6);
        socket.remember_marks(self.socket.marks());
        (TcpStream::new(socket), shown(peer, *v6))
    }

    /// The address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The time to live of packets (`IP_TTL`).
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// Sets the time to live of packets of later connections.
    ///
    /// # Errors
    /// `InvalidInput` unless it is 1 to 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }

    /// Fails: see [`net`](crate::net).
    pub fn from_std(_: std::net::TcpListener) -> io::Result<Self> {
        Err(no_descriptor())
    }

    /// Fails: see [`net`](crate::net).
    pub fn into_std(self) -> io::Result<std::net::TcpListener> {
        Err(no_descriptor())
    }
}

impl TryFrom<std::net::TcpListener> for TcpListener {
    type Error = io::Error;

    fn try_from(listener: std::net::TcpListener) -> io::Result<Self> {
        Self::from_std(listener)
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TcpListener").field(&self.socket).finish()
    }
}
