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
use crate::outbound::loss::{CaState, Due};
use crate::outbound::recovery::{probe, timer};
use crate::outbound::timeout::Waited;
use crate::outbound::{OutFlags, Outbound, Transfer, mtu_probe};
use crate::path::Path;
use crate::seq::Seq;

/// Refusals of the device, until a segment arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// The first refusal.
    since: Instant,
    /// When new data is tried again.
    retry_at: Instant,
    /// How often new data was tried again.
    tries: u8,
}

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
            on_probe_refused(self, now, seq);
        } else if seq.lt(self.out.transfer.snd.una) || end.gt(self.out.transfer.snd.nxt) {
            // It was acknowledged meanwhile.
        } else if unsend(&mut self.out.transfer, now, seq, end) {
            self.out.hold_new(&self.path, now);
        } else if let Some(packets) = self.out.transfer.flight.on_refused(seq, end) {
            self.out.transfer.on_retransmission_refused(seq, packets);
            self.out.hold_lost(&self.path, now, seq);
        }
    }
}

/// The device refused a probe: it does not count, and the next follows soon.
fn on_probe_refused(conn: &mut Connection, now: Instant, seq: Seq) {
    if seq != conn.out.transfer.snd.una - 1 {
        return;
    }
    let soon = now + Duration::from_millis(REFUSED_RETRY_MS);
    conn.out.persist.hasten(soon);
    let of_window = conn.out.persist.is_set();
    if of_window {
        conn.out.persist_backoff = conn.out.persist_backoff.saturating_sub(1);
        conn.out.transfer.loss.retries = conn.out.transfer.loss.retries.saturating_sub(1);
    }
    conn.life.on_probe_refused(soon, !of_window);
}

impl Outbound {
    /// Lets refused data be tried again.
    pub(crate) fn retry_refused(&mut self, path: &Path, now: Instant) -> Waited {
        self.flags.remove(OutFlags::REFUSED);
        self.flags.insert(OutFlags::FLUSH_DUE);
        let Some(refused) = self.refused(path) else { return Waited::Retry };
        let waited = self.has_waited_too_long(path, now, refused.tries == 0);
        let limit = path.backed_off_for(path.allowed_retries());
        let too_long = now.saturating_since(refused.since) >= limit;
        if waited || (too_long && path.config().user_timeout.is_none()) {
            return Waited::GiveUp;
        }
        let tries = refused.tries.saturating_add(1);
        self.transfer.rare().refused = Some(Refused { retry_at: now, tries, ..refused });
        Waited::Retry
    }

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

    /// How often refused data was tried again since the last segment arrived.
    pub(crate) fn refused_tries(&self, path: &Path) -> u8 {
        self.refused(path).map_or(0, |refused| refused.tries)
    }

    pub(crate) fn refused(&self, path: &Path) -> Option<Refused> {
        let refused = self.transfer.rare.as_ref()?.refused?;
        (refused.since >= path.heard_at()).then_some(refused)
    }
}

/// Makes the last segment unsent again, unless it was a retransmission or a recovery depends on it.
pub(crate) fn unsend(transfer: &mut Transfer, now: Instant, seq: Seq, end: Seq) -> bool {
    if end != transfer.snd.nxt
        || transfer.loss.state > CaState::Disorder
        || probe::awaits_probe_answer(transfer)
        || mtu_probe::probes_mtu(transfer)
        || !transfer.flight.unsend(seq)
    {
        return false;
    }
    transfer.snd.nxt = seq;
    if transfer.flight.is_empty() {
        timer::rearm_timeout(transfer, now);
    }
    true
}
