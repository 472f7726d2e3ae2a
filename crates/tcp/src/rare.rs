//! What few connections need, or none most of the time: boxed, so that the others do not pay.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::connection::Connection;
use crate::ecn::Accurate;
use crate::mtu_probe::MtuSearch;
use crate::refused::Refused;
use crate::seq::Seq;
use crate::urgent::UrgentIn;

/// See above.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// Bytes of memory that the application took by reference and keeps.
    pub(crate) kept: u32,
    /// The urgent byte that the peer has announced.
    pub(crate) urgent_in: Option<UrgentIn>,
    /// One past the last urgent byte that we send.
    pub(crate) urgent_out: Option<Seq>,
    /// What a device that refuses segments has done.
    pub(crate) refused: Option<Refused>,
    /// Since when the peer has left something unanswered, where a limit is set for that.
    pub(crate) unanswered_since: Option<Instant>,
    /// One past the last byte of data in our SYN: what ends there is pushed.
    pub(crate) syn_data_end: Option<Seq>,
    /// Where the path is probed for its MTU.
    pub(crate) mtu: Option<MtuSearch>,
    /// Present where both sides do accurate feedback of congestion marks.
    pub(crate) accurate: Option<Accurate>,
    /// Payload bytes sent again.
    pub(crate) bytes_retransmitted: u64,
    /// Time in which the peer's window held the send queue back.
    pub(crate) window_limited: Duration,
    /// Time in which the send buffer held the application back.
    pub(crate) buffer_limited: Duration,
}

impl Connection {
    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }
}
