//! Pages of a region, counted.
//!
//! State and reference counts live in private memory outside the region. The owner (one thread)
//! allocates from a free map without atomics; a page whose last reference is dropped, on any
//! thread, comes back over one lock-free return list that the owner drains once a turn.
//!
//! ```text
//!   free map --alloc--> PageWriter --commit--> Frag(s) --last drop--> return list --drain--> free map
//! ```
//!
//! Pages behind the last ones are handed out first, then the group that was freed last: a receiver that
//! keeps up cycles through memory that is still in the cache. Groups that nobody took for a while go back
//! to the system ([`PagePool::trim`]), so a large pool costs addresses, and memory only as far as used.
//!
//! Conservation: a page is free (its bit is set, its count is 0), returned (its bit is clear, its
//! count is 0, it is on the list) or out (its bit is clear, its count is the number of writers and
//! fragments that touch it). [`PagePool::audit`] walks all three and must find each page once.

use std::sync::Arc;

#[cfg(not(loom))]
use zerocopy::FromZeros as _;

use crate::access::Access;
use crate::limits::{
    GROUP_PAGES, MAX_PAGE_REFS, MAX_POOL_PAGES, PAGE_SIZE, SCAN_GROUPS, TRIM_BYTES, WARM_GROUPS,
};
use crate::region::{MemError, Region};
use crate::sync::{AtomicU32, Ordering};

/// Ends the return list.
const NIL: u32 = u32::MAX;

/// The free map's word of a group that is wholly free.
const WHOLE: u64 = u64::MAX >> (64 - GROUP_PAGES);

/// Aligned to a pair of cache lines, so that returns of pages do not slow down counting.
#[repr(align(128))]
struct OwnLine<T>(T);

/// The part of a pool that fragments on other threads reach.
pub(crate) struct PoolShared {
    region: Region,
    /// References to each page; 0 means free or on the return list.
    refs: Box<[AtomicU32]>,
    /// The return list: `next[p]` is the page pushed before `p`.
    next: Box<[AtomicU32]>,
    returned: OwnLine<AtomicU32>,
}

/// Allocator of pages, owned by one thread.
pub struct PagePool {
    shared: Arc<PoolShared>,
    /// A set bit is a free page; one word per group.
    free: Vec<u64>,
    free_pages: usize,
    /// A set bit is a group that is partly free: neither wholly used nor wholly free.
    partial: Vec<u64>,
    /// Groups that were wholly free when pushed, most recently freed last, whose memory is still in
    /// cache. Entries may be stale; `listed` keeps each group in here at most once.
    whole: Vec<u32>,
    listed: Vec<bool>,
    /// Group at which the search for partly free groups continues.
    hint: usize,
    /// Groups up to the last one that was ever used: those behind were never touched.
    opened: usize,
    /// A set bit is a group that may have memory of the system.
    touched: Vec<u64>,
    /// The fewest entries of `whole` since the last [`trim`](Self::trim): these groups were not taken.
    cold: usize,
}

/// Counts of a pool, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages in the pool.
    pub total: usize,
    /// Pages the owner can hand out now, without those on the return list.
    pub free: usize,
}

/// Result of walking all of a pool's counts. A page in none of the three states is being pushed on
/// the return list at this moment; a page in two of them is a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolAudit {
    /// Pages in the pool.
    pub total: usize,
    /// Pages in the free map.
    pub free: usize,
    /// Pages on the return list.
    pub returned: usize,
    /// Pages that a writer or a fragment refers to.
    pub out: usize,
    /// Pages that were found in more than one of these states.
    pub twice: usize,
}

impl PoolAudit {
    /// Whether every page is accounted for exactly once.
    pub fn is_conserved(&self) -> bool {
        self.free + self.returned + self.out == self.total && self.twice == 0
    }
}

/// Counters of `pages` pages, all 0. They take memory only as far as they are written.
fn zeroed(pages: usize) -> Result<Box<[AtomicU32]>, MemError> {
    #[cfg(not(loom))]
    let counters = <[AtomicU32]>::new_box_zeroed_with_elems(pages);
    #[cfg(loom)]
    let counters = Ok::<_, ()>((0..pages).map(|_| AtomicU32::new(0)).collect());
    counters.map_err(|_| MemError::Length(pages * PAGE_SIZE))
}

fn whole_groups(bytes: usize) -> Result<usize, MemError> {
    bytes.checked_next_multiple_of(GROUP_PAGES * PAGE_SIZE).ok_or(MemError::Length(bytes))
}

impl PagePool {
    /// A pool of `bytes` (rounded up to whole groups of 256 KiB) in fresh memory behind a memfd.
    pub fn new(name: &str, bytes: usize) -> Result<Self, MemError> {
        Self::over(Region::pages(name, whole_groups(bytes)?)?)
    }

    /// As [`new`](Self::new), without a file: it needs no descriptor.
    pub fn anonymous(bytes: usize) -> Result<Self, MemError> {
        Self::over(Region::anonymous(whole_groups(bytes)?)?)
    }

    /// A pool over a writable, page-aligned region whose length is a multiple of 256 KiB. The pool
    /// keeps the region until the last fragment of its pages is dropped: no other pool and no
    /// [`Region::frag`] can be made of it.
    pub fn over(region: Region) -> Result<Self, MemError> {
        let pages = region.len() / PAGE_SIZE;
        if !region.len().is_multiple_of(GROUP_PAGES * PAGE_SIZE)
            || pages == 0
            || pages > MAX_POOL_PAGES
        {
            return Err(MemError::Length(region.len()));
        }
        region.claim_pages()?;
        let groups = pages / GROUP_PAGES;
        let shared = PoolShared {
            region,
            refs: zeroed(pages)?,
            // Read only of pages on the list, where it was written.
            next: zeroed(pages)?,
            returned: OwnLine(AtomicU32::new(NIL)),
        };
        Ok(Self {
            shared: Arc::new(shared),
            free: vec![WHOLE; groups],
            free_pages: pages,
            partial: vec![0; groups.div_ceil(64)],
            // Last in, first out: the lowest addresses are handed out first.
            whole: (0..groups as u32).rev().collect(),
            listed: vec![true; groups],
            hint: 0,
            opened: 0,
            touched: vec![0; groups.div_ceil(64)],
            cold: groups,
        })
    }

    /// Counts, without a walk.
    pub fn stats(&self) -> PoolStats {
        PoolStats { total: self.free.len() * GROUP_PAGES, free: self.free_pages }
    }

    /// Whether others may write the pages.
    pub fn access(&self) -> Access {
        self.shared.region.access()
    }

    /// Takes back the pages released since the last call; once per turn. Returns how many.
    pub fn drain(&mut self) -> usize {
        if self.shared.returned.0.load(Ordering::Relaxed) == NIL {
            return 0;
        }
        // Acquire pairs with the Release of `PoolShared::push_chain`: the releasing threads' reads
        // of the pages happen before a new writer gets them, and the links that they stored are
        // visible. Taking the whole list at once leaves no ABA.
        let mut page = self.shared.returned.0.swap(NIL, Ordering::Acquire);
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

    /// Gives the memory of groups back to the system that nobody took since the last call, a bounded number
    /// of them; returns the bytes. The groups stay free: they take memory again when they are used. For a
    /// host to call about once a second, and again while the result is not 0.
    pub fn trim(&mut self) -> usize {
        let listed = self.whole.len();
        let cold =
            core::mem::replace(&mut self.cold, listed).min(listed.saturating_sub(WARM_GROUPS));
        let mut trimmed = 0;
        for &group in self.whole.get(..cold).into_iter().flatten() {
            let group = group as usize;
            let (word, bit) = (group / 64, 1 << (group % 64));
            let Some(touched) = self.touched.get_mut(word).filter(|touched| **touched & bit != 0)
            else {
                continue;
            };
            // An entry may be stale: the group is in use again.
            if self.free.get(group) != Some(&WHOLE) {
                continue;
            }
            *touched &= !bit;
            if !self.shared.region.discard(group * GROUP_PAGES * PAGE_SIZE, GROUP_PAGES * PAGE_SIZE)
            {
                continue;
            }
            trimmed += GROUP_PAGES * PAGE_SIZE;
            if trimmed >= TRIM_BYTES {
                // The rest at the next call.
                self.cold = cold;
                break;
            }
        }
        trimmed
    }

    /// Walks all counts; for tests, simulation and debug builds.
    ///
    /// Other threads may clone and drop fragments meanwhile; then a page whose last reference is just
    /// dropped can be missing from the sum, but none is ever found twice. Without concurrent releases,
    /// [`PoolAudit::is_conserved`] holds after every call on the pool, its writers and its fragments. A
    /// page is out once, however many fragments share it, and a writer's spare pages are out.
    pub fn audit(&self) -> PoolAudit {
        // The list before the counts: a page on it stays there, and one that is out may join it.
        let used = (self.opened * GROUP_PAGES).min(self.shared.refs.len());
        let mut returned = vec![false; used];
        let mut page = self.shared.returned.0.load(Ordering::Acquire);
        // Only the owner takes pages off the list: behind this head it is stable.
        while let (Some(seen), Some(next)) =
            (returned.get_mut(page as usize), self.shared.next.get(page as usize))
        {
            if core::mem::replace(seen, true) {
                break;
            }
            page = next.load(Ordering::Relaxed);
        }
        let total = self.shared.refs.len();
        let mut audit = PoolAudit { total, free: total - used, returned: 0, out: 0, twice: 0 };
        for (page, (refs, returned)) in self.shared.refs.iter().zip(returned).enumerate() {
            let free = self.free.get(page / GROUP_PAGES).is_some_and(|w| w & bit(page) != 0);
            let out = refs.load(Ordering::Relaxed) > 0;
            audit.free += usize::from(free);
            audit.returned += usize::from(returned);
            audit.out += usize::from(out);
            audit.twice += usize::from(u8::from(free) + u8::from(returned) + u8::from(out) > 1);
        }
        // A cycle in the list ends the walk above, and shows as a list without an end.
        audit.twice += usize::from(page != NIL);
        debug_assert_eq!(audit.free, self.free_pages, "the count of free pages is off");
        audit
    }

    /// In debug builds: walks all counts and panics if a page is lost or found twice. Only where no
    /// other thread releases pages at the same time.
    pub fn debug_assert_conserved(&self) {
        if cfg!(debug_assertions) {
            let audit = self.audit();
            debug_assert!(audit.is_conserved(), "pages are not conserved: {audit:?}");
        }
    }

    pub(crate) fn shared(&self) -> &Arc<PoolShared> {
        &self.shared
    }

    /// A run of up to `want` adjacent pages (at most one group), as `(first, count)`, each with one
    /// reference that the caller owns; `None` if no page is free.
    ///
    /// Prefers the pages that follow page `after - 1`; then, for less than a group, a run in a
    /// partly used group; then the most recently freed whole group; then the longest run.
    pub(crate) fn alloc_run(
        &mut self,
        want: usize,
        after: Option<usize>,
    ) -> Option<(usize, usize)> {
        let want = want.clamp(1, GROUP_PAGES);
        if self.free_pages < want {
            self.drain();
        }
        let (first, count) = match self.find(want, after) {
            Some(run) => run,
            // Before taking less, drain the return list.
            None => {
                self.drain();
                self.find(want, after).or_else(|| {
                    let (group, start, len) = self.scan(want)?;
                    Some(self.take(group, start, len))
                })?
            }
        };
        for r in self.shared.refs.get(first..first + count)? {
            debug_assert_eq!(r.load(Ordering::Relaxed), 0, "a free page has references");
            // Relaxed: any fragment of the page is made after this by the same thread.
            r.store(1, Ordering::Relaxed);
        }
        Some((first, count))
    }

    /// A run of `want` pages, or the continuation of a run to the end of its group.
    fn find(&mut self, want: usize, after: Option<usize>) -> Option<(usize, usize)> {
        if let Some((group, start, len)) = after.and_then(|page| self.following(page, want)) {
            return Some(self.take(group, start, len));
        }
        if want < GROUP_PAGES
            && let Some((group, start, len)) = self.scan(want)
            && len == want
        {
            return Some(self.take(group, start, len));
        }
        let group = self.pop_whole()?;
        Some(self.take(group, 0, want))
    }

    /// The free run that starts at `page`, if it has `want` pages or reaches its group's end.
    fn following(&self, page: usize, want: usize) -> Option<(usize, usize, usize)> {
        let (group, start) = (page / GROUP_PAGES, page % GROUP_PAGES);
        let word = *self.free.get(group)?;
        let len = (!(word >> start)).trailing_zeros() as usize;
        let fits = len >= want || (len > 0 && start + len == GROUP_PAGES);
        fits.then_some((group, start, len.min(want)))
    }

    /// The most recently freed whole group.
    fn pop_whole(&mut self) -> Option<usize> {
        loop {
            let group = self.whole.pop()? as usize;
            self.cold = self.cold.min(self.whole.len());
            if let Some(listed) = self.listed.get_mut(group) {
                *listed = false;
            }
            if self.free.get(group) == Some(&WHOLE) {
                return Some(group);
            }
        }
    }

    /// Among the next [`SCAN_GROUPS`] partly free groups, a run of `want` pages, or the longest.
    fn scan(&mut self, want: usize) -> Option<(usize, usize, usize)> {
        let mut best: Option<(usize, usize, usize)> = None;
        let (mut from, mut wrapped) = (self.hint, false);
        for _ in 0..SCAN_GROUPS {
            let Some(group) = self.next_partial(from) else { break };
            wrapped |= group < from;
            if wrapped && group >= self.hint {
                break;
            }
            let Some(&word) = self.free.get(group) else { break };
            let longest = best.map_or(0, |(_, _, len)| len);
            if let Some((start, len)) = longest_run(word, want, longest) {
                best = Some((group, start, len));
                if len == want {
                    // Continue here next time.
                    self.hint = group;
                    return best;
                }
            }
            from = group + 1;
        }
        // Free pages may also lie behind the groups that had too few.
        self.hint = from % self.free.len();
        best
    }

    /// The first partly free group at or after `from`, else the first of all.
    fn next_partial(&self, from: usize) -> Option<usize> {
        let words = self.partial.len();
        let first = from / 64;
        (0..=words).find_map(|i| {
            let at = (first + i) % words;
            let mut word = *self.partial.get(at)?;
            if i == 0 && first < words {
                word &= u64::MAX << (from % 64);
            }
            (word != 0).then(|| at * 64 + word.trailing_zeros() as usize)
        })
    }

    /// Takes a free run out of the free map; returns its first page and its length.
    fn take(&mut self, group: usize, start: usize, len: usize) -> (usize, usize) {
        if let Some(word) = self.free.get_mut(group) {
            let run = (u64::MAX >> (64 - len)) << start;
            debug_assert_eq!(*word & run, run, "a page in use is handed out");
            *word &= !run;
            self.free_pages -= len;
        }
        self.opened = self.opened.max(group + 1);
        if let Some(touched) = self.touched.get_mut(group / 64) {
            *touched |= 1 << (group % 64);
        }
        self.note_partial(group);
        (group * GROUP_PAGES + start, len)
    }

    fn note_partial(&mut self, group: usize) {
        let is_partial = self.free.get(group).is_some_and(|&word| word != 0 && word != WHOLE);
        if let Some(partial) = self.partial.get_mut(group / 64) {
            let bit = 1 << (group % 64);
            *partial = if is_partial { *partial | bit } else { *partial & !bit };
        }
    }

    fn put(&mut self, page: usize) {
        let group = page / GROUP_PAGES;
        let Some(word) = self.free.get_mut(group) else { return };
        debug_assert_eq!(*word & bit(page), 0, "page {page} came home twice");
        let before = *word;
        *word |= bit(page);
        self.free_pages += 1;
        if *word != WHOLE && before != 0 {
            return; // Partly free, as it was.
        }
        if *word == WHOLE
            && let Some(listed) = self.listed.get_mut(group)
            && !*listed
        {
            *listed = true;
            self.whole.push(group as u32);
        }
        self.note_partial(group);
    }
}

impl core::fmt::Debug for PagePool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PagePool({:?})", self.stats())
    }
}

/// A page's bit in its group's word.
fn bit(page: usize) -> u64 {
    1 << (page % GROUP_PAGES)
}

/// The positions in `word` where a run of at least `len` (not 0) set bits begins.
fn runs(word: u64, len: usize) -> u64 {
    let (mut starts, mut have) = (word, 1);
    while have < len {
        let step = have.min(len - have);
        starts &= starts >> step;
        have += step;
    }
    starts
}

/// Start and length of the first run of `want` set bits, or of the longest above `than`.
fn longest_run(word: u64, want: usize, than: usize) -> Option<(usize, usize)> {
    let first = |starts: u64| starts.trailing_zeros() as usize;
    match runs(word, want) {
        0 => {}
        starts => return Some((first(starts), want)),
    }
    let (mut len, mut starts) = (than + 1, runs(word, than + 1));
    if starts == 0 {
        return None;
    }
    loop {
        match runs(word, len + 1) {
            0 => return Some((first(starts), len)),
            longer => (len, starts) = (len + 1, longer),
        }
    }
}

impl PoolShared {
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Pages that bytes `offset..offset+len` touch; `len` is not 0.
    fn span(offset: usize, len: usize) -> core::ops::RangeInclusive<usize> {
        offset / PAGE_SIZE..=(offset + len - 1) / PAGE_SIZE
    }

    /// Adds a reference to every page that `offset..offset+len` touches; the caller has one.
    #[inline]
    pub(crate) fn acquire(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        // Relaxed, as for `Arc::clone`: the caller's own reference keeps the page.
        for r in self.refs.get(Self::span(offset, len)).into_iter().flatten() {
            let before = r.fetch_add(1, Ordering::Relaxed);
            debug_assert!(before > 0, "reference to a free page");
            if before >= MAX_PAGE_REFS {
                std::process::abort();
            }
        }
    }

    /// Drops one reference to every page that the range touches; returns free pages in one push.
    #[inline]
    pub(crate) fn release(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let (mut first, mut last) = (NIL, NIL);
        for page in Self::span(offset, len) {
            let (Some(r), Some(next)) = (self.refs.get(page), self.next.get(page)) else { return };
            // A count of 1 is the caller's alone: nothing else can clone it, so no read-modify-write is
            // needed. The Acquire load pairs with the Release of earlier drops.
            if r.load(Ordering::Acquire) == 1 {
                r.store(0, Ordering::Relaxed);
            } else {
                // Release: this thread's reads of the page happen before the drop to 0 returns it.
                // Acquire: the same for the others' reads, if this is that drop.
                let before = r.fetch_sub(1, Ordering::AcqRel);
                debug_assert!(before > 0, "release of a free page");
                if before != 1 {
                    continue;
                }
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
        let mut head = self.returned.0.load(Ordering::Relaxed);
        loop {
            tail.store(head, Ordering::Relaxed);
            // Release pairs with the Acquire swap in `PagePool::drain`; it publishes the links and
            // orders this thread's last reads of the pages before their reuse.
            match self.returned.0.compare_exchange_weak(
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

impl Drop for PoolShared {
    fn drop(&mut self) {
        // The pool, its writers and its fragments each hold an `Arc` of this: all are gone.
        self.region.unclaim_pages();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
