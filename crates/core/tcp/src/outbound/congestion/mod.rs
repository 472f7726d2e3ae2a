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

use crate::limits::MAX_CONGESTION_WINDOW;
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
    /// Segments acknowledged towards the next step.
    credit: u32,
    algorithm: Algorithm,
    hystart: HyStart,
    /// Segments in the initial window.
    initial: u8,
    /// Nothing has moved the window yet.
    untouched: bool,
}

#[derive(Clone, Debug)]
enum Algorithm {
    Cubic(Cubic),
    NewReno,
}

impl Algorithm {
    fn new(kind: CongestionKind) -> Self {
        match kind {
            CongestionKind::Cubic => Self::Cubic(Cubic::default()),
            CongestionKind::NewReno => Self::NewReno,
        }
    }
}

impl Congestion {
    /// In slow start, with a window of `initial` segments (RFC 6928: 10).
    ///
    /// RFC 6928 section 2 bounds the initial window by max(2*MSS, 14600) bytes. As in Linux there
    /// is no such bound: it matters only on links with a large MTU, which it would slow down.
    pub(crate) fn new(kind: CongestionKind, initial: u32, exit: SlowStartExit) -> Self {
        let algorithm = Algorithm::new(kind);
        let initial = initial.clamp(1, 255);
        Self {
            cwnd: initial,
            // > RFC 5681 section 3.1: The initial value of ssthresh SHOULD be set arbitrarily high
            ssthresh: INFINITE,
            credit: 0,
            algorithm,
            hystart: HyStart::new(exit),
            initial: initial as u8,
            untouched: true,
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
        match self.algorithm {
            Algorithm::Cubic(_) => CongestionKind::Cubic,
            Algorithm::NewReno => CongestionKind::NewReno,
        }
    }

    /// Changes the algorithm and keeps the window.
    pub(crate) fn change(&mut self, kind: CongestionKind) {
        if kind != self.kind() {
            self.algorithm = Algorithm::new(kind);
        }
    }

    /// A round trip was measured, before the window grows: slow start may end.
    pub(crate) fn on_rtt(&mut self, now: Instant, rtt: Duration, una: Seq, nxt: Seq) {
        // As Linux: a sample right after a loss measures a full queue that drains.
        if let Algorithm::Cubic(cubic) = &self.algorithm
            && cubic.began_lately(now)
        {
            return;
        }
        let slow_start = self.in_slow_start();
        if self.hystart.on_rtt(rtt, una, nxt, self.cwnd, slow_start) {
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
            let grow = self.hystart.slow_start_growth(acked).min(room);
            self.set_cwnd(self.cwnd.saturating_add(grow));
            acked = acked.saturating_sub(room);
            if acked == 0 || self.in_slow_start() {
                return;
            }
        }
        let per_step = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => {
                cubic.acks_per_step(self.cwnd, now, acked, self.hystart.delay_min())
            }
            Algorithm::NewReno => self.cwnd,
        };
        self.step(per_step.max(1), acked);
    }

    /// Segments were delivered while the window was not the limit: it does not grow.
    pub(crate) fn on_application_limited(&mut self, now: Instant) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.on_application_limited(now);
        }
    }

    /// Grows the window by a segment for every `per_step` acknowledged.
    ///
    /// > RFC 5681 section 3.1: count the number of bytes that have been acknowledged by ACK segments
    /// > for new data. [...] when the number of bytes acknowledged reaches cwnd, then cwnd can be
    /// > incremented by up to SMSS bytes.
    fn step(&mut self, per_step: u32, acked: u32) {
        let mut cwnd = self.cwnd;
        // Credit from a slower pace is good for one step.
        if self.credit >= per_step {
            self.credit = 0;
            cwnd += 1;
        }
        self.credit = self.credit.saturating_add(acked);
        cwnd = cwnd.saturating_add(self.credit / per_step);
        self.credit %= per_step;
        self.set_cwnd(cwnd);
    }

    /// A congestion event: sets the threshold. `flight` is RFC 5681's FlightSize, in segments.
    pub(crate) fn cut(&mut self, flight: u32) {
        self.untouched = false;
        self.credit = 0;
        self.ssthresh = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.decrease(self.cwnd),
            // > RFC 5681 section 3.1: ssthresh = max (FlightSize / 2, 2*SMSS) (4) [...] Implementation
            // > Note: An easy mistake to make is to simply use cwnd, rather than FlightSize
            Algorithm::NewReno => (flight / 2).max(2),
        };
    }

    /// The cut was for a timeout: forgets what it knows of the path.
    pub(crate) fn on_timeout(&mut self) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.on_timeout();
        }
        self.hystart.restart();
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
            && let Algorithm::Cubic(cubic) = &mut self.algorithm
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
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
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

#[cfg(test)]
mod tests;
