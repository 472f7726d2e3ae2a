//! Receiving by mapping: received pages as contiguous memory.

use std::fmt;
use std::io;

use pagewire_mem::{CopyLedger, Frag, Held, Instant};
use pagewire_stack::{Error, MapError, Readiness, RecvFlags, Stack, Tcp, TcpId};

use crate::buf::SendBuf;
use crate::stream::TcpStream;
use crate::waiters::Interest;

/// Received pages as contiguous memory that can only be read. A drop, on any thread, releases the
/// pages; the mapping outlives the connection and the host. It can be sent as it is ([`SendBuf`]).
///
/// Until then it counts against the receive buffer of its connection: a program that keeps everything
/// closes its window. Memory that is sent on does not count.
///
/// ```
/// # use pagewire::{Host, Pair, SendBuf};
/// # let (left, right) = Pair::new(Default::default())?;
/// # let host = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// # let peer = Host::builder().device(right).address("10.0.0.2/24").start()?;
/// # let listener = host.listen("10.0.0.1:9000")?;
/// # let source = peer.connect("10.0.0.1:9000")?;
/// # let (conn, _) = listener.accept()?;
/// # let target = peer.listen("10.0.0.2:9000")?;
/// # let onward = host.connect("10.0.0.2:9000")?;
/// # let (sink, _) = target.accept()?;
/// # std::io::Write::write_all(&mut &source, &[7; 8192])?;
/// let view = conn.map_wait(8192)?;
/// onward.send(SendBuf::from(&view))?; // the pages; `view` stays, `onward.send(view)` gives it away
/// view.for_each_piece(|bytes| assert!(bytes.iter().all(|&byte| byte == 7)));
/// assert_eq!(host.stats().ledger.ours(), 0);
/// # assert_eq!(sink.map_wait(8192)?.len(), 8192);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Mapping(
    pagewire_mem::Mapping,
    #[allow(dead_code, reason = "counts until it is dropped")] Held,
);

impl Mapping {
    fn new(mut tcp: Tcp<'_>, now: Instant, mapping: pagewire_mem::Mapping) -> Self {
        let held = tcp.count_held(now, mapping.pinned());
        Self(mapping, held)
    }

    /// Bytes mapped: a multiple of the page size, 4096.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, unless others may change them; see [`Chunk::as_slice`](crate::Chunk::as_slice).
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.0.as_slice()
    }

    /// The first byte; [`len`](Self::len) bytes are readable while the mapping lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    /// Copies up to `dst.len()` bytes from `offset` on; returns how many. Works for all memory.
    pub fn copy_to(&self, offset: usize, dst: &mut [u8]) -> usize {
        // The application's own copy: no stack is left to count it.
        self.0.copy_to(offset, dst, &mut CopyLedger::new())
    }

    /// Shows the bytes to `f` in order: in place where they cannot change, else as small snapshots.
    pub fn for_each_piece(&self, mut f: impl FnMut(&[u8])) {
        match self.as_slice() {
            Some(all) => f(all),
            None => {
                let show = |frag: &Frag| frag.for_each_piece(&mut CopyLedger::new(), &mut f);
                self.0.frags().iter().for_each(show);
            }
        }
    }

    /// System calls that the mapping took: 0 for adjacent pages.
    pub fn system_calls(&self) -> u32 {
        self.0.system_calls()
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Mapping> for SendBuf {
    /// The pages themselves: nothing is copied.
    fn from(mapping: Mapping) -> Self {
        Self::from_iter(mapping.0.into_frags())
    }
}

impl From<&Mapping> for SendBuf {
    /// The pages themselves, and the mapping stays.
    fn from(mapping: &Mapping) -> Self {
        Self::from_iter(mapping.0.frags().iter().cloned())
    }
}

/// What [`TcpStream::map_available`] found.
#[derive(Debug)]
#[non_exhaustive]
pub struct MapAvailable {
    /// The next whole pages of the stream; `None` if it does not begin with a whole page.
    pub mapping: Option<Mapping>,
    /// Bytes after the mapping that were copied into the caller's buffer.
    pub copied: usize,
    /// Bytes to read by copy before the next page can be mapped (Linux's `recv_skip_hint`). 0 if
    /// another call can map the rest, or the requested length was mapped.
    pub copy_next: usize,
    /// Bytes that are still queued.
    pub queued: usize,
    /// No more follow: the peer has closed, or the connection is over.
    pub ended: bool,
    /// The error of the connection, reported once. Data received before it can still be read.
    pub error: Option<Error>,
}

/// Receiving by mapping pages.
impl TcpStream {
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
    /// # use pagewire::{Host, MapError, Pair};
    /// # let (left, right) = Pair::new(Default::default())?;
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
        let id = self.0.id;
        self.0.host.shared.with(|stack, now| take_mapping(stack.tcp(id)?, now, len))
    }

    /// As [`map`](Self::map), and waits until `len` bytes are queued, unless the stream is
    /// non-blocking. The receive buffer grows so that they fit, within its limit
    /// ([`TcpConfig::recv_buffer`](crate::TcpConfig::recv_buffer)).
    ///
    /// # Errors
    /// Those of `map`, with their numbers ([`MapError::errno`]: a length that is no multiple of 4096
    /// is `EINVAL`, the end of the stream `EIO`); `TimedOut`; `NoMemory` (`ENOMEM`) when the window
    /// closes before so much is queued.
    pub fn map_wait(&self, len: usize) -> io::Result<Mapping> {
        let id = self.0.id;
        self.0.wait_on(Interest::Read, |stack, now| try_map(stack, now, id, len))?
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
    /// # let (left, right) = Pair::new(Default::default())?;
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
        self.map_available_with(max, &mut [])
    }

    /// As [`map_available`](Self::map_available), and copies the bytes before the next whole page into
    /// `tail`, as far as they fit: the end of a message without a second call.
    pub fn map_available_with(
        &self,
        max: usize,
        tail: &mut [u8],
    ) -> Result<MapAvailable, MapError> {
        let id = self.0.id;
        self.0.host.shared.with(|stack, now| {
            let found = stack.tcp(id)?.recv(
                now,
                pagewire_stack::MapPages { max, tail },
                RecvFlags::empty(),
            )?;
            let pagewire_stack::MapAvailable { mapping, copied, copy_next, queued, ended, error } =
                found;
            let mapping = match mapping {
                Some(mapping) => Some(Mapping::new(stack.tcp(id)?, now, mapping)),
                None => None,
            };
            Ok(MapAvailable { mapping, copied, copy_next, queued, ended, error })
        })
    }

    /// Waits until something can be read or mapped, or the stream has ended; how many bytes are
    /// queued. With [`TcpOption::RcvLowat`](crate::TcpOption::RcvLowat), until that many are.
    ///
    /// # Errors
    /// `TimedOut`, and `WouldBlock` on a non-blocking stream.
    pub fn wait_readable(&self) -> io::Result<usize> {
        self.0.wait_on(Interest::Read, |stack, _| readable(stack, self.0.id))
    }
}

/// One try of a call that waits: `Err(WouldBlock)` to wait on.
pub(crate) fn try_map(
    stack: &mut Stack,
    now: Instant,
    id: TcpId,
    len: usize,
) -> Result<io::Result<Mapping>, Error> {
    match take_mapping(stack.tcp(id)?, now, len) {
        Err(MapError::WouldBlock) => {
            let mut tcp = stack.tcp(id)?;
            tcp.expect(len);
            match tcp.is_beyond_window(len) {
                true => Ok(Err(map_error(MapError::NoMemory))),
                false => Err(Error::WouldBlock),
            }
        }
        done => Ok(done.map_err(map_error)),
    }
}

fn take_mapping(mut tcp: Tcp<'_>, now: Instant, len: usize) -> Result<Mapping, MapError> {
    let mapping = tcp.recv(now, pagewire_stack::Map(len), RecvFlags::empty())?;
    Ok(Mapping::new(tcp, now, mapping))
}

/// The bytes that can be read, once there are enough.
pub(crate) fn readable(stack: &mut Stack, id: TcpId) -> Result<usize, Error> {
    match stack.readiness(id)?.intersects(Readiness::FOR_READ) {
        true => stack.tcp(id).map(|tcp| tcp.queued()),
        false => Err(Error::WouldBlock),
    }
}

/// A failed mapping as an error of `std::io`, errno included.
fn map_error(error: MapError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}
