//! A connection.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BufMut;
use pagewire_mem::Instant;
use pagewire_stack::{ConnectOptions, Error, Readiness, RecvFlags, SendFlags, Stack};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};

use crate::net::addr::{ToSocketAddrs, destination, resolve};
use crate::net::buf::read_into;
use crate::net::error::{errno, io_error, no_address, no_descriptor};
use crate::net::reserved::Reserved;
use crate::net::socket::{Call, Direction, Socket};
use crate::world::Here;

/// `tokio::net::TcpStream`, simulated.
pub struct TcpStream {
    pub(crate) socket: Socket,
    /// Of a stream made of a [`TcpSocket`](super::TcpSocket) that was bound.
    pub(super) address: Option<Reserved>,
}

const READ: Call = ("to read", None);
const WRITE: Call = ("to write", None);

impl TcpStream {
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, address: None }
    }

    /// Connects to the first address that answers.
    ///
    /// # Errors
    /// Of the last address: `ConnectionRefused`, `TimedOut` (by default after some 130 s),
    /// `HostUnreachable`, `NetworkUnreachable`; those of
    /// [`lookup_host`](crate::net::lookup_host).
    #[track_caller]
    pub fn connect<A: ToSocketAddrs>(addr: A) -> impl Future<Output = io::Result<Self>> {
        let location = Location::caller();
        async move {
            let here = Here::get()?;
            // Not held while it waits: the future is `Send` whatever the address is.
            let found = resolve(&here, addr)?;
            let mut last = None;
            for addr in found {
                match Self::connect_to(&here, addr, ConnectOptions::default(), location).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => last = Some(error),
                }
            }
            Err(last.unwrap_or_else(no_address))
        }
    }

    pub(super) async fn connect_to(
        here: &Here,
        addr: SocketAddr,
        options: ConnectOptions,
        location: &'static Location<'static>,
    ) -> io::Result<Self> {
        let to = destination(addr);
        // Linux sends a SYN to port 0 too, where nobody can listen.
        if to.port() == 0 {
            return Err(io_error(Error::ConnectionRefused));
        }
        if to.ip().is_multicast() {
            return Err(io::Error::from_raw_os_error(errno::NETUNREACH));
        }
        let id = here.with_stack(|stack, now| stack.connect(now, to, options))?;
        let socket = Socket::new(here.clone(), id.map_err(io_error)?, addr.is_ipv6());
        let id = socket.id;
        let outcome = move |stack: &mut Stack, _| {
            let readiness = stack.readiness(id)?;
            if let Some(error) = stack.take_error(id) {
                return Err(error);
            }
            if readiness.contains(Readiness::CONNECTED) {
                return Ok(());
            }
            let over = readiness.contains(Readiness::WRITE_CLOSED | Readiness::READ_CLOSED);
            Err(if over { Error::ConnectionAborted } else { Error::WouldBlock })
        };
        socket.wait(Direction::Write, ("to connect", Some(location)), outcome).await?;
        Ok(Self::new(socket))
    }

    /// This side's address and port.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The other side's address and port.
    ///
    /// # Errors
    /// `NotConnected` once the connection is over.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.socket.peer_addr()?;
        let over = Readiness::WRITE_CLOSED | Readiness::READ_CLOSED;
        self.socket.with(|stack, _| {
            let id = self.socket.id;
            // Both directions also end in order; then the connection lingers, and has a peer.
            let closed = stack.readiness(id)?.contains(over)
                && stack.as_tcp(id)?.info().state.name() == "CLOSED";
            if closed { Err(Error::NotConnected) } else { Ok(peer) }
        })
    }

    /// Takes the error that the connection met (`SO_ERROR`).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// Fails: see [`net`](crate::net).
    pub fn from_std(_: std::net::TcpStream) -> io::Result<Self> {
        Err(no_descriptor())
    }

    /// Fails: see [`net`](crate::net).
    pub fn into_std(self) -> io::Result<std::net::TcpStream> {
        Err(no_descriptor())
    }
}

/// Readiness.
impl TcpStream {
    /// Waits until it is ready for something that is asked.
    #[track_caller]
    pub fn ready(
        &self,
        interest: Interest,
    ) -> impl Future<Output = io::Result<Ready>> + Send + Sync {
        self.socket.ready(interest, ("to be ready", Some(Location::caller())))
    }

    /// Waits until a read does not block.
    #[track_caller]
    pub fn readable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync {
        let call = ("to read", Some(Location::caller()));
        async move { self.socket.ready(Interest::READABLE, call).await.map(drop) }
    }

    /// Waits until a write does not block.
    #[track_caller]
    pub fn writable(&self) -> impl Future<Output = io::Result<()>> + Send + Sync {
        let call = ("to write", Some(Location::caller()));
        async move { self.socket.ready(Interest::WRITABLE, call).await.map(drop) }
    }

    /// [`readable`](Self::readable) for tasks that poll.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_ready(Direction::Read, READ, cx)
    }

    /// [`writable`](Self::writable) for tasks that poll.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_ready(Direction::Write, WRITE, cx)
    }

    /// Runs `f` if the stream is ready for `interest`; else `WouldBlock`.
    pub fn try_io<R>(
        &self,
        interest: Interest,
        f: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.socket.try_io(interest, f)
    }

    /// Runs `f` when the stream is ready for `interest`, until it returns anything but
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

/// Reads.
impl TcpStream {
    /// Reads what is there; `WouldBlock` if nothing is. 0 is the end of the stream.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.with(|stack, now| self.receive((stack, now), buf, RecvFlags::empty()))
    }

    /// [`try_read`](Self::try_read) into several buffers, one after the other.
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.socket.with(|stack, now| {
            let mut done = 0;
            for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
                // Only the first may meet the end of the stream, or an error.
                if done > 0 && stack.as_tcp(self.socket.id)?.queued() == 0 {
                    break;
                }
                done += self.receive((stack, now), buf, RecvFlags::empty())?;
            }
            match done {
                0 => self.receive((stack, now), &mut [], RecvFlags::empty()),
                done => Ok(done),
            }
        })
    }

    /// [`try_read`](Self::try_read) into the free part of a buffer.
    pub fn try_read_buf<B: BufMut>(&self, buf: &mut B) -> io::Result<usize> {
        read_into(buf, |room| self.try_read(room).map(|n| (n, n)))
    }

    /// Reads without taking.
    #[track_caller]
    pub fn peek(&self, buf: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send + Sync {
        let call = ("to peek", Some(Location::caller()));
        self.socket.wait(Direction::Read, call, move |stack, now| {
            self.receive((stack, now), buf, RecvFlags::PEEK)
        })
    }

    /// [`peek`](Self::peek) for tasks that poll.
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let room = buf.initialize_unfilled();
        let peeked = self.socket.poll(Direction::Read, ("to peek", None), cx, |stack, now| {
            self.receive((stack, now), room, RecvFlags::PEEK)
        });
        peeked.map_ok(|n| {
            buf.advance(n);
            n
        })
    }

    pub(super) fn poll_read_by_ref(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.initialize_unfilled();
        let done = self.socket.poll(Direction::Read, READ, cx, |stack, now| {
            self.receive((stack, now), room, RecvFlags::empty())
        });
        done.map_ok(|n| buf.advance(n))
    }

    fn receive(
        &self,
        (stack, now): (&mut Stack, Instant),
        buf: &mut [u8],
        flags: RecvFlags,
    ) -> Result<usize, Error> {
        let id = self.socket.id;
        // As tokio: an empty read waits too.
        if buf.is_empty() {
            let ready = stack.readiness(id)?.intersects(Readiness::FOR_READ);
            return if ready { Ok(0) } else { Err(Error::WouldBlock) };
        }
        stack.as_tcp(id)?.recv(now, buf, flags)
    }
}

/// Writes.
impl TcpStream {
    /// Queues what there is room for; `WouldBlock` if there is none.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    /// [`try_write`](Self::try_write) of several buffers, one after the other.
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.with(|stack, now| self.send((stack, now), bufs))
    }

    pub(super) fn poll_write_by_ref(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let send = |stack: &mut Stack, now| self.send((stack, now), bufs);
        self.socket.poll(Direction::Write, WRITE, cx, send)
    }

    fn send(
        &self,
        (stack, now): (&mut Stack, Instant),
        bufs: &[IoSlice<'_>],
    ) -> Result<usize, Error> {
        let mut tcp = stack.as_tcp(self.socket.id)?;
        let mut pieces = bufs.iter().filter(|buf| !buf.is_empty()).peekable();
        if pieces.peek().is_none() {
            return tcp.send(now, &[0; 0], SendFlags::empty());
        }
        let mut done = 0;
        for piece in pieces {
            match tcp.send(now, &**piece, SendFlags::empty()) {
                Ok(n) if n == piece.len() => done += n,
                Ok(n) => return Ok(done + n),
                // What is queued counts: the next call meets what was in the way.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Ends the direction. As in tokio, what is not connected any more needs no end.
    pub(super) fn shutdown_write(&self) -> io::Result<()> {
        let Socket { here, id, .. } = &self.socket;
        let done = here.with_stack(|stack, now| stack.as_tcp(*id)?.shutdown(now, Shutdown::Write));
        match done? {
            Err(Error::NotConnected) => Ok(()),
            done => done.map_err(io_error),
        }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_by_ref(cx, buf)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_by_ref(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_by_ref(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown_write())
    }
}

impl TryFrom<std::net::TcpStream> for TcpStream {
    type Error = io::Error;

    fn try_from(stream: std::net::TcpStream) -> io::Result<Self> {
        Self::from_std(stream)
    }
}

impl AsRef<Self> for TcpStream {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TcpStream").field(&self.socket).finish()
    }
}
