//! What a connection needs whose data is passed on at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagewire_mem::Instant;

/// A connection whose data is passed on at once.
pub(crate) struct Flow {
    /// A segment came since it was last looked whether there is something to pass on.
    pub(super) due: bool,
    /// Where what it received is counted.
    pub(super) passed: Arc<Passed>,
    pub(super) way: Way,
    /// When something was last passed on.
    pub(super) at: Instant,
}

/// Which way what a connection received goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

/// Bytes passed on. Who reads them may be on another thread; counted is under the stack's lock.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    up: AtomicU64,
    down: AtomicU64,
}

impl Passed {
    pub(crate) fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    pub(crate) fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, way: Way, bytes: usize) {
        let total = match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        };
        // Only one counts at a time: no need for an atomic addition.
        total.store(total.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }
}
