//! Byte path, steps R2 (link) and R3 (ip): headers come off, each copied out and checked once;
//! payload is handed up in the fragments it landed in.
//!
//! ```text
//!   link | IP header | extensions | transport header | payload      handle_frame
//!          IP header | extensions | transport header | payload      handle_ipv4, handle_ipv6
//!                                   transport header | payload      `transport.rs`, verified
//!                                   \____ head _____/ \ frags /     Inbound::Transport
//! ```
//!
//! `extensions.rs` walks what stands between an IPv6 header and the transport's, and gathers
//! fragments of both versions. The packet stays in one place on its way through: each step gets it
//! by `&mut` and says what it is in a few bytes.
//!
//! Every branch that ends here names its reason. Headers taken off stay in memory in front of the
//! head: an ICMP error gets them back with `push`.

use std::net::IpAddr;

use pagewire_device::Medium;
use pagewire_mem::{Instant, PacketBuf};
use smallvec::SmallVec;

use super::link::LinkIndex;
use super::reassembly::Key;
use super::route::{Delivery, Routes};
use super::wire::{ethernet, ipv4, ipv6, protocol};
use super::{IcmpKind, Inbound, Mem, Net, Quoted, Received};
use crate::counters::DropReason;
use crate::limits::MAX_IP_PACKET;

/// What comes of a packet, or why it was dropped.
pub(super) type Outcome = Result<Passed, DropReason>;

/// What comes of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Passed {
    /// Nothing for the sockets: answered, or kept.
    Nothing,
    /// The packet, its head the transport header, is for the sockets.
    Transport(Meta),
    /// The packet told of an error; itself it is not needed any more.
    Error { about: Quoted, kind: IcmpKind },
}

/// How a packet got here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// In a frame to a group of stations, or all.
    pub(super) group: bool,
    /// From ourselves: addresses need no suspicion.
    pub(super) loopback: bool,
    /// The link that it came in by; what looped back came by none, but for what is to a group.
    pub(super) link: LinkIndex,
}

impl Origin {
    /// From ourselves; `link`: that by whose group it came back.
    pub(super) const fn loopback(link: LinkIndex) -> Self {
        Self { group: false, loopback: true, link }
    }
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
        link: LinkIndex,
        frame: &mut PacketBuf,
    ) -> Option<Inbound> {
        self.now = now;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        let origin = Origin { group: false, loopback: false, link };
        let outcome = match self.links.at(link).link.medium {
            Medium::Ethernet => handle_ethernet(self, mem, now, frame, origin),
            Medium::Ip => self.handle_ip(mem, now, frame, origin),
        };
        self.settle(outcome)
    }

    /// Hands up what is for the sockets, counts what was dropped.
    #[inline(always)]
    pub(super) fn settle(&mut self, outcome: Outcome) -> Option<Inbound> {
        match outcome {
            Ok(Passed::Transport(meta)) => Some(Inbound::Transport(Received {
                src: meta.src,
                dst: meta.dst,
                protocol: meta.protocol,
                ecn: meta.ecn,
                hop_limit: meta.hop_limit,
                network_header: meta.header_len,
                link: meta.origin.link,
                loopback: meta.origin.loopback,
            })),
            Ok(Passed::Error { about, kind }) => Some(Inbound::IcmpError { about, kind }),
            Ok(Passed::Nothing) => None,
            Err(reason) => {
                self.counters.drop_one(reason);
                None
            }
        }
    }

    /// Takes an IP packet whose version only the packet knows.
    pub(super) fn handle_ip(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        packet: &mut PacketBuf,
        origin: Origin,
    ) -> Outcome {
        if !packet.linearize(1) {
            return Err(DropReason::IpVersion);
        }
        let interface = self.links.at(origin.link);
        match packet.head().first().map(|b| b >> 4) {
            Some(4) if interface.speaks_v4 || origin.loopback => {
                handle_ipv4(self, mem, now, packet, origin)
            }
            Some(6) if interface.speaks_v6 || origin.loopback => {
                handle_ipv6(self, mem, now, packet, origin)
            }
            _ => Err(DropReason::IpVersion),
        }
    }
}

fn handle_ethernet(
    net: &mut Net,
    mem: &mut Mem,
    now: Instant,
    frame: &mut PacketBuf,
    mut origin: Origin,
) -> Outcome {
    if !frame.linearize(ethernet::LEN) {
        return Err(DropReason::EthernetTruncated);
    }
    let header = ethernet::Header::parse(frame.head())?;
    let interface = net.links.at(origin.link);
    origin.group = header.dst.is_group();
    if header.dst != interface.link.mac
        && !(origin.group
            && (net.routes.hears(origin.link, header.dst) || interface.groups.hears(header.dst)))
    {
        return Err(DropReason::EthernetNotForUs);
    }
    frame.pull(ethernet::LEN);
    match header.ethertype {
        ethernet::IPV4 if interface.speaks_v4 => handle_ipv4(net, mem, now, frame, origin),
        ethernet::IPV6 if interface.speaks_v6 => handle_ipv6(net, mem, now, frame, origin),
        ethernet::ARP if interface.speaks_v4 => {
            net.counters.rx_arp += 1;
            net.handle_arp(mem, now, origin.link, frame)?;
            Ok(Passed::Nothing)
        }
        _ => Err(DropReason::EthernetType),
    }
}

fn handle_ipv4(
    net: &mut Net,
    mem: &mut Mem,
    now: Instant,
    packet: &mut PacketBuf,
    origin: Origin,
) -> Outcome {
    net.counters.rx_ipv4 += 1;
    if !packet.linearize(ipv4::LEN) {
        return Err(DropReason::Ipv4Truncated);
    }
    let header_len = packet.head().first().map_or(0, |&b| ipv4::header_len(b));
    if header_len > ipv4::LEN && !packet.linearize(header_len) {
        return Err(DropReason::Ipv4HeaderLength);
    }
    let header = ipv4::Header::parse(packet.head(), longest(packet, 0))?;
    // RFC 894: frames shorter than Ethernet's minimum are padded; "it is not included in the
    // total length field of the IP header".
    trim(packet, header.total_len as usize);
    let (src, dst) = (IpAddr::V4(header.src), IpAddr::V4(header.dst));
    let delivery = match deliver(net, src, dst, origin) {
        Err(DropReason::Ipv4NotForUs) if net.transit.is_some() && !dst.is_multicast() => {
            return net.forward_v4(mem, now, packet, &header, origin);
        }
        delivery => delivery?,
    };
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
        net.counters.rx_fragments += 1;
        let headers = SmallVec::from_slice(packet.head().get(..header_len).unwrap_or_default());
        packet.pull(header_len);
        let id = u32::from(header.id);
        let key = Key { src, dst, id, protocol: header.protocol };
        let (offset, more) = (usize::from(header.fragment_offset), header.more_fragments);
        return net.handle_fragment(mem, now, packet, meta, key, headers, (offset, more));
    }
    packet.pull(header_len);
    net.handle_transport(mem, now, packet, meta)
}

fn handle_ipv6(
    net: &mut Net,
    mem: &mut Mem,
    now: Instant,
    packet: &mut PacketBuf,
    origin: Origin,
) -> Outcome {
    net.counters.rx_ipv6 += 1;
    if !packet.linearize(ipv6::LEN) {
        return Err(DropReason::Ipv6Truncated);
    }
    let header = ipv6::Header::parse(packet.head(), longest(packet, ipv6::LEN))?;
    trim(packet, ipv6::LEN + header.payload_len as usize);
    let (src, dst) = (IpAddr::V6(header.src), IpAddr::V6(header.dst));
    let delivery = match deliver(net, src, dst, origin) {
        Err(DropReason::Ipv6NotForUs) if net.transit.is_some() && !dst.is_multicast() => {
            return net.forward_v6(mem, now, packet, &header, origin);
        }
        delivery => delivery?,
    };
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
            net.handle_transport(mem, now, packet, meta)
        }
        _ => net.walk_extensions(mem, now, packet, meta, false),
    }
}

/// Whether the packet is for us, and may have come from where it says.
fn deliver(
    net: &mut Net,
    src: IpAddr,
    dst: IpAddr,
    origin: Origin,
) -> Result<Delivery, DropReason> {
    // Addresses do not change: what was found good stays good.
    let key = (src, dst, origin.link);
    if origin.loopback {
        let to_group = dst.is_multicast();
        return Ok(if to_group { Delivery::Multicast } else { Delivery::Unicast });
    }
    if net.last_delivered == Some(key) && !origin.group {
        return Ok(Delivery::Unicast);
    }
    let (bad_source, foreign) = match dst {
        IpAddr::V4(_) => (DropReason::Ipv4Source, DropReason::Ipv4NotForUs),
        IpAddr::V6(_) => (DropReason::Ipv6Source, DropReason::Ipv6NotForUs),
    };
    let mut delivery = net.routes.delivery(origin.link, dst);
    if delivery == Delivery::Foreign {
        if !net.links.at(origin.link).groups.contains(dst) {
            return Err(foreign);
        }
        delivery = Delivery::Multicast;
    }
    // RFC 4861 section 7.1.1: solicitations may come from the unspecified address, to a
    // multicast address; and so do queries of switches that have no address (RFC 4541 section
    // 2.1.1). Whether it is one is seen later.
    let probe = src.is_unspecified() && delivery == Delivery::Multicast;
    if !probe && !net.routes.is_plausible_source(src) {
        return Err(bad_source);
    }
    if net.reverse_path_check
        && net.links.are_several()
        && net.routes.leads_elsewhere(origin.link, src)
    {
        return Err(DropReason::SourceOtherLink);
    }
    // RFC 1122 section 3.3.6: "a host SHOULD silently discard a datagram that is received via
    // a link-layer broadcast [...] but does not specify an IP multicast or broadcast
    // destination address."
    if origin.group && delivery == Delivery::Unicast && dst.is_ipv4() {
        return Err(DropReason::Ipv4LinkBroadcast);
    }
    if delivery == Delivery::Unicast {
        net.last_delivered = Some(key);
    }
    Ok(delivery)
}

impl Routes {
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

/// Cuts off what lies behind the packet's own length.
pub(super) fn trim(packet: &mut PacketBuf, len: usize) {
    if packet.len() > len {
        packet.truncate(len);
    }
}

/// The packet itself, where it is not handed up.
pub(super) fn take(packet: &mut PacketBuf) -> PacketBuf {
    core::mem::replace(packet, PacketBuf::for_rx())
}

/// How long a packet may be by a header whose length field leaves that to the frame, and counts from
/// `from` on: what is no super-frame is never longer than the field can say.
fn longest(packet: &PacketBuf, from: usize) -> usize {
    match packet.gso {
        Some(_) => packet.len(),
        None => packet.len().min(from + MAX_IP_PACKET),
    }
}
