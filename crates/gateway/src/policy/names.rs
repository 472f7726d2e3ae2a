//! What the guest was told about addresses: the names behind which our resolver found them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::Instant;

use crate::ask::Name;
use crate::limits::{NAME_GRACE, NAME_TIME, NAMED_ADDRESSES, NAMES_OF_ADDRESS};

/// What an answer of the resolver says: each of these names leads to each of these addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The name that was asked for, and those that it is an alias of.
    pub names: Vec<Name>,
    /// Addresses, and for how long the answer says so.
    pub addresses: Vec<(IpAddr, Duration)>,
}

/// Addresses with their names, as one guest was told; the oldest make way for new ones.
#[derive(Debug, Default)]
pub struct Names {
    known: HashMap<IpAddr, Known>,
    /// Addresses by the time of the last answer that has them: the oldest first.
    order: BTreeMap<u64, IpAddr>,
    /// Number of the next answer.
    next: u64,
    none: Arc<[Name]>,
}

#[derive(Debug)]
struct Known {
    /// The latest first, each until its time.
    names: Vec<(Name, Instant)>,
    /// What is handed out, until the first of them is over.
    list: Arc<[Name]>,
    until: Instant,
    order: u64,
}

impl Names {
    /// Notes what the guest is being told. A name stays for its time and [`NAME_GRACE`], at least
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
            known.learn(now, &answer.names, until);
        }
        while self.known.len() > NAMED_ADDRESSES {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.known.remove(&oldest);
        }
    }

    /// The names of an address, the latest first; none if the guest has it from elsewhere.
    pub fn of(&mut self, now: Instant, address: IpAddr) -> Arc<[Name]> {
        let Some(known) = self.known.get_mut(&address) else { return Arc::clone(&self.none) };
        if known.until <= now {
            known.forget(now);
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

    fn forget(&mut self, now: Instant) {
        self.names.retain(|(_, end)| *end > now);
        self.refresh();
    }

    fn refresh(&mut self) {
        self.list = self.names.iter().map(|(name, _)| name.clone()).collect();
        self.until = self.names.iter().map(|(_, end)| *end).min().unwrap_or(Instant::ZERO);
    }
}
