//! Variant of step R4, for datagrams to a group. Reports to routers are in `net/multicast/`.
//!
//! As on Linux (`IP_MULTICAST_ALL`), a socket bound to the port, and to the group or to no address,
//! receives from every group that any socket of the host has joined on the link.

use std::net::IpAddr;

use pagewire_mem::{Instant, PacketBuf};
use smallvec::SmallVec;

use super::UdpSockets;
use super::memberships::{GroupLink, UdpGroups};
use super::socket::{WildcardDetails, replace_payload};
use crate::counters::DropReason;
use crate::error::Error;
use crate::net::{LinkId, Net, Received};
use crate::sockets::tuple::Tuple;
use crate::sockets::{Context, Udp};

impl UdpSockets {
    /// Queues a datagram to a group at each of its sockets, by reference.
    #[cold]
    pub(super) fn input_group(
        &self,
        cx: &mut Context,
        now: Instant,
        received: &Received,
        tuple: &Tuple,
        scope: u32,
        packet: &mut PacketBuf,
    ) {
        let (from, came_by) = (tuple.remote_addr(), cx.net.came_by(received));
        let table = &cx.table;
        let takes = |&index: &u32| {
            let Some(socket) = table.udp(index) else { return false };
            let elsewhere = socket.scope != 0 && socket.scope != scope;
            !elsewhere
                && socket.takes_from(from).is_some()
                && socket.takes_group(received.dst, came_by)
        };
        let all = self.binds.find_all(tuple.local_addr(), came_by);
        let takers: SmallVec<[u32; 8]> = all.filter(takes).collect();
        let Some((&last, others)) = takers.split_last() else {
            // RFC 1122 section 3.2.2: no ICMP error about a datagram to a group.
            return cx.net.counters.drop_one(DropReason::UdpNoSocket);
        };
        for &index in others {
            let mut each = PacketBuf::for_rx();
            each.gso = packet.gso;
            replace_payload(&mut each, packet.frags().iter().cloned().collect());
            let from = (tuple.remote_port, scope);
            cx.queue_datagram(now, index, received, from, WildcardDetails::default(), &mut each);
        }
        let from = (tuple.remote_port, scope);
        cx.queue_datagram(now, last, received, from, WildcardDetails::default(), packet);
    }
}

impl Context {
    /// Leaves all groups of a closed socket.
    pub(crate) fn leave_groups(&mut self, now: Instant, groups: &UdpGroups) {
        for (group, link) in groups.joined.iter() {
            self.net.leave_group(now, link, group);
        }
    }
}

impl Udp<'_> {
    /// Joins a group (`IP_ADD_MEMBERSHIP`, `IPV6_JOIN_GROUP`) and reports that to routers.
    ///
    /// # Errors
    /// As [`Stack::group_link`](crate::Stack::group_link) and [`Memberships::join`](crate::Memberships::join); `NoBuffers`
    /// beyond [`LINK_GROUPS`](crate::limits::LINK_GROUPS) of the link.
    pub fn join_group(&mut self, now: Instant, group: IpAddr, on: GroupLink) -> Result<(), Error> {
        if !group.is_multicast() {
            return Err(Error::InvalidInput);
        }
        let link = group_link(self.net, group, on)?;
        let socket = &mut *self.socket;
        let groups = socket.groups.get_or_insert_default();
        groups.joined.join(group, link, on == GroupLink::Route)?;
        self.net.join_group(now, link, group).inspect_err(|_| {
            groups.joined.0.pop();
        })
    }

    /// Leaves a group that the socket has joined.
    ///
    /// # Errors
    /// As [`Stack::group_link`](crate::Stack::group_link) and [`Memberships::leave`](crate::Memberships::leave).
    pub fn leave_group(&mut self, now: Instant, group: IpAddr, on: GroupLink) -> Result<(), Error> {
        let link = group_link(self.net, group, on)?;
        let socket = &mut *self.socket;
        let groups = socket.groups.get_or_insert_default();
        let link = groups.joined.leave(group, link, on == GroupLink::Route)?;
        self.net.leave_group(now, link, group);
        Ok(())
    }
}

pub(crate) fn group_link(net: &Net, group: IpAddr, on: GroupLink) -> Result<LinkId, Error> {
    let link = match on {
        GroupLink::Route => return net.group_route(group),
        GroupLink::Address(addr) => {
            net.link_ids().find(|&link| net.link_addresses(link).any(|cidr| cidr.addr() == addr))
        }
        GroupLink::Number(number) => net.link_ids().find(|link| link.scope_id() == number),
    };
    let link = link.ok_or(Error::NoSuchLink)?;
    net.group_place(link, group).map(|_| link)
}
