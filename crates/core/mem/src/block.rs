//! A block: adjacent pages of a private pool that one owner fills and releases together. The carver makes
//! its rooms in blocks.

use core::ptr::NonNull;
use std::sync::Arc;

use crate::access::Access;
use crate::limits::PAGE_SIZE;
use crate::pool::{PagePool, PoolShared};

/// The page of a [`Carver`](crate::Carver), or those of one frame; the charge is given back last.
pub(crate) struct Block {
    pub(crate) pages: Pages,
    #[allow(dead_code, reason = "held until it is dropped")]
    loan: Option<Loan>,
}

impl Block {
    pub(crate) fn new(pages: Pages, loan: Option<Loan>) -> Arc<Self> {
        Arc::new(Self { pages, loan })
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
