//! [`Names`]: the names behind which our resolver found the addresses that it gave the guest.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pagewire::services::Instant;

use crate::limits::{
    DENIED_NAMES, NAME_GRACE, NAME_TIME, NAMED_ADDRESSES, NAMED_BYTES, NAMES_OF_ADDRESS,
};
use crate::request::Name;

/// The contents of a resolver's answer: each of these names leads to each of these addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The name that was asked for, and those that it is an alias of.
    pub names: Vec<Name>,
    /// Addresses, each with its time to live.
    pub addresses: Vec<(IpAddr, Duration)>,
}

/// Addresses with the names that one guest has for them; the oldest make way for new ones.
#[derive(Debug, Default)]
pub struct Names {
    pub(super) known: HashMap<IpAddr, Known>,
    /// Addresses by the time of the last answer that has them: the oldest first.
    pub(super) order: BTreeMap<u64, IpAddr>,
    pub(super) next: u64,
    /// Bytes of all names, each counted for each of its addresses.
    pub(super) bytes: usize,
    /// Names that denials have, by the addresses to which they have led: for good.
    denied: HashMap<IpAddr, Arc<[Name]>>,
    /// Number of denied names, each counted for each of its addresses.
    denied_len: usize,
    none: Arc<[Name]>,
}

/// The error that there is no room to remember where a denied name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

#[derive(Debug)]
pub(super) struct Known {
    /// Names, the latest first, each with its end.
    names: Vec<(Name, Instant)>,
    /// The list that is handed out, valid until the first name ends.
    list: Arc<[Name]>,
    until: Instant,
    order: u64,
}

impl Names {
    /// The known names for which `is_one` is true, each with each of its addresses.
    pub(crate) fn named(&self, is_one: impl Fn(&Name) -> bool) -> Vec<(Name, IpAddr)> {
        let of = |(address, known): (&IpAddr, &Known)| {
            let names = known.names.iter().filter(|(name, _)| is_one(name));
            names.map(|(name, _)| (name.clone(), *address)).collect::<Vec<_>>()
        };
        self.known.iter().flat_map(of).collect()
    }

    /// Notes an answer that the guest gets. A name stays for its time and [`NAME_GRACE`], at least
    /// for [`NAME_TIME`]: programs connect later than they ask.
    pub fn learn(&mut self, now: Instant, answer: &Resolved) {
        for (address, ttl) in &answer.addresses {
            let until = now + (*ttl + NAME_GRACE).clamp(NAME_TIME, MAX_TIME);
            let order = self.next;
            self.next += 1;
            let known = self.known.entry(*address).or_insert_with(|| Known {
                names: Vec::new(),
                list: Arc::clone(&self.none),
                until,
                order,
            });
            self.order.remove(&known.order);
            self.order.insert(order, *address);
            known.order = order;
            self.bytes -= known.bytes();
            known.learn(now, &answer.names, until);
            self.bytes += known.bytes();
        }
        while self.known.len() > NAMED_ADDRESSES || self.bytes > NAMED_BYTES {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.bytes -= self.known.remove(&oldest).map_or(0, |known| known.bytes());
        }
    }

    /// Notes for good that a name with a denial leads to these addresses. The name is left out where
    /// another one that `stands_for` it is there already.
    ///
    /// # Errors
    /// If there is no room. Then the guest must not learn where the name leads.
    pub(crate) fn deny(
        &mut self,
        name: &Name,
        addresses: impl Iterator<Item = IpAddr>,
        stands_for: impl Fn(&Name) -> bool,
    ) -> Result<(), Full> {
        for address in addresses {
            let list = self.denied.get(&address).unwrap_or(&self.none);
            if list.iter().any(|known| known == name || stands_for(known)) {
                continue;
            }
            if self.denied_len >= DENIED_NAMES {
                return Err(Full);
            }
            let list = list.iter().chain([name]).cloned().collect();
            self.denied.insert(address, list);
            self.denied_len += 1;
        }
        Ok(())
    }

    /// The names of an address that denials have, however long ago the guest learned it.
    pub(crate) fn denied(&self, address: IpAddr) -> Arc<[Name]> {
        Arc::clone(self.denied.get(&address).unwrap_or(&self.none))
    }

    /// The names of an address, the latest first; none if the guest has it from elsewhere.
    pub fn of(&mut self, now: Instant, address: IpAddr) -> Arc<[Name]> {
        let Some(known) = self.known.get_mut(&address) else { return Arc::clone(&self.none) };
        if known.until <= now {
            self.bytes -= known.bytes();
            known.forget(now);
            self.bytes += known.bytes();
        }
        if known.names.is_empty() {
            self.order.remove(&known.order);
            self.known.remove(&address);
            return Arc::clone(&self.none);
        }
        Arc::clone(&known.list)
    }

    /// Addresses that have names.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// Longest time for which a name is kept, whatever an answer says (RFC 8767 section 4: a week).
const MAX_TIME: Duration = Duration::from_secs(7 * 86_400);

impl Known {
    fn learn(&mut self, now: Instant, names: &[Name], until: Instant) {
        self.names.retain(|(name, end)| *end > now && !names.contains(name));
        self.names.splice(0..0, names.iter().map(|name| (name.clone(), until)));
        self.names.truncate(NAMES_OF_ADDRESS);
        self.refresh();
    }

    /// Bytes of its names.
    pub(super) fn bytes(&self) -> usize {
        self.names.iter().map(|(name, _)| name.as_str().len()).sum()
    }

    fn forget(&mut self, now: Instant) {
        self.names.retain(|(_, end)| *end > now);
        self.refresh();
    }

    fn refresh(&mut self) {
        self.list = self.names.iter().map(|(name, _)| name.clone()).collect();
        self.until = self.names.iter().map(|(_, end)| *end).min().unwrap_or(Instant::ZERO);
    }
}
