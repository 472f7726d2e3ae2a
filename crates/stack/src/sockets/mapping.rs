//! Byte path, step R7 by mapping, seen from the stack: which connection, which error.

use pagewire_mem::{Instant, MapFault, Mapping, Place};
use pagewire_tcp::{MapRefusal, Parts, check_map_len};

use super::Socket;
use super::table::SocketId;
use crate::error::Error;
use crate::stack::Stack;

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

/// What [`Stack::tcp_map_available`] found.
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

impl Stack {
    /// Byte path, step R7: the next `len` bytes as contiguous memory that can only be read,
    /// consumed as by a read: the window opens, an acknowledgement is considered.
    ///
    /// # Errors
    /// The first of [`MapError`] that applies; then nothing is consumed.
    pub fn tcp_map(&mut self, now: Instant, id: SocketId, len: usize) -> Result<Mapping, MapError> {
        check_map_len(len)?;
        self.check_mappable(id)?;
        self.with_connection(now, id, |conn, env| {
            Ok(conn.map(env, len, |parts| Place::find(parts).map_err(refusal)))
        })?
        .map_err(MapError::from)
        .and_then(|(place, frags)| place.fill(frags).ok_or(MapError::NoMemory))
    }

    /// As many of the next bytes as whole pages that lie side by side, up to `max`; then, as far as
    /// they fit into `tail`, a copy of what lies before the next page. Takes no system call (but for
    /// the first mapping of a region). What lies elsewhere in memory is had by the next call.
    ///
    /// Nothing to be mapped is no error: [`MapAvailable::copy_next`] says what to read.
    ///
    /// # Errors
    /// `Listening`, `NoMemory`, `Socket`.
    pub fn tcp_map_available(
        &mut self,
        now: Instant,
        id: SocketId,
        max: usize,
        tail: &mut [u8],
    ) -> Result<MapAvailable, MapError> {
        self.check_mappable(id)?;
        let (found, copied) = self.with_connection(now, id, |conn, env| {
            let found = conn.map_available(env, max, adjacent);
            let wanted = found.as_ref().map_or(0, |found| found.copy_next.min(tail.len()));
            let copied = match tail.get_mut(..wanted) {
                Some(into) if wanted > 0 => conn.read(env, into).unwrap_or(0),
                _ => 0,
            };
            Ok((found, copied))
        })?;
        let found = found?;
        let mapping = match found.mapped {
            Some((place, frags)) => Some(place.fill(frags).ok_or(MapError::NoMemory)?),
            None => None,
        };
        let socket = self.connection_mut(id)?;
        Ok(MapAvailable {
            mapping,
            copied,
            copy_next: found.copy_next - copied.min(found.copy_next),
            queued: socket.conn.queued_receive(),
            ended: socket.conn.has_end(),
            error: socket.take_error(),
        })
    }

    /// Whether `len` bytes will never be queued at once on this connection: its window closes
    /// before.
    pub fn tcp_is_beyond_window(&self, id: SocketId, len: usize) -> Result<bool, Error> {
        Ok(self.connection(id)?.conn.is_beyond_window(len))
    }

    /// Somebody is going to wait until `len` bytes are queued: has the receive buffer grow, within
    /// its limit, so that they fit, and everything that arrives be reported.
    pub fn tcp_expect(&mut self, id: SocketId, len: usize) -> Result<(), Error> {
        let socket = self.connection_mut(id)?;
        socket.every_arrival = true;
        socket.conn.make_room(u32::try_from(len).unwrap_or(u32::MAX));
        self.sockets.touch(id.index());
        Ok(())
    }

    fn check_mappable(&self, id: SocketId) -> Result<(), MapError> {
        match self.sockets.table.get(id)? {
            Socket::Listener(_) => Err(MapError::Listening),
            _ => Ok(()),
        }
    }
}

/// A place for the pages that lie side by side with the first.
fn adjacent(parts: Parts<'_>) -> Result<(Place, usize), MapRefusal> {
    let first = parts.take(1);
    let len = first.clone().map(|(_, len)| len).sum();
    Ok((Place::find(first).map_err(refusal)?, len))
}

pub(super) fn refusal(fault: MapFault) -> MapRefusal {
    match fault {
        MapFault::NotPages => MapRefusal::NotPages,
        _ => MapRefusal::NoMemory,
    }
}
