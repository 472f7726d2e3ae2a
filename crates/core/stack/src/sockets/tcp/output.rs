//! Variant of step S3, between the connection and step S4: takes segments from connections and makes
//! packets of them. Timers and ends of connections are handled here, too.

use std::collections::VecDeque;

use pagewire_mem::{FragVec, Gso, GsoKind, Instant, PacketBuf};
use pagewire_tcp::{
    CHECKSUM_OFFSET, Flags, IcmpNotice, SegmentOut, Seq, State, TcpHeader, reset_for,
};

use super::TcpSockets;
use super::socket::TcpSocket;
use crate::counters::{Counters, DropReason};
use crate::event::ErrorOrigin;
use crate::limits::{SEGMENTS_PER_CONNECTION, SEGMENTS_PER_POLL};
use crate::net::{IcmpKind, LinkId, LinkIndex, Outgoing, QuotedPacket, TooLong, protocol};
use crate::sockets::Context;
use crate::sockets::errors::{error_of_icmp, tcp_kind};
use crate::sockets::tuple::Tuple;

impl TcpSockets {
    /// Asks the dirty connections for segments, in turns. Returns whether some may still send.
    pub(crate) fn transmit_pending(&mut self, cx: &mut Context, now: Instant) -> bool {
        let mut budget = SEGMENTS_PER_POLL;
        while budget > 0
            && let Some(index) = cx.work.pop_tx_pending()
        {
            let (mut burst, mut sent) = (budget.min(SEGMENTS_PER_CONNECTION), false);
            cx.forward_spliced(now, index);
            if cx.is_held_up(now, index) {
                continue;
            }
            if let Some(socket) = cx.table.tcp_mut(index) {
                socket.refresh_path(&cx.net);
            };
            while let Some(socket) = cx.table.tcp_mut(index).filter(|s| s.tx_pending) {
                if burst == 0 {
                    cx.work.queue_again(index, socket);
                    break;
                }
                let segment = match sent && socket.conn.ends_burst(now) {
                    true => None,
                    false => socket.work(&mut cx.net.mem, now, |conn, env| conn.poll_transmit(env)),
                };
                let Some(mut segment) = segment else {
                    socket.tx_pending = false;
                    let rare = socket.extra.is_some();
                    if let Some(extra) = &mut socket.extra {
                        extra.poll_timestamps(now, &socket.conn);
                    }
                    self.fast_open.watch_black_hole(cx, now, index);
                    if rare {
                        cx.report_new_entry(index);
                        cx.uncount_fast_open(now, index, Flags::empty());
                    }
                    self.settle(cx, now, index);
                    break;
                };
                let (tuple, dont_fragment) = (socket.tuple, socket.dont_fragment());
                let (bound, maps) = (socket.bound(), socket.conn.maps());
                let hop_limit;
                (segment.ecn, hop_limit) = socket.marked(segment.ecn);
                let marks = (dont_fragment, hop_limit, maps);
                cx.send_segment_by(now, &tuple, segment, marks, bound);
                burst -= 1;
                budget -= 1;
                sent = true;
            }
        }
        !cx.work.tx_pending.is_empty()
    }

    /// The connection has nothing more to send: sets its timer, or removes it if it is over.
    fn settle(&mut self, cx: &mut Context, now: Instant, index: u32) {
        let Some(socket) = cx.table.tcp_mut(index) else { return };
        count_losses(&mut cx.net.counters, socket);
        if socket.conn.is_closed() {
            self.fast_open.learn(cx, now, index);
            self.finish(cx, index);
            return;
        }
        let (state, at) = (socket.conn.state(), socket.conn.poll_timeout());
        cx.set_timer(index, at);
        if state == State::TimeWait {
            self.enter_time_wait(cx, index);
        }
    }

    /// Answers a segment that belongs to no connection.
    pub(crate) fn send_reset(
        &mut self,
        cx: &mut Context,
        now: Instant,
        tuple: &Tuple,
        header: &TcpHeader,
        payload_len: usize,
    ) {
        if header.flags.contains(Flags::RST) {
            return;
        }
        if !self.resets.take(now) {
            cx.net.counters.drop_one(DropReason::TcpResetRateLimited);
            return;
        }
        cx.reset_for(now, tuple, header, payload_len);
    }

    /// An ICMP error about a segment that we sent.
    pub(crate) fn icmp(
        &mut self,
        cx: &mut Context,
        now: Instant,
        about: &QuotedPacket,
        kind: IcmpKind,
    ) {
        let tuple = about.tuple();
        let Some(index) = self.demux.find(&cx.table, &tuple) else { return };
        let Some(socket) = cx.table.tcp_mut(index) else { return };
        if matches!(kind, IcmpKind::PacketTooBig { .. }) && !socket.heeds_path() {
            return;
        }
        let notice =
            IcmpNotice { seq: Seq(about.seq), kind: tcp_kind(kind, tuple.remote.is_ipv6()) };
        // RFC 5927 section 7.2: a quoted sequence number that is not in flight is a forgery.
        if !socket.work(&mut cx.net.mem, now, |conn, env| conn.handle_icmp(env, notice)) {
            cx.net.counters.tcp_icmp_outside_window += 1;
            return;
        }
        match kind {
            IcmpKind::PacketTooBig { mtu } => socket.learn_path(&mut cx.net, now, mtu),
            _ => {
                let error = error_of_icmp(kind);
                if let Some(errors) = socket.extra.as_mut().and_then(|e| e.errors.as_mut()) {
                    errors.push(error, ErrorOrigin::Icmp);
                }
            }
        }
        cx.touch(index);
    }

    /// Frames that the device of a link refused: see [`Stack::handle_refused_on`](crate::Stack::handle_refused_on).
    pub(crate) fn handle_refused(
        &mut self,
        cx: &mut Context,
        now: Instant,
        link: LinkIndex,
        frames: &mut VecDeque<PacketBuf>,
    ) {
        // The last first: a segment can be unsent only after those behind it.
        while let Some(frame) = frames.pop_back() {
            cx.net.counters.tx_refused += 1;
            let Some((about, space)) = cx.net.refused_segment(link, &frame) else { continue };
            let tuple = about.tuple();
            let Some(index) = self.demux.find(&cx.table, &tuple) else { continue };
            let Some(socket) = cx.table.tcp_mut(index) else { continue };
            socket.conn.handle_refused(now, Seq(about.seq), space);
            // The connection's timer has changed.
            cx.touch_to_send(index);
        }
    }
}

impl Context {
    /// The timer of the connection at `index` has fired.
    pub(crate) fn tcp_timeout(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        // The timer may fire earlier than the connection wants by now.
        if socket.conn.poll_timeout().is_some_and(|at| at <= now) {
            socket.work(&mut self.net.mem, now, |conn, env| conn.handle_timeout(env));
        }
        // While it waits for its device, no output sets its timer.
        if socket.tx_pending
            && let Some(at) = socket.conn.poll_timeout()
            && !self.wheel.covers(index, at)
        {
            self.wheel.schedule(index, at);
        }
        self.touch(index);
    }

    /// Whether the connection has to wait for its link's device; its timer runs meanwhile.
    fn is_held_up(&mut self, now: Instant, index: u32) -> bool {
        let Some(socket) = self.table.tcp(index).filter(|s| s.tx_pending) else { return false };
        let ends = (socket.tuple.local, socket.tuple.remote);
        let by = self.net.bound_link(socket.bound()).unwrap_or(None);
        let Some(link) = self.net.congested_link(now, ends, by) else { return false };
        if let Some(at) = socket.conn.poll_timeout()
            && !self.wheel.covers(index, at)
        {
            self.wheel.schedule(index, at);
        }
        self.work.hold_up(index, link);
        true
    }

    /// Sends a segment that no connection made.
    pub(crate) fn send_segment(&mut self, now: Instant, tuple: &Tuple, segment: SegmentOut) {
        self.send_segment_by(now, tuple, segment, (true, None, false), None);
    }

    /// Makes a packet of one segment.
    fn send_segment_by(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        segment: SegmentOut,
        (dont_fragment, hop_limit, maps): (bool, Option<u8>, bool),
        bound: Option<LinkId>,
    ) {
        let Ok(by) = self.net.bound_link(bound) else {
            return self.net.counters.drop_one(DropReason::LinkRemoved);
        };
        let SegmentOut { header, payload, gso_size, ecn } = segment;
        let mut out = Outgoing {
            src: tuple.local,
            dst: tuple.remote,
            protocol: protocol::TCP,
            ecn,
            dont_fragment,
            too_long: TooLong::RefusedByLink,
            hop_limit,
            by,
            checksum_offset: Some(CHECKSUM_OFFSET as u16),
            packet: PacketBuf::for_tx(),
        };
        let header_len = header.len();
        out.packet.maps = maps;
        let Some(room) = out.packet.push(header_len) else { return };
        header.emit(room);
        for frag in payload {
            let pushed = out.packet.push_frag(frag);
            debug_assert!(pushed.is_ok(), "a segment has at most MAX_FRAGS fragments");
        }
        out.packet.gso = gso_size.map(|size| Gso {
            kind: if tuple.local.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 },
            size,
            header_len: header_len as u16,
        });
        if header.flags.contains(Flags::RST) {
            self.net.counters.tcp_resets_sent += 1;
        }
        // The network layer counts what it cannot send; the connection retransmits.
        let _ = self.net.send(now, out);
    }

    /// Resets the sender of a segment, without the limit for strangers.
    pub(crate) fn reset_for(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        header: &TcpHeader,
        payload_len: usize,
    ) {
        let Some(reset) = reset_for(header, payload_len) else { return };
        let segment = SegmentOut { header: reset, payload: FragVec::new(), gso_size: None, ecn: 0 };
        self.send_segment(now, tuple, segment);
    }
}

#[inline]
fn count_losses(counters: &mut Counters, socket: &mut TcpSocket) {
    let [retransmits, timeouts, recoveries] = socket.conn.take_losses().map(u64::from);
    counters.tcp_retransmits += retransmits;
    counters.tcp_timeouts += timeouts;
    counters.tcp_fast_recoveries += recoveries;
}
