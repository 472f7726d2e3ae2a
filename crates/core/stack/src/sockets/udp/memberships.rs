//! Multicast settings of a datagram socket: the groups that it has joined, and how it sends to groups.

use std::net::IpAddr;

use crate::error::Error;
use crate::limits::{SOCKET_GROUPS_V4, SOCKET_GROUPS_V6};
use crate::net::LinkId;

/// How a socket sends to groups of one version of IP, and receives from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MulticastSettings {
    /// Time to live or hop limit; 0: on this host only. 1 by default: on the link only.
    pub hops: u8,
    /// Whether sent datagrams loop back to members of the group on this host; `true` by default.
    pub loops: bool,
    /// The link to send by, unless the socket is bound to another; `None`: the route's.
    pub link: Option<LinkId>,
    /// The source address, if the socket is bound to none; `None`: the route's.
    pub source: Option<IpAddr>,
    /// Whether the socket also receives from groups that only other sockets have joined (Linux's
    /// `IP_MULTICAST_ALL`); `true` by default.
    pub all: bool,
}

impl Default for MulticastSettings {
    fn default() -> Self {
        Self { hops: 1, loops: true, link: None, source: None, all: true }
    }
}

/// The link on which a group is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupLink {
    /// The link of the route to the group; else the first with an address of its version.
    Route,
    /// The link that has this address.
    Address(IpAddr),
    /// The link with this [`scope_id`](LinkId::scope_id).
    Number(u32),
}

/// The groups that a socket has joined, each on a link. The rules are Linux's.
#[derive(Clone, Debug, Default)]
pub struct Memberships(pub(crate) Vec<(IpAddr, LinkId)>);

impl Memberships {
    /// Adds a group; `any`: no link was named.
    ///
    /// # Errors
    /// `InvalidInput` for what is no group, `AddressInUse` if it was joined before (in IPv6, on any
    /// link if none was named), `NoBuffers` beyond [`SOCKET_GROUPS_V4`], `NoMemory` beyond
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

    /// Removes a group; returns the link that it was joined on.
    ///
    /// # Errors
    /// `AddressNotAvailable` if it was not joined there, `InvalidInput` for no group of IPv6.
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

/// A socket's groups and its settings for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct UdpGroups {
    pub(crate) joined: Memberships,
    /// By version of IP, IPv4 first.
    pub(crate) settings: [MulticastSettings; 2],
}
