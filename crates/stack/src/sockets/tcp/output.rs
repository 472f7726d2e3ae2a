//! Variant of step S3, between the connection and step S4: asks connections for segments and makes
//! packets of them. Also timers and ends of connections.

use std::collections::VecDeque;

use pagewire_mem::{FragVec, Gso, GsoKind, Instant, PacketBuf};
use pagewire_tcp::{
    CHECKSUM_OFFSET, Flags, IcmpNotice, LinkLimits, MAX_HEADER_LEN, SegmentOut, Seq, State,
    TcpError, TcpHeader, reset_for,
};

use super::socket::{Lists, Owner, TcpSocket};
use crate::counters::{Counters, DropReason};
use crate::event::ErrorOrigin;
use crate::limits::{MAX_SOCKETS, MAX_SUPER_PACKET, SEGMENTS_PER_CONNECTION, SEGMENTS_PER_POLL};
use crate::net::{IcmpKind, LinkId, LinkIndex, Net, Outgoing, Quoted, TooLong, protocol};
use crate::sockets::errors::{error_of_icmp, tcp_kind};
use crate::sockets::ids::SocketId;
use crate::sockets::table::Socket;
use crate::sockets::tuple::Tuple;
use crate::stack::{Core, Stack};

impl Stack {
    /// Appends a bounded number of frames for the first link's device. `true`: there are more; call
    /// again once the device has taken these.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        self.core.poll_transmit(now, Some(0), out)
    }

    /// As [`poll_transmit`](Self::poll_transmit), for this link's device. Each call makes frames
    /// for all links; those of other links wait for their calls.
    pub fn poll_transmit_on(
        &mut self,
        now: Instant,
        link: LinkId,
        out: &mut VecDeque<PacketBuf>,
    ) -> bool {
        let index = self.core.net.find_link(link);
        self.core.poll_transmit(now, index, out)
    }
}

impl Core {
    /// Makes a bounded number of frames for all links, and appends those of one. `true`: there are more.
    fn poll_transmit(
        &mut self,
        now: Instant,
        link: Option<LinkIndex>,
        out: &mut VecDeque<PacketBuf>,
    ) -> bool {
        let more_inbound = self.take_inbound(now);
        self.drain_returns(now);
        let more = self.transmit_dirty(now) || more_inbound;
        let Some(index) = link else { return more };
        self.net.poll_transmit(index, out);
        self.sockets.resume(index) || more
    }

    /// An ICMP error about a segment that we sent.
    pub(crate) fn tcp_icmp(&mut self, now: Instant, about: &Quoted, kind: IcmpKind) {
        let tuple = Tuple::quoted(about);
        let Some(index) = self.sockets.demux.find(&self.sockets.table, &tuple) else { return };
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        if matches!(kind, IcmpKind::PacketTooBig { .. }) && !socket.heeds_path() {
            return;
        }
        let notice =
            IcmpNotice { seq: Seq(about.seq), kind: tcp_kind(kind, tuple.remote.is_ipv6()) };
        // RFC 5927 section 7.2: a quoted sequence number that is not in flight is a forgery.
        if !socket.work(&mut self.mem, now, |conn, env| conn.handle_icmp(env, notice)) {
            self.net.counters.tcp_icmp_outside_window += 1;
            return;
        }
        match kind {
            IcmpKind::PacketTooBig { mtu } => self.learn_path(now, index, mtu),
            _ => {
                let error = error_of_icmp(kind);
                if let Some(errors) = socket.extra.as_mut().and_then(|e| e.errors.as_mut()) {
                    errors.push(error, ErrorOrigin::Icmp);
                }
            }
        }
        self.sockets.touch(index);
    }

    /// The timer of the connection at `index` has fired.
    pub(crate) fn tcp_timeout(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.sockets.table.tcp_mut(index) else {
            return self.other_timeout(now, index);
        };
        // The timer may fire earlier than the connection wants by now.
        if socket.conn.poll_timeout().is_some_and(|at| at <= now) {
            socket.work(&mut self.mem, now, |conn, env| conn.handle_timeout(env));
        }
        // While it waits for its device, no output sets its timer.
        if socket.dirty
            && let Some(at) = socket.conn.poll_timeout()
            && !self.sockets.wheel.covers(index, at)
        {
            self.sockets.wheel.schedule(index, at);
        }
        self.sockets.touch(index);
    }

    /// Answers a segment that belongs to no connection.
    pub(crate) fn send_reset(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        header: &TcpHeader,
        payload_len: usize,
    ) {
        if header.flags.contains(Flags::RST) {
            return;
        }
        if !self.sockets.resets.take(now) {
            self.net.counters.drop_one(DropReason::TcpResetRateLimited);
            return;
        }
        self.reset_for(now, tuple, header, payload_len);
    }

    /// As [`send_reset`](Self::send_reset), without its limit for strangers.
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

    /// Asks the dirty connections for segments, in turns. Returns whether some may still send.
    pub(crate) fn transmit_dirty(&mut self, now: Instant) -> bool {
        let mut budget = SEGMENTS_PER_POLL;
        while budget > 0
            && let Some(index) = self.sockets.work.pop_dirty()
        {
            let (mut burst, mut sent) = (budget.min(SEGMENTS_PER_CONNECTION), false);
            self.pass_on(now, index);
            if self.is_held_up(now, index) {
                continue;
            }
            self.refresh_path(index);
            while let Some(socket) = self.sockets.table.tcp_mut(index).filter(|s| s.dirty) {
                if burst == 0 {
                    self.sockets.work.queue_again(index, socket);
                    break;
                }
                let segment = match sent && socket.conn.ends_burst(now) {
                    true => None,
                    false => socket.work(&mut self.mem, now, |conn, env| conn.poll_transmit(env)),
                };
                let Some(mut segment) = segment else {
                    socket.dirty = false;
                    let rare = socket.extra.is_some();
                    if let Some(extra) = &mut socket.extra {
                        extra.poll_timestamps(now, &socket.conn);
                    }
                    self.watch_black_hole(now, index);
                    if rare {
                        self.sockets.report_news(index);
                        self.uncount_fast_open(now, index, Flags::empty());
                    }
                    self.settle(now, index);
                    break;
                };
                let (tuple, dont_fragment) = (socket.tuple, socket.dont_fragment());
                let bound = socket.bound();
                let hop_limit;
                (segment.ecn, hop_limit) = socket.marked(segment.ecn);
                self.send_segment_by(now, &tuple, segment, (dont_fragment, hop_limit), bound);
                burst -= 1;
                budget -= 1;
                sent = true;
            }
        }
        !self.sockets.work.dirty.is_empty()
    }

    /// Whether the connection has to wait for its link's device; its timer runs meanwhile.
    fn is_held_up(&mut self, now: Instant, index: u32) -> bool {
        let Some(socket) = self.sockets.table.tcp(index).filter(|s| s.dirty) else { return false };
        let ends = (socket.tuple.local, socket.tuple.remote);
        let by = self.net.bound_link(socket.bound()).unwrap_or(None);
        let Some(link) = self.net.congested_link(now, ends, by) else { return false };
        if let Some(at) = socket.conn.poll_timeout()
            && !self.sockets.wheel.covers(index, at)
        {
            self.sockets.wheel.schedule(index, at);
        }
        let (lists, link) = (&mut self.sockets.held_up, usize::from(link));
        lists.resize_with(lists.len().max(link + 1), Vec::new);
        if let Some(list) = lists.get_mut(link) {
            list.push(index);
        }
        true
    }

    /// Sends a segment that no connection made.
    pub(crate) fn send_segment(&mut self, now: Instant, tuple: &Tuple, segment: SegmentOut) {
        self.send_segment_by(now, tuple, segment, (true, None), None);
    }

    /// Makes a packet of one segment.
    fn send_segment_by(
        &mut self,
        now: Instant,
        tuple: &Tuple,
        segment: SegmentOut,
        (dont_fragment, hop_limit): (bool, Option<u8>),
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
        let _ = self.net.send(&mut self.mem, now, out);
    }

    /// The connection has nothing more to send: sets its timer, or removes it if it is over.
    fn settle(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        count_losses(&mut self.net.counters, socket);
        if socket.conn.is_closed() {
            self.learn_fast_open(now, index);
            self.finish(index);
            return;
        }
        let state = socket.conn.state();
        match socket.conn.poll_timeout() {
            None => self.sockets.wheel.cancel(index),
            Some(at) if self.sockets.wheel.covers(index, at) => {}
            Some(at) => self.sockets.wheel.schedule(index, at),
        }
        if state == State::TimeWait {
            self.rest(index);
        }
    }

    /// Ends a connection: takes it out of the demux, and out of the table unless it has an owner.
    pub(crate) fn finish(&mut self, index: u32) {
        self.sockets.wheel.cancel(index);
        let Some(socket) = self.sockets.table.tcp(index) else { return };
        if socket.lists.contains(Lists::DEMUX) {
            count_end(&mut self.net.counters, socket);
            self.sockets.leave_demux(&self.net, index);
        }
        match self.sockets.table.tcp(index).map(|s| s.owner) {
            Some(Owner::Closed) => self.remove_connection(index),
            Some(Owner::HalfOpen { listener }) => {
                if let Some(listener) = self.sockets.table.listener_mut(listener) {
                    listener.half_open.remove(&index);
                }
                self.remove_connection(index);
            }
            // The application learns from it how it ended.
            Some(Owner::App | Owner::Queued { .. }) | None => {}
        }
    }

    pub(crate) fn remove_connection(&mut self, index: u32) {
        self.sockets.leave_demux(&self.net, index);
        self.sockets.wheel.cancel(index);
        if let Some(Socket::Tcp(mut socket)) = self.sockets.table.remove(index) {
            socket.leave(&mut self.mem);
        }
    }

    pub(crate) fn insert_connection(&mut self, mut socket: TcpSocket) -> Option<SocketId> {
        let sockets = &mut self.sockets;
        if let Owner::HalfOpen { listener } = socket.owner
            && let Some(listener) = sockets.table.listener(listener)
        {
            socket.reporting.zerocopy = listener.reporting.zerocopy;
            if listener.link.is_some() {
                socket.extra.get_or_insert_default().link = listener.link;
            }
        }
        let id = sockets.table.insert(Socket::Tcp(Box::new(socket)), MAX_SOCKETS)?;
        sockets.demux.insert(&mut sockets.table, id.index());
        sockets.touch(id.index());
        Some(id)
    }

    /// A new connection's initial sequence number and timestamp offset.
    pub(crate) fn numbers(&self, now: Instant, tuple: &Tuple) -> (Seq, u32) {
        let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
        let isn = &self.sockets.isn;
        (isn.generate(now, local, remote), isn.timestamp_offset(local, remote))
    }
}

/// The limits of a connection's link and path.
pub(crate) fn tcp_link(net: &Net, tuple: &Tuple, bound: Option<LinkId>) -> LinkLimits {
    let by = net.bound_link(bound).unwrap_or(None);
    let (mtu, max_super) = net.link_limits(tuple.local, tuple.remote, by);
    let ip = if tuple.remote.is_ipv4() { 20 } else { 40 };
    let payload = |mtu: usize| mtu.saturating_sub(ip + 20).clamp(1, usize::from(u16::MAX));
    let mss = payload(mtu);
    let recv_mss = payload(net.own_mtu(tuple.local, tuple.remote, by)) as u16;
    let longest = max_super.min(MAX_SUPER_PACKET).saturating_sub(ip + MAX_HEADER_LEN);
    let max_super_payload = if max_super > mtu { longest.max(mss) } else { mss };
    LinkLimits { mss: mss as u16, recv_mss, max_super_payload: max_super_payload as u32 }
}

/// The initial sequence number of a connection that replaces one whose last number was `above`.
pub(crate) fn iss_above(iss: Seq, above: Seq) -> Seq {
    /// More than any segment still under way from the largest unscaled window (as Linux has it).
    const STEP: u32 = 65_535 + 2;
    if iss.gt(above) { iss } else { above + STEP }
}

fn count_losses(counters: &mut Counters, socket: &mut TcpSocket) {
    let counts = socket.conn.loss_counts().map(|count| count as u16);
    if counts != socket.counted {
        let totals = [
            &mut counters.tcp_retransmits,
            &mut counters.tcp_timeouts,
            &mut counters.tcp_fast_recoveries,
        ];
        for ((total, now), before) in totals.into_iter().zip(counts).zip(socket.counted) {
            *total += u64::from(now.wrapping_sub(before));
        }
        socket.counted = counts;
    }
}

fn count_end(counters: &mut Counters, socket: &TcpSocket) {
    match socket.conn.error() {
        Some(_) if !socket.was_established() => counters.tcp_attempts_failed += 1,
        // A reset in CLOSE-WAIT is a broken pipe to the application.
        Some(TcpError::ConnectionReset | TcpError::BrokenPipe) => {
            counters.tcp_established_resets += 1;
        }
        // In order, or aborted here.
        None | Some(TcpError::ConnectionAborted) => {}
        Some(_) => counters.tcp_established_lost += 1,
    }
}

impl Stack {
    /// Frames from [`poll_transmit_on`](Self::poll_transmit_on) that the device of this link
    /// refused because it lacked something that it may have soon, a queue or memory; in the order
    /// in which they were to be sent. They are lost, and are taken out of `frames`. A connection
    /// that learns this at once neither blames the path nor waits for its retransmission timeout.
    /// Call it before the next `poll_transmit_on`.
    pub fn handle_refused_on(
        &mut self,
        now: Instant,
        link: LinkId,
        frames: &mut VecDeque<PacketBuf>,
    ) {
        match self.core.net.find_link(link) {
            Some(index) => self.core.refused_by(now, index, frames),
            None => frames.clear(),
        }
    }
}

impl Core {
    fn refused_by(&mut self, now: Instant, link: LinkIndex, frames: &mut VecDeque<PacketBuf>) {
        // The last first: a segment can be unsent only after those behind it.
        while let Some(frame) = frames.pop_back() {
            self.net.counters.tx_refused += 1;
            let Some((about, space)) = self.net.refused_segment(link, &frame) else { continue };
            let tuple = Tuple::quoted(&about);
            let sockets = &mut self.sockets;
            let Some(index) = sockets.demux.find(&sockets.table, &tuple) else { continue };
            let Some(socket) = sockets.table.tcp_mut(index) else { continue };
            socket.conn.handle_refused(now, Seq(about.seq), space);
            // Its timer has changed.
            sockets.touch_to_send(index);
        }
    }
}
