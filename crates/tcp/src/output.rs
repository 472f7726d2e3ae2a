//! Byte path, step S3: builds the next segment to send.
//!
//! `poll_transmit` tries in this order: a reset, the handshake, a tail loss probe, lost data, new
//! data, a probe, a bare acknowledgement. Every segment carries the latest acknowledgement, so a
//! bare one is seldom needed.

use pagewire_mem::{FragVec, Instant};

use crate::connection::Connection;
use crate::header::{Flags, TcpHeader};
use crate::inbound::AckDue;
use crate::life::Reset;
use crate::life::fast_open::client;
use crate::life::state::State;
use crate::options::{SackBlocks, TcpOptions};
use crate::outbound::Outgoing;
use crate::outbound::mtu_probe::ProbeStep;
use crate::outbound::recovery::{probe, timer};
use crate::segment::SegmentOut;
use crate::seq::Seq;
use crate::shared::Env;

impl Connection {
    /// The next segment to send, until `None`; then call [`poll_timeout`](Self::poll_timeout).
    pub fn poll_transmit(&mut self, env: &mut Env<'_>) -> Option<SegmentOut> {
        let segment = next_segment(self, env);
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
        let quiet = self.inbound.ack.due() == AckDue::No && !self.out.transfer.is_repairing();
        if !quiet {
            return false;
        }
        let unsent = self.out.unsent(&self.path);
        let ends = if unsent == 0 {
            !self.life.owes_reset() && self.out.has_sent_all(&self.path)
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
}

fn next_segment(conn: &mut Connection, env: &mut Env<'_>) -> Option<SegmentOut> {
    let now = env.now;
    conn.inbound.note_allowance(env);
    if let Some(reset) = conn.life.take_reset() {
        return Some(build_reset(conn, now, reset));
    }
    if matches!(conn.path.state(), State::SynSent | State::SynReceived)
        && let Some(syn) = poll_handshake(conn, now)
    {
        return Some(syn);
    }
    if conn.out.transfer.sends_before_handshake(&conn.path)
        && let Some(segment) = poll_new(conn, now)
    {
        return Some(segment);
    }
    if conn.out.transfer.tells_syn()
        && conn.inbound.ack.due() == AckDue::Now
        && conn.path.may_acknowledge()
    {
        return Some(build_ack(conn, now));
    }
    if conn.path.state().may_transmit() && !conn.out.is_refused() {
        if probe::take_probe_due(&mut conn.out.transfer)
            && let Some(probe) = poll_tail_probe(conn, now)
        {
            return Some(probe);
        }
        if conn.out.transfer.sends_new_first() {
            if let Some(segment) = poll_new(conn, now) {
                return Some(segment);
            }
            conn.out.transfer.new_data_tried();
        }
        let segment = match poll_lost(conn, now) {
            Some(again) => Some(again),
            None => match conn.out.probe_mtu(&conn.path, now, conn.inbound.queue.has_gaps()) {
                ProbeStep::No => poll_new(conn, now),
                ProbeStep::Wait => None,
                ProbeStep::Send(probe) => {
                    conn.inbound.note_answer(now);
                    Some(build_payload(conn, now, probe))
                }
            },
        };
        if segment.is_some() {
            return segment;
        }
        conn.out.consider_probing(&conn.path, now);
    }
    if conn.out.take_probe() {
        return Some(build_probe(conn, now));
    }
    if conn.inbound.ack.due() == AckDue::Challenge {
        conn.inbound.ack.settle_challenge(env.shared.challenges.take(now));
    }
    if conn.inbound.ack.due() == AckDue::Now && conn.path.may_acknowledge() {
        return Some(build_ack(conn, now));
    }
    None
}

/// The SYN or SYN,ACK.
fn poll_handshake(conn: &mut Connection, now: Instant) -> Option<SegmentOut> {
    if conn.life.waits_for_data(&conn.path) && conn.out.queue.len() == 0 {
        return None;
    }
    let iss = conn.out.transfer.snd().iss;
    let (mut option, mut payload) = (None, FragVec::new());
    if conn.out.transfer.send_syn(now)? {
        (option, payload) = client::begin_fast_open(conn, now);
    }
    let sent = conn.out.transfer.stats().retransmits;
    let flags = match conn.path.state() {
        State::SynSent => Flags::SYN | conn.out.transfer.ecn_of_syn(&conn.path, false, sent),
        _ => Flags::SYN | Flags::ACK | conn.out.transfer.ecn_of_syn(&conn.path, true, sent),
    };
    let mut syn = build_segment(conn, now, iss, flags, payload);
    syn.header.options.fast_open = option;
    Some(syn)
}

/// The next retransmission.
fn poll_lost(conn: &mut Connection, now: Instant) -> Option<SegmentOut> {
    if !conn.out.transfer.flight().has_lost() {
        return None;
    }
    let mss = mss_now(conn, now);
    let (start, len) = conn.out.transfer.next_retransmission(&conn.path, mss)?;
    send_again(conn, now, start, len, mss)
}

/// A segment beyond the congestion window, to get an acknowledgement (RFC 8985 section 7.3).
fn poll_tail_probe(conn: &mut Connection, now: Instant) -> Option<SegmentOut> {
    let mss = mss_now(conn, now);
    let allowed = conn.out.transfer.send_edge().saturating_since(conn.out.transfer.snd().nxt);
    let fresh = conn.out.unsent(&conn.path).min(mss);
    let probe = if fresh > 0 && allowed >= fresh {
        send_new(conn, now, fresh, mss).map(|segment| (segment, None))
    } else {
        probe::probe_again(&conn.out.transfer).and_then(|(start, len)| {
            let again = conn.out.cut_again(start, len, mss)?;
            let end = again.end;
            Some((build_payload(conn, now, again), Some((start, end))))
        })
    };
    let Some((segment, again)) = probe else {
        timer::rearm_timeout(&mut conn.out.transfer, now);
        return None;
    };
    probe::on_probe_sent(&mut conn.out.transfer, now, again);
    Some(segment)
}

fn send_again(
    conn: &mut Connection,
    now: Instant,
    start: Seq,
    len: u32,
    mss: u32,
) -> Option<SegmentOut> {
    let again = conn.out.cut_again(start, len, mss)?;
    let end = again.end;
    let segment = build_payload(conn, now, again);
    conn.out.transfer.on_retransmitted(now, start, end, mss);
    Some(segment)
}

/// Data that was never sent, and the FIN after it.
fn poll_new(conn: &mut Connection, now: Instant) -> Option<SegmentOut> {
    let start = conn.out.transfer.snd().nxt;
    let data_end = conn.out.queue.end();
    let unsent = data_end.saturating_since(start);
    let fin = conn.out.is_closing() && start.le(data_end);
    if unsent == 0 && !fin {
        return None;
    }
    conn.out.transfer.restart_after_idle(&conn.path, now);
    let most = conn.out.transfer.send_mss(&conn.path);
    let super_len = conn.out.transfer.super_segment_len(&conn.path, most);
    if conn.out.autocorks(&conn.path, unsent, most, super_len) {
        return None;
    }
    let mss = if has_more_options(conn, now) { mss_now(conn, now) } else { most };
    let Some(len) = conn.out.plan(&conn.path, now, unsent, fin, mss, super_len) else {
        if conn.out.transfer.is_held_by_cwnd(unsent, mss) {
            conn.out.transfer.validate_cwnd(true);
        }
        return None;
    };
    send_new(conn, now, len, mss)
}

/// Sends `len` new bytes, and the FIN if it follows.
fn send_new(conn: &mut Connection, now: Instant, len: u32, mss: u32) -> Option<SegmentOut> {
    let next = conn.out.cut_new(&conn.path, len, mss)?;
    let (start, end) = (next.start, next.end);
    let segment = build_payload(conn, now, next);
    conn.out.on_sent(&conn.path, now, start, end, mss);
    conn.inbound.note_answer(now);
    Some(segment)
}

/// Payload of a full wire segment, if it leaves now.
fn mss_now(conn: &Connection, now: Instant) -> u32 {
    if has_more_options(conn, now) {
        return conn.out.transfer.mss_beside(&conn.path, &options_of(conn, now, Flags::ACK));
    }
    conn.out.transfer.send_mss(&conn.path)
}

fn build_payload(conn: &mut Connection, now: Instant, next: Outgoing) -> SegmentOut {
    let mut segment = build_segment(conn, now, next.start, next.flags, next.payload);
    if next.len > next.mss {
        segment.gso_size = Some(next.mss as u16);
    }
    segment
}

/// A segment with the latest acknowledgement and window.
fn build_segment(
    conn: &mut Connection,
    now: Instant,
    seq: Seq,
    flags: Flags,
    payload: FragVec,
) -> SegmentOut {
    let options = options_of(conn, now, flags);
    let urgent = conn.out.urgent_pointer(seq);
    let mut flags = if urgent.is_some() { flags | Flags::URG } else { flags };
    let mut ecn = 0;
    if !flags.contains(Flags::SYN) {
        let fresh = !payload.is_empty() && seq.ge(conn.out.transfer.snd().nxt);
        let pure = payload.is_empty() && !flags.contains(Flags::FIN);
        let (more, bits) = conn.out.transfer.ecn_of_segment(now, fresh, pure, &options);
        flags |= more;
        ecn = bits;
    }
    let (ack, window) = if flags.contains(Flags::ACK) {
        let window = if flags.contains(Flags::SYN) {
            conn.inbound.announce_first_window(&conn.path, conn.inbound.rcv_nxt())
        } else {
            conn.inbound.announce_window(&conn.path, conn.out.transfer.rtt())
        };
        conn.inbound.on_ack_sent();
        (conn.inbound.rcv_nxt(), window)
    } else if flags.contains(Flags::SYN) {
        (Seq(0), conn.inbound.announce_first_window(&conn.path, Seq(0)))
    } else {
        (Seq(0), conn.inbound.first_window(&conn.path) as u16)
    };
    let header = TcpHeader {
        src_port: conn.path.ports().local,
        dst_port: conn.path.ports().remote,
        seq,
        ack,
        flags,
        window,
        urgent: urgent.unwrap_or(0),
        options,
    };
    SegmentOut { header, payload, gso_size: None, ecn }
}

fn options_of(conn: &Connection, now: Instant, flags: Flags) -> TcpOptions {
    let mut options = TcpOptions::default();
    if conn.path.has_timestamps() {
        // > RFC 7323 section 3.2: If the ACK bit is not set in the outgoing TCP header, the sender
        // > of that segment SHOULD set the TSecr field to zero.
        let echo = if flags.contains(Flags::ACK) { conn.path.timestamps().recent() } else { 0 };
        options.timestamps = Some((conn.path.timestamps().value(now), echo));
    }
    if flags.contains(Flags::SYN) {
        options.mss = Some(conn.path.announced_mss());
        options.sack_permitted = conn.path.has_sack();
        options.window_scale = conn.path.offers_scale().then_some(conn.inbound.scale());
        if flags.contains(Flags::ACK) {
            conn.out.transfer.add_option_to_syn_ack(&conn.path, &mut options);
        }
        return options;
    }
    if conn.inbound.tells_blocks(&conn.path) {
        let mut blocks = SackBlocks::default();
        // > RFC 2883 section 4: (2) [...] the D-SACK block [...] is in the first SACK block
        if let Some((left, right)) = conn.inbound.twice() {
            blocks.push(left, right);
        }
        conn.inbound.queue.sack_blocks(&mut blocks);
        // Beside timestamps there is room for three.
        let room = if options.timestamps.is_some() { 3 } else { SackBlocks::MAX };
        options.sack = blocks.iter().take(room).collect();
    }
    if conn.out.transfer.tells_bytes(&conn.path, now) {
        conn.out.transfer.add_accurate_option(&mut options);
    }
    options
}

/// Whether the next data segment has more options than timestamps.
fn has_more_options(conn: &Connection, now: Instant) -> bool {
    conn.inbound.tells_blocks(&conn.path) || conn.out.transfer.tells_bytes(&conn.path, now)
}

fn build_ack(conn: &mut Connection, now: Instant) -> SegmentOut {
    build_segment(conn, now, conn.out.transfer.snd().nxt, Flags::ACK, FragVec::new())
}

/// A segment with an old sequence number and no data, which the peer acknowledges (RFC 9293 section
/// 3.8.4: SEG.SEQ = SND.NXT-1). As in Linux it also probes the window.
fn build_probe(conn: &mut Connection, now: Instant) -> SegmentOut {
    build_segment(conn, now, conn.out.transfer.snd().una - 1, Flags::ACK, FragVec::new())
}

fn build_reset(conn: &mut Connection, now: Instant, reset: Reset) -> SegmentOut {
    let flags = if reset.ack { Flags::RST | Flags::ACK } else { Flags::RST };
    let (mut options, mut window) = (TcpOptions::default(), 0);
    if reset.ack {
        // As Linux: the window that any other segment would have.
        window = conn.inbound.announce_window(&conn.path, conn.out.transfer.rtt());
        options = options_of(conn, now, Flags::ACK);
        options.sack = SackBlocks::default();
        options.accurate_ecn = None;
    }
    let header = TcpHeader {
        src_port: conn.path.ports().local,
        dst_port: conn.path.ports().remote,
        seq: reset.seq,
        ack: if reset.ack { conn.inbound.rcv_nxt() } else { Seq(0) },
        flags,
        window,
        urgent: 0,
        options,
    };
    SegmentOut { header, payload: FragVec::new(), gso_size: None, ecn: 0 }
}
