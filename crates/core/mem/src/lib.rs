//! Memory of the Pagewire stack: who owns which bytes, and for how long.
//!
//! Read in this order: [`Region`] (mapped memory, owner of the only raw pointer), [`PagePool`]
//! (pages of a region, counted), [`PageWriter`] and [`Carver`] (the only writers of pages: for
//! streams of bytes and for small frames), [`Frag`] (a shared, immutable range of bytes and the
//! hold that keeps it alive), [`PacketBuf`] (a small head for headers and up to [`MAX_FRAGS`]
//! fragments), [`Completion`] (a hold whose last release is reported), [`Mapping`] (whole pages of
//! a stream, contiguous) and [`Lease`] (pages that an application holds).
//!
//! Payload is copied in one function only, [`copy`]'s `copy_payload`, which takes a
//! [`CopyReason`] and counts into a [`CopyLedger`].
//!
//! [`link`] is what a stack and the drivers of devices agree on.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod access;
mod block;
mod budget;
mod carve;
pub mod checksum;
mod clock;
pub mod copy;
mod counters;
mod frag;
mod held;
mod lease;
pub mod limits;
pub mod link;
mod mapping;
mod packet;
mod pool;
mod reasons;
mod region;
mod release;
mod reports;
mod reserved;
mod setters;
mod sync;
mod words;
mod writer;

pub use access::Access;
pub use block::{Lender, Loan};
pub use budget::{Charge, PageBudget};
pub use carve::{Carver, Lone, Room};
pub use clock::Instant;
pub use copy::{CopyLedger, CopyReason};
pub use frag::{Completion, Frag, FragVec, Owner};
pub use held::{Held, Holdings, Returns};
pub use lease::{BufferId, Handed, Lease, Refused, View};
pub use limits::{BLOCK_PAGES, CACHE_LINE, GROUP_PAGES, HEAD_CAPACITY, MAX_FRAGS, PAGE_SIZE};
pub use mapping::{MapFault, Mapping, Place};
pub use packet::{Gso, GsoKind, PacketBuf, RxChecksum, TxChecksum};
pub use pool::{PagePool, PoolAudit, PoolStats};
#[doc(hidden)]
pub use reasons::{Reason, Tally};
pub use region::{MemError, Region};
pub use release::{Deferral, Panicked};
pub use reports::{Completed, CompletionQueue, Reports};
pub use reserved::Reserved;
pub use words::SharedWords;
pub use writer::{PageWriter, Spare};
