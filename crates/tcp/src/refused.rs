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

use crate::connection::{ConnFlags, Connection};
use crate::limits::REFUSED_RETRY_MS;
use crate::loss::{CaState, Due};
use crate::seq::Seq;
use crate::timers::Timer;

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
        if !self.state.is_synchronized() {
            return;
        }
        let end = seq + space;
        if space == 0 {
            self.on_probe_refused(now, seq);
        } else if seq.lt(self.snd.una) || end.gt(self.snd.nxt) {
            // Meanwhile it was acknowledged: it had left before.
        } else if self.unsend(now, seq, end) {
            self.hold_new(now);
        } else if let Some(packets) = self.flight.on_refused(seq, end) {
            self.on_retransmission_refused(seq, packets);
            self.hold_lost(now, seq);
        }
    }

    /// Takes back what was sent for the first time, if nothing was sent behind it, and no recovery counts
    /// on it.
    fn unsend(&mut self, now: Instant, seq: Seq, end: Seq) -> bool {
        if end != self.snd.nxt
            || self.loss.state > CaState::Disorder
            || self.awaits_probe_answer()
            || self.probes_mtu()
            || !self.flight.unsend(seq)
        {
            return false;
        }
        self.snd.nxt = seq;
        if self.flight.is_empty() {
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
        self.rare().refused = Some(refused);
        self.flags.insert(ConnFlags::REFUSED);
        self.flags.remove(ConnFlags::FLUSH_DUE);
        if self.flight.is_empty() {
            self.timers.set(Timer::Persist, refused.retry_at);
        }
    }

    /// What was sent again from `seq` on is still lost. If a timeout had it sent, that was none.
    fn hold_lost(&mut self, now: Instant, seq: Seq) {
        self.flags.insert(ConnFlags::REFUSED);
        if self.loss.state == CaState::Loss && seq == self.snd.una && self.retries > 0 {
            self.rtt.undo_backoff();
            self.retries = (self.retries - 1).max(1);
        }
        let wait = self.rtt.rto().min(Duration::from_millis(REFUSED_RETRY_MS));
        self.loss.due = Due::Rto;
        self.timers.set(Timer::Retransmit, now + self.within_user_timeout(now, wait));
    }

    /// A probe did not leave: it does not count, and the next follows soon.
    fn on_probe_refused(&mut self, now: Instant, seq: Seq) {
        if seq != self.snd.una - 1 {
            return;
        }
        let soon = now + Duration::from_millis(REFUSED_RETRY_MS);
        for timer in [Timer::Persist, Timer::KeepAlive] {
            if self.timers.is_set(timer) && self.timers.get(timer) > soon {
                self.timers.set(timer, soon);
            }
        }
        if self.timers.is_set(Timer::Persist) {
            self.persist_backoff = self.persist_backoff.saturating_sub(1);
            self.retries = self.retries.saturating_sub(1);
        } else {
            self.keepalive_probes = self.keepalive_probes.saturating_sub(1);
        }
    }

    /// What the device refused may be tried again.
    pub(crate) fn retry_refused(&mut self, now: Instant) {
        self.flags.remove(ConnFlags::REFUSED);
        self.flags.insert(ConnFlags::FLUSH_DUE);
        let Some(refused) = self.refused() else { return };
        let waited = self.has_waited_too_long(now, refused.tries == 0);
        let limit = self.backed_off_for(self.allowed_retries());
        let too_long = now.saturating_since(refused.since) >= limit;
        if waited || (too_long && self.config.user_timeout.is_none()) {
            return self.time_out();
        }
        let tries = refused.tries.saturating_add(1);
        self.rare().refused = Some(Refused { retry_at: now, tries, ..refused });
    }

    /// How often what the device refused was tried again since something was heard.
    pub(crate) fn refused_tries(&self) -> u8 {
        self.refused().map_or(0, |refused| refused.tries)
    }

    fn refused(&self) -> Option<Refused> {
        let refused = self.rare.as_ref()?.refused?;
        (refused.since >= self.heard_at).then_some(refused)
    }
}
