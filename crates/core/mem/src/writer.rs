//! The page writer: the only code that writes pages of received and copied payload.
//!
//! ```text
//!   run of adjacent pages, taken from the pool
//!   |############ committed ############|........ spare ........|
//!   start                               pos                   end
//!    \__ immutable, in fragments ______/ \__ only we write here _/
//! ```
//!
//! The writer holds one reference to each page from `pos`'s page on. A filled page passes its
//! reference on to the fragment, so a steady stream of whole pages costs no atomic operation. A
//! device that must offer room for a whole frame reserves further runs.

use core::ptr::NonNull;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::access::Access;
use crate::copy::{CopyLedger, CopyReason, copy_payload};
use crate::frag::{Frag, FragVec};
use crate::limits::{GROUP_PAGES, HOT_PAGES, MAX_FRAGS, PAGE_SIZE, WRITE_RUN_PAGES};
use crate::pool::{PagePool, PoolShared};

/// Fills adjacent pages of a pool front to back and turns the filled bytes into fragments.
#[derive(Default)]
pub struct PageWriter {
    run: Option<SpareRun>,
    /// The next runs, only where `reserve` was used. `run` is never full while there are any.
    later: VecDeque<SpareRun>,
    /// The page to begin at, if it is free.
    home: Option<usize>,
}

struct SpareRun {
    pool: Arc<PoolShared>,
    /// Byte offsets in the pool's region.
    pos: usize,
    end: usize,
}

impl PageWriter {
    /// A writer without pages; it takes them when needed.
    pub const fn new() -> Self {
        Self { run: None, later: VecDeque::new(), home: None }
    }

    /// A writer without pages whose first [`reserve`](Self::reserve) begins at page `page` of the pool
    /// if that is free: several writers of one pool that begin far apart each find the next pages free.
    pub const fn at_home(page: usize) -> Self {
        Self { run: None, later: VecDeque::new(), home: Some(page) }
    }

    /// Bytes that can be written before more pages are needed.
    pub fn spare(&self) -> usize {
        self.run.as_ref().map_or(0, |r| r.end - r.pos)
    }

    /// Whether [`write`](Self::write) has room for `bytes` bytes.
    pub fn has_room(&self, pool: &PagePool, bytes: usize) -> bool {
        self.spare() >= bytes || self.spare() + pool.stats().free * PAGE_SIZE >= bytes
    }

    /// The next byte's offset in its page.
    pub fn misalignment(&self) -> usize {
        self.run.as_ref().map_or(0, |r| r.pos % PAGE_SIZE)
    }

    /// Makes sure that some bytes are spare: takes a new run of up to `pages` (at most a group) when
    /// nothing is left, the one right behind the last if that is free. `false`: the pool is empty.
    ///
    /// Adjacent memory lets long ranges be lent as one slice, but a stream walks through the whole
    /// pool. [`abandon`](Self::abandon) first, to get the pages freed last, which are in cache.
    pub fn refill(&mut self, pool: &mut PagePool, pages: usize) -> bool {
        if self.spare() > 0 {
            return true;
        }
        let after = self.run.as_ref().map(|r| r.end / PAGE_SIZE);
        self.take_run(pool, pages, after)
    }

    /// Like [`refill`](Self::refill), but at the end of a group it prefers memory in the cache.
    fn refill_to_copy(&mut self, pool: &mut PagePool, left: usize) -> bool {
        if self.spare() > 0 {
            return true;
        }
        let after = self.run.as_ref().map(|r| r.end / PAGE_SIZE);
        let after = after.filter(|page| !page.is_multiple_of(GROUP_PAGES));
        self.take_run(pool, left.div_ceil(PAGE_SIZE).max(WRITE_RUN_PAGES), after)
    }

    fn take_run(&mut self, pool: &mut PagePool, pages: usize, after: Option<usize>) -> bool {
        let Some((first, count)) = pool.alloc_run(pages, after) else {
            return false;
        };
        let pos = first * PAGE_SIZE;
        let end = pos + count * PAGE_SIZE;
        self.run = Some(SpareRun { pool: Arc::clone(pool.shared()), pos, end });
        true
    }

    /// Makes sure that `bytes` bytes are spare, in as few runs as the pool allows. `false`: too few
    /// pages, or too scattered for one packet; the pages taken stay reserved.
    ///
    /// Reuses [`HOT_PAGES`], which stay in the cache, while their pages come back soon.
    pub fn reserve(&mut self, pool: &mut PagePool, bytes: usize) -> bool {
        let mut have = self.spare_runs().map(|(_, len)| len).sum::<usize>();
        while have < bytes {
            if self.later.len() + 1 >= MAX_FRAGS {
                return false;
            }
            let last = self.later.back_mut().or(self.run.as_mut());
            let after = last.as_ref().map(|r| match r.end / PAGE_SIZE {
                end if end.is_multiple_of(HOT_PAGES) => end - HOT_PAGES,
                end => end,
            });
            let after = after.or(self.home);
            let Some((first, count)) = pool.alloc_run(GROUP_PAGES, after) else { return false };
            let (pos, end) = (first * PAGE_SIZE, (first + count) * PAGE_SIZE);
            have += end - pos;
            match last {
                Some(last) if last.end == pos && Arc::ptr_eq(&last.pool, pool.shared()) => {
                    last.end = end;
                }
                _ => {
                    self.later.push_back(SpareRun { pool: Arc::clone(pool.shared()), pos, end });
                    self.promote();
                }
            }
        }
        true
    }

    /// Takes the next `bytes` bytes, or as many as the pool has pages for, out of this writer, as a writer of
    /// its own that another thread can fill. What follows is written behind them.
    pub fn lend(&mut self, pool: &mut PagePool, bytes: usize) -> Self {
        let (mut lent, mut missing) = (Self::new(), bytes);
        while missing > 0
            && lent.later.len() + 1 < MAX_FRAGS
            && self.refill_to_copy(pool, missing)
            && let Some(run) = &mut self.run
        {
            let (pos, n) = (run.pos, missing.min(run.end - run.pos));
            run.pos += n;
            // The lent part has the references; a page that both have a part of is shared now.
            if run.pos < run.end && !run.pos.is_multiple_of(PAGE_SIZE) {
                run.pool.acquire(run.pos - 1, 1);
            }
            lent.later.push_back(SpareRun { pool: Arc::clone(&run.pool), pos, end: run.pos });
            missing -= n;
            self.promote();
            lent.promote();
        }
        lent
    }

    /// Continues in the next reserved run when the current one is full.
    #[inline]
    fn promote(&mut self) {
        if self.spare() == 0
            && let Some(next) = self.later.pop_front()
        {
            self.run = Some(next);
        }
    }

    /// Gives back the rest of the run, so that the next refill starts on fresh pages.
    pub fn abandon(&mut self) {
        self.run = None;
        self.later.clear();
    }

    /// Skips to the next page boundary, so that the next byte starts a page.
    pub fn align(&mut self) {
        if let Some(run) = &mut self.run {
            // The rest of a lent part's last page is another writer's.
            let to = run.pos.next_multiple_of(PAGE_SIZE).min(run.end);
            if to > run.pos {
                run.pool.release(run.pos, 1);
                run.pos = to;
            }
        }
        self.promote();
    }

    /// Address and length of the spare bytes, for a device to write into.
    ///
    /// The writes through the pointer must be done before the next call on this writer and while no
    /// [`spare_bytes`](Self::spare_bytes) are borrowed, and must stay within the length.
    pub fn spare_ptr(&self) -> Option<(NonNull<u8>, usize)> {
        let run = self.run.as_ref().filter(|r| r.pos < r.end)?;
        // SAFETY: `pos < end`, and the run lies within the pool's region.
        let at = unsafe { run.pool.region().base().add(run.pos) };
        Some((at, run.end - run.pos))
    }

    /// As [`spare_ptr`](Self::spare_ptr), for each run in the order in which they will be filled.
    pub fn spare_runs(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        self.run.iter().chain(&self.later).filter(|r| r.pos < r.end).map(|run| {
            // SAFETY: `pos < end`, and the run lies within the pool's region.
            let at = unsafe { run.pool.region().base().add(run.pos) };
            (at, run.end - run.pos)
        })
    }

    /// The first `max` spare bytes, for code that fills them; commit what it has filled.
    pub fn spare_of(&mut self, max: usize) -> Spare<'_> {
        let len = self.spare_runs().map(|(_, len)| len).sum::<usize>().min(max);
        Spare { writer: self, len }
    }

    /// Commits the first `n` spare bytes, run by run, as fragments.
    pub fn commit_all(&mut self, n: usize) -> impl Iterator<Item = Frag> + '_ {
        let mut left = n;
        core::iter::from_fn(move || {
            let frag = self.commit(left);
            left -= frag.len();
            (!frag.is_empty()).then_some(frag)
        })
    }

    /// The first `n` spare bytes, run by run: to read what a device has just written there, before
    /// it is committed or overwritten. Ends where others may write the pool.
    pub fn spare_bytes(&self, n: usize) -> impl Iterator<Item = &[u8]> + '_ {
        let mut left = n;
        let runs = self.run.iter().chain(&self.later).filter(|r| r.pos < r.end);
        runs.map_while(move |run| {
            // Each run separately: reserved runs can be of another pool.
            let private = run.pool.region().access() == Access::Private;
            let len = if private { left.min(run.end - run.pos) } else { 0 };
            left -= len;
            // SAFETY: `pos < end`, and the run lies within the pool's region.
            let at = unsafe { run.pool.region().base().add(run.pos) };
            // SAFETY: the bytes are mapped memory, private, initialised since the region was
            // mapped, and only this writer may touch them; devices write through `spare_ptr` between
            // calls on this writer only, and `&self` is borrowed while the slice lives.
            (len > 0).then(|| unsafe { core::slice::from_raw_parts(at.as_ptr(), len) })
        })
    }

    /// Takes the first `n` spare bytes, which are written, as a fragment. `n` beyond the current
    /// run's spare bytes is truncated: with reserved runs, commit the rest again.
    pub fn commit(&mut self, n: usize) -> Frag {
        let Some(run) = &mut self.run else { return Frag::empty() };
        let n = n.min(run.end - run.pos);
        if n == 0 {
            return Frag::empty();
        }
        let start = run.pos;
        run.pos += n;
        // Every filled page passes its reference to the fragment, and so does the last one of the run; one
        // with room is shared now.
        if run.pos < run.end && !run.pos.is_multiple_of(PAGE_SIZE) {
            run.pool.acquire(run.pos - 1, 1);
        }
        // SAFETY: `start..start+n` lies in the region, holds one reference to each page it touches
        // (those of the filled pages, and the one just acquired), and is never written again: the
        // writer only writes from `pos` on.
        let frag = unsafe { Frag::from_pool(Arc::clone(&run.pool), start, n) };
        self.promote();
        frag
    }

    /// Copies `src` into pages, as far as the pool has them; returns the fragments (adjacent pages
    /// in one) and the number of bytes copied.
    pub fn write(
        &mut self,
        pool: &mut PagePool,
        mut src: &[u8],
        ledger: &mut CopyLedger,
        reason: CopyReason,
    ) -> (FragVec, usize) {
        let (mut out, mut copied) = (FragVec::new(), 0);
        while !src.is_empty() && self.refill_to_copy(pool, src.len()) {
            let Some((at, spare)) = self.spare_ptr() else { break };
            let n = spare.min(src.len());
            let Some((now, later)) = src.split_at_checked(n) else { break };
            // SAFETY: `at` is valid for `spare >= n` bytes, which only this writer may touch
            // unless the region is shared; `now` is a live slice of `n` bytes, and slices do not
            // reach into private regions' spare pages.
            unsafe { copy_payload(at, now.as_ptr(), n, self.access(), ledger, reason) };
            self.commit(n).append_to(&mut out);
            copied += n;
            src = later;
        }
        (out, copied)
    }

    /// Copies a fragment into pages of the pool, as far as the pool has them.
    pub fn write_frag(
        &mut self,
        pool: &mut PagePool,
        src: &Frag,
        ledger: &mut CopyLedger,
        reason: CopyReason,
    ) -> (FragVec, usize) {
        let (mut out, mut copied) = (FragVec::new(), 0);
        while copied < src.len() {
            let left = src.len() - copied;
            if !self.refill_to_copy(pool, left) {
                break;
            }
            let Some((at, spare)) = self.spare_ptr() else { break };
            let n = spare.min(left);
            // SAFETY: `copied < len` of the fragment.
            let from = unsafe { src.as_ptr().add(copied) };
            let access = match self.access() {
                Access::Private => src.access(),
                Access::Shared => Access::Shared,
            };
            // SAFETY: `at` is valid for `n` bytes, which only this writer may touch unless the
            // region is shared; the source range `copied..copied+n` lies within the fragment,
            // which we hold, so it is no spare memory of this writer.
            unsafe { copy_payload(at, from, n, access, ledger, reason) };
            self.commit(n).append_to(&mut out);
            copied += n;
        }
        (out, copied)
    }

    /// Whether others may write the spare bytes.
    fn access(&self) -> Access {
        self.run.as_ref().map_or(Access::Private, |run| run.pool.region().access())
    }
}

/// Free pages that are lent to be filled: made for one system call that reads into them.
///
/// No other code reads or writes the bytes while the loan lives. Others than the borrower may have access
/// where the region is [shared](Access::Shared), so there is no `&mut [u8]`.
#[derive(Debug)]
pub struct Spare<'a> {
    writer: &'a mut PageWriter,
    len: usize,
}

impl Spare<'_> {
    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address and length of each run, to be filled in this order. The addresses are valid while
    /// this lives.
    pub fn runs(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> + '_ {
        let mut left = self.len;
        self.writer.spare_runs().map_while(move |(at, len)| {
            let len = len.min(left);
            left -= len;
            (len > 0).then_some((at, len))
        })
    }

    /// Copies `src` to the front, as far as there is room, and returns how many bytes: for what is
    /// in memory already.
    pub fn put(&mut self, src: &[u8], ledger: &mut CopyLedger, reason: CopyReason) -> usize {
        let mut left = src;
        for (at, len) in self.runs() {
            let Some((now, later)) = left.split_at_checked(len.min(left.len())) else { break };
            // SAFETY: the run is valid for `len >= now.len()` bytes, `now` is a live slice of its
            // length; this copy bears writers and overlap.
            unsafe {
                copy_payload(at, now.as_ptr(), now.len(), Access::Shared, ledger, reason);
            }
            left = later;
        }
        src.len() - left.len()
    }
}

impl core::fmt::Debug for PageWriter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PageWriter(spare {})", self.spare())
    }
}

impl Drop for SpareRun {
    fn drop(&mut self) {
        self.pool.release(self.pos, self.end - self.pos);
    }
}
