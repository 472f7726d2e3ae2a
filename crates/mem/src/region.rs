//! Mappings. A [`Region`] owns the only raw pointer to its bytes; everything else borrows from it.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::any::Any;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::frag::{Access, Frag};
use crate::limits::{MAX_FRAG_LEN, PAGE_SIZE};

/// What can go wrong with memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemError {
    /// The length is zero, too large, or not a multiple of the page size.
    #[error("region length {0} is not a positive multiple of {PAGE_SIZE} within the limit")]
    Length(usize),
    /// The range reaches outside the region.
    #[error("range {offset}+{len} is outside a region of {region} bytes")]
    Range {
        /// First byte asked for.
        offset: usize,
        /// Bytes asked for.
        len: usize,
        /// Bytes the region has.
        region: usize,
    },
    /// The kernel refused.
    #[error("{0}: {1}")]
    System(&'static str, #[source] std::io::Error),
}

/// One mapping, cheap to clone; the last clone unmaps it.
#[derive(Clone)]
pub struct Region(Arc<Mapping>);

struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    writable: bool,
    backing: Backing,
}

enum Backing {
    /// We mapped it, we unmap it.
    Mapped { fd: Option<OwnedFd> },
    /// Somebody else's memory, kept alive by this.
    Adopted { _keep: Box<dyn Any + Send + Sync> },
}

// SAFETY: the mapping's bytes are plain memory that outlives every thread that can name it (the
// `Arc` keeps it mapped); who may read or write which part of it is decided by `PagePool`,
// `PageWriter` and `Frag`, not by the thread.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; a shared `&Mapping` gives out the address and the length only.
unsafe impl Sync for Mapping {}

impl Region {
    /// `len` bytes of fresh zeroed memory behind a memfd called `name`, so that it can be mapped
    /// again or handed to another process. `len` is a positive multiple of [`PAGE_SIZE`].
    pub fn memfd(name: &str, len: usize) -> Result<Self, MemError> {
        check_len(len)?;
        let fd = memfd_create(name, MemfdFlags::CLOEXEC)
            .map_err(|e| MemError::System("memfd_create", e.into()))?;
        ftruncate(&fd, len as u64).map_err(|e| MemError::System("ftruncate", e.into()))?;
        let base = map(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, 0)?;
        Ok(Self(Arc::new(Mapping {
            base,
            len,
            access: Access::Private,
            writable: true,
            backing: Backing::Mapped { fd: Some(fd) },
        })))
    }

    /// A read-only view of `len` bytes of `file` from `offset` (a multiple of [`PAGE_SIZE`]).
    ///
    /// The bytes count as shared: another process may write or truncate the file at any time.
    /// Nothing in the stack forms a reference to them. Whoever touches bytes past a truncation
    /// gets `SIGBUS`; devices that gather in the kernel get `EFAULT`, a counted drop.
    pub fn file(file: &File, offset: u64, len: usize) -> Result<Self, MemError> {
        if len == 0 || !offset.is_multiple_of(PAGE_SIZE as u64) {
            return Err(MemError::Length(len));
        }
        let base = map(file.as_fd(), len, ProtFlags::READ, MapFlags::SHARED, offset)?;
        Ok(Self(Arc::new(Mapping {
            base,
            len,
            access: Access::Shared,
            writable: false,
            backing: Backing::Mapped { fd: None },
        })))
    }

    /// Takes in memory that something else owns: a guest's, a device's, an application's.
    ///
    /// # Safety
    /// `base..base+len` stays mapped and readable (and writable, if `writable`) for as long as
    /// `keep` lives. With [`Access::Private`] nobody else writes it while a [`Frag`] points there.
    pub unsafe fn adopt(
        base: NonNull<u8>,
        len: usize,
        access: Access,
        writable: bool,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let backing = Backing::Adopted { _keep: keep };
        Self(Arc::new(Mapping { base, len, access, writable, backing }))
    }

    /// Bytes in the region.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether somebody else may write these bytes.
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
            Backing::Mapped { fd } => fd.as_ref().map(AsFd::as_fd),
            Backing::Adopted { .. } => None,
        }
    }

    /// Bytes `offset..offset+len` as a fragment that keeps the region mapped.
    pub fn frag(&self, offset: usize, len: usize) -> Result<Frag, MemError> {
        let range = MemError::Range { offset, len, region: self.0.len };
        let end = offset.checked_add(len).filter(|&end| end <= self.0.len);
        if end.is_none() || len > MAX_FRAG_LEN {
            return Err(range);
        }
        // SAFETY: `offset <= len of the mapping`, checked above, so the address is in the mapping
        // or one past it.
        let ptr = unsafe { self.0.base.add(offset) };
        // SAFETY: the range was checked to lie in the mapping, which the clone keeps mapped; with
        // `Access::Private` the region's maker promised that nobody else writes it.
        Ok(unsafe { Frag::from_raw(ptr, len, self.0.access, Arc::clone(&self.0) as _) })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.0.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Backing::Mapped { .. } = self.backing {
            // SAFETY: we made this mapping with exactly this address and length, and no `Region`
            // or `Frag` is left (each holds the `Arc` whose last drop this is).
            let unmapped = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
            debug_assert!(unmapped.is_ok(), "munmap of our own mapping");
        }
    }
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

fn map(
    fd: BorrowedFd<'_>,
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
    offset: u64,
) -> Result<NonNull<u8>, MemError> {
    // SAFETY: a null hint lets the kernel choose a free range, so no existing mapping changes.
    let at = unsafe { mmap(core::ptr::null_mut(), len, prot, flags, fd, offset) }
        .map_err(|e| MemError::System("mmap", e.into()))?;
    NonNull::new(at.cast::<u8>())
        .ok_or_else(|| MemError::System("mmap", std::io::ErrorKind::OutOfMemory.into()))
}
