//! Data beyond gaps: ordered ranges that neither overlap nor touch.

use std::collections::VecDeque;

use pagewire_mem::FragVec;

use crate::error::DropReason;
use crate::inbound::receive_queue::Inserted;
use crate::inbound::receive_queue::run::{FragRun, split_front};
use crate::limits::MAX_OUT_OF_ORDER_RANGES;
use crate::options::SackBlocks;
use crate::seq::Seq;
use crate::shared::Env;

#[derive(Debug, Default)]
pub(super) struct OutOfOrder {
    ranges: VecDeque<OutOfOrderRange>,
    len: usize,
    pinned: usize,
    /// A byte in each range that changed last, the latest first; several may share a range by now.
    recent: [Option<Seq>; SackBlocks::MAX],
}

/// Consecutive bytes, at least one.
#[derive(Debug)]
pub(super) struct OutOfOrderRange {
    pub(super) start: Seq,
    pub(super) run: FragRun,
}

impl OutOfOrderRange {
    pub(super) fn end(&self) -> Seq {
        self.start + self.run.len() as u32
    }

    fn contains(&self, seq: Seq) -> bool {
        seq.in_window(self.start, self.run.len() as u32)
    }
}

impl OutOfOrder {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) const fn pinned(&self) -> usize {
        self.pinned
    }

    /// Inserts `len` bytes from `seq` on, where there are none yet.
    pub(super) fn insert(
        &mut self,
        env: &mut Env<'_>,
        mut seq: Seq,
        mut frags: FragVec,
        len: u32,
        inserted: &mut Inserted,
    ) {
        let (first, end) = (seq, seq + len);
        while seq != end {
            // The first range that ends after `seq`: it covers `seq`, or bounds the gap there.
            let i = self.ranges.partition_point(|range| range.end().le(seq));
            let (start, covered) = match self.ranges.get(i) {
                Some(range) if range.start.lt(end) => (range.start, range.end().min(end)),
                _ => (end, end),
            };
            if seq.lt(start) {
                let fresh = split_front(&mut frags, start.since(seq) as usize);
                if !self.fill_gap(env, i, seq, fresh, start.since(seq) as usize) {
                    inserted.dropped = Some(DropReason::OutOfOrderLimit);
                }
                seq = start;
            } else {
                drop(split_front(&mut frags, covered.since(seq) as usize));
                inserted.note_duplicate(seq, covered);
                seq = covered;
            }
        }
        self.touch(first);
    }

    /// Inserts `len` bytes in the gap before range `i`, and joins ranges; `false`: too many ranges.
    fn fill_gap(
        &mut self,
        env: &mut Env<'_>,
        i: usize,
        seq: Seq,
        frags: FragVec,
        len: usize,
    ) -> bool {
        let end = seq + len as u32;
        let left = i.checked_sub(1).filter(|&l| self.ranges.get(l).is_some_and(|r| r.end() == seq));
        let right = self.ranges.get(i).is_some_and(|r| r.start == end);
        let before = self.pinned_around(i);
        match (left.and_then(|l| self.ranges.get_mut(l)), right) {
            (Some(left), false) => left.run.push_segment(env, frags, len),
            (Some(left), true) => {
                left.run.push_segment(env, frags, len);
                if let Some(right) = self.ranges.remove(i)
                    && let Some(left) = i.checked_sub(1).and_then(|l| self.ranges.get_mut(l))
                {
                    left.run.append(right.run);
                }
            }
            (None, true) => {
                if let Some(right) = self.ranges.get_mut(i) {
                    right.run.push_segment_front(env, frags, len);
                    right.start = seq;
                }
            }
            (None, false) => {
                if self.ranges.len() >= MAX_OUT_OF_ORDER_RANGES {
                    return false;
                }
                let mut run = FragRun::default();
                run.push_segment(env, frags, len);
                self.pinned += run.pinned();
                self.len += len;
                self.ranges.insert(i, OutOfOrderRange { start: seq, run });
                return true;
            }
        }
        self.len += len;
        // A join of two ranges leaves the left one.
        let after = if left.is_some() && right {
            self.pinned_at(i.checked_sub(1))
        } else {
            self.pinned_around(i)
        };
        self.pinned = self.pinned + after - before;
        true
    }

    fn pinned_around(&self, i: usize) -> usize {
        self.pinned_at(i.checked_sub(1)) + self.pinned_at(Some(i))
    }

    fn pinned_at(&self, i: Option<usize>) -> usize {
        i.and_then(|i| self.ranges.get(i)).map_or(0, |range| range.run.pinned())
    }

    /// Removes the first range if it begins at `end` or before.
    pub(super) fn pop_front_if_at_or_before(&mut self, end: Seq) -> Option<OutOfOrderRange> {
        if !self.ranges.front()?.start.le(end) {
            return None;
        }
        let range = self.ranges.pop_front()?;
        self.len -= range.run.len();
        self.pinned -= range.run.pinned();
        Some(range)
    }

    /// Notes that the range around `seq` has changed, or was sent again.
    fn touch(&mut self, seq: Seq) {
        let Some(range) = self.find(seq) else { return };
        let (start, end) = (range.start, range.end());
        let others = self.recent.into_iter().flatten().filter(|s| !(start.le(*s) && s.lt(end)));
        let mut recent = [None; SackBlocks::MAX];
        for (slot, seq) in recent.iter_mut().zip(core::iter::once(seq).chain(others)) {
            *slot = Some(seq);
        }
        self.recent = recent;
    }

    fn find(&self, seq: Seq) -> Option<&OutOfOrderRange> {
        let i = self.ranges.partition_point(|range| range.end().le(seq));
        self.ranges.get(i).filter(|range| range.contains(seq))
    }

    /// > RFC 2018 section 4: The first SACK block (i.e., the one immediately following the kind and
    /// > length fields in the option) MUST specify the contiguous block of data containing the
    /// > segment which triggered this ACK [...] The SACK option SHOULD be filled out by repeating
    /// > the most recently reported SACK blocks
    ///
    /// The blocks next to the first gap follow, for as many distinct blocks as possible.
    pub(super) fn sack_blocks(&self, out: &mut SackBlocks) {
        let given = out.len();
        let recent = self.recent.iter().flatten().filter_map(|&seq| self.find(seq));
        for range in recent.chain(self.ranges.iter().take(SackBlocks::MAX)) {
            let block = (range.start, range.end());
            let ours = out.as_slice().get(given..).unwrap_or_default();
            if !ours.contains(&block) && !out.push(block.0, block.1) {
                return;
            }
        }
    }

    pub(super) fn compact(&mut self, env: &mut Env<'_>) -> bool {
        let packed = self.ranges.iter_mut().all(|range| range.run.compact(env));
        self.pinned = self.ranges.iter().map(|range| range.run.pinned()).sum();
        packed
    }

    pub(super) fn give_back(&mut self, env: &mut Env<'_>) -> bool {
        let copied = self.ranges.iter_mut().all(|range| range.run.give_back(env));
        self.pinned = self.ranges.iter().map(|range| range.run.pinned()).sum();
        copied
    }

    #[cfg(test)]
    pub(super) fn ranges(&self) -> impl Iterator<Item = &OutOfOrderRange> {
        self.ranges.iter()
    }
}
