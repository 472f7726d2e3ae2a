//! Small buffers, carved from a block of adjacent pages: memory for frames that are built in place.
//!
//! ```text
//!   block of BLOCK_PAGES pages, one Arc for each
//!   |room 0 |room 1   |     |room 2 |..... nobody's yet .....|
//!    \frag/   \ frag /        \frag/ ^ next
//! ```
//!
//! A [`Carver`] hands out room, which one owner alone may write; what is committed of it is a
//! fragment from then on, and never written again while it lives. References are counted for each page,
//! and no room lies in two: a fragment holds its page and [says so](Frag::pinned), the last one to go
//! sends it home. So what somebody keeps one small fragment of is one page of the block, and known. A
//! carver keeps its last few pages, and begins the oldest anew when nobody else holds it any more:
//! frames that are consumed soon go round in memory that is still in the cache. Room that is not
//! committed costs nothing.
//!
//! [`Lone`] is the usual way beside it: pages for one frame alone, with what is charged for them.

use core::ops::Range;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::block::{Block, Loan, Pages};
use crate::frag::Frag;
use crate::limits::{BLOCK_PAGES, CACHE_LINE, GROUP_PAGES, KEPT_PAGES, PAGE_SIZE};
use crate::pool::PagePool;

/// Carves rooms out of blocks, one after the other.
#[derive(Default)]
pub struct Carver {
    page: Option<Arc<Block>>,
    /// Where the next room begins, in bytes from the page's start; a multiple of a cache line.
    next: usize,
    /// The rest of the block.
    ahead: VecDeque<Arc<Block>>,
    /// Pages that were full, the oldest first; at most [`KEPT_PAGES`].
    full: VecDeque<Arc<Block>>,
    blocks: u64,
    reused: u64,
}

impl Carver {
    /// A carver without a block; it takes one at need.
    pub const fn new() -> Self {
        Self {
            page: None,
            next: 0,
            ahead: VecDeque::new(),
            full: VecDeque::new(),
            blocks: 0,
            reused: 0,
        }
    }

    /// Room for `len` bytes, at most a page, beginning on a cache line; `None` if the pool has no page
    /// free, or none that are private.
    #[inline(always)]
    pub fn room(&mut self, pool: &mut PagePool, len: usize) -> Option<Room<'_>> {
        let whole = len.max(1).checked_next_multiple_of(CACHE_LINE)?;
        let left = self.page.as_ref().map_or(0, |_| PAGE_SIZE - self.next);
        if left < whole {
            if whole > PAGE_SIZE {
                return None;
            }
            self.renew(pool)?;
        }
        Some(Room { carver: self, len, whole })
    }

    /// Starts at a page's beginning: the block's next, else the oldest one's if nobody else holds it,
    /// else a fresh block's.
    #[cold]
    fn renew(&mut self, pool: &mut PagePool) -> Option<()> {
        self.full.extend(self.page.take());
        self.next = 0;
        self.page = self.ahead.pop_front();
        if self.page.is_some() {
            return Some(());
        }
        // `get_mut` acquires what those who let go released: their reads happen before our writes.
        if self.full.front_mut().is_some_and(|page| Arc::get_mut(page).is_some()) {
            self.page = self.full.pop_front();
            self.reused += 1;
            return Some(());
        }
        while self.full.len() > KEPT_PAGES {
            self.full.pop_front();
        }
        let pages = Pages::take(pool, BLOCK_PAGES, PAGE_SIZE).or_else(|| {
            // Ours may be the pages that are missing.
            self.full.clear();
            Pages::take(pool, BLOCK_PAGES, PAGE_SIZE)
        });
        self.ahead.extend(pages?.split().map(|pages| Block::new(pages, None)));
        self.page = self.ahead.pop_front();
        self.blocks += 1;
        Some(())
    }

    /// Lets go of all pages: memory for others while nothing comes in.
    pub fn abandon(&mut self) {
        self.page = None;
        self.ahead.clear();
        self.full.clear();
        self.next = 0;
    }

    /// Blocks taken from the pool so far, and how often a page was used again instead.
    pub fn turnover(&self) -> (u64, u64) {
        (self.blocks, self.reused)
    }
}

impl core::fmt::Debug for Carver {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let left = self.page.as_ref().map_or(0, |_| PAGE_SIZE - self.next);
        write!(f, "Carver(left {left}, pages ahead {})", self.ahead.len())
    }
}

/// Bytes that one frame is written to. Dropped, it was never taken.
pub struct Room<'a> {
    carver: &'a mut Carver,
    len: usize,
    /// `len` up to the next cache line.
    whole: usize,
}

impl Room<'_> {
    /// The bytes: whatever was there before, until they are written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(block) = &self.carver.page else { return &mut [] };
        let from = block.pages.address(self.carver.next);
        // SAFETY: `Carver::room` saw to it that `next + len` is within the page, which is private,
        // mapped and initialised since the mapping was made. Fragments lie before `next`
        // only: those of an earlier turn of the page were gone when it was begun anew (`get_mut`). No other
        // room is there, because this one borrows the carver, as the slice borrows the room.
        unsafe { core::slice::from_raw_parts_mut(from.as_ptr(), self.len) }
    }

    /// Takes `range` of the bytes as a fragment; a range beyond the end is cut. What lies around it
    /// is lost until the block is. An empty range takes nothing.
    pub fn commit(self, range: Range<usize>) -> Frag {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        let at = self.carver.next;
        match &self.carver.page {
            Some(block) if start < end => {
                self.carver.next = at + self.whole;
                let ptr = block.pages.address(at + start);
                // SAFETY: within the page, as `room` saw, which the block keeps where it is; the
                // carver goes on behind it. All fragments of one block lie in one mapping.
                unsafe { Frag::from_block(ptr, end - start, Arc::clone(block)) }
            }
            _ => Frag::empty(),
        }
    }
}

/// Pages for one frame alone, in one piece, and what is charged for them, given back right after them.
pub struct Lone {
    pages: Pages,
    loan: Loan,
    len: usize,
}

impl Lone {
    /// Pages for `len` bytes, at most a group of them; `None` if the pool has none free in one piece, or
    /// none that are private.
    pub fn new(pool: &mut PagePool, len: usize, loan: Loan) -> Option<Self> {
        let want = len.max(1).div_ceil(PAGE_SIZE);
        let pages = if want > GROUP_PAGES { None } else { Pages::take(pool, want, len) };
        Some(Self { pages: pages?, loan, len })
    }

    /// The bytes: whatever was there before, until they are written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let from = self.pages.address(0);
        // SAFETY: `new` saw to it that the pages have `len` bytes; they are private, mapped and
        // initialised since the mapping was made. There is no fragment of them, because `commit`
        // ends this value, and the slice borrows it.
        unsafe { core::slice::from_raw_parts_mut(from.as_ptr(), self.len) }
    }

    /// Takes `range` of the bytes as a fragment; a range beyond the end is cut. Of an empty range
    /// nothing is held.
    pub fn commit(self, range: Range<usize>) -> Frag {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        if start == end {
            return Frag::empty();
        }
        let ptr = self.pages.address(start);
        let block = Block::new(self.pages, Some(self.loan));
        // SAFETY: within the pages, which the block keeps where they are and nobody writes any more;
        // they are private. All fragments of one block lie in one mapping.
        unsafe { Frag::from_block(ptr, end - start, block) }
    }
}
