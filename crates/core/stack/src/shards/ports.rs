//! The shards that own and use local ports, of one transport.
//!
//! ```text
//!   nobody    --claim alone-----> shard k     while no other shard uses the port
//!   nobody    --claim with all--> everybody   at any time: the homes of flows stay the same
//!   shard k   --k lets go-------> nobody
//!   everybody --all let go------> nobody
//! ```
//!
//! A shard uses a port from the first bind or connection to the end of the last. So no change of the owner moves
//! the home of a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{PortKind, Shard, Shards};

/// Number of ports, 0 included.
pub(super) const PORTS: usize = 1 << 16;

/// The port of sockets for every port. Connections from any port use it, too.
pub(super) const EVERY_PORT: u16 = 0;

/// The low half of an entry: the shards that use the port, a bit for each. Above it: the owner.
const USERS: u64 = u32::MAX as u64;
const OWNER_SHIFT: u32 = 32;
/// Above all: whether the owner has bound the port at every address.
const EVERY_ADDRESS: u64 = 1 << 63;
const NOBODY: u64 = 0;
const EVERYBODY: u64 = 1;
/// The number of shard 0 in an entry.
const FIRST_SHARD: u64 = 2;

/// The shard whose sockets get the packets to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortOwner {
    /// Connections use the port at most: a hash chooses the shard.
    Nobody,
    /// All shards bind the port: a hash chooses the shard.
    Everybody,
    /// One shard has bound the port: at some addresses of the host, or at every address.
    Shard { index: usize, every_address: bool },
}

/// How a socket uses a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortClaim {
    /// As the local port of a connection, which no other packets reach.
    Connection,
    /// As the local port of a connection in the name of another host. The owner of the port at this host's addresses
    /// does not exclude the use.
    Foreign,
    /// Bound by this shard alone. A bind at every address is one at those of other hosts, too, to which a transparent
    /// link leads.
    Alone { every_address: bool },
    /// Bound by this shard as by all others.
    WithAll,
}

impl PortClaim {
    pub(crate) fn is_connection(self) -> bool {
        matches!(self, Self::Connection | Self::Foreign)
    }
}

/// Owners and users of all ports.
pub(super) struct PortOwners(Box<[AtomicU64]>);

impl PortOwners {
    pub(super) fn new(ports: usize) -> Self {
        Self((0..ports).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    pub(super) fn owner(&self, port: u16) -> PortOwner {
        // Relaxed: the entry says all. A shard that acts on an old one passes the packet to a shard that decides again.
        let entry = self.0.get(usize::from(port)).map_or(0, |entry| entry.load(Ordering::Relaxed));
        owner_in(entry)
    }

    /// Makes `shard` a user of the port, and the owner if the claim says so; `false`: another shard's use excludes it.
    fn claim(&self, port: u16, shard: usize, claim: PortClaim) -> bool {
        self.update(port, |entry| {
            let others = entry & USERS & !bit(shard);
            let kept = entry & !USERS;
            let owner = match (claim, owner_in(entry)) {
                (PortClaim::Foreign, _) => kept,
                (PortClaim::Connection, _) if port == EVERY_PORT => kept,
                (_, PortOwner::Shard { index, .. }) if index != shard => return None,
                (PortClaim::Connection, _) => kept,
                (PortClaim::Alone { .. }, PortOwner::Everybody) => return None,
                (PortClaim::Alone { .. }, _) if others != 0 => return None,
                (PortClaim::Alone { every_address }, _) => {
                    let every = if every_address { EVERY_ADDRESS } else { 0 };
                    kept & EVERY_ADDRESS | every | (FIRST_SHARD + shard as u64) << OWNER_SHIFT
                }
                (PortClaim::WithAll, PortOwner::Shard { .. }) => return None,
                (PortClaim::WithAll, _) => EVERYBODY << OWNER_SHIFT,
            };
            Some(owner | others | bit(shard))
        })
    }

    /// Ends the use of the port by `shard`. What others use in other hosts' names, or with ports of their own, has its
    /// home by no rule of the owner's.
    fn release(&self, port: u16, shard: usize) {
        self.update(port, |entry| {
            let users = entry & USERS & !bit(shard);
            let owned = matches!(owner_in(entry), PortOwner::Shard { index, .. } if index == shard);
            Some(if owned || users == 0 { users } else { entry & !USERS | users })
        });
    }

    fn update(&self, port: u16, change: impl Fn(u64) -> Option<u64>) -> bool {
        let Some(entry) = self.0.get(usize::from(port)) else { return false };
        entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
}

fn owner_in(entry: u64) -> PortOwner {
    match (entry & !EVERY_ADDRESS) >> OWNER_SHIFT {
        NOBODY => PortOwner::Nobody,
        EVERYBODY => PortOwner::Everybody,
        shard => PortOwner::Shard {
            index: (shard - FIRST_SHARD) as usize,
            every_address: entry & EVERY_ADDRESS != 0,
        },
    }
}

fn bit(shard: usize) -> u64 {
    1 << shard
}

/// The uses that one shard makes of the ports of one transport. The host learns of the first and of the last.
pub(crate) struct ShardPorts {
    shards: Arc<Shards>,
    index: usize,
    kind: PortKind,
    uses: Box<[u32]>,
}

impl ShardPorts {
    pub(crate) fn new(shard: &Shard, kind: PortKind) -> Self {
        let (shards, index) = (Arc::clone(&shard.shards), shard.index);
        let uses = vec![0; shards.owners(kind).0.len()].into();
        Self { shards, index, kind, uses }
    }

    /// Begins a use of the port; `false`: another shard's use excludes it.
    pub(crate) fn claim(&mut self, port: u16, claim: PortClaim) -> bool {
        // A connection is one of those to every port, too: their homes are not to change either.
        let any = claim.is_connection() && port != EVERY_PORT;
        if any && !self.claim_one(EVERY_PORT, claim) {
            return false;
        }
        let claimed = self.claim_one(port, claim);
        if any && !claimed {
            self.release_one(EVERY_PORT);
        }
        claimed
    }

    fn claim_one(&mut self, port: u16, claim: PortClaim) -> bool {
        let Some(uses) = self.uses.get_mut(usize::from(port)) else { return false };
        // A connection to a port that this shard uses changes nothing.
        let is_known = *uses > 0 && claim.is_connection();
        if !is_known && !self.shards.owners(self.kind).claim(port, self.index, claim) {
            return false;
        }
        *uses += 1;
        true
    }

    /// Ends a use of the port that began with this claim.
    pub(crate) fn release(&mut self, port: u16, claim: PortClaim) {
        if claim.is_connection() && port != EVERY_PORT {
            self.release_one(EVERY_PORT);
        }
        self.release_one(port);
    }

    fn release_one(&mut self, port: u16) {
        let Some(uses) = self.uses.get_mut(usize::from(port)) else { return };
        debug_assert!(*uses > 0, "a use that ends has begun");
        *uses = uses.saturating_sub(1);
        if *uses == 0 {
            self.shards.owners(self.kind).release(port, self.index);
        }
    }
}

impl Drop for ShardPorts {
    /// A stack that goes leaves no port behind.
    fn drop(&mut self) {
        for (port, uses) in (0..=u16::MAX).zip(&self.uses) {
            if *uses > 0 {
                self.shards.owners(self.kind).release(port, self.index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PortClaim::{Connection, Foreign, WithAll};
    use super::*;

    const ALONE: PortClaim = PortClaim::Alone { every_address: false };

    #[test]
    fn an_owner_excludes_others_until_its_last_use_has_ended() {
        let [mut a, mut b] = shards();
        assert!(a.claim(80, ALONE) && a.claim(80, Connection));
        for claim in [ALONE, WithAll, Connection] {
            assert!(!b.claim(80, claim), "{claim:?}");
        }
        a.release(80, ALONE);
        assert!(!b.claim(80, ALONE), "a connection is left");
        a.release(80, Connection);
        assert!(b.claim(80, ALONE) && !a.claim(80, ALONE));
    }

    #[test]
    fn no_shard_becomes_owner_while_another_has_connections() {
        let [mut a, mut b] = shards();
        assert!(a.claim(50_000, Connection) && b.claim(50_000, Connection));
        assert!(!a.claim(50_000, ALONE));
        // The homes of the connections stay.
        assert!(a.claim(50_000, WithAll));
        a.release(50_000, Connection);
        a.release(50_000, WithAll);
        assert!(!a.claim(50_000, ALONE));
        b.release(50_000, Connection);
        assert!(a.claim(50_000, ALONE));
    }

    #[test]
    fn a_socket_for_every_port_does_not_come_between_connections_of_others() {
        let [mut a, mut b] = shards();
        assert!(b.claim(50_000, Connection));
        assert!(!a.claim(EVERY_PORT, ALONE));
        b.release(50_000, Connection);
        assert!(a.claim(EVERY_PORT, ALONE) && !b.claim(EVERY_PORT, ALONE));
        assert!(b.claim(80, ALONE) && b.claim(80, Connection), "at ports that b owns");
    }

    #[test]
    fn a_connection_in_the_name_of_another_host_is_a_use_of_its_port_and_of_every_port() {
        let [mut a, mut b] = shards();
        assert!(a.claim(80, ALONE) && b.claim(80, Foreign));
        assert!(!a.claim(EVERY_PORT, ALONE), "its packets would go to a");
        a.release(80, ALONE);
        assert!(!a.claim(80, PortClaim::Alone { every_address: true }));
        b.release(80, Foreign);
        assert!(
            a.claim(80, PortClaim::Alone { every_address: true }) && a.claim(EVERY_PORT, ALONE)
        );
    }

    #[test]
    fn an_owner_that_lets_go_leaves_others_their_uses_and_no_port_of_its_own() {
        let [mut a, mut b] = shards();
        assert!(a.claim(80, ALONE) && b.claim(80, Foreign));
        a.release(80, ALONE);
        assert_eq!(a.shards.owners(PortKind::Tcp).owner(80), PortOwner::Nobody);
        assert!(!a.claim(80, ALONE), "a use is left");
        b.release(80, Foreign);
        assert!(b.claim(80, ALONE));
    }

    #[test]
    fn sockets_for_every_port_of_all_shards_come_at_any_time_and_leave_all_ports_to_all() {
        let [mut a, mut b] = shards();
        assert!(a.claim(50_000, Connection));
        assert!(a.claim(EVERY_PORT, WithAll) && b.claim(EVERY_PORT, WithAll));
        assert!(b.claim(50_000, Connection) && b.claim(80, ALONE) && !b.claim(EVERY_PORT, ALONE));
        let owner = a.shards.owners(PortKind::Tcp).owner(EVERY_PORT);
        assert_eq!(owner, PortOwner::Everybody);
    }

    #[test]
    fn a_stack_that_goes_leaves_no_port_behind() {
        let [mut a, mut b] = shards();
        assert!(a.claim(80, ALONE) && a.claim(81, Connection));
        drop(a);
        assert!(b.claim(80, ALONE) && b.claim(81, ALONE));
    }

    fn shards() -> [ShardPorts; 2] {
        let places = Shard::all(2, &[7; 32]).unwrap();
        [0, 1].map(|index| ShardPorts::new(&places[index], PortKind::Tcp))
    }
}
