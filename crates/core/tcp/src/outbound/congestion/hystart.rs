//! The end of slow start before a loss: the round trip grows, so a queue grows.
//!
//! Two algorithms: Linux's HyStart, which leaves slow start at once, and HyStart++ (RFC 9406),
//! which first grows more slowly for some round trips, and resumes if the delay was temporary. Of
//! Linux's two criteria only the delay is used; RFC 9406 dropped the length of acknowledgement
//! trains, because acknowledgements come in bursts for many reasons.

use core::time::Duration;

use crate::limits::{
    CSS_GROWTH_DIVISOR, CSS_ROUNDS, HYSTART_LOW_WINDOW, HYSTART_MAX_RISE_US, HYSTART_MIN_RISE_US,
    HYSTART_SAMPLES,
};
use crate::seq::Seq;

/// The event that ends slow start, beside a loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SlowStartExit {
    /// Nothing.
    Loss,
    /// A round trip longer than the shortest one by an eighth, in Linux's way.
    #[default]
    HyStart,
    /// RFC 9406.
    HyStartPlusPlus,
}

/// Round trips and how long they were, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HyStart {
    /// The shortest ever; 0: none yet.
    delay_min: u32,
    /// The shortest in this round, in the last, and in the first round of conservative slow start.
    current: u32,
    last: u32,
    baseline: u32,
    /// Acknowledged, it ends the round.
    end: Seq,
    /// Measured in this round, at most [`HYSTART_SAMPLES`].
    samples: u8,
    /// Rounds of conservative slow start so far; 0: not in it.
    css_rounds: u8,
    /// Segments acknowledged towards the next step in it.
    css_credit: u8,
    exit: SlowStartExit,
    /// Slow start has been left; until a timeout.
    found: bool,
    /// A round has begun.
    begun: bool,
}

impl HyStart {
    pub(super) fn new(exit: SlowStartExit) -> Self {
        let none = u32::MAX;
        Self { current: none, last: none, baseline: none, exit, ..Self::default() }
    }

    pub(super) const fn delay_min(&self) -> u32 {
        self.delay_min
    }

    /// After a timeout slow start begins again.
    pub(super) fn restart(&mut self) {
        *self = Self { delay_min: self.delay_min, ..Self::new(self.exit) };
    }

    /// A round trip was measured. Whether slow start is over.
    pub(super) fn on_rtt(
        &mut self,
        rtt: Duration,
        una: Seq,
        nxt: Seq,
        cwnd: u32,
        slow_start: bool,
    ) -> bool {
        let rtt = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX).clamp(1, 1 << 30);
        if self.delay_min == 0 || rtt < self.delay_min {
            self.delay_min = rtt;
        }
        if self.found || !slow_start || cwnd < HYSTART_LOW_WINDOW {
            return false;
        }
        if !self.begun || una.gt(self.end) {
            self.last = if self.begun { self.current } else { u32::MAX };
            self.begun = true;
            self.end = nxt;
            self.current = u32::MAX;
            self.samples = 0;
            if self.css_rounds > 0 {
                self.css_rounds += 1;
            }
        }
        self.current = self.current.min(rtt);
        let enough = self.samples >= HYSTART_SAMPLES;
        self.samples = (self.samples + 1).min(HYSTART_SAMPLES);
        self.found = match self.exit {
            SlowStartExit::Loss => false,
            SlowStartExit::HyStart => {
                enough && self.current > self.delay_min + rise(self.delay_min)
            }
            SlowStartExit::HyStartPlusPlus => self.plus_plus(enough),
        };
        self.found
    }

    /// > RFC 9406 section 4.2: For rounds where at least N_RTT_SAMPLE RTT samples have been obtained
    /// > and currentRoundMinRTT and lastRoundMinRTT are valid, check to see if delay increase triggers
    /// > slow start exit: RttThresh = max(MIN_RTT_THRESH, min(lastRoundMinRTT / MIN_RTT_DIVISOR,
    /// > MAX_RTT_THRESH)); if (currentRoundMinRTT >= (lastRoundMinRTT + RttThresh))
    /// > cssBaselineMinRtt = currentRoundMinRTT; exit slow start and enter CSS [...] For CSS rounds [...]
    /// > if (currentRoundMinRTT < cssBaselineMinRtt) cssBaselineMinRtt = infinity; resume slow start
    /// > including HyStart++. CSS lasts at most CSS_ROUNDS rounds. [...] If CSS_ROUNDS rounds are
    /// > complete, enter congestion avoidance by setting the ssthresh to the current cwnd.
    fn plus_plus(&mut self, enough: bool) -> bool {
        if self.css_rounds == 0 {
            if enough
                && self.last != u32::MAX
                && self.current >= self.last.saturating_add(rise(self.last))
            {
                self.baseline = self.current;
                self.css_rounds = 1;
            }
            return false;
        }
        if enough && self.current < self.baseline {
            self.baseline = u32::MAX;
            self.css_rounds = 0;
            return false;
        }
        self.css_rounds > CSS_ROUNDS
    }

    /// By how many segments the window grows in slow start when `acked` were acknowledged.
    ///
    /// > RFC 9406 section 4.2: For each arriving ACK in CSS [...] cwnd = cwnd + (min(N, L * SMSS) /
    /// > CSS_GROWTH_DIVISOR)
    pub(super) fn slow_start_growth(&mut self, acked: u32) -> u32 {
        if self.css_rounds == 0 {
            return acked;
        }
        let credit = u32::from(self.css_credit).saturating_add(acked);
        self.css_credit = (credit % CSS_GROWTH_DIVISOR) as u8;
        credit / CSS_GROWTH_DIVISOR
    }
}

/// The rise of the round trip that ends slow start: an eighth of it, within bounds.
fn rise(rtt: u32) -> u32 {
    (rtt / 8).clamp(HYSTART_MIN_RISE_US, HYSTART_MAX_RISE_US)
}
