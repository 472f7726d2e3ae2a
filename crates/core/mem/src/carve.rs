//! Small buffers, carved from blocks of adjacent pages: memory for frames that are built in place.
//!
//! ```text
//!   block of BLOCK_PAGES pages, each counted by itself
//!   |room 0 |room 1   |     |room 2 |.....  unused yet  .....|
//!    \frag/   \ frag /        \frag/ ^ next
//! ```
//!
//! A [`Carver`] gives room to one owner, who alone may write it; a committed range is a fragment, never
//! written again while it lives. References are counted for each page, and no room spans two pages: a
//! fragment [keeps](Frag::pinned) its one page, and the last fragment of a page releases it. A carver
//! keeps its last few pages, and reuses the oldest one when it has no other holder: frames that are
//! consumed soon stay in memory that is still in the cache. Room that is not committed costs nothing.
//!
//! A [`Lone`] has pages for one frame alone, and what is charged for them.

use core::ops::Range;
use std::collections::VecDeque;

use crate::block::{Block, Loan, Pages, Stock};
use crate::frag::Frag;
use crate::limits::{BLOCK_PAGES, CACHE_LINE, GROUP_PAGES, KEPT_PAGES, PAGE_SIZE};
use crate::pool::PagePool;

/// Carves rooms from blocks, in order.
#[derive(Default)]
pub struct Carver {
    page: Option<Stock>,
    /// Where the next room begins, in bytes from the page's start; a multiple of a cache line.
    next: usize,
    /// The rest of the block.
    ahead: VecDeque<Stock>,
    /// Full pages, the oldest first; at most [`KEPT_PAGES`].
    full: VecDeque<Stock>,
    blocks: u64,
    reused: u64,
}

impl Carver {
    /// A carver without a block; it takes one when needed.
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

    /// Room for `len` bytes, at most a page, on a cache line; `None` without a free, private page.
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

    /// Starts a page: the oldest full one that is free, else the block's next, else one of a new block. Frames
    /// that are consumed within a burst stay in the first-level cache.
    #[cold]
    fn renew(&mut self, pool: &mut PagePool) -> Option<()> {
        self.full.extend(self.page.take());
        self.next = 0;
        // The reads of other holders happen before the next writes.
        if self.full.front_mut().is_some_and(Stock::is_alone) {
            self.page = self.full.pop_front();
            self.reused += 1;
            return Some(());
        }
        self.page = self.ahead.pop_front();
        if self.page.is_some() {
            return Some(());
        }
        while self.full.len() > KEPT_PAGES {
            self.full.pop_front();
        }
        let pages = Pages::take(pool, BLOCK_PAGES, PAGE_SIZE).or_else(|| {
            // The carver's own pages may be the missing ones.
            self.full.clear();
            Pages::take(pool, BLOCK_PAGES, PAGE_SIZE)
        });
        self.ahead.extend(pages?.split().map(|pages| Stock::new(Block::new(pages, None))));
        self.page = self.ahead.pop_front();
        self.blocks += 1;
        Some(())
    }

    /// Releases all pages, while nothing comes in.
    pub fn abandon(&mut self) {
        self.page = None;
        self.ahead.clear();
        self.full.clear();
        self.next = 0;
    }

    /// Blocks taken from the pool so far, and the number of reused pages.
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

/// Bytes that one frame is written to. A drop takes nothing.
pub struct Room<'a> {
    carver: &'a mut Carver,
    len: usize,
    /// `len`, rounded up to a cache line.
    whole: usize,
}

impl Room<'_> {
    /// The bytes, with their old content until they are written.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(block) = &self.carver.page else { return &mut [] };
        let from = block.pages().address(self.carver.next);
        // SAFETY: `Carver::room` saw to it that `next + len` is within the page, which is private,
        // mapped and initialised since the region was mapped. Fragments lie before `next`
        // only: those of an earlier turn of the page were gone when it was begun anew (`is_alone`). No other
        // room is there, because this one borrows the carver, as the slice borrows the room.
        unsafe { core::slice::from_raw_parts_mut(from.as_ptr(), self.len) }
    }

    /// Turns `range` of the bytes into a fragment; a range beyond the end is truncated. The rest of
    /// the room stays unused. An empty range takes nothing.
    #[inline(always)]
    pub fn commit(self, range: Range<usize>) -> Frag {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        let at = self.carver.next;
        match &mut self.carver.page {
            Some(block) if start < end => {
                self.carver.next = at + self.whole;
                let ptr = block.pages().address(at + start);
                // SAFETY: within the page, as `room` saw, which the block keeps where it is; the
                // carver goes on behind it. All fragments of one block lie in one mapping.
                unsafe { Frag::from_block(ptr, end - start, block.take()) }
            }
            _ => Frag::empty(),
        }
    }
}

/// Adjacent pages for one frame alone, and the [`Loan`] charged for them, which is dropped last.
pub struct Lone {
    pages: Pages,
    loan: Loan,
    len: usize,
}

impl Lone {
    /// Pages for `len` bytes, at most a group; `None` without a free run, or if others may write.
    pub fn new(pool: &mut PagePool, len: usize, loan: Loan) -> Option<Self> {
        let want = len.max(1).div_ceil(PAGE_SIZE);
        let pages = if want > GROUP_PAGES { None } else { Pages::take(pool, want, len) };
        Some(Self { pages: pages?, loan, len })
    }

    /// The bytes, with their old content until they are written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let from = self.pages.address(0);
        // SAFETY: `new` saw to it that the pages have `len` bytes; they are private, mapped and
        // initialised since the region was mapped. There is no fragment of them, because `commit`
        // ends this value, and the slice borrows it.
        unsafe { core::slice::from_raw_parts_mut(from.as_ptr(), self.len) }
    }

    /// Turns `range` of the bytes into a fragment, cut at their end. An empty range keeps nothing.
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
