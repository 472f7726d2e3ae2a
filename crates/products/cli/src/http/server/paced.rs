//! [`Paced`]: a connection whose peer has to receive at a minimum rate, so that no slow reader keeps its permit.
//!
//! Only time in which the server waits for the peer counts, over all responses. Between responses the peer
//! may be idle for [`KEEP_ALIVE_TIME`](crate::limits::KEEP_ALIVE_TIME). The server sends by it.

use std::io;
use std::time::Duration;

use pagewire::memory::FragVec;

use crate::http::connection::{Connection, is_timeout};
use crate::http::message::response::Head;
use crate::http::server::access::Sent;
use crate::limits::{RATE_WINDOW, STALL_TIME};

/// The peer takes less than it must.
#[derive(Debug, thiserror::Error)]
#[error("the peer takes too little of what it is sent")]
pub(crate) struct TooSlow;

impl TooSlow {
    /// Whether this is why a call failed.
    pub(crate) fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<TooSlow>())
    }
}

/// How much the peer took recently, and in which time.
#[derive(Debug)]
struct Pace {
    /// Bytes that the peer must take in a second; 0: one byte within [`STALL_TIME`].
    least: u64,
    /// Time and bytes of the window that is under way.
    waited: Duration,
    taken: u64,
    /// Time since the peer last took a byte.
    stalled: Duration,
}

impl Pace {
    fn new(least: u64) -> Self {
        Self { least, waited: Duration::ZERO, taken: 0, stalled: Duration::ZERO }
    }

    /// Counts a wait, and the bytes that the peer took; `false`: too few.
    fn enough(&mut self, waited: Duration, taken: u64) -> bool {
        self.stalled = if taken > 0 { Duration::ZERO } else { self.stalled + waited };
        self.waited += waited;
        self.taken += taken;
        let mut enough = self.stalled < STALL_TIME;
        if self.waited >= RATE_WINDOW {
            enough &=
                u128::from(self.taken) * 1000 >= u128::from(self.least) * self.waited.as_millis();
            (self.waited, self.taken) = (Duration::ZERO, 0);
        }
        enough
    }
}

/// A connection with a least rate. Sends fail with [`TooSlow`] when the peer falls below it; all else
/// is done with the connection itself.
pub(crate) struct Paced<'a, C> {
    /// The connection, for calls that send nothing: sends by it have no minimum rate, and are not logged.
    pub(crate) inner: &'a mut C,
    pace: Pace,
    /// The bytes of the response that is under way.
    sent: Sent,
}

impl<'a, C: Connection> Paced<'a, C> {
    /// `least`: bytes in a second; 0: one byte within [`STALL_TIME`].
    pub(crate) fn new(inner: &'a mut C, least: u64) -> Self {
        Self { inner, pace: Pace::new(least), sent: Sent::default() }
    }

    /// Takes the count of bytes sent since the last call.
    pub(crate) fn take_sent(&mut self) -> Sent {
        std::mem::take(&mut self.sent)
    }

    /// Begins a response: the bytes that are to be sent first.
    pub(crate) fn begin(&mut self, head: Head) -> Vec<u8> {
        let (status, bytes) = head.finish();
        self.sent.begin(status.0, bytes.len());
        bytes
    }

    /// Queues bytes by copy; returns how many.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.timed(|inner| inner.write(bytes))
    }

    /// Queues bytes from the front of `frags` by reference; returns how many.
    pub(crate) fn send_frags(&mut self, frags: &mut FragVec) -> io::Result<usize> {
        self.timed(|inner| inner.send_frags(frags))
    }

    fn timed(&mut self, send: impl FnOnce(&mut C) -> io::Result<usize>) -> io::Result<usize> {
        let begun = self.inner.now();
        let sent = send(self.inner);
        let waited = self.inner.now().saturating_duration_since(begun);
        let taken = match &sent {
            Ok(n) => *n as u64,
            Err(e) if is_timeout(e) || e.kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => return sent,
        };
        if !self.pace.enough(waited, taken) {
            return Err(io::Error::other(TooSlow));
        }
        let n = sent?;
        self.sent.note(n);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Duration = Duration::from_millis(500);

    /// How long a peer may go on that takes `taken` bytes every half second; at most an hour.
    fn borne(least: u64, taken: impl Fn(u32) -> u64) -> Option<Duration> {
        let mut pace = Pace::new(least);
        (1..=7200).find(|&turn| !pace.enough(TURN, taken(turn))).map(|turn| TURN * turn)
    }

    #[test]
    fn a_peer_below_the_rate_is_given_up_after_a_window_however_regular_it_is() {
        assert_eq!(borne(1000, |_| 499), Some(RATE_WINDOW));
        assert_eq!(borne(1000, |_| 1), Some(RATE_WINDOW));
        assert_eq!(borne(1000, |_| 500), None);
    }

    #[test]
    fn the_rate_is_an_average() {
        let turns = (RATE_WINDOW.as_millis() / TURN.as_millis()) as u32;
        let all_at_once = |turn: u32| if turn % turns == 5 { 500 * u64::from(turns) } else { 0 };
        assert_eq!(borne(1000, all_at_once), None);
        // Bytes taken early do not count later.
        let only_at_first = |turn: u32| if turn == 1 { 1 << 30 } else { 1 };
        assert_eq!(borne(1000, only_at_first), Some(RATE_WINDOW * 2));
    }

    #[test]
    fn without_a_rate_a_byte_now_and_then_is_enough_and_silence_is_not() {
        assert_eq!(borne(0, |turn| u64::from(turn.is_multiple_of(50))), None);
        assert_eq!(borne(0, |_| 0), Some(STALL_TIME));
    }
}
