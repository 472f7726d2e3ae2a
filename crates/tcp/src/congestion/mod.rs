//! Congestion control: how many bytes may be in flight.
//!
//! Read [`Congestion`] first: slow start, the timeout, undo and the restart after idling are the
//! same for all. What differs, growth in congestion avoidance and the cut after a loss, is in
//! [`newreno`] and [`cubic`]. Loss is detected elsewhere; retransmission too.
//!
//! ```text
//!            on_ack (cwnd < ssthresh)              on_ack (cwnd >= ssthresh)
//!                 +------+                              +------+
//!                 v      |                              v      |
//!     new --> slow start ---- cwnd reaches ssthresh --> congestion avoidance
//!                 ^  \___________ on_loss ____________>    |     ^
//!                 |                                        |     | on_recovery_exit
//!              on_rto <--- on_rto ------ recovery <--- on_loss   |
//!                                           \____________________/
//! ```

mod cubic;
mod newreno;

use core::time::Duration;

use pagewire_mem::Instant;

use crate::limits::{MAX_CONGESTION_WINDOW, MAX_MSS};
use crate::rtt::RttEstimator;
use cubic::Cubic;
use newreno::NewReno;

/// Which algorithm a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CongestionKind {
    /// RFC 9438, as in Linux.
    #[default]
    Cubic,
    /// RFC 5681.
    NewReno,
}

/// What every algorithm works on, in bytes.
#[derive(Clone, Copy, Debug)]
struct Window {
    cwnd: u32,
    ssthresh: u32,
    /// The sender's maximum segment size: payload in one segment on the wire.
    mss: u32,
}

/// The congestion window and the algorithm that moves it.
#[derive(Clone, Debug)]
pub(crate) struct Congestion {
    window: Window,
    /// Window and threshold before the last cut, for [`undo`](Self::undo).
    before: Option<(u32, u32)>,
    algorithm: Algorithm,
    /// Segments in the initial window.
    initial_segments: u8,
    /// Nothing has moved the window yet.
    untouched: bool,
    /// The timer has gone off, and nothing was acknowledged since.
    timed_out: bool,
}

#[derive(Clone, Debug)]
enum Algorithm {
    Cubic(Cubic),
    NewReno(NewReno),
}

impl Congestion {
    /// In slow start, with a window of `initial_segments` (RFC 6928: 10) of `mss` bytes.
    ///
    /// RFC 6928 section 2 bounds the initial window by max(2*MSS, 14600) bytes; Linux does not,
    /// and neither do we: it would cripple links with a large MTU, and differs on no other.
    pub(crate) fn new(kind: CongestionKind, mss: u32, initial_segments: u32) -> Self {
        let algorithm = match kind {
            CongestionKind::Cubic => Algorithm::Cubic(Cubic::new()),
            CongestionKind::NewReno => Algorithm::NewReno(NewReno::default()),
        };
        let mss = mss.clamp(1, MAX_MSS);
        // > RFC 5681 section 3.1: The initial value of ssthresh SHOULD be set arbitrarily high
        let window = Window { cwnd: 0, ssthresh: u32::MAX, mss };
        let mut congestion = Self {
            window,
            before: None,
            algorithm,
            initial_segments: initial_segments.clamp(1, 255) as u8,
            untouched: true,
            timed_out: false,
        };
        congestion.window.cwnd = congestion.initial_window();
        congestion
    }

    /// The congestion window, in bytes.
    pub(crate) fn cwnd(&self) -> u32 {
        self.window.cwnd
    }

    /// The slow-start threshold, in bytes; `u32::MAX` before the first loss.
    pub(crate) fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }

    /// Whether the window still grows exponentially.
    pub(crate) fn in_slow_start(&self) -> bool {
        self.window.cwnd < self.window.ssthresh
    }

    /// Which algorithm this is.
    pub(crate) fn kind(&self) -> CongestionKind {
        match self.algorithm {
            Algorithm::Cubic(_) => CongestionKind::Cubic,
            Algorithm::NewReno(_) => CongestionKind::NewReno,
        }
    }

    /// Whether a sender that had at most `max_flight` bytes outstanding in the last round trip was
    /// held back by the window; only then may it grow.
    ///
    /// > RFC 9438 section 5.8: A flow is application limited if it is currently sending less than
    /// > what is allowed by the congestion window. [...] it is recommended that cwnd is not
    /// > increased
    ///
    /// In slow start half a window is enough, as in Linux: the window must be allowed to lead.
    pub(crate) fn is_limiting(&self, max_flight: u32) -> bool {
        let Window { cwnd, mss, .. } = self.window;
        if self.in_slow_start() {
            cwnd < max_flight.saturating_mul(2)
        } else {
            max_flight.saturating_add(mss) > cwnd
        }
    }

    /// New data was acknowledged, outside of recovery: `acked` bytes of the `_flight` that were
    /// outstanding. `cwnd_limited` as from [`is_limiting`](Self::is_limiting).
    ///
    /// Not used by the algorithms here: `_flight`, which those that model the path ask for.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        acked: u32,
        _flight: u32,
        rtt: &RttEstimator,
        cwnd_limited: bool,
    ) {
        self.timed_out = false;
        if !cwnd_limited {
            if let Algorithm::Cubic(cubic) = &mut self.algorithm {
                cubic.on_application_limited(now);
            }
            return;
        }
        self.untouched = false;
        let mut acked = acked.min(MAX_CONGESTION_WINDOW);
        if self.in_slow_start() {
            // > RFC 5681 section 3.1: During slow start, a TCP increments cwnd by at most SMSS
            // > bytes for each ACK received that cumulatively acknowledges new data.
            // > RFC 3465 section 2.2 (ABC): cwnd is increased by the number of bytes acknowledged
            //
            // As in Linux without RFC 3465's limit of 2*SMSS for each ACK: one acknowledgement
            // stands for a whole super-frame, and a limit would end the exponential growth.
            let room = self.window.ssthresh - self.window.cwnd;
            let grow = acked.min(room);
            self.window.cwnd = self.window.cwnd.saturating_add(grow).min(MAX_CONGESTION_WINDOW);
            acked -= grow;
            if acked == 0 || self.in_slow_start() {
                return;
            }
        }
        let cwnd = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => {
                cubic.increase(self.window, now, acked, rtt.srtt().unwrap_or_default())
            }
            Algorithm::NewReno(newreno) => newreno.increase(self.window, acked),
        };
        self.window.cwnd = cwnd.min(MAX_CONGESTION_WINDOW);
    }

    /// A loss was detected by acknowledgements: enters fast recovery. `flight` is what was sent
    /// and not yet cumulatively acknowledged (RFC 5681's FlightSize).
    pub(crate) fn on_loss(&mut self, _now: Instant, flight: u32) {
        self.save_and_cut(flight);
        // > RFC 5681 section 3.2 step 3 and RFC 6675 section 5 step 4.2: ssthresh = cwnd =
        // > (FlightSize / 2)
        self.window.cwnd = self.window.ssthresh;
    }

    /// The peer echoed a congestion mark (RFC 3168), for the first time in this window.
    ///
    /// > RFC 9438 section 4.6: CUBIC MUST continue to reduce cwnd in response to congestion events
    /// > detected by ECN-Echo ACKs until it reaches a value of 1 SMSS.
    pub(crate) fn on_ecn_echo(&mut self, _now: Instant, flight: u32) {
        let cwnd = self.window.cwnd;
        self.save_and_cut(flight);
        let target = match self.algorithm {
            Algorithm::Cubic(_) => cubic::beta(cwnd),
            Algorithm::NewReno(_) => cwnd / 2,
        };
        self.window.cwnd = self.window.ssthresh.min(target).max(self.window.mss);
    }

    /// Recovery ended: everything that was outstanding when it began has been acknowledged.
    pub(crate) fn on_recovery_exit(&mut self, _now: Instant) {
        // > RFC 6582 section 3.2 step 3: Set cwnd to [...] (2) ssthresh, where ssthresh is the
        // > value set when fast retransmit was entered; this is termed "deflating" the window.
        self.set_cwnd(self.window.ssthresh);
    }

    /// The retransmission timer went off.
    pub(crate) fn on_rto(&mut self, _now: Instant, flight: u32) {
        // > RFC 5681 section 3.1: when a TCP sender detects segment loss using the retransmission
        // > timer and the given segment has already been retransmitted by way of the
        // > retransmission timer at least once, the value of ssthresh is held constant.
        if !self.timed_out {
            self.save_and_cut(flight);
            if let Algorithm::Cubic(cubic) = &mut self.algorithm {
                cubic.on_timeout();
            }
        }
        self.timed_out = true;
        // > RFC 5681 section 3.1: upon a timeout [...] cwnd MUST be set to no more than the loss
        // > window, LW, which equals 1 full-sized segment
        self.window.cwnd = self.window.mss;
    }

    /// The SYN, or its acknowledgement, had to be sent again.
    ///
    /// > RFC 5681 section 3.1: if the SYN or SYN/ACK is lost, the initial window used by a sender
    /// > after a correctly transmitted SYN MUST be one segment consisting of at most SMSS bytes.
    pub(crate) fn on_syn_lost(&mut self) {
        self.initial_segments = 1;
        if self.untouched {
            self.window.cwnd = self.window.mss;
        }
    }

    /// Takes back the last cut: the loss was none (RFC 5682, RFC 9438 section 4.9).
    ///
    /// > RFC 9438 section 4.9.2: restore the original values [...] if the current cwnd is lower
    /// > than cwnd_prior.
    pub(crate) fn undo(&mut self, _now: Instant) {
        let Some((cwnd, ssthresh)) = self.before.take() else { return };
        self.timed_out = false;
        if self.window.cwnd < cwnd {
            self.window.cwnd = cwnd;
            self.window.ssthresh = ssthresh;
            if let Algorithm::Cubic(cubic) = &mut self.algorithm {
                cubic.undo();
            }
        }
    }

    /// Data is about to be sent after nothing was outstanding for `idle`.
    ///
    /// > RFC 5681 section 4.1: a TCP SHOULD set cwnd to no more than RW before beginning
    /// > transmission if the TCP has not sent data in an interval exceeding the retransmission
    /// > timeout.
    ///
    /// As in Linux (and RFC 2861), by halves: one for each timeout that has passed.
    pub(crate) fn on_restart_after_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.on_application_limited(now);
        }
        let halvings = idle.as_nanos() / rto.as_nanos().max(1);
        let restart = self.initial_window().min(self.window.cwnd);
        if halvings == 0 || self.window.cwnd <= restart {
            return;
        }
        let cwnd = self.window.cwnd;
        // What the path carried before is a good guess at where to become careful.
        if self.window.ssthresh != u32::MAX {
            self.window.ssthresh = self.window.ssthresh.max(cwnd - cwnd / 4);
        }
        let halved = cwnd.checked_shr(halvings.min(32) as u32).unwrap_or(0);
        self.window.cwnd = halved.max(restart);
    }

    /// The payload of a full segment has changed: options agreed, or a new path MTU.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.window.mss = mss.clamp(1, MAX_MSS);
        self.window.cwnd = if self.untouched {
            self.initial_window()
        } else {
            self.window.cwnd.max(self.window.mss)
        };
    }

    /// Sets the window during recovery: for rate reduction (RFC 6937), and for the inflation of
    /// recovery without SACK (RFC 5681 section 3.2 step 4).
    pub(crate) fn set_cwnd(&mut self, cwnd: u32) {
        self.window.cwnd = cwnd.clamp(self.window.mss, MAX_CONGESTION_WINDOW);
    }

    fn initial_window(&self) -> u32 {
        self.window.mss.saturating_mul(u32::from(self.initial_segments)).min(MAX_CONGESTION_WINDOW)
    }

    fn save_and_cut(&mut self, flight: u32) {
        self.untouched = false;
        self.before = Some((self.window.cwnd, self.window.ssthresh));
        self.window.ssthresh = match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.decrease(self.window),
            Algorithm::NewReno(newreno) => newreno.decrease(self.window, flight),
        };
    }
}

#[cfg(test)]
mod tests;
