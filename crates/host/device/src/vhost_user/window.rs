//! A window: mapped memory of a guest, with its address, by which all access to that memory goes.
//! The unsafe code of this device is here and in `virtqueue`.

use core::ptr::NonNull;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pagewire_mem::{Access, CopyLedger, CopyReason, Frag, MemError, Owner, PAGE_SIZE, Region};
use rustix::fs::{SealFlags, fcntl_add_seals};

use super::allowance::{Allowance, Excess, Share};

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub(super) enum MapError {
    #[error(
        "guest memory cannot be mapped: {0} (with QEMU, use \
         `-object memory-backend-memfd,share=on`, which seals it)"
    )]
    Map(#[from] MemError),
    #[error("guest memory is not mapped: {0}")]
    Excess(#[from] Excess),
}

/// A shared, writable region and its first byte.
#[derive(Clone, Debug)]
pub(super) struct Window {
    region: Region,
    base: NonNull<u8>,
    /// The share that it counts for; none for memory of this process. Behind the region: fields are
    /// dropped in order, and it counts until the memory is unmapped.
    _share: Option<Arc<Share>>,
}

// SAFETY: the address is one of the region's, which is `Send` and kept here; through it bytes are
// reached by copies in `asm!` and by atomics only.
unsafe impl Send for Window {}
// SAFETY: as for `Send`; every method bears that others do the same at the same time.
unsafe impl Sync for Window {}

impl Window {
    /// Maps the first `len` bytes of a memfd that a front end shared, whose pages cannot vanish:
    /// truncation would kill the process that touches its end. An unsealed file is sealed here if
    /// possible. Huge pages are for trusted front ends. The descriptor is closed.
    /// # Errors
    /// As [`Region::from_memfd`], above all [`MemError::NotSealed`] and [`MemError::HugePages`];
    /// more than is allowed.
    pub(super) fn map(
        fd: OwnedFd,
        len: usize,
        allowance: &Arc<Allowance>,
    ) -> Result<Self, MapError> {
        // For a file that is sealed already, or cannot be, `from_memfd` decides.
        let _ = fcntl_add_seals(&fd, SealFlags::SHRINK);
        let share = Arc::new(allowance.map(len)?);
        let region = match allowance.is_trusted() {
            true => Region::from_trusted_memfd(fd, len)?,
            false => Region::from_memfd(fd, len)?,
        };
        let window = Self::over(region).ok_or(MemError::NotPages)?;
        Ok(Self { _share: Some(share), ..window })
    }

    /// A window over a region that counts as shared and may be written.
    pub(super) fn over(region: Region) -> Option<Self> {
        if region.access() != Access::Shared || !region.is_writable() {
            return None;
        }
        let first = region.frag(0, region.len().min(PAGE_SIZE)).ok()?;
        let base = NonNull::new(first.as_ptr().cast_mut())?;
        Some(Self { region, base, _share: None })
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn len(&self) -> usize {
        self.region.len()
    }

    /// The window's address in this process: a front end names it so.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn user(&self) -> u64 {
        self.base.as_ptr().addr() as u64
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.region.fd()
    }

    /// The address of bytes `offset..offset + len`, if they lie in the window; valid while it lives.
    pub(super) fn address(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        if end > self.region.len() {
            return None;
        }
        // SAFETY: `offset <= end <= len of the mapping`, just checked.
        Some(unsafe { self.base.add(offset) })
    }

    /// Reads bytes from `offset` on, once each; returns how many there are.
    #[inline]
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        self.region.copy_shared_out(offset, into)
    }

    /// Writes bytes from `offset` on; returns how many fit.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> usize {
        self.region.copy_shared_in(offset, from).unwrap_or(0)
    }

    /// Bytes `offset..offset + len` as a fragment that `keep` keeps, if they lie in its window.
    pub(super) fn lend(&self, offset: usize, len: usize, keep: &Keep) -> Option<Frag> {
        let at = self.address(offset, len).filter(|_| keep.base == self.base.as_ptr().addr())?;
        // SAFETY: the range lies in the mapping (checked in `address`), which `keep` keeps: its
        // window begins at the same address, and two live mappings do not. All fragments of one
        // `keep` lie in that one mapping. It counts as shared.
        Some(unsafe { Frag::from_raw(at, len, Access::Shared, keep.owner.clone()) })
    }

    /// Copies up to `len` bytes of `frag`, from `from` on, to `offset`; returns how many.
    pub(super) fn fill(
        &self,
        offset: usize,
        len: usize,
        (frag, from): (&Frag, usize),
        ledger: &mut CopyLedger,
    ) -> usize {
        let Some(at) = self.address(offset, len) else { return 0 };
        // SAFETY: the range lies in the mapping, which is borrowed and may be written; it counts as
        // shared, so that no code forms references to it.
        unsafe { frag.copy_to_raw(from, at, len, Access::Shared, ledger, CopyReason::DeviceTx) }
    }
}

/// The owner that a fragment keeps: one window's memory, and a value that is dropped first.
#[derive(Clone, Debug)]
pub(super) struct Keep {
    /// Where the window begins.
    base: usize,
    owner: Owner,
}

impl Keep {
    /// Keeps `window`, and `with`, whose drop calls nothing of a stack.
    pub(super) fn new(window: &Window, with: impl Send + Sync + 'static) -> Self {
        Self { base: window.base.as_ptr().addr(), owner: Owner::prompt((with, window.clone())) }
    }
}
