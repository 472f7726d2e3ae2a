//! Datagram sockets (RFC 768), by reference and by copy.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use pagewire_mem::{
    CopyLedger, CopyReason, Frag, FragVec, Instant, PAGE_SIZE, PacketBuf, PagePool, PageWriter,
};

use super::memberships::UdpGroups;
use super::target::Cork;
use crate::counters::DropReason;
use crate::error::Error;
use crate::event::{ErrorOrigin, QueuedError, Readiness, Reporting};
use crate::limits::{
    ERROR_QUEUE, ERROR_QUEUE_EVERY, MAX_LINKS, UDP_CARVED_SHARE, UDP_OVERHEAD, UDP_RECEIVE_BYTES,
    UDP_RECEIVE_DATAGRAMS, UDP_SMALL,
};
use crate::net::wire::udp;
use crate::net::{Flow, IcmpKind, LinkId, LinkIndex, Mem, Quoted, Received, protocol};
use crate::sockets::Sockets;
use crate::sockets::error_queue::ErrorQueue;
use crate::sockets::errors::error_of_icmp;
use crate::sockets::marks::{MtuDiscover, PacketMarks};
use crate::sockets::pages::Pages;
use crate::sockets::tuple::Tuple;
use crate::stack::Core;

pub(crate) struct UdpSocket {
    pub(crate) local: SocketAddr,
    pub(crate) remote: Option<SocketAddr>,
    /// The link that `remote` is on, if it is link-local.
    pub(crate) scope: u32,
    pub(crate) queue: VecDeque<Datagram>,
    /// Bytes charged for what is queued, and how many may be.
    pub(crate) queued_bytes: usize,
    pub(crate) receive_bytes: usize,
    /// Datagrams that found no room, modulo 2^32.
    pub(crate) dropped: u32,
    pub(crate) error: Option<Error>,
    /// No datagram can come or leave: there is no device left.
    pub(crate) down: bool,
    pub(crate) errors: Option<Box<ErrorQueue>>,
    /// On the list of those that have memory of senders in their queues.
    pub(crate) has_lent: bool,
    /// Payload bytes of each datagram of a call that sends more; 0: one call, one datagram.
    pub(crate) segment: u16,
    /// A datagram to which more is to come.
    pub(crate) cork: Option<Box<Cork>>,
    pub(crate) marks: PacketMarks,
    pub(crate) mtu_discover: MtuDiscover,
    /// Payload bytes of the longest datagram that was sent, or was to be.
    pub(crate) longest: u16,
    /// May send to all hosts of a network.
    pub(crate) broadcast: bool,
    /// Several datagrams are received as one.
    pub(crate) joins: bool,
    /// The link that it is bound to.
    pub(crate) link: Option<LinkId>,
    /// What it has to do with groups, once anything has been said about them.
    pub(crate) groups: Option<Box<UdpGroups>>,
    pub(crate) pages: Pages,
    /// It is for every address and port of its link.
    pub(crate) every: Option<DatagramKind>,
    pub(crate) reporting: Reporting,
}

/// A received datagram: two cache lines, which is what the compiler moves without a call.
pub(crate) struct Datagram {
    pub(crate) payload: FragVec,
    at: Instant,
    /// Bytes of receive memory.
    charge: u32,
    /// Of an IPv6 sender whose address counts on its link only.
    scope: u8,
    /// The congestion mark of its packet.
    pub(crate) ecn: u8,
    pub(crate) beyond: Beyond,
    port: u16,
    pub(crate) link: LinkIndex,
    sender: IpAddr,
    pub(crate) to: IpAddr,
}

const _: () = assert!(size_of::<Datagram>() <= 128 && MAX_LINKS < u8::MAX as usize);

/// What a socket for every address and port of a link is told of a datagram, too.
#[derive(Clone, Copy, Default)]
#[repr(align(4))]
pub(crate) struct Beyond {
    /// 0: the socket's own.
    pub(crate) to_port: u16,
    pub(crate) hop_limit: u8,
    pub(crate) dont_fragment: bool,
}

impl Datagram {
    /// Where it was sent, to a socket at `local`.
    pub(crate) fn to(&self, local: SocketAddr) -> SocketAddr {
        let port = self.beyond.to_port;
        SocketAddr::new(self.to, if port == 0 { local.port() } else { port })
    }

    #[inline]
    pub(crate) fn from(&self) -> SocketAddr {
        match self.sender {
            IpAddr::V4(ip) => SocketAddr::from((ip, self.port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.port, 0, self.scope.into()).into(),
        }
    }

    #[inline]
    pub(crate) fn charge(&self) -> usize {
        self.charge as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.payload.iter().map(|frag| frag.len()).sum()
    }
}

/// What a socket for every address of a link receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DatagramKind {
    /// UDP datagrams.
    Udp,
    /// ICMP echo requests; what it sends are replies. In place of the sender's port stands the
    /// identifier, and the payload begins with the sequence number, two bytes (RFC 792, RFC 4443).
    Echo,
}

impl UdpSocket {
    /// A socket bound to `local`.
    pub(crate) fn new(local: SocketAddr, link: Option<LinkId>) -> Self {
        Self {
            local,
            remote: None,
            scope: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            receive_bytes: UDP_RECEIVE_BYTES,
            dropped: 0,
            error: None,
            down: false,
            errors: None,
            has_lent: false,
            segment: 0,
            cork: None,
            marks: PacketMarks::default(),
            mtu_discover: MtuDiscover::default(),
            longest: 0,
            broadcast: false,
            joins: false,
            link,
            groups: None,
            pages: Pages::Ample,
            every: None,
            reporting: Reporting { reported: Readiness::WRITABLE, ..Reporting::default() },
        }
    }

    pub(crate) fn is_echo(&self) -> bool {
        self.every == Some(DatagramKind::Echo)
    }

    /// Why a datagram that keeps `charge` bytes is not taken; an empty queue takes one.
    fn refusal(&self, mem: &Mem, charge: usize) -> Option<DropReason> {
        let room = self.receive_bytes.saturating_sub(self.queued_bytes);
        if (charge > room && !self.queue.is_empty()) || self.queue.len() >= UDP_RECEIVE_DATAGRAMS {
            return Some(DropReason::UdpQueueFull);
        }
        let takes = mem.shared.receive.takes_datagram(self.queued_bytes, charge);
        (!takes).then_some(DropReason::UdpHostMemory)
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let mut readiness = Readiness::WRITABLE;
        if !self.queue.is_empty() {
            readiness |= Readiness::READABLE;
        }
        if self.down {
            readiness |= Readiness::READABLE | Readiness::ERROR;
        }
        if self.error.is_some() {
            readiness |= Readiness::ERROR;
        }
        if self.errors.as_ref().is_some_and(|e| !e.is_empty()) {
            readiness |= Readiness::ERROR_QUEUE;
        }
        if self.remote.is_some() {
            readiness |= Readiness::CONNECTED;
        }
        readiness
    }

    /// Whether it takes what comes from there; `Some(true)`: and from nowhere else.
    pub(crate) fn takes_from(&self, from: SocketAddr) -> Option<bool> {
        match self.remote {
            None => Some(false),
            Some(remote) => (remote == from).then_some(true),
        }
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        let error = self.error.take();
        self.reporting.reported &= self.readiness();
        error
    }

    /// Copies senders' memory that waited for `limit`, as far as possible; whether some is left.
    pub(crate) fn give_back(&mut self, mem: &mut Mem, now: Instant, limit: Duration) -> bool {
        let mut left = false;
        for datagram in &mut self.queue {
            for frag in &mut datagram.payload {
                if frag.completion().is_none() {
                    continue;
                }
                let Mem { pool, writer, ledger, .. } = &mut *mem;
                if now.saturating_since(datagram.at) < limit || !replace(frag, pool, writer, ledger)
                {
                    left = true;
                }
            }
        }
        left
    }

    /// What a call gets that finds no datagram.
    pub(crate) fn nothing(&self) -> Error {
        if self.down { Error::NetworkDown } else { Error::WouldBlock }
    }
}

impl Core {
    /// Byte path, step R4 for datagrams, checksum verified.
    pub(crate) fn udp_input(&mut self, now: Instant, received: &Received, packet: &mut PacketBuf) {
        let header = match udp::Header::parse(packet.head(), packet.len()) {
            Ok(header) => header,
            Err(reason) => return self.net.counters.drop_one(reason),
        };
        let tuple = Tuple {
            local: received.dst,
            remote: received.src,
            local_port: header.dst_port,
            remote_port: header.src_port,
        };
        let scope = self.net.scope_of(received.src, received.link);
        if received.dst.is_multicast() {
            return self.udp_input_group(now, received, &{ tuple }, scope, packet);
        }
        let Sockets { udp_binds, table, .. } = &mut self.sockets;
        let fits = |index| {
            let socket = table.udp(index)?;
            let elsewhere = socket.scope != 0 && socket.scope != scope;
            socket.takes_from(tuple.remote_addr()).filter(|_| !elsewhere)
        };
        let net = &self.net;
        match udp_binds.find_by(&tuple, |link| net.came_by(received) == Some(link), fits) {
            Some(index) => {
                let from = (header.src_port, scope);
                self.udp_queue(now, index, received, from, Beyond::default(), packet);
            }
            None => udp_unclaimed(self, now, tuple, scope, received, packet),
        }
    }

    /// Puts a datagram into the socket's queue if there is room, and takes out its payload.
    #[inline(always)]
    pub(crate) fn udp_queue(
        &mut self,
        now: Instant,
        index: u32,
        received: &Received,
        (port, scope): (u16, u32),
        beyond: Beyond,
        packet: &mut PacketBuf,
    ) {
        let Sockets { table, lent, work, .. } = &mut self.sockets;
        let Some(socket) = table.udp_mut(index) else { return };
        let (mut len, mut pinned, mut carved) = (0, 0, true);
        for frag in packet.frags() {
            len += frag.len();
            pinned += frag.pinned();
            carved &= frag.is_carved();
        }
        // Of carved pages, which several share, those are copied that are not read at once.
        let is_first = || socket.queued_bytes < socket.receive_bytes / UDP_CARVED_SHARE;
        let small = len <= UDP_SMALL && pinned > 4 * len && !(carved && is_first());
        // Judged by what it will keep: a copy of its own, or without memory for one all that it lies in.
        let mut charge = if small { len } else { pinned.max(len) } + UDP_OVERHEAD;
        let mut refusal = socket.refusal(&self.mem, charge);
        if small && refusal.is_none() {
            match copy_small(&mut self.mem, packet.frags(), len) {
                Some(copy) => replace_payload(packet, copy),
                None => {
                    charge = pinned + UDP_OVERHEAD;
                    refusal = socket.refusal(&self.mem, charge);
                }
            }
        }
        if let Some(why) = refusal {
            socket.dropped = socket.dropped.wrapping_add(1);
            self.net.counters.drop_one(why);
            return;
        }
        socket.queued_bytes += charge;
        self.mem.shared.receive.charge_datagrams(0, charge);
        let lent = lent.concerns(packet.frags());
        let (to, link) = (received.dst, received.link);
        let payload = packet.take_frags();
        socket.queue.push_back(Datagram {
            payload,
            at: now,
            ecn: received.ecn,
            charge: u32::try_from(charge).unwrap_or(u32::MAX),
            scope: scope as u8,
            beyond,
            port,
            link,
            sender: received.src,
            to,
        });
        if socket.reporting.every_arrival {
            socket.reporting.reported &= !Readiness::READABLE;
        }
        work.queue_report(index, &mut socket.reporting);
        if lent {
            self.watch_lent(now, index);
        }
    }

    /// Nobody takes the datagram: its sender is told.
    pub(crate) fn refuse(&mut self, now: Instant, received: &Received, packet: &mut PacketBuf) {
        let packet = core::mem::replace(packet, PacketBuf::for_rx());
        self.net.send_port_unreachable(&mut self.mem, now, received, packet);
    }

    /// Processes an echo request to another host's address: the packet's head is the message's up to
    /// the identifier, the rest its fragments.
    pub(crate) fn echo_input(&mut self, now: Instant, received: &Received, packet: &mut PacketBuf) {
        let Some(index) = self.sockets.echoes.find(self.net.came_by(received)) else {
            return self.net.counters.drop_one(DropReason::EchoNoSocket);
        };
        let Some(&[_, _, _, _, i0, i1]) = packet.head().first_chunk() else { return };
        let scope = self.net.scope_of(received.src, received.link);
        let (hop_limit, dont_fragment) = (received.hop_limit, received.forbids_fragments(packet));
        let beyond = Beyond { to_port: 0, hop_limit, dont_fragment };
        let from = (u16::from_be_bytes([i0, i1]), scope);
        self.udp_queue(now, index, received, from, beyond, packet);
    }

    /// An ICMP error about a datagram that we sent.
    pub(crate) fn udp_icmp(&mut self, now: Instant, about: &Quoted, kind: IcmpKind) {
        let to = SocketAddr::new(about.dst, about.dst_port);
        let tuple = Tuple::new(SocketAddr::new(about.src, about.src_port), to);
        let Sockets { udp_binds, table, .. } = &mut self.sockets;
        let fits = |index| {
            let socket = table.udp(index)?;
            socket.takes_from(to).filter(|_| socket.may_have_met(kind, to.ip()))
        };
        // Errors come by any link.
        let found = udp_binds.find_by(&tuple, |_| true, fits);
        // To the sockets for everything by the link that the datagram left by.
        let every = || {
            let by = self.net.way_of(now, (about.src, about.dst), None)?;
            let index = udp_binds.every.find(Some(self.net.link_id(by)))?;
            let met = table.udp(index)?.may_have_met(kind, to.ip());
            (met && about.protocol == protocol::UDP).then_some(index)
        };
        let found = found.or_else(every);
        let Some((index, socket)) = found.and_then(|index| Some((index, table.udp_mut(index)?)))
        else {
            return self.net.counters.drop_one(DropReason::IcmpQuoteNotOurs);
        };
        let mut mtu = 0;
        if let IcmpKind::PacketTooBig { mtu: reported } = kind {
            if socket.mtu_discover.ignores_reports() {
                return;
            }
            // Of many flows, each may be forged by whoever has another: their owner judges.
            if socket.every.is_none() {
                self.net.handle_path_mtu(now, to.ip(), reported);
                if socket.mtu_discover == MtuDiscover::Dont {
                    return;
                }
            }
            mtu = reported as u32;
        }
        let error = error_of_icmp(kind);
        if let Some(errors) = &mut socket.errors {
            let about = socket.every.map(|_| Flow::udp(to, tuple.local_addr()));
            let (origin, to) = (ErrorOrigin::Icmp, Some(to));
            let most = if about.is_some() { ERROR_QUEUE_EVERY } else { ERROR_QUEUE };
            errors.push_within(QueuedError { error, origin, mtu, to, about }, most);
        }
        // > RFC 1122 section 4.1.3.3: UDP MUST pass to the application layer all ICMP error
        // > messages that it receives from the IP layer.
        // As on Linux, a socket without a peer has them in its error queue only, and one with a
        // peer fails for those that trying again does not help.
        let hard = matches!(
            kind,
            IcmpKind::PortUnreachable
                | IcmpKind::ProtocolUnreachable
                | IcmpKind::PacketTooBig { .. }
        );
        if socket.remote.is_some() && hard {
            socket.error = Some(error);
            // Each is an event, also where nobody has taken the one before.
            socket.reporting.reported &= !Readiness::ERROR;
        }
        self.sockets.check_later(index);
    }
}

/// A datagram that no socket takes but the one for every address and port of its link.
#[inline(never)]
fn udp_unclaimed(
    core: &mut Core,
    now: Instant,
    tuple: Tuple,
    scope: u32,
    received: &Received,
    packet: &mut PacketBuf,
) {
    let every = &core.sockets.udp_binds.every;
    if received.is_unicast()
        && let Some(index) = every.find(core.net.came_by(received))
    {
        let beyond = Beyond {
            to_port: tuple.local_port,
            hop_limit: received.hop_limit,
            dont_fragment: received.forbids_fragments(packet),
        };
        let from = (tuple.remote_port, scope);
        return core.udp_queue(now, index, received, from, beyond, packet);
    }
    udp_refused(core, now, tuple, received, packet);
}

#[cold]
fn udp_refused(
    core: &mut Core,
    now: Instant,
    tuple: Tuple,
    received: &Received,
    packet: &mut PacketBuf,
) {
    let reason = match core.sockets.udp_binds.find(&tuple, core.net.came_by(received)) {
        Some(_) => DropReason::UdpNotConnected,
        None => DropReason::UdpNoSocket,
    };
    core.net.counters.drop_one(reason);
    core.refuse(now, received, packet);
}

/// Replaces one fragment by a copy in one piece; `false` if there is none to be had.
fn replace(
    frag: &mut Frag,
    pool: &mut PagePool,
    writer: &mut PageWriter,
    ledger: &mut CopyLedger,
) -> bool {
    if writer.spare() < frag.len() {
        writer.abandon();
        if !writer.refill(pool, frag.len().div_ceil(PAGE_SIZE)) || writer.spare() < frag.len() {
            return false;
        }
    }
    let (copies, n) = writer.write_frag(pool, frag, ledger, CopyReason::LoopPrivate);
    let Some(copy) = copies.into_iter().next().filter(|copy| copy.len() == n && n == frag.len())
    else {
        return false;
    };
    if let Some(completion) = frag.completion() {
        completion.mark_copied();
    }
    *frag = copy;
    true
}

/// Has the packet carry this, which is no longer than what it carried or was made of another's.
pub(crate) fn replace_payload(packet: &mut PacketBuf, payload: FragVec) {
    packet.take_frags();
    payload.into_iter().for_each(|frag| _ = packet.push_frag(frag));
}

/// A copy in one piece, however many came.
#[inline(never)]
fn copy_small(mem: &mut Mem, payload: &[Frag], len: usize) -> Option<FragVec> {
    let Mem { pool, writer, ledger, .. } = mem;
    if writer.spare() < len {
        writer.abandon();
        if !writer.refill(pool, len.div_ceil(PAGE_SIZE)) || writer.spare() < len {
            return None;
        }
    }
    let mut copy = FragVec::new();
    for frag in payload {
        for part in writer.write_frag(pool, frag, ledger, CopyReason::SmallSegment).0 {
            // Parts of one run that follow each other always join.
            match copy.last_mut() {
                Some(last) => last.try_append(part).ok()?,
                None => copy.push(part),
            }
        }
    }
    Some(copy)
}

/// Appends pieces, joining those that lie one behind the other in memory.
pub(crate) fn append(to: &mut FragVec, pieces: FragVec) {
    pieces.into_iter().for_each(|piece| piece.append_to(to));
}
