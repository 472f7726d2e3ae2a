//! Streams and listeners: `send` and `recv_chunks`, where a byte's path begins and ends.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{Frag, Instant};
use pagewire_stack::{
    Error, ListenerId, Readiness, RecvFlags, SendFlags, Stack, Tcp, TcpId, TcpOption,
};

use crate::buf::{Chunks, SendBuf};
use crate::error::io_error;
use crate::handle::Handle;
use crate::socket::Socket;
use crate::wait::Patience;
use crate::waiters::Interest;

/// A TCP connection. Clones are the same connection, which closes when the last is dropped.
///
/// A drop closes as on Linux: queued data is delivered; unread received data makes it a reset.
#[derive(Clone)]
pub struct TcpStream(pub(crate) Arc<Socket<TcpId>>);

/// A socket that listens for connections.
#[derive(Clone)]
pub struct TcpListener(pub(crate) Arc<Socket<ListenerId>>);

impl TcpStream {
    pub(crate) fn new(host: Arc<Handle>, id: TcpId) -> Self {
        Self(Socket::new(host, id))
    }

    /// Waits until the connection is established.
    pub(crate) fn wait_connected(&self, patience: Patience) -> io::Result<()> {
        let id = self.0.id;
        self.0.host.shared.wait(id, Interest::Write, patience, |stack, clock| {
            // Has the SYN, and what else waits, flushed.
            clock.now();
            let readiness = stack.readiness(id)?;
            if let Some(error) = stack.take_error(id) {
                return Err(error);
            }
            if readiness.contains(Readiness::CONNECTED) { Ok(()) } else { Err(Error::WouldBlock) }
        })
    }

    /// Whether the SYN waits for the first write.
    pub(crate) fn is_deferred(&self) -> io::Result<bool> {
        self.0.ask(|mut tcp| tcp.is_deferred())
    }

    /// Queues memory by reference and waits until all of it is queued; the peer's acknowledgement
    /// releases it. Returns the number of bytes.
    ///
    /// # Errors
    /// `BrokenPipe` after [`shutdown`](Self::shutdown) or when the peer is gone, `ConnectionReset`,
    /// `TimedOut`; `WouldBlock` on a non-blocking stream if nothing was queued. If a part was queued
    /// before the error, its length is returned, and the next call returns the error.
    pub fn send(&self, buf: impl Into<SendBuf>) -> io::Result<usize> {
        let mut buf = buf.into();
        let all = buf.len();
        while !buf.is_empty() {
            let sent = all - buf.len();
            match self.send_part(&mut buf, sent > 0) {
                Ok(0) => return Ok(sent),
                Err(_) if sent > 0 => return Ok(sent),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(all)
    }

    /// Queues as much from the front of `buf` as there is room for, waiting for some room unless
    /// the stream is non-blocking; removes it from `buf` and returns the number of bytes.
    #[inline]
    pub fn send_some(&self, buf: &mut SendBuf) -> io::Result<usize> {
        self.send_part(buf, false)
    }

    /// See [`queue_part`].
    fn send_part(&self, buf: &mut SendBuf, later: bool) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.wait_on(Interest::Write, queue_part(buf, self.0.id, later))
    }

    /// Receives up to `max` bytes by reference, waiting for one; empty at the end of the stream.
    pub fn recv_chunks(&self, max: usize) -> io::Result<Chunks> {
        self.0.wait(Interest::Read, |tcp, now| take_chunks(tcp, now, max))
    }

    /// As [`recv_chunks`](Self::recv_chunks), into a vector of the caller; the number of bytes, 0
    /// at the end. They do not count against the receive buffer: the caller bounds them.
    pub fn recv_into(&self, max: usize, frags: &mut Vec<Frag>) -> io::Result<usize> {
        self.0.wait(Interest::Read, |mut tcp, now| {
            tcp.recv(now, pagewire_stack::Chunks { max, into: frags }, RecvFlags::empty())
        })
    }

    /// The address of the other side.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Ends one direction or both: after `Write` the peer reads the stream's end, behind the data.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.act(|mut tcp, now| tcp.shutdown(now, how))
    }

    /// Drops the connection at once with a reset.
    pub fn abort(&self) {
        let id = self.0.id;
        self.0.host.shared.with(|stack, now| stack.abort(now, id));
    }

    /// Whether calls that would wait return `WouldBlock` instead.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }

    /// Whether small segments leave at once, or by Nagle's algorithm (RFC 896; the default).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_option(TcpOption::NoDelay(nodelay))
    }

    /// Longest wait for data; `None` for ever. The error is `TimedOut` (`std::net` has `WouldBlock`).
    /// Zero is `InvalidInput`.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_timeout(Interest::Read, limit)
    }

    /// Longest wait for room; `None` for ever. The error is `TimedOut`. Zero is `InvalidInput`.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_timeout(Interest::Write, limit)
    }

    /// See [`set_read_timeout`](Self::set_read_timeout).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.0.timeout_of(Interest::Read))
    }

    /// See [`set_write_timeout`](Self::set_write_timeout).
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.0.timeout_of(Interest::Write))
    }

    /// The error that the connection ended with, once.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }

    /// The state and counts of this connection (Linux's `TCP_INFO`).
    pub fn info(&self) -> io::Result<pagewire_stack::TcpInfo> {
        let (mut inner, now) = self.0.host.shared.lock_now();
        inner.stack.tcp(self.0.id).map(|tcp| tcp.info_at(now)).map_err(io_error)
    }

    fn read_slice(&self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.wait(Interest::Read, |mut tcp, now| tcp.recv(now, &mut *buf, RecvFlags::empty()))
    }

    fn read_slices(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(0);
        }
        self.0.wait(Interest::Read, |tcp, now| read_slices(tcp, now, bufs))
    }

    fn write_slices(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(0);
        }
        let id = self.0.id;
        self.0.wait_clock(Interest::Write, |stack, clock| {
            write_slices(stack.tcp(id)?, || clock.now(), bufs)
        })
    }
}

/// The verb of all sends by reference: queues as much from the front as there is room for.
#[inline]
pub(crate) fn queue(buf: &mut SendBuf) -> impl FnMut(Tcp<'_>, Instant) -> Result<usize, Error> {
    |mut tcp, now| tcp.send(now, &mut buf.frags, SendFlags::empty())
}

/// As [`queue`]; `later`: a part was sent already, so that an error is left for the next call; 0 then.
#[inline]
pub(crate) fn queue_part(
    buf: &mut SendBuf,
    id: TcpId,
    later: bool,
) -> impl FnMut(&mut Stack, Instant) -> Result<usize, Error> {
    move |stack, now| match later && has_error(stack, id) {
        true => Ok(0),
        false => queue(buf)(stack.tcp(id)?, now),
    }
}

/// Queues copies of slices, one after the other, as far as there is room.
#[inline]
pub(crate) fn write_slices(
    tcp: Tcp<'_>,
    now: impl Fn() -> Instant,
    bufs: &[IoSlice<'_>],
) -> Result<usize, Error> {
    queue_slices(tcp, now, bufs.iter().map(|buf| (buf, None)))
}

/// Queues slices, one after the other, as far as there is room: where the memory of one is given, a
/// reference to that, copies of the rest.
#[inline]
pub(crate) fn queue_slices<'a>(
    mut tcp: Tcp<'_>,
    now: impl Fn() -> Instant,
    slices: impl Iterator<Item = (&'a IoSlice<'a>, Option<&'a Bytes>)>,
) -> Result<usize, Error> {
    let mut written = 0;
    for (slice, memory) in slices.filter(|(slice, _)| !slice.is_empty()) {
        let sent = match memory {
            None => tcp.send(&now, &**slice, SendFlags::empty()),
            Some(memory) => {
                tcp.send(&now, &mut SendBuf::from(memory.clone()).frags, SendFlags::empty())
            }
        };
        match sent {
            Ok(n) if n == slice.len() => written += n,
            Ok(n) => return Ok(written + n),
            // What is queued counts: the next call meets what was in the way.
            Err(_) if written > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}

/// Copies received bytes into slices, one after the other, as far as there are any.
pub(crate) fn read_slices(
    mut tcp: Tcp<'_>,
    now: Instant,
    bufs: &mut [IoSliceMut<'_>],
) -> Result<usize, Error> {
    let mut read = 0;
    for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
        // Only the first may meet the end of the stream, or an error.
        if read > 0 && tcp.queued() == 0 {
            break;
        }
        let n = tcp.recv(now, &mut **buf, RecvFlags::empty())?;
        read += n;
        if n < buf.len() {
            break;
        }
    }
    Ok(read)
}

/// Whether the next call returns an error.
fn has_error(stack: &Stack, id: TcpId) -> bool {
    stack.readiness(id).is_ok_and(|ready| ready.contains(Readiness::ERROR))
}

/// Receives bytes by reference; they count against the receive buffer until they are dropped.
#[inline]
pub(crate) fn take_chunks(mut tcp: Tcp<'_>, now: Instant, max: usize) -> Result<Chunks, Error> {
    let mut frags = Vec::new();
    tcp.recv(now, pagewire_stack::Chunks { max, into: &mut frags }, RecvFlags::empty())?;
    let held = tcp.count_held(now, frags.iter().map(Frag::pinned_pages).sum());
    Ok(Chunks::new(frags, held))
}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_slice(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_slices(bufs)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_slices(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_slices(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_slice(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_slices(bufs)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_slices(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_slices(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TcpListener {
    pub(crate) fn new(host: Arc<Handle>, id: ListenerId) -> Self {
        Self(Socket::new(host, id))
    }

    /// Accepts the next connection, waiting for one unless the listener is non-blocking.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (conn, remote) = self.0.wait(Interest::Read, |mut listener, _| listener.accept())?;
        Ok((TcpStream::new(Arc::clone(&self.0.host), conn), remote))
    }

    /// The connections that arrive, for ever.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Whether future connections have opted in; see [`TcpStream::set_zerocopy`].
    pub fn set_zerocopy(&self, on: bool) -> io::Result<()> {
        self.0.set_zerocopy(on)
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Whether `accept` returns `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }
}

/// Iterator over the connections of a listener; never ends.
#[derive(Debug)]
pub struct Incoming<'a>(&'a TcpListener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (local, peer) = (self.local_addr().ok(), self.peer_addr().ok());
        f.debug_struct("TcpStream").field("local", &local).field("peer", &peer).finish()
    }
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpListener").field("local", &self.local_addr().ok()).finish()
    }
}
