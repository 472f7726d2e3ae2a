//! Byte path, step R4: finds the connection of a segment.
//!
//! The key of a connection is a keyed hash of addresses and ports, so that strangers cannot choose
//! packets that collide. The hash table has socket indices only (five bytes each) and compares the
//! sockets themselves. The two connections found last are tried first: packets come in bursts of
//! one flow, or of two. Listeners and datagram sockets are found by port
//! (`bind/table.rs`).

use core::net::IpAddr;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use siphasher::sip::SipHasher13;

use super::socket::SocketFlags;
use crate::shards::PortClaim;
use crate::sockets::bind::table::{ANY, ANY_V4, BindAddress};
use crate::sockets::table::Table;
use crate::sockets::tuple::Tuple;

/// Connections by their tuple.
pub(crate) struct Demux {
    hasher: SipHasher13,
    table: HashTable<u32>,
    /// How many connections have each local address and port.
    locals: HashTable<LocalPort>,
    /// The two found last: a flow comes in bursts, and a forwarded pair is two flows in turns.
    last: [u32; 2],
}

impl Demux {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        let hasher = SipHasher13::new_with_key(&key);
        Self { hasher, table: HashTable::new(), locals: HashTable::new(), last: [u32::MAX; 2] }
    }

    /// The keyed hash, for other tables of tuples.
    pub(crate) fn hasher(&self) -> SipHasher13 {
        self.hasher
    }

    pub(crate) fn find(&mut self, sockets: &Table, tuple: &Tuple) -> Option<u32> {
        let is_it = |index: u32| sockets.tuple(index) == Some(tuple);
        let [last, before] = self.last;
        if is_it(last) {
            return Some(last);
        }
        let found = match is_it(before) {
            true => before,
            false => *self.table.find(tuple.hash(&self.hasher), |&index| is_it(index))?,
        };
        self.last = [found, last];
        Some(found)
    }

    /// As [`find`](Self::find), without a note of what was found last.
    pub(crate) fn peek(&self, sockets: &Table, tuple: &Tuple) -> Option<u32> {
        let is_it = |&index: &u32| sockets.tuple(index) == Some(tuple);
        self.table.find(tuple.hash(&self.hasher), is_it).copied()
    }

    /// Adds the connection at `index`, whose tuple is not in yet. `claim`: that of its local port, for
    /// all connections from the local address and port, of which this is the first.
    pub(crate) fn insert(&mut self, sockets: &mut Table, index: u32, claim: Option<PortClaim>) {
        let Some(socket) = sockets.tcp_mut(index) else { return };
        debug_assert!(!socket.flags.contains(SocketFlags::DEMUX));
        socket.flags.insert(SocketFlags::DEMUX);
        let hasher = self.hasher;
        let hash_now = socket.tuple.hash(&hasher);
        let rehash = |&i: &u32| sockets.tuple(i).map_or(0, |t| t.hash(&hasher));
        self.table.insert_unique(hash_now, index, rehash);
        if let Some(&Tuple { local, local_port, .. }) = sockets.tuple(index) {
            self.add_local(local, local_port, claim);
            self.add_local(any_of(local), local_port, None);
        }
    }

    /// Removes the connection at `index`. Returns its local port and the claim, if this was the last use.
    pub(crate) fn remove(&mut self, sockets: &mut Table, index: u32) -> Option<(u16, PortClaim)> {
        let &tuple = sockets.tuple(index)?;
        if let Some(socket) = sockets.tcp_mut(index) {
            socket.flags.remove(SocketFlags::DEMUX);
        }
        let found = self.table.find_entry(tuple.hash(&self.hasher), |&i| i == index);
        debug_assert!(found.is_ok(), "a connection in the demux is in its table");
        found.ok()?.remove();
        self.remove_local(any_of(tuple.local), tuple.local_port);
        let claim = self.remove_local(tuple.local, tuple.local_port)?;
        Some((tuple.local_port, claim))
    }

    /// Whether a connection has the port at an address that `at` covers.
    pub(crate) fn uses(&self, at: BindAddress, port: u16) -> bool {
        let has = |addr: IpAddr| {
            self.locals.find(self.hash_local(addr, port), |l| l.is(addr, port)).is_some()
        };
        has(at.addr) || (at.addr == ANY && !at.v6_only && has(ANY_V4))
    }

    /// Counts a connection with the local address and port.
    fn add_local(&mut self, addr: IpAddr, port: u16, claim: Option<PortClaim>) {
        let (hasher, hash) = (self.hasher, self.hash_local(addr, port));
        let rehash = |l: &LocalPort| hash_local(&hasher, l.addr, l.port);
        match self.locals.entry(hash, |l| l.is(addr, port), rehash) {
            Entry::Occupied(mut entry) => entry.get_mut().count += 1,
            Entry::Vacant(entry) => {
                entry.insert(LocalPort { addr, port, count: 1, claim });
            }
        }
    }

    /// Ends the count of a connection. Returns the claim of the port if the connection was the last.
    fn remove_local(&mut self, addr: IpAddr, port: u16) -> Option<PortClaim> {
        let hash = self.hash_local(addr, port);
        let Ok(mut entry) = self.locals.find_entry(hash, |l| l.is(addr, port)) else {
            debug_assert!(false, "a connection that ends was counted");
            return None;
        };
        entry.get_mut().count -= 1;
        if entry.get().count > 0 { None } else { entry.remove().0.claim }
    }

    fn hash_local(&self, addr: IpAddr, port: u16) -> u64 {
        hash_local(&self.hasher, addr, port)
    }
}

/// Connections that have a local address and port; an unspecified address is all of its version.
struct LocalPort {
    addr: IpAddr,
    port: u16,
    /// The use of the port that other shards know of.
    claim: Option<PortClaim>,
    count: u32,
}

impl LocalPort {
    fn is(&self, addr: IpAddr, port: u16) -> bool {
        self.port == port && self.addr == addr
    }
}

fn any_of(addr: IpAddr) -> IpAddr {
    if addr.is_ipv4() { ANY_V4 } else { ANY }
}

fn hash_local(hasher: &SipHasher13, addr: IpAddr, port: u16) -> u64 {
    Tuple { local: addr, remote: addr, local_port: port, remote_port: 0 }.hash(hasher)
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;

    fn ip(s: &str) -> IpAddr {
        s.parse().unwrap()
    }

    #[test]
    fn strangers_do_not_know_which_packets_collide() {
        // Law: every hash over what a stranger may choose is under the key.
        let tuples = (1..=100).map(|port| {
            Tuple::new("10.0.0.1:80".parse().unwrap(), SocketAddr::new(ip("10.0.0.2"), port))
        });
        let [one, other] = [3, 4].map(|key| Demux::new([key; 16]));
        for tuple in tuples {
            assert_ne!(tuple.hash(&one.hasher), tuple.hash(&other.hasher), "{tuple:?}");
            let locals = [&one, &other].map(|d| d.hash_local(tuple.remote, tuple.remote_port));
            assert_ne!(locals[0], locals[1]);
            let again = Demux::new([3; 16]);
            assert_eq!(tuple.hash(&one.hasher), tuple.hash(&again.hasher));
        }
    }

    #[test]
    fn ports_of_connections_are_known_by_address_and_version_until_the_last_is_gone() {
        let mut demux = Demux::new([3; 16]);
        let ends = [("10.0.0.1", 80), ("10.0.0.1", 80), ("10.0.0.2", 80), ("fd00::1", 443)];
        for (addr, port) in ends {
            for addr in [ip(addr), any_of(ip(addr))] {
                demux.add_local(addr, port, None);
            }
        }
        let uses = |demux: &Demux, addr, v6_only, port| {
            demux.uses(BindAddress { addr: ip(addr), v6_only, link: None }, port)
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
                demux.remove_local(addr, port);
            }
        }
        assert!(demux.locals.is_empty());
    }
}
