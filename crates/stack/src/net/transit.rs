//! Packets that are not for us: passed on from link to link, where that is asked for.
//!
//! ```text
//!   link | IP header | anything        handle_frame: not for us
//!          IP header | anything        forward: where from, where to, hop limit, length
//!   link | IP header | anything        the header is edited in the head, fragments move along
//! ```
//!
//! RFC 1812 and RFC 8200, reduced to what a host with several links needs: static routes, no
//! redirects, no multicast. Neither transport headers nor payload are looked at, except where a
//! super-frame or a checksum was left for a device to finish. Half of what waits for neighbours, and
//! three quarters of each device's queue, are kept for packets of our own.

use std::net::IpAddr;

use pagewire_device::limits::MIN_GSO_SIZE;
use pagewire_mem::checksum::Checksum;
use pagewire_mem::{
    CopyReason, GsoKind, HEAD_CAPACITY, Instant, PacketBuf, RxChecksum, TxChecksum,
};
use smallvec::SmallVec;

use super::icmp::ErrorOut;
use super::input::{Meta, Origin, Outcome, Passed, take};
use super::link::LinkIndex;
use super::neighbor::Lookup;
use super::output::{STRANGERS_SHARE, complete, slice};
use super::route::{CachedHop, Delivery, Hop, HopCache, is_link_local};
use super::transport::{spill_head, with_headroom};
use super::wire::{ethernet, icmp, ipv4, ipv6, protocol, pseudo_header_sum};
use super::{Mem, Net};
use crate::counters::DropReason;
use crate::limits::{EXTENSION_HEADERS, MAX_IP_PACKET, MAX_SUPER_PACKET};

const TCP_LEN: usize = 20;
const TCP_DATA_OFFSET: usize = 12;
const TCP_CHECKSUM: usize = 16;
const UDP_LEN: usize = 8;
const UDP_CHECKSUM: usize = 6;

/// What forwarding keeps.
pub(super) struct Transit {
    /// Ways that were found good, from which link and to which.
    cache: HopCache,
}

/// Where a packet goes, and what it may be there.
#[derive(Clone, Copy)]
struct Way {
    out: LinkIndex,
    /// `None`: not found yet.
    header: Option<Option<[u8; ethernet::LEN]>>,
    hop: Hop,
    mtu: usize,
}

/// What the header says of the piece that a packet is.
#[derive(Clone, Copy)]
struct Piece {
    /// A part of a datagram.
    fragment: bool,
    /// Not the first part: no errors are sent about it.
    later: bool,
    /// We may cut it.
    divisible: bool,
}

/// Where the transport header is, as far as the head tells.
#[derive(Clone, Copy)]
struct Transport {
    protocol: u8,
    at: usize,
}

impl Net {
    /// Passes packets on from link to link from now on, or no more.
    pub(crate) fn set_forwarding(&mut self, on: bool) {
        if on != self.transit.is_some() {
            self.transit = on.then(|| Box::new(Transit { cache: HopCache::new() }));
        }
    }

    /// An IPv4 packet for somebody else, its head at the header.
    pub(super) fn forward_v4(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        header: &ipv4::Header,
        origin: Origin,
    ) -> Outcome {
        let meta = Meta {
            src: header.src.into(),
            dst: header.dst.into(),
            protocol: header.protocol,
            ecn: 0,
            hop_limit: header.ttl,
            delivery: Delivery::Foreign,
            header_len: u16::from(header.header_len),
            next_field: 9,
            origin,
        };
        let piece = Piece {
            fragment: header.is_fragment(),
            later: header.fragment_offset > 0,
            divisible: !header.dont_fragment,
        };
        let transport = Transport { protocol: header.protocol, at: usize::from(header.header_len) };
        self.forward(mem, now, packet, meta, piece, transport)
    }

    /// An IPv6 packet for somebody else, its head at the header.
    pub(super) fn forward_v6(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        header: &ipv6::Header,
        origin: Origin,
    ) -> Outcome {
        let meta = Meta {
            src: header.src.into(),
            dst: header.dst.into(),
            protocol: header.next_header,
            ecn: 0,
            hop_limit: header.hop_limit,
            delivery: Delivery::Foreign,
            header_len: ipv6::LEN as u16,
            next_field: 6,
            origin,
        };
        let (transport, fragment, later) = walk(packet.head(), header.next_header);
        // RFC 8200 section 4.5: "unlike IPv4, fragmentation in IPv6 is performed only by source
        // nodes".
        let piece = Piece { fragment, later, divisible: false };
        self.forward(mem, now, packet, meta, piece, transport)
    }

    fn forward(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        meta: Meta,
        piece: Piece,
        transport: Transport,
    ) -> Outcome {
        // RFC 1812 section 5.3.4: "A router MUST NOT forward any packet that the router received
        // as a Link Layer broadcast".
        if meta.origin.group {
            return Err(DropReason::ForwardLinkBroadcast);
        }
        let packet = take(packet);
        let way = match self.way_through(now, &meta) {
            Ok(way) => way,
            Err(reason) => {
                if reason == DropReason::ForwardNoRoute {
                    let error = ErrorOut::net_unreachable(meta.dst.is_ipv4());
                    self.send_transit_error(mem, now, meta, packet, error, (piece, transport));
                }
                return Err(reason);
            }
        };
        // RFC 1812 section 5.3.1: "If the TTL is reduced to zero (or less), the packet MUST be
        // discarded"; RFC 8200 section 3 says the same of the hop limit.
        if meta.hop_limit <= 1 {
            let error = ErrorOut::hop_limit_exceeded(meta.dst.is_ipv4());
            self.send_transit_error(mem, now, meta, packet, error, (piece, transport));
            return Err(DropReason::ForwardHopLimit);
        }
        let mut packet = self.prepare(mem, packet, &meta, piece, transport)?;
        let (longest, whole) = match packet.gso {
            Some(gso) => (usize::from(gso.header_len) + usize::from(gso.size), false),
            None => (packet.len(), true),
        };
        if longest > way.mtu && !piece.divisible {
            // RFC 1812 section 4.3.3.1 (RFC 1191 section 4), RFC 8200 section 5.
            let error = ErrorOut::packet_too_big(meta.dst.is_ipv4(), way.mtu);
            self.send_transit_error(mem, now, meta, packet, error, (piece, transport));
            return Err(DropReason::ForwardTooBig);
        }
        decrement(&mut packet);
        let bytes = packet.len() as u64;
        if longest <= way.mtu {
            self.pass_on(mem, now, packet, &meta, way)?;
        } else if whole {
            // All fragments or none: a datagram that is not complete is of no use to anybody.
            let header_len = usize::from(meta.header_len);
            let each = way.mtu.saturating_sub(header_len) & !7;
            self.has_room(way.out, (packet.len() - header_len).div_ceil(each.max(8)))?;
            for part in self.cut(mem, packet, usize::from(meta.header_len), way.mtu)? {
                self.counters.tx_fragments += 1;
                self.pass_on(mem, now, part, &meta, way)?;
            }
        } else {
            // A super-frame is no packet yet: it is cut to fit.
            if let Some(gso) = &mut packet.gso {
                gso.size = (way.mtu - usize::from(gso.header_len)) as u16;
            }
            self.pass_on(mem, now, packet, &meta, way)?;
        }
        self.counters.forwarded_packets += 1;
        self.counters.forwarded_bytes += bytes;
        Ok(Passed::Nothing)
    }

    /// Where a packet goes, if it may go anywhere.
    fn way_through(&self, now: Instant, meta: &Meta) -> Result<Way, DropReason> {
        let Meta { src, dst, origin, .. } = *meta;
        let cached = self.transit.as_ref().and_then(|transit| {
            transit
                .cache
                .get(now, src, dst, |out| self.generation(out))
                .filter(|c| c.by == origin.link)
        });
        if let Some(hop) = cached {
            let header = Some(hop.link);
            return Ok(Way { out: hop.out, header, hop: Hop::Direct, mtu: hop.mtu });
        }
        if !may_be_forwarded(dst) || self.routes.is_broadcast(dst) {
            return Err(DropReason::ForwardDestination);
        }
        if !may_be_forwarded(src) || !self.routes.is_plausible_source(src) {
            return Err(DropReason::ForwardSource);
        }
        if self.reverse_path_check && !self.routes.leads_to(origin.link, src) {
            return Err(DropReason::SourceOtherLink);
        }
        match self.routes.hop(now, src, dst) {
            Ok((out, hop @ (Hop::Neighbor(_) | Hop::Direct))) => {
                Ok(Way { out, header: None, hop, mtu: self.links.at(out).link.mtu })
            }
            Ok((_, Hop::Local | Hop::Group(_))) => Err(DropReason::ForwardDestination),
            Err(_) => Err(DropReason::ForwardNoRoute),
        }
    }

    /// Makes a received packet one that can be sent: with room for a link header, and with what was
    /// left for a device to finish said as on the way out.
    fn prepare(
        &mut self,
        mem: &mut Mem,
        mut packet: PacketBuf,
        meta: &Meta,
        piece: Piece,
        Transport { protocol, at }: Transport,
    ) -> Result<PacketBuf, DropReason> {
        let gso = packet.gso.take();
        let gso = gso.filter(|gso| packet.len() > usize::from(gso.size) + at);
        let mut header_len = 0;
        if gso.is_some() {
            // Only what it says of a TCP segment's size is believed.
            if protocol != protocol::TCP || piece.fragment || !packet.linearize(at + TCP_LEN) {
                return Err(DropReason::ForwardOffload);
            }
            let words = packet.head().get(at + TCP_DATA_OFFSET).map_or(0, |b| b >> 4);
            header_len = at + usize::from(words) * 4;
            let fits = header_len >= at + TCP_LEN && header_len <= HEAD_CAPACITY - ethernet::LEN;
            if !fits || !packet.linearize(header_len) {
                return Err(DropReason::ForwardOffload);
            }
            spill_head(mem, &mut packet, header_len, CopyReason::LinearHead)?;
            if packet.rx_checksum != RxChecksum::Valid {
                // Cutting makes new checksums: they must not hide that the old one was wrong.
                packet.pull(at);
                let verified =
                    self.verify(mem, &packet, &Meta { protocol, ..*meta }, DropReason::TcpChecksum);
                packet.push(at).ok_or(DropReason::ForwardOffload)?;
                verified?;
                packet.rx_checksum = RxChecksum::Valid;
            }
        }
        let valid = core::mem::take(&mut packet.rx_checksum) == RxChecksum::Valid;
        let mut packet = with_headroom(mem, packet, ethernet::LEN, CopyReason::LinearHead)?;
        packet.tx_checksum = TxChecksum::Done;
        if valid && !piece.fragment {
            leave_checksum_open(&mut packet, meta, Transport { protocol, at });
        }
        let longest = usize::from(u16::MAX);
        packet.gso = gso.filter(|gso| packet.frag_len() > usize::from(gso.size)).map(|gso| {
            let kind = if meta.dst.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
            pagewire_mem::Gso { kind, header_len: header_len.min(longest) as u16, ..gso }
        });
        match packet.gso {
            // Of whatever device: with one byte in each, it would become 65,000 frames.
            Some(gso) if gso.size < MIN_GSO_SIZE => Err(DropReason::ForwardOffload),
            Some(_) if packet.len() > MAX_SUPER_PACKET => Err(DropReason::ForwardOffload),
            None if packet.len() > MAX_IP_PACKET => Err(DropReason::ForwardOffload),
            _ => Ok(packet),
        }
    }

    /// Sends it to the next hop, which may have to be asked for first.
    fn pass_on(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: PacketBuf,
        meta: &Meta,
        way: Way,
    ) -> Result<(), DropReason> {
        let Way { out, hop, mtu, .. } = way;
        self.has_room(out, 1)?;
        let interface = self.links.at_mut(out);
        if interface.lost {
            return Err(DropReason::LinkLost);
        }
        let header = match (way.header, hop) {
            (Some(header), _) => header,
            (None, Hop::Neighbor(next)) => match interface.neighbors.lookup(now, next) {
                Lookup::Known { mac, until } => {
                    let header = Some(self.link_header(out, mac, next.is_ipv6()));
                    self.remember(meta, out, header, mtu, until);
                    header
                }
                Lookup::Unknown if !interface.neighbors.has_room_for_others(next) => {
                    return Err(DropReason::ForwardNeighborFull);
                }
                Lookup::Unknown => {
                    if interface.neighbors.enqueue(now, next, packet, &mut self.counters) {
                        self.send_solicitation(mem, now, out, next, None);
                    }
                    return Ok(());
                }
            },
            (None, _) => {
                self.remember(meta, out, None, mtu, Instant::FAR);
                None
            }
        };
        let emitted = self.emit_within(mem, packet, out, header.as_ref(), STRANGERS_SHARE);
        emitted.map_err(|(_, reason)| reason)
    }

    /// Whether the strangers' share of a device's queue has room for so many frames.
    fn has_room(&self, out: LinkIndex, frames: usize) -> Result<(), DropReason> {
        let (most, full) = STRANGERS_SHARE;
        if self.links.at(out).out.len() + frames <= most { Ok(()) } else { Err(full) }
    }

    fn remember(
        &mut self,
        meta: &Meta,
        out: LinkIndex,
        link: Option<[u8; ethernet::LEN]>,
        mtu: usize,
        until: Instant,
    ) {
        let generation = self.generation(out);
        let Meta { src, dst, origin, .. } = *meta;
        if let Some(transit) = &mut self.transit {
            transit.cache.insert(CachedHop {
                src,
                dst,
                generation,
                until,
                by: origin.link,
                out,
                link,
                mtu,
            });
        }
    }

    /// Cuts an IPv4 packet, header and payload, into fragments of at most `mtu` bytes.
    fn cut(
        &mut self,
        mem: &mut Mem,
        mut packet: PacketBuf,
        header_len: usize,
        mtu: usize,
    ) -> Result<Vec<PacketBuf>, DropReason> {
        let count = &mut self.counters.tx_checksums_completed;
        complete(&mut packet, mem, count).map_err(|(_, reason)| reason)?;
        let head = packet.head().get(..header_len).unwrap_or_default();
        let first: SmallVec<[u8; 64]> = SmallVec::from_slice(head);
        let later = copied_options(&first);
        let fragment = u16::from_be_bytes([byte(&first, 6), byte(&first, 7)]);
        let (begin, more_behind) = (usize::from(fragment & 0x1fff) * 8, fragment & 0x2000 != 0);
        packet.pull(header_len);
        let total = packet.len();
        let each = mtu.saturating_sub(header_len) & !7;
        let mut pieces = slice(packet, each).map_err(|(_, reason)| reason)?;
        let mut offset = 0;
        for piece in &mut pieces {
            let header = if offset == 0 { &first } else { &later };
            let (len, more) = (piece.len(), more_behind || offset + piece.len() < total);
            let room = piece.push(header.len()).ok_or(DropReason::OutHeadroom)?;
            room.copy_from_slice(header);
            let fragment = ((begin + offset) / 8) as u16 | if more { 0x2000 } else { 0 };
            put16(room, 2, (header.len() + len) as u16);
            put16(room, 6, fragment);
            put16(room, 10, 0);
            let mut sum = Checksum::new();
            sum.add_bytes(room);
            put16(room, 10, sum.finish());
            offset += len;
        }
        Ok(pieces)
    }

    fn send_transit_error(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        meta: Meta,
        packet: PacketBuf,
        error: ErrorOut,
        (piece, transport): (Piece, Transport),
    ) {
        // RFC 1812 section 4.3.2.7: not about "any fragment of a datagram other than the first".
        if piece.later {
            return;
        }
        // Whether it is an error itself is told by the header behind the extensions.
        let (protocol, header_len) = (transport.protocol, transport.at as u16);
        let meta = Meta { protocol, header_len, ..meta };
        self.send_error_about(mem, now, &meta, packet, error, true);
    }

    /// Tells the sender of a packet, its head at the IP header, that the next hop did not answer.
    pub(super) fn send_transit_unreachable(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: PacketBuf,
    ) {
        let head = packet.head();
        let (ends, later, transport) = match head.first().map(|b| b >> 4) {
            Some(4) => {
                let Ok(header) = ipv4::Header::parse(head, packet.len()) else { return };
                let at = usize::from(header.header_len);
                let ends = (header.src.into(), header.dst.into());
                let later = header.fragment_offset > 0;
                (ends, later, Transport { protocol: header.protocol, at })
            }
            _ => {
                let Ok(header) = ipv6::Header::parse(head, packet.len()) else { return };
                let (transport, _, later) = walk(head, header.next_header);
                ((header.src.into(), header.dst.into()), later, transport)
            }
        };
        let (src, dst): (IpAddr, IpAddr) = ends;
        let link = self.link_to(now, None, src);
        let meta = Meta {
            src,
            dst,
            protocol: transport.protocol,
            ecn: 0,
            hop_limit: 0,
            delivery: Delivery::Foreign,
            header_len: 0,
            next_field: 0,
            origin: Origin { group: false, loopback: false, link },
        };
        let piece = Piece { fragment: false, later, divisible: false };
        let error = ErrorOut::host_unreachable(dst.is_ipv4());
        self.send_transit_error(mem, now, meta, packet, error, (piece, transport));
    }
}

/// Whether packets to and from an address ever pass a router: RFC 1812 sections 5.3.7 and 5.3.4,
/// RFC 3927 section 2.7, RFC 4291 sections 2.5.2, 2.5.3, 2.5.6 and 2.7. What means all hosts of a
/// network is not known here.
fn may_be_forwarded(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(a) => {
            let [first, ..] = a.octets();
            first != 0 && first != 127 && first < 224 && !a.is_link_local()
        }
        IpAddr::V6(a) => {
            !(a.is_multicast()
                || a.is_unspecified()
                || a.is_loopback()
                || is_link_local(addr)
                || a.to_ipv4_mapped().is_some())
        }
    }
}

/// Walks the extension headers that the head holds: where the transport header is, or the first that
/// is not known; whether the packet is a fragment, and whether a later one.
fn walk(head: &[u8], first: u8) -> (Transport, bool, bool) {
    let (mut protocol, mut at) = (first, ipv6::LEN);
    let (mut fragment, mut later) = (false, false);
    for _ in 0..EXTENSION_HEADERS {
        let rest = head.get(at..).unwrap_or_default();
        match protocol {
            protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS | protocol::ROUTING => {
                let Ok(extension) = ipv6::Extension::parse(rest) else { break };
                (protocol, at) = (extension.next_header, at + extension.len);
            }
            protocol::FRAGMENT => {
                let Ok(part) = ipv6::Fragment::parse(rest) else { break };
                (fragment, later) = (true, part.offset != 0);
                (protocol, at) = (part.next_header, at + ipv6::FRAGMENT_LEN);
                if later {
                    break;
                }
            }
            _ => break,
        }
    }
    (Transport { protocol, at }, fragment, later)
}

/// Takes one off the hop limit, in place.
fn decrement(packet: &mut PacketBuf) {
    match packet.head_mut() {
        [first, _, _, _, _, _, _, _, ttl, _, c0, c1, ..] if *first >> 4 == 4 => {
            *ttl = ttl.saturating_sub(1);
            // RFC 1624 section 4: HC' = ~(~HC + ~m + m'), for a word whose upper byte falls by 1:
            // the checksum's rises by 1, with the carry coming round.
            let (sum, carry) = u16::from_be_bytes([*c0, *c1]).overflowing_add(0x0100);
            [*c0, *c1] = (sum + u16::from(carry)).to_be_bytes();
        }
        [_, _, _, _, _, _, _, hop_limit, ..] => *hop_limit = hop_limit.saturating_sub(1),
        _ => {}
    }
}

/// A checksum that was vouched for may never have been taken: it is left to the next device, or to
/// software.
fn leave_checksum_open(packet: &mut PacketBuf, meta: &Meta, Transport { protocol, at }: Transport) {
    let (len, offset) = match protocol {
        protocol::TCP => (TCP_LEN, TCP_CHECKSUM),
        protocol::UDP => (UDP_LEN, UDP_CHECKSUM),
        protocol::ICMP | protocol::ICMPV6 => (icmp::LEN, usize::from(icmp::CHECKSUM_OFFSET)),
        _ => return,
    };
    let Some(payload) = packet.len().checked_sub(at) else { return };
    if !packet.linearize(at + len) {
        return;
    }
    let sum = match protocol {
        // RFC 792: the checksum of ICMP for IPv4 has no pseudo-header.
        protocol::ICMP => 0,
        _ => pseudo_header_sum(meta.src, meta.dst, protocol, payload),
    };
    let Some(field) = packet.head_mut().get_mut(at + offset..at + offset + 2) else { return };
    // RFC 768: "An all zero transmitted checksum value means that the transmitter generated no
    // checksum".
    if protocol == protocol::UDP && field == [0, 0] && meta.dst.is_ipv4() {
        return;
    }
    field.copy_from_slice(&sum.to_be_bytes());
    packet.tx_checksum = TxChecksum::Partial { start: at as u16, offset: offset as u16 };
}

/// The header of all fragments but the first: RFC 791 section 3.1 says which options are copied.
fn copied_options(header: &[u8]) -> SmallVec<[u8; 64]> {
    let mut copy = SmallVec::from_slice(header.get(..ipv4::LEN).unwrap_or_default());
    let mut options = header.get(ipv4::LEN..).unwrap_or_default();
    while let Some((&kind, rest)) = options.split_first() {
        let len = match kind {
            0 => break,
            1 => 1,
            _ => usize::from(byte(rest, 0)).max(2),
        };
        let (option, next) = options.split_at(len.min(options.len()));
        if kind & 0x80 != 0 {
            copy.extend_from_slice(option);
        }
        options = next;
    }
    while !copy.len().is_multiple_of(4) {
        copy.push(0);
    }
    let words = (copy.len() / 4) as u8;
    if let Some(first) = copy.first_mut() {
        *first = 0x40 | words;
    }
    copy
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}
