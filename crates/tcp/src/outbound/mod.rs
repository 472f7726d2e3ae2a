//! What goes out: the send queue, what is under way, and what is done about loss and congestion.

pub(crate) mod account;
mod ack;
mod collect;
pub(crate) mod congestion;
pub(crate) mod ecn;
pub(crate) mod flight;
pub(crate) mod loss;
pub(crate) mod mtu_probe;
mod next;
pub(crate) mod recovery;
pub(crate) mod refused;
mod room;
pub(crate) mod rtt;
pub(crate) mod send_queue;
mod timeout;
mod urgent;

use core::time::Duration;

use pagewire_mem::{FragVec, Instant};

use crate::header::Flags;
use crate::life::state::State;
use crate::outbound::account::{Account, Limit};
use crate::outbound::congestion::Congestion;
use crate::outbound::ecn::{Accurate, EcnFlags};
use crate::outbound::flight::Flight;
use crate::outbound::loss::Loss;
use crate::outbound::mtu_probe::MtuSearch;
use crate::outbound::recovery::Recovery;
use crate::outbound::refused::Refused;
use crate::outbound::rtt::RttEstimator;
use crate::outbound::send_queue::SendQueue;
use crate::path::{Path, PathFlags};
use crate::seq::Seq;
use crate::timer::Timer;

/// The part of a connection that sends.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) flags: OutFlags,
    pub(crate) snd: Sender,
    /// Byte path, step S2.
    pub(crate) queue: SendQueue,
    pub(crate) flight: Flight,
    pub(crate) rtt: RttEstimator,
    pub(crate) congestion: Congestion,
    pub(crate) ecn: EcnFlags,
    /// What sending waits for.
    pub(crate) limit: Limit,
    pub(crate) loss: Loss,
    /// Present from the first sign of a loss until the connection falls idle.
    pub(crate) recovery: Option<Box<Recovery>>,
    /// Something sent is not acknowledged: SYN, data or FIN (RFC 6298).
    pub(crate) retransmit: Timer,
    /// Something queued cannot leave, and nothing is under way that could bring news: zero-window
    /// probes (RFC 9293 section 3.8.6.1), and segments held back that must leave some time.
    pub(crate) persist: Timer,
    /// Timeouts in a row without an answer: retransmissions, or probes.
    pub(crate) retries: u8,
    /// Doublings of the time between zero-window probes.
    pub(crate) persist_backoff: u8,
    /// When data was sent last.
    pub(crate) sent_at: Instant,
    pub(crate) stats: Stats,
    pub(crate) account: Account,
    /// What few connections need.
    pub(crate) rare: Option<Box<Rare>>,
}

bitflags::bitflags! {
    /// What is true of what is sent.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct OutFlags: u16 {
        /// Nothing is queued any more behind what is: a FIN follows.
        const FIN_QUEUED = 1 << 0;
        /// Nagle's algorithm is off.
        const NODELAY = 1 << 1;
        /// Segments that are not full are held back.
        const CORK = 1 << 2;
        /// A probe is to be sent: an old sequence number that makes the peer answer.
        const PROBE_DUE = 1 << 3;
        /// What is held back, or does not fit the window as a whole, is to be sent now.
        const FLUSH_DUE = 1 << 4;
        /// The device refused something: nothing leaves until something is heard, or a timer goes off
        /// (`refused.rs`).
        const REFUSED = 1 << 5;
        /// The last send said that more follows; cleared by what happens next.
        const MORE = 1 << 6;
        /// A send did not find the room that it wanted.
        const WAITS_FOR_ROOM = 1 << 7;
        /// A segment came since room was last looked for.
        const ACKED = 1 << 8;
        /// Urgent data of ours is not acknowledged.
        const URGENT_OUT = 1 << 9;
    }
}

/// The send sequence variables (RFC 9293 section 3.3.1) and what else is known of the way out.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) iss: Seq,
    /// Oldest number not acknowledged.
    pub(crate) una: Seq,
    /// Next number never sent.
    pub(crate) nxt: Seq,
    /// The segment that brought the window last: its sequence and acknowledgement numbers.
    pub(crate) wl1: Seq,
    pub(crate) wl2: Seq,
    /// The peer's window in bytes, and the largest that it ever was.
    pub(crate) window: u32,
    pub(crate) max_window: u32,
    /// End of the last segment sent that was not full (Minshall's variant of Nagle).
    pub(crate) small_end: Seq,
    /// End of the last data that is to be pushed.
    pub(crate) pushed: Seq,
    /// End of the last data that was sent as pushed, super-frames left aside.
    pub(crate) push_sent: Seq,
    /// What is queued before this leaves, whatever would hold it back.
    pub(crate) flush_to: Seq,
    /// Where the last piece in the queue begins (`room.rs`).
    pub(crate) piece: Seq,
    /// What the send buffer has grown to.
    pub(crate) buffer: u32,
    /// The peer's MSS option.
    pub(crate) peer_mss: u16,
    /// Shift of the windows that the peer announces.
    pub(crate) scale: u8,
}

/// What is to be sent next, but for its header.
pub(crate) struct Outgoing {
    pub(crate) start: Seq,
    /// A FIN counts.
    pub(crate) end: Seq,
    pub(crate) flags: Flags,
    pub(crate) payload: FragVec,
    /// Bytes in `payload`.
    pub(crate) len: u32,
    /// Payload of a full wire segment.
    pub(crate) mss: u32,
}

/// Counts for [`Info`](crate::Info).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) bytes_acked: u64,
    pub(crate) retransmits: u32,
    pub(crate) timeouts: u32,
    pub(crate) recoveries: u32,
    pub(crate) sacks_ignored: u32,
}

/// What few connections need, or none most of the time: boxed, so that the others do not pay.
#[derive(Debug, Default)]
pub(crate) struct Rare {
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

impl Outbound {
    /// Whether it owns memory that an idle connection gives back.
    pub(crate) fn has_heap(&self) -> bool {
        self.queue.has_heap() || self.flight.has_heap() || self.recovery.is_some()
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.flight.check(self.snd.una, self.snd.nxt);
    }

    pub(crate) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }
}

impl Outbound {
    /// Sequence numbers sent and not cumulatively acknowledged (RFC 5681's FlightSize).
    pub(crate) fn in_flight(&self) -> u32 {
        self.snd.nxt.since(self.snd.una)
    }

    /// One past the last byte that the peer's window allows. The SYN is not part of the window.
    pub(crate) fn send_edge(&self) -> Seq {
        let syn = u32::from(self.snd.una == self.snd.iss && self.snd.nxt != self.snd.iss);
        self.snd.una + syn + self.snd.window
    }

    /// Bytes queued that have never been sent.
    pub(crate) fn unsent(&self, path: &Path) -> u32 {
        self.queue.end().saturating_since(self.next_data(path))
    }

    /// The number of the first byte that was never sent: the SYN, if that is still to be sent, is none.
    pub(crate) fn next_data(&self, path: &Path) -> Seq {
        let syn = !path.state.is_synchronized() && self.snd.nxt == self.snd.iss;
        self.snd.nxt + u32::from(syn)
    }

    /// Whether data may leave although the handshake is not complete.
    pub(crate) fn sends_before_handshake(&self, path: &Path) -> bool {
        path.state == State::SynReceived
            && path.flags.contains(PathFlags::FAST_OPEN_SERVER)
            && self.snd.nxt != self.snd.iss
    }
}
