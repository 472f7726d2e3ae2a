//! A fragment: a shared, immutable range of bytes with the hold that keeps it alive. Payload is fragments
//! everywhere: in queues, packets and devices.

mod completion;
mod hold;

use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::access::Access;
use crate::block::Block;
use crate::budget::PageBudget;
use crate::copy::{CopyLedger, CopyReason, copy_payload};
use crate::held::Held;
use crate::limits::{MAX_FRAG_LEN, PAGE_SIZE, SNAPSHOT_LEN};
use crate::pool::PoolShared;
use crate::region::{MemError, Region};
use crate::release::KeptBytes;

pub use completion::Completion;
use hold::Hold;
pub use hold::Owner;

/// Fragments in order; two without an allocation, which most packets need.
pub type FragVec = SmallVec<[Frag; 2]>;

/// Bytes that do not move and, unless [`Access::Shared`], are not written while any clone lives.
///
/// The drop of the last clone returns the memory to the pool, the sender's buffer or the region.
pub struct Frag {
    ptr: NonNull<u8>,
    len: u32,
    /// The number of its piece in a completion: only fragments of one piece are joined, because two
    /// pieces may be two allocations that are adjacent by chance. 0 elsewhere.
    piece: u16,
    /// Whole pages that any part of it keeps, if it lies in a block; 0: as many as it touches.
    pages: u8,
    access: Access,
    hold: Hold,
}

/// A piece that is never joined: there are no more numbers.
const LAST_PIECE: u16 = u16::MAX;

const _: () = assert!(size_of::<Frag>() == 32);

// SAFETY: a fragment is a reference-counted view of bytes that are not written (or, with
// `Access::Shared`, are only reached through copies that tolerate writers); all of its holds are
// `Send + Sync`.
unsafe impl Send for Frag {}
// SAFETY: as for `Send`; no method writes through `&Frag`.
unsafe impl Sync for Frag {}

impl Frag {
    /// No bytes.
    pub const fn empty() -> Self {
        let (ptr, hold) = (NonNull::dangling(), Hold::Nothing);
        Self { ptr, len: 0, piece: 0, pages: 0, access: Access::Private, hold }
    }

    /// Owned bytes by reference. `bytes` beyond 4 GiB - 1 are cut off: split first.
    #[inline]
    pub fn from_bytes(bytes: Bytes) -> Self {
        let bytes = if bytes.len() > MAX_FRAG_LEN { bytes.slice(..MAX_FRAG_LEN) } else { bytes };
        if bytes.is_empty() {
            return Self::empty();
        }
        let (ptr, len) = (NonNull::from(&*bytes).cast::<u8>(), bytes.len());
        // Immutable, and in place while the hold lives.
        let hold = Hold::Bytes(Arc::new(KeptBytes(bytes)));
        Self { ptr, len: len as u32, piece: 0, pages: 0, access: Access::Private, hold }
    }

    /// Bytes that live for ever.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        let len = bytes.len().min(MAX_FRAG_LEN) as u32;
        let ptr = NonNull::from(bytes).cast::<u8>();
        Self { ptr, len, piece: 0, pages: 0, access: Access::Private, hold: Hold::Nothing }
    }

    /// Any memory that `keep` keeps alive; the drop of `keep` is the release.
    ///
    /// # Safety
    /// `ptr..ptr+len` stays in place while `keep` lives, and `len` is at most
    /// [`MAX_FRAG_LEN`](crate::limits::MAX_FRAG_LEN). With [`Access::Private`] it is readable and
    /// not written meanwhile; with [`Access::Shared`] it may be unreadable, and a read gets the
    /// signal. All fragments made with clones of one `keep` lie in one allocation or memory map,
    /// because adjacent ones are joined.
    pub unsafe fn from_raw(ptr: NonNull<u8>, len: usize, access: Access, keep: Owner) -> Self {
        debug_assert!(len <= MAX_FRAG_LEN);
        Self { ptr, len: len as u32, piece: 0, pages: 0, access, hold: Hold::Owner(keep) }
    }

    /// Lent memory, which its owner keeps. Counts as shared.
    ///
    /// # Safety
    /// As [`from_raw`](Self::from_raw), for as long as this fragment, a slice of it or what it is
    /// [attached](Completion::attach) to lives. Attach it to a completion and keep the memory until
    /// that is reported.
    pub const unsafe fn lent(ptr: NonNull<u8>, len: usize) -> Self {
        debug_assert!(len <= MAX_FRAG_LEN);
        let (access, hold) = (Access::Shared, Hold::Nothing);
        Self { ptr, len: len as u32, piece: 0, pages: 0, access, hold }
    }

    /// Part of a block.
    ///
    /// # Safety
    /// As [`from_raw`](Self::from_raw), with the block as what keeps the bytes, which are private.
    #[inline(always)]
    pub(crate) unsafe fn from_block(ptr: NonNull<u8>, len: usize, block: Block) -> Self {
        let (access, pages) = (Access::Private, block.pages().count());
        Self { ptr, len: len as u32, piece: 0, pages, access, hold: Hold::Carved(block) }
    }

    /// Bytes `offset..offset+len` of a pool's region, `len > 0`.
    ///
    /// # Safety
    /// The range lies in the region, is never written again, and the caller passes on one reference
    /// to each page that it touches.
    pub(crate) unsafe fn from_pool(pool: Arc<PoolShared>, offset: usize, len: usize) -> Self {
        // SAFETY: the caller's promise that the range lies in the region.
        let ptr = unsafe { pool.region().base().add(offset) };
        let access = pool.region().access();
        Self { ptr, len: len as u32, piece: 0, pages: 0, access, hold: Hold::Pages(pool) }
    }

    /// Bytes in the fragment.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether others may change the bytes.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// The address of the first byte, for comparisons.
    pub fn addr(&self) -> usize {
        self.ptr.as_ptr().addr()
    }

    /// The first byte, for system calls that gather; valid for [`len`](Self::len) bytes of reads
    /// while the fragment lives. Form no reference where [`access`](Self::access) is shared.
    pub const fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// Whether the bytes start on a page boundary.
    pub fn is_page_aligned(&self) -> bool {
        self.addr().is_multiple_of(PAGE_SIZE)
    }

    /// The bytes, unless others may change them.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.access {
            Access::Private => {
                // SAFETY: valid for `len` bytes while `self` lives, and not written (the promise
                // of `from_raw` and of `PageWriter`).
                Some(unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len()) })
            }
            Access::Shared => None,
        }
    }

    /// Bytes of memory that it keeps from reuse: whole pages of a pool, otherwise its length.
    #[inline]
    pub fn pinned(&self) -> usize {
        match &self.hold {
            Hold::Pages(_) if self.len > 0 => {
                let first = self.addr() / PAGE_SIZE;
                let last = (self.addr() + self.len() - 1) / PAGE_SIZE;
                (last - first + 1) * PAGE_SIZE
            }
            _ if self.pages > 0 && self.len > 0 => usize::from(self.pages) * PAGE_SIZE,
            _ => self.len(),
        }
    }

    /// Whether it keeps one page that a [`Carver`](crate::Carver) filled with frames. A few such
    /// references are cheaper than copies; very many are not.
    pub const fn is_carved(&self) -> bool {
        self.pages == 1
    }

    /// The part of [`pinned`](Self::pinned) that belongs to a pool, which can run out.
    pub fn pinned_pages(&self) -> usize {
        match &self.hold {
            Hold::Pages(_) => self.pinned(),
            _ if self.pages > 0 => self.pinned(),
            _ => 0,
        }
    }

    /// The part `range`, sharing the memory. A range beyond the end is truncated.
    #[must_use]
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        if start == end {
            return Self::empty();
        }
        // SAFETY: `start < end <= len`, so the address is within the fragment's range.
        let ptr = unsafe { self.ptr.add(start) };
        let Self { piece, pages, access, .. } = *self;
        let hold = self.hold.clone();
        let part = Self { ptr, len: (end - start) as u32, piece, pages, access, hold };
        if let Hold::Pages(pool) = &part.hold {
            pool.acquire(part.pool_offset(pool), part.len());
        }
        part
    }

    /// Removes the first `n` bytes (all, if there are fewer) and returns them.
    #[must_use]
    #[inline]
    pub fn split_to(&mut self, n: usize) -> Self {
        let n = n.min(self.len());
        if n == 0 {
            return Self::empty();
        }
        if n == self.len() {
            return core::mem::take(self);
        }
        let Self { ptr, piece, pages, access, .. } = *self;
        let front = Self { ptr, len: n as u32, piece, pages, access, hold: self.hold.clone() };
        // SAFETY: `n < len`, so the address is within the fragment's range.
        self.ptr = unsafe { self.ptr.add(n) };
        self.len -= n as u32;
        // The references are divided between the parts; a page cut in two needs one more.
        if let Hold::Pages(pool) = &self.hold {
            let cut = self.pool_offset(pool);
            if !cut.is_multiple_of(PAGE_SIZE) {
                pool.acquire(cut, 1);
            }
        }
        front
    }

    /// Drops the first `n` bytes; pages that are no longer touched are released.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        drop(self.split_to(n));
    }

    /// Keeps the first `n` bytes only.
    pub fn truncate(&mut self, n: usize) {
        if n < self.len() {
            let front = self.split_to(n);
            *self = front;
        }
    }

    /// Appends `next` if it continues this fragment in memory under the same hold; else returns it.
    pub fn try_append(&mut self, next: Self) -> Result<(), Self> {
        if next.is_empty() {
            return Ok(());
        }
        if self.is_empty() {
            *self = next;
            return Ok(());
        }
        if !self.can_append(&next) {
            return Err(next);
        }
        self.append(next);
        Ok(())
    }

    /// Appends the fragment to `out`, as part of the last one there if it continues that.
    #[inline]
    pub fn append_to(self, out: &mut FragVec) {
        let rest = match out.last_mut() {
            Some(last) => last.try_append(self),
            None => Err(self),
        };
        if let Err(frag) = rest {
            out.push(frag);
        }
    }

    /// Appends a fragment for which [`can_append`](Self::can_append) is true.
    pub(crate) fn append(&mut self, next: Self) {
        debug_assert!(self.can_append(&next), "asked before");
        // Both parts hold the page they meet in; one of the two references goes.
        if let Hold::Pages(pool) = &next.hold {
            let cut = next.pool_offset(pool);
            if !cut.is_multiple_of(PAGE_SIZE) {
                pool.release(cut, 1);
            }
        }
        self.len += next.len;
        next.forget_pages();
    }

    /// Whether `next`, which is not empty, continues this fragment in memory under the same hold.
    pub(crate) fn can_append(&self, next: &Self) -> bool {
        let fits = (self.len() + next.len()) <= MAX_FRAG_LEN;
        let one_piece = self.piece == next.piece && self.piece != LAST_PIECE;
        fits && one_piece && self.is_followed_by(next) && self.hold.is(&next.hold)
    }

    /// Whether `next` starts at the address where this one ends, with the same access. Only
    /// [`try_append`](Self::try_append) knows whether both are one memory.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        self.addr() + self.len() == next.addr() && self.access == next.access
    }

    /// Copies up to `dst.len()` bytes from `offset` on into `dst`; returns how many.
    #[inline]
    pub fn copy_to(
        &self,
        offset: usize,
        dst: &mut [u8],
        ledger: &mut CopyLedger,
        reason: CopyReason,
    ) -> usize {
        let n = dst.len().min(self.len().saturating_sub(offset));
        if n > 0 {
            let to = NonNull::from(dst).cast::<u8>();
            // SAFETY: `offset < len`, because `n > 0`.
            let from = unsafe { self.ptr.as_ptr().add(offset) };
            // SAFETY: `offset + n <= len`, so the source is in range; `dst` is an exclusive slice
            // of at least `n` bytes, so it cannot overlap private memory, whose fragments may be
            // borrowed; a copy from shared memory bears overlap.
            unsafe { copy_payload(to, from, n, self.access, ledger, reason) };
        }
        n
    }

    /// Copies up to `len` bytes from `offset` on to memory that is no slice, such as a guest's or
    /// an uninitialised buffer; fewer at the end of the fragment. Returns how many.
    ///
    /// # Safety
    /// `dst` is valid for writes of `len` bytes. With `to` [`Access::Private`] no other code
    /// reaches them meanwhile, and no fragment covers them.
    pub unsafe fn copy_to_raw(
        &self,
        offset: usize,
        dst: NonNull<u8>,
        len: usize,
        to: Access,
        ledger: &mut CopyLedger,
        reason: CopyReason,
    ) -> usize {
        let n = len.min(self.len().saturating_sub(offset));
        if n > 0 {
            let access = match to {
                Access::Private => self.access,
                Access::Shared => Access::Shared,
            };
            // SAFETY: `offset < len` of the fragment, because `n > 0`.
            let from = unsafe { self.ptr.as_ptr().add(offset) };
            // SAFETY: `offset + n <= len` of the fragment, so the source is in range; the
            // destination is the caller's promise.
            unsafe { copy_payload(dst, from, n, access, ledger, reason) };
        }
        n
    }

    /// Shows the bytes to `f` in order: as one slice where they are private, else through snapshots
    /// on the stack, counted as [`CopyReason::Snapshot`].
    pub fn for_each_piece(&self, ledger: &mut CopyLedger, mut f: impl FnMut(&[u8])) {
        if let Some(all) = self.as_slice() {
            f(all);
            return;
        }
        let mut snapshot = [0u8; SNAPSHOT_LEN];
        let mut at = 0;
        while at < self.len() {
            let n = self.copy_to(at, &mut snapshot, ledger, CopyReason::Snapshot);
            f(snapshot.get(..n).unwrap_or_default());
            at += n;
        }
    }

    /// The bytes as [`Bytes`], without a copy; returns the fragment if others may change them.
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        self.into_bytes_with(Held::default())
    }

    /// As [`into_bytes`](Self::into_bytes); memory of a pool keeps `held` with it.
    pub fn into_bytes_with(self, held: Held) -> Result<Bytes, Self> {
        struct Owner(Frag, #[allow(dead_code, reason = "counts until it is dropped")] Held);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                self.0.as_slice().unwrap_or_default()
            }
        }
        if self.access == Access::Shared {
            return Err(self);
        }
        // A fragment made of `Bytes` is returned as the same `Bytes`, without an allocation.
        if let Hold::Bytes(keep) = &self.hold
            && let KeptBytes(bytes) = &**keep
            && let Some(start) = self.addr().checked_sub(bytes.as_ptr().addr())
            && let Some(end) = start.checked_add(self.len()).filter(|&end| end <= bytes.len())
        {
            return Ok(bytes.slice(start..end));
        }
        Ok(Bytes::from_owner(Owner(self, held)))
    }

    /// Makes the bytes piece `piece` of `completion`, which keeps `self` if `self` holds memory.
    pub(crate) fn held_by(&self, completion: &Arc<Completion>, piece: u16) -> Self {
        let Self { ptr, len, access, .. } = *self;
        let hold = Hold::Sent(Arc::clone(completion));
        Self { ptr, len, piece, pages: 0, access, hold }
    }

    /// Appends `next`, the memory of one more zero-copy call, if this fragment ends with the last
    /// call's memory and `next` continues it: the two calls complete together. Returns the id of
    /// the call; `None`, and nothing has changed, if that is impossible, or `budget` has too few
    /// pages left. Only the stack that made the completion calls this, between two turns of it.
    pub fn join_call(&mut self, next: &mut Self, budget: &Arc<PageBudget>) -> Option<u32> {
        let len = next.len;
        let fits = len > 0 && self.len() + next.len() <= MAX_FRAG_LEN;
        if !fits || self.piece == LAST_PIECE || !self.is_followed_by(next) {
            return None;
        }
        let id = self.completion()?.join_with(self.piece, next, budget)?;
        // The completion, which this fragment holds, has the new bytes.
        self.len += len;
        Some(id)
    }

    /// Whether the memory is lent: the fragment keeps nothing.
    pub(crate) const fn is_lent(&self) -> bool {
        matches!((&self.hold, self.access), (Hold::Nothing, Access::Shared))
    }

    /// Whether dropping the fragment releases memory.
    pub(crate) fn holds_memory(&self) -> bool {
        !matches!(self.hold, Hold::Nothing)
    }

    /// The completion that reports the release of the bytes, if there is one.
    pub fn completion(&self) -> Option<&Completion> {
        match &self.hold {
            Hold::Sent(completion) => Some(completion),
            _ => None,
        }
    }

    /// The region that the bytes lie in, if it is known.
    pub(crate) fn region(&self) -> Option<Region> {
        match &self.hold {
            Hold::Pages(pool) => Some(pool.region().clone()),
            Hold::Region(region) => Some(region.clone()),
            Hold::Sent(completion) => completion.region_of(self.addr()),
            _ => None,
        }
    }

    fn pool_offset(&self, pool: &PoolShared) -> usize {
        self.addr() - pool.region().base().as_ptr().addr()
    }

    /// The offset of the bytes in the pool's region, if they are the pool's.
    pub(crate) fn offset_in(&self, pool: &Arc<PoolShared>) -> Option<usize> {
        match &self.hold {
            Hold::Pages(own) if Arc::ptr_eq(own, pool) => Some(self.pool_offset(own)),
            _ => None,
        }
    }

    /// Drops everything except the references to pages, which have a new owner.
    pub(crate) fn forget_pages(mut self) {
        self.len = 0;
    }
}

impl Region {
    /// Bytes `offset..offset+len` as a fragment that keeps the region mapped. Fails for a pool's
    /// region: its pages become fragments through a [`PageWriter`](crate::PageWriter) only.
    pub fn frag(&self, offset: usize, len: usize) -> Result<Frag, MemError> {
        let range = MemError::Range { offset, len, region: self.len() };
        let end = offset.checked_add(len).filter(|&end| end <= self.len());
        if end.is_none() || len > MAX_FRAG_LEN {
            return Err(range);
        }
        self.claim_lent()?;
        // SAFETY: `offset <= len of the region`, checked above, so the address is in the region
        // or one past it.
        let ptr = unsafe { self.base().add(offset) };
        // The range lies in the region, which the hold keeps mapped; with `Access::Private` the
        // region's maker promised that no other code writes it, and the claim that no pool does.
        let hold = Hold::Region(self.clone());
        Ok(Frag { ptr, len: len as u32, piece: 0, pages: 0, access: self.access(), hold })
    }
}

impl Clone for Frag {
    #[inline]
    fn clone(&self) -> Self {
        if let Hold::Pages(pool) = &self.hold {
            pool.acquire(self.pool_offset(pool), self.len());
        }
        let Self { ptr, len, piece, pages, access, .. } = *self;
        Self { ptr, len, piece, pages, access, hold: self.hold.clone() }
    }
}

impl Drop for Frag {
    #[inline]
    fn drop(&mut self) {
        if self.len > 0
            && let Hold::Pages(pool) = &self.hold
        {
            pool.release(self.pool_offset(pool), self.len());
        }
    }
}

impl Default for Frag {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<Bytes> for Frag {
    fn from(bytes: Bytes) -> Self {
        Self::from_bytes(bytes)
    }
}

impl fmt::Debug for Frag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = match self.hold {
            Hold::Nothing => "static",
            Hold::Pages(_) => "pages",
            Hold::Bytes(_) => "bytes",
            Hold::Region(_) => "mapped",
            Hold::Carved(_) => "carved",
            Hold::Sent(_) => "sent",
            Hold::Owner(_) => "owned",
        };
        write!(f, "Frag({hold} {:#x}+{} {:?})", self.addr(), self.len, self.access)
    }
}
