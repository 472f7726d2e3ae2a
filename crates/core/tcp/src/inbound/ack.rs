//! The due acknowledgement: at once, delayed, or as an answer to a suspicious segment. `window.rs` decides
//! by the data that arrives; `connection/output.rs` sends it.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::limits::MAX_DUPLICATE_ACKS_DUE;
use crate::outbound::rtt::RttEstimator;
use crate::path::Path;
use crate::timer::Timer;

/// Longest delay of an acknowledgement in an exchange of requests and answers, as in Linux.
const MAX_DELAYED_ACK: Duration = Duration::from_millis(200);

/// Whether and when an acknowledgement is due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckState {
    pub(crate) due: AckDue,
    /// Acknowledgements due after the next, one for each segment beyond a gap, without SACK.
    pub(crate) duplicates: u8,
    /// Acknowledgements still to send without delay.
    pub(crate) quick: u8,
    /// The application answers what it reads, so acknowledgements leave with the answers (Linux's
    /// pingpong mode).
    pub(crate) pingpong: bool,
    /// The delay of an acknowledgement (ATO) in milliseconds, from the time between segments; 0 at
    /// first.
    pub(crate) ato_ms: u16,
    /// Short segments with PSH since the last acknowledgement, up to 2.
    pub(crate) pushed: u8,
    /// Delayed acknowledgement (RFC 9293 section 3.8.6.3).
    pub(crate) delayed_ack: Timer,
}

/// When an acknowledgement is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AckDue {
    #[default]
    No,
    /// When the timer fires, or on the next segment.
    Delayed,
    /// A challenge ACK, if the host's limit allows it.
    Challenge,
    Now,
}

impl AckState {
    /// Whether the timer of a delayed acknowledgement fires: then the acknowledgement is due.
    #[inline]
    pub(crate) fn pop(&mut self, path: &Path, rtt: &RttEstimator, now: Instant) -> bool {
        let popped = self.delayed_ack.pop(now);
        if popped && self.due == AckDue::Delayed {
            // No answer came, or the peer is slower.
            let least = path.least_ack_timeout();
            self.ato_ms = if self.pingpong {
                least
            } else {
                let rto = u16::try_from(rtt.rto().as_millis()).unwrap_or(u16::MAX);
                self.ato_ms.saturating_mul(2).min(rto).max(least)
            };
            self.pingpong = false;
            self.due = AckDue::Now;
        }
        popped
    }

    /// A challenge ACK leaves (`answers`), and a delayed one with it, or the limit forbids it.
    pub(crate) fn settle_challenge(&mut self, answers: bool) {
        self.due = match answers {
            true => AckDue::Now,
            false if self.delayed_ack.is_set() => AckDue::Delayed,
            false => AckDue::No,
        };
    }

    /// See [`Settings::set_quick_ack`](crate::Settings::set_quick_ack).
    pub(crate) fn set_quick_ack(&mut self, path: &Path, quick: bool) {
        self.pingpong = !quick;
        if quick {
            self.enter_quickack(path.config().quick_acks);
            if self.due == AckDue::Delayed {
                self.at_once();
            }
        }
    }

    pub(crate) fn delay(&mut self, path: &Path, rtt: &RttEstimator, now: Instant) {
        if self.due == AckDue::No {
            self.due = AckDue::Delayed;
            self.delayed_ack.set(now + self.ack_timeout(path, rtt));
        }
    }

    /// The delay of an acknowledgement: about the time between two segments, at most a round trip.
    fn ack_timeout(&self, path: &Path, rtt: &RttEstimator) -> Duration {
        let least = path.config().delayed_ack;
        let timeout = Duration::from_millis(u64::from(self.ato_ms)).max(least);
        let waits = self.pingpong || self.pushed > 0;
        let most = if waits { MAX_DELAYED_ACK } else { 2 * MAX_DELAYED_ACK };
        let round_trip = rtt.srtt().map_or(most, |srtt| srtt.max(least));
        timeout.min(most).min(round_trip.max(least)).min(MAX_DELAYED_ACK.max(least))
    }

    /// The next `acks` acknowledgements leave without delay.
    pub(crate) fn enter_quickack(&mut self, acks: u8) {
        self.quick = self.quick.max(acks);
    }

    #[inline]
    pub(crate) fn at_once(&mut self) {
        self.due = AckDue::Now;
    }

    /// An acknowledgement is due for a segment beyond a gap, or for a duplicate.
    ///
    /// > RFC 5681 section 3.2: A TCP receiver SHOULD send an immediate duplicate ACK when an
    /// > out-of-order segment arrives.
    pub(crate) fn duplicate(&mut self, path: &Path) {
        self.enter_quickack(path.config().quick_acks);
        self.pingpong = false;
        if self.due == AckDue::Now && !path.sack_ok {
            self.duplicates = (self.duplicates + 1).min(MAX_DUPLICATE_ACKS_DUE);
        }
        self.due = AckDue::Now;
    }
}
