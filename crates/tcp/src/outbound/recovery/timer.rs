//! The retransmission timer: timeout, tail loss probe and reordering window share it, as in Linux.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::limits::TIMER_SLACK_MS;
use crate::outbound::Transfer;
use crate::outbound::loss::{CaState, Due};
use crate::path::Path;

pub(crate) fn set_retransmit_timer(transfer: &mut Transfer, now: Instant, wait: Duration) {
    transfer.loss.due = Due::Rto;
    transfer.retransmit.set(now + wait);
}

/// > RFC 6298 section 5.2: When all outstanding data has been acknowledged, turn off the
/// > retransmission timer. 5.3: When an ACK is received that acknowledges new data, restart the
/// > retransmission timer so that it will expire after RTO seconds
///
/// After a probe or a reordering window it counts from when the first segment was sent.
pub(crate) fn rearm_timeout(transfer: &mut Transfer, now: Instant) {
    let rto = transfer.rtt.rto();
    let Some(first) = transfer.flight.first() else {
        transfer.loss.due = Due::Rto;
        transfer.retransmit.stop();
        return;
    };
    let at = match transfer.loss.due {
        Due::Rto => now + rto,
        Due::Probe | Due::Reorder => (first.at + rto).max(now),
    };
    transfer.loss.due = Due::Rto;
    transfer.retransmit.set(at);
}

/// Data was acknowledged: restarts the probe timeout, or the retransmission timeout.
pub(crate) fn restart_retransmit_timer(transfer: &mut Transfer, path: &Path, now: Instant) {
    if !schedule_probe(transfer, path, now, true) {
        rearm_timeout(transfer, now);
    }
}

/// New data was sent; `first`: nothing else was in flight.
pub(crate) fn start_retransmit_timer(
    transfer: &mut Transfer,
    path: &Path,
    now: Instant,
    first: bool,
) {
    if first || transfer.loss.due == Due::Probe || !transfer.retransmit.is_set() {
        if first {
            transfer.loss.due = Due::Rto;
        }
        rearm_timeout(transfer, now);
    }
    schedule_probe(transfer, path, now, false);
}

/// > RFC 8985 section 7.2: TLP_calc_PTO(): If SRTT is available: PTO = 2 * SRTT; If FlightSize is
/// > one segment: PTO += TLP.max_ack_delay; Else: PTO = 1 second; If Now() + PTO >
/// > TCP_RTO_expiration(): PTO = TCP_RTO_expiration() - Now()
///
/// Linux's least RTO stands for the longest delay of an acknowledgement.
fn schedule_probe(transfer: &mut Transfer, path: &Path, now: Instant, restart: bool) -> bool {
    let calm = matches!(transfer.loss.state, CaState::Open | CaState::Cwr);
    let Some(first) = transfer.flight.first() else { return false };
    if !path.config().tail_loss_probe
        || !calm
        || !path.has_sack()
        || !path.state().is_synchronized()
    {
        return false;
    }
    let mut wait = match transfer.rtt.srtt() {
        Some(srtt) if transfer.flight.packets() == 1 => srtt * 2 + path.config().rto_min,
        Some(srtt) => srtt * 2 + Duration::from_millis(TIMER_SLACK_MS),
        None => Duration::from_secs(1),
    };
    let rto = transfer.rtt.rto();
    let left = if restart { rto } else { (first.at + rto).saturating_since(now) };
    if !left.is_zero() {
        wait = wait.min(left);
    }
    transfer.loss.due = Due::Probe;
    transfer.retransmit.set(now + wait);
    true
}
