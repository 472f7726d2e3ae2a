//! Byte path, step S1: the application's bytes go to the send queue.

use pagewire_mem::{FragVec, Instant};
use pagewire_tcp::{Connection, Env, SendFlags, TcpError};

use crate::error::Error;
use crate::event::Readiness;
use crate::net::Mem;
use crate::sockets::Tcp;
use crate::sockets::errors::error_from;
use crate::sockets::pages::waiters::is_ample;
use crate::sockets::zerocopy::sends::ZeroCopyCall;

/// The time: an [`Instant`], or a closure that is called at most once.
pub trait TimeSource {
    /// The time.
    fn now(self) -> Instant;
}

impl TimeSource for Instant {
    #[inline]
    fn now(self) -> Instant {
        self
    }
}

impl<F: FnOnce() -> Instant> TimeSource for F {
    #[inline]
    fn now(self) -> Instant {
        self()
    }
}

/// Data to send on a connection:
///
/// - `&[u8]`: a copy. If the send buffer has room but the stack has no free page, this is
///   `WouldBlock` too, and the connection becomes writable when pages are free;
/// - `&mut FragVec`: memory by reference, taken from the front, and released when it is
///   acknowledged;
/// - [`Filled`](crate::Filled): pages that the stack [lent](Tcp::lend_pages), and the caller filled;
/// - `(&mut FragVec, &mut ZeroCopyCall)`: also by reference, with a notification, see
///   [`ZeroCopyCall`].
pub trait Payload: Sized {
    /// Queues all of it, if it only adds to data that waits to be coalesced: no clock is needed.
    /// `None`: use [`queue`](Self::queue).
    #[doc(hidden)]
    fn coalesce(&mut self, tcp: &mut Tcp<'_>) -> Option<usize> {
        let _ = tcp;
        None
    }

    /// Queues as much as there is room for.
    #[doc(hidden)]
    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error>;
}

impl Tcp<'_> {
    /// Queues as much from the front of `data` as there is room for, and returns the number of
    /// bytes. Reads the clock only if more than the queue changes.
    ///
    /// # Errors
    /// `WouldBlock` without room, `BrokenPipe` after a shutdown, and what ended the connection.
    #[inline]
    pub fn send(
        &mut self,
        now: impl TimeSource,
        mut data: impl Payload,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        if flags.is_empty()
            && let Some(queued) = data.coalesce(self)
        {
            return Ok(queued);
        }
        data.queue(self, now.now(), flags)
    }
}

impl<T: AsRef<[u8]> + ?Sized> Payload for &T {
    #[inline]
    fn coalesce(&mut self, tcp: &mut Tcp<'_>) -> Option<usize> {
        let (data, socket) = (self.as_ref(), &mut *tcp.socket);
        // `queue` keeps charges and the connection's own ledger.
        let plain = socket.extra.as_ref().is_none_or(|extra| extra.ledger.is_none());
        let Mem { pool, writer, ledger, .. } = &mut *tcp.mem;
        let coalesced = plain
            && is_ample(pool)
            && socket.forwarding.is_none()
            && socket.conn.coalesce_copy(pool, writer, ledger, data);
        coalesced.then_some(data.len())
    }

    #[inline]
    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        tcp.send_copy(now, self.as_ref(), flags)
    }
}

impl Tcp<'_> {
    /// As [`with`](Self::with), for verbs that only queue: data to be coalesced needs no output.
    pub(crate) fn with_sender<T>(
        &mut self,
        now: Instant,
        verb: impl FnOnce(&mut Connection, &mut Env<'_>) -> Result<T, TcpError>,
    ) -> Result<T, Error> {
        match self.socket.work(self.mem, now, verb) {
            Ok(done) => {
                self.after_queueing();
                Ok(done)
            }
            Err(error) => {
                self.note_used_up();
                // Without room or pages, there is no change to report to the owner.
                if !matches!(error, TcpError::WouldBlock | TcpError::NoBuffers) {
                    self.touch();
                }
                Err(error_from(error))
            }
        }
    }

    /// Marks the socket after something was queued, unless that waits to be coalesced.
    pub(crate) fn after_queueing(&mut self) {
        if !self.socket.conn.is_coalescing() {
            let reported = &mut self.socket.reporting.reported;
            if reported.contains(Readiness::WRITABLE) && !self.socket.conn.is_writable() {
                *reported &= !Readiness::WRITABLE;
            }
            self.work.queue_send(self.id.index(), self.socket);
        }
    }

    fn send_copy(&mut self, now: Instant, data: &[u8], flags: SendFlags) -> Result<usize, Error> {
        let Some(len) = self.share(now, data.len()) else {
            // A connection that cannot send at all has an error of its own.
            let nothing = self.with_sender(now, |conn, env| conn.write(env, &[], flags));
            return nothing.and(Err(Error::WouldBlock));
        };
        let (part, flags) = match data.get(..len) {
            Some(part) if len < data.len() => (part, SendFlags::empty()),
            _ => (data, flags),
        };
        match self.with_sender(now, |conn, env| conn.write(env, part, flags)) {
            Err(Error::NoBuffers) => {
                self.wait_for_pages(now);
                Err(Error::WouldBlock)
            }
            done => {
                self.after_share(len, data.len());
                done
            }
        }
    }
}

impl Payload for &mut FragVec {
    #[inline]
    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        tcp.with_sender(now, |conn, env| conn.send(env, self, flags))
    }
}

impl Payload for (&mut FragVec, &mut ZeroCopyCall) {
    #[inline]
    fn coalesce(&mut self, tcp: &mut Tcp<'_>) -> Option<usize> {
        tcp.coalesce_by_reference(self.0, self.1)
    }

    #[inline]
    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        tcp.send_by_reference(now, self.0, self.1, flags)
    }
}
