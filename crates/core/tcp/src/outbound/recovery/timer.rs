//! The retransmission timer, which timeout, tail loss probe (RFC 8985 section 7) and reordering window
//! share as in Linux. Without an answer, a tail loss probe asks for it by one more segment.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::limits::TIMER_SLACK_MS;
use crate::outbound::Transfer;
use crate::outbound::flight::Mark;
use crate::outbound::loss::{CaState, PendingTimer};
use crate::outbound::recovery::{AckFlags, AckInfo};
use crate::path::Path;
use crate::seq::Seq;

impl Transfer {
    pub(crate) fn set_retransmit_timer(&mut self, now: Instant, wait: Duration) {
        self.loss.due = PendingTimer::Rto;
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
            self.loss.due = PendingTimer::Rto;
            self.retransmit.stop();
            return;
        };
        let at = match self.loss.due {
            PendingTimer::Rto => now + rto,
            PendingTimer::Probe | PendingTimer::Reorder => (first.at + rto).max(now),
        };
        self.loss.due = PendingTimer::Rto;
        self.retransmit.set(at);
    }

    /// New data was sent; `first`: nothing else was in flight.
    pub(crate) fn start_retransmit_timer(&mut self, path: &Path, now: Instant, first: bool) {
        if first || self.loss.due == PendingTimer::Probe || !self.retransmit.is_set() {
            if first {
                self.loss.due = PendingTimer::Rto;
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
        self.loss.due = PendingTimer::Probe;
        self.retransmit.set(now + wait);
        true
    }

    /// > RFC 8985 section 7.3: When the PTO timer expires, the sender MUST check whether both of the
    /// > following conditions are met [...] there is no other previous loss probe still in flight
    pub(crate) fn on_probe_timer(&mut self, now: Instant) {
        let recovery = self.recovery_mut();
        if recovery.probe_end.is_some() {
            self.rearm_rto(now);
        } else {
            recovery.probe_due = true;
        }
    }

    /// The segment to retransmit as a probe: its start, and how many sequence numbers it has.
    ///
    /// > RFC 8985 section 7.3: If there is new data to send and the receiver window allows [...] send
    /// > new data [...] else: retransmit the last segment
    pub(crate) fn probe_again(&self) -> Option<(Seq, u32)> {
        let last = self.flight.last().filter(|r| !r.mark.contains(Mark::SACKED))?;
        let start = last.last_segment();
        Some((start, last.end.since(start)))
    }

    /// A probe was sent. `again`: the range, if it was a retransmission.
    pub(crate) fn on_probe_sent(&mut self, now: Instant, again: Option<(Seq, Seq)>) {
        if let Some((start, end)) = again {
            self.flight.on_probe(start, end, now);
            let losses = &mut self.rare().losses;
            losses.retransmits = losses.retransmits.saturating_add(1);
        }
        let nxt = self.snd.nxt;
        let recovery = self.recovery_mut();
        recovery.probe_end = Some(nxt);
        recovery.probe_resent = again.is_some();
        self.loss.due = PendingTimer::Rto;
        self.rearm_rto(now);
    }

    /// > RFC 8985 section 7.4.2: TLP_process_ack(ACK): If TLP.end_seq is not NULL AND ACK's ack_no >=
    /// > TLP.end_seq: If not TLP.is_retrans: TLP.end_seq = NULL; elif ACK has a DSACK option matching
    /// > TLP.end_seq: TLP.end_seq = NULL; elif SEG.ACK > TLP.end_seq: Set TLP.end_seq to NULL; Invoke
    /// > congestion control to react to the loss event that TLP repaired; elif ACK is a DUPACK
    /// > without any SACK option: TLP.end_seq = NULL
    pub(crate) fn take_probe_answer(&mut self, ack: &AckInfo) {
        let una = self.snd.una;
        let Some(recovery) = self.recovery.as_deref_mut() else { return };
        let Some(end) = recovery.probe_end else { return };
        if una.lt(end) {
            return;
        }
        let plain = AckFlags::UNA_ADVANCED | AckFlags::NOT_DUP | AckFlags::DATA_SACKED;
        if !recovery.probe_resent || ack.flags.contains(AckFlags::DSACK_TLP) {
            recovery.probe_end = None;
        } else if una.gt(end) {
            self.init_cwnd_reduction();
            self.loss.state = CaState::Cwr;
            self.end_cwnd_reduction();
            self.try_keep_open();
        } else if !ack.flags.intersects(plain) {
            recovery.probe_end = None;
        }
    }
}
