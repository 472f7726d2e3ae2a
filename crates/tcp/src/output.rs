//! Byte path, step S3: which segment leaves next, and with what in it.
//!
//! `poll_transmit` asks in this order: a reset, the handshake, what is lost, what is new, what
//! may be lost, a probe, a bare acknowledgement. Every segment that leaves carries the latest
//! acknowledgement, so the later questions are often answered by the earlier ones.

use pagewire_mem::{FragVec, Instant, MAX_FRAGS};

use crate::connection::{AckDue, ConnFlags, Connection, Env, Reset};
use crate::header::{Flags, TcpHeader};
use crate::limits::{MAX_SUPER_SEGMENTS, MIN_SEND_MSS};
use crate::options::{SackBlocks, TcpOptions};
use crate::segment::SegmentOut;
use crate::seq::Seq;
use crate::state::State;
use crate::timers::Timer;
use crate::window;

/// Bytes that the timestamps option takes with its fill.
const TIMESTAMPS_LEN: u32 = 12;

impl Connection {
    /// The next segment to be sent, until `None`; then look at
    /// [`poll_timeout`](Self::poll_timeout).
    pub fn poll_transmit(&mut self, env: &mut Env<'_>) -> Option<SegmentOut> {
        let now = env.now;
        if let Some(reset) = self.reset.take() {
            return Some(self.build_reset(now, reset));
        }
        if matches!(self.state, State::SynSent | State::SynReceived)
            && let Some(syn) = self.poll_handshake(now)
        {
            return Some(syn);
        }
        if self.state.may_transmit() {
            let segment = self
                .poll_lost(now)
                .or_else(|| self.poll_new(now))
                .or_else(|| self.poll_speculative(now));
            if segment.is_some() {
                return segment;
            }
            self.consider_probing(now);
        }
        if self.flags.contains(ConnFlags::PROBE_DUE) {
            self.flags.remove(ConnFlags::PROBE_DUE);
            return Some(self.build_probe(now));
        }
        if self.ack.due == AckDue::Now && self.may_acknowledge() {
            return Some(self.build_segment(now, self.snd.nxt, Flags::ACK, FragVec::new()));
        }
        None
    }

    fn may_acknowledge(&self) -> bool {
        self.state.is_synchronized() || self.state == State::SynReceived
    }

    // ---- what leaves ----

    /// The SYN, or the SYN that also acknowledges.
    fn poll_handshake(&mut self, now: Instant) -> Option<SegmentOut> {
        let (iss, first) = (self.snd.iss, self.snd.iss + 1);
        if self.snd.nxt == iss {
            self.flight.push(iss, first, now);
            self.snd.nxt = first;
        } else {
            let again = self.flight.next_lost(iss)?;
            self.flight.on_retransmit(again.start, again.end, now);
            self.stats.retransmits += 1;
        }
        self.timers.set_once(Timer::Retransmit, now + self.rtt.rto());
        let flags = match self.state {
            State::SynSent => Flags::SYN,
            _ => Flags::SYN | Flags::ACK,
        };
        Some(self.build_segment(now, iss, flags, FragVec::new()))
    }

    /// What was lost and is to be sent again.
    fn poll_lost(&mut self, now: Instant) -> Option<SegmentOut> {
        if !self.flight.has_lost() {
            return None;
        }
        let mss = self.mss_beside(&self.options(now, Flags::ACK));
        let (start, len) = self.next_retransmission(mss)?;
        self.send_again(now, start, len, mss)
    }

    /// What may have been lost, when nothing else can be sent.
    fn poll_speculative(&mut self, now: Instant) -> Option<SegmentOut> {
        self.recovery.as_ref()?;
        let mss = self.mss_beside(&self.options(now, Flags::ACK));
        let (start, len) = self.next_speculative(mss)?;
        self.send_again(now, start, len, mss)
    }

    fn send_again(&mut self, now: Instant, start: Seq, len: u32, mss: u32) -> Option<SegmentOut> {
        let data_end = self.queue.end();
        let data = data_end.saturating_since(start).min(len);
        let (payload, taken) = self.queue.slice(start, data);
        let mut flags = Flags::ACK;
        let mut end = start + taken;
        if end == data_end {
            flags |= Flags::PSH;
            if taken < len {
                flags |= Flags::FIN;
                end += 1;
            }
        }
        if start == end {
            debug_assert!(false, "nothing to send again at {start}");
            return None;
        }
        self.on_retransmitted(now, start, end);
        Some(self.build_payload(now, start, flags, payload, taken, mss))
    }

    /// What was never sent: data, and the FIN behind it.
    fn poll_new(&mut self, now: Instant) -> Option<SegmentOut> {
        let start = self.snd.nxt;
        let data_end = self.queue.end();
        let unsent = data_end.saturating_since(start);
        let fin = self.flags.contains(ConnFlags::FIN_QUEUED) && start.le(data_end);
        if unsent == 0 && !fin {
            return None;
        }
        self.restart_after_idle(now);
        let mss = self.mss_beside(&self.options(now, Flags::ACK));
        let len = self.plan(unsent, fin, mss)?;
        let (payload, taken) = self.queue.slice(start, len);

        let mut flags = Flags::ACK;
        let mut end = start + taken;
        let allowed = (self.snd.una + self.snd.window).saturating_since(start);
        if end == data_end {
            flags |= Flags::PSH;
            if fin && (taken < allowed || self.flags.contains(ConnFlags::FLUSH_DUE)) {
                flags |= Flags::FIN;
                end += 1;
            }
        } else if payload.len() == MAX_FRAGS {
            // The packet is full before the segment is. Linux pushes it.
            flags |= Flags::PSH;
        }
        if end == start {
            return None;
        }
        if taken % mss != 0 {
            self.snd.small_end = end;
        }
        self.on_sent(now, start, end);
        Some(self.build_payload(now, start, flags, payload, taken, mss))
    }

    fn on_sent(&mut self, now: Instant, start: Seq, end: Seq) {
        self.flight.push(start, end, now);
        self.snd.nxt = end;
        self.snd.max_flight = self.snd.max_flight.max(self.in_flight());
        self.timers.set_once(Timer::Retransmit, now + self.rtt.rto());
        self.timers.stop(Timer::Persist);
        self.persist_backoff = 0;
        self.flags.remove(ConnFlags::FLUSH_DUE);
        self.sent_at = now;
        // An answer to what has just arrived: the acknowledgements of this application's peer can
        // ride on answers from now on.
        if self.stats.bytes_received > 0
            && now.saturating_since(self.rcv.data_at) < self.config.delayed_ack
        {
            self.ack.interactive = true;
        }
    }

    /// > RFC 5681 section 4.1: a TCP SHOULD set cwnd to no more than RW before beginning
    /// > transmission if the TCP has not sent data in an interval exceeding the retransmission
    /// > timeout.
    fn restart_after_idle(&mut self, now: Instant) {
        if !self.flight.is_empty() || !self.config.slow_start_after_idle {
            return;
        }
        let (idle, rto) = (now.saturating_since(self.sent_at), self.rtt.rto());
        if idle > rto {
            self.congestion.on_restart_after_idle(now, idle, rto);
            self.sent_at = now;
        }
    }

    // ---- how much of it ----

    /// How many of the `unsent` bytes leave in the next segment; `Some(0)` is a FIN alone.
    fn plan(&self, unsent: u32, fin: bool, mss: u32) -> Option<u32> {
        let flush = self.flags.contains(ConnFlags::FLUSH_DUE);
        let allowed = (self.snd.una + self.snd.window).saturating_since(self.snd.nxt);
        if unsent == 0 {
            // As Linux: the last FIN does not wait for the congestion window.
            return (allowed > 0 || flush).then_some(0);
        }
        let pipe = self.pipe();
        let mut room = self.congestion.cwnd().saturating_sub(pipe);
        if pipe == 0 {
            // Whatever the window has shrunk to: one segment keeps things going.
            room = room.max(mss);
        }
        let usable = room.min(allowed);
        let full = self.super_payload(mss);
        let wanted = unsent.min(full);
        // > RFC 9293 section 3.8.6.2.1: Send data: (1) if a maximum-sized segment can be sent, i.e.,
        // > if: min(D,U) >= Eff.snd.MSS; (2) or if the data is pushed and all queued data can be
        // > sent now [...] (4) or if the override timeout occurs.
        let len = if usable >= wanted {
            wanted
        } else if flush && usable > 0 {
            usable.min(mss)
        } else {
            usable - usable % mss
        };
        if len == 0 || (len < wanted && self.waits_for_more(len, full, pipe)) {
            return None;
        }
        // > RFC 9293 section 3.7.4: If there is unacknowledged data (i.e., SND.NXT > SND.UNA), then
        // > the sending TCP endpoint buffers all user data (regardless of the PSH bit) until the
        // > outstanding data has been acknowledged or until the TCP endpoint can send a full-sized
        // > segment
        let partial = len % mss;
        if len == unsent && partial > 0 && !fin && !flush && self.holds_back_small() {
            return (len > partial).then_some(len - partial);
        }
        Some(len)
    }

    /// Whether a segment that is not full waits. Nagle's algorithm in Minshall's variant, as in
    /// Linux: it waits for small segments only, not for full ones.
    fn holds_back_small(&self) -> bool {
        if self.flags.contains(ConnFlags::CORK) {
            return true;
        }
        !self.flags.contains(ConnFlags::NODELAY) && self.snd.small_end.gt(self.snd.una)
    }

    /// Whether a super-frame that the windows cut short waits for the next acknowledgement to make
    /// it longer: it is worth sending at a third of the window, as in Linux. Something is under
    /// way, so an acknowledgement will come.
    fn waits_for_more(&self, len: u32, full: u32, pipe: u32) -> bool {
        let window = self.congestion.cwnd().min(self.snd.window);
        pipe > 0 && self.recovery.is_none() && len < full.min(window / 3)
    }

    /// Nothing is under way and something cannot leave: only a timer can get things going again.
    fn consider_probing(&mut self, now: Instant) {
        let waiting = self.flight.is_empty()
            && (self.unsent() > 0
                || self.flags.contains(ConnFlags::FIN_QUEUED) && self.snd.nxt.le(self.queue.end()));
        if waiting {
            self.timers.set_once(Timer::Persist, now + self.persist_interval());
        } else {
            self.timers.stop(Timer::Persist);
        }
    }

    /// Payload of the longest super-frame, in whole segments.
    pub(crate) fn super_payload(&self, mss: u32) -> u32 {
        let max = self.link.max_super_payload;
        if max <= u32::from(self.link.mss) {
            return mss;
        }
        let max = max.min(mss.saturating_mul(MAX_SUPER_SEGMENTS));
        (max - max % mss.max(1)).max(mss)
    }

    /// Payload and options of a full wire segment.
    ///
    /// > RFC 9293 section 3.7.1: Eff.snd.MSS = min(SendMSS+20, MMS_S) - TCPhdrsize - IPoptionsize
    fn base_mss(&self) -> u32 {
        let mss = u32::from(self.announced_mss().min(self.snd.peer_mss));
        // As Linux: at most half of the largest window that the peer ever offered, or the window
        // could never be filled with full segments.
        let window = self.snd.max_window;
        let bound =
            if window > u32::from(crate::limits::DEFAULT_MSS) { window / 2 } else { window };
        let bound = if window == 0 { mss } else { bound.max(u32::from(MIN_SEND_MSS)) };
        mss.min(bound).max(u32::from(MIN_SEND_MSS))
    }

    /// Payload of a full wire segment, with the options that are always there.
    pub(crate) fn send_mss(&self) -> u32 {
        let options = if self.has_timestamps() { TIMESTAMPS_LEN } else { 0 };
        self.base_mss().saturating_sub(options).max(1)
    }

    /// Payload of a full wire segment with these options.
    fn mss_beside(&self, options: &TcpOptions) -> u32 {
        self.base_mss().saturating_sub(options.len() as u32).max(1)
    }

    // ---- headers ----

    fn build_payload(
        &mut self,
        now: Instant,
        seq: Seq,
        flags: Flags,
        payload: FragVec,
        len: u32,
        mss: u32,
    ) -> SegmentOut {
        let mut segment = self.build_segment(now, seq, flags, payload);
        if len > mss {
            segment.gso_size = Some(mss as u16);
        }
        segment
    }

    /// A segment with the latest acknowledgement and window.
    fn build_segment(
        &mut self,
        now: Instant,
        seq: Seq,
        flags: Flags,
        payload: FragVec,
    ) -> SegmentOut {
        let options = self.options(now, flags);
        let (ack, window) = if flags.contains(Flags::ACK) {
            let window = if flags.contains(Flags::SYN) {
                window::initial(&self.config) as u16
            } else {
                self.announce_window()
            };
            self.on_ack_sent();
            (self.rcv_nxt(), window)
        } else {
            (Seq(0), window::initial(&self.config) as u16)
        };
        let header = TcpHeader {
            src_port: self.ports.local,
            dst_port: self.ports.remote,
            seq,
            ack,
            flags,
            window,
            urgent: 0,
            options,
        };
        SegmentOut { header, payload, gso_size: None, ecn: 0 }
    }

    fn options(&self, now: Instant, flags: Flags) -> TcpOptions {
        let mut options = TcpOptions::default();
        if self.has_timestamps() {
            // > RFC 7323 section 3.2: If the ACK bit is not set in the outgoing TCP header, the sender
            // > of that segment SHOULD set the TSecr field to zero.
            let echo = if flags.contains(Flags::ACK) { self.ts.recent } else { 0 };
            options.timestamps = Some((self.ts.value(now), echo));
        }
        if flags.contains(Flags::SYN) {
            options.mss = Some(self.announced_mss());
            options.sack_permitted = self.flags.contains(ConnFlags::SACK);
            options.window_scale = self.offers_scale().then_some(self.rcv.scale);
        } else if self.flags.contains(ConnFlags::SACK) && self.rcv.queue.has_gaps() {
            let mut blocks = SackBlocks::new();
            self.rcv.queue.sack_blocks(&mut blocks);
            // Beside timestamps there is room for three.
            let room = if options.timestamps.is_some() { 3 } else { SackBlocks::MAX };
            options.sack = blocks.iter().take(room).collect();
        }
        options
    }

    /// > RFC 7323 section 2.2: If a Window Scale option was received in the initial <SYN> segment,
    /// > then this option MAY be sent in the <SYN,ACK> segment.
    fn offers_scale(&self) -> bool {
        self.config.window_scaling
            && (self.state == State::SynSent || self.flags.contains(ConnFlags::SCALING))
    }

    /// An old sequence number and no data: it is not acceptable, so the peer answers with an
    /// acknowledgement (RFC 9293 section 3.8.4: SEG.SEQ = SND.NXT-1). As in Linux it asks about the
    /// window too.
    fn build_probe(&mut self, now: Instant) -> SegmentOut {
        self.build_segment(now, self.snd.una - 1, Flags::ACK, FragVec::new())
    }

    fn build_reset(&mut self, now: Instant, reset: Reset) -> SegmentOut {
        let flags = if reset.ack { Flags::RST | Flags::ACK } else { Flags::RST };
        let mut options = TcpOptions::default();
        if reset.ack {
            options = self.options(now, Flags::ACK);
            options.sack = SackBlocks::new();
        }
        let header = TcpHeader {
            src_port: self.ports.local,
            dst_port: self.ports.remote,
            seq: reset.seq,
            ack: if reset.ack { self.rcv_nxt() } else { Seq(0) },
            flags,
            window: 0,
            urgent: 0,
            options,
        };
        SegmentOut { header, payload: FragVec::new(), gso_size: None, ecn: 0 }
    }
}
