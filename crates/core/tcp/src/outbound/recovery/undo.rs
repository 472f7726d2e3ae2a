//! Undo of reductions: D-SACK (RFC 3708), timestamps (Eifel, RFC 3522 and 4015), F-RTO (RFC 5682).

use crate::limits::RACK_PERSIST_RECOVERIES;
use crate::outbound::Transfer;
use crate::outbound::ecn::EcnFlags;
use crate::outbound::loss::CaState;
use crate::outbound::recovery::{AckFlags, AckInfo, RexmitMode};
use crate::path::Path;

impl Transfer {
    /// Before a reduction of the window: remembers what an undo needs.
    pub(crate) fn init_undo(&mut self) {
        let (una, mut out) = (self.snd.una, self.flight.retransmitted);
        let recovery = self.recovery_mut();
        if recovery.probe_end.is_some() && recovery.probe_resent {
            out += 1;
        }
        recovery.undo_marker = Some(una);
        // The peer may still report earlier retransmissions.
        recovery.undo_retrans = (out > 0).then_some(out);
    }

    /// Whether the last reduction can still be undone.
    pub(crate) fn has_undo_marker(&self) -> bool {
        self.recovery.as_ref().is_some_and(|r| r.undo_marker.is_some())
    }

    /// `high` is acknowledged in Recovery or Loss. `true`: the state stays.
    pub(crate) fn try_undo_recovery(&mut self, path: &Path, ack: &AckInfo) -> bool {
        if self.may_undo(path, ack) {
            self.undo_cwnd_reduction(false);
        } else if let Some(rare) = &mut self.rare {
            rare.reo_wnd_persist = rare.reo_wnd_persist.saturating_sub(1);
        }
        // > RFC 6582 section 4.1: The sender MAY [...] if the cumulative acknowledgement [...] covers
        // > exactly "recover" [...] duplicates may be of what was sent again
        //
        // Without SACK, a new recovery begins only when more than `high` is acknowledged.
        if !path.sack_ok && self.snd.una == self.loss.high_seq {
            if !self.has_resent() {
                self.recovery_mut().retrans_stamp = None;
            }
            return true;
        }
        self.loss.state = CaState::Open;
        false
    }

    /// Undoes the reduction if the peer reported all retransmissions as duplicates.
    pub(crate) fn try_undo_dsack(&mut self) -> bool {
        let recovery = self.recovery_mut();
        if recovery.undo_marker.is_none() || recovery.undo_retrans != Some(0) {
            return false;
        }
        let rare = self.rare();
        rare.reo_wnd_persist = (rare.reo_wnd_persist + 1).min(RACK_PERSIST_RECOVERIES);
        self.undo_cwnd_reduction(false);
        true
    }

    /// A partial acknowledgement in Recovery. `true`: nothing is marked or retransmitted now.
    pub(crate) fn try_undo_partial(&mut self, path: &Path, ack: &AckInfo) -> bool {
        if !self.has_undo_marker() || !self.packet_delayed(path, ack) {
            return false;
        }
        // A late segment filled the hole, not a retransmission.
        if path.sack_ok {
            let high = self.flight.high_sacked();
            self.check_reordering(path, Some(ack.prior_una), high);
        }
        // Retransmissions may still be reported: new data leaves meanwhile.
        if self.flight.retransmitted > 0 {
            return true;
        }
        if !self.has_resent() {
            self.recovery_mut().retrans_stamp = None;
        }
        self.undo_cwnd_reduction(true);
        self.try_keep_open();
        false
    }

    /// Processes an acknowledgement in Loss (RFC 5682 section 3.1, the SACK-enhanced version).
    pub(crate) fn on_ack_in_loss(&mut self, path: &Path, ack: &mut AckInfo) {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        let advanced = ack.flags.contains(AckFlags::UNA_ADVANCED);
        let recovered = una.ge(self.loss.high_seq);
        if advanced && self.try_undo_loss(path, ack, false) {
            return;
        }
        if self.recovery_mut().frto {
            // > 3.b) If the acknowledgment advances the window to acknowledge data that was never
            // > retransmitted: [...] declare the timeout spurious
            if ack.flags.contains(AckFlags::ORIG_SACK_ACKED) && self.try_undo_loss(path, ack, true)
            {
                return;
            }
            if nxt.gt(self.loss.high_seq) {
                // > 3.a) If a duplicate acknowledgment is received [...] continue retransmitting [...]
                // > the loss was genuine
                if ack.flags.contains(AckFlags::DATA_SACKED) || ack.duplicates > 0 {
                    self.recovery_mut().frto = false;
                }
            } else if advanced && !recovered {
                self.loss.high_seq = nxt;
                // > 2.b) [...] transmit up to two new (previously unsent) segments and enter step 3
                // > of this algorithm. If the sender does not have enough new data to send, it can
                // > [...] revert to the conventional RTO recovery
                let room = (una + self.snd.window).saturating_since(nxt) > 0;
                if ack.queue_end.saturating_since(self.next_data(path)) > 0 && room {
                    self.recovery_mut().resend = RexmitMode::NewFirst;
                    return;
                }
                self.recovery_mut().frto = false;
            }
        }
        if recovered {
            self.try_undo_recovery(path, ack);
            return;
        }
        if !path.sack_ok {
            if nxt.gt(self.loss.high_seq) && ack.duplicates > 0 {
                self.add_reno_sack(path, ack);
            } else if advanced {
                self.reset_reno_sacked();
            }
        }
        self.recovery_mut().resend = RexmitMode::Lost;
    }

    /// > RFC 3522 section 3.2: (4) [...] If the value of the Timestamp Echo Reply field of the
    /// > acceptable ACK is smaller than the value of the variable RetransmitTS, then set SpuriousRecovery
    ///
    /// Without a retransmission, the segment was only late.
    fn packet_delayed(&self, path: &Path, ack: &AckInfo) -> bool {
        let Some(recovery) = self.recovery.as_deref() else { return false };
        match (recovery.retrans_stamp, ack.echo_ms) {
            (Some(at), Some(echo)) => (echo.wrapping_sub(at.as_millis() as u32) as i32) < 0,
            (Some(_), None) => false,
            (None, _) => path.sack_ok || self.snd.una.lt(self.loss.high_seq),
        }
    }

    fn may_undo(&self, path: &Path, ack: &AckInfo) -> bool {
        let Some(recovery) = self.recovery.as_deref() else { return false };
        recovery.undo_marker.is_some()
            && (recovery.undo_retrans == Some(0) || self.packet_delayed(path, ack))
    }

    /// Undoes the reduction; with `forgive`, nothing counts as lost any more.
    fn undo_cwnd_reduction(&mut self, forgive: bool) {
        let una = self.snd.una;
        if forgive {
            self.flight.forgive();
        }
        let recovery = self.recovery_mut();
        recovery.undo_marker = None;
        recovery.retransmit_hint = una;
        recovery.rack_checked = una;
        let (ssthresh, cwnd) = (recovery.prior_ssthresh, recovery.prior_cwnd);
        if ssthresh > 0 && self.congestion.undo(cwnd, ssthresh) {
            self.loss.ecn.remove(EcnFlags::QUEUE_CWR);
        }
        self.loss.advanced = true;
    }

    fn try_undo_loss(&mut self, path: &Path, ack: &AckInfo, frto: bool) -> bool {
        if !frto && !self.may_undo(path, ack) {
            return false;
        }
        self.undo_cwnd_reduction(true);
        self.loss.retries = 0;
        if frto || path.sack_ok {
            self.loss.state = CaState::Open;
        }
        true
    }
}
