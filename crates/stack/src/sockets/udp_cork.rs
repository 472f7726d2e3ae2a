//! Byte path, step S2 for datagrams: one that several calls put together (Linux's `MSG_MORE` and
//! `UDP_CORK`). It waits here until a call does not say that more is to come.

use pagewire_mem::{FragVec, Instant};

use super::handles::Udp;
use super::udp::{Ends, UdpSocket, append};
use crate::error::Error;

/// The front of a datagram, at most as long as a datagram can be.
pub(super) struct Cork {
    /// What the first call said: the others are not asked.
    pub(super) ends: Ends,
    pub(super) len: usize,
    data: FragVec,
}

impl UdpSocket {
    /// Where a call goes whose data is put behind what waits; an error, and nothing waits any more,
    /// if that becomes too long.
    pub(super) fn corked(&mut self, len: usize) -> Option<Result<Ends, Error>> {
        let cork = self.cork.as_ref()?;
        let ends = cork.ends;
        if cork.len + len <= ends.longest() {
            return Some(Ok(ends));
        }
        // As Linux: all of it is dropped. What was sent by reference is let go.
        self.cork = None;
        Some(Err(Error::MessageTooLong))
    }
}

impl Udp<'_> {
    /// Sends a datagram, or with `more` keeps it to put the next call's data behind it.
    pub(super) fn put(
        &mut self,
        now: Instant,
        (ends, more): (Ends, bool),
        data: FragVec,
        len: usize,
    ) -> Result<usize, Error> {
        let socket = &mut *self.socket;
        let waiting = socket.cork.take();
        if waiting.is_none() && !(more && len > 0) {
            return if more { Ok(0) } else { self.output_of(now, ends, data, len) };
        }
        let new = || Box::new(Cork { ends, len: 0, data: FragVec::new() });
        let mut cork = waiting.unwrap_or_else(new);
        append(&mut cork.data, data);
        cork.len += len;
        if more {
            socket.cork = Some(cork);
            return Ok(len);
        }
        let Cork { ends, len: all, data } = *cork;
        self.output_of(now, ends, data, all).map(|_| len)
    }

    /// Sends what waits for more to come, if anything does.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn push(&mut self, now: Instant) -> Result<(), Error> {
        let Some(cork) = self.socket.cork.take() else { return Ok(()) };
        self.output_of(now, cork.ends, cork.data, cork.len).map(drop)
    }

    /// Sends what a socket has to send, which learns why if it is refused.
    fn output_of(
        &mut self,
        now: Instant,
        ends: Ends,
        data: FragVec,
        len: usize,
    ) -> Result<usize, Error> {
        let socket = &mut *self.socket;
        let one = if ends.segment > 0 { len.min(ends.segment) } else { len };
        socket.longest = socket.longest.max(u16::try_from(one).unwrap_or(u16::MAX));
        self.output(now, ends, data, len).map_err(|error| self.refused(&ends, error))
    }
}
