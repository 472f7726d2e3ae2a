//! The retransmission timer: timeout, tail loss probe and reordering window share it, as in Linux.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::limits::TIMER_SLACK_MS;
use crate::outbound::Transfer;
use crate::outbound::loss::{CaState, Due};
use crate::path::Path;

impl Transfer {
    pub(crate) fn set_retransmit_timer(&mut self, now: Instant, wait: Duration) {
        self.loss.due = Due::Rto;
        self.retransmit.set(now + wait);
    }

    /// > RFC 6298 section 5.2: When all outstanding data has been acknowledged, turn off the
    /// > retransmission timer. 5.3: When an ACK is received that acknowledges new data, restart the
    /// > retransmission timer so that it will expire after RTO seconds
    ///
    /// After a probe or a reordering window it counts from when the first segment was sent.
    pub(crate) fn rearm_rto(&mut self, now: Instant) {
        let rto = self.rtt.rto();
        let Some(first) = self.flight.first() else {
            self.loss.due = Due::Rto;
            self.retransmit.stop();
            return;
        };
        let at = match self.loss.due {
            Due::Rto => now + rto,
            Due::Probe | Due::Reorder => (first.at + rto).max(now),
        };
        self.loss.due = Due::Rto;
        self.retransmit.set(at);
    }

    /// New data was sent; `first`: nothing else was in flight.
    pub(crate) fn start_retransmit_timer(&mut self, path: &Path, now: Instant, first: bool) {
        if first || self.loss.due == Due::Probe || !self.retransmit.is_set() {
            if first {
                self.loss.due = Due::Rto;
            }
            self.rearm_rto(now);
        }
        self.schedule_loss_probe(path, now, false);
    }

    /// > RFC 8985 section 7.2: TLP_calc_PTO(): If SRTT is available: PTO = 2 * SRTT; If FlightSize is
    /// > one segment: PTO += TLP.max_ack_delay; Else: PTO = 1 second; If Now() + PTO >
    /// > TCP_RTO_expiration(): PTO = TCP_RTO_expiration() - Now()
    ///
    /// Linux's least RTO stands for the longest delay of an acknowledgement.
    pub(crate) fn schedule_loss_probe(&mut self, path: &Path, now: Instant, restart: bool) -> bool {
        let calm = matches!(self.loss.state, CaState::Open | CaState::Cwr);
        let Some(first) = self.flight.first() else { return false };
        if !path.config().tail_loss_probe
            || !calm
            || !path.sack_ok
            || !path.state().is_synchronized()
        {
            return false;
        }
        let mut wait = match self.rtt.srtt() {
            Some(srtt) if self.flight.packets == 1 => srtt * 2 + path.config().rto_min,
            Some(srtt) => srtt * 2 + Duration::from_millis(TIMER_SLACK_MS),
            None => Duration::from_secs(1),
        };
        let rto = self.rtt.rto();
        let left = if restart { rto } else { (first.at + rto).saturating_since(now) };
        if !left.is_zero() {
            wait = wait.min(left);
        }
        self.loss.due = Due::Probe;
        self.retransmit.set(now + wait);
        true
    }
}
