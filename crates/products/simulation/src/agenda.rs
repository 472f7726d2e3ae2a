//! What is due when: a heap of hosts, by the time of their first event, and for each host a heap of
//! its sources of events.
//!
//! A source is a path with frames on it, which are for one host, a stack with a timer, a host to run,
//! or the scheduled actions. The frames of a path wait in the path's own queue, so the heaps stay as
//! small as the number of sources that wait for something, and a source that changes its mind is
//! moved in place. No two sources are equal, so the order is total.

/// Names a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceId(u32);

/// A host's place among those that have something to do at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HostOrder(u64);

impl HostOrder {
    /// By `tie`, then by the host's number.
    pub(crate) fn new(tie: u32, host: u32) -> Self {
        Self(u64::from(tie) << 32 | u64::from(host))
    }

    /// The host's number.
    pub(crate) fn host(self) -> u32 {
        self.0 as u32
    }
}

/// The order of sources at one time: first scheduled actions, then host after host, so that what
/// belongs to one of many is touched at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Scheduled actions.
    Actions,
    /// Of a host, first frames arrive, by the number of the path, which is unique.
    Path(HostOrder, u32),
    /// Then the stack's timer is due.
    Timer(HostOrder),
    /// Then tasks run.
    Run(HostOrder),
}

impl Order {
    /// The host, if it is one's.
    pub(crate) fn host(self) -> Option<HostOrder> {
        match self {
            Self::Actions => None,
            Self::Path(host, _) | Self::Timer(host) | Self::Run(host) => Some(host),
        }
    }

    /// The host's place and the one within the host, as numbers in this order. A host's number and
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

/// Children of each entry: fewer levels than with two, and all of them in few cache lines.
const WIDTH: usize = 4;

/// Not in the heap.
const ABSENT: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct Agenda {
    /// Hosts with something due, by the time of the first.
    heap: Heap,
    /// By number: the actions, then host after host.
    hosts: Vec<Host>,
    /// The place of each of them in the heap.
    places: Vec<u32>,
    sources: Vec<Source>,
}

/// What is due of one host.
#[derive(Debug, Default)]
struct Host {
    rank: u64,
    heap: Heap,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    order: Order,
    /// Its place in its host's heap.
    place: u32,
}

impl Agenda {
    /// A new source, with nothing due.
    pub(crate) fn add(&mut self, order: Order) -> SourceId {
        let number = order.number();
        if self.hosts.len() <= number {
            self.hosts.resize_with(number + 1, Host::default);
            self.places.resize(number + 1, ABSENT);
        }
        if let Some(host) = self.hosts.get_mut(number) {
            host.rank = order.rank().0;
        }
        self.sources.push(Source { order, place: ABSENT });
        SourceId(self.sources.len() as u32 - 1)
    }

    /// Sets the time of the source's first event; `None`: it waits for nothing.
    pub(crate) fn set(&mut self, source: SourceId, at: Option<u64>) {
        let Self { heap, hosts, places, sources } = self;
        let Some(&Source { order, place }) = sources.get(source.0 as usize) else { return };
        let number = order.number();
        let Some(host) = hosts.get_mut(number) else { return };
        let before = host.heap.first().map(|entry| entry.at);
        host.heap.set(place, at, order.rank().1, source.0, |source, place| {
            if let Some(source) = sources.get_mut(source as usize) {
                source.place = place;
            }
        });
        let after = host.heap.first().map(|entry| entry.at);
        if before == after {
            return;
        }
        let place = places.get(number).copied().unwrap_or(ABSENT);
        heap.set(place, after, host.rank, number as u32, |number, place| {
            if let Some(slot) = places.get_mut(number as usize) {
                *slot = place;
            }
        });
    }

    /// The source that is first, and when.
    pub(crate) fn first(&self) -> Option<(u64, Order, SourceId)> {
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
    pub(crate) fn first_of(&self, order: Order) -> Option<u64> {
        self.hosts.get(order.number())?.heap.first().map(|entry| entry.at)
    }
}

/// The least entry is first; those who own entries are told where these are.
#[derive(Debug, Default)]
struct Heap {
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    /// The order at one time.
    rank: u64,
    id: u32,
}

impl Entry {
    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        (self.at, self.rank) < (other.at, other.rank)
    }
}

impl Heap {
    #[inline]
    fn first(&self) -> Option<&Entry> {
        self.entries.first()
    }

    /// Adds, moves or removes the entry at `place`; `note` hears where entries are now.
    #[inline]
    fn set(
        &mut self,
        place: u32,
        at: Option<u64>,
        rank: u64,
        id: u32,
        mut note: impl FnMut(u32, u32),
    ) {
        match (at, self.entries.get_mut(place as usize)) {
            (Some(at), Some(entry)) => {
                let earlier = at < entry.at;
                entry.at = at;
                if earlier {
                    self.rise(place as usize, &mut note);
                } else {
                    self.sink(place as usize, &mut note);
                }
            }
            (Some(at), None) => {
                self.entries.push(Entry { at, rank, id });
                self.rise(self.entries.len() - 1, &mut note);
            }
            (None, Some(_)) => {
                let place = place as usize;
                note(self.entries.swap_remove(place).id, ABSENT);
                if place < self.entries.len() {
                    let place = self.rise(place, &mut note);
                    self.sink(place, &mut note);
                }
            }
            (None, None) => {}
        }
    }

    /// Moves the entry at `place` up as far as it is earlier; returns where it is.
    fn rise(&mut self, mut place: usize, note: &mut impl FnMut(u32, u32)) -> usize {
        let Some(&ours) = self.entries.get(place) else { return place };
        while place > 0 {
            let parent = (place - 1) / WIDTH;
            match self.entries.get(parent) {
                Some(&above) if ours.is_before(&above) => self.put(place, above, note),
                _ => break,
            }
            place = parent;
        }
        self.put(place, ours, note);
        place
    }

    /// Moves the entry at `place` down as far as it is later.
    fn sink(&mut self, mut place: usize, note: &mut impl FnMut(u32, u32)) {
        let Some(&ours) = self.entries.get(place) else { return };
        loop {
            let first = place * WIDTH + 1;
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
            self.put(place, least, note);
            place = child;
        }
        self.put(place, ours, note);
    }

    fn put(&mut self, place: usize, entry: Entry, note: &mut impl FnMut(u32, u32)) {
        if let Some(slot) = self.entries.get_mut(place) {
            *slot = entry;
            note(entry.id, place as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Of each host: enough for a heap of four levels, in which what takes the place of a source that is
    /// removed may have to rise.
    const SOURCES: usize = 40;
    const ALL: usize = 4 * SOURCES;

    proptest! {
        #[test]
        fn sources_come_in_the_order_of_time_then_host_then_class_then_path(
            changes in proptest::collection::vec(
                (0..ALL, proptest::option::weighted(0.8, 0u64..20)), 0..800)
        ) {
            let mut agenda = Agenda::default();
            let order = |n: usize| {
                let number = (n / SOURCES) as u32;
                let host = HostOrder::new(7 - number, number);
                match n % SOURCES {
                    0 if n == 0 => Order::Actions,
                    1 => Order::Timer(host),
                    2 => Order::Run(host),
                    path => Order::Path(host, path as u32),
                }
            };
            // Actions, then by host: arrivals by path, the timer, the run.
            let key = |n: usize| match order(n) {
                Order::Actions => (0, 0, 0),
                Order::Path(host, path) => (host.0 + 1, 0, path),
                Order::Timer(host) => (host.0 + 1, 1, 0),
                Order::Run(host) => (host.0 + 1, 2, 0),
            };
            let ids: Vec<SourceId> = (0..ALL).map(|n| agenda.add(order(n))).collect();
            let mut times = [None; ALL];
            let mut model: BTreeSet<(u64, (u64, u8, u32), usize)> = BTreeSet::new();
            for (n, at) in changes {
                if let Some(old) = times[n] {
                    prop_assert!(model.remove(&(old, key(n), n)));
                }
                times[n] = at;
                agenda.set(ids[n], at);
                model.extend(at.map(|at| (at, key(n), n)));
                let one = model.first().copied();
                let host = |n: usize| order(n).host();
                let two = model.iter().find(|(.., n)| one.is_some_and(|one| host(one.2) != host(*n)));
                let own = model.iter().find(|(.., other)| host(*other) == host(n));
                prop_assert_eq!(agenda.first_of(order(n)), own.map(|(at, ..)| *at));
                let first = agenda.first().map(|(at, order, _)| (at, order));
                prop_assert_eq!(first, one.map(|(at, _, n)| (at, order(n))));
                prop_assert_eq!(agenda.second(), two.map(|(at, ..)| *at));
            }
            while let Some((at, which, id)) = agenda.first() {
                let expected = model.pop_first().map(|(at, _, n)| (at, order(n)));
                prop_assert_eq!(expected, Some((at, which)));
                agenda.set(id, None);
            }
            prop_assert!(model.is_empty());
        }
    }
}
