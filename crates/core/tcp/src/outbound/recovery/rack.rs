//! RACK, loss by time (RFC 8985 section 6): the latest delivered segment, and the window for reordering.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::limits::{RACK_PERSIST_RECOVERIES, TIMER_SLACK_MS};
use crate::outbound::Transfer;
use crate::outbound::flight::{Delivered, LossScan};
use crate::outbound::loss::{CaState, PendingTimer};
use crate::outbound::recovery::{AckFlags, AckInfo, RexmitMode};
use crate::path::Path;

impl Transfer {
    /// > RFC 8985 section 6.2, step 2: Update the state for the most recently sent segment that has
    /// > been delivered
    pub(crate) fn rack_advance(&mut self, path: &Path, delivered: &Delivered) {
        // Without SACK it is unknown which transmission arrived.
        let Some(rtt) = delivered.rack_rtt.filter(|_| path.sack_ok) else { return };
        self.loss.advanced = true;
        let rack = &mut self.loss.rack;
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
    pub(crate) fn adapt_reordering_window(&mut self, ack: &AckInfo) {
        let (una, nxt, seen) = (self.snd.una, self.snd.nxt, self.losses().reord_seen > 0);
        let relevant =
            ack.flags.contains(AckFlags::DSACK) && !ack.flags.contains(AckFlags::DSACK_TLP) && seen;
        let Some(recovery) = self.recovery.as_deref_mut() else { return };
        if recovery.dsack_round.is_some_and(|round| una.ge(round)) {
            recovery.dsack_round = None;
        }
        if relevant && recovery.dsack_round.is_none() {
            recovery.dsack_round = Some(nxt);
            let rare = self.rare();
            rare.reo_wnd_more = rare.reo_wnd_more.saturating_add(1);
            rare.reo_wnd_persist = RACK_PERSIST_RECOVERIES;
        } else if let Some(rare) = self.rare.as_deref_mut().filter(|r| r.reo_wnd_persist == 0) {
            rare.reo_wnd_more = 0;
        }
    }

    /// > RFC 8985 section 6.2, step 5: For each segment [...] not yet acknowledged [...] if
    /// > RACK_sent_after(RACK.xmit_ts, RACK.end_seq, segment.xmit_ts, segment.end_seq): remaining =
    /// > segment.xmit_ts + RACK.rtt + RACK.reo_wnd - now; if remaining <= 0: segment.lost = TRUE
    /// > else: timeout = max(remaining, timeout)
    pub(crate) fn detect_loss_after_ack(&mut self, now: Instant) -> LossScan {
        if !core::mem::take(&mut self.loss.advanced) {
            return LossScan::default();
        }
        self.rack_detect_loss(now)
    }

    /// Detects losses again in `wait`, plus the slack of Linux's clock.
    pub(crate) fn await_reordering(&mut self, now: Instant, wait: Duration) {
        self.set_retransmit_timer(now, wait + Duration::from_millis(TIMER_SLACK_MS));
        self.loss.due = PendingTimer::Reorder;
    }

    /// The reordering window has closed.
    pub(crate) fn on_reordering_timer(&mut self, now: Instant) {
        let before = self.packets_in_flight();
        let aged = self.rack_detect_loss(now);
        if let Some(wait) = aged.wait {
            self.await_reordering(now, wait);
        }
        if before != self.packets_in_flight() {
            if self.loss.state != CaState::Recovery {
                self.enter_recovery(now, false);
                self.reduce_cwnd(&AckInfo { delivered: 1, lost: aged.lost, ..AckInfo::default() });
            }
            self.recovery_mut().resend = RexmitMode::Lost;
        }
        if aged.wait.is_none() {
            self.rearm_rto(now);
        }
    }

    /// > RFC 8985 section 6.2, step 4: if (!RACK.reordering_seen) { if (in_loss_recovery ||
    /// > RACK.segs_sacked >= DupThresh) return 0 } return min(RACK.reo_wnd_mult * RACK.min_RTT / 4,
    /// > SRTT)
    ///
    fn reordering_window(&self) -> Duration {
        if self.losses().reord_seen == 0
            && (self.loss.state >= CaState::Recovery
                || self.sacked_packets() >= u32::from(self.loss.reordering))
        {
            return Duration::ZERO;
        }
        let min = self.rtt.min().unwrap_or_default();
        let srtt = self.rtt.srtt().unwrap_or_default();
        let steps = 1 + self.rare.as_ref().map_or(0, |rare| u32::from(rare.reo_wnd_more));
        (min / 4 * steps).min(srtt)
    }

    fn rack_detect_loss(&mut self, now: Instant) -> LossScan {
        let rack = self.loss.rack;
        let age = Duration::from_micros(u64::from(rack.rtt_us)) + self.reordering_window();
        self.recovery_mut();
        let Some(recovery) = self.recovery.as_deref_mut() else { return LossScan::default() };
        let aged = self.flight.mark_aged(
            now,
            (rack.at, rack.end),
            age,
            &mut recovery.rack_checked,
            &mut recovery.resent,
        );
        if let Some(first) = aged.first {
            recovery.retransmit_hint = recovery.retransmit_hint.min(first);
        }
        aged
    }
}
