//! Receives datagrams. What does not fit into the buffer is lost, as on Linux.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::task::{Context, Poll};

use bytes::BufMut;
use pagewire_stack::{Datagram, Error, RecvFlags, Stack};
use tokio::io::{Interest, ReadBuf};

use super::{RECEIVE, UdpSocket};
use crate::net::addr::shown;
use crate::net::buf::read_into;
use crate::net::socket::{Call, Direction};

const PEEK: Call = ("to peek", None);

/// Takes.
impl UdpSocket {
    /// Receives a datagram: bytes.
    ///
    /// # Errors
    /// Once, the error that an earlier datagram met: `ConnectionRefused` where nobody listens.
    #[track_caller]
    pub fn recv(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send + Sync {
        let call = ("to receive", Some(Location::caller()));
        let take = |stack: &mut Stack, _| self.take(stack, buf, RecvFlags::empty());
        let taken = self.socket.wait(Direction::Read, call, take);
        async move { taken.await.map(|(n, _)| n) }
    }

    /// [`recv`](Self::recv) for tasks that poll.
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_take(RECEIVE, cx, buf, RecvFlags::empty()).map_ok(drop)
    }

    /// [`recv`](Self::recv) that does not wait.
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_recv_from(buf).map(|(n, _)| n)
    }

    /// [`try_recv`](Self::try_recv) into the free part of a buffer.
    pub fn try_recv_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        self.try_recv_buf_from(buf).map(|(n, _)| n)
    }

    /// [`recv`](Self::recv) into the free part of a buffer.
    #[track_caller]
    pub fn recv_buf<B: BufMut>(&self, buf: &mut B) -> impl Future<Output = io::Result<usize>> {
        let call = ("to receive", Some(Location::caller()));
        async move {
            let read = || self.try_recv_buf(buf);
            self.socket.async_io(Interest::READABLE, call, read).await
        }
    }

    /// Receives a datagram: bytes, and its sender.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    #[track_caller]
    pub fn recv_from(
        &self,
        buf: &mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send + Sync {
        let call = ("to receive", Some(Location::caller()));
        let take = |stack: &mut Stack, _| self.take(stack, buf, RecvFlags::empty());
        self.socket.wait(Direction::Read, call, take)
    }

    /// [`recv_from`](Self::recv_from) for tasks that poll.
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_take(RECEIVE, cx, buf, RecvFlags::empty())
    }

    /// [`recv_from`](Self::recv_from) that does not wait.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.with(|stack, _| self.take(stack, buf, RecvFlags::empty()))
    }

    /// [`try_recv_from`](Self::try_recv_from) into the free part of a buffer.
    pub fn try_recv_buf_from<B: BufMut>(&self, buf: &mut B) -> io::Result<(usize, SocketAddr)> {
        read_into(buf, |room| self.try_recv_from(room).map(|taken| (taken.0, taken)))
    }

    /// [`recv_from`](Self::recv_from) into the free part of a buffer.
    #[track_caller]
    pub fn recv_buf_from<B: BufMut>(
        &self,
        buf: &mut B,
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> {
        let call = ("to receive", Some(Location::caller()));
        async move {
            let read = || self.try_recv_buf_from(buf);
            self.socket.async_io(Interest::READABLE, call, read).await
        }
    }

    fn take(
        &self,
        stack: &mut Stack,
        buf: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(usize, SocketAddr), Error> {
        let (n, from) = stack.as_udp(self.socket.id)?.recv(buf, flags)?;
        Ok((n, shown(from, self.socket.v6)))
    }

    fn poll_take(
        &self,
        call: Call,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        flags: RecvFlags,
    ) -> Poll<io::Result<SocketAddr>> {
        let room = buf.initialize_unfilled();
        let take = |stack: &mut Stack, _| self.take(stack, room, flags);
        let taken = self.socket.poll(Direction::Read, call, cx, take);
        taken.map_ok(|(n, from)| {
            buf.advance(n);
            from
        })
    }
}

/// Looks.
impl UdpSocket {
    /// Receives a datagram without taking it.
    #[track_caller]
    pub fn peek(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send + Sync {
        let call = ("to peek", Some(Location::caller()));
        let look = |stack: &mut Stack, _| self.take(stack, buf, RecvFlags::PEEK);
        let seen = self.socket.wait(Direction::Read, call, look);
        async move { seen.await.map(|(n, _)| n) }
    }

    /// [`peek`](Self::peek) for tasks that poll.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_take(PEEK, cx, buf, RecvFlags::PEEK).map_ok(drop)
    }

    /// [`peek`](Self::peek) that does not wait.
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_peek_from(buf).map(|(n, _)| n)
    }

    /// Receives a datagram without taking it, and its sender.
    #[track_caller]
    pub fn peek_from(
        &self,
        buf: &mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send + Sync {
        let call = ("to peek", Some(Location::caller()));
        let look = |stack: &mut Stack, _| self.take(stack, buf, RecvFlags::PEEK);
        self.socket.wait(Direction::Read, call, look)
    }

    /// [`peek_from`](Self::peek_from) for tasks that poll.
    pub fn poll_peek_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_take(PEEK, cx, buf, RecvFlags::PEEK)
    }

    /// [`peek_from`](Self::peek_from) that does not wait.
    pub fn try_peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket.with(|stack, _| self.take(stack, buf, RecvFlags::PEEK))
    }

    /// The sender of the next datagram.
    #[track_caller]
    pub fn peek_sender(&self) -> impl Future<Output = io::Result<SocketAddr>> + Send + Sync {
        let call = ("to peek", Some(Location::caller()));
        self.socket.wait(Direction::Read, call, |stack, _| self.sender(stack))
    }

    /// [`peek_sender`](Self::peek_sender) for tasks that poll.
    pub fn poll_peek_sender(&self, cx: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        self.socket.poll(Direction::Read, PEEK, cx, |stack, _| self.sender(stack))
    }

    /// [`peek_sender`](Self::peek_sender) that does not wait.
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        self.socket.with(|stack, _| self.sender(stack))
    }

    fn sender(&self, stack: &mut Stack) -> Result<SocketAddr, Error> {
        let (_, from) = stack.as_udp(self.socket.id)?.recv(Datagram, RecvFlags::PEEK)?;
        Ok(shown(from, self.socket.v6))
    }
}
