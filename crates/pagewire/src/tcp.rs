//! Byte path, steps S1 and R7, as programs see them: streams and listeners.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pagewire_mem::{Frag, Instant};
use pagewire_stack::{
    Error, ListenerId, Readiness, RecvFlags, SendFlags, SocketId, Stack, TcpId, UdpId,
};

use crate::buf::{Chunks, SendBuf};
use crate::handle::Handle;
use crate::shared::{Clock, Interest, io_error};
use crate::wait::Patience;

/// A TCP connection. Cheap to clone: clones are the same connection, which closes when the last
/// is dropped.
///
/// Dropping closes as Linux does: what was sent is still delivered in the background; if received
/// data was left unread, the peer gets a reset.
#[derive(Clone)]
pub struct TcpStream(pub(crate) Arc<Socket<TcpId>>);

/// A socket that listens for connections.
#[derive(Clone)]
pub struct TcpListener(pub(crate) Arc<Socket<ListenerId>>);

/// A socket of the stack, closed on drop, and how its owner wants to wait.
pub(crate) struct Socket<Id: Copy + Into<SocketId>> {
    pub(crate) host: Arc<Handle>,
    pub(crate) id: Id,
    nonblocking: AtomicBool,
    /// Somebody else owns it now.
    released: AtomicBool,
    timeouts: Timeouts,
}

/// In nanoseconds; 0: none.
#[derive(Default)]
struct Timeouts {
    read: AtomicU64,
    write: AtomicU64,
}

impl Timeouts {
    fn of(&self, interest: Interest) -> &AtomicU64 {
        match interest {
            Interest::Read | Interest::Completion => &self.read,
            Interest::Write => &self.write,
        }
    }
}

/// Sockets that have verbs.
pub(crate) trait Verbs: Copy + Into<SocketId> {
    /// The socket, and what its verbs work with.
    type Of<'a>;

    fn of(self, stack: &mut Stack) -> Result<Self::Of<'_>, Error>;
}

impl Verbs for TcpId {
    type Of<'a> = pagewire_stack::Tcp<'a>;

    fn of(self, stack: &mut Stack) -> Result<Self::Of<'_>, Error> {
        stack.tcp(self)
    }
}

impl Verbs for UdpId {
    type Of<'a> = pagewire_stack::Udp<'a>;

    fn of(self, stack: &mut Stack) -> Result<Self::Of<'_>, Error> {
        stack.udp(self)
    }
}

impl<Id: Verbs> Socket<Id> {
    /// One verb, after which something may be to be sent.
    pub(crate) fn act<T>(
        &self,
        verb: impl FnOnce(Id::Of<'_>, Instant) -> Result<T, Error>,
    ) -> io::Result<T> {
        let shared = &self.host.shared;
        let done = shared.with(|stack, now| verb(self.id.of(stack)?, now));
        done.map_err(|e| shared.error(e))
    }

    /// One after which nothing is.
    pub(crate) fn ask<T>(&self, verb: impl FnOnce(Id::Of<'_>) -> T) -> io::Result<T> {
        let shared = &self.host.shared;
        let done = self.id.of(&mut shared.lock().stack).map(verb);
        done.map_err(|e| shared.error(e))
    }
}

impl<Id: Copy + Into<SocketId>> Socket<Id> {
    pub(crate) fn new(host: Arc<Handle>, id: Id) -> Arc<Self> {
        let (nonblocking, released) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { host, id, nonblocking, released, timeouts: Timeouts::default() })
    }

    pub(crate) fn patience(&self, interest: Interest) -> Patience {
        if self.nonblocking.load(Ordering::Relaxed) {
            return Patience::None;
        }
        let nanos = self.timeouts.of(interest).load(Ordering::Relaxed);
        Patience::For((nanos > 0).then(|| Duration::from_nanos(nanos)))
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn set_timeout(
        &self,
        interest: Interest,
        limit: Option<Duration>,
    ) -> io::Result<()> {
        if limit.is_some_and(|limit| limit.is_zero()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout cannot be zero"));
        }
        // Longer than 584 years is as good.
        let nanos = limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        self.timeouts.of(interest).store(nanos, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.host.shared.lock().stack.local_addr(self.id).map_err(io_error)
    }

    pub(crate) fn take_error(&self) -> Option<io::Error> {
        let mut inner = self.host.shared.lock();
        let error = inner.stack.take_error(self.id);
        error.map(|e| inner.error(e))
    }
}

impl<Id: Copy + Into<SocketId>> Drop for Socket<Id> {
    fn drop(&mut self) {
        if !*self.released.get_mut() {
            self.host.close(self.id.into());
        }
    }
}

impl TcpStream {
    pub(crate) fn new(host: Arc<Handle>, id: TcpId) -> Self {
        Self(Socket::new(host, id))
    }

    /// Lets go of the connection without closing it: whoever takes the id owns it.
    pub(crate) fn release(self) -> TcpId {
        self.0.released.store(true, Ordering::Relaxed);
        self.0.id
    }

    pub(crate) fn wait_connected(&self, patience: Patience) -> io::Result<()> {
        let id = self.0.id;
        self.0.host.wait(id, Interest::Write, patience, |stack, _| {
            let readiness = stack.readiness(id)?;
            if let Some(error) = stack.take_error(id) {
                return Err(error);
            }
            if readiness.contains(Readiness::CONNECTED) { Ok(()) } else { Err(Error::WouldBlock) }
        })
    }

    /// Queues memory by reference and waits until all of it is queued. It is let go when the
    /// peer has acknowledged it. Returns how many bytes that were.
    ///
    /// # Errors
    /// `BrokenPipe` after [`shutdown`](Self::shutdown) or when the peer is gone,
    /// `ConnectionReset`, `TimedOut`; `WouldBlock` on a non-blocking stream if nothing was
    /// queued. If something was queued before the error, that is what is returned, and the error is the
    /// next call's.
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
    /// the stream is non-blocking; takes it out of `buf` and returns how much that was.
    pub fn send_some(&self, buf: &mut SendBuf) -> io::Result<usize> {
        self.send_part(buf, false)
    }

    /// `later`: a part was sent already, so that an error is left for the next call; 0 then.
    fn send_part(&self, buf: &mut SendBuf, later: bool) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Write));
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.host.wait(id, Interest::Write, patience, |stack, now| {
            match later && has_error(stack, id) {
                true => Ok(0),
                false => stack
                    .tcp(id)
                    .and_then(|mut tcp| tcp.send(now, &mut buf.frags, SendFlags::empty())),
            }
        })
    }

    /// Takes received bytes by reference, up to `max`, waiting for at least one; empty at the end
    /// of the stream.
    pub fn recv_chunks(&self, max: usize) -> io::Result<Chunks> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        self.0
            .host
            .wait(id, Interest::Read, patience, |stack, now| take_chunks(stack, now, id, max))
    }

    /// As [`recv_chunks`](Self::recv_chunks), into a vector that the caller keeps. Returns the
    /// number of bytes, 0 at the end of the stream. What is kept does not count against the receive
    /// buffer: its bound is the caller's.
    pub fn recv_into(&self, max: usize, frags: &mut Vec<Frag>) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        self.0.host.wait(id, Interest::Read, patience, |stack, now| {
            stack.tcp(id).and_then(|mut tcp| {
                tcp.recv(now, pagewire_stack::Chunks { max, into: frags }, RecvFlags::empty())
            })
        })
    }

    /// The address of the other side.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.host.shared.lock().stack.remote_addr(self.0.id).map_err(io_error)
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Ends one direction or both: after `Write` the peer sees the end of the stream once it has
    /// read everything.
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
        self.0.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Whether small pieces leave at once (true) or wait for an acknowledgement to be joined
    /// (Nagle, RFC 896; the default).
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_option(pagewire_stack::TcpOption::NoDelay(nodelay))
    }

    /// Longest wait for data; `None` for ever. The error is `TimedOut` (not `WouldBlock`, as from
    /// `std::net`). Zero is `InvalidInput`.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_timeout(Interest::Read, limit)
    }

    /// Longest wait for room; `None` for ever. The error is `TimedOut`. Zero is `InvalidInput`.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_timeout(Interest::Write, limit)
    }

    /// The error that the connection ended with, once.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.0.take_error())
    }

    /// What the machine knows of this connection.
    pub fn info(&self) -> io::Result<pagewire_stack::TcpInfo> {
        let (mut inner, now) = self.0.host.shared.lock_now();
        inner.stack.tcp(self.0.id).map(|tcp| tcp.info_at(now)).map_err(io_error)
    }

    pub(crate) fn read_some(&self, buf: &mut [u8]) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        if buf.is_empty() {
            return Ok(0);
        }
        self.0.host.wait(id, Interest::Read, patience, |stack, now| {
            stack.tcp(id).and_then(|mut tcp| tcp.recv(now, &mut *buf, RecvFlags::empty()))
        })
    }

    pub(crate) fn write_some(&self, buf: &[u8]) -> io::Result<usize> {
        self.write_part(buf, false)
    }

    /// As [`send_part`](Self::send_part).
    fn write_part(&self, buf: &[u8], later: bool) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Write));
        if buf.is_empty() {
            return Ok(0);
        }
        let write = |stack: &mut Stack, clock: &Clock<'_>| match later && has_error(stack, id) {
            true => Ok(0),
            false => stack.tcp(id)?.send(|| clock.now(), buf, SendFlags::empty()),
        };
        self.0.host.shared.wait_quick(id, Interest::Write, patience, write)
    }
}

/// Whether the next call will be told of an error.
fn has_error(stack: &Stack, id: TcpId) -> bool {
    stack.readiness(id).is_ok_and(|ready| ready.contains(Readiness::ERROR))
}

/// One try of a call that takes chunks.
pub(crate) fn take_chunks(
    stack: &mut Stack,
    now: Instant,
    id: TcpId,
    max: usize,
) -> Result<Chunks, Error> {
    let mut frags = Vec::new();
    stack.tcp(id)?.recv(
        now,
        pagewire_stack::Chunks { max, into: &mut frags },
        RecvFlags::empty(),
    )?;
    let held = stack.tcp(id)?.count_held(now, frags.iter().map(Frag::pinned_pages).sum());
    Ok(Chunks::new(frags, held))
}

impl Read for &TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_some(buf)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_some(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut written = 0;
        for buf in bufs.iter().filter(|b| !b.is_empty()) {
            match self.write_part(buf, written > 0) {
                Ok(n) => {
                    written += n;
                    if n < buf.len() {
                        break;
                    }
                }
                Err(_) if written > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_some(buf)
    }
}

impl Write for TcpStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_some(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TcpListener {
    pub(crate) fn new(host: Arc<Handle>, id: ListenerId) -> Self {
        Self(Socket::new(host, id))
    }

    /// Takes the next connection, waiting for one unless the listener is non-blocking.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        let (conn, remote) = self.0.host.wait(id, Interest::Read, patience, |stack, _| {
            stack.listener(id).and_then(|mut listener| listener.accept())
        })?;
        Ok((TcpStream::new(Arc::clone(&self.0.host), conn), remote))
    }

    /// Connections as they come, for ever.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Whether connections to come have opted in to zero-copy sends; see
    /// [`TcpStream::set_zerocopy`].
    pub fn set_zerocopy(&self, on: bool) -> io::Result<()> {
        self.0.set_zerocopy(on)
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Whether `accept` returns `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking);
        Ok(())
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
