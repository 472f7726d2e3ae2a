//! [`UdpSocket`]: datagram sockets of tasks, shaped as tokio's.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use pagewire_mem::{CopyReason, FragVec};
use pagewire_stack::{
    Datagram as Sender, Error, Message, Readiness, RecvFlags, Stack, UdpId, UdpMessage, UdpTarget,
};
use smallvec::SmallVec;

use super::ready::readiness;
use crate::addr::{ToSocketAddrs, destination, target};
use crate::blocking;
use crate::buf::{Chunks, SendBuf, read_into};
use crate::connect::{BindOptions, first};
use crate::datagram::Datagram;
use crate::multicast::by_address;
use crate::ops::{receive, send, send_frags, send_frags_zc, take_datagram, take_message};
use crate::options::{no_descriptor, of_every_udp_socket};
use crate::runtime::{Clock, Runtime};
use crate::socket::{READ, Socket, WRITE};
use crate::waiters::{Call, Polls};
use crate::zerocopy::Sent;

/// A UDP socket, as tokio's; beyond that, it sends and receives by reference. All calls take `&self`: tasks
/// share it by an [`Arc`].
pub struct UdpSocket<R: Runtime> {
    socket: Arc<Socket<R, UdpId>>,
    polls: Polls,
}

const READING: Call = Call::new("to receive");
const WRITING: Call = Call::new("to send");
const PEEKING: Call = Call::new("to peek");

of_every_udp_socket!(UdpSocket);
readiness!(UdpSocket, poll_recv_ready, poll_send_ready);

impl<R: Runtime> UdpSocket<R> {
    pub(crate) fn new(socket: Arc<Socket<R, UdpId>>) -> Self {
        Self { socket, polls: Polls::default() }
    }

    fn socket(&self) -> &Socket<R, UdpId> {
        &self.socket
    }

    /// Binds a socket to the first address that can be had, on the stack of the code that runs; port 0
    /// stands for a free one.
    ///
    /// # Errors
    /// `AddrInUse`, `AddrNotAvailable` for an address that the host does not have; those of the resolver;
    /// those of [`Runtime::current`](crate::Runtime::current).
    pub fn bind(at: impl ToSocketAddrs) -> impl Future<Output = io::Result<Self>> {
        let at = target(&at);
        async move {
            let runtime = R::current()?;
            let found = at?.resolve(&runtime).await?;
            first(found, |at| BindOptions::new().bind_udp(&runtime, at)).map(Self::new)
        }
    }

    /// [`bind`](Self::bind) on a stack.
    pub async fn bind_on(runtime: &R, at: impl ToSocketAddrs) -> io::Result<Self> {
        Self::bind_with(runtime, at, &BindOptions::new()).await
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
            first(found, |at| options.bind_udp(runtime, at)).map(Self::new)
        }
    }

    /// Sets the peer: the destination of `send`, and the only source of datagrams from now on.
    ///
    /// # Errors
    /// `NetworkUnreachable`, `PermissionDenied` for a broadcast address unless that is allowed; those of
    /// the resolver.
    pub fn connect(&self, to: impl ToSocketAddrs) -> impl Future<Output = io::Result<()>> {
        let to = target(&to);
        async move {
            let found = to?.resolve(self.socket.runtime()).await?;
            first(found, |to| {
                self.socket.with(|mut udp, clock| {
                    clock.now();
                    udp.connect(destination(to))
                })
            })
        }
    }

    /// The same socket for another task: its calls that poll have wakers of their own.
    pub fn share(&self) -> Self {
        Self::new(Arc::clone(&self.socket))
    }

    /// The same socket for threads.
    pub fn to_blocking(&self) -> blocking::UdpSocket<R> {
        blocking::UdpSocket(Arc::clone(&self.socket))
    }

    /// Fails: there is no descriptor.
    pub fn from_std(_: std::net::UdpSocket) -> io::Result<Self> {
        Err(no_descriptor())
    }

    /// Fails: there is no descriptor.
    pub fn into_std(self) -> io::Result<std::net::UdpSocket> {
        Err(no_descriptor())
    }

    /// [`tos_v4`](Self::tos_v4).
    ///
    /// # Errors
    /// The errors of `tos_v4`.
    #[deprecated(
        note = "`tos` related methods have been renamed `tos_v4` since they are IPv4-specific."
    )]
    pub fn tos(&self) -> io::Result<u32> {
        self.tos_v4()
    }

    /// [`set_tos_v4`](Self::set_tos_v4).
    ///
    /// # Errors
    /// The errors of `set_tos_v4`.
    #[deprecated(
        note = "`tos` related methods have been renamed `tos_v4` since they are IPv4-specific."
    )]
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        self.set_tos_v4(tos)
    }
}

/// Groups of IPv4. As on Linux, a socket bound to the port receives datagrams to any group that any socket
/// of the host has joined; one bound to a group's address receives only that group's.
impl<R: Runtime> UdpSocket<R> {
    /// Joins a group on the link that has the address `interface`, or with `0.0.0.0` on the link of
    /// the route to the group.
    ///
    /// # Errors
    /// `InvalidInput` for an address of no group, `AddrInUse` for a group joined before, `ENODEV`
    /// if there is no such link.
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().join((group.into(), by_address(interface)))
    }

    /// Leaves a group that was joined with the same arguments.
    ///
    /// # Errors
    /// `AddrNotAvailable` if it was not joined.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.socket().leave((group.into(), by_address(interface)))
    }
}

/// Sends. A datagram is on its way when the call returns.
impl<R: Runtime> UdpSocket<R> {
    /// Sends a datagram to the peer. Returns its length.
    ///
    /// # Errors
    /// Linux's `EDESTADDRREQ` without a peer, `EMSGSIZE` for a datagram that is too long, and once, the
    /// error that an earlier one met: `ConnectionRefused` where nobody listens.
    #[track_caller]
    pub fn send(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> + Send + Sync {
        let (id, call) = (self.socket.id(), Call::here("to send"));
        self.socket.wait(WRITE, call, move |stack, clock| send((stack, clock), id, data, None))
    }

    /// [`send`](Self::send) for tasks that poll.
    pub fn poll_send(&self, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_put(cx, data, None)
    }

    /// [`send`](Self::send), or `WouldBlock`.
    pub fn try_send(&self, data: &[u8]) -> io::Result<usize> {
        let id = self.socket.id();
        self.socket.enter(|stack, clock| send((stack, clock), id, data, None))
    }

    /// Sends a datagram to the first of the addresses. Returns its length.
    ///
    /// # Errors
    /// `EMSGSIZE` for a datagram that is too long, `EAFNOSUPPORT` for an address of another version,
    /// `NetworkUnreachable`, `PermissionDenied` for a broadcast address unless that is
    /// [allowed](Self::set_broadcast), and once, the error that an earlier datagram met.
    #[track_caller]
    pub fn send_to<A: ToSocketAddrs>(
        &self,
        data: &[u8],
        to: A,
    ) -> impl Future<Output = io::Result<usize>> {
        let (id, to, call) = (self.socket.id(), target(&to), Call::here("to send"));
        async move {
            let to = self.destination(to).await?;
            let send = |stack: &mut Stack, clock: &Clock<'_>| send((stack, clock), id, data, to);
            self.socket.wait(WRITE, call, send).await
        }
    }

    async fn destination(
        &self,
        to: io::Result<crate::addr::Target>,
    ) -> io::Result<Option<SocketAddr>> {
        let found = to?.resolve(self.socket.runtime()).await?;
        Ok(found.first().copied().map(destination))
    }

    /// [`send_to`](Self::send_to) for tasks that poll.
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        data: &[u8],
        target: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.poll_put(cx, data, Some(destination(target)))
    }

    fn poll_put(
        &self,
        cx: &mut Context<'_>,
        data: &[u8],
        to: Option<SocketAddr>,
    ) -> Poll<io::Result<usize>> {
        let id = self.socket.id();
        self.socket.poll_mostly_ready((self.polls.writes, WRITE), WRITING, cx, |stack, clock| {
            send((stack, clock), id, data, to)
        })
    }

    /// [`send_to`](Self::send_to), or `WouldBlock`.
    pub fn try_send_to(&self, data: &[u8], target: SocketAddr) -> io::Result<usize> {
        let (id, to) = (self.socket.id(), Some(destination(target)));
        self.socket.enter(|stack, clock| send((stack, clock), id, data, to))
    }

    /// Sends one datagram or several from `source` to `remote`, with settings of their packets, or
    /// `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, `InvalidInput` for a source of another host, and those of [`send`](Self::send).
    pub fn try_send_with(&self, data: &[u8], target: UdpTarget) -> io::Result<usize> {
        let id = self.socket.id();
        self.socket.enter(|stack, clock| send((stack, clock), id, data, target))
    }

    /// Sends a datagram by reference to the address that the socket is connected to.
    pub async fn send_chunks(&self, data: impl Into<SendBuf>) -> io::Result<usize> {
        self.send_frags(&data.into().frags, None).await
    }

    /// Sends a datagram by reference. Returns its length.
    pub async fn send_chunks_to(
        &self,
        data: impl Into<SendBuf>,
        to: impl ToSocketAddrs,
    ) -> io::Result<usize> {
        let to = self.destination(target(&to)).await?;
        self.send_frags(&data.into().frags, to).await
    }

    async fn send_frags(&self, data: &FragVec, to: Option<SocketAddr>) -> io::Result<usize> {
        let id = self.socket.id();
        let send = |stack: &mut Stack, clock: &Clock<'_>| send_frags((stack, clock), id, data, to);
        self.socket.wait(WRITE, WRITING, send).await
    }

    /// Sends a datagram by reference to the connected address, and reports when its memory may be used
    /// again; see [`send_zc`](crate::blocking::UdpSocket::send_zc) of the form for threads.
    ///
    /// # Errors
    /// The errors of the form for threads.
    pub async fn send_zc(&self, data: impl Into<SendBuf>) -> io::Result<Sent> {
        self.send_frags_zc(&data.into().frags, None).await
    }

    /// [`send_zc`](Self::send_zc) to an address.
    pub async fn send_zc_to(
        &self,
        data: impl Into<SendBuf>,
        to: impl ToSocketAddrs,
    ) -> io::Result<Sent> {
        let to = self.destination(target(&to)).await?;
        self.send_frags_zc(&data.into().frags, to).await
    }

    async fn send_frags_zc(&self, data: &FragVec, to: Option<SocketAddr>) -> io::Result<Sent> {
        let id = self.socket.id();
        let send =
            |stack: &mut Stack, clock: &Clock<'_>| send_frags_zc((stack, clock), id, data, to);
        self.socket.wait(WRITE, WRITING, send).await
    }
}

/// Receives. What does not fit into the buffer is lost, as on Linux.
impl<R: Runtime> UdpSocket<R> {
    fn take(
        &self,
        stack: &mut Stack,
        buf: &mut [u8],
        flags: RecvFlags,
    ) -> Result<(usize, SocketAddr), Error> {
        let (n, from) = receive(stack, self.socket.id(), buf, flags)?;
        Ok((n, self.socket.shown(from)))
    }

    fn take_now(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<(usize, SocketAddr)> {
        self.socket.enter(|stack, _| self.take(stack, buf, flags))
    }

    fn take_later(
        &self,
        buf: &mut [u8],
        flags: RecvFlags,
        call: Call,
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send + Sync {
        self.socket.wait(READ, call, move |stack, _| self.take(stack, buf, flags))
    }

    /// Receives a datagram: its length.
    ///
    /// # Errors
    /// Once, the error that an earlier datagram met: `ConnectionRefused` where nobody listens,
    /// `HostUnreachable`.
    #[track_caller]
    pub fn recv(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send + Sync {
        let taken = self.take_later(buf, RecvFlags::empty(), Call::here("to receive"));
        async move { taken.await.map(|(n, _)| n) }
    }

    /// [`recv`](Self::recv), or `WouldBlock`.
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
        let call = Call::here("to receive");
        async move { self.socket.retry(Readiness::FOR_READ, call, || self.try_recv_buf(buf)).await }
    }

    /// Receives a datagram: its length, and its sender.
    #[track_caller]
    pub fn recv_from(
        &self,
        buf: &mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send + Sync {
        self.take_later(buf, RecvFlags::empty(), Call::here("to receive"))
    }

    /// [`recv_from`](Self::recv_from), or `WouldBlock`.
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.take_now(buf, RecvFlags::empty())
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
        let call = Call::here("to receive");
        async move { self.socket.retry(Readiness::FOR_READ, call, || self.try_recv_buf_from(buf)).await }
    }

    /// Receives a datagram without taking it.
    #[track_caller]
    pub fn peek(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send + Sync {
        let seen = self.take_later(buf, RecvFlags::PEEK, Call::here("to peek"));
        async move { seen.await.map(|(n, _)| n) }
    }

    /// [`peek`](Self::peek), or `WouldBlock`.
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_peek_from(buf).map(|(n, _)| n)
    }

    /// Receives a datagram without taking it, and its sender.
    #[track_caller]
    pub fn peek_from(
        &self,
        buf: &mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send + Sync {
        self.take_later(buf, RecvFlags::PEEK, Call::here("to peek"))
    }

    /// [`peek_from`](Self::peek_from), or `WouldBlock`.
    pub fn try_peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.take_now(buf, RecvFlags::PEEK)
    }

    /// The sender of the next datagram.
    #[track_caller]
    pub fn peek_sender(&self) -> impl Future<Output = io::Result<SocketAddr>> + Send + Sync {
        self.socket.wait(READ, Call::here("to peek"), |stack, _| self.sender(stack))
    }

    /// [`peek_sender`](Self::peek_sender) for tasks that poll.
    pub fn poll_peek_sender(&self, cx: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        self.socket.poll((self.polls.reads, READ), PEEKING, cx, |stack, _| self.sender(stack))
    }

    /// [`peek_sender`](Self::peek_sender), or `WouldBlock`.
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        self.socket.enter(|stack, _| self.sender(stack))
    }

    fn sender(&self, stack: &mut Stack) -> Result<SocketAddr, Error> {
        let (_, from) = stack.udp(self.socket.id())?.recv(Sender, RecvFlags::PEEK)?;
        Ok(self.socket.shown(from))
    }

    /// Receives a datagram by reference.
    pub async fn recv_chunks(&self) -> io::Result<Chunks> {
        self.recv_chunks_from().await.map(|(chunks, _)| chunks)
    }

    /// Receives a datagram by reference, and its sender.
    pub async fn recv_chunks_from(&self) -> io::Result<(Chunks, SocketAddr)> {
        let id = self.socket.id();
        let take = |stack: &mut Stack, _: &Clock<'_>| take_datagram(stack, id);
        let (chunks, from) = self.socket.wait(READ, READING, take).await?;
        Ok((chunks, self.socket.shown(from)))
    }

    /// [`recv_chunks_from`](Self::recv_chunks_from), or `WouldBlock`.
    pub fn try_recv_chunks_from(&self) -> io::Result<(Chunks, SocketAddr)> {
        let id = self.socket.id();
        let (chunks, from) = self.socket.enter(|stack, _| take_datagram(stack, id))?;
        Ok((chunks, self.socket.shown(from)))
    }

    /// Receives a datagram by reference, with the addresses of its packet; see
    /// [`recv_message`](crate::blocking::UdpSocket::recv_message) of the form for threads.
    pub async fn recv_message(&self) -> io::Result<Datagram> {
        let id = self.socket.id();
        let take = |stack: &mut Stack, _: &Clock<'_>| take_message(stack, id);
        let message = self.socket.wait(READ, READING, take).await?;
        Ok(message.shown_by(&self.socket))
    }

    /// [`recv_message`](Self::recv_message) for tasks that poll.
    pub fn poll_recv_message(&self, cx: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        let id = self.socket.id();
        let take = |stack: &mut Stack, _: &Clock<'_>| take_message(stack, id);
        let message = ready!(self.socket.poll((self.polls.reads, READ), READING, cx, take))?;
        Poll::Ready(Ok(message.shown_by(&self.socket)))
    }
}

/// Most buffers that one [`poll_recv_many`](UdpSocket::poll_recv_many) fills.
const MOST_AT_ONCE: usize = 64;

/// A datagram, or several of one sender and one length, that was received by copy.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Received {
    /// The sender.
    pub from: SocketAddr,
    /// The destination address: one of this host, of a group or of all hosts.
    pub to: IpAddr,
    /// Bytes in the buffer.
    pub len: usize,
    /// Bytes of each of several datagrams but the last, see `set_gro`.
    pub segment: Option<u16>,
    /// Congestion marks (RFC 3168).
    pub ecn: u8,
}

impl<R: Runtime> UdpSocket<R> {
    /// Receives datagrams, one into each buffer, as many as are there, up to 64 (`recvmmsg`); then calls
    /// `note` for each. Returns the number of buffers that were filled.
    pub fn poll_recv_many(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        mut note: impl FnMut(Received),
    ) -> Poll<io::Result<usize>> {
        let id = self.socket.id();
        // `note` is the caller's, who may call the runtime again: not under its lock.
        let received =
            ready!(self.socket.poll((self.polls.reads, READ), READING, cx, |stack, _| {
                let mut received = SmallVec::<[Received; 8]>::new();
                for buf in bufs.iter_mut().take(MOST_AT_ONCE) {
                    match receive_copied(stack, id, buf) {
                        Ok(one) => received.push(one),
                        // Datagrams that were received count.
                        Err(_) if !received.is_empty() => break,
                        Err(error) => return Err(error),
                    }
                }
                Ok(received)
            }))?;
        for one in &received {
            let (from, to) = (self.socket.shown(one.from), self.socket.shown_ip(one.to));
            note(Received { from, to, ..*one });
        }
        Poll::Ready(Ok(received.len()))
    }
}

/// Copies a datagram, or several of one size, into a buffer.
fn receive_copied(stack: &mut Stack, id: UdpId, buf: &mut [u8]) -> Result<Received, Error> {
    let message = stack.udp(id)?.recv(Message(buf.len()), RecvFlags::empty())?;
    let mut len = 0;
    for frag in &message.payload {
        let room = buf.get_mut(len..).unwrap_or_default();
        len += frag.copy_to(0, room, stack.ledger_mut(), CopyReason::AppRead);
    }
    let UdpMessage { from, to, segment, ecn, .. } = message;
    Ok(Received { from, to: to.ip(), len, segment, ecn })
}

impl<R: Runtime> Drop for UdpSocket<R> {
    fn drop(&mut self) {
        // The last owner closes the socket, and forgets all.
        if Arc::strong_count(&self.socket) > 1 {
            let (runtime, id) = (self.socket.runtime(), self.socket.id().into());
            for waiter in self.polls.all() {
                runtime.unregister(move |waiters| waiters.remove(id, waiter));
            }
        }
    }
}

/// Receives in tokio's buffers.
#[cfg(feature = "tokio")]
const _: () = {
    use tokio::io::ReadBuf;

    impl<R: Runtime> UdpSocket<R> {
        fn poll_take(
            &self,
            call: Call,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
            flags: RecvFlags,
        ) -> Poll<io::Result<SocketAddr>> {
            let room = buf.initialize_unfilled();
            let take = |stack: &mut Stack, _: &Clock<'_>| self.take(stack, room, flags);
            let taken = self.socket.poll((self.polls.reads, READ), call, cx, take);
            taken.map_ok(|(n, from)| {
                buf.advance(n);
                from
            })
        }

        /// [`recv`](Self::recv) for tasks that poll.
        pub fn poll_recv(
            &self,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.poll_take(READING, cx, buf, RecvFlags::empty()).map_ok(drop)
        }

        /// [`recv_from`](Self::recv_from) for tasks that poll.
        pub fn poll_recv_from(
            &self,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<SocketAddr>> {
            self.poll_take(READING, cx, buf, RecvFlags::empty())
        }

        /// [`peek`](Self::peek) for tasks that poll.
        pub fn poll_peek(
            &self,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.poll_take(PEEKING, cx, buf, RecvFlags::PEEK).map_ok(drop)
        }

        /// [`peek_from`](Self::peek_from) for tasks that poll.
        pub fn poll_peek_from(
            &self,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<SocketAddr>> {
            self.poll_take(PEEKING, cx, buf, RecvFlags::PEEK)
        }
    }
};

impl<R: Runtime> From<blocking::UdpSocket<R>> for UdpSocket<R> {
    fn from(socket: blocking::UdpSocket<R>) -> Self {
        Self::new(socket.0)
    }
}

impl<R: Runtime> From<UdpSocket<R>> for blocking::UdpSocket<R> {
    fn from(socket: UdpSocket<R>) -> Self {
        socket.to_blocking()
    }
}

impl<R: Runtime> TryFrom<std::net::UdpSocket> for UdpSocket<R> {
    type Error = io::Error;

    fn try_from(socket: std::net::UdpSocket) -> io::Result<Self> {
        Self::from_std(socket)
    }
}

impl<R: Runtime> std::fmt::Debug for UdpSocket<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UdpSocket").field(&self.socket).finish()
    }
}
