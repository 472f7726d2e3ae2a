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
//! One machine serves ARP and neighbour discovery (RFC 4861 section 7.3). Entries are of three kinds,
//! and each has room of its own, so that a flood of made-up addresses pushes out only its like:
//!
//! ```text
//!   Asked   somebody wants to send there, no answer yet      at most NEIGHBORS_INCOMPLETE
//!   Heard   asked for us, nobody has sent there              at most NEIGHBORS_HEARD
//!   Used    packets go there: hops may be cached             what is left of NEIGHBORS
//! ```
//!
//! Who goes is known without a search: each kind stands in line. One that packets go to (`Used`), and
//! that answered within [`NEIGHBOR_REACHABLE`], never goes for another.

use core::hash::{BuildHasher, Hasher};
use std::collections::VecDeque;
use std::net::IpAddr;

use hashbrown::HashMap;
use pagewire_mem::{Instant, PacketBuf};
use siphasher::sip::SipHasher13;

use super::wire::ethernet::Mac;
use crate::counters::{Counters, DropReason};
use crate::limits::{
    NEIGHBOR_DELAY, NEIGHBOR_EVICTION_STEPS, NEIGHBOR_QUEUE_PACKETS, NEIGHBOR_QUEUE_TOTAL,
    NEIGHBOR_REACHABLE, NEIGHBOR_REQUESTS, NEIGHBOR_RETRANSMIT, NEIGHBOR_UNUSED, NEIGHBORS,
    NEIGHBORS_EVICTED_TOLD, NEIGHBORS_HEARD, NEIGHBORS_INCOMPLETE,
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
    /// Who is next to go, of each kind.
    lines: [Line; 3],
    /// Places in line given so far: no two are the same.
    places: u64,
    /// Packets waiting, in all entries.
    queued: usize,
    /// Packets that waited in entries which made room, until their senders are told.
    evicted: Vec<VecDeque<PacketBuf>>,
    /// No deadline lies before this moment.
    next: Instant,
    /// Changes whenever an answer that was given may be wrong now: a station changed that packets go
    /// to. Not when an entry goes: until the answer's time is over, its station is still good.
    generation: u32,
}

/// Entries of one kind in the order in which they go.
#[derive(Default)]
struct Line {
    /// Whoever has another place now has left this one.
    queue: VecDeque<(IpAddr, u64)>,
    /// Entries that stand here.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Asked,
    Heard,
    Used,
}

struct Neighbor {
    state: State,
    kind: Kind,
    /// Its place in the line of its kind.
    place: u64,
    /// Looked up since it was given that place.
    touched: bool,
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
    /// The entry made room for another one. These are lost, and counted, too.
    Evicted { queue: VecDeque<PacketBuf> },
}

impl Neighbors {
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            table: HashMap::with_hasher(hash),
            lines: Default::default(),
            places: 0,
            queued: 0,
            evicted: Vec::new(),
            next: Instant::FAR,
            generation: 0,
        }
    }

    // Getters.

    /// Lookups given under another generation are void.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// When something is due; [`Instant::FAR`]: nothing is.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Instant {
        self.next
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
        (entry.used, entry.touched) = (now, true);
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
        let (mac, kind) = (entry.mac, entry.kind);
        if kind == Kind::Heard {
            self.line_up(addr, Kind::Used);
        }
        Lookup::Known { mac, until }
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
            if !self.make_room(now, counters, Kind::Asked) {
                counters.drop_one(DropReason::NeighborTableFull);
                return false;
            }
            let at = now + NEIGHBOR_RETRANSMIT;
            let state = State::Incomplete { requests: 1, at };
            self.insert(addr, state, Kind::Asked, Mac::ZERO, now);
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
            None => room && self.line(Kind::Asked).len < NEIGHBORS_INCOMPLETE / 2,
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
            // Without room it is asked for when somebody wants to send there.
            if let (true, Some(mac)) = (claim.create, claim.mac)
                && self.make_room(now, counters, Kind::Heard)
            {
                self.insert(addr, State::Stale, Kind::Heard, mac, now);
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
            self.line_up(addr, Kind::Used);
            self.queued -= queue.len();
            self.next = self.next.min(now + NEIGHBOR_UNUSED);
            counters.neighbors_resolved += 1;
            return queue;
        }
        let changed = claim.mac.is_some_and(|mac| mac != entry.mac);
        let cached = entry.kind == Kind::Used;
        // RFC 4861 section 7.2.5, I: without the override flag, another address does not replace
        // the one we have; a reachable entry becomes stale, and is checked.
        if changed && !claim.overrides {
            if let State::Reachable { .. } = entry.state {
                entry.state = State::Stale;
                self.generation = self.generation.wrapping_add(u32::from(cached));
            }
            return VecDeque::new();
        }
        if let (true, Some(mac)) = (changed, claim.mac) {
            entry.mac = mac;
            self.generation = self.generation.wrapping_add(u32::from(cached));
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
        actions.extend(self.evicted.drain(..).map(|queue| Action::Evicted { queue }));
        let mut next = Instant::FAR;
        let Self { table, lines, queued, .. } = self;
        table.retain(|&addr, entry| {
            if entry.handle_timeout(now, addr, actions) {
                next = next.min(entry.deadline());
                return true;
            }
            if let Some(line) = lines.get_mut(entry.kind as usize) {
                line.len -= 1;
            }
            if let State::Incomplete { .. } = entry.state {
                *queued -= entry.queue.len();
                counters.neighbors_failed += 1;
                let queue = core::mem::take(&mut entry.queue);
                actions.push(Action::Failed { addr, queue });
            } else if let State::Probe { .. } = entry.state {
                counters.neighbors_failed += 1;
            }
            false
        });
        self.next = next;
    }

    // Room.

    fn line(&self, kind: Kind) -> &Line {
        let [asked, heard, used] = &self.lines;
        match kind {
            Kind::Asked => asked,
            Kind::Heard => heard,
            Kind::Used => used,
        }
    }

    fn insert(&mut self, addr: IpAddr, state: State, kind: Kind, mac: Mac, now: Instant) {
        let queue = VecDeque::new();
        let entry = Neighbor { state, kind, place: 0, touched: false, mac, used: now, queue };
        self.table.insert(addr, entry);
        self.join(addr, kind);
    }

    /// An entry becomes one of this kind.
    fn line_up(&mut self, addr: IpAddr, kind: Kind) {
        if let Some(entry) = self.table.get(&addr)
            && let Some(line) = self.lines.get_mut(entry.kind as usize)
        {
            line.len -= 1;
        }
        self.join(addr, kind);
    }

    /// Puts an entry that stands nowhere at the end of a line.
    fn join(&mut self, addr: IpAddr, kind: Kind) {
        let Self { table, lines, places, .. } = self;
        let Some(line) = lines.get_mut(kind as usize) else { return };
        let Some(entry) = table.get_mut(&addr) else { return };
        *places += 1;
        (entry.kind, entry.place, entry.touched) = (kind, *places, false);
        line.len += 1;
        line.queue.push_back((addr, *places));
        // Those who left are taken out now and then: never more of them than there is room for.
        if line.queue.len() > 2 * NEIGHBORS {
            line.queue.retain(|(addr, place)| table.get(addr).is_some_and(|e| e.place == *place));
        }
    }

    /// Makes room for one of this kind; `false`: there is none that may go for it.
    fn make_room(&mut self, now: Instant, counters: &mut Counters, kind: Kind) -> bool {
        let most = match kind {
            Kind::Asked => NEIGHBORS_INCOMPLETE,
            Kind::Heard => NEIGHBORS_HEARD,
            Kind::Used => NEIGHBORS,
        };
        if self.line(kind).len >= most {
            return self.evict(now, counters, kind);
        }
        if self.table.len() < NEIGHBORS {
            return true;
        }
        // Nobody whom we send to goes for one whom we have only heard of.
        self.evict(now, counters, Kind::Heard)
            || (kind == Kind::Asked
                && (self.evict(now, counters, Kind::Used)
                    || self.evict(now, counters, Kind::Asked)))
    }

    /// Evicts one of this kind, the first in line that may go; `false`: there is none.
    fn evict(&mut self, now: Instant, counters: &mut Counters, kind: Kind) -> bool {
        let mut steps = 0;
        while steps < NEIGHBOR_EVICTION_STEPS
            && let Some(line) = self.lines.get_mut(kind as usize)
            && let Some((addr, place)) = line.queue.pop_front()
        {
            let Some(entry) = self.table.get(&addr).filter(|e| e.place == place) else { continue };
            let proven = matches!(entry.state, State::Reachable { until } if now < until);
            if kind == Kind::Used && (proven || entry.touched) {
                // In use: its turn comes again when all others have had theirs.
                line.len -= 1;
                self.join(addr, kind);
                steps += 1;
                continue;
            }
            line.len -= 1;
            let Some(entry) = self.table.remove(&addr) else { return false };
            counters.neighbors_evicted += 1;
            self.queued -= entry.queue.len();
            counters.drop_many(DropReason::NeighborEvicted, entry.queue.len() as u64);
            // In a flood, some learn it by their own timers.
            if !entry.queue.is_empty() && self.evicted.len() < NEIGHBORS_EVICTED_TOLD {
                self.evicted.push(entry.queue);
                self.next = self.next.min(now);
            }
            return true;
        }
        false
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
}
