//! Variant of step S1: sends that only add to a segment held back by Nagle or autocorking.
//!
//! Such a send changes the queue and nothing else: no segment leaves, no timer is set, readiness
//! stays. So it needs no clock, and nothing is polled after it. Most small sends are of this kind.

use pagewire_mem::{CopyLedger, CopyReason, Frag, Instant, PagePool, PageWriter};

use crate::connection::Connection;
use crate::io_flags::SendFlags;
use crate::limits::{MAX_SEND_BUFFER, SUPER_FRAME_SEGMENTS};
use crate::options::MAX_OPTIONS_LEN;
use crate::outbound::OutFlags;
use crate::outbound::account::SendLimit;
use crate::outbound::ecn::EcnFlags;
use crate::outbound::loss::CaState;
use crate::seq::Seq;

/// Flags with which a send may change more than the queue.
const DUE: OutFlags = OutFlags::FIN_QUEUED
    .union(OutFlags::FLUSH_DUE)
    .union(OutFlags::PROBE_DUE)
    .union(OutFlags::CORK)
    .union(OutFlags::MORE)
    .union(OutFlags::WAITS_FOR_ROOM);

impl Connection {
    /// Whether all unsent data waits to become a full segment:
    /// [`poll_transmit`](Self::poll_transmit) would return nothing new.
    #[inline]
    pub fn is_coalescing(&self) -> bool {
        let mss = self.out.transfer.send_mss(&self.path);
        let super_len = self.out.transfer.super_segment_len(&self.path, mss);
        !self.life.resets() && self.coalesces(0, mss, super_len)
    }

    /// Adds `len` bytes to the fragment queued last, if they only join a segment that is held back.
    /// `grow` adds them to the fragment, or returns `None`. Needs no clock; do not poll afterwards.
    pub fn coalesce<T>(
        &mut self,
        len: usize,
        grow: impl FnOnce(&mut Frag) -> Option<T>,
    ) -> Option<T> {
        let begun = self.begun_super_segment(len)?;
        let before = self.out.queue.end();
        let longest = self.path.longest_frag();
        let grown = self.out.queue.grow_last(longest, grow)??;
        debug_assert_eq!(self.out.queue.end(), before + len as u32, "it has grown by as much");
        self.out.super_segment = begun;
        self.out.pushed = self.out.queue.end();
        Some(grown)
    }

    /// Adds `len` bytes to the fragment queued last, if a part of it was never sent and there is
    /// room for all. `grow` adds them, or returns `None`. On `None`, [send](Self::send) them.
    pub fn extend_last<T>(
        &mut self,
        now: Instant,
        len: usize,
        grow: impl FnOnce(&mut Frag) -> Option<T>,
    ) -> Option<T> {
        let wanted = u32::try_from(len).ok().filter(|&len| len > 0 && len <= MAX_SEND_BUFFER)?;
        let ready = self.path.state().can_send()
            && self.life.error.is_none()
            && !self.out.flags.contains(OutFlags::FIN_QUEUED)
            && self.out.queue.has_room_for(1);
        if !ready || self.out.unsent(&self.path) == 0 {
            return None;
        }
        let (room, begun) = self.out.admit(&self.path, wanted);
        if room < wanted {
            return None;
        }
        let before = self.out.queue.end();
        let longest = self.path.longest_frag();
        let grown = self.out.queue.grow_last(longest, grow)??;
        debug_assert_eq!(self.out.queue.end(), before + wanted, "it has grown by as much");
        self.out.super_segment = begun;
        self.out.after_queueing(now, len, len, SendFlags::empty());
        Some(grown)
    }

    /// Queues a copy of all of `data`, if it only joins a segment that is held back; see
    /// [`coalesce`](Self::coalesce). On `false`, [write](Self::write) it.
    pub fn coalesce_copy(
        &mut self,
        pool: &mut PagePool,
        writer: &mut PageWriter,
        ledger: &mut CopyLedger,
        data: &[u8],
    ) -> bool {
        let Some(begun) = self.begun_super_segment(data.len()) else { return false };
        if !writer.has_room(pool, data.len()) {
            return false;
        }
        let (frags, _) = writer.write(pool, data, ledger, CopyReason::AppWrite);
        let longest = self.path.longest_frag();
        for frag in frags {
            self.out.queue.push(frag, longest);
        }
        self.out.super_segment = begun;
        self.out.pushed = self.out.queue.end();
        true
    }

    /// Where the super-segment begins that `len` more bytes fill further, if that is held back.
    #[inline]
    fn begun_super_segment(&self, len: usize) -> Option<Seq> {
        let len = u32::try_from(len).ok().filter(|&len| len > 0)?;
        let end = self.out.queue.end();
        let begun = self.out.super_segment.max(self.out.transfer.snd.nxt).min(end);
        let filled = end.saturating_since(begun);
        let ready = filled > 0
            && self.life.error.is_none()
            && !self.life.resets()
            && self.path.state().can_send()
            && self.out.limit != SendLimit::Idle
            && self.out.queue.has_room_for(1);
        if !ready {
            return None;
        }
        let mss = self.out.transfer.send_mss(&self.path);
        let super_len = self.out.transfer.super_segment_len(&self.path, mss);
        let adds = filled.saturating_add(len) <= super_len;
        (adds && self.coalesces(len, mss, super_len)).then_some(begun)
    }

    /// Whether everything queued was sent, and nothing else is due.
    pub(super) fn has_sent_all(&self) -> bool {
        self.out.unsent(&self.path) == 0
            && (!self.out.transfer.flight.is_empty() || !self.out.persist.is_set())
            && !self.out.transfer.flight.has_lost()
            && !self.out.flags.intersects(DUE)
            && self.path.state().may_transmit()
            && self.path.config().mtu_probing.is_none()
    }

    /// Whether all unsent data, and `more` bytes, wait for more.
    #[inline]
    fn coalesces(&self, more: u32, mss: u32, super_len: u32) -> bool {
        let unsent = self.out.unsent(&self.path);
        let waiting = unsent.saturating_add(more);
        !self.out.flags.intersects(DUE)
            && self.path.state().may_transmit()
            && !self.out.transfer.flight.is_empty()
            && unsent > 0
            && (self.autocorks(waiting, mss, super_len)
                || self.nagle_holds(waiting, mss, super_len))
    }

    /// Whether Nagle's algorithm holds back `waiting` bytes, which are less than a segment.
    fn nagle_holds(&self, waiting: u32, mss: u32, super_len: u32) -> bool {
        // SACK blocks make a segment shorter, and there may be more of them later.
        let spare = || {
            if self.inbound.has_sack_blocks(&self.path)
                || self.out.transfer.loss.ecn.contains(EcnFlags::ACCURATE)
            {
                MAX_OPTIONS_LEN as u32
            } else {
                0
            }
        };
        waiting < mss
            && waiting.saturating_add(spare()) < mss
            && self.out.holds_back_small()
            && self.out.left_of_super_segment(waiting, super_len) == waiting
    }

    /// Whether `unsent` bytes wait to become a full super-frame, as by Linux's `tcp_autocorking`.
    ///
    /// In memory, a frame of its own arrives no earlier, and each frame costs both sides. So data
    /// waits while more is in flight than the peer delays an acknowledgement for: the peer
    /// acknowledges that at once, and then the waiting data leaves.
    ///
    /// A connection without delay (`TCP_NODELAY`) does not wait, unless it forwards: there the
    /// option is for a segment that comes alone, and such a segment leaves at once.
    pub(super) fn autocorks(&self, unsent: u32, mss: u32, super_len: u32) -> bool {
        let (path, out) = (&self.path, &self.out);
        path.link.stays_in_memory()
            // The peer delays an acknowledgement for one segment of its size, not of ours.
            && out.transfer.in_flight() > u32::from(path.link.mss.max(out.transfer.snd.peer_mss))
            && !out.flags.intersects(DUE)
            && (!out.flags.contains(OutFlags::NODELAY) || path.forwards)
            && out.transfer.loss.state < CaState::Recovery
            && out.queue.end() != out.flush_to
            && !out.sends_urgent()
            && out.transfer.rtt.is_near()
            && unsent < self.longest_now(mss)
            && out.left_of_super_segment(unsent.saturating_add(1), super_len) > unsent
    }

    /// Payload of the longest super-frame that can leave now: an unused window does not grow.
    fn longest_now(&self, mss: u32) -> u32 {
        let segments = mss.saturating_mul(SUPER_FRAME_SEGMENTS);
        let longest =
            self.path.link.max_super_payload.min(segments).min(self.out.transfer.cwnd_room(mss));
        longest.min(self.path.config().notsent_lowat)
    }
}
