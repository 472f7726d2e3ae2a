//! Clients of a published port that the guest has not answered. Anybody may pretend to be many, so none
//! of them costs the guest an answered one, and a random one makes room for the next: a flood cannot
//! choose which.

use std::collections::HashMap;
use std::net::SocketAddr;

use pagewire::services::Instant;

use crate::context::Judged;
use crate::limits::{UDP_ASKING, UDP_IDLE};

/// A client that waits for the guest's first answer.
pub(super) struct Client {
    pub(super) judged: Judged,
    /// What the guest calls it.
    pub(super) called: SocketAddr,
    /// Where it is for this machine.
    pub(super) at: SocketAddr,
    /// When it last asked.
    pub(super) asked_at: Instant,
    pub(super) bytes_in: u64,
}

#[derive(Default)]
pub(super) struct Asking {
    clients: Vec<Client>,
    /// Their places, by where they are and by what the guest calls them.
    by_address: HashMap<SocketAddr, usize>,
    by_name: HashMap<SocketAddr, usize>,
}

impl Asking {
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Adds a client; `full`: there are too many in all. Returns whether another made room.
    pub(super) fn add(&mut self, client: Client, full: bool) -> bool {
        // Another that the guest calls the same is not told apart: the later one is meant.
        if let Some(&at) = self.by_name.get(&client.called) {
            self.remove(at);
        }
        let evict = self.len() >= UDP_ASKING || (full && self.len() > 0);
        if evict {
            self.remove(rand::random_range(0..self.len()));
        }
        let at = self.len();
        self.by_address.insert(client.at, at);
        self.by_name.insert(client.called, at);
        self.clients.push(client);
        evict
    }

    pub(super) fn has(&self, at: SocketAddr) -> bool {
        self.by_address.contains_key(&at)
    }

    /// The client at this address of the network.
    pub(super) fn get_mut(&mut self, at: SocketAddr) -> Option<&mut Client> {
        self.clients.get_mut(*self.by_address.get(&at)?)
    }

    /// Takes the client that the guest calls so.
    pub(super) fn take(&mut self, called: SocketAddr) -> Option<Client> {
        let at = *self.by_name.get(&called)?;
        self.remove(at)
    }

    /// Forgets clients that the guest has left without an answer, and that have stopped asking.
    pub(super) fn expire(&mut self, now: Instant) {
        // From the end: the last takes the place of one that goes, and was looked at already.
        for at in (0..self.len()).rev() {
            let asked_at = self.clients.get(at).map(|client| client.asked_at);
            if asked_at.is_some_and(|asked_at| now.saturating_since(asked_at) >= UDP_IDLE) {
                self.remove(at);
            }
        }
    }

    fn remove(&mut self, at: usize) -> Option<Client> {
        let client = (at < self.len()).then(|| self.clients.swap_remove(at))?;
        self.by_address.remove(&client.at);
        self.by_name.remove(&client.called);
        // The last has its place now.
        if let Some(moved) = self.clients.get(at) {
            self.by_address.insert(moved.at, at);
            self.by_name.insert(moved.called, at);
        }
        Some(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::{Ask, GuestId, Protocol};

    const START: Instant = Instant::from_millis(1000);

    fn client(n: u32, called: SocketAddr) -> Client {
        let at = SocketAddr::from(((0x0a00_0000 + n).to_be_bytes(), 4000));
        let ask = Ask::new(GuestId(1), Protocol::Udp, at, "10.0.2.15:53".parse().unwrap());
        let judged = Judged { flow: n.into(), ask, to: Ok(at) };
        Client { judged, called, at, asked_at: START, bytes_in: 0 }
    }

    fn one(n: u32) -> Client {
        client(n, SocketAddr::from(((0x0a00_0000 + n).to_be_bytes(), 4000)))
    }

    #[test]
    fn any_client_makes_room_and_not_always_the_first() {
        let mut asking = Asking::default();
        let extra = 200;
        let evicted = (0..UDP_ASKING as u32 + extra).filter(|n| asking.add(one(*n), false)).count();
        assert_eq!((asking.len(), evicted), (UDP_ASKING, extra as usize));
        // By chance all of the first two hundred went: less than one in 2^600.
        assert!((0..extra).any(|n| asking.has(one(n).at)));
        let kept = (0..UDP_ASKING as u32 + extra).filter(|n| asking.has(one(*n).at));
        let kept: Vec<u32> = kept.collect();
        assert_eq!(kept.len(), UDP_ASKING);
        for n in kept {
            assert_eq!(asking.get_mut(one(n).at).map(|client| client.judged.flow), Some(n.into()));
            assert_eq!(asking.take(one(n).called).map(|client| client.at), Some(one(n).at));
        }
        assert_eq!((asking.len(), asking.by_address.len(), asking.by_name.len()), (0, 0, 0));
    }

    #[test]
    fn of_two_clients_that_the_guest_calls_the_same_the_later_is_meant() {
        let mut asking = Asking::default();
        let called = "10.0.2.2:4000".parse().unwrap();
        asking.add(client(1, called), false);
        asking.add(client(2, called), false);
        assert_eq!(asking.len(), 1);
        assert_eq!(asking.take(called).map(|client| client.judged.flow), Some(2));
    }

    #[test]
    fn clients_that_stopped_asking_are_forgotten_and_others_stay() {
        let mut asking = Asking::default();
        for n in 0..10 {
            let asked_at = START + if n % 3 == 0 { UDP_IDLE } else { UDP_IDLE / 2 };
            asking.add(Client { asked_at, ..one(n) }, false);
        }
        asking.expire(START + UDP_IDLE);
        assert_eq!(asking.len(), 10);
        asking.expire(START + UDP_IDLE + UDP_IDLE / 2);
        for n in 0..10 {
            assert_eq!(asking.has(one(n).at), n % 3 == 0, "{n}");
            assert_eq!(asking.get_mut(one(n).at).is_some(), n % 3 == 0, "{n}");
        }
        asking.expire(START + 2 * UDP_IDLE);
        assert_eq!((asking.len(), asking.by_address.len(), asking.by_name.len()), (0, 0, 0));
    }

    #[test]
    fn with_too_many_in_all_one_here_makes_room() {
        let mut asking = Asking::default();
        assert!(!asking.add(one(1), true));
        assert!(asking.add(one(2), true));
        assert_eq!(asking.len(), 1);
    }
}
