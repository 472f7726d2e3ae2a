//! The end of slow start before a loss: the round trip grows, so a queue grows.
//!
//! Two algorithms: Linux's HyStart, which leaves slow start at once, and HyStart++ (RFC 9406),
//! which first grows more slowly for some round trips, and resumes if the delay was temporary. Of
//! Linux's two criteria only the delay is used; RFC 9406 dropped the length of acknowledgement
//! trains, because acknowledgements come in bursts for many reasons.

use crate::limits::{
    CSS_GROWTH_DIVISOR, CSS_ROUNDS, HYSTART_MAX_RISE_US, HYSTART_MIN_RISE_US, HYSTART_SAMPLES,
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

/// Rounds of slow start with a large window. Round trips are in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
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
    /// Slow start has been left; until a timeout.
    found: bool,
    /// A round has begun.
    begun: bool,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            current: u32::MAX,
            last: u32::MAX,
            baseline: u32::MAX,
            end: Seq(0),
            samples: 0,
            css_rounds: 0,
            css_credit: 0,
            found: false,
            begun: false,
        }
    }
}

impl HyStart {
    /// A round trip was measured in slow start; the shortest ever was `delay_min`. Whether slow start is over.
    pub(super) fn on_rtt(
        &mut self,
        exit: SlowStartExit,
        rtt: u32,
        delay_min: u32,
        una: Seq,
        nxt: Seq,
    ) -> bool {
        if self.found {
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
        self.found = match exit {
            SlowStartExit::Loss => false,
            SlowStartExit::HyStart => enough && self.current > delay_min + rise(delay_min),
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
