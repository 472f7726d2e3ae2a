//! A block: adjacent pages of a private pool that one owner fills and releases together. The carver makes
//! its rooms in blocks.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::Arc;

use crate::access::Access;
use crate::limits::{CACHE_LINE, PAGE_SIZE};
use crate::pool::{PagePool, PoolShared};

/// The page of a [`Carver`](crate::Carver), or those of one frame; the charge is given back last.
struct Kept {
    references: AtomicUsize,
    pages: Pages,
    #[allow(dead_code, reason = "held until it is dropped")]
    loan: Option<Loan>,
}

/// A counted reference to a block, as an `Arc`, but for the [`Stock`] of its carver.
pub(crate) struct Block(NonNull<Kept>);

// SAFETY: all that is reached through a shared block is `Sync`, and its last holder, on any thread, drops
// what is `Send`.
unsafe impl Send for Block {}
// SAFETY: as for `Send`.
unsafe impl Sync for Block {}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Kept>();
};

impl Block {
    pub(crate) fn new(pages: Pages, loan: Option<Loan>) -> Self {
        let kept = Box::new(Kept { references: AtomicUsize::new(1), pages, loan });
        Self(NonNull::from(Box::leak(kept)))
    }

    #[inline(always)]
    fn kept(&self) -> &Kept {
        // SAFETY: the block lives while a reference is counted, as this one is.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> &Pages {
        &self.kept().pages
    }

    /// Whether both are references to one block.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Clone for Block {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed, as for an `Arc`: the block cannot go meanwhile.
        let before = self.kept().references.fetch_add(1, Ordering::Relaxed);
        if before > usize::MAX / 2 {
            std::process::abort();
        }
        Self(self.0)
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        if self.kept().references.fetch_sub(1, Ordering::Release) == 1 {
            // What other holders did with the pages happens before they are returned.
            fence(Ordering::Acquire);
            // SAFETY: the last reference: nobody else reaches the block, which `new` made in a box.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

/// A block with references in stock: counted by one atomic operation for a page of frames, handed out
/// without any.
pub(crate) struct Stock {
    block: Block,
    left: usize,
}

impl Stock {
    pub(crate) const fn new(block: Block) -> Self {
        Self { block, left: 0 }
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> &Pages {
        self.block.pages()
    }

    /// One more reference.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Block {
        if self.left == 0 {
            self.fill_up();
        }
        self.left -= 1;
        // One of those that are counted.
        Block(self.block.0)
    }

    #[cold]
    fn fill_up(&mut self) {
        self.left = PAGE_SIZE / CACHE_LINE;
        self.block.kept().references.fetch_add(self.left, Ordering::Relaxed);
    }

    /// Whether nobody else holds the block. Then all that others did with it happened before.
    #[inline]
    pub(crate) fn is_alone(&mut self) -> bool {
        self.block.kept().references.load(Ordering::Acquire) == 1 + self.left
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        // Never the last: the block's own follows.
        self.block.kept().references.fetch_sub(self.left, Ordering::Release);
    }
}

/// An account that memory is charged to.
pub trait Lender: Send + Sync {
    /// Releases bytes of the account. Called on any thread, perhaps under a host's lock: whatever an
    /// implementation calls must not wait for that lock.
    fn give_back(&self, bytes: usize);
}

/// Bytes charged to an account until this value is dropped.
pub struct Loan {
    lender: Arc<dyn Lender>,
    bytes: usize,
}

impl Loan {
    /// A charge of `bytes`, which the account has counted already.
    pub fn new(lender: Arc<dyn Lender>, bytes: usize) -> Self {
        Self { lender, bytes }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lender.give_back(self.bytes);
    }
}

impl core::fmt::Debug for Loan {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Loan({} bytes)", self.bytes)
    }
}

pub(crate) struct Pages {
    pool: Arc<PoolShared>,
    /// Bytes `start..start + len` of the pool's region.
    start: usize,
    len: usize,
}

impl Pages {
    /// Takes up to `want` adjacent pages, with at least `need` bytes, of a private pool.
    pub(crate) fn take(pool: &mut PagePool, want: usize, need: usize) -> Option<Self> {
        if pool.access() != Access::Private {
            return None;
        }
        let (first, count) = pool.alloc_run(want, None)?;
        let (start, len) = (first * PAGE_SIZE, count * PAGE_SIZE);
        let pages = Self { pool: Arc::clone(pool.shared()), start, len };
        // A run that is too short is returned by its drop.
        (need <= len).then_some(pages)
    }

    /// Splits the block into single pages, each returned by itself.
    pub(crate) fn split(mut self) -> impl Iterator<Item = Self> {
        let (pool, start) = (Arc::clone(&self.pool), self.start);
        // The drop of `self` returns nothing.
        let len = core::mem::take(&mut self.len);
        (start..start + len).step_by(PAGE_SIZE).map(move |start| Self {
            pool: Arc::clone(&pool),
            start,
            len: PAGE_SIZE,
        })
    }

    /// The number of pages: at most a group.
    #[inline]
    pub(crate) fn count(&self) -> u8 {
        (self.len / PAGE_SIZE) as u8
    }

    /// The byte at `at`, which is at most `len`.
    #[inline]
    pub(crate) fn address(&self, at: usize) -> NonNull<u8> {
        debug_assert!(at <= self.len);
        // SAFETY: `start..start + len` lies in the pool's region, and `at <= len`.
        unsafe { self.pool.region().base().add(self.start + at) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.pool.release(self.start, self.len);
    }
}
