//! Sockets that are bound to a port and need no peer: listeners and datagram sockets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use crate::net::LinkId;
use crate::sockets::tuple::Tuple;

/// Bound sockets, by address and port.
///
/// `0.0.0.0` stands for all IPv4 addresses, `::` for all addresses (as on Linux unless
/// `IPV6_V6ONLY` is set). The most specific socket gets the packet.
///
/// Several may share an address ([`Sharing`]). Of sockets that share the port, a keyed hash chooses
/// one for each flow: strangers cannot choose, and a flow keeps its socket while none is added or
/// removed. Of sockets that share the address only, the last one bound gets everything.
pub(crate) struct Binds {
    hasher: SipHasher13,
    ports: HashTable<PortBinds>,
    /// Sockets for every address and port of a link, which get what no other takes.
    pub(crate) wildcards: WildcardSockets,
}

/// Sockets for all that comes by a link; they conflict with no other.
#[derive(Default)]
pub(crate) struct WildcardSockets(SmallVec<[(LinkId, u32); 1]>);

impl WildcardSockets {
    /// The socket of the link that a packet came by.
    pub(crate) fn find(&self, came_by: Option<LinkId>) -> Option<u32> {
        self.0.iter().find(|(link, _)| Some(*link) == came_by).map(|&(_, index)| index)
    }

    /// Adds the only one of a link.
    pub(crate) fn insert(&mut self, link: LinkId, index: u32) {
        self.0.push((link, index));
    }

    /// Removes a socket, if it is one.
    pub(crate) fn remove(&mut self, index: u32) {
        self.0.retain(|(_, it)| *it != index);
    }

    /// Removes and returns the socket of a link.
    pub(crate) fn remove_link(&mut self, link: LinkId) -> Option<u32> {
        let index = self.find(Some(link))?;
        self.remove(index);
        Some(index)
    }
}

struct PortBinds {
    port: u16,
    bound: SmallVec<[Bound; 1]>,
}

struct Bound {
    at: BindAddress,
    index: u32,
    sharing: Sharing,
}

/// Whether an address may be shared, with sockets that have the same setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// `SO_REUSEADDR`.
    pub(crate) address: bool,
    /// `SO_REUSEPORT`.
    pub(crate) port: bool,
}

impl Sharing {
    /// With every socket that shares at all.
    pub(crate) const ANY: Self = Self { address: true, port: true };

    pub(crate) fn agrees(self, other: Self) -> bool {
        (self.address && other.address) || (self.port && other.port)
    }

    /// Sharing among listeners: the port only.
    pub(crate) fn listening(self) -> Self {
        Self { address: false, ..self }
    }
}

/// The packets that a bound socket gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BindAddress {
    /// Unspecified: all of the version, `::` of both.
    pub(crate) addr: IpAddr,
    /// `::` is for IPv6 only.
    pub(crate) v6_only: bool,
    /// Only what came by this link; `None`: by any, or by none.
    pub(crate) link: Option<LinkId>,
}

impl BindAddress {
    pub(crate) fn of(addr: IpAddr) -> Self {
        Self { addr, v6_only: false, link: None }
    }

    /// Whether a packet to `addr` is for it, by whatever link.
    #[inline(always)]
    fn takes(self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(at), IpAddr::V4(to)) => at == to || at.is_unspecified(),
            (IpAddr::V6(at), IpAddr::V6(to)) => at == to || at.is_unspecified(),
            (IpAddr::V6(at), IpAddr::V4(_)) => at.is_unspecified() && !self.v6_only,
            (IpAddr::V4(_), IpAddr::V6(_)) => false,
        }
    }

    /// Whether a packet could be for both.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let both = |w: Self| w.addr == ANY && !w.v6_only;
        if self.link.is_some() && other.link.is_some() && self.link != other.link {
            return false;
        }
        let same_version = self.addr.is_ipv4() == other.addr.is_ipv4();
        self.addr == other.addr
            || both(self)
            || both(other)
            || (same_version && (self.addr.is_unspecified() || other.addr.is_unspecified()))
    }
}

pub(crate) const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub(crate) const ANY: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl Binds {
    /// No sockets; `key` spreads flows over sockets that share a port.
    pub(crate) fn new(key: [u8; 16]) -> Self {
        let (ports, wildcards) = (HashTable::new(), WildcardSockets::default());
        Self { hasher: SipHasher13::new_with_key(&key), ports, wildcards }
    }

    /// The socket for packets between these ends that came by a link.
    pub(crate) fn find(&self, tuple: &Tuple, came_by: Option<LinkId>) -> Option<u32> {
        self.find_by(tuple, |link| Some(link) == came_by, |_| Some(false))
    }

    /// The only socket of its port, if it takes packets to `to` that came by `link`.
    #[inline(always)]
    pub(crate) fn alone(&self, port: u16, to: Ipv4Addr, link: LinkId) -> Option<u32> {
        let [alone] = self.entry(port)?.bound.as_slice() else { return None };
        let takes = alone.at.takes(IpAddr::V4(to)) && alone.at.link.is_none_or(|at| at == link);
        takes.then_some(alone.index)
    }

    /// As [`find`](Self::find) where sockets may have a peer. `by`: whether a link is the packet's.
    /// `fits`: whether the socket takes packets from the peer; `Some(true)`: from no other.
    #[inline(always)]
    pub(crate) fn find_by(
        &self,
        tuple: &Tuple,
        by: impl Fn(LinkId) -> bool,
        fits: impl Fn(u32) -> Option<bool>,
    ) -> Option<u32> {
        let bound = &self.entry(tuple.local_port)?.bound;
        // The usual case.
        if let [alone] = bound.as_slice() {
            let takes = alone.at.takes(tuple.local) && alone.at.link.is_none_or(by);
            return (takes && fits(alone.index).is_some()).then_some(alone.index);
        }
        self.find_among(bound, *tuple, by, fits)
    }

    /// [`find_by`](Self::find_by) among several sockets of one port.
    #[inline(never)]
    fn find_among(
        &self,
        bound: &[Bound],
        tuple: Tuple,
        by: impl Fn(LinkId) -> bool,
        fits: impl Fn(u32) -> Option<bool>,
    ) -> Option<u32> {
        let addr = tuple.local;
        let any_linked = bound.iter().any(|b| b.at.link.is_some());
        let at = |wanted: IpAddr| {
            let is_it = |b: &Bound| b.at.addr == wanted && !(b.at.v6_only && addr.is_ipv4());
            let linked = |b: &&Bound| is_it(b) && b.at.link.is_some_and(&by);
            let others = |b: &&Bound| is_it(b) && b.at.link.is_none();
            let first = match any_linked {
                true => self.choose(bound.iter().filter(linked), &tuple, &fits),
                false => None,
            };
            first.or_else(|| self.choose(bound.iter().filter(others), &tuple, &fits))
        };
        at(addr).or_else(|| if addr.is_ipv4() { at(ANY_V4) } else { None }).or_else(|| at(ANY))
    }

    /// Finds the sockets bound to a group, or to no address, that take packets from a link.
    pub(crate) fn find_all(
        &self,
        group: SocketAddr,
        came_by: Option<LinkId>,
    ) -> impl Iterator<Item = u32> {
        let (v4, at) = (group.is_ipv4(), group.ip());
        let is_it = move |b: &&Bound| {
            let address = b.at.addr == at
                || (b.at.addr == ANY_V4 && v4)
                || (b.at.addr == ANY && !(b.at.v6_only && v4));
            address && (b.at.link.is_none() || b.at.link == came_by)
        };
        let bound = self.entry(group.port()).map(|entry| entry.bound.iter()).unwrap_or_default();
        bound.filter(is_it).map(|b| b.index)
    }

    /// Chooses among sockets bound to the same address.
    fn choose<'a>(
        &self,
        bound: impl Iterator<Item = &'a Bound> + Clone,
        tuple: &Tuple,
        fits: impl Fn(u32) -> Option<bool>,
    ) -> Option<u32> {
        let (mut best, mut members) = (None, 0);
        for candidate in bound.clone() {
            let Some(only) = fits(candidate.index) else { continue };
            members += u64::from(candidate.sharing.port && !only);
            // The peer's own socket comes first.
            if only || !matches!(best, Some((true, _))) {
                best = Some((only, candidate));
            }
        }
        let (only, last) = best?;
        if only || members < 2 || !last.sharing.port {
            return Some(last.index);
        }
        let is_member = |b: &&Bound| b.sharing.port && fits(b.index) == Some(false);
        let chosen = ((tuple.hash(&self.hasher) >> 32) * members) >> 32;
        bound.filter(is_member).nth(chosen as usize).map(|b| b.index)
    }

    /// Whether a socket that does not share gets packets for this address and port.
    pub(crate) fn conflicts(&self, at: BindAddress, port: u16, sharing: Sharing) -> bool {
        let is_taken = |b: &Bound| b.at.overlaps(at) && !b.sharing.agrees(sharing);
        self.entry(port).is_some_and(|p| p.bound.iter().any(is_taken))
    }

    pub(crate) fn uses(&self, port: u16) -> bool {
        self.entry(port).is_some()
    }

    pub(crate) fn insert(&mut self, at: BindAddress, port: u16, index: u32, sharing: Sharing) {
        let (is_it, new) = (|p: &PortBinds| p.port == port, Bound { at, index, sharing });
        match self.ports.find_mut(port_hash(port), is_it) {
            Some(entry) => entry.bound.push(new),
            None => {
                let bound = SmallVec::from_buf([new]);
                let rehash = |p: &PortBinds| port_hash(p.port);
                self.ports.insert_unique(port_hash(port), PortBinds { port, bound }, rehash);
            }
        }
    }

    /// Binds a socket to a link, or to none.
    pub(crate) fn set_link(&mut self, port: u16, index: u32, link: Option<LinkId>) {
        let Some(entry) = self.ports.find_mut(port_hash(port), |p| p.port == port) else { return };
        for bound in entry.bound.iter_mut().filter(|b| b.index == index) {
            bound.at.link = link;
        }
    }

    pub(crate) fn remove(&mut self, port: u16, index: u32) {
        let Ok(mut entry) = self.ports.find_entry(port_hash(port), |p| p.port == port) else {
            return;
        };
        entry.get_mut().bound.retain(|b| b.index != index);
        if entry.get().bound.is_empty() {
            entry.remove();
        }
    }

    fn entry(&self, port: u16) -> Option<&PortBinds> {
        self.ports.find(port_hash(port), |p| p.port == port)
    }
}

/// Strangers do not choose bound ports: no key is needed, only a spread over the upper bits.
fn port_hash(port: u16) -> u64 {
    u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    fn at(s: &str) -> BindAddress {
        BindAddress::of(ip(s))
    }

    const ALONE: Sharing = Sharing { address: false, port: false };
    const PORT: Sharing = Sharing { address: false, port: true };
    const ADDRESS: Sharing = Sharing { address: true, port: false };

    /// A flow to the address and port, of a peer of its own version.
    fn flow(addr: &str, port: u16, peer: u16) -> Tuple {
        let remote = if ip(addr).is_ipv4() { "192.0.2.1" } else { "2001:db8::1" };
        Tuple::new(SocketAddr::new(ip(addr), port), SocketAddr::new(ip(remote), peer))
    }

    fn found(binds: &Binds, addr: &str, port: u16) -> Option<u32> {
        binds.find(&flow(addr, port, 1000), None)
    }

    /// The socket of each of a thousand flows.
    fn spread(binds: &Binds) -> Vec<u32> {
        (1..=1000).map(|peer| binds.find(&flow("10.0.0.1", 80, peer), None).unwrap()).collect()
    }

    #[test]
    fn who_share_a_port_get_flows_by_a_keyed_hash_and_keep_them() {
        let group = |key| {
            let mut binds = Binds::new([key; 16]);
            (0..4).for_each(|index| binds.insert(at("0.0.0.0"), 80, index, PORT));
            binds
        };
        let (mut one, other) = (group(1), group(2));
        let before = spread(&one);
        for index in 0..4 {
            let share = before.iter().filter(|&&found| found == index).count();
            assert!((200..300).contains(&share), "{share} of 1000 for {index} of 4");
        }
        assert_eq!(spread(&one), before, "while no socket is added or removed");
        assert_ne!(spread(&other), before, "strangers do not know which socket gets a flow");
        one.remove(80, 2);
        assert!(spread(&one).iter().all(|&found| found != 2));
        // A more specific one takes all, alone or not.
        one.insert(at("10.0.0.1"), 80, 9, PORT);
        assert!(spread(&one).iter().all(|&found| found == 9));
    }

    #[test]
    fn who_share_an_address_only_leave_it_to_the_last() {
        let mut binds = Binds::new([5; 16]);
        for index in 0..3 {
            assert!(!binds.conflicts(at("10.0.0.1"), 80, ADDRESS));
            binds.insert(at("10.0.0.1"), 80, index, ADDRESS);
        }
        assert_eq!(found(&binds, "10.0.0.1", 80), Some(2));
        assert!(binds.conflicts(at("10.0.0.1"), 80, ALONE));
        assert!(binds.conflicts(at("10.0.0.1"), 80, PORT), "they agreed to something else");
    }

    #[test]
    fn a_socket_with_the_peer_comes_before_those_without_one() {
        let mut binds = Binds::new([5; 16]);
        (0..4).for_each(|index| binds.insert(at("10.0.0.1"), 80, index, PORT));
        binds.insert(at("0.0.0.0"), 80, 4, PORT);
        let tuple = flow("10.0.0.1", 80, 7);
        assert_eq!(binds.find_by(&tuple, |_| true, |index| Some(index == 1)), Some(1));
        let has_another = |index| (index != 1).then_some(false);
        assert_ne!(binds.find_by(&tuple, |_| true, has_another), Some(1));
        assert_eq!(binds.find_by(&tuple, |_| true, |index| (index == 4).then_some(false)), Some(4));
        assert_eq!(binds.find_by(&tuple, |_| true, |_| None), None);
    }

    #[test]
    fn a_wildcard_for_ipv6_only_leaves_ipv4_to_others() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(BindAddress { addr: ANY, v6_only: true, link: None }, 80, 1, ALONE);
        assert_eq!(found(&binds, "fd00::1", 80), Some(1));
        assert_eq!(found(&binds, "10.0.0.1", 80), None);
        assert!(!binds.conflicts(at("0.0.0.0"), 80, ALONE));
        assert!(binds.conflicts(at("::"), 80, ALONE));
        binds.insert(at("0.0.0.0"), 80, 2, ALONE);
        assert_eq!(found(&binds, "10.0.0.1", 80), Some(2));
    }

    #[test]
    fn the_most_specific_binding_gets_the_packet() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(at("10.0.0.1"), 80, 1, ALONE);
        binds.insert(BindAddress::of(ANY_V4), 80, 2, ALONE);
        binds.insert(BindAddress::of(ANY), 80, 3, ALONE);
        assert_eq!(found(&binds, "10.0.0.1", 80), Some(1));
        assert_eq!(found(&binds, "10.0.0.2", 80), Some(2));
        assert_eq!(found(&binds, "fd00::1", 80), Some(3));
        assert_eq!(found(&binds, "10.0.0.1", 81), None);
    }

    #[test]
    fn an_ipv4_wildcard_takes_no_ipv6() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(BindAddress::of(ANY_V4), 80, 1, ALONE);
        assert_eq!(found(&binds, "fd00::1", 80), None);
        assert!(!binds.conflicts(at("fd00::1"), 80, ALONE));
    }

    #[test]
    fn the_dual_wildcard_takes_both_versions_and_conflicts_with_both() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(BindAddress::of(ANY), 80, 1, ALONE);
        assert_eq!(found(&binds, "10.0.0.1", 80), Some(1));
        assert_eq!(found(&binds, "fd00::1", 80), Some(1));
        for addr in ["0.0.0.0", "10.0.0.1", "::", "fd00::1"] {
            assert!(binds.conflicts(at(addr), 80, ALONE), "{addr}");
        }
    }

    #[test]
    fn a_wildcard_conflicts_with_a_specific_address_in_either_order() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(at("10.0.0.1"), 80, 1, ALONE);
        assert!(binds.conflicts(BindAddress::of(ANY_V4), 80, ALONE));
        assert!(binds.conflicts(BindAddress::of(ANY), 80, ALONE));
        assert!(binds.conflicts(at("10.0.0.1"), 80, ALONE));
        assert!(!binds.conflicts(at("10.0.0.2"), 80, ALONE));
    }

    #[test]
    fn a_removed_binding_frees_its_port() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(BindAddress::of(ANY), 80, 7, ALONE);
        binds.remove(80, 7);
        assert!(!binds.uses(80));
        assert_eq!(found(&binds, "fd00::1", 80), None);
    }
}
