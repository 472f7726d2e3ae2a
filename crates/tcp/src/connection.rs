//! What one connection remembers, how it begins, and what it tells.
//!
//! The methods that do the work are filed by direction: `input.rs` and `ack.rs` (segments in),
//! `application.rs` (verbs), `output.rs` (segments out), `timeout.rs`, `icmp.rs`. Nothing takes
//! input and emits output: whatever is due is remembered here until `poll_transmit` asks.
//!
//! An idle connection owns no heap: queues give theirs back, and what only a loss needs is boxed.

use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant, PagePool, PageWriter};

use crate::account::Account;
use crate::assembler::ReceiveQueue;
use crate::config::{Config, LinkLimits};
use crate::congestion::Congestion;
use crate::ecn::EcnFlags;
use crate::error::TcpError;
use crate::fast_open::FastOpen;
use crate::flight::{Flight, Mark};
use crate::header::TcpHeader;
use crate::info::{Info, Readiness};
use crate::limits::DEFAULT_MSS;
use crate::loss::Loss;
use crate::rare::Rare;
use crate::recovery::Recovery;
use crate::rtt::RttEstimator;
use crate::send_queue::SendQueue;
use crate::seq::Seq;
use crate::shared::Shared;
use crate::state::{Event, State};
use crate::timers::{Timer, Timers};
use crate::tuning::Tuning;
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
    /// What it shares with the host's other connections.
    pub shared: &'a mut Shared,
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
    pub(crate) loss: Loss,
    /// Present from the first sign of a loss until the connection falls idle.
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
    /// Present while a handshake with Fast Open lasts.
    pub(crate) fast_open: Option<Box<FastOpen>>,
    /// When a segment arrived last.
    pub(crate) heard_at: Instant,
    /// When data was sent last.
    pub(crate) sent_at: Instant,
    /// Before this, no more answers to segments that make no sense.
    pub(crate) challenge_after: Instant,
    pub(crate) stats: Stats,
    pub(crate) account: Account,
    /// What few connections need.
    pub(crate) rare: Option<Box<Rare>>,
}

bitflags::bitflags! {
    /// What is true of a connection, one bit each.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct ConnFlags: u32 {
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
        /// The device refused something: nothing leaves until something is heard, or a timer goes off
        /// (`refused.rs`).
        const REFUSED = 1 << 14;
        /// The last send said that more follows; cleared by what happens next.
        const MORE = 1 << 16;
        /// A send did not find the room that it wanted.
        const WAITS_FOR_ROOM = 1 << 17;
        /// A segment came since room was last looked for.
        const ACKED = 1 << 18;
        /// The peer has announced an urgent byte.
        const URGENT_IN = 1 << 19;
        /// Urgent data of ours is not acknowledged.
        const URGENT_OUT = 1 << 20;
        /// What it sends was received elsewhere (`forward.rs`).
        const FORWARDS = 1 << 21;
        /// The peer has acknowledged our SYN,ACK, and its data is waited for (`defer.rs`).
        const DEFERRED = 1 << 22;
        // Fast Open (`fast_open/`).
        /// All data of a SYN was taken by the other side.
        const SYN_DATA_ACKED = 1 << 24;
        /// We sent the Fast Open option, or data in the SYN.
        const FAST_OPEN_CLIENT = 1 << 25;
        /// Data flows from SYN-RECEIVED on: a listener took this with Fast Open.
        const FAST_OPEN_SERVER = 1 << 26;
        /// The application has it since before the handshake was complete.
        const ACCEPTED_EARLY = 1 << 27;
        /// The acknowledgement of the SYN,ACK waits for data that the application has ready.
        const WRITE_PENDING = 1 << 28;
        /// Something on the path seems to swallow Fast Open connections.
        const BLACK_HOLE = 1 << 29;
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
    /// Bytes of memory that may be pinned for what is received, as of the last turn: what the host's
    /// other connections leave.
    pub(crate) allowance: u32,
    /// What the buffer has grown to, and up to where the window may be told at present.
    pub(crate) buffer: u32,
    pub(crate) ssthresh: u32,
    /// Present once data has come.
    pub(crate) tuning: Option<Box<Tuning>>,
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
    /// How long an acknowledgement waits, in milliseconds: follows the time between segments. 0
    /// before the first.
    pub(crate) timeout_ms: u16,
    /// Segments that were pushed and not full since the last acknowledgement, up to 2.
    pub(crate) pushed: u8,
    /// What has come twice and is to be reported (RFC 2883).
    pub(crate) twice: Option<Box<(Seq, Seq)>>,
}

/// How much an acknowledgement is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AckDue {
    #[default]
    No,
    /// When the timer goes off, or on the next segment.
    Delayed,
    /// In answer to nonsense, if the host still answers such.
    Challenge,
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

impl Connection {
    /// Whether a SYN of ours may have carried this timestamp: none was sent before `heard_at`, which
    /// is the moment of the beginning until something is heard.
    pub(crate) fn sent_timestamp(&self, now: Instant, value: u32) -> bool {
        let since = self.ts.value(self.heard_at);
        value.wrapping_sub(since) <= self.ts.value(now).wrapping_sub(since)
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
        conn.take_syn(now, syn, 0);
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
        flags.set(ConnFlags::CORK, config.cork);
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
                pushed: first,
                push_sent: first,
                flush_to: first,
                piece: first,
                buffer: 0,
                peer_mss: DEFAULT_MSS,
                scale: 0,
            },
            rcv: Receiver {
                irs: Seq(0),
                queue: ReceiveQueue::new(Seq(0)),
                edge: Seq(0),
                acked: Seq(0),
                fin: None,
                allowance: u32::MAX,
                buffer: 0,
                ssthresh: window::initial(&config),
                tuning: None,
                data_at: now,
                mss: DEFAULT_MSS.min(link.recv_mss),
                scale: if config.window_scaling { window::scale_for(&config) } else { 0 },
            },
            ack: AckState::default(),
            ts: Timestamps { offset: ts_offset, recent: 0, recent_at: 0 },
            queue: SendQueue::new(first),
            flight: Flight::default(),
            rtt: RttEstimator::new(config.rto_min, config.rto_max),
            congestion: Congestion::new(
                config.congestion,
                config.initial_cwnd,
                config.slow_start_exit,
            ),
            loss: Loss::new(first, config.reordering),
            recovery: None,
            timers: Timers::new(),
            retries: 0,
            persist_backoff: 0,
            keepalive_probes: 0,
            error: None,
            soft_error: None,
            reset: None,
            fast_open: None,
            heard_at: now,
            sent_at: now,
            challenge_after: Instant::ZERO,
            stats: Stats::default(),
            account: Account::default(),
            rare: None,
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
        ready.set(Readiness::READABLE, self.is_readable());
        ready.set(Readiness::URGENT, self.has_urgent());
        ready.set(
            Readiness::READ_CLOSED,
            closed || fin || self.flags.contains(ConnFlags::READ_SHUT),
        );
        ready.set(Readiness::WRITE_CLOSED, closed || self.flags.contains(ConnFlags::FIN_QUEUED));
        ready.set(Readiness::WRITABLE, self.takes_data() && self.is_writable());
        ready.set(Readiness::ERROR, self.error.is_some());
        ready.set(Readiness::CONNECTED, self.flags.contains(ConnFlags::CONNECTED));
        ready
    }

    /// Whether as much is queued as the application waits for, or as can come. An urgent byte that is
    /// not in line is none of it.
    fn is_readable(&self) -> bool {
        let urgent = usize::from(self.at_urgent_mark() && !self.config.oob_inline);
        let Some(queued) = self.rcv.queue.queued().checked_sub(urgent).filter(|&n| n > 0) else {
            return false;
        };
        queued >= self.config.recv_lowat as usize
            || self.flags.contains(ConnFlags::FIN_RECEIVED)
            || self.recv_window() <= u32::from(self.rcv.mss)
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

    /// Bytes that can be read now, the end of the stream counted as one once it is all that is left:
    /// what Linux tells beside received data (`TCP_INQ`).
    pub fn queued_receive_and_end(&self) -> usize {
        self.rcv.queue.queued() + usize::from(self.flags.contains(ConnFlags::FIN_RECEIVED))
    }

    /// Bytes queued that were never sent (`SIOCOUTQNSD`).
    pub fn queued_unsent(&self) -> usize {
        // Nothing is left of a connection that ended.
        (self.unsent() as usize).min(self.queued_send())
    }

    /// Bytes that can be read now.
    pub fn queued_receive(&self) -> usize {
        self.rcv.queue.queued()
    }

    /// Bytes of memory pinned for what was received and not read.
    pub fn pinned_receive(&self) -> usize {
        self.rcv.queue.pinned()
    }

    /// Bytes to be charged to the host's budget for what was received and not read, or is held
    /// ([`ReceiveBudget::charge`](crate::ReceiveBudget::charge)): as much, but for pages shared with
    /// other connections.
    pub fn receive_charge(&self) -> usize {
        self.rcv.queue.charge() + self.kept() as usize
    }

    /// Bytes of memory that what is queued to be sent holds, for owners who charge it: where it was
    /// received, its pages are missing for what comes in.
    pub fn send_charge(&self) -> usize {
        self.queue.charge()
    }

    /// So many bytes of memory of what was received and read still wait to be sent on elsewhere: they
    /// count as unread for what is let in and for the window. Whether that is less than it was: then
    /// [`after_release`](Self::after_release) is to be told.
    pub fn set_held(&mut self, bytes: usize) -> bool {
        self.rcv.queue.set_held(bytes)
    }

    /// The sequence number behind the last byte queued to be sent.
    pub fn send_end(&self) -> Seq {
        self.queue.end()
    }

    /// The next sequence number that has never been sent.
    pub fn send_next(&self) -> Seq {
        self.snd.nxt
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
            cwnd: self.congestion.cwnd().saturating_mul(self.send_mss()),
            ssthresh: if self.congestion.has_ssthresh() {
                self.congestion.ssthresh().saturating_mul(self.send_mss())
            } else {
                u32::MAX
            },
            unacked: self.in_flight(),
            sacked: self.flight.bytes(Mark::SACKED),
            lost: self.flight.bytes(Mark::LOST),
            retransmitting: self.flight.bytes(Mark::RETRANSMITTED),
            unsent: self.unsent(),
            send_window: self.snd.window,
            recv_window: self.recv_window(),
            bytes_acked: self.stats.bytes_acked,
            bytes_received: self.stats.bytes_received,
            retransmits: self.stats.retransmits,
            timeouts: self.stats.timeouts,
            recoveries: self.stats.recoveries,
            sacks_ignored: self.stats.sacks_ignored,
            ca_state: self.loss.state,
            cwnd_segments: self.congestion.cwnd(),
            ssthresh_segments: self.congestion.ssthresh(),
            unacked_segments: self.flight.packets(),
            sacked_segments: self.sacked_packets(),
            lost_segments: self.flight.lost(),
            retransmitting_segments: self.flight.retransmitted(),
            reordering: u32::from(self.loss.reordering),
            reord_seen: self.loss.reord_seen,
            delivered: self.loss.delivered,
            delivered_ce: self.loss.delivered_ce,
            dsack_dups: self.loss.dsack_dups,
            ecn: self.has_ecn(),
            ecn_counts: self.ecn_counts(),
            ecn_seen: self.loss.ecn.contains(EcnFlags::SEEN),
            ..self.application_info()
        }
    }

    // ---- what all parts ask ----

    /// Looks at how much memory the host has for what is received: windows open only so far.
    pub(crate) fn note_allowance(&mut self, env: &Env<'_>) {
        self.rcv.allowance = u32::try_from(env.shared.receive.allowance()).unwrap_or(u32::MAX);
    }

    /// RCV.NXT: the next number expected, the peer's FIN counted.
    pub(crate) fn rcv_nxt(&self) -> Seq {
        self.rcv.queue.next() + u32::from(self.flags.contains(ConnFlags::FIN_RECEIVED))
    }

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
    pub(crate) fn unsent(&self) -> u32 {
        self.queue.end().saturating_since(self.next_data())
    }

    /// The number of the first byte that was never sent: the SYN, if that is still to be sent, is none.
    pub(crate) fn next_data(&self) -> Seq {
        let syn = !self.state.is_synchronized() && self.snd.nxt == self.snd.iss;
        self.snd.nxt + u32::from(syn)
    }

    /// The MSS that we announce.
    pub(crate) fn announced_mss(&self) -> u16 {
        self.link.recv_mss.min(self.config.max_mss.unwrap_or(u16::MAX))
    }

    /// The MSS of what we send, as far as it does not depend on the peer.
    pub(crate) fn path_mss(&self) -> u16 {
        self.link.mss.min(self.config.max_mss.unwrap_or(u16::MAX))
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
        self.suspect_lost_start();
        self.queue.clear(self.snd.nxt);
        self.flight.clear();
        self.recovery = None;
        self.give_up_fast_open(event);
        self.rcv.tuning = None;
        self.timers.stop_all();
        self.ack = AckState::default();
        self.flags.remove(ConnFlags::PROBE_DUE | ConnFlags::FLUSH_DUE);
    }

    /// After work that may have left a queue empty: its memory goes back if that lasts.
    pub(crate) fn consider_shrinking(&mut self, now: Instant) {
        let tuning = self.rcv.tuning.is_some();
        if self.queue.has_heap() || self.flight.has_heap() || self.recovery.is_some() || tuning {
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
