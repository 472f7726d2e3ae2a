//! [`RingBuf`]: received bytes, whose drop gives their memory back to the rings.

use std::ops::Deref;
use std::sync::Arc;

use pagewire_mem::{CopyLedger, CopyReason, Frag};
use pagewire_ring::Entry;

use super::router::Router;

/// Received bytes in registered, lent or copy memory. A drop, on any thread, gives the memory back.
pub struct RingBuf {
    /// Before `home`: the memory may be reused as soon as it is given back.
    frag: Frag,
    entry: Entry,
    home: Arc<Router>,
}

impl RingBuf {
    pub(super) fn new(frag: Frag, entry: Entry, home: Arc<Router>) -> Self {
        Self { frag, entry, home }
    }

    /// Bytes in the buffer.
    pub fn len(&self) -> usize {
        self.frag.len()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.frag.is_empty()
    }

    /// The bytes, unless others may change them: in a region that counts as shared.
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.frag.as_slice()
    }

    /// Copies up to `into.len()` bytes out; returns how many.
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        self.frag.copy_to(0, into, &mut CopyLedger::new(), CopyReason::AppRead)
    }

    /// Shows the bytes to `f` in order: in place where they cannot change, else as small snapshots.
    pub fn for_each_piece(&self, f: impl FnMut(&[u8])) {
        self.frag.for_each_piece(&mut CopyLedger::new(), f);
    }

    /// The ring's entry for the bytes.
    pub fn entry(&self) -> Entry {
        self.entry
    }

    /// Whether the bytes were copied into the copy group.
    pub fn is_copied(&self) -> bool {
        self.entry.group == pagewire_ring::layout::COPY_GROUP
    }
}

impl Deref for RingBuf {
    type Target = Frag;

    fn deref(&self) -> &Frag {
        &self.frag
    }
}

impl Drop for RingBuf {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.frag));
        self.home.give_back(self.entry);
    }
}

impl std::fmt::Debug for RingBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingBuf({:?})", self.entry)
    }
}
