//! Multicast membership of each link, reported by IGMP (RFC 3376) and MLD (RFC 3810).
//!
//! Read first: `groups.rs`, which decides what to report and when, for one version of IP on one
//! link. This file joins it and the formats of `messages.rs` with the network layer.
//!
//! A link never leaves the solicited-node groups of our addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_mem::link::Medium;
use pagewire_mem::{CopyReason, HEAD_CAPACITY, Instant, PacketBuf};

use self::messages::{Message, Query, igmp, mld};
use crate::counters::DropReason;
use crate::error::Error;
use crate::limits::{DEFAULT_HOP_LIMIT, LOOPBACK_PACKETS};
use crate::net::input::received::Received;
use crate::net::links::config::{LinkId, LinkIndex};
use crate::net::output::Envelope;
use crate::net::routes::Delivery;
use crate::net::wire::ethernet::{self, Mac};
use crate::net::wire::{ipv4, ipv6, ndp, protocol};
use crate::net::{Mem, Net, Outgoing};

mod groups;
pub(super) mod link_groups;
pub(crate) mod messages;
#[cfg(test)]
mod tests;

/// Hop limit of membership messages: they concern one link.
const HOP_LIMIT: u8 = 1;

/// Bytes of the IP headers in front of a report, with a router alert.
const HEADERS_V4: usize = ipv4::LEN + ipv4::ROUTER_ALERT_LEN;
const HEADERS_V6: usize = ipv6::LEN + ipv6::ROUTER_ALERT.len();

/// Bytes of a report that have room behind the headers; the rest is in pages.
const FRONT: usize = HEAD_CAPACITY - ethernet::LEN - HEADERS_V6;

impl Net {
    /// Adds a socket to a group on a link. A new group is reported at once.
    ///
    /// # Errors
    /// `NoSuchLink` if it was removed, or has no address of that version; `NoBuffers` for too many.
    pub(crate) fn join_group(
        &mut self,
        now: Instant,
        link: LinkId,
        group: IpAddr,
    ) -> Result<(), Error> {
        let link = self.group_place(link, group)?;
        let groups = &mut self.links.at_mut(link).groups;
        groups.of(group.is_ipv6()).join(now, group, false)?;
        self.send_reports(now, link);
        Ok(())
    }

    /// Removes a socket from a group.
    pub(crate) fn leave_group(&mut self, now: Instant, link: LinkId, group: IpAddr) {
        let Some(link) = self.links.find(link) else { return };
        self.links.at_mut(link).groups.of(group.is_ipv6()).leave(now, group);
        self.send_reports(now, link);
    }

    /// The index of a link that may join groups of this IP version.
    pub(crate) fn group_place(&self, link: LinkId, group: IpAddr) -> Result<LinkIndex, Error> {
        let place = self.links.find(link).ok_or(Error::NoSuchLink)?;
        let interface = self.links.at(place);
        let speaks = if group.is_ipv4() { interface.has_v4 } else { interface.has_v6 };
        if speaks { Ok(place) } else { Err(Error::NoSuchLink) }
    }

    /// The link that packets to a group leave by.
    pub(crate) fn group_route(&self, group: IpAddr) -> Result<LinkId, Error> {
        let link = self.links.id_at(self.link_to(self.now, None, group));
        self.group_place(link, group).map(|_| link)
    }

    /// Whether a packet to the group that comes by this link is for us.
    pub(crate) fn is_in_group(&self, link: LinkIndex, group: IpAddr) -> bool {
        self.links.at(link).groups.contains(group)
            || self.routes.delivery(link, group) == Delivery::Multicast
    }

    /// A datagram to a group comes back to our own sockets, if the link that it leaves by is in it.
    pub(crate) fn loop_to_group(&mut self, now: Instant, out: &Outgoing) {
        let Outgoing { src, dst, protocol, ecn, dont_fragment, too_long, by, .. } = *out;
        let link = by.unwrap_or_else(|| self.link_to(now, Some(src), dst));
        if !self.is_in_group(link, dst) {
            return;
        }
        if self.loopback.len() >= LOOPBACK_PACKETS {
            return self.counters.drop_one(DropReason::LoopbackFull);
        }
        let mut copy = PacketBuf::for_tx();
        copy.gso = out.packet.gso;
        let head = out.packet.head();
        if let Some(room) = copy.push(head.len()) {
            room.copy_from_slice(head);
        }
        for frag in out.packet.frags() {
            if copy.push_frag(frag.clone()).is_err() {
                return self.counters.drop_one(DropReason::TooManyFragments);
            }
        }
        let hop_limit = out.hop_limit.unwrap_or(DEFAULT_HOP_LIMIT);
        let envelope = Envelope { src, dst, protocol, ecn, dont_fragment, too_long, hop_limit, by };
        if let Err((_, reason)) = self.loop_back(copy, &envelope, link) {
            self.counters.drop_one(reason);
        }
    }
}

impl Net {
    /// RFC 4862 section 5.4.2: a node joins the solicited-node groups of its addresses. If our addresses
    /// are not announced, the groups are reported only to queries.
    pub(super) fn join_solicited(&mut self, now: Instant, link: LinkIndex) {
        let addresses: Vec<_> = self.routes.of_link(link).map(|cidr| cidr.addr()).collect();
        let interface = self.links.at_mut(link);
        if interface.device.medium != Medium::Ethernet {
            return;
        }
        let quietly = interface.announcements == 0;
        for addr in addresses {
            let IpAddr::V6(addr) = addr else { continue };
            let group = ndp::solicited_node(addr).into();
            // There are fewer addresses than there may be groups.
            let _ = interface.groups.of(true).join(now, group, quietly);
        }
        interface.groups.note();
    }

    /// Handles an IGMP message, its checksum verified.
    pub(super) fn handle_igmp(
        &mut self,
        now: Instant,
        packet: &PacketBuf,
        received: &Received,
    ) -> Result<(), DropReason> {
        // RFC 3376 section 4: messages have a time to live of 1; others came through a router.
        if received.hop_limit != HOP_LIMIT || received.loopback {
            return Err(DropReason::GroupMessage);
        }
        let bytes = packet.head();
        match bytes.first() {
            Some(&igmp::QUERY) => {
                let query = Query::parse_v4(bytes, packet.len())?;
                self.handle_group_query(now, (received.link, false), &query);
            }
            Some(&(igmp::REPORT_V1 | igmp::REPORT_V2)) => {
                let group = bytes.get(4..8).and_then(<[u8]>::first_chunk::<4>);
                let group = group.ok_or(DropReason::GroupMessage)?;
                self.handle_group_report(now, received.link, Ipv4Addr::from(*group).into());
            }
            // Messages of other hosts and routers to routers.
            _ => return Err(DropReason::GroupMessage),
        }
        Ok(())
    }

    /// Handles an MLD message, its checksum verified, its head at the ICMP header.
    pub(super) fn handle_mld(
        &mut self,
        now: Instant,
        packet: &mut PacketBuf,
        received: &Received,
    ) -> Result<(), DropReason> {
        // RFC 3810 section 6.2: "If any of these checks fail, the packet is dropped": the source is
        // link-local, the hop limit is 1, a router alert is there.
        let near = matches!(received.src, IpAddr::V6(src) if src.is_unicast_link_local());
        let len = usize::from(received.header_len);
        let alerts = len > 0 && packet.push(len).is_some() && {
            let alerts = ipv6::has_router_alert(packet.head());
            packet.pull(len);
            alerts
        };
        if !near || received.hop_limit != HOP_LIMIT || !alerts || received.loopback {
            return Err(DropReason::GroupMessage);
        }
        let kind = packet.head().first().copied();
        // As much of it as the head takes.
        packet.linearize(packet.len().min(HEAD_CAPACITY));
        match kind {
            Some(mld::QUERY) => {
                let query = Query::parse_v6(packet.head(), packet.len())?;
                self.handle_group_query(now, (received.link, true), &query);
            }
            Some(mld::REPORT_V1) => {
                let group = packet.head().get(8..24).and_then(<[u8]>::first_chunk::<16>);
                let group = group.ok_or(DropReason::GroupMessage)?;
                self.handle_group_report(now, received.link, Ipv6Addr::from(*group).into());
            }
            _ => return Err(DropReason::GroupMessage),
        }
        Ok(())
    }

    pub(super) fn send_reports(&mut self, now: Instant, link: LinkIndex) {
        for v6 in [false, true] {
            let src = self.report_source(link, v6);
            let headers = if v6 { HEADERS_V6 } else { HEADERS_V4 };
            let room = self.links.at(link).device.mtu.saturating_sub(headers);
            let next =
                |net: &mut Net| net.links.at_mut(link).groups.of(v6).poll_transmit(now, room);
            while let Some(report) = next(self) {
                self.send_group_message(link, src, &report.emit(src));
            }
        }
        self.links.at_mut(link).groups.note();
    }

    fn handle_group_query(&mut self, now: Instant, (link, v6): (LinkIndex, bool), query: &Query) {
        self.links.at_mut(link).groups.of(v6).handle_query(now, query);
        self.send_reports(now, link);
    }

    fn handle_group_report(&mut self, now: Instant, link: LinkIndex, group: IpAddr) {
        let groups = &mut self.links.at_mut(link).groups;
        groups.of(group.is_ipv6()).handle_report(now, group);
        groups.note();
    }

    /// RFC 3376 section 4.2.13: an address of the link, or 0.0.0.0. RFC 3590 section 4: the link-local
    /// address, or `::` where there is none.
    fn report_source(&self, link: LinkIndex, v6: bool) -> IpAddr {
        let fits = |addr: &IpAddr| match addr {
            IpAddr::V4(_) => !v6,
            IpAddr::V6(a) => v6 && a.is_unicast_link_local(),
        };
        let any: IpAddr =
            if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        self.routes.of_link(link).map(|cidr| cidr.addr()).find(fits).unwrap_or(any)
    }

    fn send_group_message(&mut self, link: LinkIndex, src: IpAddr, message: &Message) {
        let Message { to, bytes } = message;
        let medium = self.links.at(link).device.medium;
        let mac = (medium == Medium::Ethernet).then(|| Mac::for_multicast(*to));
        let header = mac.map(|mac| self.link_header(link, mac, to.is_ipv6()));
        let sent = match group_packet(&mut self.mem, src, *to, bytes) {
            Some(packet) => self.emit(packet, link, header.as_ref()),
            None => Err((Error::NoBuffers, DropReason::NoPages)),
        };
        match sent {
            Ok(()) => self.counters.tx_group_reports += 1,
            Err((_, reason)) => self.counters.drop_one(reason),
        }
    }
}

/// The IP packet around a message: hop limit 1, a router alert, nothing left to a device.
fn group_packet(mem: &mut Mem, src: IpAddr, to: IpAddr, bytes: &[u8]) -> Option<PacketBuf> {
    let mut packet = PacketBuf::for_tx();
    let (front, rest) = bytes.split_at(bytes.len().min(FRONT));
    packet.push(front.len())?.copy_from_slice(front);
    let Mem { pool, writer, ledger, .. } = mem;
    let (parts, copied) = writer.write(pool, rest, ledger, CopyReason::Icmp);
    if copied < rest.len() {
        return None;
    }
    for part in parts {
        packet.push_frag(part).ok()?;
    }
    match (src, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = ipv4::Header {
                // RFC 3376 section 4: type of service 0xc0, as Linux.
                tos: 0xc0,
                total_len: (HEADERS_V4 + bytes.len()) as u32,
                dont_fragment: true,
                ttl: HOP_LIMIT,
                ..ipv4::Header::new(src, dst, protocol::IGMP, 0)
            };
            packet.push(HEADERS_V4)?.copy_from_slice(&header.emit_with_router_alert());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let alert = ipv6::ROUTER_ALERT;
            packet.push(alert.len())?.copy_from_slice(&alert);
            let len = alert.len() + bytes.len();
            let header = ipv6::Header {
                hop_limit: HOP_LIMIT,
                ..ipv6::Header::new(src, dst, protocol::HOP_BY_HOP, len)
            };
            packet.push(ipv6::LEN)?.copy_from_slice(&header.emit());
        }
        _ => return None,
    }
    Some(packet)
}
