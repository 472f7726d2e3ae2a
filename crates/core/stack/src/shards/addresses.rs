//! Addresses on links, and the shards of a host that each concerns.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of a link in each shard of the host: all shards have the same links.
pub(super) type LinkNumber = u8;

/// The shards that each address on a link concerns, a bit for each. A lock that few calls take: only where a neighbour
/// of a link that answers for other hosts comes or goes, or where somebody asks for one. A tree, because peers choose
/// the keys.
#[derive(Default)]
pub(super) struct AddressTable(Mutex<BTreeMap<(LinkNumber, IpAddr), u32>>);

impl AddressTable {
    /// Adds a shard to an address.
    pub(super) fn add(&self, link: LinkNumber, addr: IpAddr, shard: u32) {
        *self.lock().entry((link, addr)).or_default() |= shard;
    }

    /// Removes a shard from an address.
    pub(super) fn remove(&self, link: LinkNumber, addr: IpAddr, shard: u32) {
        let mut table = self.lock();
        if let Some(found) = table.get_mut(&(link, addr)) {
            *found &= !shard;
            if *found == 0 {
                table.remove(&(link, addr));
            }
        }
    }

    /// Removes a shard from all addresses of a link.
    pub(super) fn clear(&self, link: LinkNumber, shard: u32) {
        self.lock().retain(|key, found| {
            if key.0 == link {
                *found &= !shard;
            }
            *found != 0
        });
    }

    /// The shards of an address.
    pub(super) fn get(&self, link: LinkNumber, addr: IpAddr) -> u32 {
        self.lock().get(&(link, addr)).copied().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(LinkNumber, IpAddr), u32>> {
        // No call leaves the table half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
