//! Variant of step R7, through rings: pages of a pool that an application holds and gives back.
//!
//! ```text
//!   free map --alloc--> writer --> Frag in a receive queue --hand_out--> the application's
//!      ^                                                                     |
//!      \---- return list <---- last reference <---- take_back(id) <---------/
//! ```
//!
//! The application names a page by a [`BufferId`]: its number and generation, which counts how many
//! times it was handed out. The holds are counted here, in private memory: any other id, or one
//! that was returned before, is refused and changes nothing.

use std::sync::{Arc, Weak};

use crate::frag::Frag;
use crate::limits::{GROUP_PAGES, LEASE_PAGE_BITS, PAGE_SIZE};
use crate::pool::{PagePool, PoolShared};
use crate::region::{MemError, Region};

/// Names a page that an application holds: the page's number in the low [`LEASE_PAGE_BITS`] bits,
/// above it the generation. The application has generation 0 from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(pub u32);

/// The number of generations that an id can tell apart.
const TURNS: u32 = 1 << (32 - LEASE_PAGE_BITS);

impl BufferId {
    /// A page before it was first handed out.
    pub const fn first(page: u32) -> Self {
        Self(page)
    }

    /// The page's number.
    pub const fn page(self) -> u32 {
        self.0 & ((1 << LEASE_PAGE_BITS) - 1)
    }

    const fn new(page: u32, turn: u32) -> Self {
        Self(turn << LEASE_PAGE_BITS | page)
    }

    const fn turn(self) -> u32 {
        self.0 >> LEASE_PAGE_BITS
    }
}

/// Part of one page that was handed out, with one reference to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// The id to give back.
    pub id: BufferId,
    /// Offset of the bytes in the region.
    pub offset: u32,
    /// The number of bytes, all in one page.
    pub len: u32,
}

/// Why a buffer is not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The region has no such page.
    #[error("no such buffer in the region")]
    OutOfRange,
    /// The id is of an earlier generation of the page: it was returned before.
    #[error("the buffer's id is stale: it was returned before")]
    Stale,
    /// The application holds no reference to the page: it was returned before, or never delivered.
    #[error("the buffer is not the application's: returned twice, or never delivered")]
    NotHeld,
}

/// The application's side of a pool: the pages that it holds, and how often.
///
/// A drop releases everything.
pub struct Lease {
    pool: Arc<PoolShared>,
    pages: Box<[OfPage]>,
    /// References that were handed out and not given back.
    references: usize,
    /// Pages that the application has had from the start and has not given yet.
    unposted: usize,
}

/// The application's holds of one page.
#[derive(Clone, Copy, Default)]
struct OfPage {
    references: u32,
    turn: u32,
}

impl Lease {
    /// The application has every page of `pool` and gives them later: none is free to receive into.
    /// The pool is new, nothing was allocated from it.
    ///
    /// # Errors
    /// [`MemError::Claimed`] if pages are in use; [`MemError::Length`] if ids cannot name them all.
    pub fn all(pool: &mut PagePool) -> Result<Self, MemError> {
        let mut lease = Self::none(pool)?;
        if pool.stats().free != pool.stats().total {
            return Err(MemError::Claimed("pages of a pool"));
        }
        while let Some((first, count)) = pool.alloc_run(GROUP_PAGES, None) {
            for held in lease.pages.get_mut(first..first + count).into_iter().flatten() {
                held.references = 1;
            }
            lease.unposted += count;
        }
        Ok(lease)
    }

    /// The application has no page of `pool` yet.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub fn none(pool: &PagePool) -> Result<Self, MemError> {
        let total = pool.stats().total;
        if total > 1 << LEASE_PAGE_BITS {
            return Err(MemError::Length(total * PAGE_SIZE));
        }
        let pages = vec![OfPage::default(); total].into();
        Ok(Self { pool: Arc::clone(pool.shared()), pages, references: 0, unposted: 0 })
    }

    /// Hands out the bytes of a fragment page by page to `each`; returns one of another pool.
    pub fn hand_out(&mut self, frag: Frag, mut each: impl FnMut(Handed)) -> Result<(), Frag> {
        let Some(start) = frag.offset_in(&self.pool).filter(|_| !frag.is_empty()) else {
            return Err(frag);
        };
        let end = start + frag.len();
        // The application takes over the fragment's references, one to each page.
        frag.forget_pages();
        let mut at = start;
        while at < end {
            let page = at / PAGE_SIZE;
            let Some(held) = self.pages.get_mut(page) else { break };
            if held.references == 0 {
                // A new generation. Generation 0 is never used again.
                held.turn = ((held.turn + 1) % TURNS).max(1);
            }
            held.references += 1;
            self.references += 1;
            let stop = ((page + 1) * PAGE_SIZE).min(end);
            let id = BufferId::new(page as u32, held.turn);
            each(Handed { id, offset: at as u32, len: (stop - at) as u32 });
            at = stop;
        }
        Ok(())
    }

    /// Whether the bytes are this pool's.
    pub fn owns(&self, frag: &Frag) -> bool {
        frag.offset_in(&self.pool).is_some()
    }

    /// Takes back one reference; `true` if it was the application's last of the page.
    ///
    /// # Errors
    /// [`Refused`]: nothing has changed.
    pub fn take_back(&mut self, id: BufferId) -> Result<bool, Refused> {
        let held = self.pages.get_mut(id.page() as usize).ok_or(Refused::OutOfRange)?;
        if held.turn != id.turn() {
            return Err(Refused::Stale);
        }
        if held.references == 0 {
            return Err(Refused::NotHeld);
        }
        held.references -= 1;
        if held.turn == 0 {
            self.unposted -= 1;
        } else {
            self.references -= 1;
        }
        let last = held.references == 0;
        self.pool.release(id.page() as usize * PAGE_SIZE, 1);
        Ok(last)
    }

    /// References that were handed out and not given back.
    pub fn delivered(&self) -> usize {
        self.references
    }

    /// Whether nothing else refers to the pool, and nothing that was handed out is held.
    pub fn is_home(&self) -> bool {
        self.references == 0 && Arc::strong_count(&self.pool) == 1
    }

    /// Pages that the application has had from the start and has not given yet.
    pub fn unposted(&self) -> usize {
        self.unposted
    }

    /// Pages of the pool.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// The application's view of the region.
    pub fn view(&self) -> View {
        View { region: self.pool.region().clone(), pool: Arc::downgrade(&self.pool) }
    }

    /// The region's range of addresses: to check whether two overlap.
    pub fn span(&self) -> core::ops::Range<usize> {
        self.pool.region().span()
    }
}

/// An application's view of a region whose pages are handed to it. Keeps the region mapped.
#[derive(Clone)]
pub struct View {
    region: Region,
    pool: Weak<PoolShared>,
}

impl View {
    /// Copies bytes from `offset` on out of shared memory ([`Access::Shared`](crate::Access)),
    /// although others may write it; returns how many. None out of private memory, where only
    /// handed-out bytes may be read, nor beyond the region.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> usize {
        self.region.copy_shared_out(offset, into)
    }

    /// The bytes as a fragment of its own; `None` if the pool is gone or the range is not in it.
    ///
    /// # Safety
    /// This view's lease handed the range out ([`Handed`]), and its id was not given back yet.
    pub unsafe fn delivered(&self, offset: usize, len: usize) -> Option<Frag> {
        let pool = self.pool.upgrade()?;
        let end = offset.checked_add(len).filter(|&end| end <= self.region.len())?;
        if offset == end {
            return Some(Frag::empty());
        }
        pool.acquire(offset, len);
        // SAFETY: the range lies in the region; it was committed by a writer and handed out, so it
        // is not written again while the page has a reference, and we have just taken one for each
        // page, beside the application's own (the caller's promise).
        Some(unsafe { Frag::from_pool(pool, offset, len) })
    }

    /// The region.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

impl core::fmt::Debug for View {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "View({:?})", self.region)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        for (page, held) in self.pages.iter().enumerate() {
            for _ in 0..held.references {
                self.pool.release(page * PAGE_SIZE, 1);
            }
        }
    }
}

impl core::fmt::Debug for Lease {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { references, unposted, .. } = self;
        write!(f, "Lease(delivered {references}, unposted {unposted})")
    }
}
