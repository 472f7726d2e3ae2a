//! Settings of a connection. Shared between connections in an `Arc`; defaults are Linux's.

use core::time::Duration;

use crate::congestion::CongestionKind;

/// When an idle connection asks whether the peer is still there (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe. RFC 9293: at least two hours by default.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes after which the connection is given up.
    pub probes: u8,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest receive window in bytes; also what the window scale is chosen for. Memory pinned
    /// for what is queued may be twice that.
    pub recv_buffer: u32,
    /// Bytes that may wait in the send queue, unsent or unacknowledged; at most
    /// [`MAX_SEND_BUFFER`](crate::limits::MAX_SEND_BUFFER).
    pub send_buffer: u32,
    /// Upper bound for the MSS that we announce and use, in bytes; `None`: what the link takes.
    pub max_mss: Option<u16>,
    /// Offer window scaling (RFC 7323 section 2).
    pub window_scaling: bool,
    /// Offer timestamps (RFC 7323 section 3).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Hold back small segments while one is unacknowledged (RFC 9293 section 3.7.4), in
    /// Minshall's variant.
    pub nagle: bool,
    /// How long an acknowledgement may wait for company (RFC 9293 section 3.8.6.3: less than
    /// 500 ms).
    pub delayed_ack: Duration,
    /// Segments acknowledged at once when data begins to flow, to help the peer's slow start.
    pub quick_acks: u8,
    /// Probe idle connections.
    pub keepalive: Option<KeepAlive>,
    /// Which congestion control.
    pub congestion: CongestionKind,
    /// Initial congestion window in segments (RFC 6928).
    pub initial_cwnd: u32,
    /// Begin with a small window again after nothing was sent for a while (RFC 5681 section 4.1).
    pub slow_start_after_idle: bool,
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Largest retransmission timeout (RFC 6298 section 2.5: at least 60 s).
    pub rto_max: Duration,
    /// Retransmissions of a SYN with doubling timeouts before connecting fails.
    pub syn_retries: u8,
    /// Retransmissions of a SYN that come before those, at the initial timeout each.
    pub syn_linear_retries: u8,
    /// Retransmissions of a SYN,ACK before the half-open connection goes.
    pub synack_retries: u8,
    /// Retransmissions of data before the connection times out, counted in the time that so many
    /// doublings of `rto_min` take (RFC 9293 section 3.8.3, R2: at least 100 s).
    pub data_retries: u8,
    /// The same when the application has closed.
    pub orphan_retries: u8,
    /// How long TIME-WAIT lasts.
    pub time_wait: Duration,
    /// How long a closed application's connection waits for the peer's FIN.
    pub fin_wait2: Duration,
    /// Least time between two acknowledgements sent in answer to segments that make no sense
    /// (RFC 5961 section 7), per connection.
    pub challenge_interval: Duration,
    /// How long a connection that has fallen idle keeps the memory of its queues.
    pub shrink_after: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            recv_buffer: 6 << 20,
            send_buffer: 4 << 20,
            max_mss: None,
            window_scaling: true,
            timestamps: true,
            sack: true,
            nagle: true,
            delayed_ack: Duration::from_millis(40),
            quick_acks: 16,
            keepalive: None,
            congestion: CongestionKind::Cubic,
            initial_cwnd: 10,
            slow_start_after_idle: true,
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            syn_retries: 6,
            syn_linear_retries: 4,
            synack_retries: 5,
            data_retries: 15,
            orphan_retries: 8,
            time_wait: Duration::from_secs(60),
            fin_wait2: Duration::from_secs(60),
            challenge_interval: Duration::from_millis(500),
            shrink_after: Duration::from_secs(1),
        }
    }
}

/// What the path to the peer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Payload bytes in one wire segment without TCP options: MTU less 40 (IPv4) or 60 (IPv6).
    pub mss: u16,
    /// Payload bytes in one super-frame; at least `mss`, equal to it where there is none.
    pub max_super_payload: u32,
}
