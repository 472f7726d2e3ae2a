//! Receiving by mapping: received pages as contiguous memory.

use std::fmt;
use std::io;

use pagewire_mem::{CopyLedger, Frag, Held, Instant};
use pagewire_stack::{Error, MapError, RecvFlags, Stack, Tcp, TcpId};

use crate::buf::SendBuf;
use crate::runtime::{Clock, Runtime};
use crate::socket::Socket;

/// Received pages as contiguous memory that can only be read. A drop, on any thread, releases the
/// pages; the mapping outlives the connection and the host. It can be sent as it is ([`SendBuf`]).
///
/// Until then it counts against the receive buffer of its connection: a program that keeps everything
/// closes its window. Memory that is sent on does not count.
///
/// ```
/// # use pagewire::{Host, Pair, SendBuf};
/// # let (left, right) = Pair::new()?;
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

/// The result of `map_available`.
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

impl<R: Runtime> Socket<R, TcpId> {
    pub(crate) fn map(&self, len: usize) -> Result<Mapping, MapError> {
        let id = self.id();
        let done = self.runtime().enter(|stack, clock, _| map(stack, clock.now(), id, len));
        done.unwrap_or(Err(MapError::Socket(Error::NoSuchSocket)))
    }

    pub(crate) fn map_available(
        &self,
        max: usize,
        tail: &mut [u8],
    ) -> Result<MapAvailable, MapError> {
        let id = self.id();
        let done = self.runtime().enter(|stack, clock, _| {
            let pages = pagewire_stack::MapPages { max, tail };
            let found = stack.tcp(id)?.recv(clock.now(), pages, RecvFlags::empty())?;
            let pagewire_stack::MapAvailable { mapping, copied, copy_next, queued, ended, error } =
                found;
            let mapping = match mapping {
                Some(mapping) => Some(Mapping::new(stack.tcp(id)?, clock.now(), mapping)),
                None => None,
            };
            Ok(MapAvailable { mapping, copied, copy_next, queued, ended, error })
        });
        done.unwrap_or(Err(MapError::Socket(Error::NoSuchSocket)))
    }
}

/// A try of a call that waits: `Err(WouldBlock)` to wait on.
pub(crate) fn try_map(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    len: usize,
) -> Result<io::Result<Mapping>, Error> {
    match map(stack, clock.now(), id, len) {
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

fn map(stack: &mut Stack, now: Instant, id: TcpId, len: usize) -> Result<Mapping, MapError> {
    let mut tcp = stack.tcp(id)?;
    let mapping = tcp.recv(now, pagewire_stack::Map(len), RecvFlags::empty())?;
    Ok(Mapping::new(tcp, now, mapping))
}

/// A failed mapping as an error of `std::io`, errno included.
fn map_error(error: MapError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}
