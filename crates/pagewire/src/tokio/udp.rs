//! Datagrams for tasks.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use ::tokio::io::{Interest, ReadBuf, Ready};
use pagewire_stack::{RecvFlags, Udp, UdpId};

use super::completions::CompletionStream;
use super::wait::Seat;
use crate::Host;
use crate::addr::{ToSocketAddrs, addresses, first};
use crate::buf::{Chunks, SendBuf};
use crate::datagrams::{Datagram, receive_message};
use crate::socket::Socket;
use crate::udp_socket::{self as sync, receive, send, send_frags, take_datagram};
use crate::waiters::Interest as Until;
use crate::zerocopy::{Completion, Completions, Sent, send_datagram};

/// A UDP socket, as tokio's; beyond it, sends and receives by reference. All calls take `&self`: tasks
/// share it by an [`Arc`](std::sync::Arc).
pub struct UdpSocket {
    socket: sync::UdpSocket,
    /// Of receives of any kind, and of readiness.
    receives: Seat,
    /// The same of sends.
    sends: Seat,
    completes: Seat,
}

impl UdpSocket {
    /// A socket bound to a local address; see [`Host::udp`].
    ///
    /// # Errors
    /// Those of [`Host::udp`].
    pub async fn bind(host: &Host, on: impl ToSocketAddrs) -> io::Result<Self> {
        host.udp(&*addresses(&on)?).map(Self::from)
    }

    /// Sets the address that `send` sends to; only datagrams from there are received.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route.
    pub async fn connect(&self, to: impl ToSocketAddrs) -> io::Result<()> {
        self.socket.connect(first(&to)?)
    }

    /// The same socket for threads: options and state.
    pub fn as_sync(&self) -> &sync::UdpSocket {
        &self.socket
    }

    /// The same socket for threads.
    pub fn into_sync(self) -> sync::UdpSocket {
        self.socket
    }

    #[cfg(feature = "quinn")]
    pub(crate) fn receives(&self) -> &Seat {
        &self.receives
    }

    pub(super) fn socket(&self) -> &Socket<UdpId> {
        &self.socket.0
    }

    /// The address of this side.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The address that the socket is connected to.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// The pending error, once: a closed port, an unreachable host.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }
}

/// By copy.
impl UdpSocket {
    /// Sends a datagram to the address that the socket is connected to. Returns its length.
    ///
    /// # Errors
    /// Linux's `EDESTADDRREQ` if it is not connected, and those of [`send_to`](Self::send_to).
    pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.socket().later(Until::Write, send(data, None)).await
    }

    /// [`send`](Self::send) for tasks that poll.
    pub fn poll_send(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.socket().poll(&self.sends, Until::Write, cx, send(data, None))
    }

    /// [`send`](Self::send), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`send`](Self::send).
    pub fn try_send(&self, data: &[u8]) -> io::Result<usize> {
        self.socket().try_now(Until::Write, send(data, None))
    }

    /// Sends a datagram. Returns its length.
    ///
    /// # Errors
    /// Linux's `EMSGSIZE` if it is too long, `PermissionDenied` to all hosts of a network without
    /// [`set_broadcast`](crate::UdpSocket::set_broadcast), `NetworkUnreachable` without a route, and once,
    /// what an earlier datagram met.
    pub async fn send_to(&self, data: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        self.socket().later(Until::Write, send(data, Some(first(&to)?))).await
    }

    /// [`send_to`](Self::send_to) for tasks that poll.
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        data: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.socket().poll(&self.sends, Until::Write, cx, send(data, Some(to)))
    }

    /// [`send_to`](Self::send_to), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`send_to`](Self::send_to).
    pub fn try_send_to(&self, data: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.socket().try_now(Until::Write, send(data, Some(to)))
    }

    /// Receives a datagram: its length in `buf`, cut if it does not fit.
    ///
    /// # Errors
    /// Once, what an earlier datagram met: `ConnectionRefused`, `HostUnreachable`.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).await.map(|(n, _)| n)
    }

    /// [`recv`](Self::recv) for tasks that poll.
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buf).map_ok(drop)
    }

    /// [`recv`](Self::recv), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`recv`](Self::recv).
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_recv_from(buf).map(|(n, _)| n)
    }

    /// Receives a datagram: its length in `buf`, cut if it does not fit, and its sender.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket().later(Until::Read, receive(buf, RecvFlags::empty())).await
    }

    /// [`recv_from`](Self::recv_from) for tasks that poll.
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_receive(cx, buf, RecvFlags::empty())
    }

    pub(super) fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        flags: RecvFlags,
    ) -> Poll<io::Result<SocketAddr>> {
        let receive = receive(buf.initialize_unfilled(), flags);
        let received = self.socket().poll(&self.receives, Until::Read, cx, receive);
        received.map_ok(|(n, from)| {
            buf.advance(n);
            from
        })
    }

    /// [`recv_from`](Self::recv_from), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`recv`](Self::recv).
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket().try_now(Until::Read, receive(buf, RecvFlags::empty()))
    }
}

/// By reference.
impl UdpSocket {
    /// Sends a datagram by reference to the address that the socket is connected to.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn send_chunks(&self, data: impl Into<SendBuf>) -> io::Result<usize> {
        self.socket().later(Until::Write, send_frags(data.into(), None)).await
    }

    /// Sends a datagram by reference. Returns its length.
    ///
    /// # Errors
    /// Those of [`send_to`](Self::send_to).
    pub async fn send_chunks_to(
        &self,
        data: impl Into<SendBuf>,
        to: impl ToSocketAddrs,
    ) -> io::Result<usize> {
        self.socket().later(Until::Write, send_frags(data.into(), Some(first(&to)?))).await
    }

    /// Receives a datagram by reference.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn recv_chunks(&self) -> io::Result<Chunks> {
        self.recv_chunks_from().await.map(|(chunks, _)| chunks)
    }

    /// Receives a datagram by reference, and its sender.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn recv_chunks_from(&self) -> io::Result<(Chunks, SocketAddr)> {
        self.socket().later(Until::Read, take_datagram).await
    }

    /// [`recv_chunks_from`](Self::recv_chunks_from), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`recv`](Self::recv).
    pub fn try_recv_chunks_from(&self) -> io::Result<(Chunks, SocketAddr)> {
        self.socket().try_now(Until::Read, take_datagram)
    }

    /// Receives a datagram by reference, with the addresses of its packet; see
    /// [`pagewire::UdpSocket::recv_message`](crate::UdpSocket::recv_message).
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn recv_message(&self) -> io::Result<Datagram> {
        self.socket().later(Until::Read, receive_message).await
    }

    /// [`recv_message`](Self::recv_message) for tasks that poll.
    pub fn poll_recv_message(&self, cx: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        self.socket().poll(&self.receives, Until::Read, cx, receive_message)
    }
}

/// Zero-copy sends and their completions.
impl UdpSocket {
    /// Sends a datagram by reference, and reports when its memory may be used again; see
    /// [`pagewire::UdpSocket::send_zc_to`](crate::UdpSocket::send_zc_to).
    ///
    /// # Errors
    /// Those of `send_zc_to`.
    pub async fn send_zc_to(
        &self,
        data: impl Into<SendBuf>,
        to: impl ToSocketAddrs,
    ) -> io::Result<Sent> {
        self.send_frags_zc(data.into(), Some(first(&to)?)).await
    }

    /// [`send_zc_to`](Self::send_zc_to) the address that the socket is connected to.
    ///
    /// # Errors
    /// Those of `send_zc_to`.
    pub async fn send_zc(&self, data: impl Into<SendBuf>) -> io::Result<Sent> {
        self.send_frags_zc(data.into(), None).await
    }

    async fn send_frags_zc(&self, data: SendBuf, to: Option<SocketAddr>) -> io::Result<Sent> {
        let send = |udp: Udp<'_>, now| send_datagram(udp, now, &data.frags, to);
        self.socket().later(Until::Write, send).await
    }

    /// The completions that are there now; never waits.
    pub fn completions(&self) -> Completions<'_> {
        self.socket.completions()
    }

    /// The next completion; `None`: no send is outstanding.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub async fn next_completion(&self) -> io::Result<Option<Completion>> {
        self.socket().next_completion().await
    }

    /// [`next_completion`](Self::next_completion) for tasks that poll.
    pub fn poll_completion(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Completion>>> {
        self.socket().poll_completion(&self.completes, cx)
    }

    /// The completions as a stream; see [`TcpStream::completion_stream`](super::TcpStream::completion_stream).
    pub fn completion_stream(&self) -> CompletionStream<'_> {
        self.socket().completion_stream(&self.completes)
    }
}

/// Readiness.
impl UdpSocket {
    /// What of `interest` the socket is ready for, once that is something.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.socket().ready(interest).await
    }

    /// Waits until a receive does not block.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until a send does not block.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// [`readable`](Self::readable) for tasks that poll.
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_ready(&self.receives, Interest::READABLE, cx)
    }

    /// [`writable`](Self::writable) for tasks that poll.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_ready(&self.sends, Interest::WRITABLE, cx)
    }

    /// Runs `f` if the socket is ready for `interest`.
    ///
    /// # Errors
    /// `WouldBlock` if it is not, and those of `f`.
    pub fn try_io<R>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.socket().try_io(interest, f)
    }
}

impl From<sync::UdpSocket> for UdpSocket {
    fn from(socket: sync::UdpSocket) -> Self {
        let (receives, sends, completes) = Default::default();
        Self { socket, receives, sends, completes }
    }
}

impl From<UdpSocket> for sync::UdpSocket {
    fn from(socket: UdpSocket) -> Self {
        socket.socket
    }
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.socket.fmt(f)
    }
}
