//! Retransmissions: the next lost range that fits the windows, and the record of its leaving.
//! `connection/output.rs` sends it.

use pagewire_mem::Instant;

use crate::outbound::Transfer;
use crate::outbound::flight::SentRange;
use crate::outbound::loss::{CaState, PendingTimer};
use crate::outbound::recovery::RexmitMode;
use crate::path::Path;
use crate::seq::Seq;

impl Transfer {
    /// New data was tried before lost data: decides whether the lost data leaves now.
    pub(crate) fn new_data_tried(&mut self) {
        let sent = self.snd.nxt.gt(self.loss.high_seq);
        if let Some(recovery) = self.recovery.as_deref_mut() {
            if sent {
                recovery.resend = RexmitMode::No;
            } else {
                recovery.frto = false;
                recovery.resend = RexmitMode::Lost;
            }
        }
    }

    /// The next retransmission: start and sequence numbers; `mss`: payload of a full segment now.
    pub(crate) fn next_retransmission(&mut self, path: &Path, mss: u32) -> Option<(Seq, u32)> {
        let una = self.snd.una;
        let recovery = self.recovery.as_deref_mut()?;
        if recovery.resend != RexmitMode::Lost {
            return None;
        }
        let record = self.flight.next_lost(recovery.retransmit_hint.max(una))?;
        recovery.retransmit_hint = record.start;
        self.fit_retransmission(path, &record, mss)
    }

    /// `start..end` was retransmitted in wire segments of `mss` payload bytes.
    pub(crate) fn on_retransmitted(&mut self, now: Instant, start: Seq, end: Seq, mss: u32) {
        let packets = self.flight.on_retransmit(start, end, now, mss);
        let losses = &mut self.rare().losses;
        losses.retransmits = losses.retransmits.saturating_add(packets);
        self.note_reduced_send(packets);
        self.recovery_mut();
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.undo_retrans = Some(recovery.undo_retrans.unwrap_or(0) + packets);
            recovery.retrans_stamp.get_or_insert(now);
            recovery.retransmit_hint = recovery.retransmit_hint.max(end);
            self.flight.list_resent(start, end, now, &mut recovery.resent);
        }
        // After a timeout, the timer is set already.
        if start == self.snd.una
            && self.loss.due != PendingTimer::Reorder
            && (self.loss.state != CaState::Loss || self.loss.retries == 0)
        {
            self.loss.due = PendingTimer::Rto;
            self.rearm_rto(now);
        }
    }

    /// The device refused `packets` retransmitted wire segments from `start` on.
    pub(crate) fn on_retransmission_refused(&mut self, start: Seq, packets: u32) {
        let losses = &mut self.rare().losses;
        losses.retransmits = losses.retransmits.saturating_sub(packets);
        let reducing = self.loss.is_reducing();
        let Some(recovery) = self.recovery.as_deref_mut() else { return };
        if start.lt(recovery.retransmit_hint) {
            recovery.retransmit_hint = start;
        }
        if reducing {
            recovery.prr_out = recovery.prr_out.saturating_sub(packets);
        }
        // `None`, not `Some(0)`, which would undo the reduction.
        let left = recovery.undo_retrans.and_then(|count| count.checked_sub(packets));
        recovery.undo_retrans = left.filter(|&left| left > 0);
    }

    /// As much of a record as congestion window and peer allow.
    fn fit_retransmission(&self, path: &Path, record: &SentRange, mss: u32) -> Option<(Seq, u32)> {
        let packets = self.congestion.cwnd().saturating_sub(self.packets_in_flight());
        let mut room = packets.saturating_mul(mss);
        // A peer that shrinks its window gets the first segment as a probe.
        let allowed = self.send_edge().saturating_since(record.start);
        room = match (allowed, record.start == self.snd.una) {
            (0, false) => return None,
            (0, true) => room.min(mss),
            _ => room.min(allowed.max(mss)),
        };
        if room == 0 {
            return None;
        }
        // A FIN takes no room in the last wire segment.
        let room = room.min(self.super_payload(path, mss));
        if record.payload() <= room {
            Some((record.start, record.len()))
        } else {
            Some((record.start, (room - room % mss).max(room.min(mss))))
        }
    }
}
