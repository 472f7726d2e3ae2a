//! Datagram sockets and groups: who has joined what, who gets what is sent there, and how datagrams to
//! groups are sent. How routers hear of it is in `net/multicast/`.
//!
//! As on Linux by default (`IP_MULTICAST_ALL`), a socket that is bound to the port, and to the group or to
//! no address, gets what comes for any group that its host is in on that link, whoever joined it.

use std::net::IpAddr;

use pagewire_mem::{Instant, PacketBuf};
use smallvec::SmallVec;

use super::demux::Tuple;
use super::handles::Udp;
use super::udp::{UdpSocket, replace_payload};
use crate::counters::DropReason;
use crate::error::Error;
use crate::limits::{SOCKET_GROUPS_V4, SOCKET_GROUPS_V6};
use crate::net::{LinkId, Net, Received};
use crate::stack::{Core, Stack};

/// How datagrams to groups of one version of IP are sent and taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastSettings {
    /// Time to live or hop limit; 0: they stay on this host. 1 by default: on the link.
    pub hops: u8,
    /// Whether they come back to sockets of this stack that get what is sent to the group; `true` by
    /// default.
    pub loops: bool,
    /// The link that they leave by, unless the socket is bound to another; `None`: that of the route.
    pub link: Option<LinkId>,
    /// The address that they are from, if the socket is bound to none; `None`: what suits.
    pub source: Option<IpAddr>,
    /// Whether the socket gets what is sent to groups that others have joined and it has not, too
    /// (Linux's `IP_MULTICAST_ALL`); `true` by default.
    pub all: bool,
}

impl Default for MulticastSettings {
    fn default() -> Self {
        Self { hops: 1, loops: true, link: None, source: None, all: true }
    }
}

/// Which link a group is joined on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupLink {
    /// That of the route to the group; where none leads there, the first with an address of its version.
    Route,
    /// The one that has this address of ours.
    Address(IpAddr),
    /// The one with this [`scope_id`](LinkId::scope_id).
    Number(u32),
}

/// The groups that a socket has joined, each on a link. The rules are Linux's.
#[derive(Clone, Debug, Default)]
pub struct Memberships(Vec<(IpAddr, LinkId)>);

impl Memberships {
    /// Notes a group; `any`: no link was named.
    ///
    /// # Errors
    /// `InvalidInput` for what is no group, `AddressInUse` if it was joined before (in IPv6, on any link
    /// if none was named), `NoBuffers` beyond [`SOCKET_GROUPS_V4`], `NoMemory` beyond
    /// [`SOCKET_GROUPS_V6`].
    pub fn join(&mut self, group: IpAddr, link: LinkId, any: bool) -> Result<(), Error> {
        if !group.is_multicast() {
            return Err(Error::InvalidInput);
        }
        if self.place(group, link, any).is_some() {
            return Err(Error::AddressInUse);
        }
        let (most, full) = match group {
            IpAddr::V4(_) => (SOCKET_GROUPS_V4, Error::NoBuffers),
            IpAddr::V6(_) => (SOCKET_GROUPS_V6, Error::NoMemory),
        };
        if self.0.iter().filter(|(joined, _)| joined.is_ipv4() == group.is_ipv4()).count() >= most {
            return Err(full);
        }
        self.0.push((group, link));
        Ok(())
    }

    /// Strikes a group off; returns the link that it was joined on.
    ///
    /// # Errors
    /// `AddressNotAvailable` if it was not joined there, `InvalidInput` for what is no group of IPv6.
    pub fn leave(&mut self, group: IpAddr, link: LinkId, any: bool) -> Result<LinkId, Error> {
        if group.is_ipv6() && !group.is_multicast() {
            return Err(Error::InvalidInput);
        }
        let place = self.place(group, link, any).ok_or(Error::AddressNotAvailable)?;
        Ok(self.0.remove(place).1)
    }

    /// The groups, each with its link.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, LinkId)> {
        self.0.iter().copied()
    }

    fn place(&self, group: IpAddr, link: LinkId, any: bool) -> Option<usize> {
        let any = any && group.is_ipv6();
        self.0.iter().position(|&(joined, on)| joined == group && (any || on == link))
    }
}

/// What a socket has to do with groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct UdpGroups {
    joined: Memberships,
    /// By version of IP, IPv4 first.
    settings: [MulticastSettings; 2],
}

impl UdpSocket {
    /// How it sends to groups of a version, and takes from them.
    pub(super) fn multicast(&self, v6: bool) -> MulticastSettings {
        let Some(groups) = &self.groups else { return MulticastSettings::default() };
        let [v4_settings, v6_settings] = groups.settings;
        if v6 { v6_settings } else { v4_settings }
    }

    /// Whether it gets what came for the group by a link.
    fn takes_group(&self, group: IpAddr, link: Option<LinkId>) -> bool {
        // As Linux, which asks for the link in IPv4 only.
        let is_it = |(joined, on)| joined == group && (group.is_ipv6() || Some(on) == link);
        self.multicast(group.is_ipv6()).all
            || self.groups.as_ref().is_some_and(|groups| groups.joined.iter().any(is_it))
    }
}

impl Core {
    /// Byte path, step R4 for datagrams to a group: everybody who is to have it gets its memory by
    /// reference.
    #[cold]
    pub(super) fn udp_input_group(
        &mut self,
        now: Instant,
        received: &Received,
        tuple: &Tuple,
        scope: u32,
        packet: &mut PacketBuf,
    ) {
        let (from, came_by) = (tuple.remote_addr(), self.net.came_by(received));
        let table = &self.sockets.table;
        let takes = |&index: &u32| {
            let Some(socket) = table.udp(index) else { return false };
            let elsewhere = socket.scope != 0 && socket.scope != scope;
            !elsewhere
                && socket.takes_from(from).is_some()
                && socket.takes_group(received.dst, came_by)
        };
        let all = self.sockets.udp_binds.find_all(tuple.local_addr(), came_by);
        let takers: SmallVec<[u32; 8]> = all.filter(takes).collect();
        let Some((&last, others)) = takers.split_last() else {
            // RFC 1122 section 3.2.2: nobody is told of what was sent to a group.
            return self.net.counters.drop_one(DropReason::UdpNoSocket);
        };
        for &index in others {
            let mut each = PacketBuf::for_rx();
            replace_payload(&mut each, packet.frags().iter().cloned().collect());
            self.udp_queue(now, index, received, (tuple.remote_port, scope), &mut each);
        }
        self.udp_queue(now, last, received, (tuple.remote_port, scope), packet);
    }

    /// Leaves all groups of a socket that is closed.
    pub(super) fn quit_groups(&mut self, now: Instant, groups: &UdpGroups) {
        for (group, link) in groups.joined.iter() {
            self.net.leave_group(&mut self.mem, now, link, group);
        }
    }
}

impl Stack {
    /// The link that a group is joined on.
    ///
    /// # Errors
    /// `NoSuchLink` if there is none, or it has no address of that version.
    pub fn group_link(&self, group: IpAddr, on: GroupLink) -> Result<LinkId, Error> {
        group_link(&self.core.net, group, on)
    }
}

impl Udp<'_> {
    /// Joins a group (`IP_ADD_MEMBERSHIP`, `IPV6_JOIN_GROUP`): what is sent there by the link comes in from
    /// now on. Routers and switches are told.
    ///
    /// # Errors
    /// As [`Stack::group_link`] and [`Memberships::join`]; `NoBuffers` if the link is in
    /// [`LINK_GROUPS`](crate::limits::LINK_GROUPS).
    pub fn join_group(&mut self, now: Instant, group: IpAddr, on: GroupLink) -> Result<(), Error> {
        if !group.is_multicast() {
            return Err(Error::InvalidInput);
        }
        let link = group_link(self.net, group, on)?;
        let socket = &mut *self.socket;
        let groups = socket.groups.get_or_insert_default();
        groups.joined.join(group, link, on == GroupLink::Route)?;
        self.net.join_group(self.mem, now, link, group).inspect_err(|_| {
            // It was the last one.
            groups.joined.0.pop();
        })
    }

    /// Leaves a group that the socket has joined.
    ///
    /// # Errors
    /// As [`Stack::group_link`] and [`Memberships::leave`].
    pub fn leave_group(&mut self, now: Instant, group: IpAddr, on: GroupLink) -> Result<(), Error> {
        let link = group_link(self.net, group, on)?;
        let socket = &mut *self.socket;
        let groups = socket.groups.get_or_insert_default();
        let link = groups.joined.leave(group, link, on == GroupLink::Route)?;
        self.net.leave_group(self.mem, now, link, group);
        Ok(())
    }

    /// How datagrams to groups of a version of IP are sent and taken.
    pub fn multicast(&self, v6: bool) -> MulticastSettings {
        self.socket.multicast(v6)
    }

    /// Sets that.
    pub fn set_multicast(&mut self, v6: bool, settings: MulticastSettings) {
        let socket = &mut *self.socket;
        let [for_v4, for_v6] = &mut socket.groups.get_or_insert_default().settings;
        *(if v6 { for_v6 } else { for_v4 }) = settings;
    }
}

fn group_link(net: &Net, group: IpAddr, on: GroupLink) -> Result<LinkId, Error> {
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
