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
//! `expected.rs` takes all of these steps at once for most frames. `extensions.rs` handles what stands
//! between an IPv6 header and the transport's, and fragments of both versions. The packet stays in one
//! place: each step gets it by `&mut`, and [`Received`] goes up with it.
//!
//! Every branch that ends here names its reason. Headers taken off stay in memory in front of the
//! head: an ICMP error gets them back with `push`.

pub(super) mod expected;
pub(super) mod extensions;
pub(super) mod reassembly;
pub(super) mod received;
mod transport;

use std::net::IpAddr;

use pagewire_mem::link::Medium;
use pagewire_mem::{Instant, PacketBuf};
use smallvec::SmallVec;

use crate::counters::DropReason;
use crate::limits::MAX_IP_PACKET;
use crate::net::Net;
use crate::net::head::trim;
use crate::net::input::extensions::ReceivedPart;
use crate::net::input::received::{InputResult, Origin, Received};
use crate::net::links::config::LinkIndex;
use crate::net::routes::{Delivery, is_link_local};
use crate::net::wire::{ethernet, ipv4, ipv6, protocol};

impl Net {
    /// Byte path, steps R2 and R3: handles a frame, and answers ARP, neighbour discovery and echo.
    /// Packets to ourselves and notices wait for [`poll_inbound`](Self::poll_inbound).
    #[inline(never)]
    pub(crate) fn handle_frame(
        &mut self,
        now: Instant,
        link: LinkIndex,
        frame: &mut PacketBuf,
    ) -> InputResult {
        self.now = now;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        let origin = Origin::frame(link);
        match self.links.at(link).device.medium {
            Medium::Ethernet => self.handle_ethernet(now, frame, origin),
            Medium::Ip => self.handle_ip(now, frame, origin),
        }
    }
}

impl Net {
    /// Handles an IP packet of either version.
    pub(super) fn handle_ip(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        origin: Origin,
    ) -> InputResult {
        if !packet.linearize(1) {
            return Err(DropReason::IpVersion);
        }
        let interface = self.links.at(origin.link);
        match packet.head().first().map(|b| b >> 4) {
            Some(4) if interface.has_v4 || origin.loopback => self.handle_ipv4(now, packet, origin),
            Some(6) if interface.has_v6 || origin.loopback => self.handle_ipv6(now, packet, origin),
            _ => Err(DropReason::IpVersion),
        }
    }

    fn handle_ethernet(
        &mut self,
        now: Instant,
        frame: &mut PacketBuf,
        mut origin: Origin,
    ) -> InputResult {
        if !frame.linearize(ethernet::LEN) {
            return Err(DropReason::EthernetTruncated);
        }
        let header = ethernet::Header::parse(frame.head())?;
        let interface = self.links.at(origin.link);
        origin.group = header.dst.is_group();
        if header.dst != interface.device.mac
            && !(origin.group
                && (self.routes.accepts_mac(origin.link, header.dst)
                    || interface.groups.accepts_mac(header.dst)
                    || interface.stands_for_mac(header.dst)))
        {
            return Err(DropReason::EthernetNotForUs);
        }
        frame.pull(ethernet::LEN);
        match header.ethertype {
            ethernet::IPV4 if interface.has_v4 => self.handle_ipv4(now, frame, origin),
            ethernet::IPV6 if interface.has_v6 => self.handle_ipv6(now, frame, origin),
            ethernet::ARP if interface.has_v4 => {
                self.counters.rx_arp += 1;
                self.handle_arp(now, origin.link, frame).map(|()| None)
            }
            _ => Err(DropReason::EthernetType),
        }
    }

    fn handle_ipv4(&mut self, now: Instant, packet: &mut PacketBuf, origin: Origin) -> InputResult {
        self.counters.rx_ipv4 += 1;
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
        let received = Received {
            delivery: self.deliver(header.src.into(), header.dst.into(), origin)?,
            ..Received::v4(&header, origin)
        };
        if received.delivery == Delivery::Foreign {
            return self.forward(now, packet, received);
        }
        if header.is_fragment() {
            self.counters.rx_fragments += 1;
            let headers = SmallVec::from_slice(packet.head().get(..header_len).unwrap_or_default());
            packet.pull(header_len);
            let part = ipv6::Fragment {
                next_header: header.protocol,
                offset: header.fragment_offset,
                more: header.more_fragments,
                id: header.id.into(),
            };
            return self.handle_fragment(now, packet, ReceivedPart { received, part, headers });
        }
        packet.pull(header_len);
        self.verify_and_hand_up(now, packet, received)
    }

    fn handle_ipv6(&mut self, now: Instant, packet: &mut PacketBuf, origin: Origin) -> InputResult {
        self.counters.rx_ipv6 += 1;
        if !packet.linearize(ipv6::LEN) {
            return Err(DropReason::Ipv6Truncated);
        }
        let header = ipv6::Header::parse(packet.head(), longest(packet, ipv6::LEN))?;
        trim(packet, ipv6::LEN + header.payload_len as usize);
        let received = Received {
            delivery: self.deliver(header.src.into(), header.dst.into(), origin)?,
            ..Received::v6(&header, origin)
        };
        if received.delivery == Delivery::Foreign {
            return self.forward(now, packet, received);
        }
        match header.next_header {
            protocol::TCP | protocol::UDP | protocol::ICMPV6 => {
                packet.pull(ipv6::LEN);
                self.verify_and_hand_up(now, packet, received)
            }
            _ => self.walk_extensions(now, packet, received, false),
        }
    }

    /// Classifies the destination: [`Delivery::Foreign`] only for packets that may be forwarded. Returns an
    /// error if the packet is not for us, or if its source address is impossible.
    fn deliver(
        &mut self,
        src: IpAddr,
        dst: IpAddr,
        origin: Origin,
    ) -> Result<Delivery, DropReason> {
        if origin.loopback {
            let to_group = dst.is_multicast();
            return Ok(if to_group { Delivery::Multicast } else { Delivery::Unicast });
        }
        let key = (src, dst, origin.link);
        if self.last_delivered == Some(key) && !origin.group {
            return Ok(Delivery::Unicast);
        }
        let (bad_source, foreign) = match dst {
            IpAddr::V4(_) => (DropReason::Ipv4Source, DropReason::Ipv4NotForUs),
            IpAddr::V6(_) => (DropReason::Ipv6Source, DropReason::Ipv6NotForUs),
        };
        let mut delivery = self.routes.delivery(origin.link, dst);
        let transparent = self.links.at(origin.link).transparent;
        if delivery == Delivery::Foreign {
            let interface = self.links.at(origin.link);
            if interface.groups.contains(dst) || interface.stands_for_group(dst) {
                delivery = Delivery::Multicast;
            } else if transparent && self.routes.may_be_any_host(dst) {
                delivery = Delivery::Unicast;
            } else if self.forwarding.is_some() && !dst.is_multicast() {
                return Ok(Delivery::Foreign);
            } else {
                return Err(foreign);
            }
        }
        // RFC 4861 section 7.1.1: solicitations may come from the unspecified address, to a
        // multicast address; and so do queries of switches that have no address (RFC 4541 section
        // 2.1.1). Whether it is one is seen later.
        let probe = src.is_unspecified() && delivery == Delivery::Multicast;
        if !probe && !self.routes.is_plausible_source(src) {
            return Err(bad_source);
        }
        // RFC 2827: whoever may send to every address may not pretend to be another as well.
        if transparent && delivery == Delivery::Unicast {
            // RFC 4291 section 2.5.6: packets from link-local addresses do not leave their link.
            let leaves = is_link_local(src) && !self.is_local(dst);
            if leaves || !self.routes.leads_to(origin.link, src) {
                return Err(DropReason::TransparentSource);
            }
        }
        if self.reverse_path_check
            && self.links.are_several()
            && self.routes.leads_elsewhere(origin.link, src)
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
            self.last_delivered = Some(key);
        }
        Ok(delivery)
    }
}

/// The longest packet whose length field counts from `from` on, unless it is a super-frame.
fn longest(packet: &PacketBuf, from: usize) -> usize {
    match packet.gso {
        Some(_) => packet.len(),
        None => packet.len().min(from + MAX_IP_PACKET),
    }
}
