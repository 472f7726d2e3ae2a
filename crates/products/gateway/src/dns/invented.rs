//! [`InventedAddresses`]: addresses that stand for names, where a proxy finds out where these lead.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use crate::limits::INVENTED_ADDRESSES;
use crate::request::Name;

/// RFC 2544 appendix C.2.2: 198.18.0.0/15 is for measurements, and on no network between others.
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const LAST: u32 = u32::from_be_bytes([198, 19, 255, 255]);

/// Names with an address each, up to [`INVENTED_ADDRESSES`]. The one that was used the longest ago makes room. An
/// address that has stood for a name stands for no other until all others of the range have had their turn.
#[derive(Debug)]
pub(super) struct InventedAddresses {
    by_name: HashMap<Name, u32>,
    by_address: HashMap<u32, Entry>,
    /// Addresses by their last use, the oldest first.
    order: BTreeMap<u64, u32>,
    uses: u64,
    /// The next address.
    next: u32,
}

#[derive(Debug)]
struct Entry {
    name: Name,
    used: u64,
}

impl Default for InventedAddresses {
    fn default() -> Self {
        // The first address of a network is none of a host.
        let (by_name, by_address, order) = Default::default();
        Self { by_name, by_address, order, uses: 0, next: FIRST + 1 }
    }
}

impl InventedAddresses {
    /// The address that stands for the name from now on.
    pub(super) fn address_of(&mut self, name: &Name) -> IpAddr {
        if let Some(&address) = self.by_name.get(name) {
            self.touch(address);
            return of(address);
        }
        while self.by_name.len() >= INVENTED_ADDRESSES {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            if let Some(entry) = self.by_address.remove(&oldest) {
                self.by_name.remove(&entry.name);
            }
        }
        let address = self.take_next();
        self.by_name.insert(name.clone(), address);
        self.by_address.insert(address, Entry { name: name.clone(), used: 0 });
        self.touch(address);
        of(address)
    }

    /// The name that the address stands for, which counts as a use.
    pub(super) fn visit(&mut self, address: IpAddr) -> Option<Name> {
        let address = within(address)?;
        self.touch(address);
        self.by_address.get(&address).map(|entry| entry.name.clone())
    }

    /// The name that the address stands for, if it stands for one; `None`: the address is of another range.
    pub(super) fn get(&self, address: IpAddr) -> Option<Option<&Name>> {
        let address = within(address)?;
        Some(self.by_address.get(&address).map(|entry| &entry.name))
    }

    fn touch(&mut self, address: u32) {
        if let Some(entry) = self.by_address.get_mut(&address) {
            self.order.remove(&entry.used);
            self.uses += 1;
            entry.used = self.uses;
            self.order.insert(self.uses, address);
        }
    }

    /// The next address that stands for no name: there are more addresses than names.
    fn take_next(&mut self) -> u32 {
        loop {
            let address = self.next;
            self.next = if address + 1 < LAST { address + 1 } else { FIRST + 1 };
            if !self.by_address.contains_key(&address) {
                return address;
            }
        }
    }
}

fn of(address: u32) -> IpAddr {
    Ipv4Addr::from_bits(address).into()
}

fn within(address: IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(v4) => Some(v4.to_bits()).filter(|bits| (FIRST..=LAST).contains(bits)),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: usize) -> Name {
        format!("n{n}.example").parse().unwrap()
    }

    #[test]
    fn a_name_keeps_its_address_and_no_two_share_one() {
        let mut all = InventedAddresses::default();
        let first = all.address_of(&name(0));
        assert_eq!(first, IpAddr::from([198, 18, 0, 1]));
        let second = all.address_of(&name(1));
        assert_ne!(first, second);
        assert_eq!(all.address_of(&name(0)), first);
        assert_eq!(all.visit(second), Some(name(1)));
        assert_eq!(all.get(first), Some(Some(&name(0))));
        assert_eq!(all.get([198, 19, 255, 255].into()), Some(None), "never given");
        assert_eq!(all.get([198, 20, 0, 0].into()), None, "another range");
        assert_eq!(all.get(Ipv4Addr::new(198, 18, 0, 1).to_ipv6_mapped().into()), None);
    }

    #[test]
    fn the_name_that_was_used_the_longest_ago_makes_room_and_its_address_stands_for_nothing() {
        let mut all = InventedAddresses::default();
        let addresses: Vec<IpAddr> =
            (0..INVENTED_ADDRESSES).map(|n| all.address_of(&name(n))).collect();
        all.visit(addresses[0]);
        all.address_of(&name(1));
        all.address_of(&name(INVENTED_ADDRESSES));
        assert_eq!(all.get(addresses[2]), Some(None));
        assert_eq!(all.get(addresses[0]), Some(Some(&name(0))));
        assert_eq!(all.get(addresses[1]), Some(Some(&name(1))));
        assert_eq!(all.by_name.len(), INVENTED_ADDRESSES);
        assert_eq!(all.order.len(), INVENTED_ADDRESSES);
        // The range comes round, past an address that is still in use.
        let kept = addresses[0];
        let mut last = kept;
        for n in 0..(LAST - FIRST) as usize {
            last = all.address_of(&name(2 * INVENTED_ADDRESSES + n));
            assert_ne!(last, kept);
            all.visit(kept);
        }
        assert!(within(last).is_some());
        assert_eq!(all.get(kept), Some(Some(&name(0))));
    }
}
