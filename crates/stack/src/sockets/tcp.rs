//! Byte path, steps R5 and S3 seen from the stack: connections, and what goes in and out of them.
//!
//! Inputs first (`tcp_input`), then what is done once per burst (`transmit_dirty`, `settle`), then
//! the application's verbs. Listeners are in `listener.rs`.

use std::net::{SocketAddr, SocketAddrV6};
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Frag, FragVec, Gso, GsoKind, Holdings, Instant, PacketBuf};
use pagewire_tcp::{
    Arrival, CHECKSUM_OFFSET, Connection, Disposition, Env, Flags, IcmpNotice, LinkLimits,
    MAX_HEADER_LEN, Ports as TcpPorts, SegmentOut, Seq, Shared, State, TcpError, TcpHeader,
    reset_for,
};

use super::cookie::Returned;
use super::demux::Tuple;
use super::edges::PacketMarks;
use super::errors::{error_from, error_of_icmp, tcp_kind};
use super::forwarding::Flow;
use super::listener::{Old, ToListener};
use super::path_mtu::MtuDiscover;
use super::table::SocketId;
use super::timestamping::Timestamps;
use super::{ErrorQueue, Socket};
use crate::Counters;
use crate::counters::DropReason;
use crate::error::Error;
use crate::event::{ErrorOrigin, Readiness};
use crate::limits::{MAX_SOCKETS, MAX_SUPER_PACKET, SEGMENTS_PER_CONNECTION, SEGMENTS_PER_POLL};
use crate::net::{IcmpKind, LinkId, Mem, Outgoing, Quoted, Received, TooLong, protocol};
use crate::stack::Core;

/// A connection and its place in the stack.
pub(crate) struct TcpSocket {
    pub(crate) conn: Connection,
    pub(crate) tuple: Tuple,
    pub(crate) owner: Owner,
    /// Whether segments find it.
    pub(crate) in_demux: bool,
    /// On the list of those that may send.
    pub(crate) dirty: bool,
    /// On the list of those whose readiness may have grown.
    pub(crate) unchecked: bool,
    /// The owner is told of every arrival, see [`Stack::report_arrivals`].
    pub(crate) every_arrival: bool,
    /// What the owner knows that it is ready for.
    pub(crate) reported: Readiness,
    /// On the list of those that wait for pages to write into.
    pub(super) starved: bool,
    /// On the list of those that have memory of senders in their receive queues.
    pub(super) has_guests: bool,
    /// Opted in to zero-copy sends.
    pub(super) zerocopy: bool,
    /// What it sends was received on this other connection, and the other way round: it is charged
    /// until it is acknowledged.
    pub(super) forwards: Option<SocketId>,
    /// Present while what it received may be sent on that one at once.
    pub(super) flow: Option<Box<Flow>>,
    /// Retransmissions, timeouts and recoveries that are in the stack's counters already.
    counted: [u32; 3],
    /// Second of the stack's clock in which the neighbour was last told that it is heard.
    reachable_at: u32,
    /// Bytes of receive memory that are charged for it.
    charged: u32,
    /// What its application took by reference and keeps; once it has.
    pub(super) holdings: Option<Arc<Holdings>>,
    /// Of the network layer, when the MTU of the path was last asked for.
    pub(super) path_generation: u32,
    /// What few connections need.
    pub(crate) extra: Option<Box<Extra>>,
}

/// What few connections need.
#[derive(Default)]
pub(crate) struct Extra {
    /// Copies made for this connection.
    pub(super) ledger: Option<CopyLedger>,
    pub(crate) errors: Option<ErrorQueue>,
    /// Bytes whose moments are asked for.
    pub(super) timestamps: Option<Box<Timestamps>>,
    /// The listener for whose Fast Open limit it counts.
    pub(crate) fast_open_of: Option<SocketId>,
    pub(super) mtu_discover: MtuDiscover,
    pub(super) marks: PacketMarks,
    /// The link that it is bound to.
    pub(super) link: Option<LinkId>,
}

/// Who a connection belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The application, by its id.
    App,
    /// A listener, the handshake not complete.
    HalfOpen { listener: u32 },
    /// A listener, waiting to be accepted.
    Queued { listener: u32 },
    /// Nobody: it delivers what is queued and goes.
    Nobody,
}

impl TcpSocket {
    pub(crate) fn new(conn: Connection, tuple: Tuple, owner: Owner) -> Self {
        Self {
            conn,
            tuple,
            owner,
            in_demux: false,
            dirty: false,
            unchecked: false,
            every_arrival: false,
            reported: Readiness::NONE,
            starved: false,
            has_guests: false,
            zerocopy: false,
            forwards: None,
            flow: None,
            counted: [0; 3],
            reachable_at: 0,
            charged: 0,
            holdings: None,
            path_generation: 0,
            extra: None,
        }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let mut readiness = Readiness::from_tcp(self.conn.readiness());
        if self.errors().is_some_and(|e| !e.is_empty()) {
            readiness |= Readiness::ERROR_QUEUE;
        }
        readiness
    }

    /// The link that it is bound to.
    pub(super) fn bound(&self) -> Option<LinkId> {
        self.extra.as_ref()?.link
    }

    /// Whether nothing is left to be sent or to be acknowledged.
    pub(crate) fn is_quiet(&self) -> bool {
        let info = self.conn.info();
        let closing = matches!(info.state, State::FinWait1 | State::Closing | State::LastAck);
        info.unsent == 0 && info.unacked == 0 && !closing
    }

    /// Bytes of receive memory that are charged for it.
    pub(super) fn charged(&self) -> usize {
        self.charged as usize
    }

    /// Its receive queue is gone. What its application holds stays charged until it comes back.
    pub(super) fn leave(&mut self, mem: &mut Mem) {
        let holdings = self.holdings.take();
        let held = holdings.as_ref().map_or(0, |holdings| holdings.bytes());
        mem.shared.receive.charge(self.charged as usize, held);
        self.charged = 0;
        if let Some(holdings) = holdings {
            holdings.abandon(held);
        }
    }

    pub(super) fn errors(&self) -> Option<&ErrorQueue> {
        self.extra.as_ref()?.errors.as_ref()
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        let error = self.conn.take_error()?;
        self.reported &= self.readiness();
        Some(error_from(error))
    }

    /// Lets the connection work with what the host lends it.
    pub(crate) fn work<T>(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        f: impl FnOnce(&mut Connection, &mut Env<'_>) -> T,
    ) -> T {
        if let Some(holdings) = &self.holdings {
            self.conn.set_kept(holdings.bytes());
        }
        let Mem { pool, writer, ledger, shared } = mem;
        let result = match self.extra.as_mut().and_then(|e| e.ledger.as_mut()) {
            None => f(&mut self.conn, &mut Env { now, ledger, pool, writer, shared }),
            Some(own) => {
                let mut copies = CopyLedger::new();
                let mut env = Env { now, ledger: &mut copies, pool, writer, shared };
                let result = f(&mut self.conn, &mut env);
                own.add(&copies);
                ledger.add(&copies);
                result
            }
        };
        if let Some(holdings) = &self.holdings
            && self.conn.is_held_back()
        {
            self.conn.set_kept(holdings.await_return());
        }
        self.charge(&mut mem.shared);
        result
    }

    /// Charges what it holds now.
    pub(super) fn charge(&mut self, shared: &mut Shared) {
        let sends = if self.forwards.is_some() { self.conn.send_charge() } else { 0 };
        let pinned = self.conn.receive_charge() + sends;
        shared.receive.charge(self.charged as usize, pinned);
        self.charged = u32::try_from(pinned).unwrap_or(u32::MAX);
    }
}

/// What IP and the device say of a segment.
fn arrival(received: &Received, packet: &PacketBuf) -> Arrival {
    Arrival { ecn: received.ecn, gso_size: packet.gso.map(|gso| gso.size) }
}

/// Inputs.
impl Core {
    /// Byte path, step R4: a TCP segment, checksum verified.
    pub(crate) fn tcp_input(&mut self, now: Instant, received: &Received, packet: &mut PacketBuf) {
        let header = match TcpHeader::parse(packet.head()) {
            Ok((header, _)) => header,
            Err(error) => {
                self.net.counters.drop_tcp(error.reason());
                return;
            }
        };
        let tuple = Tuple {
            local: received.dst,
            remote: received.src,
            local_port: header.dst_port,
            remote_port: header.src_port,
        };
        if let Some(index) = self.sockets.demux.find(&self.sockets.table, &tuple) {
            let arrival = arrival(received, packet);
            self.connection_input(now, index, &header, packet.take_frags(), (received, arrival));
        } else if let Some(index) = self.sockets.tcp_binds.find(&tuple, self.net.came_by(received))
        {
            match self.take_cookie(now, index, &tuple, &header) {
                Returned::None => {
                    let segment = ToListener { tuple, header: &header, ecn: received.ecn };
                    self.listener_input(now, index, segment, packet, None);
                }
                Returned::Dropped => {}
                Returned::Connection(index) => {
                    let arrival = arrival(received, packet);
                    let payload = packet.take_frags();
                    // The echo carries options in place of the time.
                    let mut header = header;
                    if let Some((_, echo)) = &mut header.options.timestamps {
                        *echo = 0;
                    }
                    self.connection_input(now, index, &header, payload, (received, arrival));
                }
            }
        } else {
            self.net.counters.drop_one(DropReason::TcpNoSocket);
            self.send_reset(now, &tuple, &header, packet.frag_len());
        }
    }

    /// Byte path, step R5: a segment of the connection at `index`.
    fn connection_input(
        &mut self,
        now: Instant,
        index: u32,
        header: &TcpHeader,
        payload: FragVec,
        (received, arrival): (&Received, Arrival),
    ) {
        let Some(socket) = self.sockets.table.tcp_mut(index) else {
            let len = payload.iter().map(Frag::len).sum();
            let came_by = self.net.came_by(received);
            return self.time_wait_input(now, index, header, len, (arrival.ecn, came_by));
        };
        let owner = socket.owner;
        if let Some(link) = socket.bound()
            && self.net.came_by(received) != Some(link)
        {
            self.net.counters.drop_one(DropReason::SocketOtherLink);
            return;
        }
        if let Owner::HalfOpen { listener } = owner
            && !header.flags.contains(Flags::RST)
            && header.flags.contains(Flags::ACK)
            && self.sockets.table.listener_mut(listener).is_some_and(|l| l.is_full())
        {
            // The acknowledgement that would complete the handshake is ignored, as Linux does;
            // our SYN,ACK is sent again and gives the application another chance to accept.
            self.net.counters.drop_one(DropReason::TcpBacklogFull);
            return;
        }
        self.note_held(now, index);
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        let before = socket.every_arrival.then(|| socket.conn.queued_receive());
        let guests = self.sockets.guests.concerns(&payload);
        let disposition = socket.work(&mut self.mem, now, |conn, env| {
            conn.handle_segment(env, header, payload, arrival)
        });
        if before.is_some_and(|before| socket.conn.queued_receive() > before) {
            socket.reported &= !Readiness::READABLE;
        }
        match disposition {
            Disposition::Accepted => {
                let second = (now.as_millis() / 1000) as u32;
                if socket.reachable_at != second && socket.bound().is_none() {
                    socket.reachable_at = second;
                    let Tuple { local, remote, .. } = socket.tuple;
                    self.net.handle_reachable(now, (local, remote));
                }
            }
            Disposition::Dropped(reason) => self.net.counters.drop_tcp(reason),
            Disposition::SynInTimeWait { iss_above } => {
                self.reopen(now, index, (header, received), iss_above);
                return;
            }
        }
        let opens = socket.conn.fast_open().is_opening();
        let rare = socket.extra.is_some();
        if guests {
            self.watch_guest(now, index);
        }
        if let Owner::HalfOpen { listener } = owner {
            self.promote(index, listener);
        }
        if opens {
            self.learn_fast_open(now, index);
        }
        if rare {
            self.uncount_fast_open(now, index, header.flags);
        }
        self.sockets.touch_by_segment(index);
    }

    /// A SYN for a connection in TIME-WAIT: a new connection in its place, if somebody listens.
    fn reopen(
        &mut self,
        now: Instant,
        index: u32,
        (header, received): (&TcpHeader, &Received),
        iss_above: Seq,
    ) {
        let Some(socket) = self.sockets.table.tcp(index) else { return };
        let tuple = socket.tuple;
        let (ecn, came_by) = (received.ecn, self.net.came_by(received));
        let Some(listener) = self.sockets.tcp_binds.find(&tuple, came_by) else {
            self.net.counters.drop_one(DropReason::TcpNoSocket);
            return;
        };
        let (mut packet, old) = (PacketBuf::for_rx(), Old { index, last: iss_above });
        let segment = ToListener { tuple, header, ecn };
        self.listener_input(now, listener, segment, &mut packet, Some(old));
    }

    /// An ICMP error about a segment that we sent.
    pub(crate) fn tcp_icmp(&mut self, now: Instant, about: &Quoted, kind: IcmpKind) {
        let tuple = Tuple {
            local: about.src,
            remote: about.dst,
            local_port: about.src_port,
            remote_port: about.dst_port,
        };
        let Some(index) = self.sockets.demux.find(&self.sockets.table, &tuple) else { return };
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        if matches!(kind, IcmpKind::PacketTooBig { .. }) && !socket.heeds_path() {
            return;
        }
        let notice =
            IcmpNotice { seq: Seq(about.seq), kind: tcp_kind(kind, tuple.remote.is_ipv6()) };
        // RFC 5927 section 7.2: a quoted sequence number outside of what is in flight is a forgery;
        // the connection checks, and only then anything follows from it.
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
            return self.time_wait_timeout(now, index);
        };
        // The timer may stand at an earlier moment than the connection wants by now.
        if socket.conn.poll_timeout().is_some_and(|at| at <= now) {
            socket.work(&mut self.mem, now, |conn, env| conn.handle_timeout(env));
        }
        // Held up: its next timer would only be set once its device takes frames again.
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
        let Some(reset) = reset_for(header, payload_len) else { return };
        if !self.sockets.resets.take(now) {
            self.net.counters.drop_one(DropReason::TcpResetRateLimited);
            return;
        }
        let segment = SegmentOut { header: reset, payload: FragVec::new(), gso_size: None, ecn: 0 };
        self.send_segment(now, tuple, segment);
    }
}

/// Outputs.
impl Core {
    /// Byte path, step S3: asks the connections that may send, in turns. Returns whether some
    /// still may.
    pub(crate) fn transmit_dirty(&mut self, now: Instant) -> bool {
        let mut budget = SEGMENTS_PER_POLL;
        while budget > 0
            && let Some(index) = self.sockets.work.dirty.pop_front()
        {
            let (mut burst, mut sent) = (budget.min(SEGMENTS_PER_CONNECTION), false);
            self.pass_on(now, index);
            if self.is_held_up(now, index) {
                continue;
            }
            self.refresh_path(index);
            while let Some(socket) = self.sockets.table.tcp_mut(index).filter(|s| s.dirty) {
                if burst == 0 {
                    self.sockets.work.dirty.push_back(index);
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

    /// Whether the connection at `index` has to wait for the device of its link, where others need
    /// not. Its timer runs meanwhile.
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

    /// A segment that no connection, or none any more, has sent.
    pub(crate) fn send_segment(&mut self, now: Instant, tuple: &Tuple, segment: SegmentOut) {
        self.send_segment_by(now, tuple, segment, (true, None), None);
    }

    /// Byte path, step S4 begins: one segment becomes a packet.
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
            // A connection hands out at most as many fragments as a packet takes.
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
        // What the network layer cannot send it counts as dropped; the connection sends again.
        let _ = self.net.send(&mut self.mem, now, out);
    }

    /// The connection at `index` has nothing to send for now: sets its timer, and lets go of it if
    /// it is over.
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
        // What is left would not know its link.
        if state == State::TimeWait && socket.owner == Owner::Nobody && socket.bound().is_none() {
            self.rest(index);
        }
    }

    /// The connection is over: segments find it no longer, and if nobody owns it, it goes.
    pub(super) fn finish(&mut self, index: u32) {
        self.sockets.wheel.cancel(index);
        let Some(socket) = self.sockets.table.tcp(index) else { return };
        if socket.in_demux {
            count_end(&mut self.net.counters, socket);
            self.sockets.demux.remove(&mut self.sockets.table, index);
        }
        match self.sockets.table.tcp(index).map(|s| s.owner) {
            Some(Owner::Nobody) => self.remove_connection(index),
            Some(Owner::HalfOpen { listener }) => {
                if let Some(listener) = self.sockets.table.listener_mut(listener) {
                    listener.half_open.remove(&index);
                }
                self.remove_connection(index);
            }
            // Accepting it tells the application what became of it.
            Some(Owner::App | Owner::Queued { .. }) | None => {}
        }
    }

    pub(crate) fn remove_connection(&mut self, index: u32) {
        self.sockets.demux.remove(&mut self.sockets.table, index);
        self.sockets.wheel.cancel(index);
        if let Some(Socket::Tcp(mut socket)) = self.sockets.table.remove(index) {
            socket.leave(&mut self.mem);
        }
    }
}

/// What listeners and connects have in common.
impl Core {
    pub(crate) fn insert_connection(&mut self, mut socket: TcpSocket) -> Option<SocketId> {
        let sockets = &mut self.sockets;
        if let Owner::HalfOpen { listener } = socket.owner {
            let listener = sockets.table.listener_mut(listener);
            let (zerocopy, link) = listener.map_or((false, None), |l| (l.zerocopy, l.link));
            socket.zerocopy = zerocopy;
            if link.is_some() {
                socket.extra.get_or_insert_default().link = link;
            }
        }
        let id = sockets.table.insert(Socket::Tcp(Box::new(socket)), MAX_SOCKETS)?;
        sockets.demux.insert(&mut sockets.table, id.index());
        sockets.touch(id.index());
        Some(id)
    }

    /// Initial sequence number and timestamp offset.
    pub(crate) fn numbers(&self, now: Instant, tuple: &Tuple) -> (Seq, u32) {
        let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
        let isn = &self.sockets.isn;
        (isn.generate(now, local, remote), isn.timestamp_offset(local, remote))
    }

    pub(crate) fn tcp_link(&self, tuple: &Tuple, bound: Option<LinkId>) -> LinkLimits {
        let by = self.net.bound_link(bound).unwrap_or(None);
        let (mtu, max_super) = self.net.link_limits(tuple.local, tuple.remote, by);
        let ip = if tuple.remote.is_ipv4() { 20 } else { 40 };
        let payload = |mtu: usize| mtu.saturating_sub(ip + 20).clamp(1, usize::from(u16::MAX));
        let mss = payload(mtu);
        let recv_mss = payload(self.net.own_mtu(tuple.local, tuple.remote, by)) as u16;
        let longest = max_super.min(MAX_SUPER_PACKET).saturating_sub(ip + MAX_HEADER_LEN);
        let max_super_payload = if max_super > mtu { longest.max(mss) } else { mss };
        LinkLimits { mss: mss as u16, recv_mss, max_super_payload: max_super_payload as u32 }
    }
}

/// The first number of a connection in the place of one whose last was `above`.
pub(crate) fn iss_above(iss: Seq, above: Seq) -> Seq {
    /// More than any segment still under way from the largest unscaled window (as Linux has it).
    const STEP: u32 = 65_535 + 2;
    if iss.gt(above) { iss } else { above + STEP }
}

pub(crate) fn ports(tuple: &Tuple) -> TcpPorts {
    TcpPorts { local: tuple.local_port, remote: tuple.remote_port }
}

/// An IPv4 address in IPv6's clothes is an IPv4 address (RFC 4291 section 2.5.5.2).
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// The link that a link-local address is on, as Linux has it; 0: not said.
pub(crate) fn scope_of(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(addr) => addr.scope_id(),
    }
}

/// The address with its link.
pub(crate) fn with_scope(addr: SocketAddr, scope: u32) -> SocketAddr {
    match addr {
        SocketAddr::V6(addr) if scope != 0 => {
            SocketAddrV6::new(*addr.ip(), addr.port(), 0, scope).into()
        }
        addr => addr,
    }
}

fn count_losses(counters: &mut Counters, socket: &mut TcpSocket) {
    let counts = socket.conn.loss_counts();
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
    let connected = socket.conn.readiness().contains(pagewire_tcp::Readiness::CONNECTED);
    match socket.conn.error() {
        Some(_) if !connected => counters.tcp_attempts_failed += 1,
        // Of one that came in CLOSE-WAIT, the application learns as a broken pipe.
        Some(TcpError::ConnectionReset | TcpError::BrokenPipe) => {
            counters.tcp_established_resets += 1;
        }
        // In order, or by our own doing.
        None | Some(TcpError::ConnectionAborted) => {}
        Some(_) => counters.tcp_established_lost += 1,
    }
}
