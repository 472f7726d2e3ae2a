//! Byte path, steps S4 (ip) and S5 (link): puts headers in front; payload is not read.
//!
//! ```text
//!              transport header | payload fragments          send
//!         IP header | transport header | payload             wrap: pseudo-header sum, length
//!   link | IP header | transport header | payload            emit: from the hop cache
//! ```
//!
//! The steady case finds its destination in the hop cache: no table is searched, nothing is
//! allocated. What the device cannot do (checksums, cutting super-frames) is done last.

pub(super) mod answer;
mod refused;

use std::collections::VecDeque;
use std::net::IpAddr;

use pagewire_mem::link::offload::{self, Pieces};
use pagewire_mem::{
    Completion, CopyReason, Frag, Gso, GsoKind, Instant, PacketBuf, RxChecksum, TxChecksum,
};

use crate::counters::{Counters, DropReason};
use crate::error::Error;
use crate::limits::{
    DEFAULT_HOP_LIMIT, FORWARD_OUT_FRAMES, LOOPBACK_PACKETS, MAX_IP_PACKET, OUT_QUEUE_FRAMES,
    UDP_SEGMENTS_PER_FRAME,
};
use crate::net::links::config::LinkIndex;
use crate::net::links::{DeviceLimits, Interface};
use crate::net::neighbors::{NeighborLookup, QueuedPacket};
use crate::net::routes::Hop;
use crate::net::routes::hop_cache::CachedHop;
use crate::net::wire::ethernet::{self, Mac};
use crate::net::wire::{ipv4, ipv6, protocol, pseudo_header_sum};
use crate::net::{Mem, Net, Outgoing, TooLong};

/// The error for the caller, and the reason that is counted.
pub(super) type SendFailure = (Error, DropReason);

pub(super) const TOO_LONG: SendFailure = (Error::MessageTooLong, DropReason::OutTooLong);
/// The share of a device's queue for our own packets, and why one finds no room there.
pub(super) const OWN: QueueShare = (OUT_QUEUE_FRAMES, DropReason::OutQueueFull);
/// The share for forwarded packets.
pub(super) const FORWARDED: QueueShare = (FORWARD_OUT_FRAMES, DropReason::ForwardQueueFull);
/// Frames that a queue may have while more are added, and the reason beyond that.
pub(super) type QueueShare = (usize, DropReason);

const NO_HEADROOM: SendFailure = (Error::InvalidInput, DropReason::OutHeadroom);

/// The IP header of a packet to be sent, less what depends on the piece.
#[derive(Clone, Copy)]
pub(super) struct Envelope {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) protocol: u8,
    pub(super) ecn: u8,
    pub(super) dont_fragment: bool,
    pub(super) too_long: TooLong,
    pub(super) hop_limit: u8,
    /// See [`Outgoing::by`].
    pub(super) by: Option<LinkIndex>,
}

impl Net {
    /// Byte path, steps S4 and S5: sends a packet. One that cannot be sent is dropped, counted and
    /// reported; one that waits for its neighbour's station is `Ok`.
    pub(crate) fn send(&mut self, now: Instant, out: Outgoing) -> Result<(), Error> {
        match out.protocol {
            protocol::TCP => self.counters.tx_tcp += 1,
            protocol::UDP => self.counters.tx_udp += 1,
            _ => self.counters.tx_icmp += 1,
        }
        self.try_send(now, out).map_err(|(error, reason)| {
            self.counters.drop_one(reason);
            error
        })
    }

    /// Everything but the steady case: an unknown destination, ourselves, a datagram to be cut.
    #[cold]
    #[inline(never)]
    pub(super) fn send_slowly(
        &mut self,
        now: Instant,
        envelope: Envelope,
        mut packet: PacketBuf,
    ) -> Result<(), SendFailure> {
        let Envelope { src, dst, .. } = envelope;
        if src.is_ipv4() != dst.is_ipv4() {
            return Err((Error::AddressFamily, DropReason::OutSource));
        }
        let next = self.next_hop(now, &envelope);
        if !self.routes.is_local(src) && !next.is_ok_and(|next| self.takes_any_source(next)) {
            return Err((Error::AddressNotAvailable, DropReason::OutSource));
        }
        let next = next?;
        let (link, hop) = next;
        if hop == Hop::Local {
            return self.loop_back(packet, &envelope, 0);
        }
        let mut path = self.path_mtu(now, link, dst);
        if envelope.by.is_some() && self.routes.hop(now, src, dst) != Ok(next) {
            // The route leads elsewhere: this hop is not cached.
            path.1 = now;
        }
        if fits(&self.links.at(link).device, &packet, &envelope, path.0)? {
            self.wrap(&mut packet, &envelope)?;
            return self.dispatch(now, packet, (src, dst), next, path);
        }
        let longest = match envelope.too_long {
            TooLong::CutToLink => self.links.at(link).device.mtu,
            _ => path.0,
        };
        for piece in self.fragment(packet, &envelope, longest)? {
            self.counters.tx_fragments += 1;
            self.dispatch(now, piece, (src, dst), next, path)?;
        }
        Ok(())
    }

    /// The next hop of a packet, and the link that it leaves by.
    pub(super) fn next_hop(
        &self,
        now: Instant,
        to: &Envelope,
    ) -> Result<(LinkIndex, Hop), SendFailure> {
        let hop = match to.by {
            None => self.routes.hop(now, to.src, to.dst),
            Some(link) => self.routes.hop_by(now, link, to.dst),
        };
        hop.map_err(|error| (error, DropReason::NoRoute))
    }

    fn takes_any_source(&self, (link, hop): (LinkIndex, Hop)) -> bool {
        hop != Hop::Local && self.links.at(link).transparent
    }

    /// Puts the IP header in front of a packet that is sent in one piece.
    #[inline]
    pub(super) fn wrap(
        &mut self,
        packet: &mut PacketBuf,
        to: &Envelope,
    ) -> Result<(), SendFailure> {
        match (to.src, to.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                self.counters.tx_ipv4 += 1;
                let header = ipv4::Header {
                    tos: to.ecn,
                    // RFC 6864 section 4.1: a packet that is never cut may have any identification.
                    id: if to.dont_fragment {
                        0
                    } else {
                        self.next_id(to, segments(packet)) as u16
                    },
                    // RFC 1191 section 3: path MTU discovery.
                    dont_fragment: to.dont_fragment,
                    ttl: to.hop_limit,
                    ..ipv4::Header::new(src, dst, to.protocol, packet.len())
                };
                push(packet, &header.emit())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                self.counters.tx_ipv6 += 1;
                let header = ipv6::Header {
                    traffic_class: to.ecn,
                    hop_limit: to.hop_limit,
                    ..ipv6::Header::new(src, dst, to.protocol, packet.len())
                };
                push(packet, &header.emit())
            }
            _ => Err((Error::AddressFamily, DropReason::OutSource)),
        }
    }

    /// Sends an ICMPv6 message to a station that is known without asking.
    pub(super) fn send_to_station(
        &mut self,
        (src, dst): (IpAddr, IpAddr),
        hop_limit: u8,
        checksum_offset: u16,
        mut packet: PacketBuf,
        (link, mac): (LinkIndex, Mac),
    ) -> Result<(), SendFailure> {
        let protocol = protocol::ICMPV6;
        let (ecn, dont_fragment, too_long) = (0, false, TooLong::CutToPath);
        let envelope =
            Envelope { src, dst, protocol, ecn, dont_fragment, too_long, hop_limit, by: None };
        self.prepare_checksum(&mut packet, &envelope, checksum_offset)?;
        self.wrap(&mut packet, &envelope)?;
        let header = self.link_header(link, mac, true);
        self.emit(packet, link, Some(&header))
    }

    /// Sends an IP packet to the next hop, which may have to be resolved first.
    pub(super) fn dispatch(
        &mut self,
        now: Instant,
        packet: PacketBuf,
        (src, dst): (IpAddr, IpAddr),
        (out, hop): (LinkIndex, Hop),
        (mtu, mtu_until): (usize, Instant),
    ) -> Result<(), SendFailure> {
        // The first packet by this link after its device was lost comes by here.
        if self.links.at(out).lost {
            return Err((Error::NetworkDown, DropReason::LinkLost));
        }
        let v6 = dst.is_ipv6();
        let (link, until) = match hop {
            Hop::Local => return Err((Error::InvalidInput, DropReason::NoRoute)),
            Hop::Direct => (None, Instant::FAR),
            Hop::Group(mac) => (Some(self.link_header(out, mac, v6)), Instant::FAR),
            Hop::Neighbor(next) => match self.links.at_mut(out).neighbors.lookup(now, next) {
                NeighborLookup::Known { mac, until } => {
                    (Some(self.link_header(out, mac, v6)), until)
                }
                NeighborLookup::Unknown => {
                    let waiting = QueuedPacket { packet, ours: true };
                    let neighbors = &mut self.links.at_mut(out).neighbors;
                    if neighbors.enqueue(now, next, waiting, &mut self.counters) {
                        self.send_solicitation(now, out, next, None);
                    }
                    return Ok(());
                }
            },
        };
        let generation = self.generation(out);
        let any_source = self.links.at(out).transparent && self.routes.is_foreign_host(src);
        self.cache.insert(CachedHop {
            src,
            any_source,
            dst,
            generation,
            until: until.min(mtu_until),
            by: 0,
            out,
            link,
            mtu,
        });
        self.emit(packet, out, link.as_ref())
    }

    pub(super) fn link_header(&self, link: LinkIndex, dst: Mac, v6: bool) -> [u8; ethernet::LEN] {
        let ethertype = if v6 { ethernet::IPV6 } else { ethernet::IPV4 };
        ethernet::Header { dst, src: self.links.at(link).device.mac, ethertype }.emit()
    }

    /// Sends packets that waited for a neighbour's station.
    pub(super) fn release(&mut self, link: LinkIndex, mac: Mac, queue: VecDeque<QueuedPacket>) {
        for QueuedPacket { packet, ours } in queue {
            let v6 = packet.head().first().is_some_and(|b| b >> 4 == 6);
            let header = self.link_header(link, mac, v6);
            let share = if ours { OWN } else { FORWARDED };
            if let Err((_, reason)) = self.emit_within(packet, link, Some(&header), share) {
                self.counters.drop_one(reason);
            }
        }
    }

    /// Does what the link's device cannot, puts the link header in front and queues the frame.
    pub(super) fn emit(
        &mut self,
        packet: PacketBuf,
        link: LinkIndex,
        header: Option<&[u8; ethernet::LEN]>,
    ) -> Result<(), SendFailure> {
        self.emit_within(packet, link, header, OWN)
    }

    /// As [`emit`](Self::emit), for packets with another share of the device's queue.
    pub(super) fn emit_within(
        &mut self,
        mut packet: PacketBuf,
        link: LinkIndex,
        header: Option<&[u8; ethernet::LEN]>,
        share: QueueShare,
    ) -> Result<(), SendFailure> {
        if self.links.at(link).out.len() >= share.0 {
            return Err((Error::NoBuffers, share.1));
        }
        self.finish(&mut packet, link, header)?;
        self.enqueue(packet, link, share)
    }

    /// Turns an IP packet into a frame, in place.
    #[inline(always)]
    pub(super) fn finish(
        &mut self,
        packet: &mut PacketBuf,
        link: LinkIndex,
        header: Option<&[u8; ethernet::LEN]>,
    ) -> Result<(), SendFailure> {
        let interface = self.links.at(link);
        if interface.out.len() >= OUT_QUEUE_FRAMES {
            return Err((Error::NoBuffers, DropReason::OutQueueFull));
        }
        let (max_frags, sums) = (interface.device.max_frags, interface.device.tx_checksum);
        if let Some(header) = header {
            push(packet, header)?;
        }
        if self.looped_copy || packet.frags().len() > max_frags {
            self.copy_payload(packet, max_frags)?;
        }
        if !sums && packet.gso.is_none() {
            complete(packet, &mut self.mem, &mut self.counters.tx_checksums_completed)?;
        }
        Ok(())
    }

    /// Queues a frame. Cuts it if the device does not, into as many frames as there is room for. Moves
    /// the frame once: a frame just written is slow to copy.
    #[inline(always)]
    pub(super) fn enqueue(
        &mut self,
        packet: PacketBuf,
        link: LinkIndex,
        (most, full): QueueShare,
    ) -> Result<(), SendFailure> {
        self.counters.tx_bytes += packet.len() as u64;
        // As an IP packet.
        let len = packet.len().saturating_sub(ethernet::LEN);
        let Interface { device, out, .. } = self.links.at_mut(link);
        let (cuts, longest) = match packet.gso.map(|gso| (gso.kind, gso.size)) {
            None => (true, usize::MAX),
            Some((GsoKind::TcpV4, _)) => (device.tso_v4 && device.tx_checksum, device.max_super_v4),
            Some((GsoKind::TcpV6, _)) => (device.tso_v6 && device.tx_checksum, device.max_super_v6),
            Some((GsoKind::Udp, size)) => {
                let headers = len - packet.frag_len().min(len);
                let most = headers + UDP_SEGMENTS_PER_FRAME * usize::from(size);
                (device.uso && device.tx_checksum, device.max_super_udp.min(most))
            }
        };
        // Forwarded super-frames may be longer than the device takes.
        if cuts && len <= longest {
            self.counters.tx_frames += 1;
            out.push_back(packet);
            if device.max_frags > 0 {
                return Ok(());
            }
            return join(&mut self.mem, out, 1);
        }
        let (longest, room) = (if cuts { longest } else { 0 }, most.saturating_sub(out.len()));
        let cut = offload::cut_within(packet, out, &mut self.mem.ledger, longest, room);
        let Pieces { made, left_out } =
            cut.map_err(|_| (Error::InvalidInput, DropReason::OutOffload))?;
        self.counters.tx_cut_in_software += 1;
        self.counters.drop_many(full, left_out as u64);
        let sums = out.iter().rev().take(made).filter(|frame| frame.gso.is_none());
        self.counters.tx_checksums_completed += sums.count() as u64;
        self.counters.tx_frames += made as u64;
        if device.max_frags > 0 { Ok(()) } else { join(&mut self.mem, out, made) }
    }

    /// Queues a packet to this host. Payload is copied by default: a receiver may never read it.
    pub(super) fn loop_back(
        &mut self,
        mut packet: PacketBuf,
        to: &Envelope,
        link: LinkIndex,
    ) -> Result<(), SendFailure> {
        let total = ip_header_len(to.dst) + packet.len();
        if total > longest_packet(to.dst) {
            return Err(TOO_LONG);
        }
        if self.loopback.len() >= LOOPBACK_PACKETS {
            return Err((Error::NoBuffers, DropReason::LoopbackFull));
        }
        if !self.loopback_by_reference {
            copy_privately(&mut self.mem, &mut packet)?;
        }
        self.wrap(&mut packet, to)?;
        packet.tx_checksum = TxChecksum::Done;
        packet.rx_checksum = RxChecksum::Valid;
        self.counters.loopback_packets += 1;
        self.loopback.push_back((link, packet));
        Ok(())
    }

    /// The MTU of the path that begins with a link, and until when it holds.
    pub(super) fn path_mtu(&self, now: Instant, link: LinkIndex, dst: IpAddr) -> (usize, Instant) {
        let most = self.links.at(link).device.mtu;
        match self.paths.get(now, dst) {
            Some((mtu, until)) => (mtu.min(most), until),
            None => (most, Instant::FAR),
        }
    }
}

impl Net {
    #[inline(always)]
    fn try_send(&mut self, now: Instant, mut out: Outgoing) -> Result<(), SendFailure> {
        let Outgoing { src, dst, protocol, ecn, dont_fragment, too_long, by, .. } = out;
        let checksum_offset = out.checksum_offset;
        let hop_limit = out.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT);
        let envelope = Envelope { src, dst, protocol, ecn, dont_fragment, too_long, hop_limit, by };
        if let Some(offset) = checksum_offset {
            self.prepare_checksum(&mut out.packet, &envelope, offset)?;
        }
        if let Some(gso) = &mut out.packet.gso
            && gso.kind != GsoKind::Udp
        {
            gso.kind = if dst.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
        }
        let is_foreign = || self.routes.is_foreign_host(src);
        let cached = self.cache.get(now, src, dst, |out| self.generation(out), is_foreign);
        let Some(hop) = cached.filter(|hop| by.is_none_or(|by| hop.out == by)) else {
            return self.send_slowly(now, envelope, out.packet);
        };
        let (header, mtu, link) = (hop.link, hop.mtu, hop.out);
        if !fits(&self.links.at(link).device, &out.packet, &envelope, mtu)? {
            return self.send_slowly(now, envelope, out.packet);
        }
        self.wrap(&mut out.packet, &envelope)?;
        self.finish(&mut out.packet, link, header.as_ref())?;
        self.enqueue(out.packet, link, OWN)
    }

    /// Cuts a datagram into IP packets of at most `mtu` bytes; payload by reference.
    fn fragment(
        &mut self,
        mut packet: PacketBuf,
        to: &Envelope,
        mtu: usize,
    ) -> Result<Vec<PacketBuf>, SendFailure> {
        if let TxChecksum::Partial { .. } = packet.tx_checksum {
            complete(&mut packet, &mut self.mem, &mut self.counters.tx_checksums_completed)?;
        }
        let id = self.next_id(to, 1);
        let overhead =
            ip_header_len(to.dst) + if to.dst.is_ipv6() { ipv6::FRAGMENT_LEN } else { 0 };
        let each = mtu.saturating_sub(overhead) & !7;
        let total = packet.len();
        let mut pieces = slice(packet, each)?;
        let mut offset = 0;
        for piece in &mut pieces {
            let len = piece.len();
            let more = offset + len < total;
            self.wrap_fragment(piece, to, (offset as u16, more, id))?;
            offset += len;
        }
        Ok(pieces)
    }

    fn wrap_fragment(
        &mut self,
        piece: &mut PacketBuf,
        to: &Envelope,
        (offset, more, id): (u16, bool, u32),
    ) -> Result<(), SendFailure> {
        match (to.src, to.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                self.counters.tx_ipv4 += 1;
                let header = ipv4::Header {
                    tos: to.ecn,
                    id: id as u16,
                    more_fragments: more,
                    fragment_offset: offset,
                    ttl: to.hop_limit,
                    ..ipv4::Header::new(src, dst, to.protocol, piece.len())
                };
                push(piece, &header.emit())
            }
            _ => {
                let part = ipv6::Fragment { next_header: to.protocol, offset, more, id };
                push(piece, &part.emit())?;
                self.wrap(piece, &Envelope { protocol: protocol::FRAGMENT, ..*to })
            }
        }
    }

    /// Copies payload that the device cannot gather, and payload that counts as looped.
    #[cold]
    fn copy_payload(&mut self, packet: &mut PacketBuf, max: usize) -> Result<(), SendFailure> {
        let no_pages = (Error::NoBuffers, DropReason::NoPages);
        if self.looped_copy && packet.frags().iter().any(|frag| frag.completion().is_some()) {
            copy_privately(&mut self.mem, packet)?;
        }
        if packet.frags().len() <= max {
            return Ok(());
        }
        packet.frags().iter().filter_map(Frag::completion).for_each(Completion::mark_copied);
        // Frames are joined last: until then a super-frame's headers stay apart.
        let Mem { pool, writer, ledger, .. } = &mut self.mem;
        if max == 0 || offload::linearize(packet, max, pool, writer, ledger) {
            Ok(())
        } else {
            Err(no_pages)
        }
    }

    /// The first of `n` identifications in a row, for the fragments of as many datagrams. RFC 7739 section 5.3 and RFC 6274
    /// section 3.5.2: a counter for each pair of addresses, begun where peers cannot foresee. Each shard of a host has a
    /// part of the numbers: a peer could take fragments from two shards for parts of one datagram (RFC 6864 section 4).
    fn next_id(&mut self, to: &Envelope, n: u32) -> u32 {
        let mut octets = [0; 32];
        for (place, octet) in octets.iter_mut().zip(bytes_of(to.src).chain(bytes_of(to.dst))) {
            *place = octet;
        }
        let hash = self.keyed.digest(&[b"id", &octets]);
        let slot = hash as usize % self.ids.len();
        let Some(count) = self.ids.get_mut(slot) else { return 0 };
        let first = ((hash >> 32) as u32).wrapping_add(count.wrapping_add(1));
        *count = count.wrapping_add(n);
        let Some(shard) = &self.shard else { return first };
        let part = shard.part_of(if to.dst.is_ipv4() { 1 << 16 } else { 1 << 32 });
        let len = part.end - part.start;
        let at = u64::from(first) % len;
        let rest = len - at;
        if u64::from(n) <= rest {
            return (part.start + at) as u32;
        }
        // The row begins with the part: what is left of the part at its end is too short.
        *count = count.wrapping_add(rest as u32);
        part.start as u32
    }
}

/// The number of packets that a frame becomes on the wire.
fn segments(packet: &PacketBuf) -> u32 {
    let cut = |gso: Gso| packet.frag_len().div_ceil(usize::from(gso.size).max(1));
    packet.gso.map_or(1, cut) as u32
}

/// Whether this link takes the packet in one piece; an error if it is not sent at all.
#[inline(always)]
pub(super) fn fits(
    device: &DeviceLimits,
    packet: &PacketBuf,
    to: &Envelope,
    mtu: usize,
) -> Result<bool, SendFailure> {
    let ip_len = ip_header_len(to.dst);
    let total = ip_len + packet.len();
    let on_wire = match packet.gso {
        Some(gso) if gso.kind == GsoKind::Udp && total <= longest_packet(to.dst) => {
            ip_len + usize::from(gso.header_len) + usize::from(gso.size)
        }
        Some(_) if total > device.max_super(to.dst) => return Err(TOO_LONG),
        Some(gso) => ip_len + usize::from(gso.header_len) + usize::from(gso.size),
        None if total > longest_packet(to.dst) => return Err(TOO_LONG),
        None => total,
    };
    let (limit, is_cut) = match to.too_long {
        TooLong::RefusedByLink => (device.mtu, false),
        TooLong::CutToPath => (mtu, true),
        TooLong::RefusedByPath => (mtu, false),
        TooLong::CutToLink => (device.mtu, true),
    };
    if on_wire <= limit {
        return Ok(true);
    }
    if is_cut { Ok(false) } else { Err(TOO_LONG) }
}

/// Cuts a packet by reference into pieces of up to `each` bytes; the first keeps the head.
pub(super) fn slice(mut packet: PacketBuf, each: usize) -> Result<Vec<PacketBuf>, SendFailure> {
    let total = packet.len();
    if each <= packet.head().len() {
        return Err(TOO_LONG);
    }
    let mut frags: VecDeque<_> = packet.take_frags().into_iter().collect();
    let mut pieces = Vec::with_capacity(total.div_ceil(each));
    let mut left = total;
    let mut piece = packet;
    while left > 0 {
        let len = each.min(left);
        while piece.len() < len {
            let Some(frag) = frags.front_mut() else { return Err(TOO_LONG) };
            let part = frag.split_to(len - piece.len());
            if frag.is_empty() {
                frags.pop_front();
            }
            piece.push_frag(part).map_err(|_| TOO_LONG)?;
        }
        pieces.push(core::mem::replace(&mut piece, PacketBuf::for_tx()));
        left -= len;
    }
    Ok(pieces)
}

/// Joins each of the last `frames` frames into one piece, for a device that takes nothing else.
#[cold]
fn join(mem: &mut Mem, out: &mut VecDeque<PacketBuf>, frames: usize) -> Result<(), SendFailure> {
    let from = out.len().saturating_sub(frames);
    let Mem { pool, writer, ledger, .. } = mem;
    let joined = |frame: &mut PacketBuf| offload::linearize(frame, 0, pool, writer, ledger);
    if out.range_mut(from..).all(joined) {
        return Ok(());
    }
    out.truncate(from);
    Err((Error::NoBuffers, DropReason::NoPages))
}

impl Net {
    /// Leaves a checksum to the device, see [`leave_checksum`]; the packet begins with the transport header.
    #[inline]
    pub(super) fn prepare_checksum(
        &mut self,
        packet: &mut PacketBuf,
        to: &Envelope,
        offset: u16,
    ) -> Result<(), SendFailure> {
        let at = (0, offset);
        leave_checksum(packet, (to.src, to.dst), to.protocol, at, &mut self.mem, &mut self.counters)
    }
}

/// Leaves the checksum at an offset in the transport header, which begins at `start`, to the device.
/// The only place that marks a checksum as partial: devices complete those of TCP and UDP, as on
/// Linux, and all others are complete from here on. A tap's kernel, and a guest's, believe the mark
/// without a check, so a receiver would see the bare field.
#[inline]
pub(super) fn leave_checksum(
    packet: &mut PacketBuf,
    (src, dst): (IpAddr, IpAddr),
    protocol: u8,
    (start, offset): (u16, u16),
    mem: &mut Mem,
    counters: &mut Counters,
) -> Result<(), SendFailure> {
    let sum = match protocol {
        // RFC 792: the checksum of ICMP for IPv4 has no pseudo-header.
        protocol::ICMP => 0,
        _ => pseudo_header_sum(src, dst, protocol, packet.len() - usize::from(start)),
    };
    let at = usize::from(start) + usize::from(offset);
    let field = packet.head_mut().get_mut(at..at + 2);
    field.ok_or(NO_HEADROOM)?.copy_from_slice(&sum.to_be_bytes());
    packet.tx_checksum = TxChecksum::Partial { start, offset };
    match protocol {
        protocol::TCP | protocol::UDP => Ok(()),
        _ => complete(packet, mem, &mut counters.tx_checksums_completed),
    }
}

/// Puts a header in front, and shifts offsets that count from the start of the frame.
#[inline(always)]
fn push<const N: usize>(packet: &mut PacketBuf, header: &[u8; N]) -> Result<(), SendFailure> {
    packet.push(N).ok_or(NO_HEADROOM)?.copy_from_slice(header);
    let n = N as u16;
    if let Some(gso) = &mut packet.gso {
        gso.header_len += n;
    }
    if let TxChecksum::Partial { start, .. } = &mut packet.tx_checksum {
        *start += n;
    }
    Ok(())
}

/// Replaces the payload by private copies, and marks the completions of the originals as copied.
fn copy_privately(mem: &mut Mem, packet: &mut PacketBuf) -> Result<(), SendFailure> {
    let Mem { pool, writer, ledger, .. } = mem;
    for frag in packet.take_frags() {
        let (parts, copied) = writer.write_frag(pool, &frag, ledger, CopyReason::LoopPrivate);
        if copied < frag.len() {
            return Err((Error::NoBuffers, DropReason::NoPages));
        }
        if let Some(completion) = frag.completion() {
            completion.mark_copied();
        }
        for part in parts {
            let refused = (Error::NoBuffers, DropReason::TooManyFragments);
            packet.push_frag(part).map_err(|_| refused)?;
        }
    }
    Ok(())
}

pub(super) fn complete(
    frame: &mut PacketBuf,
    mem: &mut Mem,
    count: &mut u64,
) -> Result<(), SendFailure> {
    if let TxChecksum::Partial { .. } = frame.tx_checksum {
        let refused = (Error::InvalidInput, DropReason::OutOffload);
        offload::complete_checksum(frame, &mut mem.ledger).map_err(|_| refused)?;
        *count += 1;
    }
    Ok(())
}

/// The longest IP packet: the field counts IPv4's header, and not IPv6's.
fn longest_packet(dst: IpAddr) -> usize {
    match dst {
        IpAddr::V4(_) => MAX_IP_PACKET,
        IpAddr::V6(_) => ipv6::LEN + MAX_IP_PACKET,
    }
}

fn ip_header_len(dst: IpAddr) -> usize {
    match dst {
        IpAddr::V4(_) => ipv4::LEN,
        IpAddr::V6(_) => ipv6::LEN,
    }
}

fn bytes_of(addr: IpAddr) -> impl Iterator<Item = u8> {
    let octets = match addr {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    };
    octets.into_iter()
}
