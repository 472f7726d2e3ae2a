//! What keeps a fragment's bytes.

use std::any::Any;
use std::sync::Arc;

use super::completion::Completion;
use crate::block::Block;
use crate::pool::PoolShared;
use crate::region::Region;
use crate::release::{KeptBytes, KeptOwner};

/// All variants hold one pointer: with its kind that is two words, and a fragment is 32 bytes, two to
/// a cache line.
#[derive(Clone)]
pub(super) enum Hold {
    /// Nothing: the bytes are static or lent, or there are none.
    Nothing,
    /// A pool, and references to each page that the range touches.
    Pages(Arc<PoolShared>),
    /// Bytes that came as [`Bytes`](bytes::Bytes).
    Bytes(Arc<KeptBytes>),
    /// A mapping.
    Region(Region),
    /// A page that a [`Carver`](crate::Carver) filled, or the pages of one frame.
    Carved(Arc<Block>),
    /// A call that sent the bytes, which keeps their memory.
    Sent(Arc<Completion>),
    /// A value of a type that this crate does not know.
    Owner(Owner),
}

impl Hold {
    /// Whether both are one and the same, so that what lies side by side is one memory.
    #[inline]
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pages(a), Self::Pages(b)) => Arc::ptr_eq(a, b),
            (Self::Bytes(a), Self::Bytes(b)) => Arc::ptr_eq(a, b),
            (Self::Region(a), Self::Region(b)) => a.is(b),
            (Self::Carved(a), Self::Carved(b)) => Arc::ptr_eq(a, b),
            (Self::Sent(a), Self::Sent(b)) => Arc::ptr_eq(a, b),
            (Self::Owner(Owner(a)), Self::Owner(Owner(b))) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// A value whose drop releases memory: what [`Frag::from_raw`](crate::Frag::from_raw) keeps. Its
/// clones share the value; the last one drops it.
#[derive(Clone)]
pub struct Owner(Arc<Kept>);

enum Kept {
    /// An application's: dropped outside of the locks under which it could do harm.
    Theirs(#[allow(dead_code, reason = "dropped, no more")] KeptOwner),
    Ours(#[allow(dead_code, reason = "dropped, no more")] Box<dyn Any + Send + Sync>),
}

impl Owner {
    /// A value of an application's. Whoever drops the last reference under a host's lock leaves the
    /// value's drop to the end of its [`Deferral`](crate::Deferral).
    pub fn new(value: impl Any + Send + Sync) -> Self {
        Self(Arc::new(Kept::Theirs(KeptOwner(Some(Box::new(value))))))
    }

    /// A value whose drop comes with the last reference, perhaps in the middle of a stack's work: it
    /// calls no application, and nothing of a stack or a host.
    pub fn prompt(value: impl Any + Send + Sync) -> Self {
        Self(Arc::new(Kept::Ours(Box::new(value))))
    }
}

impl core::fmt::Debug for Owner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Owner")
    }
}
