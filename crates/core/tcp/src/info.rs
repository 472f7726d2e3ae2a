//! [`Readiness`], the operations that do not block now, and [`Info`], the snapshot of a connection.

use core::time::Duration;

use crate::life::state::State;
use crate::outbound::congestion::CongestionKind;
use crate::outbound::ecn::EcnCounts;
use crate::outbound::loss::CaState;

bitflags::bitflags! {
    /// Operations that do not block now.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Readiness: u8 {
        /// As much data is queued as the application waits for.
        const READABLE = 1;
        /// A third of the send buffer is free, and not too much of it unsent.
        const WRITABLE = 2;
        /// No data can arrive after the queued data.
        const READ_CLOSED = 4;
        /// No data can be sent any more.
        const WRITE_CLOSED = 8;
        /// The connection failed; `error` says why.
        const ERROR = 16;
        /// The handshake is complete (or was, once).
        const CONNECTED = 32;
        /// An urgent byte can be read.
        const URGENT = 128;
    }
}

/// A snapshot of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The state of the connection.
    pub state: State,
    /// Payload bytes in a full wire segment that we send.
    pub send_mss: u16,
    /// Payload bytes in a full wire segment of the peer, by estimate.
    pub recv_mss: u16,
    /// Smoothed round-trip time, zero before the first measurement.
    pub srtt: Duration,
    /// Variation of the round-trip time.
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
    /// Unacknowledged bytes that were acknowledged selectively.
    pub sacked: u32,
    /// Unacknowledged bytes that are considered lost.
    pub lost: u32,
    /// Unacknowledged bytes that were retransmitted and are in flight.
    pub retransmitting: u32,
    /// Bytes queued that have never been sent.
    pub unsent: u32,
    /// The peer's window, bytes.
    pub send_window: u32,
    /// The open part of the window that we announced, bytes.
    pub recv_window: u32,
    /// Payload bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Wire segments sent again.
    pub retransmits: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Fast recoveries.
    pub recoveries: u32,
    /// Parts of SACK blocks that were ignored, because too many were known
    /// ([`MAX_SACKED_RECORDS`](crate::limits::MAX_SACKED_RECORDS)).
    pub sacks_ignored: u32,
    /// State of loss recovery.
    pub ca_state: CaState,
    /// Congestion window, segments.
    pub cwnd_segments: u32,
    /// Slow-start threshold, segments; `0x7fff_ffff` before the first loss.
    pub ssthresh_segments: u32,
    /// Wire segments sent and not acknowledged cumulatively.
    pub unacked_segments: u32,
    /// Unacknowledged segments that were acknowledged selectively.
    pub sacked_segments: u32,
    /// Unacknowledged segments that are considered lost.
    pub lost_segments: u32,
    /// Unacknowledged segments that were retransmitted and are in flight.
    pub retransmitting_segments: u32,
    /// The degree of reordering on the path, in segments.
    pub reordering: u32,
    /// How often reordering was seen.
    pub reord_seen: u32,
    /// Wire segments delivered according to acknowledgements.
    pub delivered: u32,
    /// Delivered segments that were marked (RFC 9768), or came during reported congestion (RFC 3168).
    pub delivered_ce: u32,
    /// Segments that the peer reported to have received twice (RFC 2883).
    pub dsack_dups: u32,
    /// Whether both sides do explicit congestion notification.
    pub ecn: bool,
    /// Whether the peer has sent packets that may be marked.
    pub ecn_seen: bool,
    /// The counts of both sides with accurate feedback (RFC 9768).
    pub ecn_counts: Option<EcnCounts>,
    /// Unanswered probes: of keep-alive, or of a closed window.
    pub probes: u8,
    /// Whether both sides do timestamps (RFC 7323).
    pub timestamps: bool,
    /// Whether both sides do selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Whether both sides do window scaling (RFC 7323).
    pub scaling: bool,
    /// Whether all data in our SYN was acknowledged, or the peer's accepted (RFC 7413).
    pub syn_data: bool,
    /// Shift of the windows that the peer announces.
    pub send_scale: u8,
    /// Shift of the windows that we announce.
    pub recv_scale: u8,
    /// The present delay of acknowledgements.
    pub ack_timeout: Duration,
    /// Payload bytes of a wire segment without options: the path's MTU less 40 (IPv4) or 60 (IPv6).
    pub path_mss: u16,
    /// The MSS that we announced.
    pub announced_mss: u16,
    /// Time since data was last sent, or since the connection began.
    pub last_data_sent: Duration,
    /// Time since data was last received, or since the connection began.
    pub last_data_received: Duration,
    /// Time since an acknowledgement was received last.
    pub last_ack_received: Duration,
    /// The present bound of the window that we announce, bytes.
    pub recv_ssthresh: u32,
    /// The round trip measured by the receiving side, zero before the first measurement.
    pub recv_rtt: Duration,
    /// Bytes that the application read in the last of these round trips.
    pub recv_space: u32,
    /// Present size of the receive buffer, bytes.
    pub recv_buffer: u32,
    /// Present size of the send buffer, bytes.
    pub send_buffer: u32,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes retransmitted.
    pub bytes_retransmitted: u64,
    /// Wire segments sent: a super-frame counts as many as it is cut into.
    pub segments_out: u32,
    /// Segments received; those that the device coalesced count once.
    pub segments_in: u32,
    /// Wire segments sent with payload.
    pub data_segments_out: u32,
    /// Segments received with payload.
    pub data_segments_in: u32,
    /// Whether small segments leave at once (`TCP_NODELAY`).
    pub nodelay: bool,
    /// Whether acknowledgements leave at once (`TCP_QUICKACK`).
    pub quick_ack: bool,
    /// Time with data in the send queue.
    pub busy: Duration,
    /// Busy time that was limited by the peer's window.
    pub window_limited: Duration,
    /// Busy time that was limited by the send buffer.
    pub buffer_limited: Duration,
}
