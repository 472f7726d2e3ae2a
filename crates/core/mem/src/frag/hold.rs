//! The hold of a fragment: the pages, region, `Bytes` or owner that keeps the fragment's bytes alive.

use std::any::Any;
use std::sync::Arc;

use super::completion::Completion;
use crate::block::Block;
use crate::pool::PoolShared;
use crate::region::Region;
use crate::release::{KeptBytes, KeptOwner};

/// Each variant holds one pointer: a fragment has 32 bytes, and two fit a cache line.
#[derive(Clone)]
pub(super) enum Hold {
    /// Nothing: the bytes are static or lent, or there are none.
    Nothing,
    /// A pool, and references to each page that the range touches.
    Pages(Arc<PoolShared>),
    /// Bytes of a [`Bytes`](bytes::Bytes).
    Bytes(Arc<KeptBytes>),
    Region(Region),
    /// A page that a [`Carver`](crate::Carver) filled, or the pages of one frame.
    Carved(Block),
    /// The completion of a call that sent the bytes.
    Sent(Arc<Completion>),
    /// A value of another crate's type.
    Owner(Owner),
}

impl Hold {
    /// Whether both are the same, so that adjacent bytes are one memory.
    #[inline]
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pages(a), Self::Pages(b)) => Arc::ptr_eq(a, b),
            (Self::Bytes(a), Self::Bytes(b)) => Arc::ptr_eq(a, b),
            (Self::Region(a), Self::Region(b)) => a.is(b),
            (Self::Carved(a), Self::Carved(b)) => a.is(b),
            (Self::Sent(a), Self::Sent(b)) => Arc::ptr_eq(a, b),
            (Self::Owner(Owner(a)), Self::Owner(Owner(b))) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// A value whose last drop releases memory, for [`Frag::from_raw`](crate::Frag::from_raw).
#[derive(Clone)]
pub struct Owner(Arc<Kept>);

enum Kept {
    /// The application's: dropped outside of a host's lock.
    Theirs(#[allow(dead_code, reason = "dropped, no more")] KeptOwner),
    Ours(#[allow(dead_code, reason = "dropped, no more")] Box<dyn Any + Send + Sync>),
}

impl Owner {
    /// A value of the application. If its last reference is dropped under a host's lock, the value
    /// is dropped at the end of the [`Deferral`](crate::Deferral).
    pub fn new(value: impl Any + Send + Sync) -> Self {
        Self(Arc::new(Kept::Theirs(KeptOwner(Some(Box::new(value))))))
    }

    /// A value that is dropped with its last reference, perhaps in the middle of a stack's work:
    /// its drop calls no application, and nothing of a stack or a host.
    pub fn prompt(value: impl Any + Send + Sync) -> Self {
        Self(Arc::new(Kept::Ours(Box::new(value))))
    }
}

impl core::fmt::Debug for Owner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Owner")
    }
}
