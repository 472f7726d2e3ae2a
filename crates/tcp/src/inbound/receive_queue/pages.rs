//! The whole pages of a run, which can be mapped.

use std::collections::vec_deque;

use pagewire_mem::{Frag, PAGE_SIZE};

use super::run::Run;

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

impl Run {
    /// Bytes at the front, at most `max`, that lie in whole pages, aligned and full.
    pub(super) fn whole_pages(&self, max: usize) -> usize {
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
    pub(super) fn parts(&self, len: usize) -> Parts<'_> {
        Parts { frags: self.frags(), left: len }
    }

    /// Bytes from offset `from` to the next whole page; to the end, if there is none.
    pub(super) fn to_next_page(&self, from: usize) -> usize {
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
