//! [`TcpStream`]: connections of tasks, shaped as tokio's.

use std::io::{self, IoSlice, IoSliceMut};
use std::iter;
use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes};
use pagewire_stack::{MapError, RecvFlags, SendFlags, Stack, TcpId, ZeroCopyCall};

use super::ready::readiness;
pub use super::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub use super::{TcpListener, TcpSocket};
use crate::addr::{ToSocketAddrs, target};
use crate::blocking;
use crate::buf::{Chunks, SendBuf, read_into};
use crate::connect::ConnectOptions;
use crate::mapping::{MapAvailable, Mapping, try_map};
use crate::ops::{
    Unlocked, UnlockedWrite, queue, queue_slices, queue_zc, read, read_or_take, read_slices,
    take_chunks, write_slices,
};
use crate::options::{no_descriptor, of_every_stream};
use crate::reference::{anything_noted, noted};
use crate::runtime::{Clock, Runtime};
use crate::socket::{READ, Socket, WRITE};
use crate::waiters::{Call, Polls};
use crate::zerocopy::Sent;

/// A TCP connection, as tokio's; beyond that, it sends and receives by reference.
///
/// A stream has no clone: two tasks use the halves of [`into_split`](Self::into_split), or `&TcpStream` where the
/// calls take that. A drop closes as on Linux: queued data is delivered; unread received data makes it a
/// reset.
pub struct TcpStream<R: Runtime> {
    socket: Arc<Socket<R, TcpId>>,
    polls: Polls,
}

const READING: Call = Call::new("to read");
const WRITING: Call = Call::new("to write");

of_every_stream!(TcpStream);
readiness!(TcpStream, poll_read_ready, poll_write_ready);

impl<R: Runtime> TcpStream<R> {
    pub(crate) fn new(socket: Arc<Socket<R, TcpId>>) -> Self {
        Self { socket, polls: Polls::default() }
    }

    /// Connects to the first address that answers, on the stack of the code that runs.
    ///
    /// # Errors
    /// The error of the last address: `ConnectionRefused`, `TimedOut` (by default after some 130 s),
    /// `HostUnreachable`, `NetworkUnreachable`; those of the resolver; those of
    /// [`Runtime::current`].
    #[track_caller]
    pub fn connect(to: impl ToSocketAddrs) -> impl Future<Output = io::Result<Self>> {
        let (to, call) = (target(&to), Call::here("to connect"));
        async move {
            let runtime = R::current()?;
            ConnectOptions::new().connect(&runtime, to?, call).await.map(Self::new)
        }
    }

    /// Connects to the first address that answers, on a stack.
    #[track_caller]
    pub fn connect_on(
        runtime: &R,
        to: impl ToSocketAddrs,
    ) -> impl Future<Output = io::Result<Self>> {
        let (to, call) = (target(&to), Call::here("to connect"));
        async move { ConnectOptions::new().connect(runtime, to?, call).await.map(Self::new) }
    }

    /// [`connect_on`](Self::connect_on) with options.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect); `AddrNotAvailable` for a local address that is not the host's
    /// or is in use.
    #[track_caller]
    pub fn connect_with(
        runtime: &R,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> impl Future<Output = io::Result<Self>> {
        let (to, call) = (target(&to), Call::here("to connect"));
        async move { options.connect(runtime, to?, call).await.map(Self::new) }
    }

    /// The same connection for threads.
    pub fn to_blocking(&self) -> blocking::TcpStream<R> {
        blocking::TcpStream(Arc::clone(&self.socket))
    }

    /// The same connection for another half.
    pub(super) fn again(&self) -> Self {
        Self { socket: Arc::clone(&self.socket), polls: self.polls }
    }

    #[inline]
    pub(super) fn socket(&self) -> &Socket<R, TcpId> {
        &self.socket
    }

    /// Fails: there is no descriptor.
    pub fn from_std(_: std::net::TcpStream) -> io::Result<Self> {
        Err(no_descriptor())
    }

    /// Fails: there is no descriptor.
    pub fn into_std(self) -> io::Result<std::net::TcpStream> {
        Err(no_descriptor())
    }
}

/// By reference.
impl<R: Runtime> TcpStream<R> {
    /// Queues memory by reference until all of it is queued; the peer's acknowledgement releases it.
    /// Returns the number of bytes.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, a part may be queued.
    ///
    /// # Errors
    /// `BrokenPipe`, `ConnectionReset`, `TimedOut`. If a part was queued before the error, its length is
    /// returned, and the next call returns the error.
    pub async fn send(&self, buf: impl Into<SendBuf>) -> io::Result<usize> {
        let mut buf = buf.into();
        let all = buf.len();
        while !buf.is_empty() {
            let sent = all - buf.len();
            match self.send_part(&mut buf, sent > 0).await {
                Ok(0) => return Ok(sent),
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(all)
    }

    async fn send_part(&self, buf: &mut SendBuf, sent: bool) -> io::Result<usize> {
        let id = self.socket.id();
        let queue = |stack: &mut Stack, clock: &Clock<'_>| {
            queue((stack, clock), id, &mut buf.frags, SendFlags::empty(), sent)
        };
        self.socket.wait(WRITE, WRITING, queue).await
    }

    /// Queues as much from the front of `buf` as there is room for, once there is some; removes it from
    /// `buf` and returns the number of bytes.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was queued.
    pub async fn send_some(&self, buf: &mut SendBuf) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.send_part(buf, false).await
    }

    /// [`send_some`](Self::send_some) for tasks that poll.
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &mut SendBuf) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let id = self.socket.id();
        self.socket.poll_mostly_ready((self.polls.writes, WRITE), WRITING, cx, |stack, clock| {
            queue((stack, clock), id, &mut buf.frags, SendFlags::empty(), false)
        })
    }

    /// [`send_some`](Self::send_some), or `WouldBlock` if there is no room.
    pub fn try_send(&self, buf: &mut SendBuf) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let (id, flags) = (self.socket.id(), SendFlags::empty());
        self.socket.enter(|stack, clock| queue((stack, clock), id, &mut buf.frags, flags, false))
    }

    /// Queues memory by reference until all of it is queued, and reports when it may be used again. The
    /// call completes as a whole: when no reference to its memory is left, its id is among the
    /// completions. Each piece of `buf` is a fragment; a packet has at most 17, so a few long pieces are
    /// better than many short ones.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, a part may be queued.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), and `ENOBUFS`: too many notifications are unread or outstanding, or
    /// too many pages are held. If a part was queued before the error, the call succeeds with that part. A
    /// call that queues nothing takes no id.
    pub async fn send_zc(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
        let mut buf = buf.into();
        let (mut call, mut bytes, id) = (ZeroCopyCall::new(), 0, self.socket.id());
        while !buf.is_empty() {
            let (frags, call, sent) = (&mut buf.frags, &mut call, bytes > 0);
            let queue = |stack: &mut Stack, clock: &Clock<'_>| {
                queue_zc((stack, clock), id, frags, call, sent)
            };
            match self.socket.wait(WRITE, WRITING, queue).await {
                Ok(0) => break,
                Ok(n) => bytes += n,
                Err(error) if bytes == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Sent { bytes, id: call.id() })
    }

    /// Receives up to `max` bytes by reference, once there is one; empty at the end of the stream.
    ///
    /// # Errors
    /// The error that ended the connection.
    #[track_caller]
    pub fn recv_chunks(
        &self,
        max: usize,
    ) -> impl Future<Output = io::Result<Chunks>> + Send + Sync {
        let id = self.socket.id();
        self.socket.wait(READ, Call::here("to read"), move |stack, clock| {
            take_chunks((stack, clock), id, max)
        })
    }

    /// [`recv_chunks`](Self::recv_chunks) for tasks that poll.
    pub fn poll_recv_chunks(&self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<Chunks>> {
        let id = self.socket.id();
        self.socket.poll((self.polls.reads, READ), READING, cx, |stack, clock| {
            take_chunks((stack, clock), id, max)
        })
    }

    /// [`recv_chunks`](Self::recv_chunks), or `WouldBlock` if nothing is there.
    ///
    /// # Errors
    /// `WouldBlock`, and what ended the connection.
    pub fn try_recv_chunks(&self, max: usize) -> io::Result<Chunks> {
        let id = self.socket.id();
        self.socket.enter(|stack, clock| take_chunks((stack, clock), id, max))
    }

    /// The next `len` bytes as contiguous memory, if they are there, consumed as by a read; see
    /// [`map`](crate::blocking::TcpStream::map) of the form for threads.
    ///
    /// # Errors
    /// The first of [`MapError`] that applies; then nothing is consumed.
    pub fn map(&self, len: usize) -> Result<Mapping, MapError> {
        self.socket.map(len)
    }

    /// The next bytes that lie in whole, adjacent pages, up to `max` bytes; see
    /// [`map_available`](crate::blocking::TcpStream::map_available) of the form for threads.
    ///
    /// # Errors
    /// `Listening`, `NoMemory`, `Socket`. That nothing can be mapped is no error.
    pub fn map_available(&self, max: usize) -> Result<MapAvailable, MapError> {
        self.socket.map_available(max, &mut [])
    }

    /// [`map`](Self::map), once `len` bytes are there; see
    /// [`map_wait`](crate::blocking::TcpStream::map_wait) of the form for threads.
    ///
    /// # Errors
    /// The errors of `map`, with their numbers; `NoMemory` (`ENOMEM`) when the window closes before so much is
    /// queued.
    pub async fn map_wait(&self, len: usize) -> io::Result<Mapping> {
        let id = self.socket.id();
        let map = |stack: &mut Stack, clock: &Clock<'_>| try_map((stack, clock), id, len);
        self.socket.wait(READ, READING, map).await?
    }
}

/// By copy.
impl<R: Runtime> TcpStream<R> {
    /// Reads what is there; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there, and what ended the connection.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let (id, flags) = (self.socket.id(), RecvFlags::empty());
        self.socket.enter(|stack, clock| read((stack, clock), id, buf, flags))
    }

    /// [`try_read`](Self::try_read) into several buffers, one after the other.
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let id = self.socket.id();
        self.socket.enter(|stack, clock| read_slices((stack, clock), id, bufs))
    }

    /// [`try_read`](Self::try_read) into the free part of a buffer.
    pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        read_into(buf, |room| self.try_read(room).map(|n| (n, n)))
    }

    /// Queues copies of what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, and what ended the connection.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    /// [`try_write`](Self::try_write) of several buffers, one after the other, in one step.
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let id = self.socket.id();
        self.socket.enter(|stack, clock| write_slices((stack, clock), id, bufs))
    }

    /// Reads without taking, once something is there; 0 is the end of the stream.
    ///
    /// # Errors
    /// The error that ended the connection.
    #[track_caller]
    pub fn peek(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send + Sync {
        let id = self.socket.id();
        self.socket.wait(READ, Call::here("to peek"), move |stack, clock| {
            read((stack, clock), id, buf, RecvFlags::PEEK)
        })
    }

    /// Reads into a slice, by reference to the stream; the number of bytes.
    pub(super) fn poll_read_slice(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
        flags: RecvFlags,
    ) -> Poll<io::Result<usize>> {
        let call = if flags.contains(RecvFlags::PEEK) { Call::new("to peek") } else { READING };
        let (id, mut taken) = (self.socket.id(), Unlocked::default());
        let read = self.socket.poll((self.polls.reads, READ), call, cx, |stack, clock| {
            read_or_take((stack, clock), id, buf, flags, &mut taken)
        });
        taken.copy_to(buf, self.socket.runtime());
        read
    }

    /// Queues copies of slices, by reference to the stream. The memory of a slice that is
    /// [noted](crate::by_reference) is queued itself.
    pub(super) fn poll_write_slices(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // Looked up, and dropped, without the runtime's lock.
        let noted: Vec<Option<Bytes>> = match anything_noted() {
            true => bufs.iter().map(|buf| noted(buf)).collect(),
            false => Vec::new(),
        };
        let (id, wait) = (self.socket.id(), (self.polls.writes, WRITE));
        if let Some(data) = UnlockedWrite::of(bufs)
            && noted.iter().all(Option::is_none)
        {
            let lent = self.socket.poll_mostly_ready(wait, WRITING, cx, |stack, clock| {
                UnlockedWrite::lend((stack, clock), id, data.len(), true)
            });
            let mut write = UnlockedWrite::copy(ready!(lent)?, data);
            match self.socket.enter(|stack, clock| write.queue((stack, clock), id)) {
                // Another task took the room. The next copy is made under the lock, where the room cannot be
                // lost.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                queued => return Poll::Ready(queued),
            }
        }
        let noted = || noted.iter().map(Option::as_ref).chain(iter::repeat(None));
        self.socket.poll_mostly_ready(wait, WRITING, cx, |stack, clock| {
            queue_slices((stack, clock), id, bufs.iter().zip(noted()))
        })
    }

    /// Ends the direction. As in tokio, a connection that is over needs no end.
    pub(super) fn end(&self) -> io::Result<()> {
        let ended = self.socket.with(|mut tcp, clock| tcp.shutdown(clock.now(), Shutdown::Write));
        match ended {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        }
    }

    /// [`end`](Self::end) where an owner drops its half, perhaps under the runtime's lock.
    pub(super) fn end_at_drop(&self) {
        let id = self.socket.id();
        self.socket.runtime().later(move |stack, now| {
            // An error: the connection is over.
            let _ = stack.tcp(id).and_then(|mut tcp| tcp.shutdown(now, Shutdown::Write));
        });
    }
}

/// tokio's traits.
#[cfg(feature = "tokio")]
mod tokio_traits {
    use std::pin::Pin;

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::*;

    impl<R: Runtime> TcpStream<R> {
        /// [`peek`](Self::peek) for tasks that poll.
        pub fn poll_peek(
            &self,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<usize>> {
            self.poll_take(cx, buf, RecvFlags::PEEK)
        }

        pub(in crate::net) fn poll_take(
            &self,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
            flags: RecvFlags,
        ) -> Poll<io::Result<usize>> {
            let taken = self.poll_read_slice(cx, buf.initialize_unfilled(), flags);
            taken.map_ok(|n| {
                buf.advance(n);
                n
            })
        }
    }

    impl<R: Runtime> AsyncRead for TcpStream<R> {
        fn poll_read(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.poll_take(cx, buf, RecvFlags::empty()).map_ok(drop)
        }
    }

    impl<R: Runtime> AsyncWrite for TcpStream<R> {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_slices(cx, &[IoSlice::new(buf)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.poll_write_slices(cx, bufs)
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
}

impl<R: Runtime> From<blocking::TcpStream<R>> for TcpStream<R> {
    fn from(stream: blocking::TcpStream<R>) -> Self {
        Self::new(stream.0)
    }
}

impl<R: Runtime> From<TcpStream<R>> for blocking::TcpStream<R> {
    fn from(stream: TcpStream<R>) -> Self {
        Self(stream.socket)
    }
}

impl<R: Runtime> TryFrom<std::net::TcpStream> for TcpStream<R> {
    type Error = io::Error;

    fn try_from(stream: std::net::TcpStream) -> io::Result<Self> {
        Self::from_std(stream)
    }
}

impl<R: Runtime> AsRef<Self> for TcpStream<R> {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<R: Runtime> std::fmt::Debug for TcpStream<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TcpStream").field(&self.socket).finish()
    }
}
