//! Addresses and routes: which addresses are ours, where a packet goes next, and from whom.
//!
//! A small direct-mapped cache in front of it all keeps the last destinations ready to send: the
//! link header built, the neighbour looked up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_device::Medium;
use pagewire_mem::Instant;

use super::NetConfig;
use super::wire::ethernet::{self, Mac};
use super::wire::ndp;
use crate::cidr::Cidr;
use crate::error::{Error, StackError};
use crate::limits::{
    GATEWAY_DEAD, MAX_ADDRESSES, MAX_ROUTES, MIN_MTU_V4, MIN_MTU_V6, MIN_PATH_MTU_V4, PATH_MTU_AGE,
    PATH_MTUS, ROUTE_CACHE,
};

/// Our addresses and static routes.
#[derive(Debug)]
pub(crate) struct Routes {
    medium: Medium,
    addresses: Vec<Cidr>,
    /// Longest prefix first; among equals, the order in which they were given.
    table: Vec<Route>,
    /// Changes when a gateway is passed over, or comes back.
    generation: u32,
}

#[derive(Debug)]
struct Route {
    to: Cidr,
    /// `None`: on the link.
    via: Option<IpAddr>,
    /// Passed over until then, if there is another way.
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

/// What an address is to us, as the destination of a packet that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// An address of ours.
    Unicast,
    /// A group that we are in.
    Multicast,
    /// All hosts of a network of ours.
    Broadcast,
    /// Not us.
    Foreign,
}

impl Routes {
    pub(crate) fn new(config: &NetConfig) -> Result<Self, StackError> {
        let mut addresses: Vec<Cidr> = Vec::new();
        if config.addresses.is_empty() {
            return Err(StackError::NoAddress);
        }
        for &cidr in &config.addresses {
            check_address(cidr)?;
            if addresses.iter().any(|a| a.addr() == cidr.addr()) {
                return Err(StackError::DuplicateAddress(cidr.addr()));
            }
            addresses.push(cidr);
        }
        let mtu = config.capabilities.mtu;
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
        if has_v6 && !has_link_local && config.capabilities.medium == Medium::Ethernet {
            let addr = ndp::link_local(Mac(config.capabilities.mac));
            addresses.extend(Cidr::new(addr.into(), 64));
        }
        if addresses.len() > MAX_ADDRESSES {
            let given = addresses.len();
            return Err(StackError::TooMany { what: "addresses", given, limit: MAX_ADDRESSES });
        }
        let mut routes = Self {
            medium: config.capabilities.medium,
            addresses,
            table: Vec::new(),
            generation: 0,
        };
        for &to in &routes.addresses {
            routes.table.push(Route { to, via: None, dead_until: Instant::ZERO });
        }
        for (to, via) in default_routes(&config.gateways).chain(config.routes.iter().copied()) {
            // Where there are no stations, a gateway says no more than "out of this interface".
            let on_link = routes.medium == Medium::Ip
                || is_link_local(via)
                || routes.addresses.iter().any(|a| a.contains(via) && a.addr() != via);
            if !on_link || to.addr().is_ipv4() != via.is_ipv4() {
                return Err(StackError::Gateway(via));
            }
            routes.table.push(Route { to, via: Some(via), dead_until: Instant::ZERO });
        }
        let given = routes.table.len();
        if given > MAX_ROUTES {
            return Err(StackError::TooMany { what: "routes", given, limit: MAX_ROUTES });
        }
        routes.table.sort_by_key(|route| core::cmp::Reverse(route.to.prefix()));
        Ok(routes)
    }

    // Getters.

    pub(crate) fn addresses(&self) -> &[Cidr] {
        &self.addresses
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether we have any address of this family.
    pub(crate) fn speaks(&self, v6: bool) -> bool {
        self.addresses.iter().any(|a| a.addr().is_ipv6() == v6)
    }

    /// Whether the address is one of those we were given; loopback addresses are not.
    pub(crate) fn is_ours(&self, addr: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.addr() == addr)
    }

    /// Whether packets to the address stay here.
    pub(crate) fn is_local(&self, addr: IpAddr) -> bool {
        self.is_ours(addr) || addr.is_loopback()
    }

    /// Whether it means all hosts of a network of ours.
    pub(crate) fn is_broadcast(&self, addr: IpAddr) -> bool {
        match addr {
            IpAddr::V4(a) => {
                a.is_broadcast() || self.addresses.iter().any(|cidr| cidr.broadcast() == Some(a))
            }
            IpAddr::V6(_) => false,
        }
    }

    /// Whether the address is that of a host on our link, not behind a gateway.
    pub(crate) fn is_on_link(&self, addr: IpAddr) -> bool {
        is_link_local(addr) || self.addresses.iter().any(|a| a.contains(addr))
    }

    /// What a destination is to us.
    pub(crate) fn delivery(&self, dst: IpAddr) -> Delivery {
        if self.is_ours(dst) {
            return Delivery::Unicast;
        }
        match dst {
            // RFC 1122 section 3.3.7: every host is in the all-hosts group.
            IpAddr::V4(a) if a == Ipv4Addr::new(224, 0, 0, 1) => Delivery::Multicast,
            IpAddr::V4(_) if self.is_broadcast(dst) => Delivery::Broadcast,
            IpAddr::V6(a) if a.is_multicast() && self.is_member(a) => Delivery::Multicast,
            _ => Delivery::Foreign,
        }
    }

    /// RFC 4291 section 2.8: a host is in the all-nodes groups, and in the solicited-node group of
    /// each of its addresses.
    fn is_member(&self, group: Ipv6Addr) -> bool {
        const ALL_NODES_INTERFACE: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1);
        const ALL_NODES_LINK: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        group == ALL_NODES_LINK
            || group == ALL_NODES_INTERFACE
            || self.addresses.iter().any(|a| match a.addr() {
                IpAddr::V6(a) => ndp::solicited_node(a) == group,
                IpAddr::V4(_) => false,
            })
    }

    /// Whether a frame to this group of stations may hold a packet for us.
    pub(crate) fn hears(&self, mac: Mac) -> bool {
        mac == Mac::BROADCAST
            || mac == Mac([0x01, 0x00, 0x5e, 0, 0, 1])
            || mac == Mac([0x33, 0x33, 0, 0, 0, 1])
            || self.addresses.iter().any(|a| match a.addr() {
                IpAddr::V6(a) => Mac::for_multicast(ndp::solicited_node(a).into()) == mac,
                IpAddr::V4(_) => false,
            })
    }

    // Decisions.

    /// Where a packet to `dst` goes next.
    pub(crate) fn hop(&self, now: Instant, dst: IpAddr) -> Result<Hop, Error> {
        if self.is_local(dst) {
            return Ok(Hop::Local);
        }
        if dst.is_unspecified() {
            return Err(Error::NetworkUnreachable);
        }
        if self.medium == Medium::Ip {
            let group = dst.is_multicast() || self.is_broadcast(dst);
            return match group || self.route(now, dst).is_some() {
                true => Ok(Hop::Direct),
                false => Err(Error::NetworkUnreachable),
            };
        }
        if dst.is_multicast() {
            return Ok(Hop::Group(Mac::for_multicast(dst)));
        }
        if self.is_broadcast(dst) {
            return Ok(Hop::Group(Mac::BROADCAST));
        }
        let route = self.route(now, dst).ok_or(Error::NetworkUnreachable)?;
        Ok(Hop::Neighbor(route.via.unwrap_or(dst)))
    }

    /// The route with the longest prefix whose gateway is not known to be dead; a dead one if
    /// there is no other.
    fn route(&self, now: Instant, dst: IpAddr) -> Option<&Route> {
        let mut matching = self.table.iter().filter(|route| route.to.contains(dst)).peekable();
        let first = matching.peek().copied()?;
        matching
            .take_while(|route| route.to.prefix() == first.to.prefix())
            .find(|route| now >= route.dead_until)
            .or(Some(first))
    }

    /// The address of ours that packets to `dst` are sent from (RFC 6724 section 5, reduced to the
    /// rules that matter with static addresses: same address, same scope, same network).
    pub(crate) fn source_for(&self, now: Instant, dst: IpAddr) -> Result<IpAddr, Error> {
        if self.is_local(dst) {
            return Ok(dst);
        }
        if dst.is_unspecified() {
            return Err(Error::NetworkUnreachable);
        }
        if !self.speaks(dst.is_ipv6()) {
            return Err(Error::NetworkUnreachable);
        }
        let of_family = |a: &&Cidr| a.addr().is_ipv6() == dst.is_ipv6();
        let link_scope = match dst {
            IpAddr::V4(_) => false,
            IpAddr::V6(a) => {
                a.is_unicast_link_local() || (a.is_multicast() && a.octets()[1] & 0x0f <= 2)
            }
        };
        let in_scope = |a: &&Cidr| dst.is_ipv4() || is_link_local(a.addr()) == link_scope;
        let next = if dst.is_multicast() || self.is_broadcast(dst) {
            dst
        } else {
            self.route(now, dst).ok_or(Error::NetworkUnreachable)?.via.unwrap_or(dst)
        };
        let candidates = || self.addresses.iter().filter(of_family).filter(in_scope);
        candidates()
            .filter(|a| a.contains(dst))
            .chain(candidates().filter(|a| a.contains(next)))
            .chain(candidates())
            .chain(self.addresses.iter().filter(of_family))
            .map(Cidr::addr)
            .next()
            .ok_or(Error::AddressNotAvailable)
    }

    /// A neighbour never answered: if it is a gateway and there is another for the same network,
    /// that one is used for a while (RFC 1122 section 3.3.1.6).
    pub(crate) fn handle_dead_neighbor(&mut self, now: Instant, addr: IpAddr) {
        for route in &mut self.table {
            if route.via == Some(addr) {
                route.dead_until = now + GATEWAY_DEAD;
                self.generation = self.generation.wrapping_add(1);
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

/// Path MTUs that were reported and validated.
#[derive(Debug)]
pub(crate) struct PathMtus {
    known: Vec<PathMtu>,
    /// When the next of them is over, or earlier.
    next: Instant,
}

impl Default for PathMtus {
    fn default() -> Self {
        Self { known: Vec::new(), next: Instant::FAR }
    }
}

#[derive(Debug)]
struct PathMtu {
    dst: IpAddr,
    mtu: usize,
    until: Instant,
}

impl PathMtus {
    pub(crate) fn get(&self, now: Instant, dst: IpAddr) -> Option<(usize, Instant)> {
        let known = self.known.iter().find(|p| p.dst == dst && now < p.until)?;
        Some((known.mtu, known.until))
    }

    /// Notes a report; `false` if it tells nothing new. It can only lower what is known.
    pub(crate) fn insert(&mut self, now: Instant, dst: IpAddr, mtu: usize) -> bool {
        let mtu = mtu.max(smallest_path_mtu(dst));
        let fixed = |until| until == Instant::FAR;
        if self.get(now, dst).is_some_and(|(known, until)| known <= mtu || fixed(until)) {
            return false;
        }
        self.known.retain(|p| p.dst != dst && now < p.until);
        if self.known.len() >= PATH_MTUS {
            // The oldest report goes; what was set for good is not pushed out by strangers.
            let Some(oldest) = self.known.iter().position(|p| !fixed(p.until)) else {
                return false;
            };
            self.known.remove(oldest);
        }
        let until = now + PATH_MTU_AGE;
        self.known.push(PathMtu { dst, mtu, until });
        self.next = self.next.min(until);
        true
    }

    /// Sets what is known for good; `None` forgets it.
    pub(crate) fn set(&mut self, dst: IpAddr, mtu: Option<usize>) {
        self.known.retain(|p| p.dst != dst);
        let Some(mtu) = mtu else { return };
        if self.known.len() >= PATH_MTUS {
            self.known.remove(0);
        }
        self.known.push(PathMtu { dst, mtu, until: Instant::FAR });
    }

    /// Forgets what is too old; whether there was any.
    ///
    /// > RFC 8201 section 4: An attempt to detect an increase (by sending a packet larger than the
    /// > current estimate) MUST NOT be done less than 5 minutes after a Packet Too Big message has
    /// > been received for the given path.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let before = self.known.len();
        self.known.retain(|p| now < p.until);
        self.next = self.known.iter().map(|p| p.until).min().unwrap_or(Instant::FAR);
        self.known.len() < before
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next).filter(|&at| at != Instant::FAR)
    }
}

/// The smallest path MTU that a report is believed.
pub(crate) fn smallest_path_mtu(dst: IpAddr) -> usize {
    match dst {
        IpAddr::V4(_) => MIN_PATH_MTU_V4,
        IpAddr::V6(_) => MIN_MTU_V6,
    }
}

/// Destinations that are ready to send to. Lookups hash with a multiplication: who chooses
/// destinations that collide gets the slow path, which is bounded.
pub(crate) struct HopCache {
    slots: Box<[Option<CachedHop>; ROUTE_CACHE]>,
}

/// A destination that is ready to send to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedHop {
    /// Found to be ours.
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// Of neighbours, routes and path MTUs together.
    pub(crate) generation: u32,
    pub(crate) until: Instant,
    /// The finished link header; `None` on a medium without stations.
    pub(crate) link: Option<[u8; ethernet::LEN]>,
    /// Of the path, in bytes of IP packet.
    pub(crate) mtu: usize,
}

impl HopCache {
    pub(crate) fn new() -> Self {
        Self { slots: Box::new([None; ROUTE_CACHE]) }
    }

    pub(crate) fn get(
        &self,
        now: Instant,
        src: IpAddr,
        dst: IpAddr,
        generation: u32,
    ) -> Option<&CachedHop> {
        let hop = self.slots.get(slot(dst))?.as_ref()?;
        let same = hop.dst == dst && hop.src == src && hop.generation == generation;
        (same && now < hop.until).then_some(hop)
    }

    pub(crate) fn insert(&mut self, hop: CachedHop) {
        if let Some(place) = self.slots.get_mut(slot(hop.dst)) {
            *place = Some(hop);
        }
    }
}

fn slot(dst: IpAddr) -> usize {
    let bits = match dst {
        IpAddr::V4(a) => u64::from(a.to_bits()),
        IpAddr::V6(a) => {
            let bits = a.to_bits();
            (bits ^ (bits >> 64)) as u64
        }
    };
    // The high bits of a product depend on all bits of its factors (Fibonacci hashing).
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % ROUTE_CACHE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_mtu_is_lowered_only_bounded_and_forgotten_in_time() {
        let mut paths = PathMtus::default();
        let (v4, v6): (IpAddr, IpAddr) = ("1.2.3.4".parse().unwrap(), "fd77::1".parse().unwrap());
        let t0 = Instant::ZERO;
        assert!(paths.insert(t0, v4, 1400));
        assert!(!paths.insert(t0, v4, 1450), "a report does not raise what is known");
        assert!(paths.insert(t0, v4, 100));
        assert_eq!(paths.get(t0, v4).map(|p| p.0), Some(MIN_PATH_MTU_V4));
        assert!(paths.insert(t0, v6, 68));
        assert_eq!(paths.get(t0, v6).map(|p| p.0), Some(MIN_MTU_V6));
        assert_eq!(paths.get(t0 + PATH_MTU_AGE, v4), None);
        for i in 0..2 * PATH_MTUS as u32 {
            paths.insert(t0, Ipv4Addr::from_bits(i).into(), 1000);
        }
        assert!(paths.known.len() <= PATH_MTUS);
    }

    #[test]
    fn reports_do_not_push_out_what_was_set_and_forgetting_pushes_out_nothing() {
        let mut paths = PathMtus::default();
        let (t0, set, other): (_, IpAddr, IpAddr) =
            (Instant::ZERO, "1.2.3.4".parse().unwrap(), "1.2.3.5".parse().unwrap());
        paths.set(set, Some(1300));
        for i in 0..2 * PATH_MTUS as u32 {
            paths.insert(t0, Ipv4Addr::from_bits(i).into(), 1000);
        }
        assert_eq!(paths.get(t0, set).map(|p| p.0), Some(1300));
        let before = paths.known.len();
        paths.set(other, None);
        assert_eq!(paths.known.len(), before);
    }
}
