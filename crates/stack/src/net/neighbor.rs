//! Neighbours: which station has which address, and whether it still answers.
//!
//! ```text
//!              packet                 answer                    30 s           packet
//!   (none) ------------> Incomplete ----------> Reachable ------------> Stale --------> Delay
//!                          | 3 requests             ^                     ^               | 5 s
//!                          v unanswered             | answer, or proof    | overheard     v
//!                        (none), queue dropped      +---- from above ----------------- Probe
//!                                                                             3 requests  |
//!                                                                             unanswered  v
//!                                                                                       (none)
//! ```
//!
//! One machine serves ARP and neighbour discovery (RFC 4861 section 7.3). Who floods us with
//! made-up addresses fills the entries that nobody answered for, never those that are in use.

use core::hash::{BuildHasher, Hasher};
use std::collections::VecDeque;
use std::net::IpAddr;

use hashbrown::HashMap;
use pagewire_mem::{Instant, PacketBuf};
use siphasher::sip::SipHasher13;

use super::wire::ethernet::Mac;
use crate::counters::{Counters, DropReason};
use crate::limits::{
    NEIGHBOR_DELAY, NEIGHBOR_QUEUE_PACKETS, NEIGHBOR_QUEUE_TOTAL, NEIGHBOR_REACHABLE,
    NEIGHBOR_REQUESTS, NEIGHBOR_RETRANSMIT, NEIGHBOR_UNUSED, NEIGHBORS, NEIGHBORS_INCOMPLETE,
};

/// Hashes keys that strangers choose, under a key that they do not know.
#[derive(Clone, Debug)]
pub(crate) struct Keyed(pub(crate) [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

impl Keyed {
    /// A key for something else.
    pub(crate) fn key(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut key = [0; 16];
        for (half, name) in key.chunks_mut(8).zip([b"first", b"other"]) {
            let mut hasher = self.build_hasher();
            [name.as_slice()].iter().chain(parts).for_each(|part| hasher.write(part));
            half.copy_from_slice(&hasher.finish().to_ne_bytes());
        }
        key
    }

    /// 64 bits that a stranger cannot foresee.
    pub(crate) fn digest(&self, parts: &[&[u8]]) -> u64 {
        let mut hasher = self.build_hasher();
        for part in parts {
            hasher.write(part);
        }
        hasher.finish()
    }
}

/// The neighbours of one link.
pub(crate) struct Neighbors {
    table: HashMap<IpAddr, Neighbor, Keyed>,
    incomplete: usize,
    /// Packets waiting, in all entries.
    queued: usize,
    /// No deadline lies before this moment.
    next: Instant,
    /// Changes whenever an answer that was given may be wrong now.
    generation: u32,
}

struct Neighbor {
    state: State,
    /// Meaningless while incomplete.
    mac: Mac,
    /// Last looked up by the send path, or learned.
    used: Instant,
    /// Packets that wait while incomplete.
    queue: VecDeque<PacketBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Incomplete { requests: u8, at: Instant },
    Reachable { until: Instant },
    Stale,
    Delay { until: Instant },
    Probe { requests: u8, at: Instant },
}

/// Answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Send there; ask again after `until`.
    Known { mac: Mac, until: Instant },
    /// [`Neighbors::enqueue`] the packet.
    Unknown,
}

/// What a received packet says about a neighbour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// Its station; `None` in an advertisement without the option.
    pub(crate) mac: Option<Mac>,
    /// It answers a question of ours: proof of two-way reachability.
    pub(crate) solicited: bool,
    /// It replaces what was known before.
    pub(crate) overrides: bool,
    /// An entry may be made for it: it is about to talk to us.
    pub(crate) create: bool,
}

/// What a timeout asks for.
#[derive(Debug)]
pub(crate) enum Action {
    /// Ask for the address: everybody, or the station that had it.
    Request { addr: IpAddr, station: Option<Mac> },
    /// Nobody answered: these packets are lost.
    Failed { addr: IpAddr, queue: VecDeque<PacketBuf> },
}

impl Neighbors {
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            table: HashMap::with_hasher(hash),
            incomplete: 0,
            queued: 0,
            next: Instant::FAR,
            generation: 0,
        }
    }

    // Getters.

    /// Lookups given under another generation are void.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        (self.next != Instant::FAR).then_some(self.next)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Packets that wait.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    // The send path.

    /// Where packets for `addr` go. Using a stale entry starts its way to a probe.
    pub(crate) fn lookup(&mut self, now: Instant, addr: IpAddr) -> Lookup {
        let Some(entry) = self.table.get_mut(&addr) else { return Lookup::Unknown };
        entry.used = now;
        let until = match entry.state {
            State::Incomplete { .. } => return Lookup::Unknown,
            State::Reachable { until } if now < until => until,
            // RFC 4861 section 7.3.3: "The first time a node sends a packet to a neighbor whose
            // entry is STALE, the sender changes the state to DELAY and sets a timer to expire in
            // DELAY_FIRST_PROBE_TIME seconds."
            State::Reachable { .. } | State::Stale => {
                let until = now + NEIGHBOR_DELAY;
                entry.state = State::Delay { until };
                self.next = self.next.min(until);
                until
            }
            State::Delay { until } => until,
            State::Probe { .. } => now,
        };
        Lookup::Known { mac: entry.mac, until }
    }

    /// Keeps a packet until the address of `addr` is known; `true` if it is to be asked for now.
    pub(crate) fn enqueue(
        &mut self,
        now: Instant,
        addr: IpAddr,
        packet: PacketBuf,
        counters: &mut Counters,
    ) -> bool {
        let fresh = !self.table.contains_key(&addr);
        if fresh {
            self.make_room(counters, true);
            let at = now + NEIGHBOR_RETRANSMIT;
            self.insert(addr, State::Incomplete { requests: 1, at }, Mac::ZERO, now);
            self.incomplete += 1;
            self.next = self.next.min(at);
        }
        let total = self.queued;
        let Some(entry) = self.table.get_mut(&addr) else { return false };
        entry.used = now;
        // RFC 4861 section 7.2.2: "When a queue overflows, the new arrival SHOULD replace the
        // oldest entry."
        if entry.queue.len() >= NEIGHBOR_QUEUE_PACKETS || total >= NEIGHBOR_QUEUE_TOTAL {
            counters.drop_one(DropReason::NeighborQueueFull);
            if entry.queue.pop_front().is_none() {
                // The room is taken by others: they came first.
                return fresh;
            }
            self.queued -= 1;
        }
        entry.queue.push_back(packet);
        self.queued += 1;
        fresh
    }

    /// Whether a packet that is not ours may wait for the address of `addr`: half of the room is
    /// for our own.
    pub(crate) fn has_room_for_others(&self, addr: IpAddr) -> bool {
        let room = self.queued < NEIGHBOR_QUEUE_TOTAL / 2;
        match self.table.get(&addr) {
            Some(entry) => room && entry.queue.len() < NEIGHBOR_QUEUE_PACKETS / 2,
            None => room && self.incomplete < NEIGHBORS_INCOMPLETE / 2,
        }
    }

    /// Proof from above that packets to `addr` arrive (RFC 4861 section 7.3.1).
    pub(crate) fn confirm(&mut self, now: Instant, addr: IpAddr) {
        if let Some(entry) = self.table.get_mut(&addr)
            && !matches!(entry.state, State::Incomplete { .. })
        {
            entry.state = State::Reachable { until: now + NEIGHBOR_REACHABLE };
        }
    }

    // Input.

    /// Takes in what a packet said, and returns the packets that can go now.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        addr: IpAddr,
        claim: Claim,
        counters: &mut Counters,
    ) -> VecDeque<PacketBuf> {
        let Some(entry) = self.table.get_mut(&addr) else {
            if let (true, Some(mac)) = (claim.create, claim.mac) {
                self.make_room(counters, false);
                self.insert(addr, State::Stale, mac, now);
                self.next = self.next.min(now + NEIGHBOR_UNUSED);
            }
            return VecDeque::new();
        };
        let reachable = State::Reachable { until: now + NEIGHBOR_REACHABLE };
        if let State::Incomplete { .. } = entry.state {
            // RFC 4861 section 7.2.5: "If the link layer has addresses and no Target Link-Layer
            // Address option is included, the receiving node SHOULD silently discard the received
            // advertisement."
            let Some(mac) = claim.mac else { return VecDeque::new() };
            entry.mac = mac;
            entry.used = now;
            entry.state = if claim.solicited { reachable } else { State::Stale };
            let queue = core::mem::take(&mut entry.queue);
            self.incomplete -= 1;
            self.queued -= queue.len();
            self.next = self.next.min(now + NEIGHBOR_UNUSED);
            counters.neighbors_resolved += 1;
            return queue;
        }
        let changed = claim.mac.is_some_and(|mac| mac != entry.mac);
        // RFC 4861 section 7.2.5, I: without the override flag, another address does not replace
        // the one we have; a reachable entry becomes stale, and is checked.
        if changed && !claim.overrides {
            if let State::Reachable { .. } = entry.state {
                entry.state = State::Stale;
                self.generation = self.generation.wrapping_add(1);
            }
            return VecDeque::new();
        }
        if let (true, Some(mac)) = (changed, claim.mac) {
            entry.mac = mac;
            self.generation = self.generation.wrapping_add(1);
        }
        if claim.solicited {
            entry.state = reachable;
        } else if changed {
            entry.state = State::Stale;
        }
        VecDeque::new()
    }

    /// Whether there is an entry: somebody we talk to, or want to.
    pub(crate) fn knows(&self, addr: IpAddr) -> bool {
        self.table.contains_key(&addr)
    }

    /// Whether we are waiting for an answer from `addr`.
    pub(crate) fn is_asked(&self, addr: IpAddr) -> bool {
        self.table.get(&addr).is_some_and(|entry| {
            matches!(entry.state, State::Incomplete { .. } | State::Probe { .. })
        })
    }

    // Time.

    /// Appends what is to be done by now.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        counters: &mut Counters,
        actions: &mut Vec<Action>,
    ) {
        if now < self.next {
            return;
        }
        let mut next = Instant::FAR;
        let (mut incomplete, mut queued, mut removed) = (self.incomplete, self.queued, false);
        self.table.retain(|&addr, entry| {
            let keep = entry.handle_timeout(now, addr, actions);
            if keep {
                next = next.min(entry.deadline());
            } else {
                removed = true;
                if let State::Incomplete { .. } = entry.state {
                    incomplete -= 1;
                    queued -= entry.queue.len();
                    counters.neighbors_failed += 1;
                    let queue = core::mem::take(&mut entry.queue);
                    actions.push(Action::Failed { addr, queue });
                } else if let State::Probe { .. } = entry.state {
                    counters.neighbors_failed += 1;
                }
            }
            keep
        });
        (self.incomplete, self.queued, self.next) = (incomplete, queued, next);
        if removed {
            self.generation = self.generation.wrapping_add(1);
        }
    }

    // Room.

    fn insert(&mut self, addr: IpAddr, state: State, mac: Mac, now: Instant) {
        self.table.insert(addr, Neighbor { state, mac, used: now, queue: VecDeque::new() });
    }

    /// Evicts one entry if the table, or its incomplete part, is full: the one that would be
    /// missed least.
    fn make_room(&mut self, counters: &mut Counters, for_incomplete: bool) {
        let crowded = for_incomplete && self.incomplete >= NEIGHBORS_INCOMPLETE;
        if self.table.len() < NEIGHBORS && !crowded {
            return;
        }
        let victim = self
            .table
            .iter()
            .filter(|(_, entry)| !crowded || matches!(entry.state, State::Incomplete { .. }))
            .min_by_key(|(_, entry)| (entry.worth(), entry.used))
            .map(|(&addr, _)| addr);
        let Some(entry) = victim.and_then(|addr| self.table.remove(&addr)) else { return };
        counters.neighbors_evicted += 1;
        self.generation = self.generation.wrapping_add(1);
        if let State::Incomplete { .. } = entry.state {
            self.incomplete -= 1;
            self.queued -= entry.queue.len();
            counters.drop_many(DropReason::NeighborEvicted, entry.queue.len() as u64);
        }
    }
}

impl Neighbor {
    /// Does what the moment asks for; `false`: the entry goes.
    fn handle_timeout(&mut self, now: Instant, addr: IpAddr, actions: &mut Vec<Action>) -> bool {
        match &mut self.state {
            State::Incomplete { requests, at } if now >= *at => {
                if *requests >= NEIGHBOR_REQUESTS {
                    return false;
                }
                *requests += 1;
                *at = now + NEIGHBOR_RETRANSMIT;
                actions.push(Action::Request { addr, station: None });
            }
            State::Probe { requests, at } if now >= *at => {
                if *requests >= NEIGHBOR_REQUESTS {
                    return false;
                }
                *requests += 1;
                *at = now + NEIGHBOR_RETRANSMIT;
                actions.push(Action::Request { addr, station: Some(self.mac) });
            }
            State::Delay { until } if now >= *until => {
                self.state = State::Probe { requests: 1, at: now + NEIGHBOR_RETRANSMIT };
                actions.push(Action::Request { addr, station: Some(self.mac) });
            }
            State::Reachable { .. } | State::Stale if now >= self.used + NEIGHBOR_UNUSED => {
                return false;
            }
            _ => {}
        }
        true
    }

    fn deadline(&self) -> Instant {
        match self.state {
            State::Incomplete { at, .. } | State::Probe { at, .. } => at,
            State::Delay { until } => until,
            State::Reachable { .. } | State::Stale => self.used + NEIGHBOR_UNUSED,
        }
    }

    /// What is missed least goes first.
    fn worth(&self) -> u8 {
        match self.state {
            State::Incomplete { .. } => 0,
            State::Stale => 1,
            State::Probe { .. } => 2,
            State::Delay { .. } => 3,
            State::Reachable { .. } => 4,
        }
    }
}
