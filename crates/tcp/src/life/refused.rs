//! Segments that never left, because the device refused them: nothing on the path was congested, and
//! nobody will answer.
//!
//! ```text
//!   poll_transmit --> device refuses --> handle_refused: unsent again, or still lost
//!        ^                                    |
//!        +---- something is heard, or 500 ms <+   until the user timeout
//! ```

use core::time::Duration;

use pagewire_mem::Instant;

use crate::connection::Connection;
use crate::limits::REFUSED_RETRY_MS;
use crate::outbound::OutFlags;
use crate::outbound::loss::{CaState, Due};
use crate::seq::Seq;

/// What a device that refuses has done to a connection. Over as soon as something is heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// When it refused first.
    since: Instant,
    /// When new data is tried again.
    retry_at: Instant,
    /// How often that was done.
    tries: u8,
}

impl Connection {
    /// The device refused a segment that [`poll_transmit`](Self::poll_transmit) gave. `seq` is its
    /// number, and `space` how many numbers it takes up: its payload, and one each for SYN and FIN. Of
    /// several, the last is to be told of first.
    ///
    /// As Linux: neither the congestion window nor the timeout changes. What was new is unsent again,
    /// what was sent again is still lost. Both are tried again when something is heard, or soon, until
    /// the user timeout, or for as long as retransmissions would be. A SYN has its own timer, and an
    /// acknowledgement is not missed.
    pub fn handle_refused(&mut self, now: Instant, seq: Seq, space: u32) {
        if !self.path.state.is_synchronized() {
            return;
        }
        let end = seq + space;
        if space == 0 {
            self.on_probe_refused(now, seq);
        } else if seq.lt(self.out.snd.una) || end.gt(self.out.snd.nxt) {
            // Meanwhile it was acknowledged: it had left before.
        } else if self.unsend(now, seq, end) {
            self.hold_new(now);
        } else if let Some(packets) = self.out.flight.on_refused(seq, end) {
            self.on_retransmission_refused(seq, packets);
            self.hold_lost(now, seq);
        }
    }

    /// Takes back what was sent for the first time, if nothing was sent behind it, and no recovery counts
    /// on it.
    fn unsend(&mut self, now: Instant, seq: Seq, end: Seq) -> bool {
        if end != self.out.snd.nxt
            || self.out.loss.state > CaState::Disorder
            || self.awaits_probe_answer()
            || self.probes_mtu()
            || !self.out.flight.unsend(seq)
        {
            return false;
        }
        self.out.snd.nxt = seq;
        if self.out.flight.is_empty() {
            self.rearm_timeout(now);
        }
        true
    }

    /// Nothing new leaves for a while.
    fn hold_new(&mut self, now: Instant) {
        let first = now + self.persist_interval();
        let again = now + self.within_user_timeout(now, Duration::from_millis(REFUSED_RETRY_MS));
        let refused = match self.refused() {
            None => Refused { since: now, retry_at: first, tries: 0 },
            Some(refused) if refused.retry_at <= now => Refused { retry_at: again, ..refused },
            Some(refused) => refused,
        };
        self.out.rare().refused = Some(refused);
        self.out.flags.insert(OutFlags::REFUSED);
        self.out.flags.remove(OutFlags::FLUSH_DUE);
        if self.out.flight.is_empty() {
            self.out.persist.set(refused.retry_at);
        }
    }

    /// What was sent again from `seq` on is still lost. If a timeout had it sent, that was none.
    fn hold_lost(&mut self, now: Instant, seq: Seq) {
        self.out.flags.insert(OutFlags::REFUSED);
        if self.out.loss.state == CaState::Loss && seq == self.out.snd.una && self.out.retries > 0 {
            self.out.rtt.undo_backoff();
            self.out.retries = (self.out.retries - 1).max(1);
        }
        let wait = self.out.rtt.rto().min(Duration::from_millis(REFUSED_RETRY_MS));
        self.out.loss.due = Due::Rto;
        self.out.retransmit.set(now + self.within_user_timeout(now, wait));
    }

    /// A probe did not leave: it does not count, and the next follows soon.
    fn on_probe_refused(&mut self, now: Instant, seq: Seq) {
        if seq != self.out.snd.una - 1 {
            return;
        }
        let soon = now + Duration::from_millis(REFUSED_RETRY_MS);
        for timer in [&mut self.out.persist, &mut self.life.keepalive] {
            if timer.is_set() && timer.get() > soon {
                timer.set(soon);
            }
        }
        if self.out.persist.is_set() {
            self.out.persist_backoff = self.out.persist_backoff.saturating_sub(1);
            self.out.retries = self.out.retries.saturating_sub(1);
        } else {
            self.life.keepalive_probes = self.life.keepalive_probes.saturating_sub(1);
        }
    }

    /// What the device refused may be tried again.
    pub(crate) fn retry_refused(&mut self, now: Instant) {
        self.out.flags.remove(OutFlags::REFUSED);
        self.out.flags.insert(OutFlags::FLUSH_DUE);
        let Some(refused) = self.refused() else { return };
        let waited = self.has_waited_too_long(now, refused.tries == 0);
        let limit = self.backed_off_for(self.allowed_retries());
        let too_long = now.saturating_since(refused.since) >= limit;
        if waited || (too_long && self.path.config.user_timeout.is_none()) {
            return self.time_out();
        }
        let tries = refused.tries.saturating_add(1);
        self.out.rare().refused = Some(Refused { retry_at: now, tries, ..refused });
    }

    /// How often what the device refused was tried again since something was heard.
    pub(crate) fn refused_tries(&self) -> u8 {
        self.refused().map_or(0, |refused| refused.tries)
    }

    fn refused(&self) -> Option<Refused> {
        let refused = self.out.rare.as_ref()?.refused?;
        (refused.since >= self.path.heard_at).then_some(refused)
    }
}
