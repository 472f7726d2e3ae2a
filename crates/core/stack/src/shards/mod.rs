//! One host of several stacks (**shards**), each with a device queue, a lock and a thread of its own, for
//! programs that outgrow one core.
//!
//! All shards have the same addresses and the same secret, and share little else: the owners of their ports
//! ([`Shard`]). Each packet has a **home**, the shard that has its socket. A device may deliver a packet to any
//! shard. One that finds no socket passes it on by value, its payload by reference, as a **stray**
//! ([`Stray`](crate::Stray)). Linux's nearest relative is receive packet steering.
//!
//! ```text
//!   frames --> shard 0: handle_frame --> its sockets
//!                          | no socket, and the home is shard 1
//!                          +--> poll_strays --> (the driver's queue) --> shard 1: handle_stray --> its sockets
//! ```
//!
//! - **TCP, UDP**: the shard that owns the local port alone is the home. For all other ports, a keyed hash of the two
//!   ends chooses the home: for listeners and datagram sockets that every shard has, and for connections from ports
//!   that [`Stack::connect`](crate::Stack::connect) drew so that they hash to its own shard. A TCP segment is looked up
//!   among the shard's connections first, so a segment of a connection costs nothing more at home.
//! - **Datagrams to every port**: where all shards have sockets for every port, the hash is of the sender's end alone. One
//!   shard has all datagrams of a sender, whomever they are for, as an address translator needs them.
//! - **ICMP errors** go to the home of the packet that they quote. That a datagram from a port of all shards was too
//!   long for its path is told to all: any of them may have sent the datagram.
//! - **Fragments** of a datagram are put together by one shard. A hash of addresses and identification chooses it.
//! - **ARP and neighbour discovery** are answered by the shard that receives them. The others get news of the neighbour
//!   that sent the message. On links that answer for other hosts, a table of the host has the neighbours that any shard
//!   knows: no shard answers for those.
//! - Echo requests to the host, unknown protocols and packets to forward are handled where they come in.
//! - **Groups**: a shard drops packets to groups that only other shards have joined. Not supported yet.
//!
//! Which shard owns a port is a fact of the host (`ports.rs`): it changes only while no other shard uses the port, so
//! that a packet never meets a shard that does not know its connection.

mod addresses;
mod ports;

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use siphasher::sip::SipHasher13;

use crate::error::StackError;
use crate::limits::MAX_SHARDS;
use crate::random::derive;
use crate::sockets::tuple::Tuple;
use addresses::{AddressTable, LinkNumber};
use ports::{EVERY_PORT, PORTS, PortOwner, PortOwners};
pub(crate) use ports::{PortClaim, ShardPorts};

/// A bind by this shard alone at every address. Ends of uses by any bind name this claim, too: to them, only claims of
/// connections are different.
pub(crate) const BOUND: PortClaim = PortClaim::Alone { every_address: true };

/// The shards of one host: their number, and what they share.
struct Shards {
    hasher: SipHasher13,
    count: usize,
    tcp: PortOwners,
    udp: PortOwners,
    echo: PortOwners,
    /// Neighbours that shards know on links that answer for other hosts.
    neighbors: AddressTable,
    /// Tells the secret of the host from others.
    fingerprint: [u8; 16],
    /// The places that stacks have, a bit for each.
    taken: AtomicU32,
}

/// The place of a stack among the shards of its host: [`StackConfig::shard`](crate::StackConfig::shard). Clones are of
/// the same place, which one stack at a time can have.
#[derive(Clone, Debug)]
pub struct Shard {
    shards: Arc<Shards>,
    index: usize,
}

/// A place that a stack has, until it goes.
pub(crate) struct ShardPlace(Shard);

impl ShardPlace {
    pub(crate) fn shard(&self) -> &Shard {
        &self.0
    }
}

impl Drop for ShardPlace {
    fn drop(&mut self) {
        self.0.shards.taken.fetch_and(!self.0.bit(), Ordering::AcqRel);
    }
}

/// The neighbours on one link that shards of a host know.
pub(crate) struct SharedNeighbors {
    shard: Shard,
    link: LinkNumber,
}

impl SharedNeighbors {
    pub(crate) fn add(&self, addr: IpAddr) {
        let Self { shard, link } = self;
        // Each shard's own table is limited.
        shard.shards.neighbors.add(*link, addr, shard.bit());
    }

    pub(crate) fn remove(&self, addr: IpAddr) {
        self.shard.shards.neighbors.remove(self.link, addr, self.shard.bit());
    }

    /// Whether any shard knows the neighbour.
    pub(crate) fn contains(&self, addr: IpAddr) -> bool {
        self.shard.shards.neighbors.get(self.link, addr) != 0
    }
}

impl Drop for SharedNeighbors {
    fn drop(&mut self) {
        self.shard.shards.neighbors.clear(self.link, self.shard.bit());
    }
}

/// A kind of sockets that are found by port. Port 0 stands for every port of a transparent link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortKind {
    Tcp,
    Udp,
    /// Echo requests to other hosts' addresses, which have no ports.
    Echo,
}

impl Shards {
    fn owners(&self, kind: PortKind) -> &PortOwners {
        match kind {
            PortKind::Tcp => &self.tcp,
            PortKind::Udp => &self.udp,
            PortKind::Echo => &self.echo,
        }
    }
}

impl std::fmt::Debug for Shards {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Shard {
    /// A place for each of `count` shards of a host; `None` beyond [`MAX_SHARDS`](crate::limits::MAX_SHARDS), or for
    /// 0. All stacks get the secret, too.
    pub fn all(count: usize, secret: &[u8; 32]) -> Option<Vec<Self>> {
        if !(1..=MAX_SHARDS).contains(&count) {
            return None;
        }
        let hasher = SipHasher13::new_with_key(&derive(secret, b"homes of flows"));
        let [tcp, udp] = [(); 2].map(|()| PortOwners::new(PORTS));
        let echo = PortOwners::new(1);
        let (fingerprint, taken) = (fingerprint(secret), AtomicU32::new(0));
        let neighbors = AddressTable::default();
        let shards = Shards { hasher, count, tcp, udp, echo, neighbors, fingerprint, taken };
        let shards = Arc::new(shards);
        Some((0..count).map(|index| Self { shards: Arc::clone(&shards), index }).collect())
    }

    /// The number of the shard, from 0 on.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of shards of the host.
    pub fn count(&self) -> usize {
        self.shards.count
    }

    /// Takes the place for a stack with this secret.
    ///
    /// # Errors
    /// `ShardSecret`, `ShardTaken`.
    pub(crate) fn take(&self, secret: &[u8; 32]) -> Result<ShardPlace, StackError> {
        if fingerprint(secret) != self.shards.fingerprint {
            return Err(StackError::ShardSecret);
        }
        let before = self.shards.taken.fetch_or(self.bit(), Ordering::AcqRel);
        if before & self.bit() != 0 {
            return Err(StackError::ShardTaken(self.index));
        }
        Ok(ShardPlace(self.clone()))
    }

    /// The bit of this shard in a set of shards.
    fn bit(&self) -> u32 {
        1 << self.index
    }

    /// The shards that are not this one, a bit for each.
    pub(crate) fn others(&self) -> u32 {
        (0..self.count()).map(|index| 1 << index).sum::<u32>() & !self.bit()
    }

    /// The shard that packets between these ends belong to. `is_foreign`: the local address is another host's.
    #[inline]
    pub(crate) fn home(
        &self,
        kind: PortKind,
        tuple: &Tuple,
        is_foreign: impl Fn() -> bool,
    ) -> usize {
        let owners = self.shards.owners(kind);
        match (owners.owner(tuple.local_port), owners.owner(EVERY_PORT)) {
            (PortOwner::Shard { index, every_address }, _) if every_address || !is_foreign() => {
                index
            }
            (PortOwner::Nobody | PortOwner::Shard { .. }, PortOwner::Shard { index, .. }) => index,
            (_, PortOwner::Everybody) if kind != PortKind::Tcp => {
                self.by_hash_of(&tuple.remote_addr())
            }
            _ => self.by_hash(tuple),
        }
    }

    /// The neighbours on a link that this shard knows, and those that others do.
    pub(crate) fn neighbors_on(&self, link: LinkNumber) -> SharedNeighbors {
        SharedNeighbors { shard: self.clone(), link }
    }

    /// Whether all shards bind the port.
    pub(crate) fn is_everybodys(&self, kind: PortKind, port: u16) -> bool {
        self.shards.owners(kind).owner(port) == PortOwner::Everybody
    }

    /// The shard that a hash of both ends chooses.
    #[inline]
    fn by_hash(&self, tuple: &Tuple) -> usize {
        self.spread(tuple.hash(&self.shards.hasher))
    }

    /// The shard that a hash of anything else chooses.
    pub(crate) fn by_hash_of(&self, key: &impl Hash) -> usize {
        let mut hasher = self.shards.hasher;
        key.hash(&mut hasher);
        self.spread(hasher.finish())
    }

    /// Each shard is chosen as often as any other.
    fn spread(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.count() as u128) >> 64) as usize
    }

    /// The part of so many numbers that this shard alone uses.
    pub(crate) fn part_of(&self, numbers: u64) -> Range<u64> {
        let (index, len) = (self.index as u64, numbers / self.count() as u64);
        index * len..(index + 1) * len
    }

    /// A secret of this shard alone: random numbers of two shards have nothing in common.
    pub(crate) fn own_secret(&self, secret: &[u8; 32]) -> [u8; 32] {
        let index = self.index as u8;
        let halves = [0, 1].map(|half| derive(secret, &[b's', index, half]));
        std::array::from_fn(|at| halves.as_flattened().get(at).copied().unwrap_or(0))
    }
}

fn fingerprint(secret: &[u8; 32]) -> [u8; 16] {
    derive(secret, b"shards of one host")
}
