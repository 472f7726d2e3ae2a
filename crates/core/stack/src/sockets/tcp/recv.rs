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
/// - [`ToCopy`](crate::ToCopy): the same, for a caller that copies the bytes;
/// - [`Lend`]: shows them to a closure, which returns how many it took;
/// - [`Discard`]: discards them;
/// - [`Map`](crate::Map), [`MapSealed`](crate::MapSealed), [`MapPages`](crate::MapPages),
///   [`MapWith`](crate::MapWith): as contiguous memory.
///
/// The first five return the number of bytes; 0 is the end of the stream.
pub trait Taker {
    /// The result: a number of bytes, or the memory.
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
    /// The vector that gets the references.
    pub into: &'a mut Vec<Frag>,
}

/// Discards received bytes, at most this number.
#[derive(Clone, Copy, Debug)]
pub struct Discard(pub usize);

/// Shows up to `max` received bytes in place, and takes as many as `give` returns. A `writev` that may take
/// less than there is can be the closure: the other bytes stay in the queue, and hold the peer back.
///
/// `give` runs within the stack: it must not panic. `give` gets each fragment with the number of bytes that it
/// may take of it, and is not called for an empty queue or the end of the stream. If `give` takes nothing, the call returns `WouldBlock`. With
/// [`STOP_AT_URGENT`](pagewire_tcp::RecvFlags::STOP_AT_URGENT) the shown bytes end before an urgent byte;
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

    /// Whether the connection waits for data: a [`recv`](Self::recv) now is `WouldBlock`, and changes nothing.
    #[inline]
    pub fn awaits_data(&self) -> bool {
        let ends = Readiness::READ_CLOSED | Readiness::ERROR;
        self.socket.conn.queued_receive() == 0 && !self.socket.readiness().intersects(ends)
    }

    /// Runs one operation and marks the socket. Notes the readiness that the operation used up.
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

    /// As [`with`](Self::with), for operations that only take data: mostly they leave nothing to do.
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

    /// Marks the socket after data was taken: an acknowledgement may be due and a timer set, nothing else.
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
