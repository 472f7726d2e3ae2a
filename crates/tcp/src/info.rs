//! What a connection tells about itself.

use core::time::Duration;

use crate::life::state::State;
use crate::outbound::congestion::CongestionKind;
use crate::outbound::ecn::EcnCounts;
use crate::outbound::loss::CaState;

bitflags::bitflags! {
    /// What an application can do now without blocking.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Readiness: u8 {
        /// Data is queued, as much as was asked for.
        const READABLE = 1;
        /// A third of the send buffer is free, and not too much of it unsent.
        const WRITABLE = 2;
        /// No more data will come than is queued.
        const READ_CLOSED = 4;
        /// No data can be sent any more.
        const WRITE_CLOSED = 8;
        /// The connection failed; `error` says why.
        const ERROR = 16;
        /// The handshake is complete (or was, once).
        const CONNECTED = 32;
        /// An urgent byte waits.
        const URGENT = 128;
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
    /// Wire segments sent again.
    pub retransmits: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
    /// Fast recoveries.
    pub recoveries: u32,
    /// Pieces of SACK blocks that were ignored because too many were known already
    /// ([`MAX_SACKED_RECORDS`](crate::limits::MAX_SACKED_RECORDS)).
    pub sacks_ignored: u32,
    /// What loss recovery is about.
    pub ca_state: CaState,
    /// Congestion window, segments.
    pub cwnd_segments: u32,
    /// Slow-start threshold, segments; `0x7fff_ffff` before the first loss.
    pub ssthresh_segments: u32,
    /// Wire segments sent and not acknowledged cumulatively.
    pub unacked_segments: u32,
    /// Of these, acknowledged selectively.
    pub sacked_segments: u32,
    /// Of these, held for lost.
    pub lost_segments: u32,
    /// Of these, sent again and thought to be on their way.
    pub retransmitting_segments: u32,
    /// How far the path is thought to reorder, in segments.
    pub reordering: u32,
    /// How often it was seen to reorder.
    pub reord_seen: u32,
    /// Wire segments delivered, as far as acknowledgements tell.
    pub delivered: u32,
    /// Of these, those that were marked (RFC 9768), or all that were delivered while the peer reported
    /// congestion (RFC 3168).
    pub delivered_ce: u32,
    /// Segments that the peer reported to have received twice (RFC 2883).
    pub dsack_dups: u32,
    /// Both sides do explicit congestion notification.
    pub ecn: bool,
    /// The peer was seen to send packets that may be marked.
    pub ecn_seen: bool,
    /// What both sides have counted, where they do accurate feedback (RFC 9768).
    pub ecn_counts: Option<EcnCounts>,
    /// Probes without an answer: of keep-alive, or of a closed window.
    pub probes: u8,
    /// Both sides do timestamps (RFC 7323).
    pub timestamps: bool,
    /// Both sides do selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Both sides do window scaling (RFC 7323).
    pub scaling: bool,
    /// All data in our SYN was acknowledged, or the peer's taken (RFC 7413).
    pub syn_data: bool,
    /// Shift of the windows that the peer announces.
    pub send_scale: u8,
    /// Shift of the windows that we announce.
    pub recv_scale: u8,
    /// How long an acknowledgement may wait at present.
    pub ack_timeout: Duration,
    /// Payload bytes of a wire segment without options that the path to the peer takes: its MTU less
    /// 40 (IPv4) or 60 (IPv6).
    pub path_mss: u16,
    /// The MSS that we announced.
    pub announced_mss: u16,
    /// Time since data was sent last; since the connection began, if none was.
    pub last_data_sent: Duration,
    /// Time since data was received last; since the connection began, if none was.
    pub last_data_received: Duration,
    /// Time since an acknowledgement was received last.
    pub last_ack_received: Duration,
    /// What the window that we announce may grow to for now, bytes.
    pub recv_ssthresh: u32,
    /// The round trip as the receiving side sees it, zero before the first measurement.
    pub recv_rtt: Duration,
    /// Bytes that the application took in the last of these round trips.
    pub recv_space: u32,
    /// The receive buffer as it is now, bytes.
    pub recv_buffer: u32,
    /// The send buffer as it is now, bytes.
    pub send_buffer: u32,
    /// Payload bytes sent, those sent again included.
    pub bytes_sent: u64,
    /// Payload bytes sent again.
    pub bytes_retransmitted: u64,
    /// Wire segments sent, as far as we cut them ourselves: a super-frame counts for as many as it
    /// is cut into.
    pub segments_out: u32,
    /// Segments received; those that the device coalesced count once.
    pub segments_in: u32,
    /// Of `segments_out`, those with payload.
    pub data_segments_out: u32,
    /// Of `segments_in`, those with payload.
    pub data_segments_in: u32,
    /// Time with something in the send queue.
    pub busy: Duration,
    /// Of this, time in which the peer's window held it back.
    pub window_limited: Duration,
    /// Of this, time in which the send buffer held the application back.
    pub buffer_limited: Duration,
}
