//! [`SharedWords`]: shared memory as atomic words, which the rings of `pagewire-ring` lie in.

use core::ops::Deref;
use core::sync::atomic::AtomicU64;

use crate::access::Access;
use crate::limits::PAGE_SIZE;
use crate::region::{MemError, Region};

/// A shared memory map as atomic words of 64 bits, which each process reads and writes whole.
#[derive(Clone, Debug)]
pub struct SharedWords(Region);

impl SharedWords {
    /// At least `words` zero words, in fresh memory behind a memfd called `name`.
    pub fn new(name: &str, words: usize) -> Result<Self, MemError> {
        let bytes = words.checked_mul(8).and_then(|n| n.max(1).checked_next_multiple_of(PAGE_SIZE));
        Self::over(Region::memfd_shared(name, bytes.ok_or(MemError::Length(words))?)?)
    }

    /// The words of a region that counts as shared and may be written: the other side's end, made
    /// of the same file ([`Region::from_memfd`]).
    pub fn over(region: Region) -> Result<Self, MemError> {
        let aligned = region.span().start.is_multiple_of(align_of::<AtomicU64>());
        if region.access() != Access::Shared || !region.is_writable() || !aligned {
            return Err(MemError::NotPages);
        }
        // Claims it, so that no pool writes the region in other ways.
        region.claim_lent()?;
        Ok(Self(region))
    }

    /// The memory, to be handed to the other side.
    pub fn region(&self) -> &Region {
        &self.0
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        let words = self.0.base().cast::<AtomicU64>();
        // SAFETY: the region is mapped while `self` lives, readable, writable and aligned (checked
        // in `over`); any bytes are valid words. They change under us, which atomics are for: in
        // this process no code forms references to shared memory of another kind, or writes it but
        // by atomics and by copies in `asm!`.
        unsafe { core::slice::from_raw_parts(words.as_ptr(), self.0.len() / 8) }
    }
}
