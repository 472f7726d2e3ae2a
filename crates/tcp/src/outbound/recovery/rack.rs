//! Loss by time: RACK (RFC 8985 section 6).

use core::time::Duration;

use pagewire_mem::Instant;

use super::{Heard, News, Resend};
use crate::limits::{RACK_PERSIST_RECOVERIES, TIMER_SLACK_MS};
use crate::outbound::Transfer;
use crate::outbound::flight::{Aged, Delivered};
use crate::outbound::loss::{CaState, Due};
use crate::outbound::recovery::{prr, timer};
use crate::path::Path;

/// > RFC 8985 section 6.2, step 2: Update the state for the most recently sent segment that has
/// > been delivered
pub(crate) fn advance_rack(transfer: &mut Transfer, path: &Path, delivered: &Delivered) {
    // Without SACK it is unknown which transmission arrived.
    let Some(rtt) = delivered.rack_rtt.filter(|_| path.has_sack()) else { return };
    transfer.loss.advanced = true;
    let rack = &mut transfer.loss.rack;
    rack.rtt_us = u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX);
    if let Some((at, end)) = delivered.newest
        && (at > rack.at || (at == rack.at && end.gt(rack.end)))
    {
        (rack.at, rack.end) = (at, end);
    }
}

/// > RFC 8985 section 6.2, step 4: Update the RACK reordering window [...] RACK.reo_wnd_mult: The
/// > multiplier applied to adjust RACK.reo_wnd. [...] it is incremented by one for each round trip in
/// > which DSACK options are received [...] and reset to its initial value of 1 after
/// > RACK.reo_wnd_persist 16 loss recoveries
pub(crate) fn adapt_reordering_window(transfer: &mut Transfer, heard: &Heard) {
    let (una, nxt, seen) = (transfer.snd.una, transfer.snd.nxt, transfer.loss.reord_seen > 0);
    let relevant =
        heard.news.contains(News::DSACK) && !heard.news.contains(News::DSACK_OF_PROBE) && seen;
    let Some(recovery) = transfer.recovery.as_deref_mut() else { return };
    if recovery.dsack_round.is_some_and(|round| una.ge(round)) {
        recovery.dsack_round = None;
    }
    let loss = &mut transfer.loss;
    if relevant && recovery.dsack_round.is_none() {
        recovery.dsack_round = Some(nxt);
        loss.steps = loss.steps.saturating_add(1);
        loss.persist = RACK_PERSIST_RECOVERIES;
    } else if loss.persist == 0 {
        loss.steps = 1;
    }
}

/// > RFC 8985 section 6.2, step 5: For each segment [...] not yet acknowledged [...] if
/// > RACK_sent_after(RACK.xmit_ts, RACK.end_seq, segment.xmit_ts, segment.end_seq): remaining =
/// > segment.xmit_ts + RACK.rtt + RACK.reo_wnd - now; if remaining <= 0: segment.lost = TRUE
/// > else: timeout = max(remaining, timeout)
pub(crate) fn detect_by_time(transfer: &mut Transfer, now: Instant) -> Aged {
    if !core::mem::take(&mut transfer.loss.advanced) {
        return Aged::default();
    }
    detect(transfer, now)
}

/// Detects losses again in `wait`, plus the slack of Linux's clock.
pub(crate) fn await_reordering(transfer: &mut Transfer, now: Instant, wait: Duration) {
    timer::set_retransmit_timer(transfer, now, wait + Duration::from_millis(TIMER_SLACK_MS));
    transfer.loss.due = Due::Reorder;
}

/// The reordering window has closed.
pub(crate) fn on_reordering_timer(transfer: &mut Transfer, now: Instant) {
    let before = transfer.packets_in_flight();
    let aged = detect(transfer, now);
    if let Some(wait) = aged.wait {
        await_reordering(transfer, now, wait);
    }
    if before != transfer.packets_in_flight() {
        if transfer.loss.state != CaState::Recovery {
            transfer.enter_recovery(now, false);
            prr::reduce(transfer, &Heard { delivered: 1, lost: aged.lost, ..Heard::default() });
        }
        transfer.recovery_mut().resend = Resend::Lost;
    }
    if aged.wait.is_none() {
        timer::rearm_timeout(transfer, now);
    }
}

/// > RFC 8985 section 6.2, step 4: if (!RACK.reordering_seen) { if (in_loss_recovery ||
/// > RACK.segs_sacked >= DupThresh) return 0 } return min(RACK.reo_wnd_mult * RACK.min_RTT / 4,
/// > SRTT)
///
fn reordering_window(transfer: &Transfer) -> Duration {
    if transfer.loss.reord_seen == 0
        && (transfer.loss.state >= CaState::Recovery
            || transfer.sacked_packets() >= u32::from(transfer.loss.reordering))
    {
        return Duration::ZERO;
    }
    let min = transfer.rtt.min().unwrap_or_default();
    let srtt = transfer.rtt.srtt().unwrap_or_default();
    (min / 4 * u32::from(transfer.loss.steps)).min(srtt)
}

fn detect(transfer: &mut Transfer, now: Instant) -> Aged {
    let rack = transfer.loss.rack;
    let age = Duration::from_micros(u64::from(rack.rtt_us)) + reordering_window(transfer);
    transfer.recovery_mut();
    let Some(recovery) = transfer.recovery.as_deref_mut() else { return Aged::default() };
    let aged = transfer.flight.mark_aged(
        now,
        (rack.at, rack.end),
        age,
        &mut recovery.judged,
        &mut recovery.resent,
    );
    if let Some(first) = aged.first {
        recovery.next = recovery.next.min(first);
    }
    aged
}
