//! Byte path, steps R2 (link) and R3 (ip): headers come off, each copied out and checked once;
//! payload is handed up in the fragments it landed in.
//!
//! ```text
//!   link | IP header | extensions | transport header | payload      handle_frame
//!          IP header | extensions | transport header | payload      handle_ipv4, handle_ipv6
//!                                   transport header | payload      handle_transport, verified
//!                                   \____ head _____/ \ frags /     Inbound::Transport
//! ```
//!
//! Every branch that ends here names its reason. Headers taken off stay in memory in front of the
//! head: an ICMP error gets them back with `push`.

use std::net::IpAddr;

use pagewire_device::Medium;
use pagewire_mem::{CopyReason, HEAD_CAPACITY, Instant, PacketBuf, RxChecksum};
use smallvec::SmallVec;

use super::icmp::ErrorOut;
use super::reassembly::{Fragment, Key};
use super::route::Delivery;
use super::wire::ethernet::{self, Mac};
use super::wire::ipv6::OptionsVerdict;
use super::wire::{icmp, ipv4, ipv6, protocol, pseudo_header_sum, udp};
use super::{Inbound, Mem, Net, Received};
use crate::counters::DropReason;
use crate::limits::{EXTENSION_BYTES, EXTENSION_HEADERS};

/// What comes of a packet: something for the sockets, nothing, or a counted drop.
pub(super) type Outcome = Result<Option<Inbound>, DropReason>;

/// Bytes of a TCP header without options, and where its data offset is.
const TCP_LEN: usize = 20;
const TCP_DATA_OFFSET: usize = 12;

/// How a packet got here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// In a frame to a group of stations, or all.
    pub(super) group: bool,
    /// From ourselves: addresses need no suspicion.
    pub(super) loopback: bool,
}

/// What IP says about a transport packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) protocol: u8,
    pub(super) ecn: u8,
    pub(super) hop_limit: u8,
    pub(super) delivery: Delivery,
    /// Bytes of IP headers in front of the head; 0: they are gone.
    pub(super) header_len: u16,
    /// Where, from the start of the IP header, the field is that names the protocol.
    pub(super) next_field: u16,
    pub(super) origin: Origin,
}

impl Net {
    /// Byte path, steps R2 and R3: takes a frame from the device. Answers what is the network's
    /// own business (ARP, neighbour discovery, echo) itself. After it, and after anything that
    /// sends, [`poll_inbound`](Self::poll_inbound) may have something.
    pub(crate) fn handle_frame(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        frame: PacketBuf,
    ) -> Option<Inbound> {
        self.now = now;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        let outcome = match self.link.medium {
            Medium::Ethernet => self.handle_ethernet(mem, now, frame),
            Medium::Ip => self.handle_ip(mem, now, frame, Origin { group: false, loopback: false }),
        };
        self.settle(outcome)
    }

    /// Counts a drop.
    pub(super) fn settle(&mut self, outcome: Outcome) -> Option<Inbound> {
        match outcome {
            Ok(inbound) => inbound,
            Err(reason) => {
                self.counters.drop_one(reason);
                None
            }
        }
    }

    fn handle_ethernet(&mut self, mem: &mut Mem, now: Instant, mut frame: PacketBuf) -> Outcome {
        if !frame.linearize(ethernet::LEN) {
            return Err(DropReason::EthernetTruncated);
        }
        let header = ethernet::Header::parse(frame.head())?;
        let group = header.dst.is_group();
        if header.dst != self.link.mac && !(group && self.routes.hears(header.dst)) {
            return Err(DropReason::EthernetNotForUs);
        }
        frame.pull(ethernet::LEN);
        let origin = Origin { group, loopback: false };
        match header.ethertype {
            ethernet::IPV4 if self.speaks_v4 => self.handle_ipv4(mem, now, frame, origin),
            ethernet::IPV6 if self.speaks_v6 => self.handle_ipv6(mem, now, frame, origin),
            ethernet::ARP if self.speaks_v4 => {
                self.counters.rx_arp += 1;
                self.handle_arp(mem, now, frame)?;
                Ok(None)
            }
            _ => Err(DropReason::EthernetType),
        }
    }

    /// Takes an IP packet whose version only the packet knows.
    pub(super) fn handle_ip(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        mut packet: PacketBuf,
        origin: Origin,
    ) -> Outcome {
        if !packet.linearize(1) {
            return Err(DropReason::IpVersion);
        }
        match packet.head().first().map(|b| b >> 4) {
            Some(4) if self.speaks_v4 || origin.loopback => {
                self.handle_ipv4(mem, now, packet, origin)
            }
            Some(6) if self.speaks_v6 || origin.loopback => {
                self.handle_ipv6(mem, now, packet, origin)
            }
            _ => Err(DropReason::IpVersion),
        }
    }

    fn handle_ipv4(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        mut packet: PacketBuf,
        origin: Origin,
    ) -> Outcome {
        self.counters.rx_ipv4 += 1;
        if !packet.linearize(ipv4::LEN) {
            return Err(DropReason::Ipv4Truncated);
        }
        let header_len = packet.head().first().map_or(0, |&b| ipv4::header_len(b));
        if header_len > ipv4::LEN && !packet.linearize(header_len) {
            return Err(DropReason::Ipv4HeaderLength);
        }
        let header = ipv4::Header::parse(packet.head(), packet.len())?;
        // RFC 894: frames shorter than Ethernet's minimum are padded; "it is not included in the
        // total length field of the IP header".
        trim(&mut packet, usize::from(header.total_len));
        let (src, dst) = (IpAddr::V4(header.src), IpAddr::V4(header.dst));
        let delivery = self.deliver(src, dst, origin)?;
        let meta = Meta {
            src,
            dst,
            protocol: header.protocol,
            ecn: header.tos & 3,
            hop_limit: header.ttl,
            delivery,
            header_len: u16::from(header.header_len),
            next_field: 9,
            origin,
        };
        if header.is_fragment() {
            self.counters.rx_fragments += 1;
            let headers = SmallVec::from_slice(packet.head().get(..header_len).unwrap_or_default());
            packet.pull(header_len);
            let id = u32::from(header.id);
            let key = Key { src, dst, id, protocol: header.protocol };
            let (offset, more) = (usize::from(header.fragment_offset), header.more_fragments);
            return self.handle_fragment(mem, now, packet, meta, key, headers, (offset, more));
        }
        packet.pull(header_len);
        self.handle_transport(mem, now, packet, meta)
    }

    fn handle_ipv6(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        mut packet: PacketBuf,
        origin: Origin,
    ) -> Outcome {
        self.counters.rx_ipv6 += 1;
        if !packet.linearize(ipv6::LEN) {
            return Err(DropReason::Ipv6Truncated);
        }
        let header = ipv6::Header::parse(packet.head(), packet.len())?;
        trim(&mut packet, ipv6::LEN + usize::from(header.payload_len));
        let (src, dst) = (IpAddr::V6(header.src), IpAddr::V6(header.dst));
        let delivery = self.deliver(src, dst, origin)?;
        let meta = Meta {
            src,
            dst,
            protocol: header.next_header,
            ecn: header.traffic_class & 3,
            hop_limit: header.hop_limit,
            delivery,
            header_len: ipv6::LEN as u16,
            next_field: 6,
            origin,
        };
        match header.next_header {
            protocol::TCP | protocol::UDP | protocol::ICMPV6 => {
                packet.pull(ipv6::LEN);
                self.handle_transport(mem, now, packet, meta)
            }
            _ => self.walk_extensions(mem, now, packet, meta, false),
        }
    }

    /// Whether the packet is for us, and may have come from where it says.
    fn deliver(&self, src: IpAddr, dst: IpAddr, origin: Origin) -> Result<Delivery, DropReason> {
        if origin.loopback {
            return Ok(Delivery::Unicast);
        }
        let (bad_source, foreign) = match dst {
            IpAddr::V4(_) => (DropReason::Ipv4Source, DropReason::Ipv4NotForUs),
            IpAddr::V6(_) => (DropReason::Ipv6Source, DropReason::Ipv6NotForUs),
        };
        let delivery = self.routes.delivery(dst);
        if delivery == Delivery::Foreign {
            return Err(foreign);
        }
        // RFC 4861 section 7.1.1: solicitations may come from the unspecified address, to a
        // multicast address; whether it is one is seen later.
        let probe = src.is_unspecified() && dst.is_ipv6() && delivery == Delivery::Multicast;
        if !probe && !self.routes.is_plausible_source(src) {
            return Err(bad_source);
        }
        // RFC 1122 section 3.3.6: "a host SHOULD silently discard a datagram that is received via
        // a link-layer broadcast [...] but does not specify an IP multicast or broadcast
        // destination address."
        if origin.group && delivery == Delivery::Unicast && dst.is_ipv4() {
            return Err(DropReason::Ipv4LinkBroadcast);
        }
        Ok(delivery)
    }

    /// Walks extension headers (RFC 8200 section 4), the packet's head at the IPv6 header.
    fn walk_extensions(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        mut packet: PacketBuf,
        mut meta: Meta,
        reassembled: bool,
    ) -> Outcome {
        // Where the next header begins, from the packet's front; and bytes taken off the front.
        let (mut at, mut gone) = (usize::from(meta.header_len), 0);
        let begin = at;
        for count in 0.. {
            let first = count == 0 && !reassembled;
            match meta.protocol {
                protocol::HOP_BY_HOP if first => {}
                // RFC 8200 section 4.1: hop-by-hop options come first or not at all; section 4:
                // elsewhere the value 0 is an unrecognised next header.
                protocol::HOP_BY_HOP => {
                    let error = ErrorOut::unknown_next_header(usize::from(meta.next_field));
                    self.send_error_about(mem, now, &meta, packet, error, gone == 0);
                    return Err(DropReason::Ipv6HopByHopPosition);
                }
                protocol::DESTINATION_OPTIONS | protocol::ROUTING | protocol::FRAGMENT => {}
                protocol::NO_NEXT_HEADER => return Err(DropReason::Ipv6NoNextHeader),
                _ => break,
            }
            if count >= EXTENSION_HEADERS || gone + at - begin > EXTENSION_BYTES {
                return Err(DropReason::Ipv6ExtensionLimit);
            }
            let fits = |packet: &mut PacketBuf, at: &mut usize, gone: &mut usize, n: usize| {
                if packet.len() < *at + n {
                    return Err(DropReason::Ipv6ExtensionTruncated);
                }
                if !packet.linearize(*at + n) {
                    packet.pull(*at);
                    *gone += core::mem::take(at);
                    *packet = refilled(packet);
                    if !packet.linearize(n) {
                        return Err(DropReason::Ipv6ExtensionLimit);
                    }
                }
                Ok(())
            };
            fits(&mut packet, &mut at, &mut gone, 8)?;
            let bytes = packet.head().get(at..).unwrap_or_default();
            if meta.protocol == protocol::FRAGMENT {
                let part = ipv6::Fragment::parse(bytes)?;
                meta.next_field = (gone + at) as u16;
                meta.protocol = part.next_header;
                self.counters.rx_fragments += 1;
                if reassembled {
                    return Err(DropReason::FragmentNested);
                }
                // RFC 6946 section 4: a fragment that is the whole packet is taken as such.
                if part.offset != 0 || part.more {
                    let end = at + ipv6::FRAGMENT_LEN;
                    let quote = if gone == 0 { end } else { 0 };
                    let head = packet.head();
                    let headers = SmallVec::from_slice(head.get(..quote).unwrap_or_default());
                    let total = gone + packet.len();
                    let len = total - gone - end;
                    let key = Key { src: meta.src, dst: meta.dst, id: part.id, protocol: 0 };
                    // RFC 8200 section 4.5: a length that is no multiple of 8 and an end beyond
                    // 65,535 bytes are answered with a parameter problem, code 0.
                    let pointer = if part.more && !len.is_multiple_of(8) {
                        Some(4)
                    } else if usize::from(part.offset) + len > usize::from(u16::MAX) {
                        Some(gone + at + 2)
                    } else {
                        None
                    };
                    if let Some(pointer) = pointer {
                        let reason = match pointer {
                            4 => DropReason::FragmentLength,
                            _ => DropReason::FragmentTooBig,
                        };
                        let error = ErrorOut::faulty_header(pointer);
                        self.send_error_about(mem, now, &meta, packet, error, gone == 0);
                        return Err(reason);
                    }
                    packet.pull(end);
                    let range = (usize::from(part.offset), part.more);
                    return self.handle_fragment(mem, now, packet, meta, key, headers, range);
                }
                at += ipv6::FRAGMENT_LEN;
                continue;
            }
            let extension = ipv6::Extension::parse(bytes)?;
            fits(&mut packet, &mut at, &mut gone, extension.len)?;
            let bytes = packet.head().get(at..at + extension.len).unwrap_or_default();
            let error = if meta.protocol == protocol::ROUTING {
                // RFC 8200 section 4.4: without segments left it is ignored, with them an
                // unrecognised type (all are to us; RFC 5095 forbids type 0) is answered with a
                // pointer at it.
                let segments_left = bytes.get(3).is_some_and(|&left| left > 0);
                segments_left.then(|| {
                    (DropReason::Ipv6RoutingHeader, ErrorOut::faulty_header(gone + at + 2), false)
                })
            } else {
                match ipv6::check_options(bytes) {
                    OptionsVerdict::Fine => None,
                    OptionsVerdict::Drop(reason) => return Err(reason),
                    OptionsVerdict::Problem { at: option, unicast_only } => {
                        let error = ErrorOut::unknown_option(gone + at + option, !unicast_only);
                        Some((DropReason::Ipv6Option, error, unicast_only))
                    }
                }
            };
            if let Some((reason, error, unicast_only)) = error {
                if !(unicast_only && meta.delivery != Delivery::Unicast) {
                    self.send_error_about(mem, now, &meta, packet, error, gone == 0);
                }
                return Err(reason);
            }
            meta.next_field = (gone + at) as u16;
            meta.protocol = extension.next_header;
            at += extension.len;
        }
        packet.pull(at);
        meta.header_len = if gone == 0 { at as u16 } else { 0 };
        self.handle_transport(mem, now, packet, meta)
    }

    /// Takes a fragment, its head at its payload; goes on with the datagram if it was the last
    /// one missing.
    #[expect(clippy::too_many_arguments, reason = "what two kinds of header have in common")]
    fn handle_fragment(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        mut packet: PacketBuf,
        meta: Meta,
        key: Key,
        headers: SmallVec<[u8; 64]>,
        (offset, more): (usize, bool),
    ) -> Outcome {
        // No fragment of a broadcast or multicast is kept: nothing that we take from them is long.
        if meta.delivery != Delivery::Unicast {
            return Err(DropReason::TransportBroadcast);
        }
        spill_head(mem, &mut packet, 0, CopyReason::LinearHead)?;
        let Meta { ecn, hop_limit, protocol, .. } = meta;
        let payload = packet.take_frags();
        let fragment = Fragment { offset, more, ecn, hop_limit, protocol, headers, payload };
        let whole = self.reassembly.handle_fragment(mem, now, key, fragment, &mut self.counters)?;
        let Some(whole) = whole else { return Ok(None) };
        self.counters.reassembled += 1;
        let mut packet = whole.packet;
        // The headers as one packet would have had them.
        let protocol = whole.protocol;
        let header_len = match (meta.src, meta.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let header = ipv4::Header {
                    header_len: ipv4::LEN as u8,
                    tos: whole.ecn,
                    total_len: (ipv4::LEN + whole.len) as u16,
                    id: key.id as u16,
                    dont_fragment: false,
                    more_fragments: false,
                    fragment_offset: 0,
                    ttl: whole.hop_limit,
                    protocol,
                    src,
                    dst,
                };
                append(&mut packet, &header.emit())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let header = ipv6::Header {
                    traffic_class: whole.ecn,
                    flow_label: 0,
                    payload_len: whole.len as u16,
                    next_header: protocol,
                    hop_limit: whole.hop_limit,
                    src,
                    dst,
                };
                append(&mut packet, &header.emit())
            }
            _ => return Err(DropReason::IpVersion),
        };
        let meta = Meta {
            protocol,
            ecn: whole.ecn,
            hop_limit: whole.hop_limit,
            header_len: header_len as u16,
            next_field: if meta.src.is_ipv4() { 9 } else { 6 },
            ..meta
        };
        if meta.src.is_ipv6() {
            return self.walk_extensions(mem, now, packet, meta, true);
        }
        packet.pull(header_len);
        self.handle_transport(mem, now, packet, meta)
    }

    /// Takes a transport packet, its head at the transport header: verifies its checksum and hands
    /// it to whom it concerns.
    fn handle_transport(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        mut packet: PacketBuf,
        mut meta: Meta,
    ) -> Outcome {
        let v4 = meta.dst.is_ipv4();
        let header_len = match meta.protocol {
            protocol::TCP => {
                self.counters.rx_tcp += 1;
                // RFC 1122 section 4.2.3.10: "A TCP implementation MUST silently discard an
                // incoming SYN segment that is addressed to a broadcast or multicast address."
                if meta.delivery != Delivery::Unicast || meta.origin.group {
                    return Err(DropReason::TransportBroadcast);
                }
                reserve(&mut packet, &mut meta, TCP_LEN, DropReason::TcpTruncated)?;
                let words = packet.head().get(TCP_DATA_OFFSET).map_or(0, |b| b >> 4);
                let header_len = usize::from(words) * 4;
                if header_len < TCP_LEN || header_len > packet.len() {
                    return Err(DropReason::TcpDataOffset);
                }
                reserve(&mut packet, &mut meta, header_len, DropReason::TcpDataOffset)?;
                self.verify(mem, &packet, &meta, DropReason::TcpChecksum)?;
                header_len
            }
            protocol::UDP => {
                self.counters.rx_udp += 1;
                if meta.src.is_unspecified() {
                    return Err(DropReason::Ipv6Source);
                }
                reserve(&mut packet, &mut meta, udp::LEN, DropReason::UdpTruncated)?;
                let header = udp::Header::parse(packet.head(), packet.len())?;
                trim(&mut packet, usize::from(header.len));
                // RFC 768: "An all zero transmitted checksum value means that the transmitter
                // generated no checksum"; RFC 8200 section 8.1: not in IPv6.
                match header.checksum {
                    0 if v4 || packet.rx_checksum == RxChecksum::Valid => {}
                    0 => return Err(DropReason::UdpChecksum),
                    _ => self.verify(mem, &packet, &meta, DropReason::UdpChecksum)?,
                }
                udp::LEN
            }
            protocol::ICMP if v4 => {
                self.counters.rx_icmp += 1;
                reserve(&mut packet, &mut meta, icmp::LEN, DropReason::IcmpTruncated)?;
                self.verify(mem, &packet, &meta, DropReason::IcmpChecksum)?;
                return self.handle_icmp_v4(mem, now, packet, meta);
            }
            protocol::ICMPV6 if !v4 => {
                self.counters.rx_icmp += 1;
                reserve(&mut packet, &mut meta, icmp::LEN, DropReason::IcmpTruncated)?;
                self.verify(mem, &packet, &meta, DropReason::IcmpChecksum)?;
                return self.handle_icmp_v6(mem, now, packet, meta);
            }
            // RFC 1122 section 3.2.2.1: code 2, protocol unreachable, "when the designated
            // transport protocol is not supported"; RFC 8200 section 4: unrecognised next header.
            _ => {
                let quotable =
                    meta.header_len > 0 && packet.push(usize::from(meta.header_len)).is_some();
                let error = match v4 {
                    true => ErrorOut::protocol_unreachable(),
                    false => ErrorOut::unknown_next_header(usize::from(meta.next_field)),
                };
                self.send_error_about(mem, now, &meta, packet, error, quotable);
                return Err(DropReason::ProtocolUnknown);
            }
        };
        if packet.head().len() > header_len {
            self.counters.rx_head_payloads += 1;
            spill_head(mem, &mut packet, header_len, CopyReason::LinearHead)?;
        }
        Ok(Some(Inbound::Transport(Received {
            src: meta.src,
            dst: meta.dst,
            protocol: meta.protocol,
            ecn: meta.ecn,
            hop_limit: meta.hop_limit,
            network_header: meta.header_len,
            packet,
        })))
    }

    /// Verifies the transport checksum unless the device has: the sum over pseudo-header, header
    /// and payload must be all ones.
    fn verify(
        &mut self,
        mem: &mut Mem,
        packet: &PacketBuf,
        meta: &Meta,
        otherwise: DropReason,
    ) -> Result<(), DropReason> {
        if packet.rx_checksum == RxChecksum::Valid {
            return Ok(());
        }
        self.counters.rx_checksums_verified += 1;
        let mut sum = match meta.protocol {
            protocol::ICMP => Default::default(),
            protocol => pseudo_header_sum(meta.src, meta.dst, protocol, packet.len()),
        };
        sum.add_bytes(packet.head());
        for frag in packet.frags() {
            sum.add_frag(frag, &mut mem.ledger);
        }
        if sum.finish() == 0 { Ok(()) } else { Err(otherwise) }
    }
}

impl super::route::Routes {
    /// Whether a packet from the wire may have this source: RFC 1122 section 3.2.1.3 and RFC 4291
    /// section 2.5 and 2.7 say which addresses never are one; ours is not either.
    pub(super) fn is_plausible_source(&self, src: IpAddr) -> bool {
        let possible = match src {
            IpAddr::V4(a) => {
                let [first, ..] = a.octets();
                // 0.0.0.0/8 "this host", 127.0.0.0/8 loopback, 224.0.0.0/3 groups and reserved.
                first != 0 && first != 127 && first < 224 && !self.is_broadcast(src)
            }
            IpAddr::V6(a) => {
                !a.is_multicast()
                    && !a.is_unspecified()
                    && !a.is_loopback()
                    && a.to_ipv4_mapped().is_none()
            }
        };
        possible && !self.is_ours(src)
    }
}

/// Makes sure that the head holds the next `n` bytes; headers already taken off may have to go
/// for it, and with them the chance to quote them.
fn reserve(
    packet: &mut PacketBuf,
    meta: &mut Meta,
    n: usize,
    too_short: DropReason,
) -> Result<(), DropReason> {
    if packet.linearize(n) {
        return Ok(());
    }
    if packet.len() < n {
        return Err(too_short);
    }
    *packet = refilled(packet);
    meta.header_len = 0;
    if packet.linearize(n) { Ok(()) } else { Err(DropReason::HeadTooLong) }
}

/// The same packet, its head moved to the front of the head's memory, so that the room of headers
/// already taken off can be used.
fn refilled(packet: &mut PacketBuf) -> PacketBuf {
    let mut new = PacketBuf::for_rx();
    (new.gso, new.rx_checksum) = (packet.gso, packet.rx_checksum);
    append(&mut new, packet.head());
    for frag in packet.take_frags() {
        // As many as before: they fit.
        if new.push_frag(frag).is_err() {
            break;
        }
    }
    new
}

/// Appends header bytes to the head; returns how many.
fn append(packet: &mut PacketBuf, bytes: &[u8]) -> usize {
    match packet.append(bytes.len()) {
        Some(room) => {
            room.copy_from_slice(bytes);
            bytes.len()
        }
        None => 0,
    }
}

/// Cuts off what lies behind the packet's own length.
fn trim(packet: &mut PacketBuf, len: usize) {
    if packet.len() > len {
        packet.truncate(len);
    }
}

/// Moves what the head holds beyond `keep` bytes into pages, in front of the fragments.
pub(super) fn spill_head(
    mem: &mut Mem,
    packet: &mut PacketBuf,
    keep: usize,
    reason: CopyReason,
) -> Result<(), DropReason> {
    let Mem { pool, writer, ledger } = mem;
    let Some(extra) = packet.head().get(keep..).filter(|extra| !extra.is_empty()) else {
        return Ok(());
    };
    let (mut parts, copied) = writer.write(pool, extra, ledger, reason);
    if copied < extra.len() {
        return Err(DropReason::NoPages);
    }
    packet.truncate_head(keep);
    let mut rest = packet.take_frags().into_iter();
    // A packet that is full already: its first fragment joins the bytes from the head.
    if rest.len() + parts.len() > pagewire_mem::MAX_FRAGS
        && let Some(first) = rest.next()
    {
        let (more, copied) = writer.write_frag(pool, &first, ledger, reason);
        if copied < first.len() {
            return Err(DropReason::NoPages);
        }
        parts.extend(more);
    }
    for frag in parts.into_iter().chain(rest) {
        packet.push_frag(frag).map_err(|_| DropReason::TooManyFragments)?;
    }
    Ok(())
}

/// The same packet with room for all headers in front of the head: a received one that goes back.
pub(super) fn with_headroom(mem: &mut Mem, mut packet: PacketBuf) -> Result<PacketBuf, DropReason> {
    const ROOM: usize = ethernet::LEN + ipv6::LEN;
    if packet.headroom() >= ROOM {
        return Ok(packet);
    }
    spill_head(mem, &mut packet, HEAD_CAPACITY - ROOM - ipv6::FRAGMENT_LEN, CopyReason::Icmp)?;
    let mut new = PacketBuf::for_tx();
    let head = packet.head();
    new.push(head.len()).ok_or(DropReason::HeadTooLong)?.copy_from_slice(head);
    for frag in packet.take_frags() {
        new.push_frag(frag).map_err(|_| DropReason::TooManyFragments)?;
    }
    Ok(new)
}

/// The station and the group addresses of a frame are the link's business; this names ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) medium: Medium,
    pub(super) mac: Mac,
    /// Longest IP packet on the wire.
    pub(super) mtu: usize,
    /// Longest IP packet that a super-frame may be.
    pub(super) max_super: usize,
    pub(super) tx_checksum: bool,
    pub(super) tso_v4: bool,
    pub(super) tso_v6: bool,
}
