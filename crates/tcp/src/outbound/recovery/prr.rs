//! Proportional rate reduction: the congestion window during a recovery (RFC 6937).

use super::{Heard, News};
use crate::outbound::Transfer;
use crate::outbound::loss::CaState;
use crate::outbound::recovery::undo;

/// The threshold that an undo restores.
pub(crate) fn current_ssthresh(transfer: &Transfer) -> u32 {
    let (cwnd, ssthresh) = (transfer.congestion.cwnd(), transfer.congestion.ssthresh());
    if transfer.loss.is_reducing() { ssthresh } else { ssthresh.max(cwnd / 2 + cwnd / 4) }
}

/// > RFC 6937 section 3: At the beginning of recovery, initialize PRR state. [...]
/// > ssthresh = CongCtrlAlg() [...] prr_delivered = 0 [...] prr_out = 0 [...] RecoverFS =
/// > snd.nxt-snd.una
///
/// As Linux the congestion window takes the place of RecoverFS.
pub(crate) fn begin_reduction(transfer: &mut Transfer) {
    transfer.loss.high = transfer.snd.nxt;
    let (cwnd, flight) = (transfer.congestion.cwnd(), transfer.flight.packets());
    transfer.congestion.cut(flight);
    let recovery = transfer.recovery_mut();
    recovery.probe_end = None;
    recovery.prior_cwnd = cwnd;
    recovery.prr_delivered = 0;
    recovery.prr_out = 0;
    transfer.queue_cwr();
}

/// > RFC 6937 section 3: On every ACK during recovery compute: [...] if (pipe > ssthresh) {
/// > sndcnt = CEIL(prr_delivered * ssthresh / RecoverFS) - prr_out } else { [...] PRR-SSRB:
/// > limit = MAX(prr_delivered - prr_out, DeliveredData) + MSS; sndcnt = MIN(ssthresh - pipe,
/// > limit) } On any data transmission or retransmission: prr_out += (data sent)
///
/// RFC 6937bis, as Linux: one more only when the acknowledgement advances without a new loss. After
/// a mark alone nothing was lost, so delivered segments bound those that leave.
pub(crate) fn reduce(transfer: &mut Transfer, heard: &Heard) {
    let (in_flight, ssthresh) = (transfer.packets_in_flight(), transfer.congestion.ssthresh());
    let recovering = transfer.loss.state == CaState::Recovery;
    let Some(recovery) = transfer.recovery.as_deref_mut() else { return };
    if heard.delivered == 0 || recovery.prior_cwnd == 0 {
        return;
    }
    recovery.prr_delivered += heard.delivered;
    let (delivered, out) = (u64::from(recovery.prr_delivered), u64::from(recovery.prr_out));
    let count = if in_flight > ssthresh {
        let share = (delivered * u64::from(ssthresh)).div_ceil(u64::from(recovery.prior_cwnd));
        share.saturating_sub(out)
    } else {
        let safe = recovering && heard.news.contains(News::ADVANCED) && heard.lost == 0;
        let limit = delivered.saturating_sub(out).max(u64::from(heard.delivered));
        (limit + u64::from(safe)).min(u64::from(ssthresh - in_flight))
    };
    // The first retransmission leaves at once.
    let count = count.max(u64::from(out == 0));
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    transfer.congestion.set_cwnd(in_flight.saturating_add(count));
}

/// `packets` wire segments were sent.
#[inline]
pub(crate) fn note_reduced_send(transfer: &mut Transfer, packets: u32) {
    if transfer.loss.is_reducing()
        && let Some(recovery) = transfer.recovery.as_deref_mut()
    {
        recovery.prr_out += packets;
    }
}

/// > RFC 6937 section 3, RFC 5681: cwnd is set to ssthresh at the end of recovery
///
/// unless the reduction was undone.
pub(crate) fn end_reduction(transfer: &mut Transfer) {
    if (transfer.loss.state == CaState::Cwr || undo::may_take_back(transfer))
        && transfer.congestion.has_ssthresh()
    {
        transfer.congestion.set_cwnd(transfer.congestion.ssthresh());
    }
}

/// > RFC 3168 section 6.1.2: If the sender receives an ECN-Echo (ECE) ACK packet [...] the
/// > congestion window should be reduced [...] TCP should not react to congestion indications
/// > more than once every window of data
pub(crate) fn enter_cwr(transfer: &mut Transfer) {
    let below = transfer.loss.state < CaState::Cwr;
    let recovery = transfer.recovery_mut();
    recovery.prior_ssthresh = 0;
    if below {
        recovery.marker = None;
        begin_reduction(transfer);
        transfer.loss.state = CaState::Cwr;
    }
}
