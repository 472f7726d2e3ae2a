//! The neighbours of a link: the station of each address, and whether it still answers.
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
//! ARP and neighbour discovery share this state machine (RFC 4861 section 7.3). Entries are of three
//! kinds, and each kind has room of its own, so that a flood of made-up addresses evicts only entries of
//! its own kind:
//!
//! ```text
//!   Unresolved  packets wait for an answer                     at most NEIGHBORS_INCOMPLETE
//!   Passive     resolved us, no packet was sent there          at most NEIGHBORS_PASSIVE
//!   Used        packets go there: hops may be cached           the rest of NEIGHBORS
//! ```
//!
//! Each kind has a queue: the next entry to evict is found without a search. An entry that packets go
//! to (`Used`), and that answered within [`NEIGHBOR_REACHABLE`], is never evicted for another.

mod discovery;

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::random::KeyedHash;
use hashbrown::HashMap;
use pagewire_mem::link::headers::{self, Transport};
use pagewire_mem::{Instant, PacketBuf};
use pagewire_tcp::Flags;

use crate::counters::{Counters, DropReason};
use crate::limits::{
    NEIGHBOR_DELAY, NEIGHBOR_EVICTION_STEPS, NEIGHBOR_QUEUE_PACKETS, NEIGHBOR_QUEUE_TOTAL,
    NEIGHBOR_REACHABLE, NEIGHBOR_REQUESTS, NEIGHBOR_RETRANSMIT, NEIGHBOR_UNUSED, NEIGHBORS,
    NEIGHBORS_EVICTED_REPORTED, NEIGHBORS_INCOMPLETE, NEIGHBORS_PASSIVE,
};
use crate::net::wire::ethernet::Mac;
use crate::shards::SharedNeighbors;

/// An IP packet that waits for a neighbour's station.
#[derive(Debug)]
pub(crate) struct QueuedPacket {
    pub(crate) packet: PacketBuf,
    /// The packet is not forwarded. Its source may still be any address on a transparent link.
    pub(crate) ours: bool,
}

impl QueuedPacket {
    /// Whether the packet is our attempt to connect.
    fn is_attempt(&self) -> bool {
        let head = self.packet.head();
        let flags = headers::parse_ip(head)
            .ok()
            .filter(|layout| layout.transport == Transport::Tcp)
            .and_then(|layout| layout.tcp_flags(head));
        let flags = flags.map_or(Flags::empty(), |flags| Flags::from_bits_truncate(flags.into()));
        self.ours && flags & (Flags::SYN | Flags::ACK) == Flags::SYN
    }
}

pub(crate) struct Neighbors {
    table: HashMap<IpAddr, Neighbor, KeyedHash>,
    /// The order of eviction, one queue for each kind.
    queues: [EvictionQueue; 3],
    /// Number of positions given so far: no two are equal.
    positions: u64,
    /// Packets waiting, in all entries.
    queued: usize,
    /// Packets of evicted entries, until the failure is reported to their senders.
    evicted: Vec<VecDeque<QueuedPacket>>,
    /// No deadline lies before this moment.
    next: Instant,
    /// Changes whenever an earlier [`lookup`](Self::lookup) may be wrong: a `Used` station changed.
    generation: u32,
    /// Tells other shards which addresses are in the table, where the link answers for other hosts.
    shared: Option<SharedNeighbors>,
}

/// Entries of one kind in the order in which they are evicted.
#[derive(Default)]
struct EvictionQueue {
    /// Addresses with positions. An entry that has another position by now has left the queue.
    queue: VecDeque<(IpAddr, u64)>,
    /// Number of entries that are still in the queue.
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NeighborKind {
    Unresolved,
    Passive,
    Used,
}

struct Neighbor {
    state: State,
    kind: NeighborKind,
    /// The entry's position in the queue of its kind.
    position: u64,
    /// Whether the entry was looked up since it got that position.
    touched: bool,
    /// The station; meaningless while incomplete.
    mac: Mac,
    /// When the entry was learned, or the send path last looked it up.
    used: Instant,
    /// Packets that wait while incomplete.
    queue: VecDeque<QueuedPacket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Incomplete { requests: u8, at: Instant },
    Reachable { until: Instant },
    Stale,
    Delay { until: Instant },
    Probe { requests: u8, at: Instant },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeighborLookup {
    /// Send to `mac`. Look up again after `until`.
    Known { mac: Mac, until: Instant },
    /// The station is not known: [`Neighbors::enqueue`] the packet.
    Unknown,
}

/// The claim of a received packet about a neighbour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NeighborClaim {
    /// The neighbour's station; `None` in an advertisement without the option.
    pub(crate) mac: Option<Mac>,
    /// The packet answers a request of ours: proof of two-way reachability.
    pub(crate) solicited: bool,
    /// The claim replaces an earlier station.
    pub(crate) overrides: bool,
    /// An entry may be made: the neighbour is about to send to us.
    pub(crate) create: bool,
}

impl NeighborClaim {
    /// Both claims in one, this one being the newer.
    pub(crate) fn after(self, older: &Self) -> Self {
        let is_other = self.mac.is_some_and(|mac| older.mac.is_some_and(|older| older != mac));
        // RFC 4861 section 7.2.5, I: another station without the override flag puts the one that is known in doubt.
        if is_other && !self.overrides {
            return Self { solicited: false, create: self.create || older.create, ..*older };
        }
        Self {
            mac: self.mac.or(older.mac),
            solicited: self.solicited || (older.solicited && !is_other),
            overrides: self.overrides || older.overrides,
            create: self.create || older.create,
        }
    }
}

/// The action that is due after a timeout.
#[derive(Debug)]
pub(crate) enum NeighborAction {
    /// Request the station of the address, from all stations or from the one that had it.
    Request { addr: IpAddr, station: Option<Mac> },
    /// No station answered: these packets are lost.
    Failed { addr: IpAddr, queue: VecDeque<QueuedPacket> },
    /// The entry was evicted: these packets are lost, and were counted.
    Evicted { queue: VecDeque<QueuedPacket> },
}

impl Neighbors {
    pub(crate) fn new(hash: KeyedHash) -> Self {
        Self {
            table: HashMap::with_hasher(hash),
            queues: Default::default(),
            positions: 0,
            queued: 0,
            evicted: Vec::new(),
            next: Instant::FAR,
            generation: 0,
            shared: None,
        }
    }

    /// Shares with other shards which neighbours are known. There are none yet.
    pub(crate) fn share(&mut self, shared: SharedNeighbors) {
        self.shared = Some(shared);
    }

    // Getters.

    /// Lookups given under another generation are void.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// When the next timeout is due; [`Instant::FAR`]: none is.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Instant {
        self.next
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    // The send path.

    /// The station of `addr`. Use of a stale entry starts the delay before a probe.
    pub(crate) fn lookup(&mut self, now: Instant, addr: IpAddr) -> NeighborLookup {
        let Some(entry) = self.table.get_mut(&addr) else { return NeighborLookup::Unknown };
        (entry.used, entry.touched) = (now, true);
        let until = match entry.state {
            State::Incomplete { .. } => return NeighborLookup::Unknown,
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
        if kind == NeighborKind::Passive {
            self.change_kind(addr, NeighborKind::Used);
        }
        NeighborLookup::Known { mac, until }
    }

    /// Keeps a packet until the station of `addr` is known; `true`: send a request now.
    pub(crate) fn enqueue(
        &mut self,
        now: Instant,
        addr: IpAddr,
        packet: QueuedPacket,
        counters: &mut Counters,
    ) -> bool {
        let fresh = !self.table.contains_key(&addr);
        if fresh {
            if !self.make_room(now, counters, NeighborKind::Unresolved) {
                counters.drop_one(DropReason::NeighborTableFull);
                return false;
            }
            let at = now + NEIGHBOR_RETRANSMIT;
            let state = State::Incomplete { requests: 1, at };
            self.insert(addr, state, NeighborKind::Unresolved, Mac::ZERO, now);
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
                // Packets for other addresses take the room: they came first.
                return fresh;
            }
            self.queued -= 1;
        }
        entry.queue.push_back(packet);
        self.queued += 1;
        fresh
    }

    /// Whether a forwarded packet may wait for `addr`: half of the room is for our own packets.
    pub(crate) fn has_room_for_forwarded(&self, addr: IpAddr) -> bool {
        let room = self.queued < NEIGHBOR_QUEUE_TOTAL / 2;
        match self.table.get(&addr) {
            Some(entry) => room && entry.queue.len() < NEIGHBOR_QUEUE_PACKETS / 2,
            None => {
                room && self.eviction_queue(NeighborKind::Unresolved).len < NEIGHBORS_INCOMPLETE / 2
            }
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

    /// Learns what a packet claims; returns the packets that can be sent now.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        addr: IpAddr,
        claim: NeighborClaim,
        counters: &mut Counters,
    ) -> VecDeque<QueuedPacket> {
        let Some(entry) = self.table.get_mut(&addr) else {
            // Without room for an entry, the next packet to the address causes a request.
            if let (true, Some(mac)) = (claim.create, claim.mac)
                && self.make_room(now, counters, NeighborKind::Passive)
            {
                self.insert(addr, State::Stale, NeighborKind::Passive, mac, now);
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
            self.change_kind(addr, NeighborKind::Used);
            self.queued -= queue.len();
            self.next = self.next.min(now + NEIGHBOR_UNUSED);
            counters.neighbors_resolved += 1;
            return queue;
        }
        let changed = claim.mac.is_some_and(|mac| mac != entry.mac);
        let cached = entry.kind == NeighborKind::Used;
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

    pub(crate) fn knows(&self, addr: IpAddr) -> bool {
        self.table.contains_key(&addr)
    }

    /// Whether this shard or another knows the neighbour.
    pub(crate) fn is_known_to_host(&self, addr: IpAddr) -> bool {
        self.knows(addr) || self.shared.as_ref().is_some_and(|shared| shared.contains(addr))
    }

    /// Whether packets wait that are no attempts to connect.
    pub(crate) fn holds_data(&self) -> bool {
        let held = |entry: &Neighbor| entry.queue.iter().any(|waiting| !waiting.is_attempt());
        self.queued > 0 && self.table.values().any(held)
    }

    /// Whether we are waiting for an answer from `addr`.
    pub(crate) fn is_asked(&self, addr: IpAddr) -> bool {
        self.table.get(&addr).is_some_and(|entry| {
            matches!(entry.state, State::Incomplete { .. } | State::Probe { .. })
        })
    }

    // Time.

    /// Appends what is due.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        counters: &mut Counters,
        actions: &mut Vec<NeighborAction>,
    ) {
        if now < self.next {
            return;
        }
        actions.extend(self.evicted.drain(..).map(|queue| NeighborAction::Evicted { queue }));
        let mut next = Instant::FAR;
        let Self { table, queues, queued, shared, .. } = self;
        table.retain(|&addr, entry| {
            if entry.handle_timeout(now, addr, actions) {
                next = next.min(entry.deadline());
                return true;
            }
            if let Some(queue) = queues.get_mut(entry.kind as usize) {
                queue.len -= 1;
            }
            if let Some(shared) = shared {
                shared.remove(addr);
            }
            if let State::Incomplete { .. } = entry.state {
                *queued -= entry.queue.len();
                counters.neighbors_failed += 1;
                let queue = core::mem::take(&mut entry.queue);
                actions.push(NeighborAction::Failed { addr, queue });
            } else if let State::Probe { .. } = entry.state {
                counters.neighbors_failed += 1;
            }
            false
        });
        self.next = next;
    }

    // Room.

    fn eviction_queue(&self, kind: NeighborKind) -> &EvictionQueue {
        let [asked, heard, used] = &self.queues;
        match kind {
            NeighborKind::Unresolved => asked,
            NeighborKind::Passive => heard,
            NeighborKind::Used => used,
        }
    }

    fn insert(&mut self, addr: IpAddr, state: State, kind: NeighborKind, mac: Mac, now: Instant) {
        let queue = VecDeque::new();
        let entry = Neighbor { state, kind, position: 0, touched: false, mac, used: now, queue };
        self.table.insert(addr, entry);
        if let Some(shared) = &self.shared {
            shared.add(addr);
        }
        self.append(addr, kind);
    }

    /// Moves an entry to another kind.
    fn change_kind(&mut self, addr: IpAddr, kind: NeighborKind) {
        if let Some(entry) = self.table.get(&addr)
            && let Some(queue) = self.queues.get_mut(entry.kind as usize)
        {
            queue.len -= 1;
        }
        self.append(addr, kind);
    }

    /// Puts an entry that is in no queue at the end of one.
    fn append(&mut self, addr: IpAddr, kind: NeighborKind) {
        let Self { table, queues, positions, .. } = self;
        let Some(queue) = queues.get_mut(kind as usize) else { return };
        let Some(entry) = table.get_mut(&addr) else { return };
        *positions += 1;
        (entry.kind, entry.position, entry.touched) = (kind, *positions, false);
        queue.len += 1;
        queue.queue.push_back((addr, *positions));
        // Now and then, stale positions are taken out: never more of them than there are neighbours.
        if queue.queue.len() > 2 * NEIGHBORS {
            queue.queue.retain(|(addr, position)| {
                table.get(addr).is_some_and(|e| e.position == *position)
            });
        }
    }

    /// Makes room for an entry of this kind; `false`: none may be evicted for it.
    fn make_room(&mut self, now: Instant, counters: &mut Counters, kind: NeighborKind) -> bool {
        let most = match kind {
            NeighborKind::Unresolved => NEIGHBORS_INCOMPLETE,
            NeighborKind::Passive => NEIGHBORS_PASSIVE,
            NeighborKind::Used => NEIGHBORS,
        };
        if self.eviction_queue(kind).len >= most {
            return self.evict(now, counters, kind);
        }
        if self.table.len() < NEIGHBORS {
            return true;
        }
        // A passive entry evicts no used one.
        self.evict(now, counters, NeighborKind::Passive)
            || (kind == NeighborKind::Unresolved
                && (self.evict(now, counters, NeighborKind::Used)
                    || self.evict(now, counters, NeighborKind::Unresolved)))
    }

    /// Evicts the first entry of this kind that may be evicted; `false`: there is none.
    fn evict(&mut self, now: Instant, counters: &mut Counters, kind: NeighborKind) -> bool {
        let mut steps = 0;
        while steps < NEIGHBOR_EVICTION_STEPS
            && let Some(queue) = self.queues.get_mut(kind as usize)
            && let Some((addr, position)) = queue.queue.pop_front()
        {
            let Some(entry) = self.table.get(&addr).filter(|e| e.position == position) else {
                continue;
            };
            let proven = matches!(entry.state, State::Reachable { until } if now < until);
            if kind == NeighborKind::Used && (proven || entry.touched) {
                // In use: back to the end of the queue.
                queue.len -= 1;
                self.append(addr, kind);
                steps += 1;
                continue;
            }
            queue.len -= 1;
            let Some(entry) = self.table.remove(&addr) else { return false };
            if let Some(shared) = &self.shared {
                shared.remove(addr);
            }
            counters.neighbors_evicted += 1;
            self.queued -= entry.queue.len();
            counters.drop_many(DropReason::NeighborEvicted, entry.queue.len() as u64);
            // In a flood, some senders learn it by their own timers.
            if !entry.queue.is_empty() && self.evicted.len() < NEIGHBORS_EVICTED_REPORTED {
                self.evicted.push(entry.queue);
                self.next = self.next.min(now);
            }
            return true;
        }
        false
    }
}

impl Neighbor {
    /// Handles a timeout if it is due; `false`: remove the entry.
    fn handle_timeout(
        &mut self,
        now: Instant,
        addr: IpAddr,
        actions: &mut Vec<NeighborAction>,
    ) -> bool {
        match &mut self.state {
            State::Incomplete { requests, at } | State::Probe { requests, at } if now >= *at => {
                if *requests >= NEIGHBOR_REQUESTS {
                    return false;
                }
                *requests += 1;
                *at = now + NEIGHBOR_RETRANSMIT;
            }
            State::Delay { until } if now >= *until => {
                self.state = State::Probe { requests: 1, at: now + NEIGHBOR_RETRANSMIT };
            }
            State::Reachable { .. } | State::Stale => return now < self.used + NEIGHBOR_UNUSED,
            State::Incomplete { .. } | State::Delay { .. } | State::Probe { .. } => return true,
        }
        let is_known = !matches!(self.state, State::Incomplete { .. });
        actions.push(NeighborAction::Request { addr, station: is_known.then_some(self.mac) });
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
