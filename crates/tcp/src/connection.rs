//! What one connection remembers, how it begins, and what it tells.
//!
//! The methods that do the work are filed by direction: `input.rs` and `ack.rs` (segments in),
//! `application.rs` (verbs), `output.rs` (segments out), `timeout.rs`, `icmp.rs`. Nothing takes
//! input and emits output: whatever is due is remembered here until `poll_transmit` asks.
//!
//! An idle connection owns no heap: queues give theirs back, and what only a loss needs is boxed.

use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant, PagePool, PageWriter};

use crate::assembler::ReceiveQueue;
use crate::config::{Config, LinkLimits};
use crate::congestion::Congestion;
use crate::error::TcpError;
use crate::flight::Flight;
use crate::header::TcpHeader;
use crate::info::{Info, Readiness};
use crate::limits::{DEFAULT_MSS, MAX_SEND_BUFFER};
use crate::recovery::Recovery;
use crate::rtt::RttEstimator;
use crate::send_queue::SendQueue;
use crate::seq::Seq;
use crate::state::{Event, State};
use crate::timers::{Timer, Timers};
use crate::window;

/// What a connection borrows from its host while it works.
#[allow(missing_debug_implementations, reason = "borrows of the host's own things")]
pub struct Env<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// Where copies are counted.
    pub ledger: &'a mut CopyLedger,
    /// Where pages come from.
    pub pool: &'a mut PagePool,
    /// Where bytes are written into pages.
    pub writer: &'a mut PageWriter,
}

/// The two ports of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Ours.
    pub local: u16,
    /// The peer's.
    pub remote: u16,
}

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) config: Arc<Config>,
    pub(crate) link: LinkLimits,
    pub(crate) ports: Ports,
    pub(crate) state: State,
    pub(crate) flags: ConnFlags,
    pub(crate) snd: Sender,
    pub(crate) rcv: Receiver,
    pub(crate) ack: AckState,
    pub(crate) ts: Timestamps,
    /// Byte path, step S2.
    pub(crate) queue: SendQueue,
    pub(crate) flight: Flight,
    pub(crate) rtt: RttEstimator,
    pub(crate) congestion: Congestion,
    /// Present from the first sign of a loss until it is repaired.
    pub(crate) recovery: Option<Box<Recovery>>,
    pub(crate) timers: Timers,
    /// Timeouts in a row without an answer: retransmissions, or probes.
    pub(crate) retries: u8,
    /// Doublings of the time between zero-window probes.
    pub(crate) persist_backoff: u8,
    /// Probes in a row without an answer, of keep-alive.
    pub(crate) keepalive_probes: u8,
    /// What the application has not been told yet.
    pub(crate) error: Option<TcpError>,
    /// What the network last complained of: the reason, should the connection time out.
    pub(crate) soft_error: Option<TcpError>,
    /// A reset to be sent.
    pub(crate) reset: Option<Reset>,
    /// When a segment arrived last.
    pub(crate) heard_at: Instant,
    /// When data was sent last.
    pub(crate) sent_at: Instant,
    /// Before this, no more answers to segments that make no sense.
    pub(crate) challenge_after: Instant,
    pub(crate) stats: Stats,
}

bitflags::bitflags! {
    /// What is true of a connection, one bit each.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct ConnFlags: u16 {
        /// We opened actively.
        const ACTIVE = 1 << 0;
        /// It was established, once.
        const CONNECTED = 1 << 1;
        /// The application has let go.
        const ORPHAN = 1 << 2;
        /// The application reads no more.
        const READ_SHUT = 1 << 3;
        /// Nothing is queued any more behind what is: a FIN follows.
        const FIN_QUEUED = 1 << 4;
        /// Nagle's algorithm is off.
        const NODELAY = 1 << 5;
        /// Segments that are not full are held back.
        const CORK = 1 << 6;
        /// Both sides do timestamps.
        const TIMESTAMPS = 1 << 7;
        /// Both sides do SACK.
        const SACK = 1 << 8;
        /// The peer's FIN is in order and counted.
        const FIN_RECEIVED = 1 << 9;
        /// A probe is to be sent: an old sequence number that makes the peer answer.
        const PROBE_DUE = 1 << 10;
        /// What is held back, or does not fit the window as a whole, is to be sent now.
        const FLUSH_DUE = 1 << 11;
        /// A SYN was sent more than once.
        const SYN_RESENT = 1 << 12;
        /// Both sides do window scaling.
        const SCALING = 1 << 13;
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
    /// Most bytes in flight since `round_end` was set; when that is acknowledged, a round trip has
    /// passed.
    pub(crate) max_flight: u32,
    pub(crate) round_end: Seq,
    /// The peer's MSS option.
    pub(crate) peer_mss: u16,
    /// Shift of the windows that the peer announces.
    pub(crate) scale: u8,
}

/// The receive sequence variables and what else is known of the way in.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) irs: Seq,
    /// Byte path, step R6. Its `next` is RCV.NXT, less the FIN.
    pub(crate) queue: ReceiveQueue,
    /// One past the last byte that we ever allowed the peer to send. Never moves back.
    pub(crate) edge: Seq,
    /// The acknowledgement number sent last.
    pub(crate) acked: Seq,
    /// The number of the peer's FIN, once seen.
    pub(crate) fin: Option<Seq>,
    /// When data arrived last.
    pub(crate) data_at: Instant,
    /// Payload of the largest wire segment that the peer seems to send.
    pub(crate) mss: u16,
    /// Shift of the windows that we announce.
    pub(crate) scale: u8,
}

/// Whether and when an acknowledgement is due (see `window.rs`).
#[derive(Debug, Default)]
pub(crate) struct AckState {
    pub(crate) due: AckDue,
    /// Acknowledgements to be sent beyond the next, one for each segment beyond a gap, to a peer
    /// that counts them because it has no SACK.
    pub(crate) duplicates: u8,
    /// Acknowledgements still to be sent without delay.
    pub(crate) quick: u8,
    /// The application answers what it gets: acknowledgements ride on the answers.
    pub(crate) interactive: bool,
    /// Segments that were pushed and not full since the last acknowledgement, up to 2.
    pub(crate) pushed: u8,
}

/// How much an acknowledgement is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AckDue {
    #[default]
    No,
    /// When the timer goes off, or on the next segment.
    Delayed,
    Now,
}

/// The state of the timestamps option (RFC 7323 sections 3 and 4).
#[derive(Debug)]
pub(crate) struct Timestamps {
    /// What our clock is ahead of `now`.
    pub(crate) offset: u32,
    /// TS.Recent, and when it was set, in seconds.
    pub(crate) recent: u32,
    pub(crate) recent_at: u32,
}

impl Timestamps {
    /// > RFC 7323 section 5.4: we choose a timestamp clock frequency in the range 1 ms to 1 sec per
    /// > tick.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }
}

/// A reset to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) seq: Seq,
    /// Whether it also acknowledges.
    pub(crate) ack: bool,
}

/// Counts for [`Info`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    pub(crate) retransmits: u32,
    pub(crate) timeouts: u32,
    pub(crate) recoveries: u32,
    pub(crate) sacks_ignored: u32,
}

impl Connection {
    /// Opens actively (RFC 9293 section 3.10.1): in SYN-SENT, the SYN appears in
    /// [`poll_transmit`](Self::poll_transmit). `iss` and `ts_offset` come from an
    /// [`IsnGenerator`](crate::IsnGenerator).
    pub fn connect(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
    ) -> Self {
        let mut conn = Self::new(now, config, link, ports, iss, ts_offset);
        conn.flags.insert(ConnFlags::ACTIVE);
        conn.flags.set(ConnFlags::TIMESTAMPS, conn.config.timestamps);
        conn.flags.set(ConnFlags::SACK, conn.config.sack);
        conn.transition(Event::OpenActive);
        conn
    }

    /// Opens passively, from the `syn` that a listener got: in SYN-RECEIVED, the SYN,ACK appears
    /// in [`poll_transmit`](Self::poll_transmit).
    pub fn accept(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
        syn: &TcpHeader,
    ) -> Self {
        let mut conn = Self::new(now, config, link, ports, iss, ts_offset);
        conn.flags.set(ConnFlags::TIMESTAMPS, conn.config.timestamps);
        conn.flags.set(ConnFlags::SACK, conn.config.sack);
        conn.state = State::Listen;
        conn.take_syn(now, syn);
        conn.transition(Event::Syn);
        conn
    }

    fn new(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
    ) -> Self {
        let first = iss + 1;
        let mut flags = ConnFlags::empty();
        flags.set(ConnFlags::NODELAY, !config.nagle);
        Self {
            state: State::Closed,
            flags,
            snd: Sender {
                iss,
                una: iss,
                nxt: iss,
                wl1: Seq(0),
                wl2: Seq(0),
                window: 0,
                max_window: 0,
                small_end: iss,
                max_flight: 0,
                round_end: first,
                peer_mss: DEFAULT_MSS,
                scale: 0,
            },
            rcv: Receiver {
                irs: Seq(0),
                queue: ReceiveQueue::new(Seq(0)),
                edge: Seq(0),
                acked: Seq(0),
                fin: None,
                data_at: now,
                mss: DEFAULT_MSS.min(link.mss),
                scale: if config.window_scaling { window::scale_for(&config) } else { 0 },
            },
            ack: AckState::default(),
            ts: Timestamps { offset: ts_offset, recent: 0, recent_at: 0 },
            queue: SendQueue::new(first),
            flight: Flight::default(),
            rtt: RttEstimator::new(config.rto_min, config.rto_max),
            congestion: Congestion::new(
                config.congestion,
                u32::from(link.mss),
                config.initial_cwnd,
            ),
            recovery: None,
            timers: Timers::new(),
            retries: 0,
            persist_backoff: 0,
            keepalive_probes: 0,
            error: None,
            soft_error: None,
            reset: None,
            heard_at: now,
            sent_at: now,
            challenge_after: Instant::ZERO,
            stats: Stats::default(),
            config,
            link,
            ports,
        }
    }

    // ---- getters ----

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// What the application can do now.
    pub fn readiness(&self) -> Readiness {
        let closed = self.state == State::Closed;
        let fin = self.flags.contains(ConnFlags::FIN_RECEIVED);
        let mut ready = Readiness::empty();
        ready.set(Readiness::READABLE, self.rcv.queue.queued() > 0);
        ready.set(
            Readiness::READ_CLOSED,
            closed || fin || self.flags.contains(ConnFlags::READ_SHUT),
        );
        ready.set(Readiness::WRITE_CLOSED, closed || self.flags.contains(ConnFlags::FIN_QUEUED));
        ready.set(Readiness::WRITABLE, self.state.can_send() && self.is_writable());
        ready.set(Readiness::ERROR, self.error.is_some());
        ready.set(Readiness::CONNECTED, self.flags.contains(ConnFlags::CONNECTED));
        ready
    }

    /// A sender that was told to wait is called back when a third of the buffer is free, not for
    /// every byte.
    fn is_writable(&self) -> bool {
        let (queued, room) = (u64::from(self.queue.len()), u64::from(self.send_buffer()));
        queued * 3 <= room * 2 && self.queue.has_entry_room()
    }

    /// Whether nothing is left to be done, not even a reset to be sent: it can be removed.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && self.reset.is_none()
    }

    /// The ports.
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes that can be read now.
    pub fn queued_receive(&self) -> usize {
        self.rcv.queue.queued()
    }

    /// Bytes of memory pinned for what was received and not read.
    pub fn pinned_receive(&self) -> usize {
        self.rcv.queue.pinned()
    }

    /// Bytes that can be sent now.
    pub fn send_space(&self) -> usize {
        if !self.state.can_send() || !self.queue.has_entry_room() {
            return 0;
        }
        self.send_buffer().saturating_sub(self.queue.len()) as usize
    }

    /// The send buffer within its limit.
    fn send_buffer(&self) -> u32 {
        self.config.send_buffer.min(MAX_SEND_BUFFER)
    }

    /// Bytes queued that the peer has not acknowledged.
    pub fn queued_send(&self) -> usize {
        self.queue.len() as usize
    }

    /// Why the connection failed, if it did and the application was not told yet.
    pub fn error(&self) -> Option<TcpError> {
        self.error
    }

    /// Tells why the connection failed, once.
    pub fn take_error(&mut self) -> Option<TcpError> {
        self.error.take()
    }

    /// Retransmissions, timeouts and fast recoveries so far; cheaper than [`info`](Self::info).
    pub fn loss_counts(&self) -> [u32; 3] {
        [self.stats.retransmits, self.stats.timeouts, self.stats.recoveries]
    }

    /// A snapshot.
    pub fn info(&self) -> Info {
        Info {
            state: self.state,
            send_mss: self.send_mss().try_into().unwrap_or(u16::MAX),
            recv_mss: self.rcv.mss,
            srtt: self.rtt.srtt().unwrap_or_default(),
            rttvar: self.rtt.rttvar(),
            min_rtt: self.rtt.min().unwrap_or_default(),
            rto: self.rtt.rto(),
            backoff: self.rtt.backoff(),
            congestion: self.congestion.kind(),
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            unacked: self.in_flight(),
            sacked: self.flight.sacked(),
            lost: self.flight.lost(),
            retransmitting: self.flight.retransmitted(),
            unsent: self.unsent(),
            send_window: self.snd.window,
            recv_window: self.recv_window(),
            bytes_acked: self.stats.bytes_acked,
            bytes_received: self.stats.bytes_received,
            retransmits: self.stats.retransmits,
            timeouts: self.stats.timeouts,
            recoveries: self.stats.recoveries,
            sacks_ignored: self.stats.sacks_ignored,
        }
    }

    // ---- what all parts ask ----

    /// RCV.NXT: the next number expected, the peer's FIN counted.
    pub(crate) fn rcv_nxt(&self) -> Seq {
        self.rcv.queue.next() + u32::from(self.flags.contains(ConnFlags::FIN_RECEIVED))
    }

    /// Sequence numbers sent and not cumulatively acknowledged (RFC 5681's FlightSize).
    pub(crate) fn in_flight(&self) -> u32 {
        self.snd.nxt.since(self.snd.una)
    }

    /// Bytes thought to be under way (RFC 6675 section 4).
    pub(crate) fn pipe(&self) -> u32 {
        let gone = self.flight.sacked() + self.flight.lost() + self.emulated_sacks();
        (self.in_flight() + self.flight.retransmitted()).saturating_sub(gone)
    }

    /// Bytes queued that have never been sent.
    pub(crate) fn unsent(&self) -> u32 {
        self.queue.end().saturating_since(self.snd.nxt.max(self.snd.iss + 1))
    }

    /// The MSS that we announce.
    pub(crate) fn announced_mss(&self) -> u16 {
        self.config.max_mss.map_or(self.link.mss, |max| max.min(self.link.mss))
    }

    /// Whether this connection's timestamps option is on.
    pub(crate) fn has_timestamps(&self) -> bool {
        self.flags.contains(ConnFlags::TIMESTAMPS)
    }

    /// Moves to the next state. The table is asked; an event that it does not know is a mistake
    /// of ours and changes nothing.
    pub(crate) fn transition(&mut self, event: Event) {
        match self.state.on(event) {
            Some(next) => self.state = next,
            None => debug_assert!(false, "{event:?} in {}", self.state),
        }
    }

    /// The connection is over, for the application with `error`. What was received stays to be
    /// read; what was to be sent is released.
    pub(crate) fn finish(&mut self, event: Event, error: Option<TcpError>) {
        if self.error.is_none() {
            self.error = error;
        }
        self.transition(event);
        self.queue.clear();
        self.flight.clear();
        self.recovery = None;
        self.timers.stop_all();
        self.ack = AckState::default();
        self.flags.remove(ConnFlags::PROBE_DUE | ConnFlags::FLUSH_DUE);
    }

    /// After work that may have left a queue empty: its memory goes back if that lasts.
    pub(crate) fn consider_shrinking(&mut self, now: Instant) {
        if self.queue.has_heap() || self.flight.has_heap() || self.recovery.is_some() {
            self.timers.set_once(Timer::Shrink, now + self.config.shrink_after);
        }
    }
}

/// Whole seconds of a moment.
pub(crate) fn seconds(now: Instant) -> u32 {
    (now.as_millis() / 1000) as u32
}

#[cfg(test)]
#[path = "tests/connection.rs"]
mod tests;
