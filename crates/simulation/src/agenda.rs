//! What is due when: a heap of sources of events, each with the time of its first event.
//!
//! A source is a path with frames on it, a stack with a timer, a host to run, or the scheduled
//! actions. The frames of a path wait in the path's own queue, so the heap stays as small as the
//! number of sources that wait for something, and a source that changes its mind is moved in place.
//! No two sources are equal, so the order is total.

/// Names a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceId(u32);

/// The order of sources at one time; the number must be unique in its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// Scheduled actions come first.
    Actions,
    /// Then frames arrive, by the number of the path.
    Path(u64),
    /// Then stacks' timers, by host.
    Timer(u64),
    /// Then tasks run, by host.
    Run(u64),
}

/// Children of each entry: fewer levels than with two, and all of them in one cache line.
const WIDTH: usize = 4;

/// Not in the heap.
const ABSENT: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: Vec<Entry>,
    sources: Vec<Source>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    order: Order,
    source: u32,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    order: Order,
    /// Its place in the heap.
    place: u32,
}

impl Entry {
    fn key(&self) -> (u64, Order) {
        (self.at, self.order)
    }
}

impl Agenda {
    /// A new source, with nothing due.
    pub(crate) fn add(&mut self, order: Order) -> SourceId {
        self.sources.push(Source { order, place: ABSENT });
        SourceId(self.sources.len() as u32 - 1)
    }

    /// Sets the time of the source's first event; `None`: it waits for nothing.
    pub(crate) fn set(&mut self, source: SourceId, at: Option<u64>) {
        let Some(&Source { order, place }) = self.sources.get(source.0 as usize) else { return };
        match (at, self.heap.get_mut(place as usize)) {
            (Some(at), Some(entry)) => {
                let earlier = at < entry.at;
                entry.at = at;
                if earlier { self.rise(place as usize) } else { self.sink(place as usize) }
            }
            (Some(at), None) => {
                self.heap.push(Entry { at, order, source: source.0 });
                self.rise(self.heap.len() - 1);
            }
            (None, Some(_)) => self.remove(place as usize),
            (None, None) => {}
        }
    }

    /// The time of the source's first event.
    #[cfg(test)]
    fn get(&self, source: SourceId) -> Option<u64> {
        let place = self.sources.get(source.0 as usize)?.place;
        Some(self.heap.get(place as usize)?.at)
    }

    /// The source that is first, and when.
    pub(crate) fn first(&self) -> Option<(u64, Order, SourceId)> {
        self.heap.first().map(|entry| (entry.at, entry.order, SourceId(entry.source)))
    }

    /// The time of the source that is second.
    pub(crate) fn second(&self) -> Option<u64> {
        self.heap.get(1..)?.iter().take(WIDTH).map(Entry::key).min().map(|(at, _)| at)
    }

    fn remove(&mut self, place: usize) {
        let gone = self.heap.swap_remove(place);
        self.note(gone.source, ABSENT);
        if place < self.heap.len() {
            self.rise(place);
            self.sink(place);
        }
    }

    /// Moves the entry at `place` up as far as it is earlier, and notes where it is.
    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / WIDTH;
            let (Some(ours), Some(above)) = (self.heap.get(place), self.heap.get(parent)) else {
                return;
            };
            if above.key() < ours.key() {
                break;
            }
            self.exchange(place, parent);
            place = parent;
        }
        self.note_at(place);
    }

    /// Moves the entry at `place` down as far as it is later, and notes where it is.
    fn sink(&mut self, mut place: usize) {
        loop {
            let Some(ours) = self.heap.get(place) else { return };
            let first = place * WIDTH + 1;
            let children = self.heap.iter().enumerate().skip(first).take(WIDTH);
            let least = children.min_by_key(|(_, child)| child.key());
            match least {
                Some((child, entry)) if entry.key() < ours.key() => {
                    self.exchange(place, child);
                    place = child;
                }
                _ => break,
            }
        }
        self.note_at(place);
    }

    fn exchange(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note_at(a);
        self.note_at(b);
    }

    fn note_at(&mut self, place: usize) {
        if let Some(entry) = self.heap.get(place) {
            self.note(entry.source, place as u32);
        }
    }

    fn note(&mut self, source: u32, place: u32) {
        if let Some(source) = self.sources.get_mut(source as usize) {
            source.place = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sources_come_in_the_order_of_time_then_class_then_number(
            changes in proptest::collection::vec((0usize..40, proptest::option::of(0u64..20)), 0..400)
        ) {
            let mut agenda = Agenda::default();
            let order = |n: usize| match n % 4 {
                0 if n == 0 => Order::Actions,
                0 | 1 => Order::Path(n as u64),
                2 => Order::Timer(n as u64),
                _ => Order::Run(n as u64),
            };
            let ids: Vec<SourceId> = (0..40).map(|n| agenda.add(order(n))).collect();
            let mut model: BTreeSet<(u64, Order)> = BTreeSet::new();
            for (n, at) in changes {
                if let Some(old) = agenda.get(ids[n]) {
                    prop_assert!(model.remove(&(old, order(n))));
                }
                agenda.set(ids[n], at);
                model.extend(at.map(|at| (at, order(n))));
                let mut first = model.iter();
                let (one, two) = (first.next().copied(), first.next().copied());
                prop_assert_eq!(agenda.first().map(|(at, order, _)| (at, order)), one);
                prop_assert_eq!(agenda.second(), two.map(|(at, _)| at));
            }
            while let Some((at, order, id)) = agenda.first() {
                prop_assert_eq!(model.pop_first(), Some((at, order)));
                agenda.set(id, None);
            }
            prop_assert!(model.is_empty());
        }
    }
}
