//! The event queue: a heap of hosts, by the time of their first event, and for each host a heap of
//! the host's sources of events.
//!
//! A source is a path with frames on it, which are for one host, a stack with a timer, a host to run,
//! or the scheduled actions. The frames of a path wait in the path's own queue, so the heaps stay as
//! small as the number of sources that wait for something, and a source whose time changes is
//! moved in place. No two sources are equal, so the order is total.

/// Names a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceId(u32);

/// The rank of a host among the hosts that have something to do at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HostOrder(u64);

impl HostOrder {
    /// The rank by `tie`, then by the host's number.
    pub(crate) fn new(tie: u32, host: u32) -> Self {
        Self(u64::from(tie) << 32 | u64::from(host))
    }

    pub(crate) fn host(self) -> u32 {
        self.0 as u32
    }
}

/// A source, ordered as sources of one time are: first scheduled actions, then host after host, because
/// one host's memory stays in the processor's caches while all its events are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceOrder {
    Actions,
    /// First of a host, frames arrive, by the number of the path, which is unique.
    Path(HostOrder, u32),
    /// Then the stack's timer is due.
    Timer(HostOrder),
    /// Then tasks run.
    Run(HostOrder),
}

impl SourceOrder {
    /// The host of the source; scheduled actions have none.
    pub(crate) fn host(self) -> Option<HostOrder> {
        match self {
            Self::Actions => None,
            Self::Path(host, _) | Self::Timer(host) | Self::Run(host) => Some(host),
        }
    }

    /// The ranks of the host and of the source within the host. A host's number and
    /// tie never are all ones together.
    fn rank(self) -> (u64, u64) {
        match self {
            Self::Actions => (0, 0),
            Self::Path(host, number) => (host.0 + 1, u64::from(number)),
            Self::Timer(host) => (host.0 + 1, u64::MAX - 1),
            Self::Run(host) => (host.0 + 1, u64::MAX),
        }
    }

    /// The host's number, from 1 on; 0: the actions.
    fn number(self) -> usize {
        self.host().map_or(0, |host| host.host() as usize + 1)
    }
}

/// Children of each heap entry: fewer levels than with two, and all children in few cache lines.
const WIDTH: usize = 4;

/// The slot of a source or a host that is not in its heap.
const ABSENT: u32 = u32::MAX;

/// The sources of events, by the time of their first event.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    /// Hosts with something due, by the time of their first event.
    heap: EventHeap,
    /// The events of the actions, then of host after host, by number.
    hosts: Vec<HostEvents>,
    /// The slot of each of `hosts` in the heap.
    slots: Vec<u32>,
    sources: Vec<Source>,
}

/// The events of one host that are due.
#[derive(Debug, Default)]
struct HostEvents {
    rank: u64,
    heap: EventHeap,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    order: SourceOrder,
    /// The slot of the source in its host's heap.
    slot: u32,
}

impl EventQueue {
    /// A new source, with nothing due.
    pub(crate) fn add(&mut self, order: SourceOrder) -> SourceId {
        let number = order.number();
        if self.hosts.len() <= number {
            self.hosts.resize_with(number + 1, HostEvents::default);
            self.slots.resize(number + 1, ABSENT);
        }
        if let Some(host) = self.hosts.get_mut(number) {
            host.rank = order.rank().0;
        }
        self.sources.push(Source { order, slot: ABSENT });
        SourceId(self.sources.len() as u32 - 1)
    }

    /// Sets the time of the source's first event; `None`: the source waits for nothing.
    pub(crate) fn set(&mut self, source: SourceId, at: Option<u64>) {
        let Self { heap, hosts, slots, sources } = self;
        let Some(&Source { order, slot }) = sources.get(source.0 as usize) else { return };
        let number = order.number();
        let Some(host) = hosts.get_mut(number) else { return };
        let before = host.heap.first().map(|entry| entry.at);
        host.heap.set(slot, at, order.rank().1, source.0, |source, slot| {
            if let Some(source) = sources.get_mut(source as usize) {
                source.slot = slot;
            }
        });
        let after = host.heap.first().map(|entry| entry.at);
        if before == after {
            return;
        }
        let slot = slots.get(number).copied().unwrap_or(ABSENT);
        heap.set(slot, after, host.rank, number as u32, |number, slot| {
            if let Some(entry) = slots.get_mut(number as usize) {
                *entry = slot;
            }
        });
    }

    /// The source that is first, and when.
    pub(crate) fn first(&self) -> Option<(u64, SourceOrder, SourceId)> {
        let host = self.hosts.get(self.heap.first()?.id as usize)?;
        let entry = host.heap.first()?;
        let source = self.sources.get(entry.id as usize)?;
        Some((entry.at, source.order, SourceId(entry.id)))
    }

    /// The time of the host that is second.
    pub(crate) fn second(&self) -> Option<u64> {
        self.heap.entries.get(1..)?.iter().take(WIDTH).map(|entry| entry.at).min()
    }

    /// The time of the first source of the same host, or of the first action.
    pub(crate) fn first_of(&self, order: SourceOrder) -> Option<u64> {
        self.hosts.get(order.number())?.heap.first().map(|entry| entry.at)
    }
}

/// A heap whose least entry is first. A callback reports where entries move, so that their owners know the slots.
#[derive(Debug, Default)]
struct EventHeap {
    entries: Vec<HeapEntry>,
}

#[derive(Clone, Copy, Debug)]
struct HeapEntry {
    at: u64,
    rank: u64,
    id: u32,
}

impl HeapEntry {
    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        (self.at, self.rank) < (other.at, other.rank)
    }
}

impl EventHeap {
    #[inline]
    fn first(&self) -> Option<&HeapEntry> {
        self.entries.first()
    }

    /// Adds, moves or removes the entry at `slot`; `note` is called with an entry's id and new slot.
    #[inline]
    fn set(
        &mut self,
        slot: u32,
        at: Option<u64>,
        rank: u64,
        id: u32,
        mut note: impl FnMut(u32, u32),
    ) {
        match (at, self.entries.get_mut(slot as usize)) {
            (Some(at), Some(entry)) => {
                let earlier = at < entry.at;
                entry.at = at;
                if earlier {
                    self.rise(slot as usize, &mut note);
                } else {
                    self.sink(slot as usize, &mut note);
                }
            }
            (Some(at), None) => {
                self.entries.push(HeapEntry { at, rank, id });
                self.rise(self.entries.len() - 1, &mut note);
            }
            (None, Some(_)) => {
                let slot = slot as usize;
                note(self.entries.swap_remove(slot).id, ABSENT);
                if slot < self.entries.len() {
                    let slot = self.rise(slot, &mut note);
                    self.sink(slot, &mut note);
                }
            }
            (None, None) => {}
        }
    }

    /// Moves the entry at `slot` up as far as it is earlier; returns where it is.
    fn rise(&mut self, mut slot: usize, note: &mut impl FnMut(u32, u32)) -> usize {
        let Some(&ours) = self.entries.get(slot) else { return slot };
        while slot > 0 {
            let parent = (slot - 1) / WIDTH;
            match self.entries.get(parent) {
                Some(&above) if ours.is_before(&above) => self.put(slot, above, note),
                _ => break,
            }
            slot = parent;
        }
        self.put(slot, ours, note);
        slot
    }

    /// Moves the entry at `slot` down as far as it is later.
    fn sink(&mut self, mut slot: usize, note: &mut impl FnMut(u32, u32)) {
        let Some(&ours) = self.entries.get(slot) else { return };
        loop {
            let first = slot * WIDTH + 1;
            let end = self.entries.len().min(first + WIDTH);
            let Some([head, rest @ ..]) = self.entries.get(first..end) else { break };
            let (mut least, mut child) = (head, first);
            for (entry, at) in rest.iter().zip(first + 1..) {
                if entry.is_before(least) {
                    (least, child) = (entry, at);
                }
            }
            let least = *least;
            if !least.is_before(&ours) {
                break;
            }
            self.put(slot, least, note);
            slot = child;
        }
        self.put(slot, ours, note);
    }

    fn put(&mut self, slot: usize, entry: HeapEntry, note: &mut impl FnMut(u32, u32)) {
        if let Some(moved) = self.entries.get_mut(slot) {
            *moved = entry;
            note(entry.id, slot as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Sources of each host: enough for a heap of four levels, in which the entry that takes the slot of a
    /// removed one may have to rise.
    const SOURCES: usize = 40;
    const ALL: usize = 4 * SOURCES;

    proptest! {
        #[test]
        fn sources_come_in_the_order_of_time_then_host_then_class_then_path(
            changes in proptest::collection::vec(
                (0..ALL, proptest::option::weighted(0.8, 0u64..20)), 0..800)
        ) {
            let mut event_queue = EventQueue::default();
            let order = |n: usize| {
                let number = (n / SOURCES) as u32;
                let host = HostOrder::new(7 - number, number);
                match n % SOURCES {
                    0 if n == 0 => SourceOrder::Actions,
                    1 => SourceOrder::Timer(host),
                    2 => SourceOrder::Run(host),
                    path => SourceOrder::Path(host, path as u32),
                }
            };
            // Actions, then by host: arrivals by path, the timer, the run.
            let key = |n: usize| match order(n) {
                SourceOrder::Actions => (0, 0, 0),
                SourceOrder::Path(host, path) => (host.0 + 1, 0, path),
                SourceOrder::Timer(host) => (host.0 + 1, 1, 0),
                SourceOrder::Run(host) => (host.0 + 1, 2, 0),
            };
            let ids: Vec<SourceId> = (0..ALL).map(|n| event_queue.add(order(n))).collect();
            let mut times = [None; ALL];
            let mut model: BTreeSet<(u64, (u64, u8, u32), usize)> = BTreeSet::new();
            for (n, at) in changes {
                if let Some(old) = times[n] {
                    prop_assert!(model.remove(&(old, key(n), n)));
                }
                times[n] = at;
                event_queue.set(ids[n], at);
                model.extend(at.map(|at| (at, key(n), n)));
                let one = model.first().copied();
                let host = |n: usize| order(n).host();
                let two = model.iter().find(|(.., n)| one.is_some_and(|one| host(one.2) != host(*n)));
                let own = model.iter().find(|(.., other)| host(*other) == host(n));
                prop_assert_eq!(event_queue.first_of(order(n)), own.map(|(at, ..)| *at));
                let first = event_queue.first().map(|(at, order, _)| (at, order));
                prop_assert_eq!(first, one.map(|(at, _, n)| (at, order(n))));
                prop_assert_eq!(event_queue.second(), two.map(|(at, ..)| *at));
            }
            while let Some((at, which, id)) = event_queue.first() {
                let expected = model.pop_first().map(|(at, _, n)| (at, order(n)));
                prop_assert_eq!(expected, Some((at, which)));
                event_queue.set(id, None);
            }
            prop_assert!(model.is_empty());
        }
    }
}
