//! [`Memory`]: what a guest was told of names and addresses, which the resolvers of all its cores share.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewire::services::Instant;

use super::invented::InventedAddresses;
use super::resolvers::Resolver;
use crate::limits::{DNS_BURST, DNS_PER_SECOND};
use crate::policy::Names;
use crate::rate::SharedRate;
use crate::request::Name;

/// The names that one guest was given, and the rate of its queries.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    names: Arc<Mutex<Names>>,
    /// Addresses that stand for names; `None`: resolvers are asked.
    invented: Option<Arc<Mutex<InventedAddresses>>>,
    /// Queries that are passed on.
    rate: SharedRate,
}

impl Memory {
    pub(crate) fn new(resolver: &Resolver) -> Self {
        Self {
            names: Arc::default(),
            invented: (*resolver == Resolver::Invented).then(Arc::default),
            rate: SharedRate::new(DNS_PER_SECOND, DNS_BURST),
        }
    }

    /// Whether a panic has broken it: denials by name may be missing.
    pub(crate) fn is_broken(&self) -> bool {
        self.names.is_poisoned() || self.invented.as_ref().is_some_and(|all| all.is_poisoned())
    }

    /// The names of addresses.
    pub(super) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether names have addresses of the gateway's invention.
    pub(super) fn invents(&self) -> bool {
        self.invented.is_some()
    }

    fn invented(&self) -> Option<MutexGuard<'_, InventedAddresses>> {
        Some(self.invented.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The address that stands for the name from now on.
    pub(super) fn invent(&self, name: &Name) -> Option<IpAddr> {
        Some(self.invented()?.address_of(name))
    }

    /// Whether one more query may be passed on.
    pub(crate) fn may_ask(&self, now: Instant) -> bool {
        self.rate.take(now).is_ok()
    }

    /// Has a thread panic with the names.
    #[cfg(test)]
    pub(crate) fn break_it(&self) {
        let broken = self.clone();
        let panics = move || {
            let _names = broken.names();
            panic!("with the names");
        };
        assert!(std::thread::spawn(panics).join().is_err());
    }

    /// The name that an invented address stands for, which counts as a use.
    pub(super) fn visit(&self, address: IpAddr) -> Option<Name> {
        self.invented()?.visit(address)
    }

    /// The name that an address of the gateway's invention stands for, if it still stands for one; `None`: the address
    /// is no such one.
    pub(super) fn stands_for(&self, address: IpAddr) -> Option<Option<Name>> {
        self.invented()?.get(address).map(Option::<&Name>::cloned)
    }
}
