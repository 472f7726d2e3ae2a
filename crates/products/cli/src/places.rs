//! Limits of connections: at once, and of one client.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::{CLIENT_PREFIX, CLIENT_SHARE, CONNECTIONS, CROWDED, CROWDED_OF};

/// How many connections a server has at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceLimits {
    /// In all.
    pub(crate) connections: u32,
    /// Of one client.
    pub(crate) per_client: u32,
}

impl PlaceLimits {
    /// A client has the usual share unless it is given.
    pub(crate) fn new(connections: u32, per_client: Option<u32>) -> Self {
        let share = connections.div_ceil(CLIENT_SHARE);
        Self { connections, per_client: per_client.unwrap_or(share).min(connections) }
    }
}

impl PlaceLimits {
    fn tell(&self, taken: &Taken) {
        let Some(crowded) = &taken.crowded else { return };
        let (all, most) = (taken.all as usize, self.connections as usize);
        crowded.store(all * CROWDED_OF > most * CROWDED, Ordering::Relaxed);
    }
}

impl Default for PlaceLimits {
    fn default() -> Self {
        Self::new(CONNECTIONS, None)
    }
}

/// Places of a server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    limits: PlaceLimits,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u32,
    /// Clients with a connection: memory is bounded by the places.
    by_client: HashMap<IpAddr, u32>,
    /// Set while most places are taken.
    crowded: Option<Arc<AtomicBool>>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// All are taken.
    All,
    /// This client has as many as it may.
    Client,
}

/// One connection's place, free again on drop.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    client: IpAddr,
}

impl Places {
    pub(crate) fn new(limits: PlaceLimits) -> Self {
        Self { limits, taken: Arc::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection from this address.
    pub(crate) fn take(&self, from: IpAddr) -> Result<Place, Full> {
        let client = client_of(from);
        let mut taken = self.taken();
        if taken.all >= self.limits.connections {
            return Err(Full::All);
        }
        let of_client = taken.by_client.get(&client).copied().unwrap_or(0);
        if of_client >= self.limits.per_client {
            return Err(Full::Client);
        }
        taken.by_client.insert(client, of_client + 1);
        taken.all += 1;
        self.limits.tell(&taken);
        Ok(Place { places: self.clone(), client })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken().all == 0
    }

    /// Keeps `crowded` up to date from now on: whether most are taken.
    pub(crate) fn report_crowded(&self, crowded: &Arc<AtomicBool>) {
        let mut taken = self.taken();
        taken.crowded = Some(Arc::clone(crowded));
        self.limits.tell(&taken);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(n) = taken.by_client.get_mut(&self.client) {
            *n -= 1;
            if *n == 0 {
                taken.by_client.remove(&self.client);
            }
        }
        self.places.limits.tell(&taken);
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
    fn one_client_cannot_take_every_place() {
        let places = Places::new(PlaceLimits::new(8, None));
        let one: Vec<Place> = (0..4).map(|_| places.take(ip("10.0.0.1")).expect("room")).collect();
        assert_eq!(places.take(ip("10.0.0.1")).unwrap_err(), Full::Client);
        let others: Vec<Place> =
            (2..6).map(|i| places.take(IpAddr::from([10, 0, 0, i])).expect("room")).collect();
        assert_eq!(places.take(ip("10.0.0.9")).unwrap_err(), Full::All);
        drop(one);
        assert!(places.take(ip("10.0.0.1")).is_ok() && !places.is_empty());
        drop(others);
        assert!(places.is_empty() && places.taken().by_client.is_empty());
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let places = Places::new(PlaceLimits::new(8, Some(2)));
        let _held =
            [places.take(ip("fd77::1")).expect("room"), places.take(ip("fd77::2")).expect("room")];
        assert_eq!(places.take(ip("fd77::3:4:5:6")).unwrap_err(), Full::Client);
        assert!(places.take(ip("fd77:0:0:1::1")).is_ok());
        let _mapped = [places.take(ip("::ffff:10.0.0.1")), places.take(ip("10.0.0.1"))];
        assert_eq!(places.take(ip("10.0.0.1")).unwrap_err(), Full::Client);
    }

    #[test]
    fn a_share_is_a_half_and_never_nothing() {
        let share = |connections, given| PlaceLimits::new(connections, given).per_client;
        assert_eq!((share(1, None), share(2, None), share(1024, None)), (1, 1, 512));
        assert_eq!((share(10, Some(7)), share(10, Some(70))), (7, 10));
    }

    #[test]
    fn it_is_crowded_above_three_quarters_and_only_as_long() {
        let places = Places::new(PlaceLimits::new(4, Some(4)));
        let crowded = Arc::new(AtomicBool::new(true));
        places.report_crowded(&crowded);
        let mut held: Vec<Place> =
            (0..3).map(|_| places.take(ip("10.0.0.1")).expect("room")).collect();
        assert!(!crowded.load(Ordering::Relaxed));
        held.push(places.take(ip("10.0.0.1")).expect("room"));
        assert!(crowded.load(Ordering::Relaxed));
        // No new clients come: the others may keep their connections.
        held.pop();
        assert!(!crowded.load(Ordering::Relaxed));
    }
}
