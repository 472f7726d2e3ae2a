//! Variant of step S1: sends that only add to a segment held back by Nagle or autocorking.
//!
//! Such a send changes the queue and nothing else: no segment leaves, no timer is set, readiness
//! stays. So it needs no clock, and nothing is polled after it. Most small sends are of this kind.

use pagewire_mem::{CopyLedger, CopyReason, Frag, Instant, PagePool, PageWriter};

use crate::connection::Connection;
use crate::io_flags::SendFlags;
use crate::limits::MAX_SEND_BUFFER;
use crate::outbound::OutFlags;
use crate::seq::Seq;

impl Connection {
    /// Whether all unsent data waits to become a full segment:
    /// [`poll_transmit`](Self::poll_transmit) would return nothing new.
    #[inline]
    pub fn is_coalescing(&self) -> bool {
        let (path, out) = (&self.path, &self.out);
        let mss = out.transfer.send_mss(path);
        let super_len = out.transfer.super_segment_len(path, mss);
        let blocks = || self.inbound.tells_blocks(path);
        self.life.reset.is_none() && out.coalesces(path, 0, mss, super_len, blocks)
    }

    /// Adds `len` bytes to the fragment queued last, if they only join a segment that is held back.
    /// `grow` adds them to the fragment, or returns `None`. Needs no clock; do not poll afterwards.
    pub fn coalesce<T>(
        &mut self,
        len: usize,
        grow: impl FnOnce(&mut Frag) -> Option<T>,
    ) -> Option<T> {
        let begun = self.super_segment_to_fill(len)?;
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
        let Some(begun) = self.super_segment_to_fill(data.len()) else { return false };
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

    fn super_segment_to_fill(&self, len: usize) -> Option<Seq> {
        let quiet = self.life.error.is_none() && self.life.reset.is_none();
        if quiet {
            self.out.begun_super_segment(&self.path, len, || self.inbound.tells_blocks(&self.path))
        } else {
            None
        }
    }
}
