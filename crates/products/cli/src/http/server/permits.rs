//! Permits for connections: a server has a limited number at once, in all and for each client.
//!
//! [`Permits`] is asked by the thread that accepts (`service.rs`). A [`Permit`] goes with the connection
//! and is free again when it is dropped.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::{CLIENT_PREFIX, CLIENT_SHARE, CONNECTIONS, CROWDED, CROWDED_OF};

/// How many connections a server has at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PermitLimits {
    /// Connections of all clients together.
    pub(crate) connections: u32,
    /// Connections of one client.
    pub(crate) per_client: u32,
}

impl PermitLimits {
    /// A client has the usual share unless it is given.
    pub(crate) fn new(connections: u32, per_client: Option<u32>) -> Self {
        let share = connections.div_ceil(CLIENT_SHARE);
        Self { connections, per_client: per_client.unwrap_or(share).min(connections) }
    }

    /// Sets whether the server is crowded.
    fn report(&self, taken: &Taken) {
        let Some(crowded) = &taken.crowded else { return };
        let (all, most) = (taken.all as usize, self.connections as usize);
        crowded.store(all * CROWDED_OF > most * CROWDED, Ordering::Relaxed);
    }
}

impl Default for PermitLimits {
    fn default() -> Self {
        Self::new(CONNECTIONS, None)
    }
}

/// The permits of a server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Permits {
    limits: PermitLimits,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u32,
    /// Connections of each client that has any: memory is bounded by the number of permits.
    by_client: HashMap<IpAddr, u32>,
    /// Set while most permits are taken.
    crowded: Option<Arc<AtomicBool>>,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPermit {
    /// All permits are taken.
    All,
    /// This client has as many as it may have.
    Client,
}

/// The permit of a connection, free again on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Permits,
    client: IpAddr,
}

impl Permits {
    pub(crate) fn new(limits: PermitLimits) -> Self {
        Self { limits, taken: Arc::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit for a connection from this address.
    pub(crate) fn take(&self, from: IpAddr) -> Result<Permit, NoPermit> {
        let client = client_of(from);
        let mut taken = self.taken();
        if taken.all >= self.limits.connections {
            return Err(NoPermit::All);
        }
        let of_client = taken.by_client.get(&client).copied().unwrap_or(0);
        if of_client >= self.limits.per_client {
            return Err(NoPermit::Client);
        }
        taken.by_client.insert(client, of_client + 1);
        taken.all += 1;
        self.limits.report(&taken);
        Ok(Permit { permits: self.clone(), client })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken().all == 0
    }

    /// Keeps `crowded` up to date from now on: whether most permits are taken.
    pub(crate) fn report_crowded(&self, crowded: &Arc<AtomicBool>) {
        let mut taken = self.taken();
        taken.crowded = Some(Arc::clone(crowded));
        self.limits.report(&taken);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken();
        taken.all -= 1;
        if let Some(n) = taken.by_client.get_mut(&self.client) {
            *n -= 1;
            if *n == 0 {
                taken.by_client.remove(&self.client);
            }
        }
        self.permits.limits.report(&taken);
    }
}

fn client_of(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(ip) => {
            let network = u128::from(ip) >> (128 - CLIENT_PREFIX) << (128 - CLIENT_PREFIX);
            Ipv6Addr::from(network).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_client_cannot_take_every_permit() {
        let permits = Permits::new(PermitLimits::new(8, None));
        let one: Vec<Permit> =
            (0..4).map(|_| permits.take(ip("10.0.0.1")).expect("room")).collect();
        assert_eq!(permits.take(ip("10.0.0.1")).unwrap_err(), NoPermit::Client);
        let others: Vec<Permit> =
            (2..6).map(|i| permits.take(IpAddr::from([10, 0, 0, i])).expect("room")).collect();
        assert_eq!(permits.take(ip("10.0.0.9")).unwrap_err(), NoPermit::All);
        drop(one);
        assert!(permits.take(ip("10.0.0.1")).is_ok() && !permits.is_empty());
        drop(others);
        assert!(permits.is_empty() && permits.taken().by_client.is_empty());
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let permits = Permits::new(PermitLimits::new(8, Some(2)));
        let _held = [
            permits.take(ip("fd77::1")).expect("room"),
            permits.take(ip("fd77::2")).expect("room"),
        ];
        assert_eq!(permits.take(ip("fd77::3:4:5:6")).unwrap_err(), NoPermit::Client);
        assert!(permits.take(ip("fd77:0:0:1::1")).is_ok());
        let _mapped = [permits.take(ip("::ffff:10.0.0.1")), permits.take(ip("10.0.0.1"))];
        assert_eq!(permits.take(ip("10.0.0.1")).unwrap_err(), NoPermit::Client);
    }

    #[test]
    fn a_share_is_a_half_and_never_nothing() {
        let share = |connections, given| PermitLimits::new(connections, given).per_client;
        assert_eq!((share(1, None), share(2, None), share(1024, None)), (1, 1, 512));
        assert_eq!((share(10, Some(7)), share(10, Some(70))), (7, 10));
    }

    #[test]
    fn a_server_is_crowded_while_more_than_three_quarters_are_taken() {
        let permits = Permits::new(PermitLimits::new(4, Some(4)));
        let crowded = Arc::new(AtomicBool::new(true));
        permits.report_crowded(&crowded);
        let mut held: Vec<Permit> =
            (0..3).map(|_| permits.take(ip("10.0.0.1")).expect("room")).collect();
        assert!(!crowded.load(Ordering::Relaxed));
        held.push(permits.take(ip("10.0.0.1")).expect("room"));
        assert!(crowded.load(Ordering::Relaxed));
        // No new clients come: the others may keep their connections.
        held.pop();
        assert!(!crowded.load(Ordering::Relaxed));
    }
}
