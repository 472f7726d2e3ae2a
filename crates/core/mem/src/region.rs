//! Mapped memory. A [`Region`] owns the only raw pointer to its bytes; everything else borrows from it.
//!
//! A region has one of two uses, never both: a [`PagePool`](crate::PagePool) writes its pages, or
//! [`Region::frag`] lends ranges that are not written. With both, safe code could see a `&[u8]`
//! change. The first use claims the region; the other then fails. Between sends the application fills
//! private memory again, while it is the only holder ([`Region::bytes_mut`]).

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use std::any::Any;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{
    MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs,
    ftruncate, memfd_create, open,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::access::Access;
use crate::copy::{CopyLedger, CopyReason, copy_payload};
use crate::limits::{HUGE_PAGE_SIZE, PAGE_SIZE};
use crate::release::KeptOwner;

#[cfg(test)]
mod tests;

/// Errors of memory.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The length is zero, too large, or (except for a file's) not a multiple of the page size.
    #[error("region length {0} is zero, too large, or not a multiple of {PAGE_SIZE}")]
    Length(usize),
    /// The view of a file does not begin on a page.
    #[error(
        "offset {0} into a file is not a multiple of {PAGE_SIZE}: name the part with Region::frag"
    )]
    Offset(u64),
    /// The range reaches outside the region.
    #[error("range {offset}+{len} is outside a region of {region} bytes")]
    Range {
        /// First byte of the range.
        offset: usize,
        /// Length of the range.
        len: usize,
        /// Bytes of the region.
        region: usize,
    },
    /// The region has another use already: pages of a pool are written, lent fragments never are.
    #[error("the region already serves as {0}; take another region")]
    Claimed(&'static str),
    /// The region cannot hold pages that the stack writes.
    #[error("the region is read-only or not page-aligned")]
    NotPages,
    /// Something still refers to the memory.
    #[error("the region is in use: wait for the completion of each send, and drop all clones")]
    InUse,
    /// Others may write the bytes.
    #[error("the region is shared: fill it with Region::copy_shared_in")]
    Shared,
    /// Only the holder of the region may write the bytes.
    #[error("the region is private: fill it through Region::bytes_mut")]
    Private,
    /// The memory is read-only.
    #[error("the region is read-only")]
    ReadOnly,
    /// The file behind the memory could shrink.
    #[error("the memfd is not sealed: set F_SEAL_SHRINK, so that its pages cannot vanish")]
    NotSealed,
    /// A hole could be punched into the file behind the memory, with no page left to fill it.
    #[error("the memfd is of huge pages, which its other users can take away at any time")]
    HugePages,
    /// The kernel refused.
    #[error("{0}: {1}")]
    System(&'static str, #[source] std::io::Error),
}

/// The text: a program whose `main` returns the error prints this form.
impl std::fmt::Debug for MemError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<MemError> for std::io::Error {
    fn from(error: MemError) -> Self {
        let kind = match &error {
            MemError::System(_, source) => source.kind(),
            MemError::Claimed(_) | MemError::InUse => std::io::ErrorKind::ResourceBusy,
            MemError::Shared | MemError::Private | MemError::ReadOnly => {
                std::io::ErrorKind::PermissionDenied
            }
            _ => std::io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}

/// Memory to send from by reference or to receive into: a mapped [file](Self::file), fresh pages
/// ([`memfd`](Self::memfd)), or adopted memory. [`frag`](Self::frag) names a part of it.
///
/// A memory map, cheap to clone; the drop of the last clone or fragment unmaps it.
#[derive(Clone)]
pub struct Region(Arc<MemoryMap>);

pub(crate) struct MemoryMap {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    writable: bool,
    /// Bytes that the kernel mapped for `len`: whole pages of the file, which may be huge.
    mapped: usize,
    /// The use of the memory: [`UNUSED`], [`LENT`] or [`POOLED`].
    claim: AtomicU8,
    backing: Backing,
    /// The same memory mapped for reading only, when first needed; `None`: it has no safe file.
    alias: OnceLock<Option<NonNull<u8>>>,
}

/// The type of the file system of huge pages (`HUGETLBFS_MAGIC`).
const HUGETLBFS: u32 = 0x9584_58f6;

/// No pool and no fragment was made from the region.
const UNUSED: u8 = 0;
/// Fragments were made: the stack never writes its bytes again.
const LENT: u8 = 1;
/// A pool, or fragments of its pages, live: no other fragment may be made.
const POOLED: u8 = 2;

enum Backing {
    /// Mapped here, and unmapped at the end.
    Mapped { fd: Option<OwnedFd>, discard: Option<Advice> },
    /// Adopted memory, kept alive by this.
    Adopted { _keep: KeptOwner },
}

// SAFETY: the bytes are plain memory that outlives every thread that can name it (the
// `Arc` keeps it mapped); who may read or write which part of it is decided by `PagePool`,
// `PageWriter` and `Frag`, not by the thread.
unsafe impl Send for MemoryMap {}
// SAFETY: as for `Send`; a shared `&Inner` gives out the address and the length only.
unsafe impl Sync for MemoryMap {}

impl Region {
    /// `len` bytes of fresh zeroed memory behind a memfd called `name`, so that it can be mapped
    /// again or handed to another process. `len` is a positive multiple of [`PAGE_SIZE`].
    ///
    /// The file is sealed: its size is fixed, and other holders of it can map it for reading only.
    /// Only this region can write it, which makes the bytes private. On a kernel without that seal
    /// (Linux before 5.1) the region has no [`fd`](Self::fd).
    pub fn memfd(name: &str, len: usize) -> Result<Self, MemError> {
        let (memory, fd) = map_memfd(name, len)?;
        let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        let fd = fcntl_add_seals(&fd, seals).is_ok().then_some(fd);
        Ok(Self::mapped(memory, len, Access::Private, true, fd))
    }

    /// Like [`memfd`](Self::memfd), for a pool: memory that is not used can go back to the system. The
    /// [`fd`](Self::fd) is for reading only.
    pub(crate) fn pages(name: &str, len: usize) -> Result<Self, MemError> {
        let (memory, fd) = map_memfd(name, len)?;
        // Not `FUTURE_WRITE`, which forbids holes. No map of the descriptor that stays can become writable, and
        // pools keep it to themselves.
        let reads = fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)
            .and_then(|()| {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            });
        match reads {
            Ok(fd) => {
                let backing = Backing::Mapped { fd: Some(fd), discard: Some(Advice::LinuxRemove) };
                Ok(Self::new(memory, len, Access::Private, true, backing))
            }
            // Without `/proc`, or on an old kernel.
            Err(_) => {
                unmap(memory.0, memory.1);
                Self::memfd(name, len)
            }
        }
    }

    /// Like [`memfd`](Self::memfd), without a file: it needs no descriptor, and cannot be mapped again
    /// or handed to another process.
    pub fn anonymous(len: usize) -> Result<Self, MemError> {
        check_len(len)?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a null hint lets the kernel choose a free range, so no existing memory map changes.
        let at = unsafe { mmap_anonymous(core::ptr::null_mut(), len, prot, flags) };
        let memory = (base_of(at)?, len);
        let backing = Backing::Mapped { fd: None, discard: Some(Advice::LinuxDontNeed) };
        Ok(Self::new(memory, len, Access::Private, true, backing))
    }

    /// Like [`memfd`](Self::memfd), for memory that another process shall write: other holders of
    /// the file can map it writable, so the bytes count as shared. Its size is fixed.
    pub fn memfd_shared(name: &str, len: usize) -> Result<Self, MemError> {
        let (memory, fd) = map_memfd(name, len)?;
        let sealed = fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL);
        let region = Self::mapped(memory, len, Access::Shared, true, Some(fd));
        sealed.map_err(|e| MemError::System("fcntl(F_ADD_SEALS)", e.into()))?;
        Ok(region)
    }

    /// Like [`memfd_shared`](Self::memfd_shared), of huge pages of 2 MiB, of which `len` is a
    /// multiple. Fails if the system has none free (`/proc/sys/vm/nr_hugepages`).
    pub fn huge(name: &str, len: usize) -> Result<Self, MemError> {
        if !len.is_multiple_of(HUGE_PAGE_SIZE) {
            return Err(MemError::Length(len));
        }
        let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let (memory, fd) = map_memfd_with(name, len, flags)?;
        let sealed = fcntl_add_seals(&fd, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL);
        let region = Self::mapped(memory, len, Access::Shared, true, Some(fd));
        sealed.map_err(|e| MemError::System("fcntl(F_ADD_SEALS)", e.into()))?;
        Ok(region)
    }

    /// Maps the first `len` bytes of a memfd, a positive multiple of [`PAGE_SIZE`], for reading and
    /// writing. The bytes count as shared. Closes the descriptor: there is no [`fd`](Self::fd).
    ///
    /// A page that vanishes would kill the process that touches it. So the file must be sealed
    /// against shrinking (`F_SEAL_SHRINK`), and not be of huge pages: no seal that leaves it
    /// writable forbids to punch holes, and a hole is filled from the huge pages that the system
    /// has left. (A hole in ordinary pages is filled with zeros while there is memory.)
    pub fn from_memfd(fd: OwnedFd, len: usize) -> Result<Self, MemError> {
        check_len(len)?;
        if page_of(fd.as_fd())? != PAGE_SIZE {
            return Err(MemError::HugePages);
        }
        Self::from_trusted_memfd(fd, len)
    }

    /// As [`from_memfd`](Self::from_memfd), also of huge pages, if others punch no holes into it.
    pub fn from_trusted_memfd(fd: OwnedFd, len: usize) -> Result<Self, MemError> {
        check_len(len)?;
        let seals = fcntl_get_seals(&fd);
        let seals = seals.map_err(|e| MemError::System("fcntl(F_GET_SEALS)", e.into()))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MemError::NotSealed);
        }
        let size = fstat(&fd).map_err(|e| MemError::System("fstat", e.into()))?.st_size;
        let region = usize::try_from(size).unwrap_or(0);
        if len > region {
            return Err(MemError::Range { offset: 0, len, region });
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let memory = map(fd.as_fd(), len, prot, MapFlags::SHARED, 0)?;
        Ok(Self::mapped(memory, len, Access::Shared, true, None))
    }

    /// A read-only view of `len` bytes of `file` from `offset` (a multiple of [`PAGE_SIZE`]), which
    /// must lie within the file's present length. An empty file has no view.
    ///
    /// The bytes count as shared: another process may write or truncate the file at any time. The
    /// stack forms no reference to them. A read past a truncation gets `SIGBUS`; devices that
    /// gather in the kernel get `EFAULT`, a counted drop.
    pub fn file(file: &File, offset: u64, len: usize) -> Result<Self, MemError> {
        if len == 0 || len > isize::MAX as usize {
            return Err(MemError::Length(len));
        }
        if !offset.is_multiple_of(PAGE_SIZE as u64) {
            return Err(MemError::Offset(offset));
        }
        let meta = file.metadata().map_err(|e| MemError::System("fstat", e))?;
        // Devices can be mapped too, and have no length here.
        let end = offset.checked_add(len as u64);
        if meta.is_file() && end.is_none_or(|end| end > meta.len()) {
            let (offset, region) = (offset as usize, meta.len() as usize);
            return Err(MemError::Range { offset, len, region });
        }
        let memory = map(file.as_fd(), len, ProtFlags::READ, MapFlags::SHARED, offset)?;
        Ok(Self::mapped(memory, len, Access::Shared, false, None))
    }

    /// Adopts memory that something else owns: a guest, a device, an application.
    ///
    /// # Safety
    /// - `base..base+len` stays one memory map for as long as `keep` lives, and `len` is at most
    ///   `isize::MAX`.
    /// - With [`Access::Private`] it stays readable, and is not written while a [`Frag`](crate::Frag)
    ///   points there.
    /// - With [`Access::Shared`] it may also be memory that cannot be read (`PROT_NONE`) or that
    ///   shrinks: fragments pass it along untouched, and a read gets the signal.
    /// - With `writable` it stays writable, and is the stack's to write: no other region over the
    ///   same bytes is in use, and with [`Access::Private`] its bytes are initialised, and nothing else
    ///   reads or writes them.
    pub unsafe fn adopt(
        base: NonNull<u8>,
        len: usize,
        access: Access,
        writable: bool,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let backing = Backing::Adopted { _keep: KeptOwner(Some(keep)) };
        Self::new((base, 0), len, access, writable, backing)
    }

    fn mapped(
        memory: (NonNull<u8>, usize),
        len: usize,
        access: Access,
        writable: bool,
        fd: Option<OwnedFd>,
    ) -> Self {
        Self::new(memory, len, access, writable, Backing::Mapped { fd, discard: None })
    }

    fn new(
        (base, mapped): (NonNull<u8>, usize),
        len: usize,
        access: Access,
        writable: bool,
        backing: Backing,
    ) -> Self {
        let (claim, alias) = (AtomicU8::new(UNUSED), OnceLock::new());
        Self(Arc::new(MemoryMap { base, len, access, writable, mapped, claim, backing, alias }))
    }

    /// Whether both are the same memory map.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Bytes in the region.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are none: never, except for adopted memory of no length.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Whether others may write these bytes.
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// Whether the stack may write these bytes.
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }

    /// The file behind the region, if it was made with one.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0.backing {
            Backing::Mapped { fd, .. } => fd.as_ref().map(AsFd::as_fd),
            Backing::Adopted { .. } => None,
        }
    }

    /// Claims the region for a use other than a pool, for good.
    pub(crate) fn claim_lent(&self) -> Result<(), MemError> {
        self.claim(LENT).map(|_| ())
    }

    /// Claims the region for a pool, until [`unclaim_pages`](Self::unclaim_pages).
    pub(crate) fn claim_pages(&self) -> Result<(), MemError> {
        if !self.0.writable || !self.0.base.as_ptr().addr().is_multiple_of(PAGE_SIZE) {
            return Err(MemError::NotPages);
        }
        match self.claim(POOLED)? {
            UNUSED => Ok(()),
            _ => Err(MemError::Claimed("pages of a pool")),
        }
    }

    /// Gives the memory of whole pages back to the system: they are zero when they are used next. For a
    /// pool, of pages to which nothing refers. Returns whether the system took them.
    pub(crate) fn discard(&self, offset: usize, len: usize) -> bool {
        let Backing::Mapped { discard: Some(advice), .. } = self.0.backing else { return false };
        let aligned = offset.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE);
        if !aligned || offset.checked_add(len).is_none_or(|end| end > self.0.len) {
            return false;
        }
        // SAFETY: `offset` lies in the region.
        let from = unsafe { self.0.base.add(offset) };
        // SAFETY: whole pages of memory that was mapped here, for the pool that claims it and calls this.
        // No fragment, view or writer refers to free pages, so no reference sees the bytes change; they
        // stay mapped and initialised, as zeros.
        unsafe { madvise(from.as_ptr().cast::<c_void>(), len, advice).is_ok() }
    }

    /// Ends a pool's claim, after the pool and every fragment of its pages are gone.
    pub(crate) fn unclaim_pages(&self) {
        // Release pairs with the Acquire in `claim`: reads and writes through the old pool happen
        // before the next use.
        self.0.claim.store(UNUSED, Ordering::Release);
    }

    /// Claims the region for one use, if it has no other; returns the claim before.
    fn claim(&self, wanted: u8) -> Result<u8, MemError> {
        // The plain load keeps the usual case cheap: a region that is lent again and again.
        let before = match self.0.claim.load(Ordering::Acquire) {
            UNUSED => {
                self.0.claim.compare_exchange(UNUSED, wanted, Ordering::Acquire, Ordering::Acquire)
            }
            claimed => Err(claimed),
        };
        match before {
            Ok(before) => Ok(before),
            Err(before) if before == wanted => Ok(before),
            Err(POOLED) => Err(MemError::Claimed("pages of a pool")),
            Err(_) => Err(MemError::Claimed("lent memory")),
        }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// The region's range of addresses.
    pub fn span(&self) -> core::ops::Range<usize> {
        let start = self.0.base.as_ptr().addr();
        start..start + self.0.len
    }

    /// Copies bytes from `offset` on into `into`, up to the region's end, although others may write
    /// them meanwhile; returns how many. None if the bytes are private: only fragments know which
    /// of those may be read. The application's own copy, so it is not counted.
    #[inline]
    pub fn copy_shared_out(&self, offset: usize, into: &mut [u8]) -> usize {
        let n = into.len().min(self.0.len.saturating_sub(offset));
        if n == 0 || self.0.access == Access::Private {
            return 0;
        }
        // SAFETY: `offset < len of the region`, because `n > 0`.
        let from = unsafe { self.0.base.add(offset) };
        let to = NonNull::from(into).cast::<u8>();
        let (mut ledger, reason) = (CopyLedger::new(), CopyReason::AppRead);
        // SAFETY: `offset + n` lies in the region, and `into` is an exclusive slice of at least
        // `n` bytes; a copy from shared memory bears writers.
        unsafe { copy_payload(to, from.as_ptr(), n, Access::Shared, &mut ledger, reason) };
        n
    }

    /// The bytes of private memory, to be filled: before the first send, and again once every send
    /// from it is complete. It takes one holder for each part that is filled by itself: several small
    /// regions rather than a large one.
    ///
    /// # Errors
    /// [`MemError::InUse`] while a fragment, a clone of the region or a pool refers to it,
    /// [`MemError::Shared`] for shared memory, [`MemError::ReadOnly`].
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], MemError> {
        if !self.0.writable {
            return Err(MemError::ReadOnly);
        }
        if self.0.access == Access::Shared {
            return Err(MemError::Shared);
        }
        // Acquires what the last holder of a fragment has released: its reads happened before.
        let inner = Arc::get_mut(&mut self.0).ok_or(MemError::InUse)?;
        // SAFETY: `len` writable bytes that stay mapped while `self` is borrowed. Nobody else reaches
        // them: every fragment, view and pool holds a clone of this `Arc`, none is left, and making
        // one takes a reference to `self`. No other process may write them, as they are private.
        Ok(unsafe { core::slice::from_raw_parts_mut(inner.base.as_ptr(), inner.len) })
    }

    /// Copies `from` to `offset` on, up to the region's end; returns how many bytes. Only to
    /// shared, writable bytes: for an application that fills memory registered to send from.
    ///
    /// # Errors
    /// [`MemError::Private`] for memory that only [`bytes_mut`](Self::bytes_mut) fills,
    /// [`MemError::ReadOnly`].
    pub fn copy_shared_in(&self, offset: usize, from: &[u8]) -> Result<usize, MemError> {
        if !self.0.writable {
            return Err(MemError::ReadOnly);
        }
        if self.0.access == Access::Private {
            return Err(MemError::Private);
        }
        let n = from.len().min(self.0.len.saturating_sub(offset));
        if n == 0 {
            return Ok(0);
        }
        // SAFETY: `offset < len of the region`, because `n > 0`.
        let to = unsafe { self.0.base.add(offset) };
        let (mut ledger, reason) = (CopyLedger::new(), CopyReason::AppWrite);
        // SAFETY: `offset + n` lies in the region, which may be written; no code forms references
        // to shared memory, and all others copy from it in a way that bears this.
        unsafe { copy_payload(to, from.as_ptr(), n, Access::Shared, &mut ledger, reason) };
        Ok(n)
    }

    /// The address at which the bytes can never be written: the region's file, mapped a second time
    /// by the first call; also the number of system calls. `None`: no file, or others can write it.
    pub(crate) fn alias(&self) -> Result<(Option<NonNull<u8>>, u32), MemError> {
        if let Some(&alias) = self.0.alias.get() {
            return Ok((alias, 0));
        }
        let Some(fd) = self.sealed_fd() else {
            return Ok((*self.0.alias.get_or_init(|| None), 0));
        };
        // With `F_SEAL_FUTURE_WRITE`, or of a descriptor for reading only, the kernel never lets a shared
        // memory map become writable.
        let (base, mapped) = map(fd, self.0.len, ProtFlags::READ, MapFlags::SHARED, 0)?;
        let made = *self.0.alias.get_or_init(|| Some(base));
        if made == Some(base) {
            return Ok((made, 1));
        }
        unmap(base, mapped); // Another thread was faster.
        Ok((made, 2))
    }

    /// The file behind the region, if no process can map it for writing.
    pub(crate) fn sealed_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd().filter(|_| self.0.access == Access::Private && self.0.writable)
    }
}

impl Drop for MemoryMap {
    fn drop(&mut self) {
        if let Some(&Some(alias)) = self.alias.get() {
            unmap(alias, self.mapped);
        }
        if let Backing::Mapped { .. } = self.backing {
            unmap(self.base, self.mapped);
        }
    }
}

/// Unmaps a whole memory map of this file's, of which no `Region`, `Frag` or view is left.
fn unmap(base: NonNull<u8>, len: usize) {
    // SAFETY: the callers, all in this file, pass memory that they mapped, without references.
    let unmapped = unsafe { munmap(base.as_ptr().cast::<c_void>(), len) };
    debug_assert!(is_unmapped(unmapped), "munmap of mapped memory: {unmapped:?}");
}

impl core::fmt::Debug for Region {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Region").field("len", &self.0.len).field("access", &self.0.access).finish()
    }
}

fn check_len(len: usize) -> Result<(), MemError> {
    if len == 0 || !len.is_multiple_of(PAGE_SIZE) || len > isize::MAX as usize {
        return Err(MemError::Length(len));
    }
    Ok(())
}

/// A new memfd of `len` zero bytes, mapped.
fn map_memfd(name: &str, len: usize) -> Result<((NonNull<u8>, usize), OwnedFd), MemError> {
    map_memfd_with(name, len, MemfdFlags::empty())
}

fn map_memfd_with(
    name: &str,
    len: usize,
    flags: MemfdFlags,
) -> Result<((NonNull<u8>, usize), OwnedFd), MemError> {
    check_len(len)?;
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags)
        .map_err(|e| MemError::System("memfd_create", e.into()))?;
    ftruncate(&fd, len as u64).map_err(|e| MemError::System("ftruncate", e.into()))?;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    Ok((map(fd.as_fd(), len, prot, MapFlags::SHARED, 0)?, fd))
}

/// Maps `len` bytes of a file; returns the address, and the bytes that are mapped, in whole pages.
fn map(
    fd: BorrowedFd<'_>,
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
    offset: u64,
) -> Result<(NonNull<u8>, usize), MemError> {
    // The kernel rounds a length up when it maps huge pages, but not when it unmaps them.
    let page = page_of(fd)?;
    let mapped = len.checked_next_multiple_of(page).ok_or(MemError::Length(len))?;
    // SAFETY: a null hint lets the kernel choose a free range, so no existing memory map changes.
    let at = unsafe { mmap(core::ptr::null_mut(), len, prot, flags, fd, offset) };
    Ok((base_of(at)?, mapped))
}

/// The address that the kernel chose.
fn base_of(mapped: rustix::io::Result<*mut c_void>) -> Result<NonNull<u8>, MemError> {
    let at = mapped.map_err(|e| MemError::System("mmap", e.into()))?;
    NonNull::new(at.cast::<u8>())
        .ok_or_else(|| MemError::System("mmap", std::io::ErrorKind::OutOfMemory.into()))
}

/// Bytes in a page of a file: the unit in which it is mapped.
fn page_of(fd: BorrowedFd<'_>) -> Result<usize, MemError> {
    let about = fstatfs(fd).map_err(|e| MemError::System("fstatfs", e.into()))?;
    let huge = about.f_type as u32 == HUGETLBFS;
    Ok(if huge { (about.f_bsize as usize).max(PAGE_SIZE) } else { PAGE_SIZE })
}

/// Whether memory is unmapped: a process may have too many maps to split one.
pub(crate) fn is_unmapped(result: rustix::io::Result<()>) -> bool {
    matches!(result, Ok(()) | Err(rustix::io::Errno::NOMEM))
}
