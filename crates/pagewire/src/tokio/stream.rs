//! A connection for tasks.

use std::io::{self, IoSlice, IoSliceMut};
use std::iter;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use bytes::{BufMut, Bytes};
use pagewire_stack::{
    Error, MapError, Readiness, RecvFlags, SendFlags, Stack, Tcp, TcpId, ZeroCopyCall,
};

use super::completions::CompletionStream;
use super::reference::{anything_noted, noted};
use super::wait::Seat;
use crate::Host;
use crate::addr::{ToSocketAddrs, addresses};
use crate::buf::{Chunks, SendBuf};
use crate::connect::ConnectOptions;
use crate::mapping::{Mapping, try_map};
use crate::socket::Socket;
use crate::stream::{
    self as sync, queue, queue_part, queue_slices, read_slices, take_chunks, write_slices,
};
use crate::wait::{Clock, Patience};
use crate::waiters::Interest as Until;
use crate::zerocopy::{Completion, Completions, Sent};

/// Most bytes that one [`TcpStream::try_read_buf`] reads: a place that is zeroed each time, because the
/// buffer's own memory may be uninitialised.
const READ_BUF_ROOM: usize = 16 << 10;

/// A TCP connection, as tokio's; beyond it, sends and receives by reference.
///
/// It is no clone: two tasks use the halves of [`into_split`](Self::into_split), or `&TcpStream` where the
/// calls take that. A drop closes it as that of [`pagewire::TcpStream`](crate::TcpStream).
pub struct TcpStream {
    stream: sync::TcpStream,
    /// Of reads of any kind, and of readiness.
    reads: Seat,
    /// The same of writes.
    writes: Seat,
    completes: Seat,
}

impl TcpStream {
    /// Connects to the first address that answers.
    ///
    /// # Errors
    /// Those of [`Host::connect`], of the last address; there is no limit of time but TCP's own.
    pub async fn connect(host: &Host, to: impl ToSocketAddrs) -> io::Result<Self> {
        let found = addresses(&to)?;
        // Not held while it waits: the future is `Send` whatever the addresses are.
        drop(to);
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to");
        for remote in found {
            // One that cannot even begin, for want of a route, leaves the next to be tried.
            let connected = match host.start_connect(remote) {
                Ok(stream) => Self::established(stream).await,
                Err(error) => Err(error),
            };
            match connected {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// [`connect`](Self::connect) with options; see [`Host::connect_with`].
    ///
    /// # Errors
    /// Those of [`Host::connect_with`].
    pub async fn connect_with(
        host: &Host,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        let stream = host.start_connect_with(to, options)?;
        match stream.is_deferred()? {
            true => Ok(stream.into()),
            false => Self::established(stream).await,
        }
    }

    async fn established(stream: sync::TcpStream) -> io::Result<Self> {
        let id = stream.0.id;
        loop {
            match stream.wait_connected(Patience::None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => break done?,
            }
            // The next `wait_connected` reports a failure.
            let ready = |stack: &mut Stack, _| {
                let waits = !stack.readiness(id)?.intersects(Readiness::FOR_WRITE);
                if waits { Err(Error::WouldBlock) } else { Ok(()) }
            };
            let _ = stream.0.later_on(Until::Write, ready).await;
        }
        Ok(stream.into())
    }

    /// The same connection for threads: options and state.
    pub fn as_sync(&self) -> &sync::TcpStream {
        &self.stream
    }

    /// The same connection for threads.
    pub fn into_sync(self) -> sync::TcpStream {
        self.stream
    }

    /// The same connection for another half.
    pub(super) fn again(&self) -> Self {
        self.stream.clone().into()
    }

    pub(super) fn socket(&self) -> &Socket<TcpId> {
        &self.stream.0
    }

    /// The address of the other side.
    ///
    /// # Errors
    /// `NotConnected`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// The address of this side.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// See [`pagewire::TcpStream::set_nodelay`](crate::TcpStream::set_nodelay).
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.stream.set_nodelay(nodelay)
    }

    /// See [`pagewire::TcpStream::nodelay`](crate::TcpStream::nodelay).
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.stream.nodelay()
    }

    /// See [`pagewire::TcpStream::set_ttl`](crate::TcpStream::set_ttl).
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended; `InvalidInput` for 0 and above 255.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.stream.set_ttl(ttl)
    }

    /// See [`set_ttl`](Self::set_ttl).
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn ttl(&self) -> io::Result<u32> {
        self.stream.ttl()
    }

    /// See [`pagewire::TcpStream::set_linger`](crate::TcpStream::set_linger).
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn set_linger(&self, limit: Option<Duration>) -> io::Result<()> {
        self.stream.set_linger(limit)
    }

    /// A drop of the connection resets it, and queued data is lost.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.stream.set_linger(Some(Duration::ZERO))
    }

    /// See [`set_linger`](Self::set_linger).
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.stream.linger()
    }

    /// The error that the connection ended with, once.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.stream.take_error()
    }
}

/// By reference.
impl TcpStream {
    /// Queues memory by reference until all of it is queued; see
    /// [`pagewire::TcpStream::send`](crate::TcpStream::send). Returns the number of bytes.
    ///
    /// # Errors
    /// `BrokenPipe`, `ConnectionReset`, `TimedOut`. If a part was queued before the error, its length is
    /// returned, and the next call returns the error.
    pub async fn send(&self, buf: impl Into<SendBuf>) -> io::Result<usize> {
        let mut buf = buf.into();
        let (all, id) = (buf.len(), self.stream.0.id);
        while !buf.is_empty() {
            let sent = all - buf.len();
            let part = queue_part(&mut buf, id, sent > 0);
            match self.socket().later_on(Until::Write, part).await {
                Ok(0) => return Ok(sent),
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(all)
    }

    /// Queues as much from the front of `buf` as there is room for, once there is some; removes it from
    /// `buf` and returns the number of bytes.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
    pub async fn send_some(&self, buf: &mut SendBuf) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.socket().later(Until::Write, queue(buf)).await
    }

    /// [`send_some`](Self::send_some) for tasks that poll.
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &mut SendBuf) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.socket().poll(&self.writes, Until::Write, cx, queue(buf))
    }

    /// [`send_some`](Self::send_some), or `WouldBlock` if there is no room.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`send`](Self::send).
    pub fn try_send(&self, buf: &mut SendBuf) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.socket().try_now(Until::Write, queue(buf))
    }

    /// Receives up to `max` bytes by reference, once there is one; empty at the end of the stream.
    ///
    /// # Errors
    /// What ended the connection.
    pub async fn recv_chunks(&self, max: usize) -> io::Result<Chunks> {
        self.socket().later(Until::Read, |tcp, now| take_chunks(tcp, now, max)).await
    }

    /// [`recv_chunks`](Self::recv_chunks) for tasks that poll.
    pub fn poll_recv_chunks(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Chunks>> {
        let take = |tcp: Tcp<'_>, now| take_chunks(tcp, now, max);
        self.socket().poll(&self.reads, Until::Read, cx, take)
    }

    /// [`recv_chunks`](Self::recv_chunks), or `WouldBlock` if nothing is there.
    ///
    /// # Errors
    /// `WouldBlock`, and what ended the connection.
    pub fn try_recv_chunks(&self, max: usize) -> io::Result<Chunks> {
        self.socket().try_now(Until::Read, |tcp, now| take_chunks(tcp, now, max))
    }

    /// The next `len` bytes as contiguous memory, if they are there; see
    /// [`pagewire::TcpStream::map`](crate::TcpStream::map).
    ///
    /// # Errors
    /// Those of `map` there.
    pub fn map(&self, len: usize) -> Result<Mapping, MapError> {
        self.stream.map(len)
    }

    /// [`map`](Self::map), once `len` bytes are there; see
    /// [`pagewire::TcpStream::map_wait`](crate::TcpStream::map_wait).
    ///
    /// # Errors
    /// Those of `map_wait` there.
    pub async fn map_wait(&self, len: usize) -> io::Result<Mapping> {
        let id = self.stream.0.id;
        self.socket().later_on(Until::Read, |stack, now| try_map(stack, now, id, len)).await?
    }
}

/// Zero-copy sends and their completions.
impl TcpStream {
    /// Queues memory by reference until all of it is queued, and reports when it may be used again; see
    /// [`pagewire::TcpStream::send_zc`](crate::TcpStream::send_zc). If the future is dropped before it is
    /// ready, a part may be queued.
    ///
    /// # Errors
    /// Those of `send_zc`.
    pub async fn send_zc(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
        let mut buf = buf.into();
        let (mut call, mut bytes) = (ZeroCopyCall::new(), 0);
        while !buf.is_empty() {
            let (frags, call) = (&mut buf.frags, &mut call);
            let send = |mut tcp: Tcp<'_>, now| {
                tcp.send(now, (&mut *frags, &mut *call), SendFlags::empty())
            };
            match self.socket().later(Until::Write, send).await {
                Ok(n) => bytes += n,
                Err(error) if bytes == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Sent { bytes, id: call.id() })
    }

    /// The completions that are there now; never waits.
    pub fn completions(&self) -> Completions<'_> {
        self.stream.completions()
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

    /// The completions as a stream, which ends when no send is outstanding, until there is one.
    pub fn completion_stream(&self) -> CompletionStream<'_> {
        self.socket().completion_stream(&self.completes)
    }
}

/// Readiness.
impl TcpStream {
    /// What of `interest` the connection is ready for, once that is something.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.socket().ready(interest).await
    }

    /// Waits until a read does not block.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// Waits until a write does not block.
    ///
    /// # Errors
    /// `NetworkDown` when the host has ended.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// [`readable`](Self::readable) for tasks that poll.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_ready(&self.reads, Interest::READABLE, cx)
    }

    /// [`writable`](Self::writable) for tasks that poll.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket().poll_ready(&self.writes, Interest::WRITABLE, cx)
    }

    /// Runs `f` if the connection is ready for `interest`.
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

/// By copy.
impl TcpStream {
    /// Reads what is there; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there, and what ended the connection.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read_vectored(&mut [IoSliceMut::new(buf)])
    }

    /// [`try_read`](Self::try_read) into several buffers, one after the other.
    ///
    /// # Errors
    /// Those of [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.socket().try_now(Until::Read, |tcp, now| read_slices(tcp, now, bufs))
    }

    /// [`try_read`](Self::try_read) into the free part of a buffer.
    ///
    /// # Errors
    /// Those of [`try_read`](Self::try_read).
    pub fn try_read_buf(&self, buf: &mut impl BufMut) -> io::Result<usize> {
        let mut room = [0; READ_BUF_ROOM];
        let most = room.len().min(buf.remaining_mut());
        let room = room.get_mut(..most).unwrap_or_default();
        let n = self.try_read(room)?;
        buf.put_slice(room.get(..n).unwrap_or_default());
        Ok(n)
    }

    /// Queues copies of what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, and what ended the connection.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    /// [`try_write`](Self::try_write) of several buffers, one after the other, in one step.
    ///
    /// # Errors
    /// Those of [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket().try_now(Until::Write, |tcp, now| write_slices(tcp, || now, bufs))
    }

    /// Reads without taking, once something is there; 0 is the end of the stream.
    ///
    /// # Errors
    /// What ended the connection.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let peek = |mut tcp: Tcp<'_>, now| tcp.recv(now, &mut *buf, RecvFlags::PEEK);
        self.socket().later(Until::Read, peek).await
    }

    /// [`peek`](Self::peek) for tasks that poll.
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        self.poll_take(cx, buf, RecvFlags::PEEK)
    }

    /// As [`AsyncRead::poll_read`], by reference to the stream; how many bytes.
    pub(super) fn poll_take(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        flags: RecvFlags,
    ) -> Poll<io::Result<usize>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(0));
        }
        let socket = self.socket();
        let take = |stack: &mut Stack, clock: &Clock<'_>| {
            let mut tcp = stack.tcp(socket.id)?;
            if tcp.awaits_data() {
                return Err(Error::WouldBlock);
            }
            tcp.recv(clock.now(), buf.initialize_unfilled(), flags)
        };
        let taken = self.reads.poll_on((&socket.host, socket.id.into()), Until::Read, cx, take);
        taken.map_ok(|n| {
            buf.advance(n);
            n
        })
    }

    /// As [`AsyncWrite::poll_write_vectored`], by reference to the stream.
    pub(super) fn poll_put(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        // Looked up, and dropped, without the host's lock.
        let noted: Vec<Option<Bytes>> = match anything_noted() {
            true => bufs.iter().map(|buf| noted(buf)).collect(),
            false => Vec::new(),
        };
        let noted = || noted.iter().map(Option::as_ref).chain(iter::repeat(None));
        let socket = self.socket();
        let put = |stack: &mut Stack, clock: &Clock<'_>| {
            queue_slices(stack.tcp(socket.id)?, || clock.now(), bufs.iter().zip(noted()))
        };
        self.writes.poll_ready_on((&socket.host, socket.id.into()), Until::Write, cx, put)
    }

    /// Ends the direction. As in tokio, what is not connected any more needs no end.
    pub(super) fn end(&self) -> io::Result<()> {
        match self.stream.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        }
    }

    /// [`end`](Self::end) where an owner drops its half, perhaps under the host's lock.
    pub(super) fn end_at_drop(&self) {
        let id = self.stream.0.id;
        self.stream.0.host.outside(move |host| {
            // An error: the connection is over.
            let _ = host.shared.with(|stack, now| stack.tcp(id)?.shutdown(now, Shutdown::Write));
        });
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_take(cx, buf, RecvFlags::empty()).map_ok(drop)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_put(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_put(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.end())
    }
}

impl From<sync::TcpStream> for TcpStream {
    fn from(stream: sync::TcpStream) -> Self {
        let (reads, writes, completes) = Default::default();
        Self { stream, reads, writes, completes }
    }
}

impl From<TcpStream> for sync::TcpStream {
    fn from(stream: TcpStream) -> Self {
        stream.stream
    }
}

impl AsRef<Self> for TcpStream {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stream.fmt(f)
    }
}
