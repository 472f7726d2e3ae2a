//! Byte path, step R7 by mapping, seen from the stack: which connection, which error.

use pagewire_mem::{Instant, MapFault, Mapping, Place};
use pagewire_tcp::{MapRefusal, Parts, RecvFlags, check_map_len};

use super::handles::Tcp;
use super::recv::Taker;
use crate::error::Error;

/// Why nothing was mapped, in the order in which it is looked for; the first that applies. Nothing
/// was consumed, nothing was waited for.
///
/// The order and the numbers are those of Linux's first version (commit 93ab6cc69162, "tcp: implement
/// mmap() for zero copy receive").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The length is 0 or no multiple of the page size, 4096. `EINVAL`.
    #[error("the length of a mapping is a positive multiple of 4096 bytes")]
    Length,
    /// A mapping that can be written was asked for. `EPERM`.
    #[error("received pages can be mapped for reading only")]
    Writable,
    /// The socket listens. `ENOTCONN`.
    #[error("the socket listens, and receives nothing")]
    Listening,
    /// Fewer bytes are queued, and more may come. `EAGAIN`.
    #[error("fewer bytes are queued")]
    WouldBlock,
    /// Fewer bytes are queued, and no more can come: the peer has closed, or the connection is
    /// over. `EIO`.
    #[error("fewer bytes are left before the end of the stream")]
    Ended,
    /// Urgent data lies in the range. `EINVAL`.
    #[error("urgent data lies in the range: read past it")]
    Urgent,
    /// No memory for it; or, where it was waited for, the window closes before so much is queued.
    /// `ENOMEM`.
    #[error("out of memory for the mapping")]
    NoMemory,
    /// A part of the range does not lie in whole pages of the stream (it begins or ends in the
    /// middle of one, or a short fragment lies in it), or in memory that cannot be mapped side by
    /// side. That part can be read. `EINVAL`.
    #[error("a part of the range does not lie in whole pages: read it")]
    NotPages,
    /// What any verb on the socket would say: there is none, or it is a datagram socket.
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

/// What [`MapPages`] found.
#[derive(Debug)]
pub struct MapAvailable {
    /// Whole pages that were next in the stream; `None` if there are none at its front.
    pub mapping: Option<Mapping>,
    /// Bytes behind the mapping that were copied into the buffer given for them.
    pub copied: usize,
    /// Bytes to be read by copy before the next page can be mapped (Linux's `recv_skip_hint`). 0 if
    /// the rest can be mapped by another call, or as much was mapped as was asked for.
    pub copy_next: usize,
    /// Bytes that wait behind what was taken.
    pub queued: usize,
    /// Nothing comes behind them: the peer has closed, or the connection is over.
    pub ended: bool,
    /// What the connection met, once. What was received before is there all the same.
    pub error: Option<Error>,
}

/// Takes the next so many bytes as contiguous memory that can only be read, consumed as by a read:
/// the window opens, an acknowledgement is considered. The first of [`MapError`] that applies is the
/// error; then nothing is consumed.
#[derive(Clone, Copy, Debug)]
pub struct Map(pub usize);

/// As [`Map`], for those who hand out addresses: only of memory that nobody can make writable there,
/// and with Linux's judgement of what is queued: up to an urgent byte that is not in line, and only the
/// peer's FIN ends the stream.
#[derive(Clone, Copy, Debug)]
pub struct MapSealed(pub usize);

/// Takes as many of the next bytes as whole pages that lie side by side, up to `max`; then, as far as
/// they fit into `tail`, a copy of what lies before the next page. Takes no system call (but for
/// the first mapping of a region). What lies elsewhere in memory is had by the next call.
///
/// Nothing to be mapped is no error: [`MapAvailable::copy_next`] says what to read. Errors are
/// `NoMemory` and `Socket`.
#[derive(Debug)]
pub struct MapPages<'a> {
    /// How many bytes at most.
    pub max: usize,
    /// Where a copy goes.
    pub tail: &'a mut [u8],
}

/// Has `put` map the next whole pages, up to `max` bytes, wherever it likes; it says how many
/// bytes that were, and they are consumed. It keeps references of its own. Then as for [`MapPages`],
/// without a mapping.
#[derive(Debug)]
pub struct MapWith<'a, F> {
    /// How many bytes at most.
    pub max: usize,
    /// Where a copy goes.
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
    /// How many bytes were mapped, and what was found.
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

    /// Whether `len` bytes will never be queued at once on this connection: its window closes
    /// before.
    pub fn is_beyond_window(&self, len: usize) -> bool {
        self.socket.conn.is_beyond_window(len)
    }

    /// Somebody is going to wait until `len` bytes are queued: has the receive buffer grow, within
    /// its limit, so that they fit, and everything that arrives be reported.
    pub fn expect(&mut self, len: usize) {
        let socket = &mut *self.socket;
        socket.every_arrival = true;
        socket.conn.settings().make_room(u32::try_from(len).unwrap_or(u32::MAX));
        self.touch();
    }
}

/// A place for the pages that lie side by side with the first.
fn adjacent(parts: Parts<'_>) -> Result<(Option<Place>, usize), MapRefusal> {
    let first = parts.take(1);
    let len = first.clone().map(|(_, len)| len).sum();
    Ok((Some(Place::find(first).map_err(refusal)?), len))
}

pub(super) fn refusal(fault: MapFault) -> MapRefusal {
    match fault {
        MapFault::NotPages => MapRefusal::NotPages,
        _ => MapRefusal::NoMemory,
    }
}
