//! (crate docs)

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]
#![allow(dead_code)]

mod assembler;
mod congestion;
mod error;
mod header;
mod isn;
pub mod limits;
mod options;
mod rtt;
mod seq;

pub use congestion::CongestionKind;
pub use error::{DropReason, TcpError};
pub use header::{
    CHECKSUM_OFFSET, Flags, HeaderError, HeaderView, MAX_HEADER_LEN, MIN_HEADER_LEN, TcpHeader,
};
pub use isn::IsnGenerator;
pub use options::{OptionError, OptionItem, OptionIter, SackBlocks, TcpOptions};
pub use seq::Seq;

use pagewire_mem::{CopyLedger, Instant, PagePool, PageWriter};

/// What a connection needs from its host while it works.
#[allow(missing_debug_implementations)]
pub struct Env<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// Where copies are counted.
    pub ledger: &'a mut CopyLedger,
    /// Where pages come from.
    pub pool: &'a mut PagePool,
    /// Where bytes are written into pages.
    pub writer: &'a mut PageWriter,
}
