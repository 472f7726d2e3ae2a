//! Sends datagrams.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::task::{Context, Poll};

use pagewire_mem::Instant;
use pagewire_stack::{Error, Stack};

use super::{SEND, UdpSocket};
use crate::net::addr::{ToSocketAddrs, destination, resolve};
use crate::net::error::no_address;
use crate::net::socket::Direction;

impl UdpSocket {
    /// Sends a datagram to the peer. It leaves when the program waits next, at the same moment.
    ///
    /// # Errors
    /// `EDESTADDRREQ` without a peer, `EMSGSIZE` for a datagram that is too long, and once, the
    /// error that an earlier one met: `ConnectionRefused` where nobody listens.
    #[track_caller]
    pub fn send(&self, buf: &[u8]) -> impl Future<Output = io::Result<usize>> + Send + Sync {
        let call = ("to send", Some(Location::caller()));
        self.socket.wait(Direction::Write, call, |stack, now| self.put((stack, now), buf, None))
    }

    /// [`send`](Self::send) for tasks that poll.
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let send = |stack: &mut Stack, now| self.put((stack, now), buf, None);
        self.socket.poll(Direction::Write, SEND, cx, send)
    }

    /// [`send`](Self::send) that does not wait.
    pub fn try_send(&self, buf: &[u8]) -> io::Result<usize> {
        self.socket.with(|stack, now| self.put((stack, now), buf, None))
    }

    /// Sends a datagram to the first of the addresses.
    ///
    /// # Errors
    /// `EMSGSIZE` for a datagram that is too long, `EAFNOSUPPORT` for an address of another
    /// version, `NetworkUnreachable`, `PermissionDenied` for a broadcast address unless that is
    /// [allowed](Self::set_broadcast).
    #[track_caller]
    pub fn send_to<A: ToSocketAddrs>(
        &self,
        buf: &[u8],
        addr: A,
    ) -> impl Future<Output = io::Result<usize>> {
        let call = ("to send", Some(Location::caller()));
        async move {
            let to = resolve(&self.socket.here, addr)?.into_iter().next();
            let to = Some(to.ok_or_else(no_address)?);
            let send = |stack: &mut Stack, now| self.put((stack, now), buf, to);
            self.socket.wait(Direction::Write, call, send).await
        }
    }

    /// [`send_to`](Self::send_to) for tasks that poll.
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        buf: &[u8],
        target: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        let send = |stack: &mut Stack, now| self.put((stack, now), buf, Some(target));
        self.socket.poll(Direction::Write, SEND, cx, send)
    }

    /// [`send_to`](Self::send_to) that does not wait.
    pub fn try_send_to(&self, buf: &[u8], target: SocketAddr) -> io::Result<usize> {
        self.socket.with(|stack, now| self.put((stack, now), buf, Some(target)))
    }

    fn put(
        &self,
        (stack, now): (&mut Stack, Instant),
        buf: &[u8],
        to: Option<SocketAddr>,
    ) -> Result<usize, Error> {
        stack.as_udp(self.socket.id)?.send(now, buf, to.map(destination))
    }
}
