//! Pages of a region, counted.
//!
//! State and reference counts live in private memory beside the region, never in it. The owner
//! (one thread) allocates from a free map without atomics; a page whose last reference goes, on
//! whatever thread, travels home over one lock-free return list that the owner drains once a turn.
//!
//! ```text
//!   free map --alloc--> PageWriter --commit--> Frag(s) --last drop--> return list --drain--> free map
//! ```

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use crate::limits::{GROUP_PAGES, MAX_POOL_PAGES, PAGE_SIZE};
use crate::region::{MemError, Region};

/// Ends the return list.
const NIL: u32 = u32::MAX;

/// The part of a pool that fragments on other threads reach.
pub(crate) struct PoolShared {
    region: Region,
    /// References to each page; 0 means free or on its way home.
    refs: Box<[AtomicU32]>,
    /// The return list: `next[p]` is the page pushed before `p`.
    next: Box<[AtomicU32]>,
    returned: AtomicU32,
}

/// Allocator of pages, owned by one thread.
pub struct PagePool {
    shared: Arc<PoolShared>,
    /// A set bit is a free page; one word per group.
    free: Vec<u64>,
    free_pages: usize,
    /// Groups that were wholly free when pushed, most recently freed last: reuse of memory that
    /// is still in cache. Entries may be stale; `listed` keeps each group in here at most once.
    whole: Vec<u32>,
    listed: Vec<bool>,
    /// Where the search for single pages goes on.
    hint: usize,
}

/// Counts of a pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages in the pool.
    pub total: usize,
    /// Pages the owner can hand out now (pages on the return list not included).
    pub free: usize,
}

/// Result of walking all of a pool's counts: `free + returned + out` must equal `total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolAudit {
    /// Pages in the pool.
    pub total: usize,
    /// Pages in the free map.
    pub free: usize,
    /// Pages on their way home.
    pub returned: usize,
    /// Pages that a writer or a fragment refers to.
    pub out: usize,
}

impl PoolAudit {
    /// Whether every page is accounted for exactly once.
    pub fn is_conserved(&self) -> bool {
        self.free + self.returned + self.out == self.total
    }
}

impl PagePool {
    /// A pool of `bytes` (rounded up to whole groups of 256 KiB) in a fresh memfd region.
    pub fn new(name: &str, bytes: usize) -> Result<Self, MemError> {
        let group = GROUP_PAGES * PAGE_SIZE;
        let len = bytes.checked_next_multiple_of(group).ok_or(MemError::Length(bytes))?;
        Self::over(Region::memfd(name, len)?)
    }

    /// A pool over a writable region whose length is a multiple of 256 KiB.
    pub fn over(region: Region) -> Result<Self, MemError> {
        let pages = region.len() / PAGE_SIZE;
        if !region.is_writable()
            || !region.len().is_multiple_of(GROUP_PAGES * PAGE_SIZE)
            || pages == 0
            || pages > MAX_POOL_PAGES
        {
            return Err(MemError::Length(region.len()));
        }
        let groups = pages / GROUP_PAGES;
        let shared = PoolShared {
            region,
            refs: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            next: (0..pages).map(|_| AtomicU32::new(NIL)).collect(),
            returned: AtomicU32::new(NIL),
        };
        Ok(Self {
            shared: Arc::new(shared),
            free: vec![u64::MAX; groups],
            free_pages: pages,
            // Last in, first out: the lowest addresses are handed out first.
            whole: (0..groups as u32).rev().collect(),
            listed: vec![true; groups],
            hint: 0,
        })
    }

    /// Counts, without a walk.
    pub fn stats(&self) -> PoolStats {
        PoolStats { total: self.free.len() * GROUP_PAGES, free: self.free_pages }
    }

    /// Takes home the pages released since the last call; once per turn. Returns how many.
    pub fn drain(&mut self) -> usize {
        if self.shared.returned.load(Ordering::Relaxed) == NIL {
            return 0;
        }
        // Acquire pairs with the Release of `PoolShared::push_chain`: what the releasing threads
        // read from the pages happens before we hand them to a new writer, and the links they
        // stored are visible. Taking the whole list at once leaves no ABA.
        let mut page = self.shared.returned.swap(NIL, Ordering::Acquire);
        let mut count = 0;
        while page != NIL {
            let Some(next) = self.shared.next.get(page as usize) else { break };
            let next = next.load(Ordering::Relaxed);
            self.put(page as usize);
            count += 1;
            page = next;
        }
        count
    }

    /// Walks all counts; for tests, simulation and debug builds. Nothing may be released
    /// concurrently, or the sum can miss a page in flight.
    pub fn audit(&self) -> PoolAudit {
        let mut returned = 0;
        let mut page = self.shared.returned.load(Ordering::Acquire);
        while let Some(next) = self.shared.next.get(page as usize) {
            returned += 1;
            page = next.load(Ordering::Relaxed);
        }
        let out = self.shared.refs.iter().filter(|r| r.load(Ordering::Relaxed) > 0).count();
        let free = self.free.iter().map(|w| w.count_ones() as usize).sum();
        debug_assert_eq!(free, self.free_pages);
        PoolAudit { total: self.shared.refs.len(), free, returned, out }
    }

    pub(crate) fn shared(&self) -> &Arc<PoolShared> {
        &self.shared
    }

    /// A run of up to `want` adjacent pages (at most one group), as `(first, count)`, each with
    /// one reference that now belongs to the caller. Prefers the whole group that follows page
    /// `after`, then the most recently freed whole group, then whatever run is left.
    pub(crate) fn alloc_run(
        &mut self,
        want: usize,
        after: Option<usize>,
    ) -> Option<(usize, usize)> {
        let want = want.clamp(1, GROUP_PAGES);
        if self.free_pages < want {
            self.drain();
        }
        let found = if want == GROUP_PAGES {
            self.take_whole(after).or_else(|| self.take_partial(want))
        } else {
            self.take_partial(want).or_else(|| {
                let (first, count) = self.take_whole(after)?;
                for page in first + want..first + count {
                    self.put(page);
                }
                Some((first, want))
            })
        };
        let (first, count) = found?;
        for r in self.shared.refs.get(first..first + count)? {
            r.store(1, Ordering::Relaxed);
        }
        Some((first, count))
    }

    fn take_whole(&mut self, after: Option<usize>) -> Option<(usize, usize)> {
        let adjacent = after.filter(|p| p.is_multiple_of(GROUP_PAGES)).map(|p| p / GROUP_PAGES);
        let group = match adjacent.filter(|&g| self.free.get(g) == Some(&u64::MAX)) {
            Some(group) => group,
            None => loop {
                let group = self.whole.pop()? as usize;
                if let Some(listed) = self.listed.get_mut(group) {
                    *listed = false;
                }
                if self.free.get(group) == Some(&u64::MAX) {
                    break group;
                }
            },
        };
        *self.free.get_mut(group)? = 0;
        self.free_pages -= GROUP_PAGES;
        Some((group * GROUP_PAGES, GROUP_PAGES))
    }

    /// The first run of `want` free pages in a partly used group, or the longest shorter one.
    fn take_partial(&mut self, want: usize) -> Option<(usize, usize)> {
        let groups = self.free.len();
        let mut best: Option<(usize, u32, u32)> = None;
        for i in 0..groups {
            let group = (self.hint + i) % groups;
            let word = *self.free.get(group)?;
            if word == 0 || (word == u64::MAX && want < GROUP_PAGES) {
                continue;
            }
            let (start, len) = longest_run(word, want as u32);
            if best.is_none_or(|(_, _, b)| len > b) {
                best = Some((group, start, len));
                if len as usize >= want {
                    break;
                }
            }
        }
        let (group, start, len) = best?;
        self.hint = group;
        let mask = if len == 64 { u64::MAX } else { ((1u64 << len) - 1) << start };
        *self.free.get_mut(group)? &= !mask;
        self.free_pages -= len as usize;
        Some((group * GROUP_PAGES + start as usize, len as usize))
    }

    fn put(&mut self, page: usize) {
        let group = page / GROUP_PAGES;
        let Some(word) = self.free.get_mut(group) else { return };
        let bit = 1u64 << (page % GROUP_PAGES);
        debug_assert_eq!(*word & bit, 0, "page {page} came home twice");
        *word |= bit;
        self.free_pages += 1;
        if *word == u64::MAX
            && let Some(listed) = self.listed.get_mut(group)
            && !*listed
        {
            *listed = true;
            self.whole.push(group as u32);
        }
    }
}

/// Start and length of the first run of at least `want` set bits, or of the longest, capped.
fn longest_run(word: u64, want: u32) -> (u32, u32) {
    let (mut best, mut best_len) = (0, 0);
    let mut at = 0;
    while at < 64 {
        let rest = word >> at;
        if rest == 0 {
            break;
        }
        let start = at + rest.trailing_zeros();
        let len = (!(word >> start)).trailing_zeros().min(64 - start);
        if len > best_len {
            (best, best_len) = (start, len);
        }
        if len >= want {
            break;
        }
        at = start + len;
    }
    (best, best_len.min(want))
}

impl PoolShared {
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Pages that bytes `offset..offset+len` touch; `len` is not 0.
    fn span(offset: usize, len: usize) -> core::ops::RangeInclusive<usize> {
        offset / PAGE_SIZE..=(offset + len - 1) / PAGE_SIZE
    }

    /// One more reference to every page that `offset..offset+len` touches. The caller already
    /// holds one, so no count is 0.
    pub(crate) fn acquire(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        // Relaxed, as for `Arc::clone`: the caller's own reference keeps the page from going.
        for r in self.refs.get(Self::span(offset, len)).into_iter().flatten() {
            let before = r.fetch_add(1, Ordering::Relaxed);
            debug_assert!(before > 0, "reference to a free page");
        }
    }

    /// Gives back one reference to every page that `offset..offset+len` touches; those without
    /// any left go home, in one push.
    pub(crate) fn release(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let (mut first, mut last) = (NIL, NIL);
        for page in Self::span(offset, len) {
            let (Some(r), Some(next)) = (self.refs.get(page), self.next.get(page)) else { return };
            // A count of 1 is ours alone: nobody can clone from a reference they do not have, so
            // no read-modify-write is needed. The Acquire load pairs with the Release of those
            // who gave theirs back earlier.
            if r.load(Ordering::Acquire) == 1 {
                r.store(0, Ordering::Relaxed);
            } else if r.fetch_sub(1, Ordering::AcqRel) != 1 {
                continue;
            }
            next.store(first, Ordering::Relaxed);
            if first == NIL {
                last = page as u32;
            }
            first = page as u32;
        }
        if first != NIL {
            self.push_chain(first, last);
        }
    }

    /// Puts the chain `first -> … -> last` on the return list.
    fn push_chain(&self, first: u32, last: u32) {
        let Some(tail) = self.next.get(last as usize) else { return };
        let mut head = self.returned.load(Ordering::Relaxed);
        loop {
            tail.store(head, Ordering::Relaxed);
            // Release pairs with the Acquire swap in `PagePool::drain`; it publishes the links
            // and orders our last reads of the pages before their reuse.
            match self.returned.compare_exchange_weak(
                head,
                first,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}
