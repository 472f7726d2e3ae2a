//! [`Outbound`], the sending part of a connection: the send queue, and with [`Transfer`] the flight, loss
//! recovery and congestion control.

pub(crate) mod account;
mod ack;
pub(crate) mod congestion;
pub(crate) mod ecn;
pub(crate) mod flight;
pub(crate) mod loss;
pub(crate) mod mtu_probe;
mod next;
pub(crate) mod recovery;
pub(crate) mod room;
pub(crate) mod rtt;
pub(crate) mod send_queue;

use core::time::Duration;

use pagewire_mem::{FragVec, Instant};

use crate::config::Config;
use crate::header::{Flags, TcpHeader};
use crate::limits::{DEFAULT_MSS, MAX_WINDOW_SCALE, MIN_SEND_MSS};
use crate::outbound::account::{BusyTimes, SendLimit};
use crate::outbound::congestion::{Congestion, CongestionKind};
use crate::outbound::ecn::Accurate;
use crate::outbound::flight::Flight;
use crate::outbound::loss::Loss;
use crate::outbound::mtu_probe::MtuSearch;
use crate::outbound::recovery::Recovery;
use crate::outbound::rtt::RttEstimator;
use crate::outbound::send_queue::SendQueue;
use crate::path::Path;
use crate::seq::Seq;
use crate::timer::Timer;

/// The part of a connection that sends.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) flags: OutFlags,
    pub(crate) transfer: Transfer,
    pub(crate) queue: SendQueue,
    pub(crate) limit: SendLimit,
    /// For zero-window probes (RFC 9293 section 3.8.6.1), and to flush a segment that is held back.
    pub(crate) persist: Timer,
    /// Doublings of the time between zero-window probes.
    pub(crate) persist_backoff: u8,
    pub(crate) account: BusyTimes,
    /// End of the last data to send with PSH.
    pub(crate) pushed: Seq,
    /// End of the last data sent with PSH, super-frames left aside.
    pub(crate) push_sent: Seq,
    /// Data before this is not held back.
    pub(crate) flush_to: Seq,
    /// Where the last super-segment in the queue begins (`room.rs`).
    pub(crate) super_segment: Seq,
    /// The size that the send buffer has grown to.
    pub(crate) buffer: u32,
}

/// Data that was sent, and the peer's answers: flight, loss recovery, congestion control.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) snd: SendSequence,
    pub(crate) flight: Flight,
    pub(crate) rtt: RttEstimator,
    pub(crate) congestion: Congestion,
    pub(crate) loss: Loss,
    /// State of loss recovery, from the first sign of a loss until the connection falls idle.
    pub(crate) recovery: Option<Box<Recovery>>,
    /// The retransmission timer, set while a SYN, data or a FIN is in flight (RFC 6298).
    pub(crate) retransmit: Timer,
    /// The time at which data was sent last.
    pub(crate) sent_at: Instant,
    /// Bytes that the peer has acknowledged.
    pub(crate) bytes_acked: u64,
    pub(crate) rare: Option<Box<RareOutbound>>,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct OutFlags: u16 {
        /// A FIN follows the queued data.
        const FIN_QUEUED = 1 << 0;
        /// Nagle's algorithm is off.
        const NODELAY = 1 << 1;
        /// Segments that are not full are held back.
        const CORK = 1 << 2;
        /// A probe is due: a segment with an old sequence number, which the peer answers.
        const PROBE_DUE = 1 << 3;
        /// Data that is held back, or does not fit the window as a whole, is to be sent now.
        const FLUSH_DUE = 1 << 4;
        /// The device refused a segment: all waits for a segment or a timer (`connection/refused.rs`).
        const REFUSED = 1 << 5;
        /// The last send had `SendFlags::MORE`, and no segment has arrived since.
        const MORE = 1 << 6;
        /// A send did not find enough room.
        const WAITS_FOR_ROOM = 1 << 7;
        /// A segment has arrived since `check_room`.
        const ACKED = 1 << 8;
        /// Urgent data of ours is not acknowledged.
        const URGENT_OUT = 1 << 9;
    }
}

/// The send sequence variables (RFC 9293 section 3.3.1) and the peer's options.
#[derive(Debug, Default)]
pub(crate) struct SendSequence {
    pub(crate) iss: Seq,
    /// Oldest number not acknowledged.
    pub(crate) una: Seq,
    /// Next number never sent.
    pub(crate) nxt: Seq,
    /// The segment that brought the window last: its sequence and acknowledgement numbers.
    pub(crate) wl1: Seq,
    pub(crate) wl2: Seq,
    /// The peer's window in bytes, and its largest value so far.
    pub(crate) window: u32,
    pub(crate) max_window: u32,
    pub(crate) peer_mss: u16,
    /// Shift of the windows that the peer announces.
    pub(crate) scale: u8,
}

/// The next segment to send, without its header.
pub(crate) struct Outgoing {
    pub(crate) start: Seq,
    /// The number after the last byte, or after the FIN.
    pub(crate) end: Seq,
    pub(crate) flags: Flags,
    pub(crate) payload: FragVec,
    /// Bytes in `payload`.
    pub(crate) len: u32,
    /// Payload of a full wire segment.
    pub(crate) mss: u32,
}

/// Counts of losses and of their signs, for [`Info`](crate::Info).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossCounts {
    pub(crate) retransmits: u32,
    pub(crate) timeouts: u32,
    pub(crate) recoveries: u32,
    /// Of the three, those that [`Connection::take_losses`](crate::Connection::take_losses) has returned.
    pub(crate) taken: [u32; 3],
    pub(crate) sacks_ignored: u32,
    /// Segments that the peer received twice.
    pub(crate) dsack_dups: u32,
    /// Times that reordering was seen.
    pub(crate) reord_seen: u32,
    /// Wire segments delivered while the peer echoed congestion marks; wraps.
    pub(crate) delivered_ce: u32,
}

impl LossCounts {
    const NONE: &Self = &Self {
        retransmits: 0,
        timeouts: 0,
        recoveries: 0,
        taken: [0; 3],
        sacks_ignored: 0,
        dsack_dups: 0,
        reord_seen: 0,
        delivered_ce: 0,
    };
}

/// Refusals of the device, until a segment arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceRefusals {
    /// The first refusal.
    pub(crate) since: Instant,
    /// When new data is tried again.
    pub(crate) retry_at: Instant,
    /// How often new data was tried again.
    pub(crate) tries: u8,
}

/// State that few connections need. Boxed to keep the others small.
#[derive(Debug, Default)]
pub(crate) struct RareOutbound {
    /// The number after the last urgent byte that we send.
    pub(crate) urgent_out: Option<Seq>,
    pub(crate) refused: Option<DeviceRefusals>,
    /// The time since which the peer does not answer, with a user timeout.
    pub(crate) unanswered_since: Option<Instant>,
    /// The number after the data in our SYN: a segment that ends there has PSH set.
    pub(crate) syn_data_end: Option<Seq>,
    pub(crate) mtu: Option<MtuSearch>,
    /// Counters of accurate ECN feedback, if both sides do it.
    pub(crate) accurate: Option<Accurate>,
    pub(crate) losses: LossCounts,
    /// RACK.reo_wnd_mult, less one: quarters of the least round trip that widen the reordering window.
    pub(crate) reo_wnd_more: u8,
    /// RACK.reo_wnd_persist: recoveries for which `reo_wnd_more` stays.
    pub(crate) reo_wnd_persist: u8,
    /// Payload bytes sent again.
    pub(crate) bytes_retransmitted: u64,
    /// Time during which the peer's window held the send queue back.
    pub(crate) window_limited: Duration,
    /// Time during which the send buffer held the application back.
    pub(crate) buffer_limited: Duration,
}

impl Outbound {
    /// An empty queue. Our SYN, with number `iss`, is not sent yet.
    pub(crate) fn new(now: Instant, config: &Config, iss: Seq) -> Self {
        let first = iss + 1;
        let mut flags = OutFlags::empty();
        flags.set(OutFlags::NODELAY, !config.nagle);
        flags.set(OutFlags::CORK, config.cork);
        Self {
            flags,
            transfer: Transfer::new(now, config, iss),
            queue: SendQueue::new(first),
            limit: SendLimit::Idle,
            persist: Timer::default(),
            persist_backoff: 0,
            account: BusyTimes::default(),
            pushed: first,
            push_sent: first,
            flush_to: first,
            super_segment: first,
            buffer: 0,
        }
    }

    /// Queues a FIN.
    pub(crate) fn close(&mut self) {
        self.flags.insert(OutFlags::FIN_QUEUED);
    }

    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.flags.contains(OutFlags::FIN_QUEUED)
    }

    /// Whether our FIN is acknowledged.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closing() && self.transfer.snd.una.gt(self.queue.end())
    }

    pub(crate) fn set_nodelay(&mut self, nodelay: bool) {
        self.flags.set(OutFlags::NODELAY, nodelay);
        if nodelay {
            self.flush_to = self.queue.end();
        }
    }

    pub(crate) fn is_corked(&self) -> bool {
        self.flags.contains(OutFlags::CORK)
    }

    pub(crate) fn set_cork(&mut self, cork: bool) {
        self.flags.set(OutFlags::CORK, cork);
        if !cork {
            self.flags.remove(OutFlags::MORE);
            if self.flags.contains(OutFlags::NODELAY) {
                self.flush_to = self.queue.end();
            }
        }
    }

    /// The connection is closed: drops all data.
    pub(crate) fn end(&mut self) {
        self.queue.clear(self.transfer.snd.nxt);
        self.transfer.flight.clear();
        self.transfer.recovery = None;
        self.transfer.retransmit.stop();
        self.persist.stop();
    }

    /// Frees the memory of empty queues.
    pub(crate) fn shrink(&mut self) {
        self.queue.shrink();
        self.transfer.flight.shrink();
        self.transfer.congestion.shrink();
        if self.transfer.flight.is_empty() {
            self.transfer.recovery = None;
        }
    }

    /// Whether it owns memory that an idle connection frees.
    #[inline]
    pub(crate) fn has_heap(&self) -> bool {
        self.queue.has_heap() || self.transfer.flight.has_heap() || self.transfer.recovery.is_some()
    }

    #[inline]
    pub(crate) fn unsent(&self, path: &Path) -> u32 {
        self.queue.end().saturating_since(self.transfer.next_data(path))
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.transfer.flight.check(self.transfer.snd.una, self.transfer.snd.nxt);
    }

    pub(crate) fn refused(&self, path: &Path) -> Option<DeviceRefusals> {
        let refused = self.transfer.rare.as_ref()?.refused?;
        (refused.since >= path.last_received).then_some(refused)
    }
}

impl Transfer {
    fn new(now: Instant, config: &Config, iss: Seq) -> Self {
        Self {
            snd: SendSequence {
                iss,
                una: iss,
                nxt: iss,
                peer_mss: DEFAULT_MSS,
                ..SendSequence::default()
            },
            flight: Flight::new(iss),
            rtt: RttEstimator::new(config.rto_min, config.rto_max),
            congestion: Congestion::new(
                config.congestion,
                config.initial_cwnd,
                config.slow_start_exit,
            ),
            loss: Loss::new(iss + 1, config.reordering),
            recovery: None,
            retransmit: Timer::default(),
            sent_at: now,
            bytes_acked: 0,
            rare: None,
        }
    }

    #[inline]
    pub(crate) fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    pub(crate) fn set_congestion(&mut self, kind: CongestionKind) {
        self.congestion.change(kind);
    }

    pub(crate) fn rare(&mut self) -> &mut RareOutbound {
        self.rare.get_or_insert_default()
    }

    #[inline]
    pub(crate) fn losses(&self) -> &LossCounts {
        self.rare.as_deref().map_or(LossCounts::NONE, |rare| &rare.losses)
    }

    /// Sequence numbers sent and not cumulatively acknowledged (RFC 5681's FlightSize).
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.snd.nxt.since(self.snd.una)
    }

    /// The right edge of the peer's window: the number after the last byte that it allows. The SYN is
    /// not part of the window.
    #[inline]
    pub(crate) fn send_edge(&self) -> Seq {
        let syn = u32::from(self.snd.una == self.snd.iss && self.snd.nxt != self.snd.iss);
        self.snd.una + syn + self.snd.window
    }

    /// The number of the first byte of data that was never sent; a SYN is not data.
    #[inline]
    pub(crate) fn next_data(&self, path: &Path) -> Seq {
        let syn = !path.state().is_synchronized() && self.snd.nxt == self.snd.iss;
        self.snd.nxt + u32::from(syn)
    }

    /// Reads the peer's window and options from its SYN.
    pub(crate) fn take_syn(&mut self, path: &Path, syn: &TcpHeader, ecn: u8) {
        let snd = &mut self.snd;
        // > RFC 7323 section 2.2: The window field in a segment where the SYN bit is set (i.e., a
        // > <SYN> or <SYN,ACK>) MUST NOT be scaled.
        snd.window = u32::from(syn.window);
        snd.max_window = snd.window;
        snd.wl1 = syn.seq;
        snd.wl2 = if syn.flags.contains(Flags::ACK) { syn.ack } else { snd.iss };
        // > RFC 9293 section 3.7.1: If an MSS Option is not received at connection setup, TCP
        // > implementations MUST assume a default send MSS of 536 (576 - 40) for IPv4
        snd.peer_mss = syn.options.mss.unwrap_or(DEFAULT_MSS).max(MIN_SEND_MSS);
        let scale = syn.options.window_scale.filter(|_| path.config().window_scaling);
        snd.scale = scale.map_or(0, |scale| scale.min(MAX_WINDOW_SCALE));
        self.negotiate_ecn(path, syn, ecn);
    }

    /// The SYN or SYN,ACK leaves; whether for the first time. `None`: it is not due again.
    pub(crate) fn send_syn(&mut self, now: Instant) -> Option<bool> {
        let (iss, first) = (self.snd.iss, self.snd.iss + 1);
        let fresh = self.snd.nxt == iss;
        if fresh {
            self.flight.push(iss, first, now, 1, false);
            self.snd.nxt = first;
        } else {
            let again = self.flight.next_lost(iss).filter(|again| again.start == iss)?;
            self.flight.on_retransmit(again.start, again.end, now, 1);
            self.rare().losses.retransmits += 1;
        }
        self.retransmit.set_once(now + self.rtt.rto());
        Some(fresh)
    }
}
