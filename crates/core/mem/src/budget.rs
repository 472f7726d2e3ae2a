//! The page budget: how many pages zero-copy sends may hold. Sockets charge it; a completion carries the
//! charge, and gives it back with the memory.

use std::sync::Arc;

use crate::limits::PAGE_SIZE;
use crate::sync::{AtomicUsize, Ordering};

/// The pages that one user's zero-copy sends may hold, shared by all stacks that count together.
#[derive(Debug)]
pub struct PageBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
}

impl PageBudget {
    /// A budget of `limit` pages of [`PAGE_SIZE`]; `usize::MAX`: no limit.
    pub fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) }
    }

    /// Changes the limit, in pages. Pages held beyond a smaller limit stay.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The limit, in pages.
    #[inline]
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Pages charged now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Charges a call that sends `bytes`; `None` if too little is left. As on Linux: the pages that
    /// the bytes fill, and one at either end.
    #[inline]
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let pages = pages_of(bytes);
        self.take(pages).then(|| Charge { budget: Arc::clone(self), pages })
    }

    #[inline]
    fn take(&self, pages: usize) -> bool {
        let limit = self.limit();
        // Relaxed: only a count.
        let take = |used: usize| used.checked_add(pages).filter(|&sum| sum <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// The pages charged for a call that sends `bytes`.
const fn pages_of(bytes: usize) -> usize {
    bytes / PAGE_SIZE + 2
}

/// Pages charged to a budget until this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<PageBudget>,
    pages: usize,
}

impl Charge {
    /// Pages charged.
    pub fn pages(&self) -> usize {
        self.pages
    }

    pub(crate) fn is_of(&self, budget: &Arc<PageBudget>) -> bool {
        Arc::ptr_eq(&self.budget, budget)
    }

    /// Charges one more call, of `bytes`; `false` if too little is left.
    pub(crate) fn extend(&mut self, bytes: usize) -> bool {
        let pages = pages_of(bytes);
        let taken = self.budget.take(pages);
        self.pages += if taken { pages } else { 0 };
        taken
    }

    /// Merges with another charge to the same budget, or returns the other.
    pub(crate) fn absorb(&mut self, mut other: Self) -> Option<Self> {
        if !Arc::ptr_eq(&self.budget, &other.budget) {
            return Some(other);
        }
        self.pages += core::mem::take(&mut other.pages);
        None
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.pages == 0 {
            return;
        }
        self.budget.used.fetch_sub(self.pages, Ordering::Relaxed);
    }
}
