//! Byte path, step R6: the receive queue keeps payload until the application takes it.
//!
//! ```text
//!          in_order                        out_of_order (boxed, only after a loss)
//!   |frag|frag|frag......|          |frag|frag|        |frag|
//!   ^                    ^          ^         ^        ^    ^
//!   read, take        next        start      end     start end
//!                     (rcv_nxt)     \__ a range _/   \_ range _/
//! ```
//!
//! The queue counts bytes *buffered*, and bytes of memory *pinned* for them, which the window is charged
//! with. A peer that sends a byte at a time must not pin a page for each: a small segment is copied
//! into shared pages ([`SMALL_SEGMENT`]), and beyond a threshold the whole queue is compacted
//! ([`COMPACT_FACTOR`]). The copy ledger counts both.
//!
//! Bytes that arrive twice do not replace the first: selectively acknowledged bytes never change.

mod out_of_order;
mod run;

use out_of_order::OutOfOrder;
use pagewire_mem::{Frag, FragVec};
use run::{FragRun, split_front};

pub(crate) use run::Each;
pub use run::Parts;

use crate::error::DropReason;
use crate::limits::{
    COMPACT_FACTOR, COMPACT_MIN_PINNED, REFUSE_FACTOR, REFUSE_MIN_PINNED, RESERVE_BEYOND_GAP,
    RESERVE_SEGMENT, SMALL_SEGMENT,
};
use crate::options::SackBlocks;
use crate::seq::Seq;
use crate::shared::Env;

#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) in_order: FragRun,
    out_of_order: Option<Box<OutOfOrder>>,
    /// Compaction starts at this many pinned bytes, and raises it, to follow the arriving data.
    compact_at: u32,
    next: Seq,
    /// The last compaction ran out of pages.
    out_of_pages: bool,
    /// The application has read before.
    read_from: bool,
    /// Bytes of memory that were read and wait to be forwarded: they count as unread.
    held: u32,
}

/// The result of queueing a segment's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Bytes by which the in-order data has grown.
    pub(crate) advanced: u32,
    /// The payload lies beyond a gap, whether it was new or not.
    pub(crate) out_of_order: bool,
    /// The first range of the payload that had arrived before, for D-SACK (RFC 2883).
    pub(crate) duplicate: Option<(Seq, Seq)>,
    /// Why new payload, or a part of it, was dropped.
    pub(crate) dropped: Option<DropReason>,
}

impl Inserted {
    /// > RFC 2883 section 4: (1) A D-SACK block is only used to report a duplicate contiguous
    /// > sequence of data received by the receiver in the most recent packet.
    ///
    /// An acknowledgement has one such block: the first range stays.
    fn note_duplicate(&mut self, left: Seq, right: Seq) {
        match &mut self.duplicate {
            None => self.duplicate = Some((left, right)),
            Some((_, end)) if *end == left => *end = right,
            Some(_) => {}
        }
    }
}

impl ReceiveQueue {
    /// An empty queue that waits for the byte numbered `next`. No heap.
    pub(crate) fn new(next: Seq) -> Self {
        Self { compact_at: COMPACT_MIN_PINNED as u32, next, ..Self::default() }
    }

    /// The number of the first byte that is missing.
    pub(crate) const fn next(&self) -> Seq {
        self.next
    }

    /// Bytes that the application can take.
    pub(crate) const fn queued(&self) -> usize {
        self.in_order.len()
    }

    /// Bytes held, those beyond gaps included.
    #[inline]
    pub(crate) fn buffered(&self) -> usize {
        self.in_order.len() + self.out_of_order.as_ref().map_or(0, |o| o.len())
    }

    /// Bytes of memory pinned by what is held, bookkeeping included.
    #[inline]
    pub(crate) fn pinned(&self) -> usize {
        self.in_order.pinned() + self.out_of_order.as_ref().map_or(0, |o| o.pinned())
    }

    /// The charge to the host's budget: pinned memory, without the shared pages of small segments.
    #[inline]
    pub(crate) fn charge(&self) -> usize {
        self.pinned().min(COMPACT_FACTOR * self.buffered() + SMALL_SEGMENT)
    }

    /// The charge with data that waits to be forwarded, charged to the connection that sends it.
    pub(crate) fn charge_with_held(&self) -> usize {
        self.charge() + self.held as usize
    }

    /// Sets the bytes of memory that wait to be forwarded. Returns whether they are fewer.
    pub(crate) fn set_held(&mut self, bytes: usize) -> bool {
        let held = saturated(bytes);
        core::mem::replace(&mut self.held, held) > held
    }

    pub(crate) fn has_gaps(&self) -> bool {
        self.out_of_order.as_ref().is_some_and(|o| !o.is_empty())
    }

    /// Queues the payload `frags` from `seq` on. The caller has cut it to the window: nothing in it
    /// is 2^30 or more from [`next`](Self::next).
    pub(crate) fn insert(&mut self, env: &mut Env<'_>, seq: Seq, mut frags: FragVec) -> Inserted {
        let mut len = frags.iter().map(Frag::len).sum::<usize>() as u32;
        if len == 0 {
            return Inserted::default();
        }
        let mut dropped = None;
        if !env.shared.memory.is_ample(len as usize) {
            let most = self.most_at_once(env, seq, len);
            let refused = self.is_refused(env, seq, most);
            if refused || most < len {
                dropped = Some(DropReason::HostMemory);
            }
            if refused {
                let out_of_order = seq.gt(self.next);
                return Inserted { out_of_order, dropped, ..Inserted::default() };
            }
            if most < len {
                frags = split_front(&mut frags, most as usize);
                len = most;
            }
        }
        let mut inserted = if seq == self.next && !self.has_gaps() && !self.pins_too_much() {
            self.in_order.push_segment(env, frags, len as usize);
            self.next += len;
            Inserted { advanced: len, ..Inserted::default() }
        } else {
            self.insert_anywhere(env, seq, frags, len)
        };
        let pinned = self.pinned();
        if pinned > self.compact_at as usize && pinned > COMPACT_FACTOR * self.buffered() {
            self.compact(env);
        }
        inserted.dropped = inserted.dropped.or(dropped);
        inserted
    }

    /// How much of a segment to queue when the host's memory is short. A connection that holds
    /// nothing may exceed its share, but not by a super-frame: the peer retransmits the rest.
    ///
    /// Data beyond a gap is of no use yet. A little of it shows the peer by SACK what is missing, which
    /// would otherwise wait for a timeout.
    #[cold]
    fn most_at_once(&self, env: &Env<'_>, seq: Seq, len: u32) -> u32 {
        if seq.gt(self.next) {
            let beyond = self.out_of_order.as_ref().map_or(0, |ranges| ranges.len());
            return len.min(saturated(RESERVE_BEYOND_GAP.saturating_sub(beyond)));
        }
        if seq != self.next || !self.in_order.is_empty() || self.held > 0 {
            return len;
        }
        len.min(saturated(env.shared.memory.ample().max(RESERVE_SEGMENT)))
    }

    /// Whether the host has no memory for this payload, or none for this connection.
    #[cold]
    fn is_refused(&mut self, env: &Env<'_>, seq: Seq, len: u32) -> bool {
        let (budget, len) = (&env.shared.memory, len as usize);
        if (seq + len as u32).le(self.next) {
            return false;
        }
        if seq.gt(self.next) {
            return len == 0 || !budget.has_room(len, false, true);
        }
        if !self.in_order.is_empty() || self.held > 0 {
            return !budget.has_room(len, self.read_from, true)
                || self.charge_with_held() + len > budget.share();
        }
        // The application waits for the next byte in order, which precedes data beyond gaps:
        //
        // > RFC 2018 section 8: the data receiver is permitted to discard data in its queue that
        // > has not been acknowledged to the data sender, even if the data has already been
        // > reported in a SACK option. Such discarding of SACKed packets is discouraged, but may
        // > be used if the receiver runs out of buffer space.
        if !budget.has_room(len, self.read_from, false) {
            // Drops nothing if that would not be enough.
            if self.charge() < len {
                return true;
            }
            self.out_of_order = None;
        }
        false
    }

    /// Queues payload that overlaps, lies beyond a gap, or fills one.
    fn insert_anywhere(
        &mut self,
        env: &mut Env<'_>,
        mut seq: Seq,
        mut frags: FragVec,
        mut len: u32,
    ) -> Inserted {
        let mut inserted = Inserted::default();
        if seq.lt(self.next) {
            let old = self.next.since(seq).min(len);
            inserted.note_duplicate(seq, seq + old);
            if old == len {
                return inserted;
            }
            drop(split_front(&mut frags, old as usize));
            (seq, len) = (seq + old, len - old);
        }
        inserted.out_of_order = seq != self.next;

        if self.pins_too_much() && self.out_of_pages && env.pool.stats().free > 0 {
            self.compact(env);
        }
        // The next byte in order is always queued for an application that has nothing to read.
        if self.pins_too_much() && (inserted.out_of_order || !self.in_order.is_empty()) {
            inserted.dropped = Some(DropReason::ReceiveMemory);
            return inserted;
        }

        if inserted.out_of_order {
            let ranges = self.out_of_order.get_or_insert_with(Box::default);
            ranges.insert(env, seq, frags, len, &mut inserted);
        } else {
            let before = self.next;
            self.fill(env, frags, len, &mut inserted);
            inserted.advanced = self.next.since(before);
        }
        inserted
    }

    /// Appends `len` bytes in order, and the ranges that they connect.
    fn fill(&mut self, env: &mut Env<'_>, mut frags: FragVec, len: u32, inserted: &mut Inserted) {
        let end = self.next + len;
        // The ranges that begin within the segment, or at its end.
        while let Some(range) =
            self.out_of_order.as_mut().and_then(|ranges| ranges.pop_front_if_at_or_before(end))
        {
            let fresh = split_front(&mut frags, range.start.since(self.next) as usize);
            self.append(env, fresh);
            // The range's bytes arrived first: they stay, the segment's go.
            let overlap = range.end().min(end).since(range.start);
            if overlap > 0 {
                drop(split_front(&mut frags, overlap as usize));
                inserted.note_duplicate(range.start, range.start + overlap);
            }
            self.next = range.end();
            self.in_order.append(range.run);
        }
        self.append(env, frags);
    }

    fn append(&mut self, env: &mut Env<'_>, frags: FragVec) {
        let len = frags.iter().map(Frag::len).sum::<usize>();
        self.next += len as u32;
        self.in_order.push_segment(env, frags, len);
    }

    pub(crate) fn sack_blocks(&self, out: &mut SackBlocks) {
        if let Some(ranges) = &self.out_of_order {
            ranges.sack_blocks(out);
        }
    }

    /// Copies in-order bytes into `dst` and drops them; returns how many.
    pub(crate) fn read(&mut self, env: &mut Env<'_>, dst: &mut [u8]) -> usize {
        let n = self.in_order.read(env, dst);
        self.settle();
        n
    }

    /// Moves up to `max` in-order bytes to `out` by reference; returns how many.
    pub(crate) fn take(&mut self, max: usize, out: &mut impl Extend<Frag>) -> usize {
        let n = self.in_order.take(max, out);
        self.settle();
        n
    }

    pub(crate) fn shrink(&mut self) {
        if self.in_order.is_empty() {
            self.in_order = FragRun::default();
        }
        if !self.has_gaps() {
            self.out_of_order = None;
        }
    }

    /// Copies memory with a completion, which its owner waits for, as far as there are pages.
    #[cold]
    pub(crate) fn give_back(&mut self, env: &mut Env<'_>) -> bool {
        let copied = self.in_order.give_back(env);
        copied & self.out_of_order.as_mut().is_none_or(|ranges| ranges.give_back(env))
    }

    /// After a read: an empty queue may be compacted early again.
    fn settle(&mut self) {
        self.read_from = true;
        if self.in_order.is_empty() && !self.has_gaps() {
            self.compact_at = COMPACT_MIN_PINNED as u32;
            self.out_of_pages = false;
        }
    }

    fn pins_too_much(&self) -> bool {
        let pinned = self.pinned();
        pinned > REFUSE_MIN_PINNED && pinned > REFUSE_FACTOR * self.buffered()
    }

    /// Copies the payload into as few pages as possible.
    #[cold]
    fn compact(&mut self, env: &mut Env<'_>) {
        let mut packed = self.in_order.compact(env);
        if let Some(ranges) = &mut self.out_of_order {
            packed &= ranges.compact(env);
        }
        self.out_of_pages = !packed;
        self.compact_at = saturated(COMPACT_MIN_PINNED.max(2 * self.pinned()));
    }
}

#[cfg(test)]
mod tests;

/// Sizes of memory are kept in 32 bits, to keep a connection small.
fn saturated(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
