//! Names of the standard library and of `pagewire-mem` that the rings use, so that
//! `tests/rings/loom_ring.rs` can replace them by loom's.

pub(crate) use core::sync::atomic::{Ordering, fence};

/// The memory of a ring, in words of 64 bits that both sides reach.
pub(crate) use pagewire_mem::SharedWords as Words;
