//! Proportional rate reduction: the congestion window during a recovery (RFC 6937).

use crate::outbound::Transfer;
use crate::outbound::loss::CaState;
use crate::outbound::recovery::{AckFlags, AckInfo};

impl Transfer {
    /// The threshold that an undo restores.
    pub(crate) fn current_ssthresh(&self) -> u32 {
        let (cwnd, ssthresh) = (self.congestion.cwnd(), self.congestion.ssthresh());
        if self.loss.is_reducing() { ssthresh } else { ssthresh.max(cwnd / 2 + cwnd / 4) }
    }

    /// > RFC 6937 section 3: At the beginning of recovery, initialize PRR state. [...]
    /// > ssthresh = CongCtrlAlg() [...] prr_delivered = 0 [...] prr_out = 0 [...] RecoverFS =
    /// > snd.nxt-snd.una
    ///
    /// As Linux the congestion window takes the place of RecoverFS.
    pub(crate) fn init_cwnd_reduction(&mut self) {
        self.loss.high_seq = self.snd.nxt;
        let (cwnd, flight) = (self.congestion.cwnd(), self.flight.packets);
        self.congestion.cut(flight);
        let recovery = self.recovery_mut();
        recovery.probe_end = None;
        recovery.prior_cwnd = cwnd;
        recovery.prr_delivered = 0;
        recovery.prr_out = 0;
        self.queue_cwr();
    }

    /// > RFC 6937 section 3: On every ACK during recovery compute: [...] if (pipe > ssthresh) {
    /// > sndcnt = CEIL(prr_delivered * ssthresh / RecoverFS) - prr_out } else { [...] PRR-SSRB:
    /// > limit = MAX(prr_delivered - prr_out, DeliveredData) + MSS; sndcnt = MIN(ssthresh - pipe,
    /// > limit) } On any data transmission or retransmission: prr_out += (data sent)
    ///
    /// RFC 6937bis, as Linux: one more only when the acknowledgement advances without a new loss. After
    /// a mark alone nothing was lost, so delivered segments bound those that leave.
    pub(crate) fn reduce_cwnd(&mut self, ack: &AckInfo) {
        let (in_flight, ssthresh) = (self.packets_in_flight(), self.congestion.ssthresh());
        let recovering = self.loss.state == CaState::Recovery;
        let Some(recovery) = self.recovery.as_deref_mut() else { return };
        if ack.delivered == 0 || recovery.prior_cwnd == 0 {
            return;
        }
        recovery.prr_delivered += ack.delivered;
        let (delivered, out) = (u64::from(recovery.prr_delivered), u64::from(recovery.prr_out));
        let count = if in_flight > ssthresh {
            let share = (delivered * u64::from(ssthresh)).div_ceil(u64::from(recovery.prior_cwnd));
            share.saturating_sub(out)
        } else {
            let safe = recovering && ack.flags.contains(AckFlags::UNA_ADVANCED) && ack.lost == 0;
            let limit = delivered.saturating_sub(out).max(u64::from(ack.delivered));
            (limit + u64::from(safe)).min(u64::from(ssthresh - in_flight))
        };
        // The first retransmission leaves at once.
        let count = count.max(u64::from(out == 0));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.congestion.set_cwnd(in_flight.saturating_add(count));
    }

    /// `packets` wire segments were sent.
    #[inline]
    pub(crate) fn note_reduced_send(&mut self, packets: u32) {
        if self.loss.is_reducing()
            && let Some(recovery) = self.recovery.as_deref_mut()
        {
            recovery.prr_out += packets;
        }
    }

    /// > RFC 6937 section 3, RFC 5681: cwnd is set to ssthresh at the end of recovery
    ///
    /// unless the reduction was undone.
    pub(crate) fn end_cwnd_reduction(&mut self) {
        if (self.loss.state == CaState::Cwr || self.has_undo_marker())
            && self.congestion.has_ssthresh()
        {
            self.congestion.set_cwnd(self.congestion.ssthresh());
        }
    }

    /// > RFC 3168 section 6.1.2: If the sender receives an ECN-Echo (ECE) ACK packet [...] the
    /// > congestion window should be reduced [...] TCP should not react to congestion indications
    /// > more than once every window of data
    pub(crate) fn enter_cwr(&mut self) {
        let below = self.loss.state < CaState::Cwr;
        let recovery = self.recovery_mut();
        recovery.prior_ssthresh = 0;
        if below {
            recovery.undo_marker = None;
            self.init_cwnd_reduction();
            self.loss.state = CaState::Cwr;
        }
    }
}
