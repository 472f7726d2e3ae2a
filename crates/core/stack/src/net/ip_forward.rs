//! IP forwarding: packets for others pass from link to link, where the application has turned it on.
//!
//! ```text
//!   link | IP header | anything        handle_frame: not for us
//!          IP header | anything        forward: where from, where to, hop limit, length
//!   link | IP header | anything        the header is edited in the head, fragments move along
//! ```
//!
//! A super-frame stays whole for a device that takes it, becomes as few shorter ones as possible for a
//! device with a lower limit, and is cut to segments for others.
//!
//! RFC 1812 and RFC 8200, reduced to what a host with several links needs: static routes, no
//! redirects, no multicast. Transport headers and payload are read only where a super-frame or a
//! checksum was left for a device to finish. Half of the room for packets that wait for neighbours, and
//! a quarter of each device's queue, are kept for packets of our own.

use std::collections::VecDeque;
use std::net::IpAddr;

use pagewire_mem::checksum::Checksum;
use pagewire_mem::link::limits::{MAX_UDP_SEGMENTS, MIN_GSO_SIZE};
use pagewire_mem::link::offload;
use pagewire_mem::{
    CopyReason, GsoKind, HEAD_CAPACITY, Instant, PacketBuf, RxChecksum, TxChecksum,
};
use smallvec::SmallVec;

use crate::counters::DropReason;
use crate::limits::{EXTENSION_HEADERS, MAX_IP_PACKET, MAX_SUPER_PACKET};
use crate::net::Net;
use crate::net::head::{spill_head, with_headroom};
use crate::net::icmp::errors::IcmpError;
use crate::net::input::received::{InputResult, Origin, Received};
use crate::net::links::config::LinkIndex;
use crate::net::neighbors::{NeighborLookup, QueuedPacket};
use crate::net::output::{FORWARDED, complete, leave_checksum, slice};
use crate::net::routes::hop_cache::{CachedHop, HopCache};
use crate::net::routes::{Hop, is_link_local};
use crate::net::wire::{ethernet, icmp, ipv4, ipv6, protocol, tcp, udp};

pub(super) struct ForwardingCache {
    /// Ways found before, each from one link to another.
    cache: HopCache,
}

/// Where a packet goes, and how long it may be there.
#[derive(Clone, Copy)]
struct ForwardPath {
    out: LinkIndex,
    /// `None`: not found yet.
    header: Option<Option<[u8; ethernet::LEN]>>,
    hop: Hop,
    mtu: usize,
}

/// The part of a datagram that a packet has.
#[derive(Clone, Copy)]
struct FragmentInfo {
    fragment: bool,
    /// Not the first fragment: no errors are sent about it.
    later: bool,
    /// We may cut it.
    divisible: bool,
}

impl Net {
    /// Turns IP forwarding on or off.
    pub(crate) fn set_forwarding(&mut self, on: bool) {
        if on != self.forwarding.is_some() {
            self.forwarding = on.then(|| Box::new(ForwardingCache { cache: HopCache::new() }));
        }
    }
}

impl Net {
    /// Forwards a packet that is not for us, its head at the IP header.
    pub(super) fn forward(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        mut received: Received,
    ) -> InputResult {
        // RFC 1812 section 5.3.4: "A router MUST NOT forward any packet that the router received
        // as a Link Layer broadcast".
        if received.group {
            return Err(DropReason::ForwardLinkBroadcast);
        }
        let packet = packet.take();
        let part = find_transport(packet.head(), &mut received);
        let v4 = received.dst.is_ipv4();
        let path = match self.find_path(now, &received) {
            Ok(path) => path,
            Err(reason) => {
                if reason == DropReason::ForwardNoRoute {
                    self.send_forward_error(
                        now,
                        &received,
                        packet,
                        IcmpError::net_unreachable(v4),
                        part,
                    );
                }
                return Err(reason);
            }
        };
        // RFC 1812 section 5.3.1: "If the TTL is reduced to zero (or less), the packet MUST be
        // discarded"; RFC 8200 section 3 says the same of the hop limit.
        if received.hop_limit <= 1 {
            self.send_forward_error(
                now,
                &received,
                packet,
                IcmpError::hop_limit_exceeded(v4),
                part,
            );
            return Err(DropReason::ForwardHopLimit);
        }
        let mut packet = self.prepare_to_forward(packet, &received, part)?;
        let (longest, whole) = match packet.gso {
            Some(gso) => (usize::from(gso.header_len) + usize::from(gso.size), false),
            None => (packet.len(), true),
        };
        if longest > path.mtu && !part.divisible {
            // RFC 1812 section 4.3.3.1 (RFC 1191 section 4), RFC 8200 section 5.
            self.send_forward_error(
                now,
                &received,
                packet,
                IcmpError::packet_too_big(v4, path.mtu),
                part,
            );
            return Err(DropReason::ForwardTooBig);
        }
        decrement(&mut packet);
        let bytes = packet.len() as u64;
        if longest <= path.mtu {
            self.pass_on(now, packet, &received, path)?;
        } else if whole {
            self.forward_fragments(now, packet, &received, path)?;
        } else if packet.gso.is_some_and(|gso| gso.kind == GsoKind::Udp) {
            self.forward_long_datagrams(now, packet, &received, path)?;
        } else {
            // A super-frame is no packet yet: it is cut to fit.
            if let Some(gso) = &mut packet.gso {
                gso.size = (path.mtu - usize::from(gso.header_len)) as u16;
            }
            self.pass_on(now, packet, &received, path)?;
        }
        self.counters.forwarded_packets += 1;
        self.counters.forwarded_bytes += bytes;
        Ok(None)
    }

    /// Cuts a super-frame of datagrams that are too long for the path, and each of them into fragments.
    #[cold]
    fn forward_long_datagrams(
        &mut self,
        now: Instant,
        packet: PacketBuf,
        received: &Received,
        path: ForwardPath,
    ) -> Result<(), DropReason> {
        let mut datagrams = VecDeque::new();
        let cut = offload::segment(packet, &mut datagrams, &mut self.mem.ledger);
        cut.map_err(|_| DropReason::ForwardOffload)?;
        for datagram in datagrams {
            if let Err(reason) = self.forward_fragments(now, datagram, received, path) {
                self.counters.drop_one(reason);
            }
        }
        Ok(())
    }

    /// Forwards a datagram in fragments, if it is too long for the path. Either all of them pass or none: an
    /// incomplete datagram is of no use.
    fn forward_fragments(
        &mut self,
        now: Instant,
        packet: PacketBuf,
        received: &Received,
        path: ForwardPath,
    ) -> Result<(), DropReason> {
        if packet.len() <= path.mtu {
            return self.pass_on(now, packet, received, path);
        }
        let header_len = usize::from(received.header_len);
        let each = path.mtu.saturating_sub(header_len) & !7;
        self.has_room(path.out, (packet.len() - header_len).div_ceil(each.max(8)))?;
        for part in self.cut_forwarded(packet, header_len, path.mtu)? {
            self.counters.tx_fragments += 1;
            self.pass_on(now, part, received, path)?;
        }
        Ok(())
    }

    /// Where a packet goes, if it may go anywhere.
    fn find_path(&self, now: Instant, received: &Received) -> Result<ForwardPath, DropReason> {
        let Received { src, dst, link, .. } = *received;
        let cached = self.forwarding.as_ref().and_then(|forwarding| {
            let hop = forwarding.cache.get(now, src, dst, |out| self.generation(out), || false);
            hop.filter(|hop| hop.by == link)
        });
        if let Some(hop) = cached {
            let header = Some(hop.link);
            return Ok(ForwardPath { out: hop.out, header, hop: Hop::Direct, mtu: hop.mtu });
        }
        if !may_be_forwarded(dst) || self.routes.is_broadcast(dst) {
            return Err(DropReason::ForwardDestination);
        }
        if !may_be_forwarded(src) || !self.routes.is_plausible_source(src) {
            return Err(DropReason::ForwardSource);
        }
        if self.reverse_path_check && !self.routes.leads_to(link, src) {
            return Err(DropReason::SourceOtherLink);
        }
        match self.routes.hop(now, src, dst) {
            Ok((out, hop @ (Hop::Neighbor(_) | Hop::Direct))) => {
                Ok(ForwardPath { out, header: None, hop, mtu: self.links.at(out).device.mtu })
            }
            Ok((_, Hop::Local | Hop::Group(_))) => Err(DropReason::ForwardDestination),
            Err(_) => Err(DropReason::ForwardNoRoute),
        }
    }

    /// Turns a received packet into one to send: room for a link header, offloads of its path out.
    fn prepare_to_forward(
        &mut self,
        mut packet: PacketBuf,
        received: &Received,
        part: FragmentInfo,
    ) -> Result<PacketBuf, DropReason> {
        let (protocol, at) = (received.protocol, usize::from(received.header_len));
        let gso = packet.gso.take();
        let gso = gso.filter(|gso| packet.len() > usize::from(gso.size) + at);
        let mut header_len = 0;
        if gso.is_some() {
            // Only the size of a TCP segment or of a datagram is believed.
            let (least, wrong) = match protocol {
                protocol::TCP => (at + tcp::LEN, DropReason::TcpChecksum),
                protocol::UDP => (at + udp::LEN, DropReason::UdpChecksum),
                _ => return Err(DropReason::ForwardOffload),
            };
            if part.fragment || !packet.linearize(least) {
                return Err(DropReason::ForwardOffload);
            }
            header_len = match protocol {
                protocol::UDP => {
                    let len = packet.len() - at;
                    let header =
                        udp::Header::parse(packet.head().get(at..).unwrap_or_default(), len)?;
                    // Without a checksum, it is nothing that a device takes.
                    if usize::from(header.len) != len || header.checksum == 0 {
                        return Err(DropReason::ForwardOffload);
                    }
                    least
                }
                _ => {
                    at + usize::from(packet.head().get(at + tcp::DATA_OFFSET).map_or(0, |b| b >> 4))
                        * 4
                }
            };
            let fits = header_len >= least && header_len <= HEAD_CAPACITY - ethernet::LEN;
            if !fits || !packet.linearize(header_len) {
                return Err(DropReason::ForwardOffload);
            }
            spill_head(&mut self.mem, &mut packet, header_len, CopyReason::LinearHead)?;
            if packet.rx_checksum != RxChecksum::Valid {
                // Cutting makes new checksums: they must not hide that the old one was wrong.
                packet.pull(at);
                let verified = self.verify(&packet, received, wrong);
                packet.push(at).ok_or(DropReason::ForwardOffload)?;
                verified?;
                packet.rx_checksum = RxChecksum::Valid;
            }
        }
        let valid = core::mem::take(&mut packet.rx_checksum) == RxChecksum::Valid;
        let mut packet =
            with_headroom(&mut self.mem, packet, ethernet::LEN, CopyReason::LinearHead)?;
        packet.tx_checksum = TxChecksum::Done;
        if valid && !part.fragment {
            self.leave_checksum_open(&mut packet, received)?;
        }
        let longest = usize::from(u16::MAX);
        packet.gso = gso.filter(|gso| packet.frag_len() > usize::from(gso.size)).map(|gso| {
            let kind = match protocol {
                protocol::UDP => GsoKind::Udp,
                _ if received.dst.is_ipv4() => GsoKind::TcpV4,
                _ => GsoKind::TcpV6,
            };
            pagewire_mem::Gso { kind, header_len: header_len.min(longest) as u16, ..gso }
        });
        match packet.gso {
            // Whatever the device: with one byte in each, it would become very many frames.
            Some(gso) if gso.kind == GsoKind::Udp => {
                let most = usize::from(gso.size) * MAX_UDP_SEGMENTS;
                if packet.frag_len() <= most { Ok(packet) } else { Err(DropReason::ForwardOffload) }
            }
            Some(gso) if gso.size < MIN_GSO_SIZE => Err(DropReason::ForwardOffload),
            Some(_) if packet.len() > MAX_SUPER_PACKET => Err(DropReason::ForwardOffload),
            None if packet.len() > MAX_IP_PACKET => Err(DropReason::ForwardOffload),
            _ => Ok(packet),
        }
    }

    /// Sends a packet to the next hop, which may have to be resolved first.
    fn pass_on(
        &mut self,
        now: Instant,
        packet: PacketBuf,
        received: &Received,
        path: ForwardPath,
    ) -> Result<(), DropReason> {
        let ForwardPath { out, hop, mtu, .. } = path;
        self.has_room(out, 1)?;
        let interface = self.links.at_mut(out);
        if interface.lost {
            return Err(DropReason::LinkLost);
        }
        let header = match (path.header, hop) {
            (Some(header), _) => header,
            (None, Hop::Neighbor(next)) => match interface.neighbors.lookup(now, next) {
                NeighborLookup::Known { mac, until } => {
                    let header = Some(self.link_header(out, mac, next.is_ipv6()));
                    self.remember_path(received, out, header, mtu, until);
                    header
                }
                NeighborLookup::Unknown if !interface.neighbors.has_room_for_forwarded(next) => {
                    return Err(DropReason::ForwardNeighborFull);
                }
                NeighborLookup::Unknown => {
                    let waiting = QueuedPacket { packet, ours: false };
                    if interface.neighbors.enqueue(now, next, waiting, &mut self.counters) {
                        self.send_solicitation(now, out, next, None);
                    }
                    return Ok(());
                }
            },
            (None, _) => {
                self.remember_path(received, out, None, mtu, Instant::FAR);
                None
            }
        };
        let emitted = self.emit_within(packet, out, header.as_ref(), FORWARDED);
        emitted.map_err(|(_, reason)| reason)
    }

    /// Whether the share of a device's queue for forwarded packets has room for `frames` frames.
    fn has_room(&self, out: LinkIndex, frames: usize) -> Result<(), DropReason> {
        let (most, full) = FORWARDED;
        if self.links.at(out).out.len() + frames <= most { Ok(()) } else { Err(full) }
    }

    fn remember_path(
        &mut self,
        received: &Received,
        out: LinkIndex,
        link: Option<[u8; ethernet::LEN]>,
        mtu: usize,
        until: Instant,
    ) {
        let generation = self.generation(out);
        let Received { src, dst, link: by, .. } = *received;
        if let Some(forwarding) = &mut self.forwarding {
            let any_source = false;
            forwarding.cache.insert(CachedHop {
                src,
                any_source,
                dst,
                generation,
                until,
                by,
                out,
                link,
                mtu,
            });
        }
    }

    /// Cuts an IPv4 packet, header and payload, into fragments of at most `mtu` bytes.
    fn cut_forwarded(
        &mut self,
        mut packet: PacketBuf,
        header_len: usize,
        mtu: usize,
    ) -> Result<Vec<PacketBuf>, DropReason> {
        let count = &mut self.counters.tx_checksums_completed;
        complete(&mut packet, &mut self.mem, count).map_err(|(_, reason)| reason)?;
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

    fn send_forward_error(
        &mut self,
        now: Instant,
        received: &Received,
        packet: PacketBuf,
        error: IcmpError,
        part: FragmentInfo,
    ) {
        // RFC 1812 section 4.3.2.7: not about "any fragment of a datagram other than the first".
        if !part.later {
            self.send_icmp_error(now, received, packet, error);
        }
    }

    /// Reports to the sender of a packet that the next hop did not answer. The packet's head is at the IP header.
    pub(super) fn return_unreachable(&mut self, now: Instant, packet: PacketBuf) {
        let (head, len) = (packet.head(), packet.len());
        let origin = Origin::frame(0);
        let parsed = match head.first().map(|b| b >> 4) {
            Some(4) => ipv4::Header::parse(head, len).map(|header| Received::v4(&header, origin)),
            _ => ipv6::Header::parse(head, len).map(|header| Received::v6(&header, origin)),
        };
        let Ok(mut received) = parsed else { return };
        // The packet does not record by which link it came.
        received.link = self.link_to(now, None, received.src);
        let part = find_transport(head, &mut received);
        let error = IcmpError::host_unreachable(received.dst.is_ipv4());
        self.send_forward_error(now, &received, packet, error, part);
    }
}

/// Whether a router may forward packets to and from an address: RFC 1812 sections 5.3.7 and 5.3.4,
/// RFC 3927 section 2.7, RFC 4291 sections 2.5.2, 2.5.3, 2.5.6 and 2.7. Broadcast addresses of
/// networks are checked elsewhere.
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

/// Finds the transport header in the head, or the first unknown one, and notes it in `received`.
fn find_transport(head: &[u8], received: &mut Received) -> FragmentInfo {
    if received.dst.is_ipv4() {
        let flags = u16::from_be_bytes([byte(head, 6), byte(head, 7)]);
        return FragmentInfo {
            fragment: flags & 0x3fff != 0,
            later: flags & 0x1fff != 0,
            divisible: flags & 0x4000 == 0,
        };
    }
    // RFC 8200 section 4.5: "unlike IPv4, fragmentation in IPv6 is performed only by source nodes".
    let mut part = FragmentInfo { fragment: false, later: false, divisible: false };
    let (mut protocol, mut at) = (received.protocol, usize::from(received.header_len));
    for _ in 0..EXTENSION_HEADERS {
        let rest = head.get(at..).unwrap_or_default();
        match protocol {
            protocol::HOP_BY_HOP | protocol::DESTINATION_OPTIONS | protocol::ROUTING => {
                let Ok(extension) = ipv6::Extension::parse(rest) else { break };
                (protocol, at) = (extension.next_header, at + extension.len);
            }
            protocol::FRAGMENT => {
                let Ok(fragment) = ipv6::Fragment::parse(rest) else { break };
                (part.fragment, part.later) = (true, fragment.offset != 0);
                (protocol, at) = (fragment.next_header, at + ipv6::FRAGMENT_LEN);
                if part.later {
                    break;
                }
            }
            _ => break,
        }
    }
    (received.protocol, received.header_len) = (protocol, at as u16);
    part
}

/// Decrements the hop limit in place.
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

impl Net {
    /// Leaves a checksum that a device vouched for, and perhaps never computed, to the next device, as far as
    /// devices complete such a checksum.
    fn leave_checksum_open(
        &mut self,
        packet: &mut PacketBuf,
        received: &Received,
    ) -> Result<(), DropReason> {
        let (protocol, at) = (received.protocol, usize::from(received.header_len));
        let (len, offset) = match protocol {
            protocol::TCP => (tcp::LEN, tcp::CHECKSUM_OFFSET),
            protocol::UDP => (udp::LEN, udp::CHECKSUM_OFFSET),
            protocol::ICMP | protocol::ICMPV6 => (icmp::LEN, icmp::CHECKSUM_OFFSET),
            _ => return Ok(()),
        };
        if packet.len() < at || !packet.linearize(at + len) {
            return Ok(());
        }
        let field = at + usize::from(offset);
        let Some(field) = packet.head().get(field..field + 2) else { return Ok(()) };
        // RFC 768: "An all zero transmitted checksum value means that the transmitter generated no
        // checksum".
        if protocol == protocol::UDP && field == [0, 0] && received.dst.is_ipv4() {
            return Ok(());
        }
        let (ends, at) = ((received.src, received.dst), (at as u16, offset));
        let left = leave_checksum(packet, ends, protocol, at, &mut self.mem, &mut self.counters);
        left.map_err(|(_, reason)| reason)
    }
}

/// Makes the header of all fragments but the first. RFC 791 section 3.1 defines which options are copied.
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
