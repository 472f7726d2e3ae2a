//! Variant of step R7: received pages as contiguous memory.

use pagewire_mem::{Instant, MapFault, Mapping, Place};
use pagewire_tcp::{MapRefusal, Parts, RecvFlags, check_map_len};

use super::recv::Taker;
use crate::error::Error;
use crate::sockets::Tcp;

/// Why nothing was mapped: the first that applies. Nothing was consumed.
///
/// The order and the numbers are those of Linux's first version (commit 93ab6cc69162).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The length is 0 or no multiple of the page size, 4096. `EINVAL`.
    #[error("the length of a mapping is a positive multiple of 4096 bytes")]
    Length,
    /// The caller wants a writable mapping. `EPERM`.
    #[error("received pages can be mapped for reading only")]
    Writable,
    /// The socket listens. `ENOTCONN`.
    #[error("the socket listens, and receives nothing")]
    Listening,
    /// Fewer bytes are queued, and more may come. `EAGAIN`.
    #[error("fewer bytes are queued")]
    WouldBlock,
    /// Fewer bytes are queued, and no more can come. `EIO`.
    #[error("fewer bytes are left before the end of the stream")]
    Ended,
    /// Urgent data lies in the range. `EINVAL`.
    #[error("urgent data lies in the range: read past it")]
    Urgent,
    /// No memory; or, for a call that waits, the window closes before so much is queued. `ENOMEM`.
    #[error("out of memory for the mapping")]
    NoMemory,
    /// A part of the range is not in whole pages of the stream, or is in memory that cannot be
    /// mapped contiguously. It can be read. `EINVAL`.
    #[error("a part of the range does not lie in whole pages: read it")]
    NotPages,
    /// There is no such socket, or it is a datagram socket.
    #[error(transparent)]
    Socket(#[from] Error),
}

impl MapError {
    /// Linux's number for this error (`errno(3)`).
    pub const fn errno(self) -> i32 {
        match self {
            Self::Writable => 1,                                // EPERM
            Self::Ended => 5,                                   // EIO
            Self::WouldBlock => 11,                             // EAGAIN
            Self::NoMemory => 12,                               // ENOMEM
            Self::Length | Self::Urgent | Self::NotPages => 22, // EINVAL
            Self::Listening => 107,                             // ENOTCONN
            Self::Socket(error) => error.errno(),
        }
    }
}

/// With the number of [`errno`](MapError::errno).
impl From<MapError> for std::io::Error {
    fn from(error: MapError) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

impl From<MapRefusal> for MapError {
    fn from(refusal: MapRefusal) -> Self {
        match refusal {
            MapRefusal::Length => Self::Length,
            MapRefusal::NotEnough => Self::WouldBlock,
            MapRefusal::Ended => Self::Ended,
            MapRefusal::Urgent => Self::Urgent,
            MapRefusal::NoMemory => Self::NoMemory,
            _ => Self::NotPages,
        }
    }
}

/// The result of [`MapPages`].
#[derive(Debug)]
pub struct MapAvailable {
    /// The next whole pages of the stream, if it has some at its front.
    pub mapping: Option<Mapping>,
    /// Bytes behind the mapping that were copied to the buffer `tail`.
    pub copied: usize,
    /// Bytes to read by copy before the next page can be mapped (Linux's `recv_skip_hint`). 0 if
    /// another call can map the rest, or `max` bytes were mapped.
    pub copy_next: usize,
    /// Bytes queued behind what was taken.
    pub queued: usize,
    /// Whether these are the last: the peer has closed, or the connection is over.
    pub ended: bool,
    /// The connection's error, taken. Data received before can still be read.
    pub error: Option<Error>,
}

/// Takes exactly this number of bytes as contiguous, read-only memory, consumed as by a read.
#[derive(Clone, Copy, Debug)]
pub struct Map(pub usize);

/// As [`Map`], only in memory that cannot be made writable: for callers that hand out addresses. As
/// on Linux, an urgent byte out of line bounds the data, and only a FIN ends the stream.
#[derive(Clone, Copy, Debug)]
pub struct MapSealed(pub usize);

/// Takes whole pages that are contiguous in memory, up to `max` bytes; then copies the bytes before
/// the next page to `tail`, as far as they fit. Makes no system call (but for the first mapping of
/// a region). The next call takes pages that are elsewhere in memory.
///
/// Nothing to map is no error: see [`MapAvailable::copy_next`]. Errors are `NoMemory` and `Socket`.
#[derive(Debug)]
pub struct MapPages<'a> {
    /// How many bytes at most.
    pub max: usize,
    /// The buffer for a copy.
    pub tail: &'a mut [u8],
}

/// As [`MapPages`] without a mapping: calls `put` to map the next whole pages, up to `max` bytes;
/// `put` keeps references to them and returns the number of bytes to consume.
#[derive(Debug)]
pub struct MapWith<'a, F> {
    /// How many bytes at most.
    pub max: usize,
    /// The buffer for a copy.
    pub tail: &'a mut [u8],
    /// Maps pages.
    pub put: F,
}

impl Taker for Map {
    type Taken = Mapping;
    type Error = MapError;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, _: RecvFlags) -> Result<Mapping, MapError> {
        check_map_len(self.0)?;
        tcp.map(now, self.0, |parts| Place::find(parts))
    }
}

impl Taker for MapSealed {
    type Taken = Mapping;
    type Error = MapError;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, _: RecvFlags) -> Result<Mapping, MapError> {
        check_map_len(self.0)?;
        let conn = &tcp.socket.conn;
        if conn.queued_to_mark() < self.0 {
            return Err(if conn.has_fin() { MapError::Ended } else { MapError::WouldBlock });
        }
        tcp.map(now, self.0, |parts| Place::find_sealed(parts))
    }
}

impl Taker for MapPages<'_> {
    type Taken = MapAvailable;
    type Error = MapError;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, _: RecvFlags) -> Result<MapAvailable, MapError> {
        tcp.map_available(now, self.max, self.tail, adjacent)
    }
}

impl<F: FnOnce(Parts<'_>) -> Result<usize, MapFault>> Taker for MapWith<'_, F> {
    /// The number of bytes mapped, and the rest.
    type Taken = (usize, MapAvailable);
    type Error = MapError;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, _: RecvFlags) -> Result<Self::Taken, MapError> {
        let mut mapped = 0;
        let place = |parts: Parts<'_>| {
            mapped = (self.put)(parts).map_err(refusal)?;
            Ok((None, mapped))
        };
        let found = tcp.map_available(now, self.max, self.tail, place)?;
        Ok((mapped, found))
    }
}

impl Tcp<'_> {
    fn map(
        &mut self,
        now: Instant,
        len: usize,
        find: impl FnOnce(Parts<'_>) -> Result<Place, MapFault>,
    ) -> Result<Mapping, MapError> {
        self.with(now, |conn, env| Ok(conn.map(env, len, |parts| find(parts).map_err(refusal))))?
            .map_err(MapError::from)
            .and_then(|(place, frags)| place.fill(frags).ok_or(MapError::NoMemory))
    }

    fn map_available(
        &mut self,
        now: Instant,
        max: usize,
        tail: &mut [u8],
        place: impl FnOnce(Parts<'_>) -> Result<(Option<Place>, usize), MapRefusal>,
    ) -> Result<MapAvailable, MapError> {
        let (found, copied) = self.with(now, |conn, env| {
            let found = conn.map_available(env, max, place);
            let wanted = found.as_ref().map_or(0, |found| found.copy_next.min(tail.len()));
            let copied = match tail.get_mut(..wanted) {
                Some(into) if wanted > 0 => conn.read(env, into, RecvFlags::empty()).unwrap_or(0),
                _ => 0,
            };
            Ok((found, copied))
        })?;
        let found = found?;
        let mapping = match found.mapped {
            Some((Some(place), frags)) => Some(place.fill(frags).ok_or(MapError::NoMemory)?),
            Some((None, _)) | None => None,
        };
        let socket = &mut *self.socket;
        Ok(MapAvailable {
            mapping,
            copied,
            copy_next: found.copy_next - copied.min(found.copy_next),
            queued: socket.conn.queued_receive(),
            ended: socket.conn.has_end(),
            error: socket.take_error(),
        })
    }

    /// Whether the peer's FIN has come in order.
    pub fn has_fin(&self) -> bool {
        self.socket.conn.has_fin()
    }

    /// Whether the window closes before `len` bytes are queued.
    pub fn is_beyond_window(&self, len: usize) -> bool {
        self.socket.conn.is_beyond_window(len)
    }

    /// Prepares a wait for `len` bytes: grows the receive buffer, and reports every arrival.
    pub fn expect(&mut self, len: usize) {
        let socket = &mut *self.socket;
        socket.reporting.every_arrival = true;
        socket.conn.settings().make_room(u32::try_from(len).unwrap_or(u32::MAX));
        self.touch();
    }
}

/// Takes the pages that are contiguous with the first.
fn adjacent(parts: Parts<'_>) -> Result<(Option<Place>, usize), MapRefusal> {
    let first = parts.take(1);
    let len = first.clone().map(|(_, len)| len).sum();
    Ok((Some(Place::find(first).map_err(refusal)?), len))
}

pub(crate) fn refusal(fault: MapFault) -> MapRefusal {
    match fault {
        MapFault::NotPages => MapRefusal::NotPages,
        _ => MapRefusal::NoMemory,
    }
}
