//! Datagrams.

mod options;
mod recv;
mod send;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use pagewire_stack::{BindOptions, LinkId};
use tokio::io::{Interest, Ready};

use super::addr::{ToSocketAddrs, destination, resolve, shown};
use super::error::{io_error, no_address, no_descriptor};
use super::socket::{Call, Direction, Socket};
use crate::world::Here;

/// `tokio::net::UdpSocket`, simulated.
pub struct UdpSocket {
    pub(crate) socket: Socket,
    set: Mutex<Settings>,
}

/// What was set: the stack has no getter.
#[derive(Clone, Copy, Default)]
struct Settings {
    broadcast: bool,
    link: Option<LinkId>,
}

const RECEIVE: Call = ("to receive", None);
const SEND: Call = ("to send", None);

impl UdpSocket {
    /// Binds a socket to the first address that can be had; port 0 stands for a free one.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable` for an address that the host does not have, and those of
    /// [`lookup_host`](crate::net::lookup_host).
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<Self> {
        let here = Here::get()?;
        let mut last = None;
        for addr in resolve(&here, addr)? {
            match here.with_stack(|stack, _| stack.bind_udp(addr, BindOptions::default()))? {
                Ok(id) => {
                    let socket = Socket::new(here, id, addr.is_ipv6());
                    return Ok(Self { socket, set: Mutex::default() });
                }
                Err(error) => last = Some(io_error(error)),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    /// Sets the peer: the destination of `send`, and the only source of datagrams from now on.
    ///
    /// # Errors
    /// `NetworkUnreachable`, `PermissionDenied` for a broadcast address unless that is allowed.
    pub async fn connect<A: ToSocketAddrs>(&self, addr: A) -> io::Result<()> {
        let mut last = None;
        for addr in resolve(&self.socket.here, addr)? {
            let connected = self
                .socket
                .with(|stack, _| stack.as_udp(self.socket.id)?.connect(destination(addr)));
            match connected {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(no_address))
    }

    /// The address and port; once it has a peer, the address that datagrams to it leave from.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let id = self.socket.id;
        let local = self.socket.with(|stack, _| {
            let mut local = stack.local_addr(id)?;
            if local.ip().is_unspecified()
                && let Ok(source) = stack.as_udp(id)?.source()
            {
                local.set_ip(source);
            }
            Ok(local)
        });
        Ok(shown(local?, self.socket.v6))
    }

    /// The peer.
    ///
    /// # Errors
    /// `NotConnected` without one.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Takes the error that the network reported of an earlier datagram (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails: see [`net`](crate::net).
    pub fn from_std(_: std::net::UdpSocket) -> io::Result<Self> {
        Err(no_descriptor())
    }

    /// Fails: see [`net`](crate::net).
    pub fn into_std(self) -> io::Result<std::net::UdpSocket> {
        Err(no_descriptor())
    }
}

/// Readiness.
impl UdpSocket {
    /// Waits until it is ready for something that is asked.
    #[track_caller]
    pub fn ready(
        &self,
        interest: Interest,
    ) -> impl Future<Output = io::Result<Ready>> + Send + Sync {
        self.socket.ready(interest, ("to be ready", Some(Location::caller())))
    }

    /// Waits until there is a datagram, or an error.
    #[track_caller]
    pub fn readable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync {
        let call = ("to receive", Some(Location::caller()));
        async move { self.socket.ready(Interest::READABLE, call).await.map(drop) }
    }

    /// Waits until a datagram can be sent: at once.
    #[track_caller]
    pub fn writable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync {
        let call = ("to send", Some(Location::caller()));
        async move { self.socket.ready(Interest::WRITABLE, call).await.map(drop) }
    }

    /// [`readable`](Self::readable) for tasks that poll.
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_ready(Direction::Read, RECEIVE, cx)
    }

    /// [`writable`](Self::writable) for tasks that poll.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_ready(Direction::Write, SEND, cx)
    }

    /// Runs `f` if the socket is ready for `interest`; else `WouldBlock`.
    pub fn try_io<R>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.socket.try_io(interest, f)
    }

    /// Runs `f` when the socket is ready for `interest`, until it returns anything but
    /// `WouldBlock`.
    #[track_caller]
    pub fn async_io<R>(
        &self,
        interest: Interest,
        f: impl FnMut() -> io::Result<R>,
    ) -> impl Future<Output = io::Result<R>> {
        self.socket.async_io(interest, ("to be ready", Some(Location::caller())), f)
    }
}

impl TryFrom<std::net::UdpSocket> for UdpSocket {
    type Error = io::Error;

    fn try_from(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UdpSocket").field(&self.socket).finish()
    }
}
