//! Our addresses and the routing table, of all links: whether an address is ours, the next hop of a
//! packet, and its source address. `hop_cache.rs` keeps the last answers, `path_mtu.rs` what is known
//! of paths.

pub(super) mod hop_cache;
pub(super) mod path_mtu;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_mem::Instant;
use pagewire_mem::link::Medium;

use crate::cidr::Cidr;
use crate::error::{Error, StackError};
use crate::limits::{GATEWAY_DEAD, MAX_ADDRESSES, MAX_ROUTES, MIN_MTU_V4, MIN_MTU_V6};
use crate::net::links::config::{LinkConfig, LinkIndex};
use crate::net::wire::ethernet::Mac;
use crate::net::wire::ndp;

/// Our addresses and static routes, of all links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    /// By link.
    media: Vec<Medium>,
    addresses: Vec<Cidr>,
    /// The link of each of them.
    owners: Vec<LinkIndex>,
    /// Longest prefix first; among equals, the order in which they were given.
    table: Vec<Route>,
    /// Changes when a gateway is passed over or comes back, and with links.
    generation: u32,
}

#[derive(Clone, Debug)]
struct Route {
    to: Cidr,
    link: LinkIndex,
    /// `None`: on the link.
    via: Option<IpAddr>,
    /// Passed over until then, if there is another route.
    dead_until: Instant,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// To ourselves.
    Local,
    /// To the station of this neighbour.
    Neighbor(IpAddr),
    /// To a group of stations, or all.
    Group(Mac),
    /// Into a medium that has no stations.
    Direct,
}

/// The relation of a received packet's destination to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// An address of ours.
    Unicast,
    /// A group that we are in.
    Multicast,
    /// The destination is all hosts of a network of ours.
    Broadcast,
    /// Not us.
    Foreign,
}

impl Routes {
    /// Adds the addresses and routes of a link; on an error nothing has changed.
    pub(crate) fn add_link(
        &mut self,
        link: LinkIndex,
        config: &LinkConfig,
    ) -> Result<(), StackError> {
        let LinkConfig { capabilities, addresses, gateways, routes, .. } = config;
        if addresses.is_empty() {
            return Err(StackError::NoAddress);
        }
        let mut next = self.clone();
        for &cidr in addresses {
            check_address(cidr)?;
            next.add_address(link, cidr)?;
        }
        let mtu = capabilities.mtu;
        let has_v6 = addresses.iter().any(|a| a.addr().is_ipv6());
        if has_v6 && mtu < MIN_MTU_V6 {
            return Err(StackError::Mtu { mtu, why: "IPv6 needs 1280 bytes (RFC 8200 section 5)" });
        }
        if mtu < MIN_MTU_V4 {
            return Err(StackError::Mtu { mtu, why: "IPv4 needs 576 bytes here" });
        }
        // RFC 4291 section 2.1: "All interfaces are required to have at least one Link-Local
        // unicast address."
        let has_link_local = addresses.iter().any(|a| is_link_local(a.addr()));
        if has_v6 && !has_link_local && capabilities.medium == Medium::Ethernet {
            let mac = Mac(capabilities.mac);
            let mut addr = ndp::link_local(mac);
            if next.is_ours(addr.into()) {
                // Another link has the same station address: this address keeps the links apart.
                addr = ndp::link_local_of(mac, link);
            }
            if let Ok(cidr) = Cidr::new(addr.into(), 64) {
                next.add_address(link, cidr)?;
            }
        }
        let given = next.of_link(link).count();
        if given > MAX_ADDRESSES {
            return Err(StackError::TooMany { what: "addresses", given, limit: MAX_ADDRESSES });
        }
        next.media.resize(next.media.len().max(usize::from(link) + 1), Medium::Ip);
        if let Some(medium) = next.media.get_mut(usize::from(link)) {
            *medium = capabilities.medium;
        }
        let dead_until = Instant::ZERO;
        for to in next.of_link(link).collect::<Vec<_>>() {
            next.table.push(Route { to, link, via: None, dead_until });
        }
        for (to, via) in default_routes(gateways).chain(routes.iter().copied()) {
            if via.is_unspecified() && to.addr().is_ipv4() == via.is_ipv4() {
                next.table.push(Route { to, link, via: None, dead_until });
                continue;
            }
            // Without stations, a gateway only names the link.
            let on_link = capabilities.medium == Medium::Ip
                || is_link_local(via)
                || next.of_link(link).any(|a| a.contains(via) && a.addr() != via);
            if !on_link || to.addr().is_ipv4() != via.is_ipv4() {
                return Err(StackError::Gateway(via));
            }
            next.table.push(Route { to, link, via: Some(via), dead_until });
        }
        let given = next.table.iter().filter(|route| route.link == link).count();
        if given > MAX_ROUTES {
            return Err(StackError::TooMany { what: "routes", given, limit: MAX_ROUTES });
        }
        next.table.sort_by_key(|route| core::cmp::Reverse(route.to.prefix()));
        next.generation = next.generation.wrapping_add(1);
        *self = next;
        Ok(())
    }

    fn add_address(&mut self, link: LinkIndex, cidr: Cidr) -> Result<(), StackError> {
        if self.is_ours(cidr.addr()) {
            return Err(StackError::DuplicateAddress(cidr.addr()));
        }
        self.addresses.push(cidr);
        self.owners.push(link);
        Ok(())
    }

    /// Forgets the addresses and routes of a link.
    pub(crate) fn remove_link(&mut self, link: LinkIndex) {
        let kept: Vec<_> = self.owned().filter(|&(_, owner)| owner != link).collect();
        (self.addresses, self.owners) = kept.into_iter().unzip();
        self.table.retain(|route| route.link != link);
        self.generation = self.generation.wrapping_add(1);
    }

    // Getters.

    pub(crate) fn addresses(&self) -> &[Cidr] {
        &self.addresses
    }

    fn owned(&self) -> impl Iterator<Item = (Cidr, LinkIndex)> {
        self.addresses.iter().copied().zip(self.owners.iter().copied())
    }

    pub(crate) fn of_link(&self, link: LinkIndex) -> impl Iterator<Item = Cidr> {
        self.owned().filter(move |&(_, owner)| owner == link).map(|(cidr, _)| cidr)
    }

    pub(crate) fn owner(&self, addr: IpAddr) -> Option<LinkIndex> {
        self.owned().find(|(cidr, _)| cidr.addr() == addr).map(|(_, owner)| owner)
    }

    fn medium(&self, link: LinkIndex) -> Medium {
        self.media.get(usize::from(link)).copied().unwrap_or(Medium::Ip)
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether we have any address of this family on a link.
    pub(crate) fn has_family(&self, link: LinkIndex, v6: bool) -> bool {
        self.of_link(link).any(|a| a.addr().is_ipv6() == v6)
    }

    /// Whether the address is ours; loopback addresses are not.
    pub(crate) fn is_ours(&self, addr: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.addr() == addr)
    }

    pub(crate) fn is_ours_on(&self, link: LinkIndex, addr: IpAddr) -> bool {
        self.of_link(link).any(|a| a.addr() == addr)
    }

    /// Whether packets to the address stay here.
    pub(crate) fn is_local(&self, addr: IpAddr) -> bool {
        self.is_ours(addr) || addr.is_loopback()
    }

    /// Whether the address means all hosts of a network of ours.
    pub(crate) fn is_broadcast(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => a.is_broadcast() || self.broadcast_link(a).is_some(),
            IpAddr::V6(_) => false,
        }
    }

    /// The link on which the address means all hosts.
    fn broadcast_link(&self, addr: Ipv4Addr) -> Option<LinkIndex> {
        self.owned().find(|(cidr, _)| cidr.broadcast() == Some(addr)).map(|(_, owner)| owner)
    }

    /// Whether the address is that of a host on the link, not behind a gateway.
    pub(crate) fn is_on_link(&self, link: LinkIndex, addr: IpAddr) -> bool {
        let direct = |route: &&Route| route.link == link && route.via.is_none();
        is_link_local(addr) || self.table.iter().filter(direct).any(|r| r.to.contains(addr))
    }

    /// Classifies the destination of a packet that came in by `link`. RFC 1122 section 3.3.4.2
    /// leaves the choice: as on Linux, an address of ours is ours on every link (the weak model);
    /// but a link-local address means another host on each link.
    pub(crate) fn delivery(&self, link: LinkIndex, dst: IpAddr) -> Delivery {
        let ours = if is_link_local(dst) { self.is_ours_on(link, dst) } else { self.is_ours(dst) };
        if ours {
            return Delivery::Unicast;
        }
        match dst {
            // RFC 1122 section 3.3.7: every host is in the all-hosts group.
            IpAddr::V4(a) if a == Ipv4Addr::new(224, 0, 0, 1) => Delivery::Multicast,
            IpAddr::V4(a) if a.is_broadcast() => Delivery::Broadcast,
            IpAddr::V4(a) if self.of_link(link).any(|cidr| cidr.broadcast() == Some(a)) => {
                Delivery::Broadcast
            }
            IpAddr::V6(a) if a.is_multicast() && self.is_member(link, a) => Delivery::Multicast,
            _ => Delivery::Foreign,
        }
    }

    /// RFC 4291 section 2.8: the all-nodes groups, and the solicited-node groups of its addresses.
    fn is_member(&self, link: LinkIndex, group: Ipv6Addr) -> bool {
        const ALL_NODES_INTERFACE: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1);
        const ALL_NODES_LINK: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        group == ALL_NODES_LINK
            || group == ALL_NODES_INTERFACE
            || self.of_link(link).any(|a| match a.addr() {
                IpAddr::V6(a) => ndp::solicited_node(a) == group,
                IpAddr::V4(_) => false,
            })
    }

    /// Whether a frame to this group of stations may hold a packet for us.
    pub(crate) fn accepts_mac(&self, link: LinkIndex, mac: Mac) -> bool {
        mac == Mac::BROADCAST
            || mac == Mac([0x01, 0x00, 0x5e, 0, 0, 1])
            || mac == Mac([0x33, 0x33, 0, 0, 0, 1])
            || self.of_link(link).any(|a| match a.addr() {
                IpAddr::V6(a) => Mac::for_multicast(ndp::solicited_node(a).into()) == mac,
                IpAddr::V4(_) => false,
            })
    }

    /// Whether answers to `src`, whose packet came by `link`, would leave by another link.
    pub(crate) fn leads_elsewhere(&self, link: LinkIndex, src: IpAddr) -> bool {
        // Link-local addresses are each link's own.
        let mut best = self.best(src).peekable();
        !is_link_local(src) && best.peek().is_some() && !best.any(|route| route.link == link)
    }

    /// Whether answers to `src` would leave by `link`.
    pub(crate) fn leads_to(&self, link: LinkIndex, src: IpAddr) -> bool {
        self.best(src).any(|route| route.link == link)
    }

    // Decisions.

    /// The next hop of a packet from `src` to `dst`, and the link that it leaves by.
    pub(crate) fn hop(
        &self,
        now: Instant,
        src: IpAddr,
        dst: IpAddr,
    ) -> Result<(LinkIndex, Hop), Error> {
        if self.is_local(dst) {
            return Ok((0, Hop::Local));
        }
        if dst.is_unspecified() {
            return Err(Error::NetworkUnreachable);
        }
        // With one link there is nothing to prefer.
        let owner = if self.media.len() > 1 { self.owner(src) } else { None };
        if let Some(link) = self.group_link(now, owner, dst) {
            let hop = match self.medium(link) {
                Medium::Ip => Hop::Direct,
                Medium::Ethernet if dst.is_multicast() => Hop::Group(Mac::for_multicast(dst)),
                Medium::Ethernet => Hop::Group(Mac::BROADCAST),
            };
            return Ok((link, hop));
        }
        let route = self.route(now, owner, dst).ok_or(Error::NetworkUnreachable)?;
        let hop = match self.medium(route.link) {
            Medium::Ip => Hop::Direct,
            Medium::Ethernet => Hop::Neighbor(route.via.unwrap_or(dst)),
        };
        Ok((route.link, hop))
    }

    /// The next hop of a packet to `dst` that may leave by one link only. As on Linux, a destination
    /// without a route is a neighbour on that link in IPv4, and unreachable in IPv6.
    pub(crate) fn hop_by(
        &self,
        now: Instant,
        link: LinkIndex,
        dst: IpAddr,
    ) -> Result<(LinkIndex, Hop), Error> {
        if self.is_local(dst) {
            return Ok((0, Hop::Local));
        }
        if dst.is_unspecified() {
            return Err(Error::NetworkUnreachable);
        }
        let to_all = matches!(dst, IpAddr::V4(a) if a.is_broadcast()
            || self.of_link(link).any(|cidr| cidr.broadcast() == Some(a)));
        let hop = match self.medium(link) {
            Medium::Ethernet if dst.is_multicast() => Hop::Group(Mac::for_multicast(dst)),
            Medium::Ethernet if to_all => Hop::Group(Mac::BROADCAST),
            medium => {
                let route = self.route_by(now, link, dst);
                if route.is_none() && dst.is_ipv6() && !dst.is_multicast() {
                    return Err(Error::NetworkUnreachable);
                }
                match medium {
                    Medium::Ip => Hop::Direct,
                    Medium::Ethernet => Hop::Neighbor(route.and_then(|r| r.via).unwrap_or(dst)),
                }
            }
        };
        Ok((link, hop))
    }

    /// The route by this link with the longest prefix, preferably by a gateway that is not dead.
    fn route_by(&self, now: Instant, link: LinkIndex, dst: IpAddr) -> Option<&Route> {
        let there = || self.table.iter().filter(move |r| r.link == link && r.to.contains(dst));
        let longest = there().next()?.to.prefix();
        let best = || there().filter(move |route| route.to.prefix() == longest);
        best().find(|route| now >= route.dead_until).or_else(|| best().next())
    }

    /// Our source address for packets to `dst` that may leave by one link only.
    pub(crate) fn source_by(
        &self,
        now: Instant,
        link: LinkIndex,
        dst: IpAddr,
    ) -> Result<IpAddr, Error> {
        if self.is_local(dst) {
            return Ok(dst);
        }
        self.hop_by(now, link, dst)?;
        self.source_on(link, dst).ok_or(Error::AddressNotAvailable)
    }

    /// The link that a packet to a group or a broadcast address leaves by: the network's; else that
    /// of the source address, of the route, or the first. `None`: it is to one host.
    fn group_link(&self, now: Instant, owner: Option<LinkIndex>, dst: IpAddr) -> Option<LinkIndex> {
        let network = match dst {
            _ if dst.is_multicast() => None,
            IpAddr::V4(a) if a.is_broadcast() => None,
            IpAddr::V4(a) => Some(self.broadcast_link(a)?),
            IpAddr::V6(_) => return None,
        };
        let of_family = || self.owned().find(|(a, _)| a.addr().is_ipv4() == dst.is_ipv4());
        network
            .or(owner)
            .or_else(|| self.route(now, None, dst).map(|route| route.link))
            .or_else(|| of_family().map(|(_, link)| link))
            .or(Some(0))
    }

    /// The routes with the longest prefix, in order of preference.
    fn best(&self, dst: IpAddr) -> impl Iterator<Item = &Route> {
        let mut matching = self.table.iter().filter(move |route| route.to.contains(dst)).peekable();
        let prefix = matching.peek().map(|first| first.to.prefix());
        matching.take_while(move |route| Some(route.to.prefix()) == prefix)
    }

    /// The route with the longest prefix, preferably by a living gateway, then by the `preferred`
    /// link, that of our address; a link-local destination is reached by that link only.
    fn route(&self, now: Instant, preferred: Option<LinkIndex>, dst: IpAddr) -> Option<&Route> {
        let alive = |route: &&Route| now >= route.dead_until;
        let there = |route: &&Route| preferred.is_none_or(|link| route.link == link);
        let own = self.best(dst).filter(there).find(alive);
        if own.is_some() || (is_link_local(dst) && preferred.is_some()) {
            return own;
        }
        self.best(dst).find(alive).or_else(|| self.best(dst).next())
    }

    /// The link that packets from `src` (an address of ours, if given) to `dst` leave by.
    pub(crate) fn link_to(
        &self,
        now: Instant,
        src: Option<IpAddr>,
        dst: IpAddr,
    ) -> Option<LinkIndex> {
        let owner = src.and_then(|src| self.owner(src));
        self.group_link(now, owner, dst)
            .or_else(|| self.route(now, owner, dst).map(|route| route.link))
    }

    /// Our source address for packets to `dst`, by link `scope` if given (RFC 6724 section 5,
    /// reduced to static addresses: same address, same scope, outgoing interface, same network).
    pub(crate) fn source_for(
        &self,
        now: Instant,
        scope: Option<LinkIndex>,
        dst: IpAddr,
    ) -> Result<IpAddr, Error> {
        if self.is_local(dst) {
            return Ok(dst);
        }
        let of_family = |a: &Cidr| a.addr().is_ipv6() == dst.is_ipv6();
        if dst.is_unspecified() || !self.addresses.iter().any(of_family) {
            return Err(Error::NetworkUnreachable);
        }
        let link_scope = match dst {
            IpAddr::V4(_) => false,
            IpAddr::V6(a) => {
                a.is_unicast_link_local() || (a.is_multicast() && a.octets()[1] & 0x0f <= 2)
            }
        };
        let in_scope = |a: &Cidr| dst.is_ipv4() || is_link_local(a.addr()) == link_scope;
        let (link, next) = match self.group_link(now, scope, dst) {
            Some(link) => (link, dst),
            None => {
                let route = self.route(now, scope, dst).ok_or(Error::NetworkUnreachable)?;
                (route.link, route.via.unwrap_or(dst))
            }
        };
        let candidates = || self.of_link(link).filter(of_family).filter(in_scope);
        candidates()
            .filter(|a| a.contains(dst))
            .chain(candidates().filter(|a| a.contains(next)))
            .chain(candidates())
            .chain(self.addresses.iter().copied().filter(of_family).filter(in_scope))
            .chain(self.addresses.iter().copied().filter(of_family))
            .map(|cidr| cidr.addr())
            .next()
            .ok_or(Error::AddressNotAvailable)
    }

    /// Our address on `link` for requests about the neighbour `addr`.
    pub(crate) fn source_on(&self, link: LinkIndex, addr: IpAddr) -> Option<IpAddr> {
        let of_family = || self.of_link(link).filter(|a| a.addr().is_ipv4() == addr.is_ipv4());
        let same_scope = |a: &Cidr| is_link_local(a.addr()) == is_link_local(addr);
        of_family()
            .find(|a| a.contains(addr))
            .or_else(|| of_family().find(same_scope))
            .or_else(|| of_family().next())
            .map(|cidr| cidr.addr())
    }

    /// A neighbour did not answer: avoids it as a gateway for a while (RFC 1122 section 3.3.1.6).
    pub(crate) fn handle_dead_neighbor(&mut self, now: Instant, link: LinkIndex, addr: IpAddr) {
        for route in &mut self.table {
            if route.via == Some(addr) && route.link == link {
                route.dead_until = now + GATEWAY_DEAD;
                self.generation = self.generation.wrapping_add(1);
            }
        }
    }

    /// Whether a packet from the wire may have this source: RFC 1122 section 3.2.1.3 and RFC 4291
    /// section 2.5 and 2.7 list addresses that never are one; ours is not either.
    pub(super) fn is_plausible_source(&self, src: IpAddr) -> bool {
        self.is_host(src) && !self.is_ours(src)
    }

    /// Whether a transparent link takes packets to this address: it is that of one host, anywhere.
    pub(super) fn may_be_any_host(&self, addr: IpAddr) -> bool {
        self.is_host(addr) && !is_link_local(addr)
    }

    /// Whether the address is that of another host, in whose name a transparent link lets us send.
    #[cold]
    pub(super) fn is_foreign_host(&self, addr: IpAddr) -> bool {
        self.may_be_any_host(addr) && !self.is_local(addr)
    }

    /// Whether the address is that of one other host, or of ours: no group, and not reserved.
    fn is_host(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => {
                let [first, ..] = a.octets();
                // 0.0.0.0/8 "this host", 127.0.0.0/8 loopback, 224.0.0.0/3 groups and reserved.
                first != 0 && first != 127 && first < 224 && !self.is_broadcast(addr)
            }
            IpAddr::V6(a) => {
                !a.is_multicast()
                    && !a.is_unspecified()
                    && !a.is_loopback()
                    && a.to_ipv4_mapped().is_none()
            }
        }
    }
}

fn default_routes(gateways: &[IpAddr]) -> impl Iterator<Item = (Cidr, IpAddr)> {
    gateways.iter().filter_map(|&via| {
        let any: IpAddr = match via {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        Some((Cidr::new(any, 0).ok()?, via))
    })
}

fn check_address(cidr: Cidr) -> Result<(), StackError> {
    let addr = cidr.addr();
    let why = if addr.is_unspecified() {
        "it means no address"
    } else if addr.is_loopback() {
        "loopback addresses are always there"
    } else if addr.is_multicast() {
        "it is a multicast address"
    } else if let IpAddr::V4(a) = addr
        && (a.is_broadcast() || cidr.broadcast() == Some(a))
    {
        "it is the network's broadcast address"
    } else if let IpAddr::V4(_) = addr
        && cidr.prefix() < 31
        && cidr.network() == addr
    {
        "it is the network's own address"
    } else {
        return Ok(());
    };
    Err(StackError::Address(cidr, why))
}

pub(crate) fn is_link_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}
