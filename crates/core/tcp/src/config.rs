//! [`Config`]: the settings of a connection, which connections share in an `Arc`. Defaults are Linux's.
//! [`LinkLimits`] is what the link and the path allow.

use core::time::Duration;

use crate::outbound::congestion::{CongestionKind, SlowStartExit};

/// Keep-alive probes of an idle connection (RFC 9293 section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Silence before the first probe. RFC 9293: at least two hours by default.
    pub idle: Duration,
    /// Time between probes, at least a millisecond.
    pub interval: Duration,
    /// Unanswered probes before the connection ends.
    pub probes: u8,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// Explicit congestion notification and its feedback; the numbers are those of Linux's `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EcnMode {
    /// Never (0).
    Off,
    /// Requests and accepts classic feedback (1).
    Request,
    /// Accepts classic feedback (2).
    #[default]
    Accept,
    /// Requests accurate feedback, accepts both (3).
    Accurate,
    /// Requests classic feedback, accepts both (4).
    RequestAcceptAccurate,
    /// Accepts both (5).
    AcceptAccurate,
}

impl EcnMode {
    pub(crate) const fn accepts_accurate(self) -> bool {
        matches!(self, Self::Accurate | Self::RequestAcceptAccurate | Self::AcceptAccurate)
    }

    pub(crate) const fn requests_classic(self) -> bool {
        matches!(self, Self::Request | Self::RequestAcceptAccurate)
    }
}

/// When segments have the option with the counts of marked bytes, if both sides count (RFC 9768
/// section 3.2.3); the numbers are those of Linux's `tcp_ecn_option`.
///
/// The peer must have sent the option too. Beside two SACK blocks, it may be left out for want of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EcnOption {
    /// Never (0).
    Off,
    /// In the handshake and the first data, after a change of the mark, after a mark, and three times
    /// in a round trip (1).
    Sparing,
    /// Always, until segments with it seem to be dropped (2).
    #[default]
    Always,
    /// Always, whatever happens (3).
    Persistent,
}

/// Path MTU discovery by probing (RFC 4821). Sizes are payload with the usual options, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuProbing {
    /// From the start (Linux's `tcp_mtu_probing` 2), or when a black hole is suspected (1).
    pub from_start: bool,
    /// A size that most likely passes everywhere (`tcp_base_mss`).
    pub base_mss: u16,
    /// The least size after repeated timeouts (`tcp_mtu_probe_floor`).
    pub floor: u16,
    /// A range narrower than this is not searched (`tcp_probe_threshold`).
    pub threshold: u16,
    /// After this the whole range is searched again (`tcp_probe_interval`).
    pub interval: Duration,
    /// Timeouts in a row before the one that indicates a black hole (`tcp_retries1`).
    pub retries: u8,
}

impl Default for MtuProbing {
    fn default() -> Self {
        Self {
            from_start: false,
            base_mss: 1024,
            floor: 48,
            threshold: 8,
            interval: Duration::from_secs(600),
            retries: 3,
        }
    }
}

/// Settings of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Largest receive window in bytes; decides the window scale. Data may pin twice as much.
    pub recv_buffer: u32,
    /// Initial receive buffer. It grows up to `recv_buffer` with what is read in a round trip.
    pub recv_buffer_initial: u32,
    /// Most bytes in the send queue, unsent or unacknowledged; not above
    /// [`MAX_SEND_BUFFER`](crate::limits::MAX_SEND_BUFFER). As in Linux, data is charged by the
    /// super-segment: a send that finds room may fill one.
    pub send_buffer: u32,
    /// Initial send buffer. It grows up to `send_buffer` with the congestion window.
    pub send_buffer_initial: u32,
    /// Upper bound of the window that we announce, in bytes (Linux's `TCP_WINDOW_CLAMP`). 0 closes
    /// it: nothing is added to what was announced.
    pub window_clamp: Option<u32>,
    /// A window with a scale shrinks with the free buffer (Linux's `tcp_shrink_window`). What it was
    /// before is still accepted.
    pub shrink_window: bool,
    /// Queued bytes from which on the connection is readable (`SO_RCVLOWAT`); at least 1.
    pub recv_lowat: u32,
    /// Limit of unsent bytes in the send buffer; below half of it the connection is writable again
    /// (Linux's `TCP_NOTSENT_LOWAT`).
    pub notsent_lowat: u32,
    /// An urgent byte stays in the stream (`SO_OOBINLINE`).
    pub oob_inline: bool,
    /// Upper bound for the MSS that we announce and use, in bytes; `None`: the link's.
    pub max_mss: Option<u16>,
    /// Offer window scaling (RFC 7323 section 2).
    pub window_scaling: bool,
    /// Offer timestamps (RFC 7323 section 3).
    pub timestamps: bool,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Report segments that arrive twice (RFC 2883).
    pub dsack: bool,
    /// Explicit congestion notification (RFC 3168, RFC 9768).
    pub ecn: EcnMode,
    /// When segments have the option with accurate feedback.
    pub ecn_option: EcnOption,
    /// Duplicate acknowledgements or selectively acknowledged segments that indicate a loss (RFC
    /// 5681's DupThresh), until the path is seen to reorder more.
    pub reordering: u8,
    /// Send a tail loss probe after two round trips without an answer (RFC 8985 section 7).
    pub tail_loss_probe: bool,
    /// Detect spurious retransmission timeouts (RFC 5682).
    pub frto: bool,
    /// A super-frame limited by the window waits until it is this part of it, as a divisor.
    pub super_frame_divisor: u32,
    /// Hold back small segments while one is unacknowledged (RFC 9293 section 3.7.4), in
    /// Minshall's variant.
    pub nagle: bool,
    /// Hold back every segment that is not full (`TCP_CORK`).
    pub cork: bool,
    /// Least delay of a delayed acknowledgement (RFC 9293 section 3.8.6.3: less than 500 ms).
    pub delayed_ack: Duration,
    /// Segments acknowledged at once at the start of a transfer, for the peer's slow start.
    pub quick_acks: u8,
    /// Keep-alive; `None`: off.
    pub keepalive: Option<KeepAlive>,
    /// Congestion control.
    pub congestion: CongestionKind,
    /// The event that ends slow start before a loss.
    pub slow_start_exit: SlowStartExit,
    /// Initial congestion window in segments (RFC 6928).
    pub initial_cwnd: u32,
    /// Restart with a small window after an idle time (RFC 5681 section 4.1).
    pub slow_start_after_idle: bool,
    /// Smallest retransmission timeout, at most 65 s.
    pub rto_min: Duration,
    /// Largest retransmission timeout (RFC 6298 section 2.5: at least 60 s).
    pub rto_max: Duration,
    /// How long data, a SYN or a probe may stay unanswered before the connection ends (RFC 5482);
    /// `None`: the counts below decide.
    pub user_timeout: Option<Duration>,
    /// With zero, [`close`](crate::Connection::close) resets the connection and drops queued data;
    /// other values only matter to the caller (`SO_LINGER`).
    pub linger: Option<Duration>,
    /// Least segments in a super-frame on a slow path (Linux's `tcp_min_tso_segs`).
    pub min_super_segments: u8,
    /// Retransmissions of a SYN with doubling timeouts before connecting fails.
    pub syn_retries: u8,
    /// Retransmissions of a SYN before those, at the initial timeout each.
    pub syn_linear_retries: u8,
    /// Retransmissions of a SYN,ACK before the half-open connection ends.
    pub synack_retries: u8,
    /// Timeouts of a SYN,ACK during which an acknowledgement without data does not complete the
    /// handshake ([`defer_accept_timeouts`](crate::defer_accept_timeouts)); 0: it always does. An
    /// active connection with it delays the acknowledgement of the SYN,ACK to send it with data.
    pub defer_accept: u8,
    /// Retransmissions of data before the connection times out, as the time of this number of doublings of
    /// `rto_min` (RFC 9293 section 3.8.3, R2: at least 100 s).
    pub data_retries: u8,
    /// [`data_retries`](Self::data_retries) after the application has closed.
    pub orphan_retries: u8,
    /// Path MTU probing; `None`: off, as in Linux.
    pub mtu_probing: Option<MtuProbing>,
    /// How long TIME-WAIT lasts.
    pub time_wait: Duration,
    /// Ignore resets in TIME-WAIT (RFC 1337).
    pub rfc1337: bool,
    /// How long a closed connection waits for the peer's FIN.
    pub fin_wait2: Duration,
    /// Least time between two challenge ACKs of a connection (RFC 5961 section 7).
    pub challenge_interval: Duration,
    /// How long an idle connection keeps the memory of its empty queues.
    pub shrink_after: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            recv_buffer: 6 << 20,
            recv_buffer_initial: 128 << 10,
            send_buffer: 4 << 20,
            send_buffer_initial: 256 << 10,
            window_clamp: None,
            shrink_window: false,
            recv_lowat: 1,
            notsent_lowat: u32::MAX,
            oob_inline: false,
            max_mss: None,
            window_scaling: true,
            timestamps: true,
            sack: true,
            dsack: true,
            ecn: EcnMode::Accept,
            ecn_option: EcnOption::Always,
            reordering: 3,
            tail_loss_probe: true,
            frto: true,
            super_frame_divisor: 3,
            nagle: true,
            cork: false,
            delayed_ack: Duration::from_millis(40),
            quick_acks: 16,
            keepalive: None,
            congestion: CongestionKind::Cubic,
            slow_start_exit: SlowStartExit::HyStart,
            initial_cwnd: 10,
            slow_start_after_idle: true,
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            user_timeout: None,
            linger: None,
            min_super_segments: 2,
            syn_retries: 6,
            syn_linear_retries: 4,
            synack_retries: 5,
            defer_accept: 0,
            data_retries: 15,
            orphan_retries: 8,
            mtu_probing: None,
            time_wait: Duration::from_secs(60),
            rfc1337: false,
            fin_wait2: Duration::from_secs(60),
            challenge_interval: Duration::from_millis(500),
            shrink_after: Duration::from_secs(1),
        }
    }
}

/// The limits of the path to the peer, and of our own link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Payload bytes in one wire segment without TCP options: the path's MTU less 40 (IPv4) or 60
    /// (IPv6).
    pub mss: u16,
    /// The MSS that we announce: [`mss`](Self::mss) of our own link, regardless of the path.
    ///
    /// > RFC 8201 section 5.4: The value sent in the TCP MSS option is independent of the PMTU [...]
    /// > This MSS option value is used by the other end of the connection, which may be using an
    /// > unrelated PMTU value.
    pub recv_mss: u16,
    /// Payload bytes in one super-frame; `mss` if there are none. More than an IP packet's 65,535
    /// mean that the path stays in memory.
    pub max_super_payload: u32,
}

impl LinkLimits {
    /// Limits of a path with the MSS of our link.
    pub const fn new(mss: u16, max_super_payload: u32) -> Self {
        Self { mss, recv_mss: mss, max_super_payload }
    }

    /// Whether super-frames are longer than on any network card: then the peer is in this machine.
    pub(crate) const fn stays_in_memory(self) -> bool {
        self.max_super_payload > u16::MAX as u32
    }
}
