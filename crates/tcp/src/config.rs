//! Settings of a connection. Shared between connections in an `Arc`; defaults are Linux's.

use core::time::Duration;

use crate::outbound::congestion::{CongestionKind, SlowStartExit};

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

/// Whether connections use explicit congestion notification, and with which feedback; the numbers are
/// those of Linux's `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EcnMode {
    /// Never (0).
    Off,
    /// Classic feedback is asked for when we open, and agreed to when the peer asks (1).
    Request,
    /// Classic feedback is agreed to when the peer asks (2).
    #[default]
    Accept,
    /// Accurate feedback is asked for when we open; either is agreed to when the peer asks (3).
    Accurate,
    /// Classic feedback is asked for when we open; either is agreed to when the peer asks (4).
    RequestAcceptAccurate,
    /// Either is agreed to when the peer asks (5).
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

/// How a connection finds out what its path takes without being told (RFC 4821). Sizes are those
/// of payload with the usual options, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuProbing {
    /// From the start (Linux's `tcp_mtu_probing` 2), or when a black hole is suspected (1).
    pub from_start: bool,
    /// Small enough to pass anywhere, in all likelihood (`tcp_base_mss`).
    pub base_mss: u16,
    /// What repeated timeouts may bring it down to (`tcp_mtu_probe_floor`).
    pub floor: u16,
    /// A range narrower than this is not searched (`tcp_probe_threshold`).
    pub threshold: u16,
    /// After this the whole range is searched again (`tcp_probe_interval`).
    pub interval: Duration,
    /// Timeouts in a row before the one that is taken for a black hole (`tcp_retries1`).
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
    /// Largest receive window in bytes; also what the window scale is chosen for. Memory pinned
    /// for what is queued may be twice that.
    pub recv_buffer: u32,
    /// The receive buffer that a connection begins with. It grows up to `recv_buffer` with what the
    /// application reads in a round trip; a buffer that begins at its largest is fixed.
    pub recv_buffer_initial: u32,
    /// Bytes that may wait in the send queue, unsent or unacknowledged, at most; not above
    /// [`MAX_SEND_BUFFER`](crate::limits::MAX_SEND_BUFFER). As in Linux, data is charged by the
    /// super-frame: a send that finds room takes all of one.
    pub send_buffer: u32,
    /// The send buffer that a connection begins with. It grows up to `send_buffer` with the
    /// congestion window; a buffer that begins at its largest is fixed.
    pub send_buffer_initial: u32,
    /// Upper bound of the window that we announce, in bytes (Linux's `TCP_WINDOW_CLAMP`). 0 closes
    /// it: nothing is added to what was announced.
    pub window_clamp: Option<u32>,
    /// Bytes that have to be there before the connection is readable (`SO_RCVLOWAT`); at least 1.
    pub recv_lowat: u32,
    /// Unsent bytes from which on the send buffer takes no more, and below half of which it is
    /// writable again (Linux's `TCP_NOTSENT_LOWAT`).
    pub notsent_lowat: u32,
    /// An urgent byte stays in the stream (`SO_OOBINLINE`).
    pub oob_inline: bool,
    /// Upper bound for the MSS that we announce and use, in bytes; `None`: what the link takes.
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
    /// Duplicate acknowledgements, or segments acknowledged selectively, that stand for a loss
    /// (RFC 5681's DupThresh) until the path is seen to reorder more than that.
    pub reordering: u8,
    /// Send the last segment again when nothing was heard for two round trips (RFC 8985 section 7).
    pub tail_loss_probe: bool,
    /// Find out whether a retransmission timeout was spurious (RFC 5682).
    pub frto: bool,
    /// A super-frame that the congestion window cuts short waits until it is this part of the
    /// window: 3 is a third.
    pub super_frame_divisor: u32,
    /// Hold back small segments while one is unacknowledged (RFC 9293 section 3.7.4), in
    /// Minshall's variant.
    pub nagle: bool,
    /// Hold back every segment that is not full (`TCP_CORK`).
    pub cork: bool,
    /// How long an acknowledgement may wait for company (RFC 9293 section 3.8.6.3: less than
    /// 500 ms).
    pub delayed_ack: Duration,
    /// Segments acknowledged at once when data begins to flow, to help the peer's slow start.
    pub quick_acks: u8,
    /// Probe idle connections.
    pub keepalive: Option<KeepAlive>,
    /// Which congestion control.
    pub congestion: CongestionKind,
    /// What ends slow start before anything is lost.
    pub slow_start_exit: SlowStartExit,
    /// Initial congestion window in segments (RFC 6928).
    pub initial_cwnd: u32,
    /// Begin with a small window again after nothing was sent for a while (RFC 5681 section 4.1).
    pub slow_start_after_idle: bool,
    /// Smallest retransmission timeout.
    pub rto_min: Duration,
    /// Largest retransmission timeout (RFC 6298 section 2.5: at least 60 s).
    pub rto_max: Duration,
    /// How long data, a SYN or a probe may go unanswered before the connection is given up (RFC
    /// 5482), in place of the counts below; `None`: the counts rule.
    pub user_timeout: Option<Duration>,
    /// What [`close`](crate::Connection::close) does: zero resets the peer and throws away what is
    /// queued; everything else is for whoever waits (`SO_LINGER`).
    pub linger: Option<Duration>,
    /// Segments that make up a super-frame at least, however slow the path is (Linux's
    /// `tcp_min_tso_segs`).
    pub min_super_segments: u8,
    /// Retransmissions of a SYN with doubling timeouts before connecting fails.
    pub syn_retries: u8,
    /// Retransmissions of a SYN that come before those, at the initial timeout each.
    pub syn_linear_retries: u8,
    /// Retransmissions of a SYN,ACK before the half-open connection goes.
    pub synack_retries: u8,
    /// Timeouts of a SYN,ACK during which an acknowledgement that brings no data does not complete
    /// the handshake ([`defer_accept_timeouts`](crate::defer_accept_timeouts)); 0: it always does. On
    /// the other side, a connection that is opened with it waits a little for data to send along with
    /// the acknowledgement.
    pub defer_accept: u8,
    /// Retransmissions of data before the connection times out, counted in the time that so many
    /// doublings of `rto_min` take (RFC 9293 section 3.8.3, R2: at least 100 s).
    pub data_retries: u8,
    /// The same when the application has closed.
    pub orphan_retries: u8,
    /// Probe for what the path takes; `None`, as in Linux, believes what is said.
    pub mtu_probing: Option<MtuProbing>,
    /// How long TIME-WAIT lasts.
    pub time_wait: Duration,
    /// Ignore resets in TIME-WAIT (RFC 1337).
    pub rfc1337: bool,
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
            recv_buffer_initial: 128 << 10,
            send_buffer: 4 << 20,
            send_buffer_initial: 256 << 10,
            window_clamp: None,
            recv_lowat: 1,
            notsent_lowat: u32::MAX,
            oob_inline: false,
            max_mss: None,
            window_scaling: true,
            timestamps: true,
            sack: true,
            dsack: true,
            ecn: EcnMode::Accept,
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

/// What the path to the peer carries, and what our end of it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Payload bytes in one wire segment without TCP options: the path's MTU less 40 (IPv4) or 60
    /// (IPv6).
    pub mss: u16,
    /// The same for our own link, whatever the path beyond it takes: what we announce.
    ///
    /// > RFC 8201 section 5.4: The value sent in the TCP MSS option is independent of the PMTU [...]
    /// > This MSS option value is used by the other end of the connection, which may be using an
    /// > unrelated PMTU value.
    pub recv_mss: u16,
    /// Payload bytes in one super-frame; at least `mss`, equal to it where there is none. More than an
    /// IP packet's 65,535 say that the path stays in memory.
    pub max_super_payload: u32,
}

impl LinkLimits {
    /// Of a path that takes what our link does.
    pub const fn new(mss: u16, max_super_payload: u32) -> Self {
        Self { mss, recv_mss: mss, max_super_payload }
    }

    /// Whether super-frames are longer than any network card takes them: then the other end is in the
    /// same machine, and hears of everything within microseconds.
    pub(crate) const fn stays_in_memory(self) -> bool {
        self.max_super_payload > u16::MAX as u32
    }
}
