//! Byte path, step S3: builds the next segment to send.
//!
//! `poll_transmit` tries in this order: a reset, the handshake, a tail loss probe, lost data, new
//! data, a probe, a bare acknowledgement. Every segment carries the latest acknowledgement, so a
//! bare one is seldom needed.

use pagewire_mem::{FragVec, Instant};

use crate::connection::Connection;
use crate::header::{Flags, TcpHeader};
use crate::inbound::ack::AckDue;
use crate::life::Reset;
use crate::life::state::State;
use crate::options::{SackBlocks, TcpOptions};
use crate::outbound::ecn::EcnFlags;
use crate::outbound::mtu_probe::MtuProbeStep;
use crate::outbound::recovery::RexmitMode;
use crate::outbound::{OutFlags, Outgoing};
use crate::segment::SegmentOut;
use crate::seq::Seq;
use crate::shared::Env;

impl Connection {
    /// The next segment to send, until `None`; then call [`poll_timeout`](Self::poll_timeout).
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

    /// After a segment was sent: whether [`poll_transmit`](Self::poll_transmit) would return
    /// `None`, as nothing is left or the rest waits to become a full segment. Then do not call it.
    #[inline]
    pub fn ends_burst(&mut self, now: Instant) -> bool {
        let quiet = self.inbound.ack.due == AckDue::No && self.out.transfer.recovery.is_none();
        if !quiet {
            return false;
        }
        let unsent = self.out.unsent(&self.path);
        let ends = if unsent == 0 {
            !self.life.resets() && self.has_sent_all()
        } else {
            self.is_coalescing()
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

    /// After a segment was received: whether [`poll_transmit`](Self::poll_transmit) would return `None`, as
    /// everything was sent and an acknowledgement, if any, waits for its timer. Then do not call it.
    #[inline]
    pub fn rests(&mut self, now: Instant) -> bool {
        let rests = self.inbound.ack.due <= AckDue::Delayed
            && matches!(self.path.state(), State::Established | State::CloseWait)
            && self.out.transfer.recovery.is_none()
            && !self.life.resets()
            && self.has_sent_all();
        if rests {
            self.out.check_room(&self.path);
            self.out.note_limit(&self.path, now);
        }
        rests
    }

    fn next_segment(&mut self, env: &mut Env<'_>) -> Option<SegmentOut> {
        let now = env.now;
        self.inbound.note_allowance(env);
        if let Some(reset) = self.life.take_reset() {
            return Some(self.build_reset(now, reset));
        }
        if matches!(self.path.state(), State::SynSent | State::SynReceived)
            && let Some(syn) = self.poll_handshake(now)
        {
            return Some(syn);
        }
        // A listener with Fast Open sends data before the handshake is complete.
        if self.path.state() == State::SynReceived
            && self.path.fast_open_server
            && self.out.transfer.snd.nxt != self.out.transfer.snd.iss
            && let Some(segment) = self.poll_new(now)
        {
            return Some(segment);
        }
        // > RFC 9768 section 3.2.2.1: If an AccECN TCP Client intends to acknowledge the SYN/ACK with a
        // > packet that does not satisfy these conditions (e.g., it has data to include on the ACK), it
        // > SHOULD first send a pure ACK that does satisfy these conditions
        if self.out.transfer.loss.ecn.contains(EcnFlags::REPORT_SYN)
            && self.inbound.ack.due == AckDue::Now
            && self.path.may_acknowledge()
        {
            return Some(self.build_bare(now, self.out.transfer.snd.nxt));
        }
        if self.path.state().may_transmit() && !self.out.flags.contains(OutFlags::REFUSED) {
            let recovery = self.out.transfer.recovery.as_mut();
            if recovery.is_some_and(|r| core::mem::take(&mut r.probe_due))
                && let Some(probe) = self.poll_tail_probe(now)
            {
                return Some(probe);
            }
            // Lost data waits until new data has been tried (RFC 5682 section 3.1 step 2b).
            let recovery = self.out.transfer.recovery.as_ref();
            if recovery.is_some_and(|r| r.resend == RexmitMode::NewFirst) {
                if let Some(segment) = self.poll_new(now) {
                    return Some(segment);
                }
                self.out.transfer.new_data_tried();
            }
            let segment = match self.poll_lost(now) {
                Some(again) => Some(again),
                None => match self.out.probe_mtu(&self.path, now, self.inbound.queue.has_gaps()) {
                    MtuProbeStep::No => self.poll_new(now),
                    MtuProbeStep::Wait => None,
                    MtuProbeStep::Send(probe) => {
                        self.inbound.note_answer(now);
                        Some(self.build_payload(now, probe))
                    }
                },
            };
            if segment.is_some() {
                return segment;
            }
            self.consider_probing(now);
        }
        if self.out.flags.contains(OutFlags::PROBE_DUE) {
            self.out.flags.remove(OutFlags::PROBE_DUE);
            // A segment with an old sequence number and no data, which the peer acknowledges (RFC 9293
            // section 3.8.4: SEG.SEQ = SND.NXT-1). As in Linux it also probes the window.
            return Some(self.build_bare(now, self.out.transfer.snd.una - 1));
        }
        if self.inbound.ack.due == AckDue::Challenge {
            self.inbound.ack.settle_challenge(env.shared.challenges.take(now));
        }
        if self.inbound.ack.due == AckDue::Now && self.path.may_acknowledge() {
            return Some(self.build_bare(now, self.out.transfer.snd.nxt));
        }
        None
    }

    /// The SYN or SYN,ACK.
    fn poll_handshake(&mut self, now: Instant) -> Option<SegmentOut> {
        if self.waits_for_data() && self.out.queue.len() == 0 {
            return None;
        }
        let iss = self.out.transfer.snd.iss;
        let (mut option, mut payload) = (None, FragVec::new());
        if self.out.transfer.send_syn(now)? {
            (option, payload) = self.begin_fast_open(now);
        }
        let sent = self.out.transfer.losses().retransmits;
        let answers = self.path.state() != State::SynSent;
        let mut flags = Flags::SYN | self.out.transfer.ecn_of_syn(&self.path, answers, sent);
        flags.set(Flags::ACK, answers);
        let mut syn = self.build_segment(now, iss, flags, payload);
        syn.header.options.fast_open = option;
        Some(syn)
    }

    /// The next retransmission.
    fn poll_lost(&mut self, now: Instant) -> Option<SegmentOut> {
        if !self.out.transfer.flight.has_lost() {
            return None;
        }
        let mss = self.mss_now(now);
        let (start, len) = self.out.transfer.next_retransmission(&self.path, mss)?;
        let again = self.out.cut_again(start, len, mss)?;
        let end = again.end;
        let segment = self.build_payload(now, again);
        self.out.transfer.on_retransmitted(now, start, end, mss);
        Some(segment)
    }

    /// A segment beyond the congestion window, to get an acknowledgement (RFC 8985 section 7.3).
    fn poll_tail_probe(&mut self, now: Instant) -> Option<SegmentOut> {
        let mss = self.mss_now(now);
        let allowed = self.out.transfer.send_edge().saturating_since(self.out.transfer.snd.nxt);
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
            self.out.transfer.rearm_rto(now);
            return None;
        };
        self.out.transfer.on_probe_sent(now, again);
        Some(segment)
    }

    /// Data that was never sent, and the FIN after it.
    fn poll_new(&mut self, now: Instant) -> Option<SegmentOut> {
        let start = self.out.transfer.snd.nxt;
        let data_end = self.out.queue.end();
        let unsent = data_end.saturating_since(start);
        let fin = self.out.is_closing() && start.le(data_end);
        if unsent == 0 && !fin {
            return None;
        }
        self.out.transfer.restart_after_idle(&self.path, now);
        let most = self.out.transfer.send_mss(&self.path);
        let super_len = self.out.transfer.super_segment_len(&self.path, most);
        if self.autocorks(unsent, most, super_len) {
            return None;
        }
        let mss = if self.has_more_options(now) { self.mss_now(now) } else { most };
        let Some(len) = self.out.plan(&self.path, now, unsent, fin, mss, super_len) else {
            if self.out.transfer.is_held_by_cwnd(unsent, mss) {
                self.out.transfer.validate_cwnd(true);
            }
            return None;
        };
        self.send_new(now, len, mss)
    }

    /// Sends `len` new bytes, and the FIN if it follows.
    fn send_new(&mut self, now: Instant, len: u32, mss: u32) -> Option<SegmentOut> {
        let next = self.out.cut_new(&self.path, len, mss)?;
        let (start, end) = (next.start, next.end);
        let segment = self.build_payload(now, next);
        self.out.on_sent(&self.path, now, start, end, mss);
        self.inbound.note_answer(now);
        Some(segment)
    }

    /// Payload of a full wire segment, if it leaves now.
    fn mss_now(&self, now: Instant) -> u32 {
        if self.has_more_options(now) {
            return self.out.transfer.mss_beside(&self.path, &self.options_of(now, Flags::ACK));
        }
        self.out.transfer.send_mss(&self.path)
    }

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
        let options = self.options_of(now, flags);
        let urgent = self.out.urgent_pointer(seq);
        let mut flags = if urgent.is_some() { flags | Flags::URG } else { flags };
        let mut ecn = 0;
        if !flags.contains(Flags::SYN) {
            let fresh = !payload.is_empty() && seq.ge(self.out.transfer.snd.nxt);
            let pure = payload.is_empty() && !flags.contains(Flags::FIN);
            let (more, bits) = self.out.transfer.ecn_of_segment(now, fresh, pure, &options);
            flags |= more;
            ecn = bits;
        }
        let (ack, window) = if flags.contains(Flags::ACK) {
            let window = if flags.contains(Flags::SYN) {
                self.inbound.announce_first_window(&self.path, self.inbound.rcv_nxt())
            } else {
                self.inbound.announce_window(&self.path, &self.out.transfer.rtt)
            };
            self.inbound.on_ack_sent();
            (self.inbound.rcv_nxt(), window)
        } else if flags.contains(Flags::SYN) {
            (Seq(0), self.inbound.announce_first_window(&self.path, Seq(0)))
        } else {
            (Seq(0), self.inbound.first_window(&self.path) as u16)
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

    fn options_of(&self, now: Instant, flags: Flags) -> TcpOptions {
        let mut options = TcpOptions::default();
        if self.path.timestamps_ok {
            // > RFC 7323 section 3.2: If the ACK bit is not set in the outgoing TCP header, the sender
            // > of that segment SHOULD set the TSecr field to zero.
            let echo = if flags.contains(Flags::ACK) { self.path.timestamps.recent } else { 0 };
            options.timestamps = Some((self.path.timestamps.value(now), echo));
        }
        if flags.contains(Flags::SYN) {
            options.mss = Some(self.path.announced_mss());
            options.sack_permitted = self.path.sack_ok;
            // > RFC 7323 section 2.2: If a Window Scale option was received in the initial <SYN>
            // > segment, then this option MAY be sent in the <SYN,ACK> segment.
            let scales = self.path.config().window_scaling
                && (self.path.state() == State::SynSent || self.path.scaling_ok);
            options.window_scale = scales.then_some(self.inbound.scale);
            if flags.contains(Flags::ACK) {
                self.out.transfer.add_option_to_syn_ack(&self.path, &mut options);
            }
            return options;
        }
        if self.inbound.has_sack_blocks(&self.path) {
            let mut blocks = SackBlocks::default();
            // > RFC 2883 section 4: (2) [...] the D-SACK block [...] is in the first SACK block
            if let Some((left, right)) = self.inbound.dsack() {
                blocks.push(left, right);
            }
            self.inbound.queue.sack_blocks(&mut blocks);
            // Beside timestamps there is room for three.
            let room = if options.timestamps.is_some() { 3 } else { SackBlocks::MAX };
            options.sack = blocks.iter().take(room).collect();
        }
        if self.out.transfer.has_accurate_option(&self.path, now) {
            self.out.transfer.add_accurate_option(&mut options);
        }
        options
    }

    /// Whether the next data segment has more options than timestamps.
    fn has_more_options(&self, now: Instant) -> bool {
        self.inbound.has_sack_blocks(&self.path)
            || self.out.transfer.has_accurate_option(&self.path, now)
    }

    fn build_reset(&mut self, now: Instant, reset: Reset) -> SegmentOut {
        let flags = if reset.ack { Flags::RST | Flags::ACK } else { Flags::RST };
        let (mut options, mut window) = (TcpOptions::default(), 0);
        if reset.ack {
            // As Linux: the window that any other segment would have.
            window = self.inbound.announce_window(&self.path, &self.out.transfer.rtt);
            options = self.options_of(now, Flags::ACK);
            options.sack = SackBlocks::default();
            options.accurate_ecn = None;
        }
        let header = TcpHeader {
            src_port: self.path.ports.local,
            dst_port: self.path.ports.remote,
            seq: reset.seq,
            ack: if reset.ack { self.inbound.rcv_nxt() } else { Seq(0) },
            flags,
            window,
            urgent: 0,
            options,
        };
        SegmentOut { header, payload: FragVec::new(), gso_size: None, ecn: 0 }
    }

    /// A segment that only acknowledges.
    fn build_bare(&mut self, now: Instant, seq: Seq) -> SegmentOut {
        self.build_segment(now, seq, Flags::ACK, FragVec::new())
    }
}
