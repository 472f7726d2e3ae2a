//! Byte path, step R7: received bytes go to the application.

use pagewire_mem::{Frag, Instant};
use pagewire_tcp::{Connection, Env, Parts, RecvFlags, TcpError};

use crate::error::Error;
use crate::event::Readiness;
use crate::sockets::Tcp;
use crate::sockets::errors::error_from;

/// A way to take received bytes:
///
/// - `&mut [u8]`: copies them;
/// - [`Chunks`]: appends references to a vector;
/// - [`Lend`]: shows them to a closure, which says how many it took;
/// - [`Discard`]: discards them;
/// - [`Map`](crate::Map), [`MapSealed`](crate::MapSealed), [`MapPages`](crate::MapPages),
///   [`MapWith`](crate::MapWith): as contiguous memory.
///
/// The first four return the number of bytes; 0 is the end of the stream.
pub trait Taker {
    /// What was taken.
    type Taken;
    /// Why nothing was taken.
    type Error;

    #[doc(hidden)]
    fn take(
        self,
        tcp: &mut Tcp<'_>,
        now: Instant,
        flags: RecvFlags,
    ) -> Result<Self::Taken, Self::Error>;
}

/// Takes up to `max` received bytes by reference, appended to `into`.
#[derive(Debug)]
pub struct Chunks<'a> {
    /// How many bytes at most.
    pub max: usize,
    /// The vector.
    pub into: &'a mut Vec<Frag>,
}

/// Discards received bytes, at most this number.
#[derive(Clone, Copy, Debug)]
pub struct Discard(pub usize);

/// Shows up to `max` received bytes where they lie; only as many as `give` returns are taken. For a
/// `writev` that may take less than there is: what it leaves stays in the queue, and holds the peer
/// back.
///
/// `give` runs within the stack: it must not panic. It gets each fragment with the number of its
/// bytes that are lent, and is not called for an empty queue or the end of the stream. If it takes
/// nothing, the call returns `WouldBlock`. With
/// [`STOP_AT_URGENT`](pagewire_tcp::RecvFlags::STOP_AT_URGENT) the lent bytes end before an urgent byte;
/// once that is next ([`Tcp::at_urgent_mark`]), the call returns `WouldBlock`, and one without the flag
/// skips it. [`PEEK`](pagewire_tcp::RecvFlags::PEEK) is `InvalidInput`.
#[derive(Clone, Copy, Debug)]
pub struct Lend<F> {
    /// How many bytes at most.
    pub max: usize,
    /// Takes bytes from the front, and returns how many.
    pub give: F,
}

impl Tcp<'_> {
    /// Takes received bytes.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is queued but more may come, `NotConnected`, the error that ended
    /// the connection, and the taker's own.
    #[inline]
    pub fn recv<T: Taker>(
        &mut self,
        now: Instant,
        taker: T,
        flags: RecvFlags,
    ) -> Result<T::Taken, T::Error> {
        taker.take(self, now, flags)
    }

    /// Whether it waits for data: a [`recv`](Self::recv) now is `WouldBlock`, and changes nothing.
    #[inline]
    pub fn awaits_data(&self) -> bool {
        let ends = Readiness::READ_CLOSED | Readiness::ERROR;
        self.socket.conn.queued_receive() == 0 && !self.socket.readiness().intersects(ends)
    }

    /// Runs one verb and marks the socket. Notes the readiness that the verb used up.
    pub(crate) fn with<T>(
        &mut self,
        now: Instant,
        verb: impl FnOnce(&mut Connection, &mut Env<'_>) -> Result<T, TcpError>,
    ) -> Result<T, Error> {
        let done = self.socket.work(self.mem, now, verb);
        self.note_used_up();
        if done.as_ref().err() != Some(&TcpError::WouldBlock) {
            self.touch();
        }
        done.map_err(error_from)
    }

    /// As [`with`](Self::with), for verbs that only take data: mostly they leave nothing to do.
    pub(crate) fn taking<T>(
        &mut self,
        now: Instant,
        verb: impl FnOnce(&mut Connection, &mut Env<'_>) -> Result<T, TcpError>,
    ) -> Result<T, Error> {
        let done = self.socket.work(self.mem, now, verb);
        let grown = self.note_used_up();
        match &done {
            Ok(_) => self.after_taking(grown),
            Err(TcpError::WouldBlock) => {}
            Err(_) => self.touch(),
        }
        done.map_err(error_from)
    }

    /// Returns whether the socket is ready for something that was not reported.
    #[inline]
    pub(crate) fn note_used_up(&mut self) -> bool {
        let (readiness, reported) = (self.socket.readiness(), self.socket.reporting.reported);
        self.socket.reporting.reported = reported & readiness;
        !readiness.difference(reported).is_empty()
    }

    /// After a verb that took data: it can make an acknowledgement due and set a timer, nothing else.
    fn after_taking(&mut self, grown: bool) {
        let index = self.id.index();
        if grown {
            self.work.queue_report(index, &mut self.socket.reporting);
        }
        if self.socket.conn.ack_due() || self.socket.is_rare() {
            self.work.queue_send(index, self.socket);
        } else if let Some(at) = self.socket.conn.poll_timeout()
            && !self.wheel.covers(index, at)
        {
            self.wheel.schedule(index, at);
        }
    }
}

impl Taker for &mut [u8] {
    type Taken = usize;
    type Error = Error;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        tcp.taking(now, |conn, env| conn.read(env, self, flags))
    }
}

impl<const N: usize> Taker for &mut [u8; N] {
    type Taken = usize;
    type Error = Error;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        self.as_mut_slice().take(tcp, now, flags)
    }
}

impl Taker for Chunks<'_> {
    type Taken = usize;
    type Error = Error;

    #[inline]
    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        let Self { max, into } = self;
        tcp.taking(now, |conn, env| conn.recv_chunks(env, max, into, flags))
    }
}

impl<F: FnOnce(Parts<'_>) -> usize> Taker for Lend<F> {
    type Taken = usize;
    type Error = Error;

    #[inline]
    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        let Self { max, give } = self;
        tcp.taking(now, |conn, env| conn.lend(env, max, give, flags))
    }
}

impl Taker for Discard {
    type Taken = usize;
    type Error = Error;

    fn take(self, tcp: &mut Tcp<'_>, now: Instant, flags: RecvFlags) -> Result<usize, Error> {
        tcp.taking(now, |conn, env| conn.recv_chunks(env, self.0, &mut Vec::new(), flags))
    }
}
