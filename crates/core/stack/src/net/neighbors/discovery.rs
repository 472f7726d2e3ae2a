//! Messages of ARP (RFC 826, RFC 5227) and neighbour discovery (RFC 4861), in and out.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_mem::{Instant, PacketBuf};

use crate::counters::DropReason;
use crate::limits::{ANNOUNCE_INTERVAL, DEFEND_INTERVAL, NOTICES};
use crate::net::Net;
use crate::net::input::received::{IcmpKind, Inbound, Received};
use crate::net::links::config::LinkIndex;
use crate::net::neighbors::{NeighborAction, NeighborClaim, QueuedPacket};
use crate::net::wire::arp::{self, Operation};
use crate::net::wire::ethernet::{self, Mac};
use crate::net::wire::{icmp, ndp};

/// Hop limit that proves that a message has not come through a router.
const NDP_HOP_LIMIT: u8 = 255;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

impl Net {
    /// Handles an ARP packet, its head behind the link header.
    pub(in crate::net) fn handle_arp(
        &mut self,
        now: Instant,
        link: LinkIndex,
        frame: &mut PacketBuf,
    ) -> Result<(), DropReason> {
        if !frame.linearize(arp::LEN) {
            return Err(DropReason::ArpTruncated);
        }
        let packet = arp::Packet::parse(frame.head())?;
        let (sender, target) = (IpAddr::V4(packet.sender), IpAddr::V4(packet.target));
        if !packet.sender_mac.is_station() || packet.sender.is_multicast() {
            return Err(DropReason::ArpSender);
        }
        if packet.sender_mac == self.links.at(link).device.mac {
            // Our own packet came back.
            return Err(DropReason::ArpSender);
        }
        // RFC 5227 section 2.4: "At any time, if a host receives an ARP packet (Request *or*
        // Reply) where the 'sender IP address' is one of the host's own IP addresses, but the
        // 'sender hardware address' does not match", there is a conflict.
        if self.routes.is_ours_on(link, sender) {
            self.handle_conflict(now, link, packet.sender);
            return Err(DropReason::ArpConflict);
        }
        // Only for addresses of this link, as Linux with `arp_ignore`: links may share a medium.
        let for_us = self.routes.is_ours_on(link, target);
        if packet.sender.is_unspecified() {
            // RFC 5227 section 2.1.1: a probe asks whether the target is in use.
            if for_us && packet.operation == Operation::Request {
                self.send_arp_reply(link, &packet);
                return Ok(());
            }
            return Err(DropReason::ArpNotForUs);
        }
        let plausible =
            self.routes.is_plausible_source(sender) && self.routes.is_on_link(link, sender);
        if !plausible {
            return Err(DropReason::ArpSender);
        }
        let answers = for_us || self.stands_for(link, sender, target);
        // RFC 826: "If the pair <protocol type, sender protocol address> is already in my
        // translation table, update [it]"; a new pair is learned only from requests for us.
        let claim = NeighborClaim {
            mac: Some(packet.sender_mac),
            solicited: packet.operation == Operation::Reply && for_us,
            overrides: true,
            create: answers && packet.operation == Operation::Request,
        };
        self.spread_neighbor(link, sender, claim);
        let neighbors = &self.links.at(link).neighbors;
        let (asked, known) = (neighbors.is_asked(sender), neighbors.knows(sender));
        let claim = NeighborClaim { solicited: claim.solicited && asked, ..claim };
        self.learn_neighbor(now, link, sender, claim);
        match packet.operation {
            Operation::Request if answers => {
                self.send_arp_reply(link, &packet);
                Ok(())
            }
            _ if known => Ok(()),
            _ => Err(DropReason::ArpNotForUs),
        }
    }

    /// Handles a solicitation or an advertisement, its head at the ICMP header, checksum verified.
    pub(in crate::net) fn handle_ndp(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        received: &Received,
    ) -> Result<(), DropReason> {
        // RFC 4861 sections 7.1.1 and 7.1.2: "The IP Hop Limit field has a value of 255, i.e., the
        // packet could not possibly have been forwarded by a router."
        if received.hop_limit != NDP_HOP_LIMIT || received.loopback {
            return Err(DropReason::NdpHopLimit);
        }
        let len = packet.len();
        if !packet.linearize(len) {
            return Err(DropReason::HeadTooLong);
        }
        match ndp::Message::parse(packet.head())? {
            ndp::Message::Solicitation { target, source_mac } => {
                self.handle_solicitation(now, received, target, source_mac)
            }
            ndp::Message::Advertisement { solicited, overrides, target, target_mac, .. } => {
                // RFC 4861 section 7.1.2: "If the IP Destination Address is a multicast address
                // the Solicited flag is zero."
                if solicited && received.dst.is_multicast() {
                    return Err(DropReason::NdpSource);
                }
                let (target, link) = (IpAddr::V6(target), received.link);
                if self.routes.is_ours_on(link, target) {
                    // RFC 4862 section 5.4.4: another node has our address.
                    self.counters.address_conflicts += 1;
                    return Err(DropReason::NdpConflict);
                }
                let claim = NeighborClaim { mac: target_mac, solicited, overrides, create: false };
                self.spread_neighbor(link, target, claim);
                if !self.links.at(link).neighbors.knows(target) {
                    return Err(DropReason::NdpNotForUs);
                }
                self.learn_neighbor(now, link, target, claim);
                Ok(())
            }
        }
    }

    /// Announces all our addresses on a link, once.
    pub(in crate::net) fn announce(&mut self, now: Instant, link: LinkIndex) {
        for addr in self.routes.of_link(link).collect::<Vec<_>>() {
            match addr.addr() {
                IpAddr::V4(addr) => self.announce_v4(link, addr),
                IpAddr::V6(target) => {
                    // RFC 4861 section 7.2.6: unsolicited advertisements.
                    let message = ndp::Message::Advertisement {
                        router: self.is_router(link),
                        solicited: false,
                        overrides: true,
                        target,
                        target_mac: Some(self.links.at(link).device.mac),
                    };
                    self.send_ndp(now, &message, target.into(), ALL_NODES.into(), None);
                }
            }
        }
        let interface = self.links.at_mut(link);
        interface.announcements = interface.announcements.saturating_sub(1);
        interface.announce_at = now + ANNOUNCE_INTERVAL;
    }

    /// Carries out the actions of neighbours' timeouts.
    pub(in crate::net) fn handle_discovery_timeout(&mut self, now: Instant, link: LinkIndex) {
        let mut actions = Vec::new();
        let neighbors = &mut self.links.at_mut(link).neighbors;
        neighbors.handle_timeout(now, &mut self.counters, &mut actions);
        for action in actions {
            match action {
                NeighborAction::Request { addr, station } => {
                    self.send_solicitation(now, link, addr, station);
                }
                NeighborAction::Failed { addr, queue } => {
                    self.routes.handle_dead_neighbor(now, link, addr);
                    self.counters.drop_many(DropReason::NeighborUnreachable, queue.len() as u64);
                    self.report_unreachable(now, queue);
                }
                NeighborAction::Evicted { queue } => self.report_unreachable(now, queue),
            }
        }
    }
}

impl Net {
    /// Asks for the station of an address: all stations, or the one that had the address.
    pub(in crate::net) fn send_solicitation(
        &mut self,
        now: Instant,
        link: LinkIndex,
        addr: IpAddr,
        station: Option<Mac>,
    ) {
        let Some(src) = self.routes.source_on(link, addr) else { return };
        let mac = self.links.at(link).device.mac;
        match (src, addr) {
            (IpAddr::V4(sender), IpAddr::V4(target)) => {
                let packet = arp::Packet {
                    operation: Operation::Request,
                    sender_mac: mac,
                    sender,
                    target_mac: Mac::ZERO,
                    target,
                };
                self.send_arp(link, &packet, station.unwrap_or(Mac::BROADCAST));
            }
            (_, IpAddr::V6(target)) => {
                let message = ndp::Message::Solicitation { target, source_mac: Some(mac) };
                // RFC 4861 section 7.2.2: to the solicited-node group; probes to the address.
                let dst = match station {
                    Some(_) => addr,
                    None => ndp::solicited_node(target).into(),
                };
                self.send_ndp(now, &message, src, dst, station.map(|mac| (link, mac)));
            }
            _ => {}
        }
    }
}

impl Net {
    fn send_arp_reply(&mut self, link: LinkIndex, request: &arp::Packet) {
        let reply = arp::Packet {
            operation: Operation::Reply,
            sender_mac: self.links.at(link).device.mac,
            sender: request.target,
            target_mac: request.sender_mac,
            target: request.sender,
        };
        self.send_arp(link, &reply, request.sender_mac);
    }

    fn send_arp(&mut self, link: LinkIndex, packet: &arp::Packet, dst: Mac) {
        let src = self.links.at(link).device.mac;
        let header = ethernet::Header { dst, src, ethertype: ethernet::ARP };
        let mut frame = PacketBuf::for_tx();
        if let Some(room) = frame.push(arp::LEN) {
            room.copy_from_slice(&packet.emit());
        }
        self.counters.tx_arp += 1;
        if let Err((_, reason)) = self.emit(frame, link, Some(&header.emit())) {
            self.counters.drop_one(reason);
        }
    }

    /// Announces that an address is ours (RFC 5227 section 2.3: an ARP request for it).
    fn announce_v4(&mut self, link: LinkIndex, addr: Ipv4Addr) {
        let packet = arp::Packet {
            operation: Operation::Request,
            sender_mac: self.links.at(link).device.mac,
            sender: addr,
            target_mac: Mac::ZERO,
            target: addr,
        };
        self.send_arp(link, &packet, Mac::BROADCAST);
    }

    /// RFC 5227 section 2.4(b): defend with a single announcement, if that was not done recently.
    fn handle_conflict(&mut self, now: Instant, link: LinkIndex, addr: Ipv4Addr) {
        self.counters.address_conflicts += 1;
        let interface = self.links.at_mut(link);
        if now >= interface.defend_after {
            interface.defend_after = now + DEFEND_INTERVAL;
            self.announce_v4(link, addr);
        }
    }

    /// Whether we answer `asker` for another host: neither for the asker itself, nor for a known neighbour.
    fn stands_for(&self, link: LinkIndex, asker: IpAddr, target: IpAddr) -> bool {
        let interface = self.links.at(link);
        interface.proxy_arp
            && target != asker
            && self.routes.is_foreign_host(target)
            && !interface.neighbors.is_known_to_host(target)
    }

    fn handle_solicitation(
        &mut self,
        now: Instant,
        received: &Received,
        target: Ipv6Addr,
        source_mac: Option<Mac>,
    ) -> Result<(), DropReason> {
        let (probe, link) = (received.src.is_unspecified(), received.link);
        // RFC 4861 section 7.1.1: from the unspecified address only to a solicited-node group, and
        // without a source link-layer address.
        if probe && (source_mac.is_some() || received.dst != ndp::solicited_node(target)) {
            return Err(DropReason::NdpSource);
        }
        let ours = self.routes.is_ours_on(link, target.into());
        // RFC 4862 section 5.4.2: a probe from the unspecified address is about an address that is to be free.
        if !ours && (probe || !self.stands_for(link, received.src, target.into())) {
            return Err(DropReason::NdpNotForUs);
        }
        if !probe && !self.routes.is_on_link(link, received.src) {
            return Err(DropReason::NdpSource);
        }
        if source_mac.is_some() {
            // RFC 4861 section 7.2.3: "the recipient SHOULD create or update the Neighbor Cache
            // entry for the IP Source Address of the solicitation."
            let claim =
                NeighborClaim { mac: source_mac, solicited: false, overrides: true, create: true };
            self.spread_neighbor(link, received.src, claim);
            self.learn_neighbor(now, link, received.src, claim);
        }
        if probe {
            // RFC 4862 section 5.4.3: another node checks whether our address is free.
            self.counters.address_conflicts += 1;
        }
        let answer = ndp::Message::Advertisement {
            router: self.is_router(link),
            // RFC 4861 section 7.2.4: to a probe, to all nodes and without the solicited flag.
            solicited: !probe,
            // RFC 4861 section 7.2.8: "the Override flag set to zero" in place of another host.
            overrides: ours,
            target,
            target_mac: Some(self.links.at(link).device.mac),
        };
        let to = if probe { ALL_NODES.into() } else { received.src };
        // A sender that names its station is answered without a look-up, and without an entry.
        let station = source_mac.map(|mac| (link, mac));
        self.send_ndp(now, &answer, target.into(), to, station);
        Ok(())
    }

    /// Sends a message: to the station if one is given, else by the route to `dst`.
    fn send_ndp(
        &mut self,
        now: Instant,
        message: &ndp::Message,
        src: IpAddr,
        dst: IpAddr,
        station: Option<(LinkIndex, Mac)>,
    ) {
        let (bytes, len) = message.emit();
        let mut packet = PacketBuf::for_tx();
        if let (Some(room), Some(bytes)) = (packet.push(len), bytes.get(..len)) {
            room.copy_from_slice(bytes);
        }
        let Some(station) = station else {
            self.send_icmp(now, (src, dst), Some(NDP_HOP_LIMIT), packet);
            return;
        };
        self.counters.tx_icmp += 1;
        if let Err((_, reason)) =
            self.send_to_station((src, dst), NDP_HOP_LIMIT, icmp::CHECKSUM_OFFSET, packet, station)
        {
            self.counters.drop_one(reason);
        }
    }

    /// Learns what a packet claims about a neighbour, and sends the packets that waited for it.
    fn learn_neighbor(
        &mut self,
        now: Instant,
        link: LinkIndex,
        addr: IpAddr,
        claim: NeighborClaim,
    ) {
        let neighbors = &mut self.links.at_mut(link).neighbors;
        let queue = neighbors.learn(now, addr, claim, &mut self.counters);
        if let (false, Some(mac)) = (queue.is_empty(), claim.mac) {
            self.release(link, mac, queue);
        }
    }

    /// Learns of a neighbour from another shard of the host.
    pub(in crate::net) fn handle_neighbor_news(
        &mut self,
        now: Instant,
        link: LinkIndex,
        addr: IpAddr,
        claim: NeighborClaim,
    ) {
        let neighbors = &self.links.at(link).neighbors;
        if claim.create || neighbors.knows(addr) {
            let solicited = claim.solicited && neighbors.is_asked(addr);
            self.learn_neighbor(now, link, addr, NeighborClaim { solicited, ..claim });
        }
    }

    /// Reports to the senders of packets that the neighbour did not answer.
    fn report_unreachable(&mut self, now: Instant, queue: VecDeque<QueuedPacket>) {
        for QueuedPacket { packet, ours } in queue {
            match ours {
                true => self.notify_unreachable(&packet),
                false => self.return_unreachable(now, packet),
            }
        }
    }

    /// Tells the sockets that the neighbour did not answer.
    fn notify_unreachable(&mut self, packet: &PacketBuf) {
        let head = packet.head();
        let about = match head.first().map(|b| b >> 4) {
            Some(4) => icmp::parse_quoted_v4(head),
            _ => icmp::parse_quoted_v6(head),
        };
        // The first fragment is enough: later ones have no ports.
        let Ok(about) = about else { return };
        let told = self.notices.iter().any(|notice| {
            matches!(notice, Inbound::IcmpError { about: other, .. }
                if (other.src, other.dst) == (about.src, about.dst)
                    && (other.src_port, other.dst_port, other.protocol)
                        == (about.src_port, about.dst_port, about.protocol))
        });
        if !told && self.notices.len() < NOTICES {
            self.notices.push_back(Inbound::IcmpError { about, kind: IcmpKind::HostUnreachable });
        }
    }
}
