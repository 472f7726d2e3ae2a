//! The part of loss recovery that every connection has, in a few bytes. The part needed only during
//! a recovery is boxed: [`Recovery`](crate::outbound::recovery::Recovery).

use pagewire_mem::Instant;

use crate::outbound::ecn::EcnFlags;
use crate::seq::Seq;

/// State of loss recovery (Linux's names and numbers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CaState {
    /// Nothing is wrong.
    #[default]
    Open = 0,
    /// Segments arrived out of order; none is considered lost.
    Disorder = 1,
    /// The window is reduced for a congestion mark (RFC 3168).
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// After a retransmission timeout.
    Loss = 4,
}

/// The meaning of the retransmission timer. As in Linux, the three share one timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PendingTimer {
    /// The retransmission timeout (RFC 6298).
    #[default]
    Rto,
    /// A tail loss probe (RFC 8985 section 7).
    Probe,
    /// The reordering window closes (RFC 8985 section 6).
    Reorder,
}

/// State of RACK (RFC 8985 section 5.2).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rack {
    /// RACK.xmit_ts: when the most recently sent delivered segment was sent.
    pub(crate) at: Instant,
    /// RACK.end_seq: its end.
    pub(crate) end: Seq,
    /// RACK.rtt: its round trip, microseconds.
    pub(crate) rtt_us: u32,
}

/// State that every connection has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loss {
    pub(crate) rack: Rack,
    /// `snd.nxt` when the state began; acknowledged, it ends the state (RecoveryPoint, "recover").
    pub(crate) high_seq: Seq,
    /// Wire segments delivered, ever; wraps.
    pub(crate) delivered: u32,
    /// Most wire segments in flight in a round trip of `validate_cwnd`, and its end.
    pub(crate) max_packets: u32,
    pub(crate) usage_end: Seq,
    /// The degree of reordering, in wire segments.
    pub(crate) reordering: u16,
    /// RACK has advanced, or losses must be detected again.
    pub(crate) advanced: bool,
    /// The congestion window was the limit in that round trip.
    pub(crate) cwnd_limited: bool,
    pub(crate) state: CaState,
    pub(crate) due: PendingTimer,
    pub(crate) ecn: EcnFlags,
    /// Timeouts in a row without an answer: retransmissions, or probes.
    pub(crate) retries: u8,
}

impl Loss {
    /// Before any loss. `first` is the number of the first byte.
    pub(crate) fn new(first: Seq, reordering: u8) -> Self {
        let rack = Rack { end: first, ..Rack::default() };
        let reordering = reordering.into();
        Self { rack, high_seq: first, usage_end: first, reordering, ..Self::default() }
    }

    /// Whether proportional rate reduction sets the window.
    pub(crate) fn is_reducing(&self) -> bool {
        matches!(self.state, CaState::Cwr | CaState::Recovery)
    }
}
