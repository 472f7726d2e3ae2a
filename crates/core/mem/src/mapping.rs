//! Variant of step R7, by mapping: whole pages of a stream as contiguous memory, for reading only.
//!
//! ```text
//!   receive queue    [frag: pages 7 8 9 10 11][frag: pages 40 41]
//!                         |                          |
//!   adjacent              v                          |
//!   region's alias   ...  7 8 9 10 11  ...           |          a slice of it: no system call
//!                                                    v
//!   a window         [ 7 8 9 10 11 40 41 ]                      one `mmap` for each run
//! ```
//!
//! A region with a file is mapped a second time, once, as its *alias*, which cannot be written and
//! cannot be made writable: its pages are lent without any cost. Memory without such a file (a
//! sender's own `Bytes` on a link that passes references) is lent in place: read-only by type, as
//! long as it is private.
//!
//! To change page tables for each received page costs about twice as much as to copy the page. So only
//! `map` of an exact length makes windows; `map_available` ends where adjacent pages end.
//!
//! Two steps, so that nothing is consumed before everything is in place: [`Place::find`] examines
//! the queued fragments, [`Place::fill`] takes them.

use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::access::Access;
use crate::copy::{CopyLedger, CopyReason, copy_payload};
use crate::frag::{Frag, FragVec};
use crate::limits::PAGE_SIZE;
use crate::region::{MemError, Region, is_unmapped};

/// Whole pages of a stream as contiguous memory that can only be read. Keeps its pages until it is
/// dropped, on any thread; outlives the connection and the host that it came from.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    access: Access,
    calls: u32,
    /// Unmapped before the pages are released: fields are dropped in this order.
    _window: Option<Window>,
    frags: FragVec,
}

// SAFETY: read-only memory, kept by fragments that are `Send`; a window is unmapped by the thread
// that drops the last reference.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; nothing is written through a shared reference.
unsafe impl Sync for Mapping {}

/// Why pages cannot be mapped. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapFault {
    /// A part does not lie in whole pages, or the pages are not adjacent and have no file behind them.
    #[error("not all bytes lie in whole pages that can be mapped side by side")]
    NotPages,
    /// The kernel has no memory or address space for it.
    #[error("no memory for the mapping: {0}")]
    Memory(#[from] MemError),
}

/// Addresses found for a mapping of queued pages, before the pages are consumed.
#[derive(Debug)]
pub struct Place(PlaceKind);

#[derive(Debug)]
enum PlaceKind {
    /// The pages are adjacent: where they are.
    Adjacent { calls: u32 },
    /// In a window, which holds references of its own.
    Window(Mapping),
}

impl Place {
    /// Finds a place for the given lengths of fragments: whole pages, in stream order.
    ///
    /// Adjacent pages take one system call in a region's life; others one per run, and one more.
    pub fn find<'a, I>(parts: I) -> Result<Self, MapFault>
    where
        I: Iterator<Item = (&'a Frag, usize)> + Clone,
    {
        Self::find_in(parts, false)
    }

    /// As [`find`](Self::find), but only in memory that can never be made writable.
    pub fn find_sealed<'a, I>(parts: I) -> Result<Self, MapFault>
    where
        I: Iterator<Item = (&'a Frag, usize)> + Clone,
    {
        Self::find_in(parts, true)
    }

    fn find_in<'a, I>(parts: I, sealed: bool) -> Result<Self, MapFault>
    where
        I: Iterator<Item = (&'a Frag, usize)> + Clone,
    {
        let (mut calls, mut last, mut adjacent) = (0, None, true);
        for (frag, len) in parts.clone() {
            if len == 0 || len > frag.len() || !len.is_multiple_of(PAGE_SIZE) {
                return Err(MapFault::NotPages);
            }
            let view = ReadRange::of(frag)?;
            calls += view.calls;
            if !frag.is_page_aligned() || (sealed && !view.sealed) {
                return Err(MapFault::NotPages);
            }
            adjacent &= last.as_ref().is_none_or(|last: &ReadRange| last.is_followed_by(&view));
            last = Some(view.first(len));
        }
        match last {
            None => Err(MapFault::NotPages),
            Some(_) if adjacent => Ok(Self(PlaceKind::Adjacent { calls })),
            Some(_) => Ok(Self(PlaceKind::Window(Mapping::window(parts, calls)?))),
        }
    }

    /// Makes the mapping of the fragments, cut to the requested lengths. `None`: they are others.
    pub fn fill(self, frags: FragVec) -> Option<Mapping> {
        match self.0 {
            PlaceKind::Window(mapping) => Some(mapping),
            PlaceKind::Adjacent { calls } => {
                let mapping = Mapping::adjacent(frags)?;
                Some(Mapping { calls: calls + mapping.calls, ..mapping })
            }
        }
    }
}

/// The address at which a fragment's bytes can be read.
struct ReadRange {
    start: NonNull<u8>,
    len: usize,
    region: Option<Region>,
    /// The memory can never be made writable there.
    sealed: bool,
    calls: u32,
}

impl ReadRange {
    fn of(frag: &Frag) -> Result<Self, MemError> {
        let region = frag.region();
        let (alias, calls) = match &region {
            Some(region) => region.alias()?,
            None => (None, 0),
        };
        let start = match (&region, alias) {
            (Some(region), Some(alias)) => {
                let offset = frag.addr() - region.base().as_ptr().addr();
                // SAFETY: the fragment lies in the region, and the alias is as long.
                unsafe { alias.add(offset) }
            }
            _ => NonNull::new(frag.as_ptr().cast_mut()).unwrap_or(NonNull::dangling()),
        };
        Ok(Self { start, len: frag.len(), region, sealed: alias.is_some(), calls })
    }

    fn first(self, len: usize) -> Self {
        Self { len, ..self }
    }

    /// Whether `next` begins where this ends, in one allocation: otherwise they are no slice.
    fn is_followed_by(&self, next: &Self) -> bool {
        let same = match (&self.region, &next.region) {
            (Some(a), Some(b)) => a.is(b),
            _ => false,
        };
        same && self.start.addr().get() + self.len == next.start.addr().get()
    }
}

impl Mapping {
    /// A mapping of adjacent fragments in one memory, if there is memory for the region's alias.
    fn adjacent(frags: FragVec) -> Option<Self> {
        let (mut calls, mut start, mut len) = (0, None, 0);
        let mut last: Option<ReadRange> = None;
        for frag in &frags {
            let view = ReadRange::of(frag).ok()?;
            if last.as_ref().is_some_and(|last| !last.is_followed_by(&view)) {
                return None;
            }
            calls += view.calls;
            len += view.len;
            start = start.or(Some(view.start));
            last = Some(view);
        }
        let access = access(&frags);
        Some(Self { start: start?, len, access, calls, _window: None, frags })
    }

    /// Maps the parts into a range of addresses of their own.
    fn window<'a, I>(parts: I, calls: u32) -> Result<Self, MapFault>
    where
        I: Iterator<Item = (&'a Frag, usize)> + Clone,
    {
        let regions = parts.clone().map(|(frag, _)| frag.region());
        if !regions.into_iter().all(|r| r.is_some_and(|r| r.sealed_fd().is_some())) {
            return Err(MapFault::NotPages);
        }
        let len = parts.clone().map(|(_, len)| len).sum();
        let mut window = Window::reserve(len)?;
        let frags: FragVec = parts.map(|(frag, len)| frag.slice(0..len)).collect();
        let mut at = 0;
        for run in runs(&frags) {
            window.put(at, &run)?;
            at += run.len;
        }
        let calls = calls + window.calls;
        let access = access(&frags);
        Ok(Self { start: window.start, len, access, calls, _window: Some(window), frags })
    }

    /// Bytes mapped: whole pages, of [`PAGE_SIZE`].
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: never.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, unless others may change them: data sent out of a mapped file over a link that
    /// passes references is still that file.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.access {
            // SAFETY: `start..start+len` is mapped while `self` lives, holds only bytes of
            // fragments that we hold, and such bytes are not written.
            Access::Private => Some(unsafe {
                core::slice::from_raw_parts(self.start.as_ptr().cast_const(), self.len)
            }),
            Access::Shared => None,
        }
    }

    /// The first byte, for system calls; valid for [`len`](Self::len) bytes of reads while the
    /// mapping lives. Form no reference where [`as_slice`](Self::as_slice) is `None`.
    pub const fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Whether others may change the bytes.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// System calls that this mapping took: 0 for adjacent pages, except for the first of a region.
    pub const fn system_calls(&self) -> u32 {
        self.calls
    }

    /// Copies up to `dst.len()` bytes from `offset` on; returns how many.
    pub fn copy_to(&self, offset: usize, dst: &mut [u8], ledger: &mut CopyLedger) -> usize {
        let n = dst.len().min(self.len.saturating_sub(offset));
        if n > 0 {
            let to = NonNull::from(dst).cast::<u8>();
            // SAFETY: `offset < len`, because `n > 0`.
            let from = unsafe { self.start.as_ptr().add(offset) };
            // SAFETY: `offset + n <= len`, so the source is in range; `dst` is an exclusive slice
            // of at least `n` bytes, so it cannot overlap private memory.
            unsafe { copy_payload(to, from, n, self.access, ledger, CopyReason::AppRead) };
        }
        n
    }

    /// The fragments of these pages, in stream order: to send them on.
    pub fn frags(&self) -> &[Frag] {
        &self.frags
    }

    /// As [`frags`](Self::frags), and ends the mapping.
    pub fn into_frags(mut self) -> FragVec {
        core::mem::take(&mut self.frags)
    }

    /// Bytes of pools' pages that the mapping keeps from reuse.
    pub fn pinned(&self) -> usize {
        self.frags.iter().map(Frag::pinned_pages).sum()
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, access, calls, .. } = self;
        write!(f, "Mapping({len} bytes, {access:?}, {calls} system calls)")
    }
}

fn access(frags: &[Frag]) -> Access {
    match frags.iter().all(|frag| frag.access() == Access::Private) {
        true => Access::Private,
        false => Access::Shared,
    }
}

/// Adjacent pages of one region.
pub(crate) struct PageRun {
    region: Region,
    offset: usize,
    len: usize,
}

impl PageRun {
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// The fragments as runs of adjacent pages, without those of unknown memory.
pub(crate) fn runs(frags: &[Frag]) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for frag in frags {
        let Some(region) = frag.region() else { continue };
        let offset = frag.addr() - region.base().as_ptr().addr();
        match runs.last_mut() {
            Some(run) if run.region.is(&region) && run.offset + run.len == offset => {
                run.len += frag.len();
            }
            _ => runs.push(PageRun { region, offset, len: frag.len() }),
        }
    }
    runs
}

/// A range of addresses that belongs to this value alone.
pub(crate) struct Window {
    start: NonNull<u8>,
    len: usize,
    calls: u32,
    /// An empty file, mapped where no pages are if addresses are given away: an access is `SIGBUS`.
    nothing: Option<OwnedFd>,
    /// The addresses were unmapped, or cannot be.
    given_up: bool,
}

// SAFETY: addresses that the window alone maps and unmaps, on whatever thread it is.
unsafe impl Send for Window {}
// SAFETY: as for `Send`; a shared reference gives out the address only.
unsafe impl Sync for Window {}

impl Window {
    /// Reserves addresses; an access is a fault.
    fn reserve(len: usize) -> Result<Self, MemError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null hint lets the kernel choose a free range, so no existing mapping changes.
        let at = unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::empty(), flags) }
            .map_err(|e| MemError::System("mmap", e.into()))?;
        match NonNull::new(at.cast::<u8>()) {
            Some(start) => Ok(Self { start, len, calls: 1, nothing: None, given_up: false }),
            None => Err(MemError::System("mmap", std::io::ErrorKind::OutOfMemory.into())),
        }
    }

    /// Reserves addresses for others to read: they can never write there.
    pub(crate) fn of_nothing(len: usize) -> Result<Self, MemError> {
        let file =
            memfd_create("pagewire-nothing", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(|e| MemError::System("memfd_create", e.into()))?;
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)
            .map_err(|e| MemError::System("fcntl(F_ADD_SEALS)", e.into()))?;
        let mut window = Self::reserve(len)?;
        window.nothing = Some(file);
        window.empty(0, len)?;
        Ok(window)
    }

    pub(crate) fn addr(&self) -> usize {
        self.start.addr().get()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Removes the pages mapped at `at..at + len`, in a window [of nothing](Self::of_nothing).
    pub(crate) fn empty(&mut self, at: usize, len: usize) -> Result<(), MemError> {
        let range = MemError::Range { offset: at, len, region: self.len };
        let Some(file) = self.nothing.as_ref().filter(|_| at + len <= self.len) else {
            return Err(range);
        };
        #[cfg(test)]
        scarce::may_map()?;
        // SAFETY: `at + len <= self.len`, checked above.
        let to = unsafe { self.start.add(at) };
        let (to, flags) = (to.as_ptr().cast::<c_void>(), MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: replaces addresses of this window only; no code here forms references to them.
        unsafe { mmap(to, len, ProtFlags::READ, flags, file, 0) }
            .map_err(|e| MemError::System("mmap", e.into()))?;
        self.calls += 1;
        Ok(())
    }

    /// Maps a run of pages at byte `at`, read-only for ever, and with its page tables filled.
    pub(crate) fn put(&mut self, at: usize, run: &PageRun) -> Result<(), MemError> {
        let Some(fd) = run.region.sealed_fd() else {
            return Err(MemError::System("mmap", std::io::ErrorKind::Unsupported.into()));
        };
        debug_assert!(at + run.len <= self.len, "a run beyond its window");
        if at + run.len > self.len {
            return Err(MemError::Range { offset: at, len: run.len, region: self.len });
        }
        #[cfg(test)]
        scarce::may_map()?;
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: `at + run.len <= len`, checked above.
        let to = unsafe { self.start.add(at) };
        let (to, offset) = (to.as_ptr().cast::<c_void>(), run.offset as u64);
        // SAFETY: replaces addresses of this window only, without references yet, or, where they
        // are given away, by raw addresses only.
        unsafe { mmap(to, run.len, ProtFlags::READ, flags, fd, offset) }
            .map_err(|e| MemError::System("mmap", e.into()))?;
        self.calls += 1;
        Ok(())
    }

    /// Unmaps all addresses, for good; `false`: the system refuses, and the pages stay visible.
    pub(crate) fn unmap(&mut self) -> bool {
        self.given_up = true;
        #[cfg(test)]
        if scarce::may_map().is_err() {
            return false;
        }
        // SAFETY: the window is ours, and the mapping whose part it is is being dropped.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(is_unmapped(unmapped), "munmap of our own window: {unmapped:?}");
        unmapped.is_ok()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.given_up {
            self.unmap();
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({} bytes)", self.len)
    }
}

/// A system that runs out of memory maps when a test says so.
#[cfg(test)]
pub(crate) mod scarce {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::MemError;

    thread_local! {
        static ANSWERS: RefCell<VecDeque<bool>> = const { RefCell::new(VecDeque::new()) };
    }

    /// The results of the next changes of a window; later ones succeed.
    pub(crate) fn answer(answers: &[bool]) {
        ANSWERS.with_borrow_mut(|list| *list = answers.iter().copied().collect());
    }

    pub(super) fn may_map() -> Result<(), MemError> {
        match ANSWERS.with_borrow_mut(VecDeque::pop_front) {
            Some(false) => Err(MemError::System("mmap", std::io::ErrorKind::OutOfMemory.into())),
            _ => Ok(()),
        }
    }
}
