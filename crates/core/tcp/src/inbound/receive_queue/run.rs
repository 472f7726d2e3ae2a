//! A run: fragments of consecutive bytes of the stream, and the memory that they pin.

use std::collections::{VecDeque, vec_deque};

use pagewire_mem::{CopyReason, Frag, FragVec, PAGE_SIZE};

use crate::limits::{SMALL_SEGMENT, SMALL_SEGMENT_PINNED_FACTOR};
use crate::shared::Env;

/// Consecutive bytes of the stream.
///
/// `pinned` is the sum of [`charge`] over the fragments, less [`shared`] for each two neighbours.
#[derive(Debug, Default)]
pub(crate) struct FragRun {
    frags: VecDeque<Frag>,
    len: usize,
    pinned: usize,
}

/// Memory that a fragment pins alone, its entry in the deque included.
fn charge(frag: &Frag) -> usize {
    frag.pinned() + size_of::<Frag>()
}

/// Memory that is counted twice when `b` follows `a`: the page that both use. Frames of a burst lie in the
/// same pages, with their headers between the payloads.
///
/// Depends only on where `a` ends and `b` begins, so it stays true when either changes at its other
/// end. Memory counted in pages pins more than its length if an end is not on a page boundary.
fn shared(a: &Frag, b: &Frag) -> usize {
    let (end, start) = (a.addr() + a.len(), b.addr());
    let one_page = !end.is_multiple_of(PAGE_SIZE)
        && !start.is_multiple_of(PAGE_SIZE)
        && end / PAGE_SIZE == start / PAGE_SIZE;
    if one_page && a.pinned() > a.len() && b.pinned() > b.len() { PAGE_SIZE } else { 0 }
}

impl FragRun {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn pinned(&self) -> usize {
        self.pinned
    }

    pub(crate) fn frags(&self) -> vec_deque::Iter<'_, Frag> {
        self.frags.iter()
    }

    /// Appends the `len` bytes of a segment; as copies if they are few and pin far more.
    pub(super) fn push_segment(&mut self, env: &mut Env<'_>, frags: FragVec, len: usize) {
        for frag in frags {
            if frag.is_empty() {
                continue;
            }
            let Err(frag) = self.extend_back(frag) else { continue };
            // A single one is mostly read before the next arrives.
            if len < SMALL_SEGMENT && !(self.is_empty() && frag.is_carved()) {
                for piece in small(frag, env) {
                    self.push_back(piece);
                }
            } else {
                self.attach_back(frag);
            }
        }
    }

    pub(super) fn push_segment_front(&mut self, env: &mut Env<'_>, frags: FragVec, len: usize) {
        for frag in frags.into_iter().rev().filter(|frag| !frag.is_empty()) {
            if len < SMALL_SEGMENT {
                for piece in small(frag, env).into_iter().rev() {
                    self.push_front(piece);
                }
            } else {
                self.push_front(frag);
            }
        }
    }

    /// Appends another run. Moves the shorter of the two.
    pub(super) fn append(&mut self, mut other: Self) {
        if self.frags.len() >= other.frags.len() {
            for frag in other.frags.drain(..) {
                self.push_back(frag);
            }
        } else {
            core::mem::swap(self, &mut other);
            while let Some(frag) = other.detach_back() {
                self.push_front(frag);
            }
        }
    }

    pub(super) fn read(&mut self, env: &mut Env<'_>, dst: &mut [u8]) -> usize {
        let mut at = 0;
        while let Some(to) = dst.get_mut(at..).filter(|to| !to.is_empty()) {
            let Some(mut frag) = self.detach_front() else { break };
            let n = frag.copy_to(0, to, env.ledger, CopyReason::AppRead);
            at += n;
            if n < frag.len() {
                frag.advance(n);
                self.attach_front(frag);
            }
        }
        at
    }

    pub(crate) fn peek(&self, env: &mut Env<'_>, mut skip: usize, dst: &mut [u8]) -> usize {
        let mut at = 0;
        for frag in &self.frags {
            let Some(to) = dst.get_mut(at..).filter(|to| !to.is_empty()) else { break };
            let from = skip.min(frag.len());
            skip -= from;
            if from < frag.len() {
                at += frag.copy_to(from, to, env.ledger, CopyReason::AppRead);
            }
        }
        at
    }

    pub(crate) fn peek_frags(&self, mut skip: usize, max: usize, out: &mut Vec<Frag>) -> usize {
        let mut taken = 0;
        for frag in &self.frags {
            let from = skip.min(frag.len());
            skip -= from;
            let n = (max - taken).min(frag.len() - from);
            if n > 0 {
                out.push(frag.slice(from..from + n));
                taken += n;
            }
        }
        taken
    }

    pub(super) fn take(&mut self, max: usize, out: &mut impl Extend<Frag>) -> usize {
        if max >= self.len {
            out.extend(core::iter::from_fn(|| self.frags.pop_front()));
            self.pinned = 0;
            return core::mem::take(&mut self.len);
        }
        let mut left = max;
        while left > 0 {
            let Some(mut frag) = self.detach_front() else { break };
            if frag.len() <= left {
                left -= frag.len();
                out.extend([frag]);
            } else {
                out.extend([frag.split_to(left)]);
                left = 0;
                self.attach_front(frag);
            }
        }
        max - left
    }

    /// Copies every fragment shorter than a page, to merge neighbours. `false`: out of pages.
    pub(super) fn compact(&mut self, env: &mut Env<'_>) -> bool {
        self.copy(env, CopyReason::Compact, |frag| frag.len() < PAGE_SIZE)
    }

    /// Copies every fragment with a completion. `false`: out of pages, the rest stays.
    pub(super) fn give_back(&mut self, env: &mut Env<'_>) -> bool {
        self.copy(env, CopyReason::LoopPrivate, |frag| frag.completion().is_some())
    }

    fn copy(
        &mut self,
        env: &mut Env<'_>,
        reason: CopyReason,
        wanted: impl Fn(&Frag) -> bool,
    ) -> bool {
        let mut packed = true;
        for frag in core::mem::take(self).frags {
            if packed && wanted(&frag) {
                let (copies, copied) = env.writer.write_frag(env.pool, &frag, env.ledger, reason);
                if copied == frag.len() {
                    if let Some(completion) = frag.completion() {
                        completion.mark_copied();
                    }
                    for copy in copies {
                        self.push_back(copy);
                    }
                    continue;
                }
                packed = false;
            }
            self.push_back(frag);
        }
        packed
    }

    fn push_back(&mut self, frag: Frag) {
        if let Err(frag) = self.extend_back(frag) {
            self.attach_back(frag);
        }
    }

    fn push_front(&mut self, mut frag: Frag) {
        if let Some(front) = self.detach_front()
            && let Err(front) = frag.try_append(front)
        {
            self.attach_front(front);
        }
        self.attach_front(frag);
    }

    /// Merges `frag` with the last fragment, if it continues that in memory.
    fn extend_back(&mut self, frag: Frag) -> Result<(), Frag> {
        let Some(back) = self.frags.back_mut() else { return Err(frag) };
        let (n, before) = (frag.len(), charge(back));
        back.try_append(frag)?;
        self.len += n;
        self.pinned = self.pinned + charge(back) - before;
        Ok(())
    }

    fn attach_back(&mut self, frag: Frag) {
        let twice = self.frags.back().map_or(0, |back| shared(back, &frag));
        self.len += frag.len();
        self.pinned = self.pinned + charge(&frag) - twice;
        self.frags.push_back(frag);
    }

    fn attach_front(&mut self, frag: Frag) {
        let twice = self.frags.front().map_or(0, |front| shared(&frag, front));
        self.len += frag.len();
        self.pinned = self.pinned + charge(&frag) - twice;
        self.frags.push_front(frag);
    }

    fn detach_front(&mut self) -> Option<Frag> {
        let frag = self.frags.pop_front()?;
        let twice = self.frags.front().map_or(0, |front| shared(&frag, front));
        self.len -= frag.len();
        self.pinned = self.pinned + twice - charge(&frag);
        Some(frag)
    }

    fn detach_back(&mut self) -> Option<Frag> {
        let frag = self.frags.pop_back()?;
        let twice = self.frags.back().map_or(0, |back| shared(back, &frag));
        self.len -= frag.len();
        self.pinned = self.pinned + twice - charge(&frag);
        Some(frag)
    }

    /// Bytes at the front, at most `max`, that lie in whole pages, aligned and full.
    pub(crate) fn whole_pages(&self, max: usize) -> usize {
        let mut at = 0;
        for frag in self.frags() {
            let whole = (max - at).min(frag.len()) / PAGE_SIZE * PAGE_SIZE;
            if !frag.is_page_aligned() || whole == 0 {
                break;
            }
            at += whole;
            if whole < frag.len() {
                break;
            }
        }
        at
    }

    /// The fragments that the first `len` bytes lie in.
    pub(crate) fn parts(&self, len: usize) -> Parts<'_> {
        Parts { frags: self.frags(), left: len }
    }

    /// Bytes from offset `from` to the next whole page; to the end, if there is none.
    pub(crate) fn to_next_page(&self, from: usize) -> usize {
        let (mut begins, mut skip) = (0, 0);
        for frag in self.frags() {
            // The part of this fragment before `from`.
            let before = from.saturating_sub(begins).min(frag.len());
            let at = frag.addr() + before;
            let early = at.next_multiple_of(PAGE_SIZE) - at;
            if frag.len() - before >= early + PAGE_SIZE {
                return skip + early;
            }
            begins += frag.len();
            skip += frag.len() - before;
        }
        skip
    }
}

/// A sink that calls a function for each fragment.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: FnMut(Frag)> Extend<Frag> for Each<F> {
    fn extend<T: IntoIterator<Item = Frag>>(&mut self, frags: T) {
        frags.into_iter().for_each(&mut self.0);
    }
}

/// The fragments of a range, in stream order, each with the number of its bytes in the range.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    frags: vec_deque::Iter<'a, Frag>,
    left: usize,
}

impl<'a> Iterator for Parts<'a> {
    type Item = (&'a Frag, usize);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let frag = self.frags.next()?;
        let n = self.left.min(frag.len());
        self.left -= n;
        Some((frag, n))
    }
}

#[cfg(test)]
impl FragRun {
    pub(super) fn capacity(&self) -> usize {
        self.frags.capacity()
    }

    /// Recounts the running sums.
    pub(super) fn check(&self) {
        assert!(self.frags.iter().all(|frag| !frag.is_empty()));
        assert_eq!(self.len, self.frags.iter().map(Frag::len).sum::<usize>());
        let charges: usize = self.frags.iter().map(charge).sum();
        let neighbours = self.frags.iter().zip(self.frags.iter().skip(1));
        let twice: usize = neighbours.map(|(a, b)| shared(a, b)).sum();
        assert_eq!(self.pinned, charges - twice);
    }
}

/// A fragment of a small segment: a copy in shared pages, if it pins far more than its bytes.
fn small(frag: Frag, env: &mut Env<'_>) -> FragVec {
    if frag.pinned() > SMALL_SEGMENT_PINNED_FACTOR * frag.len() {
        let (copies, copied) =
            env.writer.write_frag(env.pool, &frag, env.ledger, CopyReason::SmallSegment);
        if copied == frag.len() {
            return copies;
        }
    }
    core::iter::once(frag).collect()
}

/// Takes the first `n` bytes off (all, if there are fewer).
pub(super) fn split_front(frags: &mut FragVec, mut n: usize) -> FragVec {
    let whole = frags
        .iter()
        .position(|frag| match n.checked_sub(frag.len()) {
            Some(rest) => {
                n = rest;
                false
            }
            None => true,
        })
        .unwrap_or(frags.len());
    let mut front: FragVec = frags.drain(..whole).collect();
    if n > 0
        && let Some(cut) = frags.first_mut()
    {
        front.push(cut.split_to(n));
    }
    front
}
