//! The queue in front of a line's rate: its length, and its congestion signals.
//!
//! The queue is first in, first out and its rate is fixed, so the time at which a frame leaves is known
//! when it enters: every decision is made then, as a router makes it when it sends.

use std::collections::VecDeque;
use std::time::Duration;

use pagewire_mem::Instant;

use super::config::{Aqm, FaultConfig};
use crate::limits::{CODEL_INTERVAL, CODEL_TARGET};

/// Frames that wait for the rate.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    /// When each frame leaves, and its bytes; the first in front.
    waiting: VecDeque<(Instant, usize)>,
    bytes: usize,
    /// When the last frame leaves.
    busy_until: Instant,
    codel: Codel,
}

/// The decision for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send {
        /// When its last bit is sent.
        left: Instant,
        /// How long the frame waits for its first bit.
        waited: Duration,
        /// The frame is to be marked: the queue is too long.
        congested: bool,
    },
    Full,
    /// There is room, but the queue has been too long for too long, and a mark would not be read.
    Early,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            bytes: 0,
            busy_until: Instant::ZERO,
            codel: Codel::default(),
        }
    }

    /// A frame of `bytes` bytes, whose receiver reads marks if `capable`.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        bytes: usize,
        capable: bool,
        config: &FaultConfig,
    ) -> Verdict {
        let Some(rate) = config.rate else {
            return Verdict::Send { left: now, waited: Duration::ZERO, congested: false };
        };
        while let Some(&(_, gone)) = self.waiting.front().filter(|(left, _)| *left <= now) {
            self.bytes -= gone;
            self.waiting.pop_front();
        }
        let room = config.limit_bytes.is_none_or(|most| self.bytes + bytes <= most);
        // An empty queue takes a frame of any length, or it would never be sent.
        if self.waiting.len() >= config.limit || !room && !self.waiting.is_empty() {
            return Verdict::Full;
        }
        let ns = (bytes as u128 * 8 * 1_000_000_000).div_ceil(u128::from(rate));
        let time = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        let starts = self.busy_until.max(now);
        let waited = starts.saturating_since(now);
        let congested = match config.aqm {
            Aqm::None => false,
            Aqm::Mark { above } => capable && waited > above,
            Aqm::Codel => self.codel.is_too_long(starts, waited, time),
        };
        if congested && !capable {
            return Verdict::Early;
        }
        self.busy_until = starts + time;
        self.bytes += bytes;
        self.waiting.push_back((self.busy_until, bytes));
        Verdict::Send { left: self.busy_until, waited, congested }
    }
}

/// Controlled delay (RFC 8289): while a queue stays long, marks or drops more and more often.
#[derive(Clone, Debug, Default)]
struct Codel {
    /// When the queue will have been too long for an interval; `None`: it is short.
    first_above: Option<Instant>,
    /// Frames are being marked or dropped.
    telling: bool,
    /// When the next one is.
    next: Instant,
    /// Frames marked or dropped since the queue got long.
    count: u64,
    /// `count` when this began last.
    last_count: u64,
}

impl Codel {
    /// Called for each frame in order, as it leaves; `true`: mark or drop this one.
    fn is_too_long(&mut self, now: Instant, waited: Duration, own_time: Duration) -> bool {
        // > RFC 8289 section 5.6: if (r.sojourn_time < TARGET || bytes() <= maxpacket)
        //
        // The second for links so slow that one frame takes longer than the target.
        let short = waited < CODEL_TARGET.max(own_time);
        let long_for_long = match self.first_above {
            _ if short => {
                self.first_above = None;
                false
            }
            None => {
                self.first_above = Some(now + CODEL_INTERVAL);
                false
            }
            Some(at) => now >= at,
        };
        if !long_for_long {
            self.telling = false;
            return false;
        }
        if self.telling {
            if now < self.next {
                return false;
            }
            self.count += 1;
            self.next += control_law(self.count);
            return true;
        }
        // > 5.6: If min went above TARGET close to when it last went below, assume that the drop
        // > rate that controlled the queue on the last cycle is a good starting point
        let recently = now.saturating_since(self.next) < 16 * CODEL_INTERVAL;
        let delta = self.count - self.last_count;
        self.telling = true;
        self.count = if delta > 1 && recently { delta } else { 1 };
        self.last_count = self.count;
        self.next = now + control_law(self.count);
        true
    }
}

/// > RFC 8289 section 5.6: return t + INTERVAL / sqrt(count)
fn control_law(count: u64) -> Duration {
    let interval = CODEL_INTERVAL.as_nanos() as u64;
    Duration::from_nanos((interval * interval / count.max(1)).isqrt())
}
