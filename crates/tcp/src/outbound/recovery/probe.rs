//! Tail loss probes (RFC 8985 section 7): without an answer, one more segment asks for it.

use pagewire_mem::Instant;

use crate::outbound::Transfer;
use crate::outbound::flight::Mark;
use crate::outbound::loss::{CaState, Due};
use crate::outbound::recovery::{AckFlags, AckInfo};
use crate::seq::Seq;

impl Transfer {
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
            self.stats.retransmits = self.stats.retransmits.saturating_add(1);
        }
        let nxt = self.snd.nxt;
        let recovery = self.recovery_mut();
        recovery.probe_end = Some(nxt);
        recovery.probe_resent = again.is_some();
        self.loss.due = Due::Rto;
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
