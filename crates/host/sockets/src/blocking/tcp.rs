//! [`TcpStream`]: connections of threads, with `send` and `recv_chunks`, where a byte's path begins and ends.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::{Frag, FragVec};
use pagewire_stack::{MapError, RecvFlags, SendFlags, Stack, TcpId, ZeroCopyCall};

use crate::addr::{ToSocketAddrs, target};
use crate::buf::{Chunks, SendBuf};
use crate::connect::{ConnectOptions, wait_connected};
use crate::mapping::{MapAvailable, Mapping, try_map};
use crate::ops::{
    Unlocked, UnlockedWrite, queue, queue_zc, read_or_take, read_slices, readable, take_chunks,
    write_slices,
};
use crate::options::of_every_stream;
use crate::runtime::{Blocking, Clock, Patience, Runtime};
use crate::socket::{COMPLETION, READ, Socket, WRITE};
use crate::zerocopy::{Completion, Sent, next_completion};

/// A TCP connection, as that of `std::net`; beyond that, it sends and receives by reference. Clones are
/// the same connection, which closes when the last is dropped; they share timeouts and the non-blocking
/// mode.
///
/// A drop closes as on Linux: queued data is delivered; unread received data makes it a reset.
pub struct TcpStream<R: Runtime>(pub(crate) Arc<Socket<R, TcpId>>);

of_every_stream!(TcpStream);
modes!(TcpStream);

impl<R: Runtime> TcpStream<R> {
    #[inline]
    fn socket(&self) -> &Socket<R, TcpId> {
        &self.0
    }

    /// Begins to open a connection and returns at once; it can be used when it becomes writable.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route; `AddrNotAvailable` for a local address that is not the
    /// host's or is in use.
    pub fn start_connect(
        runtime: &R,
        to: std::net::SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        options.open(runtime, to, None).map(Self)
    }

    /// Ends one direction or both: after `Write` the peer reads the stream's end, behind the data.
    ///
    /// # Errors
    /// `NotConnected` once the connection is over.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.with(|mut tcp, clock| tcp.shutdown(clock.now(), how))
    }

    /// Another owner of the same connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// The next `len` bytes as contiguous memory, consumed as by a read. Never waits, whether the
    /// stream blocks or not; all or nothing. `len` is a multiple of the page size, 4096.
    ///
    /// Adjacent pages are lent in place, without a system call. Other pages are mapped, with one system
    /// call for each run of adjacent pages and one more, which costs about twice as much as reading
    /// them: [`map_available`](Self::map_available) never does that.
    ///
    /// Data that the other end of a pair link sent by reference keeps its place in memory: a file's
    /// pages can be mapped at once. A `Vec` rarely begins at a page: read as far as the next page, and
    /// the whole pages behind it can be mapped.
    ///
    /// ```
    /// # use pagewire::memory::MapError;
    /// # use pagewire::{Host, Pair};
    /// # let (left, right) = Pair::new()?;
    /// # let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    /// # let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    /// # let listener = server.listen("10.0.0.1:9000")?;
    /// # let conn = client.connect("10.0.0.1:9000")?;
    /// # let (mut peer, _) = listener.accept()?;
    /// # std::io::Write::write_all(&mut peer, &[7; 8192])?;
    /// let view = conn.map_wait(8192)?;
    /// assert_eq!(view.as_slice().map(|bytes| bytes[8191]), Some(7));
    /// assert_eq!(conn.map(4096).err(), Some(MapError::WouldBlock));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first of [`MapError`] that applies; then nothing is consumed. After `NotPages` or
    /// `Urgent`, read the part that is in the way.
    pub fn map(&self, len: usize) -> Result<Mapping, MapError> {
        self.0.map(len)
    }

    /// The next bytes that lie in whole, adjacent pages, up to `max` bytes, consumed as by a read; and
    /// how many to read by copy before more can be mapped. Never waits. Skips an urgent byte as a read
    /// does.
    ///
    /// A stream of any length can be received like this: whole pages mapped, the rest by copy.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// # use pagewire::{Host, Pair};
    /// # let (left, right) = Pair::new()?;
    /// # let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    /// # let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    /// # let listener = server.listen("10.0.0.1:9000")?;
    /// # let mut conn = client.connect("10.0.0.1:9000")?;
    /// # let (mut peer, _) = listener.accept()?;
    /// # peer.write_all(&[7; 100_000])?;
    /// # peer.shutdown(std::net::Shutdown::Write)?;
    /// let (mut total, mut buffer) = (0, vec![0; 65_536]);
    /// loop {
    ///     conn.wait_readable()?;
    ///     let found = conn.map_available(1 << 20)?;
    ///     if let Some(view) = &found.mapping {
    ///         view.for_each_piece(|bytes| total += bytes.len());
    ///     }
    ///     if found.copy_next > 0 {
    ///         let most = buffer.len().min(found.copy_next);
    ///         total += conn.read(&mut buffer[..most])?;
    ///     } else if found.mapping.is_none() && found.ended {
    ///         break;
    ///     }
    /// }
    /// assert_eq!(total, 100_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Listening`, `NoMemory`, `Socket`. That nothing can be mapped is no error.
    pub fn map_available(&self, max: usize) -> Result<MapAvailable, MapError> {
        self.0.map_available(max, &mut [])
    }

    /// As [`map_available`](Self::map_available), and copies the bytes before the next whole page into
    /// `tail`, as far as they fit: the end of a message without a second call.
    pub fn map_available_with(
        &self,
        max: usize,
        tail: &mut [u8],
    ) -> Result<MapAvailable, MapError> {
        self.0.map_available(max, tail)
    }
}

/// Calls that wait, unless the stream is non-blocking.
impl<R: Blocking> TcpStream<R> {
    /// Opens a connection and waits until it is established: to the first address that answers.
    ///
    /// # Errors
    /// The error of the last address: `ConnectionRefused` (the port is closed), `NetworkUnreachable` (no route),
    /// `HostUnreachable` (no neighbour answers for it), `TimedOut`; those of the resolver.
    pub fn connect_on(
        runtime: &R,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> io::Result<Self> {
        options.connect_blocking(runtime, target(&to)?).map(Self)
    }

    /// Waits until the connection is established, which [`start_connect`](Self::start_connect) began.
    pub fn wait_connected(&self, limit: Option<Duration>) -> io::Result<()> {
        wait_connected(&self.0, Patience::For(limit))
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
            match self.send_part(&mut buf, SendFlags::empty(), sent > 0) {
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
        self.send_part(buf, SendFlags::empty(), false)
    }

    /// As [`send_some`](Self::send_some), with flags.
    pub fn send_some_with(&self, buf: &mut SendBuf, flags: SendFlags) -> io::Result<usize> {
        self.send_part(buf, flags, false)
    }

    /// See [`queue`].
    #[inline]
    fn send_part(&self, buf: &mut SendBuf, flags: SendFlags, sent: bool) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let id = self.0.id();
        self.0.block(WRITE, |stack, clock| queue((stack, clock), id, &mut buf.frags, flags, sent))
    }

    /// Queues memory by reference and waits until all of it is queued. The call completes as a whole:
    /// when no reference to its memory is left, its id is among [`completions`](Self::completions).
    /// Each piece of `buf` is a fragment; a packet has at most 17, so a few long pieces are better than
    /// many short ones.
    ///
    /// A call whose memory begins where the last call's ended is the cheapest (ranges of one
    /// [`Region`](pagewire_mem::Region::frag), slices of one [`Frag`], but not two `Bytes`): while such calls
    /// fill a segment, or a super-frame on the pair link (unless
    /// [`set_nodelay`](TcpStream::set_nodelay) is on), each costs little more than a lock, and they
    /// complete together. Read completions from time to time, or sends will fail with `ENOBUFS`.
    ///
    /// On a non-blocking stream there may be room for a part only: the next call begins
    /// [`bytes`](Sent::bytes) further on, so keep a way to name the rest, such as the region or a clone.
    ///
    /// ```
    /// # use pagewire::{Host, Pair};
    /// # let (left, right) = Pair::new()?;
    /// # let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    /// # let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    /// # let listener = server.listen("10.0.0.1:9000")?;
    /// let conn = client.connect("10.0.0.1:9000")?;
    /// # let (peer, _) = listener.accept()?;
    /// conn.set_zerocopy(true)?;
    /// let sent = conn.send_zc(vec![7; 100_000])?;
    /// # drop(std::thread::spawn(move || while peer.recv_chunks(1 << 20).is_ok_and(|c| !c.is_empty()) {}));
    /// let done = conn.wait_completion()?.expect("one is to come");
    /// assert_eq!((Some(*done.ids.start()), done.copied), (sent.id, false));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), and `ENOBUFS`: too many notifications are unread or outstanding,
    /// or too many pages are held (`HostBuilder::zerocopy_memory` of a host).
    /// If a part was queued before the error, the call succeeds with that part. A call that queues
    /// nothing takes no id.
    pub fn send_zc(&self, buf: impl Into<SendBuf>) -> io::Result<Sent> {
        self.send_all_zc(&mut buf.into().frags)
    }

    /// [`send_zc`](Self::send_zc) of memory that the caller keeps: addresses and lengths.
    ///
    /// # Safety
    /// Every piece is readable, and freed or unmapped only after its id was among
    /// [`completions`](Self::completions). If the connection is dropped first: after that (the host
    /// copies what the peer does not have yet), and after every receiver in this process that got the
    /// memory by reference has dropped it. No `&mut` to it exists until then. If bytes change meanwhile,
    /// either their old or their new value is sent; nothing else goes wrong.
    #[allow(unsafe_code, reason = "the caller keeps memory that nothing here can")]
    pub unsafe fn send_zc_raw(
        &self,
        pieces: &[(std::ptr::NonNull<u8>, usize)],
    ) -> io::Result<Sent> {
        // SAFETY: the caller's promise, word by word.
        let lent = |&(at, len): &_| unsafe { Frag::lent(at, len) };
        self.send_all_zc(&mut pieces.iter().map(lent).collect())
    }

    fn send_all_zc(&self, frags: &mut FragVec) -> io::Result<Sent> {
        let (mut call, mut bytes, id) = (ZeroCopyCall::new(), 0, self.0.id());
        while frags.iter().any(|frag| !frag.is_empty()) {
            let sent = self.0.block(WRITE, |stack, clock| {
                queue_zc((stack, clock), id, frags, &mut call, bytes > 0)
            });
            match sent {
                Ok(0) => break,
                Ok(n) => bytes += n,
                Err(error) if bytes == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(Sent { bytes, id: call.id() })
    }

    /// Waits for a completion, at most as long as for data
    /// ([`set_read_timeout`](Self::set_read_timeout)). `None`: no send is outstanding.
    ///
    /// # Errors
    /// `WouldBlock` on a non-blocking stream, `TimedOut`.
    pub fn wait_completion(&self) -> io::Result<Option<Completion>> {
        let id = self.0.id();
        self.0.block(COMPLETION, |stack, _| next_completion(stack, id))
    }

    /// Receives up to `max` bytes by reference, waiting for one; empty at the end of the stream.
    ///
    /// # Errors
    /// The error that ended the connection; `TimedOut`, and `WouldBlock` on a non-blocking stream.
    #[inline]
    pub fn recv_chunks(&self, max: usize) -> io::Result<Chunks> {
        let id = self.0.id();
        self.0.block(READ, |stack, clock| take_chunks((stack, clock), id, max))
    }

    /// As [`recv_chunks`](Self::recv_chunks), into a vector of the caller; the number of bytes, 0
    /// at the end. They do not count against the receive buffer: the caller bounds them.
    pub fn recv_into(&self, max: usize, frags: &mut Vec<Frag>) -> io::Result<usize> {
        let id = self.0.id();
        self.0.block(READ, |stack, clock| {
            let chunks = pagewire_stack::Chunks { max, into: frags };
            stack.tcp(id)?.recv(clock.now(), chunks, RecvFlags::empty())
        })
    }

    /// Copies received bytes without consuming them, waiting for one; 0 at the end of the stream.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_with(buf, RecvFlags::PEEK)
    }

    /// Discards up to `max` received bytes, waiting for one; how many, 0 at the stream's end.
    pub fn discard(&self, max: usize) -> io::Result<usize> {
        let (id, discard) = (self.0.id(), pagewire_stack::Discard(max));
        self.0.block(READ, |stack, clock| {
            stack.tcp(id)?.recv(clock.now(), discard, RecvFlags::empty())
        })
    }

    /// As [`map`](Self::map), and waits until `len` bytes are queued, unless the stream is
    /// non-blocking. The receive buffer grows so that they fit, within its limit
    /// ([`TcpConfig::recv_buffer`](pagewire_stack::TcpConfig::recv_buffer)).
    ///
    /// # Errors
    /// The errors of `map`, with their numbers ([`MapError::errno`]: a length that is no multiple of 4096
    /// is `EINVAL`, the end of the stream `EIO`); `TimedOut`; `NoMemory` (`ENOMEM`) when the window
    /// closes before so much is queued.
    pub fn map_wait(&self, len: usize) -> io::Result<Mapping> {
        let id = self.0.id();
        self.0.block(READ, |stack, clock| try_map((stack, clock), id, len))?
    }

    /// Waits until something can be read or mapped, or the stream has ended; how many bytes are
    /// queued. With [`SocketOption::RcvLowat`](pagewire_stack::SocketOption::RcvLowat), until that many are.
    ///
    /// # Errors
    /// `TimedOut`, and `WouldBlock` on a non-blocking stream.
    pub fn wait_readable(&self) -> io::Result<usize> {
        let id = self.0.id();
        self.0.block(READ, |stack, _| readable(stack, id))
    }

    fn read_with(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        // As on Linux, a thread does not wait to read nothing.
        if buf.is_empty() {
            return Ok(0);
        }
        let id = self.0.id();
        let mut taken = Unlocked::default();
        let read = self
            .0
            .block(READ, |stack, clock| read_or_take((stack, clock), id, buf, flags, &mut taken));
        taken.copy_to(buf, self.0.runtime());
        read
    }

    fn read_slices(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(0);
        }
        let id = self.0.id();
        self.0.block(READ, |stack, clock| read_slices((stack, clock), id, bufs))
    }

    fn write_slices(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(0);
        }
        let id = self.0.id();
        match UnlockedWrite::of(bufs) {
            Some(data) => self.write_unlocked(data),
            None => self.0.block(WRITE, |stack, clock| write_slices((stack, clock), id, bufs)),
        }
    }

    /// A write whose copy is made without the runtime's lock.
    fn write_unlocked(&self, data: &[u8]) -> io::Result<usize> {
        let (id, waits) = (self.0.id(), self.0.waits());
        let lend = |waits| {
            move |stack: &mut Stack, clock: &Clock<'_>| {
                UnlockedWrite::lend((stack, clock), id, data.len(), waits)
            }
        };
        let pages = match self.0.block(WRITE, lend(waits)) {
            // Room that was not worth the wait is better than none.
            Err(late) if late.kind() == io::ErrorKind::TimedOut => {
                self.0.enter(lend(false)).map_err(|error| match error.kind() {
                    io::ErrorKind::WouldBlock => late,
                    _ => error,
                })?
            }
            lent => lent?,
        };
        let mut write = UnlockedWrite::copy(pages, data);
        match self.0.enter(|stack, clock| write.queue((stack, clock), id)) {
            // Another thread took the room. No thread waits with pages; the next copy is made under the
            // lock, where the room cannot be lost.
            Err(error) if waits && error.kind() == io::ErrorKind::WouldBlock => {
                drop(write);
                let bufs = &[IoSlice::new(data)];
                self.0.block(WRITE, |stack, clock| write_slices((stack, clock), id, bufs))
            }
            queued => queued,
        }
    }
}

macro_rules! read_and_write {
    ($($stream:ty),*) => {$(
        impl<R: Blocking> Read for $stream {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.read_with(buf, RecvFlags::empty())
            }

            fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.read_slices(bufs)
            }
        }

        impl<R: Blocking> Write for $stream {
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
    )*};
}

read_and_write!(TcpStream<R>, &TcpStream<R>);

impl<R: Runtime> Clone for TcpStream<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Runtime> std::fmt::Debug for TcpStream<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (local, peer) = (self.local_addr().ok(), self.peer_addr().ok());
        f.debug_struct("TcpStream").field("local", &local).field("peer", &peer).finish()
    }
}
