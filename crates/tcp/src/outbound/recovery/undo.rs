//! Undo of reductions: D-SACK (RFC 3708), timestamps (Eifel, RFC 3522 and 4015), F-RTO (RFC 5682).

use pagewire_mem::Instant;

use super::{Heard, News, Resend};
use crate::limits::RACK_PERSIST_RECOVERIES;
use crate::outbound::Transfer;
use crate::outbound::loss::CaState;
use crate::outbound::recovery::sack;
use crate::path::Path;
use crate::seq::Seq;

/// Before a reduction of the window: remembers what an undo needs.
pub(crate) fn begin_undo(transfer: &mut Transfer) {
    let (una, mut out) = (transfer.snd.una, transfer.flight.retransmitted());
    let recovery = transfer.recovery_mut();
    if recovery.probe_end.is_some() && recovery.probe_resent {
        out += 1;
    }
    recovery.marker = Some(una);
    // The peer may still report earlier retransmissions.
    recovery.unexcused = (out > 0).then_some(out);
}

pub(crate) fn count_unexcused(transfer: &mut Transfer, now: Instant, packets: u32) {
    let recovery = transfer.recovery_mut();
    recovery.unexcused = Some(recovery.unexcused.unwrap_or(0) + packets);
    recovery.first_resent.get_or_insert(now);
}

/// Whether the last reduction can still be undone.
pub(crate) fn may_take_back(transfer: &Transfer) -> bool {
    transfer.recovery.as_ref().is_some_and(|r| r.marker.is_some())
}

/// `high` is acknowledged in Recovery or Loss. `true`: the state stays.
pub(crate) fn try_undo_recovery(transfer: &mut Transfer, path: &Path, heard: &Heard) -> bool {
    if may_undo(transfer, path, heard) {
        undo_reduction(transfer, false);
    } else {
        transfer.loss.persist = transfer.loss.persist.saturating_sub(1);
    }
    // > RFC 6582 section 4.1: The sender MAY [...] if the cumulative acknowledgement [...] covers
    // > exactly "recover" [...] duplicates may be of what was sent again
    //
    // Without SACK, a new recovery begins only when more than `high` is acknowledged.
    if !path.has_sack() && transfer.snd.una == transfer.loss.high {
        if !transfer.has_resent() {
            transfer.recovery_mut().first_resent = None;
        }
        return true;
    }
    transfer.loss.state = CaState::Open;
    false
}

/// Undoes the reduction if the peer reported all retransmissions as duplicates.
pub(crate) fn try_undo_dsack(transfer: &mut Transfer) -> bool {
    let recovery = transfer.recovery_mut();
    if recovery.marker.is_none() || recovery.unexcused != Some(0) {
        return false;
    }
    transfer.loss.persist = (transfer.loss.persist + 1).min(RACK_PERSIST_RECOVERIES);
    undo_reduction(transfer, false);
    true
}

/// A partial acknowledgement in Recovery. `true`: nothing is marked or retransmitted now.
pub(crate) fn try_undo_partial(
    transfer: &mut Transfer,
    path: &Path,
    heard: &Heard,
    prior_una: Seq,
) -> bool {
    if !may_take_back(transfer) || !was_delayed(transfer, path, heard) {
        return false;
    }
    // A late segment filled the hole, not a retransmission.
    if path.has_sack() {
        let high = transfer.flight.high_sacked();
        sack::note_reordering(transfer, path, Some(prior_una), high);
    }
    // Retransmissions may still be reported: new data leaves meanwhile.
    if transfer.flight.retransmitted() > 0 {
        return true;
    }
    if !transfer.has_resent() {
        transfer.recovery_mut().first_resent = None;
    }
    undo_reduction(transfer, true);
    transfer.keep_open();
    false
}

/// Processes an acknowledgement in Loss (RFC 5682 section 3.1, the SACK-enhanced version).
pub(crate) fn on_ack_in_loss(transfer: &mut Transfer, path: &Path, heard: &mut Heard, end: Seq) {
    let (una, nxt) = (transfer.snd.una, transfer.snd.nxt);
    let advanced = heard.news.contains(News::ADVANCED);
    let recovered = una.ge(transfer.loss.high);
    if advanced && try_undo_loss(transfer, path, heard, false) {
        return;
    }
    if transfer.recovery_mut().frto {
        // > 3.b) If the acknowledgment advances the window to acknowledge data that was never
        // > retransmitted: [...] declare the timeout spurious
        if heard.news.contains(News::ORIGINAL) && try_undo_loss(transfer, path, heard, true) {
            return;
        }
        if nxt.gt(transfer.loss.high) {
            // > 3.a) If a duplicate acknowledgment is received [...] continue retransmitting [...]
            // > the loss was genuine
            if heard.news.contains(News::SACKED) || heard.duplicates > 0 {
                transfer.recovery_mut().frto = false;
            }
        } else if advanced && !recovered {
            transfer.loss.high = nxt;
            // > 2.b) [...] transmit up to two new (previously unsent) segments and enter step 3
            // > of this algorithm. If the sender does not have enough new data to send, it can
            // > [...] revert to the conventional RTO recovery
            let room = (una + transfer.snd.window).saturating_since(nxt) > 0;
            if end.saturating_since(transfer.next_data(path)) > 0 && room {
                transfer.recovery_mut().resend = Resend::NewFirst;
                return;
            }
            transfer.recovery_mut().frto = false;
        }
    }
    if recovered {
        try_undo_recovery(transfer, path, heard);
        return;
    }
    if !path.has_sack() {
        if nxt.gt(transfer.loss.high) && heard.duplicates > 0 {
            sack::emulate_sacks(transfer, path, heard);
        } else if advanced {
            sack::forget_emulated(transfer);
        }
    }
    transfer.recovery_mut().resend = Resend::Lost;
}

/// > RFC 3522 section 3.2: (4) [...] If the value of the Timestamp Echo Reply field of the
/// > acceptable ACK is smaller than the value of the variable RetransmitTS, then set SpuriousRecovery
///
/// Without a retransmission, the segment was only late.
fn was_delayed(transfer: &Transfer, path: &Path, heard: &Heard) -> bool {
    let Some(recovery) = transfer.recovery.as_deref() else { return false };
    match (recovery.first_resent, heard.echo_ms) {
        (Some(at), Some(echo)) => (echo.wrapping_sub(at.as_millis() as u32) as i32) < 0,
        (Some(_), None) => false,
        (None, _) => path.has_sack() || transfer.snd.una.lt(transfer.loss.high),
    }
}

fn may_undo(transfer: &Transfer, path: &Path, heard: &Heard) -> bool {
    let Some(recovery) = transfer.recovery.as_deref() else { return false };
    recovery.marker.is_some()
        && (recovery.unexcused == Some(0) || was_delayed(transfer, path, heard))
}

/// Undoes the reduction; with `forgive`, nothing counts as lost any more.
fn undo_reduction(transfer: &mut Transfer, forgive: bool) {
    let una = transfer.snd.una;
    if forgive {
        transfer.flight.forgive();
    }
    let recovery = transfer.recovery_mut();
    recovery.marker = None;
    recovery.next = una;
    recovery.judged = una;
    let (ssthresh, cwnd) = (recovery.prior_ssthresh, recovery.prior_cwnd);
    if ssthresh > 0 && transfer.congestion.undo(cwnd, ssthresh) {
        transfer.withdraw_cwr();
    }
    transfer.loss.advanced = true;
}

fn try_undo_loss(transfer: &mut Transfer, path: &Path, heard: &Heard, frto: bool) -> bool {
    if !frto && !may_undo(transfer, path, heard) {
        return false;
    }
    undo_reduction(transfer, true);
    transfer.loss.retries = 0;
    if frto || path.has_sack() {
        transfer.loss.state = CaState::Open;
    }
    true
}
