//! Datagrams, from the network layer to the queues of sockets (RFC 768).

use std::net::{IpAddr, SocketAddr};

use pagewire_mem::{CopyReason, Frag, FragVec, Gso, Instant, PAGE_SIZE, PacketBuf};

use super::UdpSockets;
use super::socket::{QueuedDatagram, SCOPED, WildcardDetails, replace_payload, split_front};
use crate::counters::DropReason;
use crate::event::{ErrorOrigin, QueuedError, Readiness};
use crate::limits::{
    ERROR_QUEUE, ERROR_QUEUE_EVERY, UDP_CARVED_SHARE, UDP_MAX_SEGMENTS, UDP_OVERHEAD, UDP_SMALL,
};
use crate::net::wire::udp;
use crate::net::{Expected, Flow, IcmpKind, LinkIndex, Mem, QuotedPacket, Received, protocol};
use crate::shards::PortKind;
use crate::sockets::Context;
use crate::sockets::errors::error_of_icmp;
use crate::sockets::marks::{ECN, MtuDiscover};
use crate::sockets::tuple::Tuple;

impl UdpSockets {
    /// As [`input`](Self::input), for most datagrams: each for the only socket of its port, which has no peer.
    /// Returns whether there is a socket.
    #[inline(always)]
    pub(crate) fn input_expected(
        &self,
        cx: &mut Context,
        now: Instant,
        expected: Expected,
        packet: &mut PacketBuf,
    ) -> bool {
        let Some((local_port, remote_port)) = udp::ports(packet.head()) else { return false };
        if cx.net.is_sharded() {
            return self.input(cx, now, &expected.received(), packet);
        }
        let Expected { src, dst, ecn, link, .. } = expected;
        let found = match packet.gso {
            None => self.binds.alone(local_port, dst, cx.net.link_id(link)),
            Some(_) => None,
        };
        match found.filter(|&i| cx.table.udp(i).is_some_and(|it| it.remote.is_none())) {
            Some(index) => {
                let (ends, from) = ((src, dst, link, ecn), (remote_port, 0));
                cx.queue_one(now, index, ends, from, WildcardDetails::default(), (packet, 0));
                true
            }
            None => self.input(cx, now, &expected.received(), packet),
        }
    }

    /// Finds the socket of a datagram, whose header and checksum are verified; returns whether there is one.
    #[inline(never)]
    pub(crate) fn input(
        &self,
        cx: &mut Context,
        now: Instant,
        received: &Received,
        packet: &mut PacketBuf,
    ) -> bool {
        let Some((local_port, remote_port)) = udp::ports(packet.head()) else { return false };
        let tuple = Tuple { local: received.dst, remote: received.src, local_port, remote_port };
        if cx.net.pass_home(PortKind::Udp, &tuple, received, packet) {
            return false;
        }
        let scope = cx.net.scope_of(received.src, received.link);
        if received.dst.is_multicast() {
            self.input_group(cx, now, received, &tuple, scope, packet);
            return true;
        }
        let Context { net, table, .. } = &*cx;
        let from = tuple.remote_addr();
        let fits = move |index| {
            let socket = table.udp(index)?;
            let elsewhere = socket.scope != 0 && socket.scope != scope;
            socket.takes_from(from).filter(|_| !elsewhere)
        };
        let found = self.binds.find_by(&tuple, |link| net.came_by(received) == Some(link), fits);
        match found {
            Some(index) => {
                let from = (remote_port, scope);
                cx.queue_datagram(now, index, received, from, WildcardDetails::default(), packet);
            }
            None => self.unclaimed(cx, now, tuple, scope, received, packet),
        }
        found.is_some()
    }

    /// Processes an echo request to another host's address: the packet's head is the message's up to
    /// the identifier, the rest its fragments.
    pub(crate) fn echo_input(
        &self,
        cx: &mut Context,
        now: Instant,
        received: &Received,
        packet: &mut PacketBuf,
    ) {
        let Some(&[_, _, _, _, i0, i1]) = packet.head().first_chunk() else { return };
        let identifier = u16::from_be_bytes([i0, i1]);
        let tuple = Tuple {
            local: received.dst,
            remote: received.src,
            local_port: 0,
            remote_port: identifier,
        };
        if cx.net.pass_home(PortKind::Echo, &tuple, received, packet) {
            return;
        }
        let Some(index) = self.echoes.find(cx.net.came_by(received)) else {
            return cx.net.counters.drop_one(DropReason::EchoNoSocket);
        };
        let scope = cx.net.scope_of(received.src, received.link);
        let (hop_limit, dont_fragment) = (received.hop_limit, received.forbids_fragments(packet));
        let details = WildcardDetails { to_port: 0, hop_limit, dont_fragment };
        let from = (identifier, scope);
        cx.queue_datagram(now, index, received, from, details, packet);
    }

    /// An ICMP error about a datagram that we sent.
    pub(crate) fn icmp(
        &self,
        cx: &mut Context,
        now: Instant,
        about: &QuotedPacket,
        kind: IcmpKind,
    ) {
        let to = SocketAddr::new(about.dst, about.dst_port);
        let tuple = Tuple::new(SocketAddr::new(about.src, about.src_port), to);
        let Context { net, table, .. } = &mut *cx;
        let fits = |index| {
            let socket = table.udp(index)?;
            socket.takes_from(to).filter(|_| socket.may_have_met(kind, to.ip()))
        };
        // Errors come by any link.
        let found = self.binds.find_by(&tuple, |_| true, fits);
        // To the sockets for everything by the link that the datagram left by.
        let every = || {
            let by = net.outgoing_link(now, (about.src, about.dst), None)?;
            let index = self.binds.wildcards.find(Some(net.link_id(by)))?;
            let met = table.udp(index)?.may_have_met(kind, to.ip());
            (met && about.protocol == protocol::UDP).then_some(index)
        };
        let found = found.or_else(every);
        let Some((index, socket)) = found.and_then(|index| Some((index, table.udp_mut(index)?)))
        else {
            return net.counters.drop_one(DropReason::IcmpQuoteNotOurs);
        };
        let mut mtu = 0;
        if let IcmpKind::PacketTooBig { mtu: reported } = kind {
            if socket.mtu_discover.ignores_reports() {
                return;
            }
            // A report about one of many flows may be forged by the owner of another: the application decides.
            if socket.wildcard.is_none() {
                net.handle_path_mtu(now, to.ip(), reported);
                if socket.mtu_discover == MtuDiscover::Dont {
                    return;
                }
            }
            mtu = reported as u32;
        }
        let error = error_of_icmp(kind);
        if let Some(errors) = &mut socket.errors {
            let about = socket.wildcard.map(|_| Flow::udp(to, tuple.local_addr()));
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
        cx.check_later(index);
    }

    /// A datagram that no socket takes but the one for every address and port of its link.
    #[inline(never)]
    fn unclaimed(
        &self,
        cx: &mut Context,
        now: Instant,
        tuple: Tuple,
        scope: u32,
        received: &Received,
        packet: &mut PacketBuf,
    ) {
        let came_by = cx.net.came_by(received);
        if received.is_unicast()
            && let Some(index) = self.binds.wildcards.find(came_by)
        {
            let details = WildcardDetails {
                to_port: tuple.local_port,
                hop_limit: received.hop_limit,
                dont_fragment: received.forbids_fragments(packet),
            };
            let from = (tuple.remote_port, scope);
            return cx.queue_datagram(now, index, received, from, details, packet);
        }
        let reason = match self.binds.find(&tuple, came_by) {
            Some(_) => DropReason::UdpNotConnected,
            None => DropReason::UdpNoSocket,
        };
        cx.net.counters.drop_one(reason);
        let packet = core::mem::replace(packet, PacketBuf::for_rx());
        cx.net.send_port_unreachable(now, received, packet);
    }
}

impl Context {
    /// Puts a datagram into the socket's queue if there is room, and takes out its payload.
    pub(crate) fn queue_datagram(
        &mut self,
        now: Instant,
        index: u32,
        received: &Received,
        from: (u16, u32),
        details: WildcardDetails,
        packet: &mut PacketBuf,
    ) {
        match packet.gso {
            None => self.queue_one(now, index, received.ends(), from, details, (packet, 0)),
            Some(gso) => self.queue_super_frame(now, index, received, from, details, (packet, gso)),
        }
    }

    /// Queues the datagrams of a super-frame: as one for a socket that joins datagrams, else one by one.
    #[cold]
    #[inline(never)]
    fn queue_super_frame(
        &mut self,
        now: Instant,
        index: u32,
        received: &Received,
        from: (u16, u32),
        details: WildcardDetails,
        (packet, gso): (&mut PacketBuf, Gso),
    ) {
        let (size, len) = (usize::from(gso.size), packet.frag_len());
        if len <= size {
            return self.queue_one(now, index, received.ends(), from, details, (packet, 0));
        }
        // As many as no sender may send would be very many.
        if len > size * UDP_MAX_SEGMENTS {
            return self.net.counters.drop_one(DropReason::UdpLength);
        }
        if self.table.udp(index).is_some_and(|socket| socket.joins) {
            let ends = received.ends();
            return self.queue_one(now, index, ends, from, details, (packet, gso.size));
        }
        let mut rest = packet.take_frags();
        while !rest.is_empty() {
            let mut one = PacketBuf::for_rx();
            for frag in split_front(&mut rest, size) {
                // No more fragments than the super-frame had.
                let _ = one.push_frag(frag);
            }
            self.queue_one(now, index, received.ends(), from, details, (&mut one, 0));
        }
    }

    /// Queues a datagram, or with a segment size several as one. `src`, `dst`, link and ECN are its packet's.
    #[inline(always)]
    fn queue_one<A: Into<IpAddr>>(
        &mut self,
        now: Instant,
        index: u32,
        (src, dst, link, ecn): (A, A, LinkIndex, u8),
        (port, scope): (u16, u32),
        details: WildcardDetails,
        (packet, segment): (&mut PacketBuf, u16),
    ) {
        let Self { table, borrowed, work, .. } = self;
        let Some(socket) = table.udp_mut(index) else { return };
        let (len, pinned, carved) = match packet.frags() {
            // Without a loop for the usual case.
            [frag] => (frag.len(), frag.pinned(), frag.is_carved()),
            frags => {
                let pinned = frags.iter().map(Frag::pinned).sum();
                (packet.frag_len(), pinned, frags.iter().all(Frag::is_carved))
            }
        };
        // Datagrams in carved pages, which several share, are copied unless they are read at once.
        let is_first = || socket.queued_bytes < socket.receive_bytes / UDP_CARVED_SHARE;
        let small = len <= UDP_SMALL && pinned > 4 * len && !(carved && is_first());
        // The charge is what the datagram will keep: a copy of its own, or without memory for one, all
        // pages that it lies in.
        let mut charge = if small { len } else { pinned.max(len) } + UDP_OVERHEAD;
        let mut refusal = socket.refusal(&self.net.mem, charge);
        if small && refusal.is_none() {
            match copy_small(&mut self.net.mem, packet.frags(), len) {
                Some(copy) => replace_payload(packet, copy),
                None => {
                    charge = pinned + UDP_OVERHEAD;
                    refusal = socket.refusal(&self.net.mem, charge);
                }
            }
        }
        if let Some(why) = refusal {
            socket.dropped = socket.dropped.wrapping_add(1);
            self.net.counters.drop_one(why);
            return;
        }
        socket.queued_bytes += charge;
        self.net.mem.shared.memory.charge_datagrams(0, charge);
        let has_borrowed = borrowed.concerns(packet.frags());
        // Made in its place: as an argument it would be written in parts and read as a whole, for which
        // processors wait until the parts are in the cache.
        socket.queue.push_back(QueuedDatagram::EMPTY);
        if let Some(place) = socket.queue.back_mut() {
            place.payload = packet.take_frags();
            place.at = now;
            place.bits = (ecn & ECN) | if scope > 0 { SCOPED } else { 0 };
            place.segment = segment;
            place.charge = u32::try_from(charge).unwrap_or(u32::MAX);
            place.details = details;
            (place.port, place.link) = (port, link);
            (place.sender, place.to) = (src.into(), dst.into());
        }
        if socket.reporting.every_arrival {
            socket.reporting.reported &= !Readiness::READABLE;
        }
        work.queue_report(index, &mut socket.reporting);
        if has_borrowed {
            self.watch_borrowed(now, index);
        }
    }
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
