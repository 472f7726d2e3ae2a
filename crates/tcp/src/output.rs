//! Byte path, step S3: which segment leaves next, and with what in it.
//!
//! `poll_transmit` asks in this order: a reset, the handshake, what is lost, what is new, what
//! may be lost, a probe, a bare acknowledgement. Every segment that leaves carries the latest
//! acknowledgement, so the later questions are often answered by the earlier ones.

use pagewire_mem::{FragVec, Instant};

use crate::connection::{Connection, Env};
use crate::header::{Flags, TcpHeader};
use crate::inbound::{AckDue, window};
use crate::life::Reset;
use crate::life::state::State;
use crate::options::{SackBlocks, TcpOptions};
use crate::outbound::Outgoing;
use crate::outbound::mtu_probe::ProbeStep;
use crate::path::PathFlags;
use crate::segment::SegmentOut;
use crate::seq::Seq;

impl Connection {
    /// The next segment to be sent, until `None`; then look at
    /// [`poll_timeout`](Self::poll_timeout).
    pub fn poll_transmit(&mut self, env: &mut Env<'_>) -> Option<SegmentOut> {
        let segment = self.next_segment(env);
        match &segment {
            Some(segment) => self.out.count_out(segment),
            None => {
                self.out.check_room(&self.path);
                self.out.note_limit(&self.path, env.now);
            }
        }
        segment
    }

    /// After a segment has left: whether [`poll_transmit`](Self::poll_transmit) would be in vain, for
    /// nothing is left or the rest waits to become a full segment. It need not be asked then.
    pub fn ends_burst(&mut self, now: Instant) -> bool {
        let quiet = self.inbound.ack.due() == AckDue::No && !self.out.transfer.is_repairing();
        if !quiet {
            return false;
        }
        let unsent = self.out.unsent(&self.path);
        let ends = if unsent == 0 {
            self.life.reset.is_none() && self.out.has_sent_all(&self.path)
        } else {
            self.is_collecting()
        };
        if !ends {
            return false;
        }
        if unsent > 0
            && self.out.transfer.is_held_by_cwnd(unsent, self.out.transfer.send_mss(&self.path))
        {
            self.out.transfer.validate_cwnd(true);
        }
        self.out.check_room(&self.path);
        self.out.note_limit(&self.path, now);
        true
    }

    fn next_segment(&mut self, env: &mut Env<'_>) -> Option<SegmentOut> {
        let now = env.now;
        self.inbound.note_allowance(env);
        if let Some(reset) = self.life.reset.take() {
            return Some(self.build_reset(now, reset));
        }
        if matches!(self.path.state, State::SynSent | State::SynReceived)
            && let Some(syn) = self.poll_handshake(now)
        {
            return Some(syn);
        }
        if self.out.transfer.sends_before_handshake(&self.path)
            && let Some(segment) = self.poll_new(now)
        {
            return Some(segment);
        }
        if self.out.transfer.tells_syn()
            && self.inbound.ack.due() == AckDue::Now
            && self.path.may_acknowledge()
        {
            return Some(self.build_segment(
                now,
                self.out.transfer.snd().nxt,
                Flags::ACK,
                FragVec::new(),
            ));
        }
        if self.path.state.may_transmit() && !self.out.is_refused() {
            if self.out.transfer.take_probe_due()
                && let Some(probe) = self.poll_tail_probe(now)
            {
                return Some(probe);
            }
            if self.out.transfer.sends_new_first() {
                if let Some(segment) = self.poll_new(now) {
                    return Some(segment);
                }
                self.out.transfer.new_data_tried();
            }
            let segment = match self.poll_lost(now) {
                Some(again) => Some(again),
                None => match self.out.probe_mtu(&self.path, now, self.inbound.queue.has_gaps()) {
                    ProbeStep::No => self.poll_new(now),
                    ProbeStep::Wait => None,
                    ProbeStep::Send(probe) => {
                        self.inbound.note_answer(now);
                        Some(self.build_payload(now, probe))
                    }
                },
            };
            if segment.is_some() {
                return segment;
            }
            self.out.consider_probing(&self.path, now);
        }
        if self.out.take_probe() {
            return Some(self.build_probe(now));
        }
        if self.inbound.ack.due() == AckDue::Challenge {
            self.inbound.ack.settle_challenge(env.shared.challenges.take(now));
        }
        if self.inbound.ack.due() == AckDue::Now && self.path.may_acknowledge() {
            return Some(self.build_segment(
                now,
                self.out.transfer.snd().nxt,
                Flags::ACK,
                FragVec::new(),
            ));
        }
        None
    }

    // ---- what leaves ----

    /// The SYN, or the SYN that also acknowledges.
    fn poll_handshake(&mut self, now: Instant) -> Option<SegmentOut> {
        if self.life.waits_for_data(&self.path) && self.out.queue.len() == 0 {
            return None;
        }
        let iss = self.out.transfer.snd().iss;
        let (mut option, mut payload) = (None, FragVec::new());
        if self.out.transfer.send_syn(now)? {
            (option, payload) = self.begin_fast_open(now);
        }
        let sent = self.out.transfer.stats().retransmits;
        let flags = match self.path.state {
            State::SynSent => Flags::SYN | self.out.transfer.ecn_of_syn(&self.path, false, sent),
            _ => Flags::SYN | Flags::ACK | self.out.transfer.ecn_of_syn(&self.path, true, sent),
        };
        let mut syn = self.build_segment(now, iss, flags, payload);
        syn.header.options.fast_open = option;
        Some(syn)
    }

    /// What was lost and is to be sent again.
    fn poll_lost(&mut self, now: Instant) -> Option<SegmentOut> {
        if !self.out.transfer.flight().has_lost() {
            return None;
        }
        let mss = self.mss_now(now);
        let (start, len) = self.out.transfer.next_retransmission(&self.path, mss)?;
        self.send_again(now, start, len, mss)
    }

    /// One segment, new or the last again, whatever the congestion window says: somebody must
    /// answer (RFC 8985 section 7.3).
    fn poll_tail_probe(&mut self, now: Instant) -> Option<SegmentOut> {
        let mss = self.mss_now(now);
        let allowed = self.out.transfer.send_edge().saturating_since(self.out.transfer.snd().nxt);
        let fresh = self.out.unsent(&self.path).min(mss);
        let probe = if fresh > 0 && allowed >= fresh {
            self.send_new(now, fresh, mss).map(|segment| (segment, None))
        } else {
            self.out.transfer.probe_again().and_then(|(start, len)| {
                let again = self.out.cut_again(start, len, mss)?;
                let end = again.end;
                Some((self.build_payload(now, again), Some((start, end))))
            })
        };
        let Some((segment, again)) = probe else {
            self.out.transfer.rearm_timeout(now);
            return None;
        };
        self.out.transfer.on_probe_sent(now, again);
        Some(segment)
    }

    fn send_again(&mut self, now: Instant, start: Seq, len: u32, mss: u32) -> Option<SegmentOut> {
        let again = self.out.cut_again(start, len, mss)?;
        let end = again.end;
        let segment = self.build_payload(now, again);
        self.out.transfer.on_retransmitted(now, start, end, mss);
        Some(segment)
    }

    /// What was never sent: data, and the FIN behind it.
    fn poll_new(&mut self, now: Instant) -> Option<SegmentOut> {
        let start = self.out.transfer.snd().nxt;
        let data_end = self.out.queue.end();
        let unsent = data_end.saturating_since(start);
        let fin = self.out.is_closing() && start.le(data_end);
        if unsent == 0 && !fin {
            return None;
        }
        self.out.transfer.restart_after_idle(&self.path, now);
        let most = self.out.transfer.send_mss(&self.path);
        let piece = self.out.transfer.piece(&self.path, most);
        if self.out.gathers(&self.path, unsent, most, piece) {
            return None;
        }
        let mss = if self.has_more_options() { self.mss_now(now) } else { most };
        let Some(len) = self.out.plan(&self.path, now, unsent, fin, mss, piece) else {
            if self.out.transfer.is_held_by_cwnd(unsent, mss) {
                self.out.transfer.validate_cwnd(true);
            }
            return None;
        };
        self.send_new(now, len, mss)
    }

    /// Sends `len` bytes that were never sent, and the FIN if it follows.
    fn send_new(&mut self, now: Instant, len: u32, mss: u32) -> Option<SegmentOut> {
        let next = self.out.cut_new(&self.path, len, mss)?;
        let (start, end) = (next.start, next.end);
        let segment = self.build_payload(now, next);
        self.out.on_sent(&self.path, now, start, end, mss);
        self.inbound.note_answer(now);
        Some(segment)
    }

    /// Payload of a full wire segment that left now.
    fn mss_now(&self, now: Instant) -> u32 {
        if self.has_more_options() {
            return self.out.transfer.mss_beside(&self.path, &self.options(now, Flags::ACK, true));
        }
        self.out.transfer.send_mss(&self.path)
    }

    // ---- headers ----

    fn build_payload(&mut self, now: Instant, next: Outgoing) -> SegmentOut {
        let mut segment = self.build_segment(now, next.start, next.flags, next.payload);
        if next.len > next.mss {
            segment.gso_size = Some(next.mss as u16);
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
        let options = self.options(now, flags, !payload.is_empty());
        let urgent = self.out.urgent_pointer(seq);
        let mut flags = if urgent.is_some() { flags | Flags::URG } else { flags };
        let mut ecn = 0;
        if flags.contains(Flags::SYN) {
            self.out.transfer.note_told(&options);
        } else {
            let fresh = !payload.is_empty() && seq.ge(self.out.transfer.snd().nxt);
            let pure = payload.is_empty() && !flags.contains(Flags::FIN);
            let (more, bits) = self.out.transfer.ecn_of_segment(fresh, pure, &options);
            flags |= more;
            ecn = bits;
        }
        let (ack, window) = if flags.contains(Flags::ACK) {
            let window = if flags.contains(Flags::SYN) {
                self.inbound.announce_first_window(&self.path, self.inbound.rcv_nxt())
            } else {
                self.inbound.announce_window(&self.path, self.out.transfer.rtt())
            };
            self.inbound.on_ack_sent();
            (self.inbound.rcv_nxt(), window)
        } else if flags.contains(Flags::SYN) {
            (Seq(0), self.inbound.announce_first_window(&self.path, Seq(0)))
        } else {
            (Seq(0), window::initial(&self.path.config) as u16)
        };
        let header = TcpHeader {
            src_port: self.path.ports.local,
            dst_port: self.path.ports.remote,
            seq,
            ack,
            flags,
            window,
            urgent: urgent.unwrap_or(0),
            options,
        };
        SegmentOut { header, payload, gso_size: None, ecn }
    }

    /// The options of a segment; `data`: it carries some.
    fn options(&self, now: Instant, flags: Flags, data: bool) -> TcpOptions {
        let mut options = TcpOptions::default();
        if self.path.has_timestamps() {
            // > RFC 7323 section 3.2: If the ACK bit is not set in the outgoing TCP header, the sender
            // > of that segment SHOULD set the TSecr field to zero.
            let echo = if flags.contains(Flags::ACK) { self.path.ts.recent } else { 0 };
            options.timestamps = Some((self.path.ts.value(now), echo));
        }
        if flags.contains(Flags::SYN) {
            options.mss = Some(self.path.announced_mss());
            options.sack_permitted = self.path.flags.contains(PathFlags::SACK);
            options.window_scale = self.path.offers_scale().then_some(self.inbound.scale());
        } else if self.inbound.tells_blocks(&self.path) {
            let mut blocks = SackBlocks::new();
            // > RFC 2883 section 4: (2) [...] the D-SACK block [...] is in the first SACK block
            if let Some((left, right)) = self.inbound.twice() {
                blocks.push(left, right);
            }
            self.inbound.queue.sack_blocks(&mut blocks);
            // Beside timestamps there is room for three.
            let room = if options.timestamps.is_some() { 3 } else { SackBlocks::MAX };
            options.sack = blocks.iter().take(room).collect();
        }
        if self.out.transfer.tells_bytes(data) {
            self.out.transfer.add_accurate_option(&mut options);
        }
        options
    }

    /// Whether the next data segment has options that others have not.
    fn has_more_options(&self) -> bool {
        self.inbound.tells_blocks(&self.path) || self.out.transfer.tells_bytes(true)
    }

    /// An old sequence number and no data: it is not acceptable, so the peer answers with an
    /// acknowledgement (RFC 9293 section 3.8.4: SEG.SEQ = SND.NXT-1). As in Linux it asks about the
    /// window too.
    fn build_probe(&mut self, now: Instant) -> SegmentOut {
        self.build_segment(now, self.out.transfer.snd().una - 1, Flags::ACK, FragVec::new())
    }

    fn build_reset(&mut self, now: Instant, reset: Reset) -> SegmentOut {
        let flags = if reset.ack { Flags::RST | Flags::ACK } else { Flags::RST };
        let mut options = TcpOptions::default();
        if reset.ack {
            options = self.options(now, Flags::ACK, false);
            options.sack = SackBlocks::new();
            options.accurate_ecn = None;
        }
        let header = TcpHeader {
            src_port: self.path.ports.local,
            dst_port: self.path.ports.remote,
            seq: reset.seq,
            ack: if reset.ack { self.inbound.rcv_nxt() } else { Seq(0) },
            flags,
            window: 0,
            urgent: 0,
            options,
        };
        SegmentOut { header, payload: FragVec::new(), gso_size: None, ecn: 0 }
    }
}
