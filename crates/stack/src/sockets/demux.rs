//! Byte path, step R4: which socket a packet is for.
//!
//! Connections are found by a keyed hash of addresses and ports, so that strangers cannot choose
//! packets that collide; the hash table holds socket indices only (five bytes each, with its
//! control byte) and compares against the sockets themselves. The two found last are tried
//! first: packets come in bursts of one flow, or of two. What is bound to a port without a peer
//! (listeners, datagram sockets) is found by port.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use crate::net::LinkId;
use crate::sockets::table::Table;

/// A connection's two ends, ours first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
}

impl Tuple {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        let (local_port, remote_port) = (local.port(), remote.port());
        Self { local: local.ip(), remote: remote.ip(), local_port, remote_port }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }

    pub(crate) fn remote_addr(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }
}

/// Connections by their tuple.
pub(crate) struct Demux {
    hasher: SipHasher13,
    table: HashTable<u32>,
    /// How many connections have each local address and port.
    locals: HashTable<Local>,
    /// The two found last: a flow is found again and again, and what is forwarded is two flows in turns.
    last: [u32; 2],
}

impl Demux {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        let hasher = SipHasher13::new_with_key(&key);
        Self { hasher, table: HashTable::new(), locals: HashTable::new(), last: [u32::MAX; 2] }
    }

    /// The connection with this tuple.
    pub(crate) fn find(&mut self, sockets: &Table, tuple: &Tuple) -> Option<u32> {
        let is_it = |index: u32| sockets.tuple(index) == Some(tuple);
        let [last, before] = self.last;
        if is_it(last) {
            return Some(last);
        }
        let found = match is_it(before) {
            true => before,
            false => *self.table.find(hash(&self.hasher, tuple), |&index| is_it(index))?,
        };
        self.last = [found, last];
        Some(found)
    }

    /// Makes the connection at `index` findable. Its tuple is not in yet.
    pub(crate) fn insert(&mut self, sockets: &mut Table, index: u32) {
        let Some(socket) = sockets.tcp_mut(index) else { return };
        debug_assert!(!socket.in_demux);
        socket.in_demux = true;
        let hasher = self.hasher;
        let hash_now = hash(&hasher, &socket.tuple);
        let rehash = |&i: &u32| sockets.tuple(i).map_or(0, |t| hash(&hasher, t));
        self.table.insert_unique(hash_now, index, rehash);
        if let Some(&Tuple { local, local_port, .. }) = sockets.tuple(index) {
            self.count(local, local_port, true);
            self.count(any_of(local), local_port, true);
        }
    }

    /// The connection at `index` is found no longer.
    pub(crate) fn remove(&mut self, sockets: &mut Table, index: u32) {
        let Some(&tuple) = sockets.tuple(index) else { return };
        if let Some(socket) = sockets.tcp_mut(index) {
            socket.in_demux = false;
        }
        let found = self.table.find_entry(hash(&self.hasher, &tuple), |&i| i == index);
        debug_assert!(found.is_ok(), "a connection in the demux is in its table");
        if let Ok(entry) = found {
            entry.remove();
            self.count(tuple.local, tuple.local_port, false);
            self.count(any_of(tuple.local), tuple.local_port, false);
        }
    }

    /// Whether a connection has the port at an address that `at` stands for.
    pub(crate) fn uses(&self, at: Wanted, port: u16) -> bool {
        let has = |addr: IpAddr| {
            self.locals.find(self.hash_local(addr, port), |l| l.is(addr, port)).is_some()
        };
        has(at.addr) || (at.addr == ANY && !at.v6_only && has(ANY_V4))
    }

    /// One more, or one less, has the local address and port.
    fn count(&mut self, addr: IpAddr, port: u16, more: bool) {
        let (hasher, hash) = (self.hasher, self.hash_local(addr, port));
        let rehash = |l: &Local| hash_local(&hasher, l.addr, l.port);
        match self.locals.entry(hash, |l| l.is(addr, port), rehash) {
            Entry::Occupied(mut entry) if more => entry.get_mut().count += 1,
            Entry::Occupied(mut entry) => {
                entry.get_mut().count -= 1;
                if entry.get().count == 0 {
                    entry.remove();
                }
            }
            Entry::Vacant(entry) => {
                debug_assert!(more, "what is taken away was counted");
                if more {
                    entry.insert(Local { addr, port, count: 1 });
                }
            }
        }
    }

    fn hash_local(&self, addr: IpAddr, port: u16) -> u64 {
        hash_local(&self.hasher, addr, port)
    }
}

/// Connections that have a local address and port; an unspecified address stands for all of its
/// version.
struct Local {
    addr: IpAddr,
    port: u16,
    count: u32,
}

impl Local {
    fn is(&self, addr: IpAddr, port: u16) -> bool {
        self.port == port && self.addr == addr
    }
}

fn any_of(addr: IpAddr) -> IpAddr {
    if addr.is_ipv4() { ANY_V4 } else { ANY }
}

fn hash_local(hasher: &SipHasher13, addr: IpAddr, port: u16) -> u64 {
    hash(hasher, &Tuple { local: addr, remote: addr, local_port: port, remote_port: 0 })
}

#[inline]
fn hash(hasher: &SipHasher13, tuple: &Tuple) -> u64 {
    let ports = u64::from(tuple.local_port) << 16 | u64::from(tuple.remote_port);
    match (tuple.local, tuple.remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let addresses = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
            hasher.hash([addresses, ports].map(u64::to_le_bytes).as_flattened())
        }
        (local, remote) => {
            let [a, b] = [local, remote].map(|ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                IpAddr::V6(ip) => ip.to_bits(),
            });
            let words = [a as u64, (a >> 64) as u64, b as u64, (b >> 64) as u64, ports];
            hasher.hash(words.map(u64::to_le_bytes).as_flattened())
        }
    }
}

/// Sockets without a peer, by the address and port they are bound to.
///
/// An unspecified address stands for all of ours: `0.0.0.0` for IPv4's, `::` for those of both
/// versions (as Linux has it unless `IPV6_V6ONLY` is set). The most specific one gets the packet.
///
/// Several may agree to have the same address ([`Sharing`]). Of those who share the port, each flow
/// has one of them, chosen by a keyed hash: strangers cannot choose whom they load, and a flow stays
/// where it is while nobody comes or goes. Of those who share the address only, the last one bound gets
/// everything, as on Linux.
pub(crate) struct Binds {
    hasher: SipHasher13,
    ports: HashTable<Port>,
}

struct Port {
    port: u16,
    bound: SmallVec<[Bound; 1]>,
}

/// A socket and where it is bound.
struct Bound {
    at: Wanted,
    index: u32,
    sharing: Sharing,
}

/// With whom an address may be shared: with those who say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// `SO_REUSEADDR`.
    pub(crate) address: bool,
    /// `SO_REUSEPORT`.
    pub(crate) port: bool,
}

impl Sharing {
    /// With anybody who shares at all.
    pub(crate) const ANY: Self = Self { address: true, port: true };

    pub(crate) fn agrees(self, other: Self) -> bool {
        (self.address && other.address) || (self.port && other.port)
    }

    /// What of it holds among listeners: the port's only.
    pub(crate) fn listening(self) -> Self {
        Self { address: false, ..self }
    }
}

/// Where packets are wanted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Unspecified: all of the version, `::` of both.
    pub(crate) addr: IpAddr,
    /// `::` is for IPv6 only.
    pub(crate) v6_only: bool,
    /// What came by this link only; `None`: by any, or by none.
    pub(crate) link: Option<LinkId>,
}

impl Wanted {
    /// Whether a packet to `addr` is for it, wherever it came by.
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

const ANY_V4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl Binds {
    /// No sockets yet; `key` spreads flows over those who share a port.
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self { hasher: SipHasher13::new_with_key(&key), ports: HashTable::new() }
    }

    /// The socket that takes packets between these ends that came by a link.
    pub(crate) fn find(&self, tuple: &Tuple, came_by: Option<LinkId>) -> Option<u32> {
        self.find_by(tuple, |link| Some(link) == came_by, |_| Some(false))
    }

    /// The same where sockets may have a peer. `by`: whether one that is bound to that link takes it;
    /// those that are bound to one come first. `fits`: whether one takes what comes from there;
    /// `Some(true)`: and from nowhere else.
    #[inline]
    pub(crate) fn find_by(
        &self,
        tuple: &Tuple,
        by: impl Fn(LinkId) -> bool,
        fits: impl Fn(u32) -> Option<bool>,
    ) -> Option<u32> {
        let bound = &self.entry(tuple.local_port)?.bound;
        // Nearly always there is nobody to choose from.
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

    /// All who are bound where packets to a group come in by a link: to the group, or to no address.
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

    /// One of those who are bound to the same address.
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
        let chosen = ((hash(&self.hasher, tuple) >> 32) * members) >> 32;
        bound.filter(is_member).nth(chosen as usize).map(|b| b.index)
    }

    /// Whether binding there would take packets from somebody who is bound already and does not
    /// share.
    pub(crate) fn conflicts(&self, at: Wanted, port: u16, sharing: Sharing) -> bool {
        let is_taken = |b: &Bound| b.at.overlaps(at) && !b.sharing.agrees(sharing);
        self.entry(port).is_some_and(|p| p.bound.iter().any(is_taken))
    }

    /// Whether anybody is bound to the port.
    pub(crate) fn uses(&self, port: u16) -> bool {
        self.entry(port).is_some()
    }

    pub(crate) fn insert(&mut self, at: Wanted, port: u16, index: u32, sharing: Sharing) {
        let (is_it, new) = (|p: &Port| p.port == port, Bound { at, index, sharing });
        match self.ports.find_mut(port_hash(port), is_it) {
            Some(entry) => entry.bound.push(new),
            None => {
                let bound = SmallVec::from_buf([new]);
                let rehash = |p: &Port| port_hash(p.port);
                self.ports.insert_unique(port_hash(port), Port { port, bound }, rehash);
            }
        }
    }

    /// A socket takes from now on what came by this link only, or by any.
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

    fn entry(&self, port: u16) -> Option<&Port> {
        self.ports.find(port_hash(port), |p| p.port == port)
    }
}

/// Ports are bound by us, not by strangers: no key is needed, only a spread over the upper bits.
fn port_hash(port: u16) -> u64 {
    u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    fn at(s: &str) -> Wanted {
        Wanted::of(ip(s))
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

    /// Who gets each of a thousand flows.
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
        assert_eq!(spread(&one), before, "as long as nobody comes or goes");
        assert_ne!(spread(&other), before, "strangers do not know who gets a flow");
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
    fn strangers_do_not_know_which_packets_collide() {
        // Law: every hash over what a stranger may choose is under the key.
        let tuples = (1..=100).map(|port| {
            Tuple::new("10.0.0.1:80".parse().unwrap(), SocketAddr::new(ip("10.0.0.2"), port))
        });
        let [one, other] = [3, 4].map(|key| Demux::new([key; 16]));
        for tuple in tuples {
            assert_ne!(hash(&one.hasher, &tuple), hash(&other.hasher, &tuple), "{tuple:?}");
            let locals = [&one, &other].map(|d| d.hash_local(tuple.remote, tuple.remote_port));
            assert_ne!(locals[0], locals[1]);
            let again = Demux::new([3; 16]);
            assert_eq!(hash(&one.hasher, &tuple), hash(&again.hasher, &tuple));
        }
    }

    #[test]
    fn ports_of_connections_are_known_by_address_and_version_until_the_last_is_gone() {
        let mut demux = Demux::new([3; 16]);
        let ends = [("10.0.0.1", 80), ("10.0.0.1", 80), ("10.0.0.2", 80), ("fd00::1", 443)];
        for (addr, port) in ends {
            for addr in [ip(addr), any_of(ip(addr))] {
                demux.count(addr, port, true);
            }
        }
        let uses = |demux: &Demux, addr, v6_only, port| {
            demux.uses(Wanted { addr: ip(addr), v6_only, link: None }, port)
        };
        for (addr, v6_only, port, expected) in [
            ("10.0.0.1", false, 80, true),
            ("10.0.0.1", false, 81, false),
            ("10.0.0.3", false, 80, false),
            ("0.0.0.0", false, 80, true),
            ("0.0.0.0", false, 443, false),
            ("::", false, 80, true),
            ("::", true, 80, false),
            ("::", true, 443, true),
            ("fd00::1", false, 443, true),
        ] {
            assert_eq!(uses(&demux, addr, v6_only, port), expected, "{addr} {v6_only} {port}");
        }
        for (addr, port) in ends {
            assert!(uses(&demux, addr, false, port));
            for addr in [ip(addr), any_of(ip(addr))] {
                demux.count(addr, port, false);
            }
        }
        assert!(demux.locals.is_empty());
    }

    #[test]
    fn a_wildcard_for_ipv6_only_leaves_ipv4_to_others() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(Wanted { addr: ANY, v6_only: true, link: None }, 80, 1, ALONE);
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
        binds.insert(Wanted::of(ANY_V4), 80, 2, ALONE);
        binds.insert(Wanted::of(ANY), 80, 3, ALONE);
        assert_eq!(found(&binds, "10.0.0.1", 80), Some(1));
        assert_eq!(found(&binds, "10.0.0.2", 80), Some(2));
        assert_eq!(found(&binds, "fd00::1", 80), Some(3));
        assert_eq!(found(&binds, "10.0.0.1", 81), None);
    }

    #[test]
    fn an_ipv4_wildcard_takes_no_ipv6() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(Wanted::of(ANY_V4), 80, 1, ALONE);
        assert_eq!(found(&binds, "fd00::1", 80), None);
        assert!(!binds.conflicts(at("fd00::1"), 80, ALONE));
    }

    #[test]
    fn the_dual_wildcard_takes_both_versions_and_conflicts_with_both() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(Wanted::of(ANY), 80, 1, ALONE);
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
        assert!(binds.conflicts(Wanted::of(ANY_V4), 80, ALONE));
        assert!(binds.conflicts(Wanted::of(ANY), 80, ALONE));
        assert!(binds.conflicts(at("10.0.0.1"), 80, ALONE));
        assert!(!binds.conflicts(at("10.0.0.2"), 80, ALONE));
    }

    #[test]
    fn a_removed_binding_frees_its_port() {
        let mut binds = Binds::new([5; 16]);
        binds.insert(Wanted::of(ANY), 80, 7, ALONE);
        binds.remove(80, 7);
        assert!(!binds.uses(80));
        assert_eq!(found(&binds, "fd00::1", 80), None);
    }
}
