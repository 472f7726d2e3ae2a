//! Data that waits to become a full segment: Nagle's algorithm and autocorking.

use crate::limits::SUPER_FRAME_SEGMENTS;
use crate::options::MAX_OPTIONS_LEN;
use crate::outbound::account::Limit;
use crate::outbound::ecn::EcnFlags;
use crate::outbound::loss::CaState;
use crate::outbound::{OutFlags, Outbound, Transfer};
use crate::path::Path;
use crate::seq::Seq;

/// Flags with which a send may change more than the queue.
const DUE: OutFlags = OutFlags::FIN_QUEUED
    .union(OutFlags::FLUSH_DUE)
    .union(OutFlags::PROBE_DUE)
    .union(OutFlags::CORK)
    .union(OutFlags::MORE)
    .union(OutFlags::WAITS_FOR_ROOM);

impl Outbound {
    /// Whether everything queued was sent, and nothing else is due.
    pub(crate) fn has_sent_all(&self, path: &Path) -> bool {
        self.unsent(path) == 0
            && (!self.transfer.flight.is_empty() || !self.persist.is_set())
            && !self.transfer.flight.has_lost()
            && !self.flags.intersects(DUE)
            && path.state().may_transmit()
            && path.config().mtu_probing.is_none()
    }

    /// Whether all unsent data, and `more` bytes, wait for more. `blocks`: SACK blocks are due.
    pub(crate) fn coalesces(
        &self,
        path: &Path,
        more: u32,
        mss: u32,
        super_len: u32,
        blocks: impl Fn() -> bool,
    ) -> bool {
        let unsent = self.unsent(path);
        let waiting = unsent.saturating_add(more);
        !self.flags.intersects(DUE)
            && path.state().may_transmit()
            && !self.transfer.flight.is_empty()
            && unsent > 0
            && (self.autocorks(path, waiting, mss, super_len)
                || self.nagle_holds(waiting, mss, super_len, blocks))
    }

    /// Whether Nagle's algorithm holds back `waiting` bytes, which are less than a segment.
    fn nagle_holds(
        &self,
        waiting: u32,
        mss: u32,
        super_len: u32,
        blocks: impl Fn() -> bool,
    ) -> bool {
        // SACK blocks make a segment shorter, and there may be more of them later.
        let spare = || {
            if blocks() || self.transfer.loss.ecn.contains(EcnFlags::ACCURATE) {
                MAX_OPTIONS_LEN as u32
            } else {
                0
            }
        };
        waiting < mss
            && waiting.saturating_add(spare()) < mss
            && self.holds_back_small()
            && self.left_of_super_segment(waiting, super_len) == waiting
    }

    /// Whether `unsent` bytes wait to become a full super-frame, as by Linux's `tcp_autocorking`.
    ///
    /// In memory, a frame of its own arrives no earlier, and each frame costs both sides. So data
    /// waits while more is in flight than the peer delays an acknowledgement for: the peer
    /// acknowledges that at once, and then the waiting data leaves.
    ///
    /// A connection without delay (`TCP_NODELAY`) does not wait, unless it forwards: there the
    /// option is for a segment that comes alone, and such a segment leaves at once.
    pub(crate) fn autocorks(&self, path: &Path, unsent: u32, mss: u32, super_len: u32) -> bool {
        path.link.stays_in_memory()
            // The peer delays an acknowledgement for one segment of its size, not of ours.
            && self.transfer.in_flight() > u32::from(path.link.mss.max(self.transfer.snd.peer_mss))
            && !self.flags.intersects(DUE)
            && (!self.flags.contains(OutFlags::NODELAY) || path.forwards)
            && self.transfer.loss.state < CaState::Recovery
            && self.queue.end() != self.flush_to
            && !self.sends_urgent()
            && self.transfer.rtt.is_near()
            && unsent < self.transfer.longest_now(path, mss)
            && self.left_of_super_segment(unsent.saturating_add(1), super_len) > unsent
    }

    /// Where the super-segment begins that `len` more bytes fill further, if that is held back.
    pub(crate) fn begun_super_segment(
        &self,
        path: &Path,
        len: usize,
        blocks: impl Fn() -> bool,
    ) -> Option<Seq> {
        let len = u32::try_from(len).ok().filter(|&len| len > 0)?;
        let end = self.queue.end();
        let begun = self.super_segment.max(self.transfer.snd.nxt).min(end);
        let filled = end.saturating_since(begun);
        let ready = filled > 0
            && path.state().can_send()
            && self.limit != Limit::Idle
            && self.queue.has_room_for(1);
        if !ready {
            return None;
        }
        let mss = self.transfer.send_mss(path);
        let super_len = self.transfer.super_segment_len(path, mss);
        let adds = filled.saturating_add(len) <= super_len;
        (adds && self.coalesces(path, len, mss, super_len, blocks)).then_some(begun)
    }
}

impl Transfer {
    /// Payload of the longest super-frame that can leave now: an unused window does not grow.
    fn longest_now(&self, path: &Path, mss: u32) -> u32 {
        let segments = mss.saturating_mul(SUPER_FRAME_SEGMENTS);
        let longest = path.link.max_super_payload.min(segments).min(self.cwnd_room(mss));
        longest.min(path.config().notsent_lowat)
    }
}
