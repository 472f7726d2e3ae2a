//! What the rings use of the standard library and of `pagewire-mem`. `tests/loom_ring.rs` puts
//! loom's equivalents in its place.

pub(crate) use core::sync::atomic::{Ordering, fence};

/// The memory of a ring, in words of 64 bits that both sides reach.
pub(crate) use pagewire_mem::SharedWords as Words;
