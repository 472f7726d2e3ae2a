//! Congestion control: how many wire segments may be in flight.
//!
//! Read [`Congestion`] first: it has what all algorithms share, and NewReno. [`cubic`] has CUBIC's
//! growth in congestion avoidance and the cut after a loss; [`hystart`] ends slow start before a
//! loss. `recovery` detects losses and reduces the window.
//!
//! ```text
//!            on_ack (cwnd < ssthresh)              on_ack (cwnd >= ssthresh)
//!                 +------+                              +------+
//!                 v      |                              v      |
//!     new --> slow start ---- cwnd reaches ssthresh --> congestion avoidance
//!                  \____ cut ___> rate reduction, set_cwnd <____ cut __/
//! ```
//!
//! As in Linux everything is counted in wire segments, not in bytes: a segment of one byte costs
//! the network about as much as a full one, and half a segment cannot be sent.

mod cubic;
mod hystart;

use core::time::Duration;

use cubic::Cubic;
use hystart::HyStart;
use pagewire_mem::Instant;

pub use hystart::SlowStartExit;

use crate::limits::{HYSTART_LOW_WINDOW, MAX_CONGESTION_WINDOW};
use crate::seq::Seq;

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CongestionKind {
    /// RFC 9438, as in Linux.
    #[default]
    Cubic,
    /// RFC 5681.
    NewReno,
}

/// A threshold that was never set (Linux's value).
pub(crate) const INFINITE: u32 = 0x7fff_ffff;

/// The congestion window and the algorithm that moves it, in wire segments.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    cwnd: u32,
    ssthresh: u32,
    /// The shortest round trip ever, in microseconds; 0: none yet.
    delay_min: u32,
    /// Segments in the initial window.
    initial: u8,
    kind: CongestionKind,
    exit: SlowStartExit,
    /// Nothing has moved the window yet.
    untouched: bool,
    /// Present once slow start has a large window, or has ended.
    growth: Option<Box<Growth>>,
}

/// State of a window that has grown or was cut. Boxed, as a connection with little to send never has it.
#[derive(Clone, Debug, Default)]
struct Growth {
    /// Segments acknowledged towards the next step.
    credit: u32,
    /// Unused by NewReno.
    cubic: Cubic,
    hystart: HyStart,
}

impl Congestion {
    /// In slow start, with a window of `initial` segments (RFC 6928: 10).
    ///
    /// RFC 6928 section 2 bounds the initial window by max(2*MSS, 14600) bytes. As in Linux there
    /// is no such bound: it matters only on links with a large MTU, which it would slow down.
    pub(crate) fn new(kind: CongestionKind, initial: u32, exit: SlowStartExit) -> Self {
        let initial = initial.clamp(1, 255);
        Self {
            cwnd: initial,
            // > RFC 5681 section 3.1: The initial value of ssthresh SHOULD be set arbitrarily high
            ssthresh: INFINITE,
            delay_min: 0,
            initial: initial as u8,
            kind,
            exit,
            untouched: true,
            growth: None,
        }
    }

    pub(crate) fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// The slow-start threshold; [`INFINITE`] before the first loss.
    pub(crate) fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    pub(crate) fn has_ssthresh(&self) -> bool {
        self.ssthresh < INFINITE
    }

    pub(crate) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    pub(crate) fn kind(&self) -> CongestionKind {
        self.kind
    }

    /// The state of CUBIC, if that is the algorithm and has any.
    fn cubic(&mut self) -> Option<&mut Cubic> {
        let growth = self.growth.as_deref_mut().filter(|_| self.kind == CongestionKind::Cubic)?;
        Some(&mut growth.cubic)
    }

    /// The connection is idle: frees state of a slow start that has not ended.
    pub(crate) fn shrink(&mut self) {
        if !self.has_ssthresh() {
            self.growth = None;
        }
    }

    /// Changes the algorithm and keeps the window.
    pub(crate) fn change(&mut self, kind: CongestionKind) {
        let changes = kind != self.kind;
        self.kind = kind;
        if let Some(growth) = self.growth.as_deref_mut().filter(|_| changes) {
            growth.cubic = Cubic::default();
        }
    }

    /// A round trip was measured, before the window grows: slow start may end.
    pub(crate) fn on_rtt(&mut self, now: Instant, rtt: Duration, una: Seq, nxt: Seq) {
        // As Linux: a sample right after a loss measures a full queue that drains.
        if self.cubic().is_some_and(|cubic| cubic.began_lately(now)) {
            return;
        }
        let rtt = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX).clamp(1, 1 << 30);
        if self.delay_min == 0 || rtt < self.delay_min {
            self.delay_min = rtt;
        }
        if !self.in_slow_start() || self.cwnd < HYSTART_LOW_WINDOW {
            return;
        }
        let growth = self.growth.get_or_insert_default();
        if growth.hystart.on_rtt(self.exit, rtt, self.delay_min, una, nxt) {
            self.ssthresh = self.cwnd;
        }
    }

    /// `acked` segments were delivered, outside of recovery, and the window was the limit.
    pub(crate) fn on_ack(&mut self, now: Instant, mut acked: u32) {
        self.untouched = false;
        acked = acked.min(MAX_CONGESTION_WINDOW);
        if self.in_slow_start() {
            // > RFC 5681 section 3.1: we RECOMMEND that TCP implementations increase cwnd, per:
            // > cwnd += min (N, SMSS) where N is the number of previously unacknowledged bytes
            // > acknowledged in the incoming ACK. This adjustment is part of Appropriate Byte
            // > Counting [RFC3465]
            //
            // As in Linux by all of N, without the limit of one or (RFC 3465) two segments for
            // each ACK: one stands for a whole super-frame, and growth would not be exponential.
            let room = self.ssthresh - self.cwnd;
            let grow = match &mut self.growth {
                Some(growth) => growth.hystart.slow_start_growth(acked),
                None => acked,
            };
            let grow = grow.min(room);
            self.set_cwnd(self.cwnd.saturating_add(grow));
            acked = acked.saturating_sub(room);
            if acked == 0 || self.in_slow_start() {
                return;
            }
        }
        let growth = self.growth.get_or_insert_default();
        let per_step = match self.kind {
            CongestionKind::Cubic => {
                growth.cubic.acks_per_step(self.cwnd, now, acked, self.delay_min)
            }
            CongestionKind::NewReno => self.cwnd,
        };
        let grow = growth.step(per_step.max(1), acked);
        self.set_cwnd(self.cwnd.saturating_add(grow));
    }

    /// Segments were delivered while the window was not the limit: it does not grow.
    pub(crate) fn on_application_limited(&mut self, now: Instant) {
        if let Some(cubic) = self.cubic() {
            cubic.on_application_limited(now);
        }
    }

    /// A congestion event: sets the threshold. `flight` is RFC 5681's FlightSize, in segments.
    pub(crate) fn cut(&mut self, flight: u32) {
        self.untouched = false;
        let growth = self.growth.get_or_insert_default();
        growth.credit = 0;
        self.ssthresh = match self.kind {
            CongestionKind::Cubic => growth.cubic.decrease(self.cwnd),
            // > RFC 5681 section 3.1: ssthresh = max (FlightSize / 2, 2*SMSS) (4) [...] Implementation
            // > Note: An easy mistake to make is to simply use cwnd, rather than FlightSize
            CongestionKind::NewReno => (flight / 2).max(2),
        };
    }

    /// The cut was for a timeout: forgets what it knows of the path.
    pub(crate) fn on_timeout(&mut self) {
        if let Some(cubic) = self.cubic() {
            cubic.on_timeout();
        }
        // Slow start begins again.
        if let Some(growth) = &mut self.growth {
            growth.hystart = HyStart::default();
        }
    }

    /// The SYN or its acknowledgement was retransmitted, or marked (RFC 3168).
    ///
    /// > RFC 5681 section 3.1: if the SYN or SYN/ACK is lost, the initial window used by a sender
    /// > after a correctly transmitted SYN MUST be one segment consisting of at most SMSS bytes.
    pub(crate) fn on_syn_lost(&mut self) {
        if self.untouched {
            self.cwnd = 1;
        }
    }

    /// Undoes the last cut (RFC 5682, RFC 9438 section 4.9); whether the threshold was restored.
    ///
    /// > RFC 9438 section 4.9.2: CUBIC MAY restore the original values of the above-mentioned
    /// > variables as follows if the current cwnd is lower than cwnd_prior.
    pub(crate) fn undo(&mut self, prior_cwnd: u32, prior_ssthresh: u32) -> bool {
        if self.cwnd < prior_cwnd
            && let Some(cubic) = self.cubic()
        {
            cubic.undo();
        }
        self.cwnd = self.cwnd.max(prior_cwnd);
        let restored = prior_ssthresh > self.ssthresh;
        if restored {
            self.ssthresh = prior_ssthresh;
        }
        restored
    }

    /// Data is about to be sent, nothing is in flight, and nothing was sent since `last`.
    pub(crate) fn on_transmit_start(&mut self, now: Instant, last: Instant) {
        if let Some(cubic) = self.cubic() {
            cubic.skip_idle(now, last);
        }
    }

    /// Data is about to be sent after nothing was outstanding for `idle`.
    ///
    /// > RFC 5681 section 4.1: a TCP SHOULD set cwnd to no more than RW before beginning
    /// > transmission if the TCP has not sent data in an interval exceeding the retransmission
    /// > timeout.
    ///
    /// As in Linux (and RFC 2861), by halves: one for each timeout that has passed.
    pub(crate) fn on_restart_after_idle(&mut self, idle: Duration, rto: Duration) {
        let restart = u32::from(self.initial).min(self.cwnd);
        // The window before is a good estimate of the threshold.
        self.ssthresh = self.ssthresh.max(self.cwnd / 2 + self.cwnd / 4);
        let mut left = idle.saturating_sub(rto);
        let mut cwnd = self.cwnd;
        while !left.is_zero() && cwnd > restart {
            cwnd /= 2;
            left = left.saturating_sub(rto);
        }
        self.cwnd = cwnd.max(restart);
    }

    /// Sets the window, for rate reduction (RFC 6937).
    pub(crate) fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd.clamp(1, MAX_CONGESTION_WINDOW);
    }

    pub(crate) fn set_ssthresh(&mut self, ssthresh: u32) {
        self.ssthresh = ssthresh.clamp(2, INFINITE);
    }
}

impl Growth {
    /// By how many segments the window grows: one for every `per_step` acknowledged.
    ///
    /// > RFC 5681 section 3.1: count the number of bytes that have been acknowledged by ACK segments
    /// > for new data. [...] when the number of bytes acknowledged reaches cwnd, then cwnd can be
    /// > incremented by up to SMSS bytes.
    fn step(&mut self, per_step: u32, acked: u32) -> u32 {
        // Credit from a slower pace is good for one step.
        let early = self.credit >= per_step;
        if early {
            self.credit = 0;
        }
        self.credit = self.credit.saturating_add(acked);
        let steps = self.credit / per_step;
        self.credit %= per_step;
        steps.saturating_add(u32::from(early))
    }
}

#[cfg(test)]
mod tests;
