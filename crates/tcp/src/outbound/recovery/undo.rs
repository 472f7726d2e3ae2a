//! What was done for nothing is undone: D-SACK (RFC 3708), timestamps (Eifel, RFC 3522 and 4015),
//! F-RTO (RFC 5682).

use pagewire_mem::Instant;

use super::{Heard, News, Resend};
use crate::limits::RACK_PERSIST_RECOVERIES;
use crate::outbound::Transfer;
use crate::outbound::loss::CaState;
use crate::path::Path;
use crate::seq::Seq;

impl Transfer {
    /// The window is about to be reduced: remembers what is needed to take that back.
    pub(crate) fn begin_undo(&mut self) {
        let (una, mut out) = (self.snd.una, self.flight.retransmitted());
        let recovery = self.recovery_mut();
        if recovery.probe_end.is_some() && recovery.probe_resent {
            out += 1;
        }
        recovery.marker = Some(una);
        // Retransmissions of before may still be reported.
        recovery.unexcused = (out > 0).then_some(out);
    }

    /// `packets` wire segments were sent again.
    pub(crate) fn count_unexcused(&mut self, now: Instant, packets: u32) {
        let recovery = self.recovery_mut();
        recovery.unexcused = Some(recovery.unexcused.unwrap_or(0) + packets);
        recovery.first_resent.get_or_insert(now);
    }

    /// > RFC 3522 section 3.2: (4) [...] If the value of the Timestamp Echo Reply field of the
    /// > acceptable ACK is smaller than the value of the variable RetransmitTS, then set SpuriousRecovery
    ///
    /// If nothing was sent again, whatever arrived was only late.
    fn was_delayed(&self, path: &Path, heard: &Heard) -> bool {
        let Some(recovery) = self.recovery.as_deref() else { return false };
        match (recovery.first_resent, heard.echo_ms) {
            (Some(at), Some(echo)) => (echo.wrapping_sub(at.as_millis() as u32) as i32) < 0,
            (Some(_), None) => false,
            (None, _) => path.has_sack() || self.snd.una.lt(self.loss.high),
        }
    }

    /// Whether the last reduction can still be taken back.
    pub(crate) fn may_take_back(&self) -> bool {
        self.recovery.as_ref().is_some_and(|r| r.marker.is_some())
    }

    fn may_undo(&self, path: &Path, heard: &Heard) -> bool {
        let Some(recovery) = self.recovery.as_deref() else { return false };
        recovery.marker.is_some()
            && (recovery.unexcused == Some(0) || self.was_delayed(path, heard))
    }

    /// Takes the reduction back; with `forgive`, nothing counts as lost any more either.
    fn undo_reduction(&mut self, forgive: bool) {
        let una = self.snd.una;
        if forgive {
            self.flight.forgive();
        }
        let recovery = self.recovery_mut();
        recovery.marker = None;
        recovery.next = una;
        recovery.judged = una;
        let (ssthresh, cwnd) = (recovery.prior_ssthresh, recovery.prior_cwnd);
        if ssthresh > 0 && self.congestion.undo(cwnd, ssthresh) {
            self.withdraw_cwr();
        }
        // What is under way is judged anew.
        self.loss.advanced = true;
    }

    /// `high` is acknowledged in Recovery or Loss. `true`: the state is held.
    pub(crate) fn try_undo_recovery(&mut self, path: &Path, heard: &Heard) -> bool {
        if self.may_undo(path, heard) {
            // Everything arrived by itself.
            self.undo_reduction(false);
        } else {
            self.loss.persist = self.loss.persist.saturating_sub(1);
        }
        // > RFC 6582 section 4.1: The sender MAY [...] if the cumulative acknowledgement [...] covers
        // > exactly "recover" [...] duplicates may be of what was sent again
        //
        // Without SACK, what follows may be duplicates of our own retransmissions: nothing new
        // begins until more than `high` is acknowledged.
        if !path.has_sack() && self.snd.una == self.loss.high {
            if !self.has_resent() {
                self.recovery_mut().first_resent = None;
            }
            return true;
        }
        self.loss.state = CaState::Open;
        false
    }

    /// All retransmissions were reported as duplicates.
    pub(crate) fn try_undo_dsack(&mut self) -> bool {
        let recovery = self.recovery_mut();
        if recovery.marker.is_none() || recovery.unexcused != Some(0) {
            return false;
        }
        self.loss.persist = (self.loss.persist + 1).min(RACK_PERSIST_RECOVERIES);
        self.undo_reduction(false);
        true
    }

    /// A part was acknowledged in Recovery. `true`: nothing is marked or sent again now.
    pub(crate) fn try_undo_partial(&mut self, path: &Path, heard: &Heard, prior_una: Seq) -> bool {
        if !self.may_take_back() || !self.was_delayed(path, heard) {
            return false;
        }
        // The hole was filled by what was late, not by what was sent again.
        if path.has_sack() {
            let high = self.flight.high_sacked();
            self.note_reordering(path, Some(prior_una), high);
        }
        // What was sent again may arrive and be reported yet: new data goes on meanwhile.
        if self.flight.retransmitted() > 0 {
            return true;
        }
        if !self.has_resent() {
            self.recovery_mut().first_resent = None;
        }
        self.undo_reduction(true);
        self.keep_open();
        false
    }

    fn try_undo_loss(&mut self, path: &Path, heard: &Heard, frto: bool) -> bool {
        if !frto && !self.may_undo(path, heard) {
            return false;
        }
        self.undo_reduction(true);
        self.loss.retries = 0;
        if frto || path.has_sack() {
            self.loss.state = CaState::Open;
        }
        true
    }

    /// An acknowledgement in Loss (RFC 5682 section 3.1, the SACK-enhanced version).
    pub(crate) fn on_ack_in_loss(&mut self, path: &Path, heard: &mut Heard, end: Seq) {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        let advanced = heard.news.contains(News::ADVANCED);
        let recovered = una.ge(self.loss.high);
        if advanced && self.try_undo_loss(path, heard, false) {
            return;
        }
        if self.recovery_mut().frto {
            // > 3.b) If the acknowledgment advances the window to acknowledge data that was never
            // > retransmitted: [...] declare the timeout spurious
            if heard.news.contains(News::ORIGINAL) && self.try_undo_loss(path, heard, true) {
                return;
            }
            if nxt.gt(self.loss.high) {
                // > 3.a) If a duplicate acknowledgment is received [...] continue retransmitting [...]
                // > the loss was genuine
                if heard.news.contains(News::SACKED) || heard.duplicates > 0 {
                    self.recovery_mut().frto = false;
                }
            } else if advanced && !recovered {
                self.loss.high = nxt;
                // > 2.b) [...] transmit up to two new (previously unsent) segments and enter step 3
                // > of this algorithm. If the sender does not have enough new data to send, it can
                // > [...] revert to the conventional RTO recovery
                let room = (una + self.snd.window).saturating_since(nxt) > 0;
                if end.saturating_since(self.next_data(path)) > 0 && room {
                    self.recovery_mut().resend = Resend::NewFirst;
                    return;
                }
                self.recovery_mut().frto = false;
            }
        }
        if recovered {
            self.try_undo_recovery(path, heard);
            return;
        }
        if !path.has_sack() {
            if nxt.gt(self.loss.high) && heard.duplicates > 0 {
                self.emulate_sacks(path, heard);
            } else if advanced {
                self.forget_emulated();
            }
        }
        self.recovery_mut().resend = Resend::Lost;
    }
}
