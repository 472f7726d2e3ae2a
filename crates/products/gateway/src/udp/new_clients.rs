//! [`NewClients`]: clients of a published UDP port that the guest has not answered. Anybody may pretend to be many,
//! so new clients take no answered client's slot, and a random one makes room for the next: a flood cannot
//! choose which.

use std::collections::HashMap;
use std::net::SocketAddr;

use pagewire::services::Instant;

use crate::context::JudgedFlow;
use crate::limits::{UDP_ASKING, UDP_IDLE};

/// A client that waits for the guest's first answer.
pub(super) struct NewClient {
    pub(super) judged: JudgedFlow,
    /// The address by which the guest knows the client.
    pub(super) alias: SocketAddr,
    /// The address that this machine sees.
    pub(super) at: SocketAddr,
    pub(super) asked_at: Instant,
    pub(super) bytes_in: u64,
}

#[derive(Default)]
pub(super) struct NewClients {
    clients: Vec<NewClient>,
    /// Indices of the clients, by the address that this machine sees and by the alias.
    by_address: HashMap<SocketAddr, usize>,
    by_alias: HashMap<SocketAddr, usize>,
}

impl NewClients {
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// Adds a client; `full`: the guest has too many in all. Returns whether another client made room.
    pub(super) fn add(&mut self, client: NewClient, full: bool) -> bool {
        // The guest cannot tell two clients with one alias apart: it means the later one.
        if let Some(&at) = self.by_alias.get(&client.alias) {
            self.remove(at);
        }
        let evict = self.len() >= UDP_ASKING || (full && self.len() > 0);
        if evict {
            self.remove(rand::random_range(0..self.len()));
        }
        let at = self.len();
        self.by_address.insert(client.at, at);
        self.by_alias.insert(client.alias, at);
        self.clients.push(client);
        evict
    }

    pub(super) fn has(&self, at: SocketAddr) -> bool {
        self.by_address.contains_key(&at)
    }

    /// The client at this address of the network.
    pub(super) fn get_mut(&mut self, at: SocketAddr) -> Option<&mut NewClient> {
        self.clients.get_mut(*self.by_address.get(&at)?)
    }

    pub(super) fn take(&mut self, alias: SocketAddr) -> Option<NewClient> {
        let at = *self.by_alias.get(&alias)?;
        self.remove(at)
    }

    /// Forgets clients that have stopped sending, and have no answer.
    pub(super) fn expire(&mut self, now: Instant) {
        // Goes from the end: the last client, which was checked already, takes the index of a removed one.
        for at in (0..self.len()).rev() {
            let asked_at = self.clients.get(at).map(|client| client.asked_at);
            if asked_at.is_some_and(|asked_at| now.saturating_since(asked_at) >= UDP_IDLE) {
                self.remove(at);
            }
        }
    }

    /// Forgets the clients for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(&NewClient) -> bool) {
        for at in (0..self.len()).rev() {
            if self.clients.get(at).is_some_and(|client| !keep(client)) {
                self.remove(at);
            }
        }
    }

    fn remove(&mut self, at: usize) -> Option<NewClient> {
        let client = (at < self.len()).then(|| self.clients.swap_remove(at))?;
        self.by_address.remove(&client.at);
        self.by_alias.remove(&client.alias);
        // The last client has the index of the removed one now.
        if let Some(moved) = self.clients.get(at) {
            self.by_address.insert(moved.at, at);
            self.by_alias.insert(moved.alias, at);
        }
        Some(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Ask, GuestId, Protocol};

    const START: Instant = Instant::from_millis(1000);

    fn client(n: u32, alias: SocketAddr) -> NewClient {
        let at = SocketAddr::from(((0x0a00_0000 + n).to_be_bytes(), 4000));
        let ask = Ask::new(GuestId(1), Protocol::Udp, at, "10.0.2.15:53".parse().unwrap());
        let judged = JudgedFlow { flow: n.into(), ask, to: Ok(at) };
        NewClient { judged, alias, at, asked_at: START, bytes_in: 0 }
    }

    fn one(n: u32) -> NewClient {
        client(n, SocketAddr::from(((0x0a00_0000 + n).to_be_bytes(), 4000)))
    }

    #[test]
    fn of_two_clients_that_the_guest_calls_the_same_the_later_is_meant() {
        let mut new_clients = NewClients::default();
        let alias = "10.0.2.2:4000".parse().unwrap();
        new_clients.add(client(1, alias), false);
        new_clients.add(client(2, alias), false);
        assert_eq!(new_clients.len(), 1);
        assert_eq!(new_clients.take(alias).map(|client| client.judged.flow), Some(2));
    }

    #[test]
    fn any_client_makes_room_and_not_always_the_first() {
        let mut new_clients = NewClients::default();
        let extra = 200;
        let evicted =
            (0..UDP_ASKING as u32 + extra).filter(|n| new_clients.add(one(*n), false)).count();
        assert_eq!((new_clients.len(), evicted), (UDP_ASKING, extra as usize));
        // By chance all of the first two hundred went: less than one in 2^600.
        assert!((0..extra).any(|n| new_clients.has(one(n).at)));
        let kept = (0..UDP_ASKING as u32 + extra).filter(|n| new_clients.has(one(*n).at));
        let kept: Vec<u32> = kept.collect();
        assert_eq!(kept.len(), UDP_ASKING);
        for n in kept {
            assert_eq!(
                new_clients.get_mut(one(n).at).map(|client| client.judged.flow),
                Some(n.into())
            );
            assert_eq!(new_clients.take(one(n).alias).map(|client| client.at), Some(one(n).at));
        }
        assert_eq!(
            (new_clients.len(), new_clients.by_address.len(), new_clients.by_alias.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn clients_that_stopped_asking_are_forgotten_and_others_stay() {
        let mut new_clients = NewClients::default();
        for n in 0..10 {
            let asked_at = START + if n % 3 == 0 { UDP_IDLE } else { UDP_IDLE / 2 };
            new_clients.add(NewClient { asked_at, ..one(n) }, false);
        }
        new_clients.expire(START + UDP_IDLE);
        assert_eq!(new_clients.len(), 10);
        new_clients.expire(START + UDP_IDLE + UDP_IDLE / 2);
        for n in 0..10 {
            assert_eq!(new_clients.has(one(n).at), n % 3 == 0, "{n}");
            assert_eq!(new_clients.get_mut(one(n).at).is_some(), n % 3 == 0, "{n}");
        }
        new_clients.expire(START + 2 * UDP_IDLE);
        assert_eq!(
            (new_clients.len(), new_clients.by_address.len(), new_clients.by_alias.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn with_too_many_in_all_one_here_makes_room() {
        let mut new_clients = NewClients::default();
        assert!(!new_clients.add(one(1), true));
        assert!(new_clients.add(one(2), true));
        assert_eq!(new_clients.len(), 1);
    }
}
