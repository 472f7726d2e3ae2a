//! Segments that the device refused: the path was not congested, and no answer will come.
//!
//! ```text
//!   poll_transmit --> device refuses --> handle_refused: unsent again, or still lost
//!        ^                                    |
//!        +---- a segment arrives, or 500 ms <-+   until the user timeout
//! ```

use core::time::Duration;

use pagewire_mem::Instant;

use crate::connection::Connection;
use crate::limits::REFUSED_RETRY_MS;
use crate::outbound::loss::{CaState, PendingTimer};
use crate::outbound::{DeviceRefusals, OutFlags};
use crate::seq::Seq;

impl Connection {
    /// The device refused a segment from [`poll_transmit`](Self::poll_transmit). `seq` is its
    /// number, and `space` how many numbers it takes up: its payload, and one each for SYN and FIN.
    /// Report the last of several segments first.
    ///
    /// As in Linux, neither the congestion window nor the timeout changes. New data becomes unsent
    /// again, a retransmission stays lost. Both are tried again when a segment arrives, or soon,
    /// until the user timeout or as long as retransmissions would be.
    pub fn handle_refused(&mut self, now: Instant, seq: Seq, space: u32) {
        if !self.path.state().is_synchronized() {
            return;
        }
        let end = seq + space;
        if space == 0 {
            self.on_probe_refused(now, seq);
        } else if seq.lt(self.out.transfer.snd.una) || end.gt(self.out.transfer.snd.nxt) {
            // The segment was acknowledged meanwhile.
        } else if self.unsend(now, seq, end) {
            self.hold_new(now);
        } else if let Some(packets) = self.out.transfer.flight.on_refused(seq, end) {
            self.out.transfer.on_retransmission_refused(seq, packets);
            self.hold_lost(now, seq);
        }
    }

    /// The device refused a probe: it does not count, and the next follows soon.
    fn on_probe_refused(&mut self, now: Instant, seq: Seq) {
        if seq != self.out.transfer.snd.una - 1 {
            return;
        }
        let soon = now + Duration::from_millis(REFUSED_RETRY_MS);
        self.out.persist.hasten(soon);
        if !self.path.lingers() {
            self.life.silence.hasten(soon);
        }
        if self.out.persist.is_set() {
            self.out.persist_backoff = self.out.persist_backoff.saturating_sub(1);
            self.out.transfer.loss.retries = self.out.transfer.loss.retries.saturating_sub(1);
        } else {
            self.life.keepalive_probes = self.life.keepalive_probes.saturating_sub(1);
        }
    }

    /// Lets refused data be tried again.
    pub(super) fn retry_refused(&mut self, now: Instant) {
        self.out.flags.remove(OutFlags::REFUSED);
        self.out.flags.insert(OutFlags::FLUSH_DUE);
        let Some(refused) = self.out.refused(&self.path) else { return };
        let waited = self.has_waited_too_long(now, refused.tries == 0);
        let limit = self.path.backed_off_for(self.path.allowed_retries());
        let too_long = now.saturating_since(refused.since) >= limit;
        if waited || (too_long && self.path.config().user_timeout.is_none()) {
            return self.time_out();
        }
        let tries = refused.tries.saturating_add(1);
        self.out.transfer.rare().refused = Some(DeviceRefusals { retry_at: now, tries, ..refused });
    }

    /// Nothing new leaves for a while.
    fn hold_new(&mut self, now: Instant) {
        let first = now + self.persist_interval();
        let again = now + self.within_user_timeout(now, Duration::from_millis(REFUSED_RETRY_MS));
        let refused = match self.out.refused(&self.path) {
            None => DeviceRefusals { since: now, retry_at: first, tries: 0 },
            Some(refused) if refused.retry_at <= now => {
                DeviceRefusals { retry_at: again, ..refused }
            }
            Some(refused) => refused,
        };
        self.out.transfer.rare().refused = Some(refused);
        self.out.flags.insert(OutFlags::REFUSED);
        self.out.flags.remove(OutFlags::FLUSH_DUE);
        if self.out.transfer.flight.is_empty() {
            self.out.persist.set(refused.retry_at);
        }
    }

    /// The retransmission from `seq` on stays lost. A timeout that caused it does not count.
    fn hold_lost(&mut self, now: Instant, seq: Seq) {
        self.out.flags.insert(OutFlags::REFUSED);
        if self.out.transfer.loss.state == CaState::Loss
            && seq == self.out.transfer.snd.una
            && self.out.transfer.loss.retries > 0
        {
            self.out.transfer.rtt.undo_backoff();
            self.out.transfer.loss.retries = (self.out.transfer.loss.retries - 1).max(1);
        }
        let wait = self.out.transfer.rtt.rto().min(Duration::from_millis(REFUSED_RETRY_MS));
        self.out.transfer.loss.due = PendingTimer::Rto;
        self.out.transfer.retransmit.set(now + self.within_user_timeout(now, wait));
    }

    /// Makes the last segment unsent again, unless it was a retransmission or a recovery depends on it.
    fn unsend(&mut self, now: Instant, seq: Seq, end: Seq) -> bool {
        if end != self.out.transfer.snd.nxt
            || self.out.transfer.loss.state > CaState::Disorder
            || self.out.transfer.recovery.as_ref().is_some_and(|r| r.probe_end.is_some())
            || self.out.transfer.mtu().is_some_and(|search| search.probe.is_some())
            || !self.out.transfer.flight.unsend(seq)
        {
            return false;
        }
        self.out.transfer.snd.nxt = seq;
        if self.out.transfer.flight.is_empty() {
            self.out.transfer.rearm_rto(now);
        }
        true
    }
}
