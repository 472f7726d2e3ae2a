//! What a connection tells about itself.

use core::time::Duration;

use crate::congestion::CongestionKind;
use crate::state::State;

bitflags::bitflags! {
    /// What an application can do now without blocking.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Readiness: u8 {
        /// Data is queued.
        const READABLE = 1;
        /// The send buffer has room for a third of itself or more.
        const WRITABLE = 2;
        /// No more data will come than is queued.
        const READ_CLOSED = 4;
        /// No data can be sent any more.
        const WRITE_CLOSED = 8;
        /// The connection failed; `error` says why.
        const ERROR = 16;
        /// The handshake is complete (or was, once).
        const CONNECTED = 32;
    }
}

/// A snapshot of a connection, for people and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// State.
    pub state: State,
    /// Payload bytes in a full wire segment that we send.
    pub send_mss: u16,
    /// Payload bytes in the largest wire segment that the peer seems to send.
    pub recv_mss: u16,
    /// Smoothed round-trip time, zero before the first measurement.
    pub srtt: Duration,
    /// Its variation.
    pub rttvar: Duration,
    /// Smallest round-trip time measured, zero before the first.
    pub min_rtt: Duration,
    /// Retransmission timeout, backoff included.
    pub rto: Duration,
    /// Consecutive timeouts without an answer.
    pub backoff: u8,
    /// Congestion control.
    pub congestion: CongestionKind,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Slow-start threshold, bytes.
    pub ssthresh: u32,
    /// Bytes sent and not acknowledged cumulatively.
    pub unacked: u32,
    /// Of these, bytes acknowledged selectively.
    pub sacked: u32,
    /// Of these, bytes held for lost.
    pub lost: u32,
    /// Of these, bytes sent again and thought to be on their way.
    pub retransmitting: u32,
    /// Bytes queued that have never been sent.
    pub unsent: u32,
    /// The peer's window, bytes.
    pub send_window: u32,
    /// The window that we announced last, as far as it is still open, bytes.
    pub recv_window: u32,
    /// Payload bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Segments sent again (a super-frame counts once).
    pub retransmits: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Fast recoveries.
    pub recoveries: u32,
    /// Pieces of SACK blocks that were ignored because too many were known already
    /// ([`MAX_SACKED_RECORDS`](crate::limits::MAX_SACKED_RECORDS)).
    pub sacks_ignored: u32,
}
