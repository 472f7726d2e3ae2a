//! Segments that the device refused: the path was not congested, and no answer will come.
//!
//! ```text
//!   poll_transmit --> device refuses --> handle_refused: unsent again, or still lost
//!        ^                                    |
//!        +---- a segment arrives, or 500 ms <-+   until the user timeout
//! ```

use core::time::Duration;

use pagewire_mem::Instant;

use crate::limits::REFUSED_RETRY_MS;
use crate::outbound::loss::{CaState, Due};
use crate::outbound::{OutFlags, Outbound, Transfer};
use crate::path::Path;
use crate::seq::Seq;

/// Refusals of the device, until a segment arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// The first refusal.
    pub(crate) since: Instant,
    /// When new data is tried again.
    pub(crate) retry_at: Instant,
    /// How often new data was tried again.
    pub(crate) tries: u8,
}

impl Outbound {
    /// Nothing new leaves for a while.
    pub(crate) fn hold_new(&mut self, path: &Path, now: Instant) {
        let first = now + self.persist_interval(path);
        let again =
            now + self.within_user_timeout(path, now, Duration::from_millis(REFUSED_RETRY_MS));
        let refused = match self.refused(path) {
            None => Refused { since: now, retry_at: first, tries: 0 },
            Some(refused) if refused.retry_at <= now => Refused { retry_at: again, ..refused },
            Some(refused) => refused,
        };
        self.transfer.rare().refused = Some(refused);
        self.flags.insert(OutFlags::REFUSED);
        self.flags.remove(OutFlags::FLUSH_DUE);
        if self.transfer.flight.is_empty() {
            self.persist.set(refused.retry_at);
        }
    }

    /// The retransmission from `seq` on stays lost. A timeout that caused it does not count.
    pub(crate) fn hold_lost(&mut self, path: &Path, now: Instant, seq: Seq) {
        self.flags.insert(OutFlags::REFUSED);
        if self.transfer.loss.state == CaState::Loss
            && seq == self.transfer.snd.una
            && self.transfer.loss.retries > 0
        {
            self.transfer.rtt.undo_backoff();
            self.transfer.loss.retries = (self.transfer.loss.retries - 1).max(1);
        }
        let wait = self.transfer.rtt.rto().min(Duration::from_millis(REFUSED_RETRY_MS));
        self.transfer.loss.due = Due::Rto;
        self.transfer.retransmit.set(now + self.within_user_timeout(path, now, wait));
    }

    pub(crate) fn refused(&self, path: &Path) -> Option<Refused> {
        let refused = self.transfer.rare.as_ref()?.refused?;
        (refused.since >= path.last_received).then_some(refused)
    }
}

impl Transfer {
    /// Makes the last segment unsent again, unless it was a retransmission or a recovery depends on it.
    pub(crate) fn unsend(&mut self, now: Instant, seq: Seq, end: Seq) -> bool {
        if end != self.snd.nxt
            || self.loss.state > CaState::Disorder
            || self.recovery.as_ref().is_some_and(|r| r.probe_end.is_some())
            || self.mtu().is_some_and(|search| search.probe.is_some())
            || !self.flight.unsend(seq)
        {
            return false;
        }
        self.snd.nxt = seq;
        if self.flight.is_empty() {
            self.rearm_rto(now);
        }
        true
    }
}
