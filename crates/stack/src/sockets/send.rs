//! Byte path, step S1 seen from the stack: the one way in for what is sent.

use pagewire_mem::{FragVec, Instant};
use pagewire_tcp::SendFlags;

use super::handles::Tcp;
use super::zerocopy::ZeroCopyCall;
use crate::error::Error;
use crate::net::Mem;

/// Tells the time to whoever needs it: an [`Instant`], or a closure that is asked at most once.
pub trait Clock {
    /// The time.
    fn now(self) -> Instant;
}

impl Clock for Instant {
    #[inline]
    fn now(self) -> Instant {
        self
    }
}

impl<F: FnOnce() -> Instant> Clock for F {
    #[inline]
    fn now(self) -> Instant {
        self()
    }
}

/// What is sent on a connection, and in which way:
///
/// - `&[u8]`: a copy. Where the send buffer has room but the stack has no page left to copy into, the
///   answer is `WouldBlock` too, and the connection becomes writable when pages come home;
/// - `&mut FragVec`: memory by reference, taken from the front. It is let go when it is acknowledged;
/// - `(&mut FragVec, &mut ZeroCopyCall)`: the same, with a notification, see [`ZeroCopyCall`].
pub trait Payload: Sized {
    /// Queues all of it, if it only adds to what waits to become a full segment: nothing follows from
    /// it, and no clock is needed. `None`: it has to be queued as any other.
    #[doc(hidden)]
    fn collect(&mut self, tcp: &mut Tcp<'_>) -> Option<usize> {
        let _ = tcp;
        None
    }

    /// Queues it.
    #[doc(hidden)]
    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error>;
}

impl Tcp<'_> {
    /// Queues as much from the front of `data` as there is room for, and returns how many bytes that
    /// is. The clock is asked only if anything but the queue changes.
    ///
    /// # Errors
    /// `WouldBlock` without room, `BrokenPipe` after a shutdown, and what the connection ended with.
    #[inline]
    pub fn send(
        &mut self,
        now: impl Clock,
        mut data: impl Payload,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        if flags.is_empty()
            && let Some(queued) = data.collect(self)
        {
            return Ok(queued);
        }
        data.queue(self, now.now(), flags)
    }
}

impl Payload for &[u8] {
    #[inline]
    fn collect(&mut self, tcp: &mut Tcp<'_>) -> Option<usize> {
        let socket = &mut *tcp.socket;
        // Charges and the connection's own ledger are kept by the long way.
        let plain = socket.extra.as_ref().is_none_or(|extra| extra.ledger.is_none());
        let Mem { pool, writer, ledger, .. } = &mut *tcp.mem;
        let collected = plain
            && socket.forwards.is_none()
            && socket.conn.coalesce_copy(pool, writer, ledger, self);
        collected.then_some(self.len())
    }

    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        match tcp.with_sender(now, |conn, env| conn.write(env, self, flags)) {
            Err(Error::NoBuffers) => {
                tcp.starve(now);
                Err(Error::WouldBlock)
            }
            done => done,
        }
    }
}

impl<const N: usize> Payload for &[u8; N] {
    fn collect(&mut self, tcp: &mut Tcp<'_>) -> Option<usize> {
        self.as_slice().collect(tcp)
    }

    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        self.as_slice().queue(tcp, now, flags)
    }
}

impl Payload for &Vec<u8> {
    fn collect(&mut self, tcp: &mut Tcp<'_>) -> Option<usize> {
        self.as_slice().collect(tcp)
    }

    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        self.as_slice().queue(tcp, now, flags)
    }
}

impl Payload for &mut FragVec {
    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        tcp.with_sender(now, |conn, env| conn.send(env, self, flags))
    }
}

impl Payload for (&mut FragVec, &mut ZeroCopyCall) {
    #[inline]
    fn collect(&mut self, tcp: &mut Tcp<'_>) -> Option<usize> {
        tcp.collect_lent(self.0, self.1)
    }

    fn queue(self, tcp: &mut Tcp<'_>, now: Instant, flags: SendFlags) -> Result<usize, Error> {
        tcp.send_lent(now, self.0, self.1, flags)
    }
}
