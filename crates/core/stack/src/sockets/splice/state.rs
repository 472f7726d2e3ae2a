//! [`Forwarding`]: the state of a connection of a forwarded pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagewire_mem::Instant;

use crate::sockets::ids::SocketId;

/// State of a connection of a forwarded pair.
pub(crate) struct Forwarding {
    /// The other connection, which received what this one sends.
    pub(crate) other: SocketId,
    /// Present while the stack forwards by itself.
    pub(crate) splice: Option<SpliceState>,
}

/// State of a connection whose data the stack forwards by itself.
pub(crate) struct SpliceState {
    /// A segment came since the last forwarding.
    pub(crate) due: bool,
    /// Counts what it received.
    pub(crate) passed: Arc<SplicedBytes>,
    pub(crate) direction: SpliceDirection,
    /// When data was last forwarded.
    pub(crate) at: Instant,
}

/// The direction of received data: up to the upstream, or down to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpliceDirection {
    Up,
    Down,
}

/// Bytes forwarded. Readers may be on another thread; only the stack's thread counts.
#[derive(Debug, Default)]
pub(crate) struct SplicedBytes {
    up: AtomicU64,
    down: AtomicU64,
}

impl SplicedBytes {
    pub(crate) fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    pub(crate) fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, direction: SpliceDirection, bytes: usize) {
        let total = match direction {
            SpliceDirection::Up => &self.up,
            SpliceDirection::Down => &self.down,
        };
        // There is one writer: no need for an atomic addition.
        total.store(total.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }
}
