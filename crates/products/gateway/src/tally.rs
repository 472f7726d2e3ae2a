//! [`Tally`]: how much a guest has of what has a limit, counted over the relays of all its cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A thing that has a limit for the guest as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Connections, dials included.
    Connections,
    Descriptors,
    /// Sockets for datagrams.
    Endpoints,
    /// Destinations of datagrams.
    Peers,
    /// Clients of published UDP ports without an answer.
    NewClients,
    /// Identifiers of echo requests.
    Echoes,
    /// Queries on their way to resolvers.
    Queries,
    /// TCP connections to the resolver.
    DnsClients,
    /// Questions to a policy.
    Questions,
}

const ITEMS: usize = Item::Questions as usize + 1;

/// The numbers of one shard, which that shard alone writes, in a cache line or two of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot {
    items: [AtomicUsize; ITEMS],
    /// Connections on their way to the shard from others.
    arriving: AtomicUsize,
}

/// One shard's access to the numbers of all. With a single shard nothing is written down.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    slots: Arc<[Slot]>,
    index: usize,
}

impl Tally {
    /// The access of each shard.
    pub(crate) fn of_shards(count: usize) -> Vec<Self> {
        let slots: Arc<[Slot]> = (0..count).map(|_| Slot::default()).collect();
        (0..count).map(|index| Self { slots: Arc::clone(&slots), index }).collect()
    }

    /// The access of a single shard.
    pub(crate) fn lone() -> Self {
        Self { slots: [Slot::default()].into(), index: 0 }
    }

    /// The number of this shard.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Number of shards.
    pub(crate) fn shards(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_lone(&self) -> bool {
        self.shards() <= 1
    }

    /// A shard's part of a limit that is divided among all.
    pub(crate) fn part_of(&self, limit: usize) -> usize {
        (limit / self.shards().max(1)).max(1)
    }

    /// Notes how many this shard has.
    pub(crate) fn note(&self, item: Item, own: usize) {
        if !self.is_lone()
            && let Some(counter) = self.own(item)
            && counter.load(Ordering::Relaxed) != own
        {
            // SeqCst, as the loads of others: of two shards that note one more, at least one sees the other's.
            counter.store(own, Ordering::SeqCst);
        }
    }

    /// Notes that this shard has one more.
    pub(crate) fn add(&self, item: Item) {
        if !self.is_lone()
            && let Some(counter) = self.own(item)
        {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// How many the other shards have. Connections and descriptors on their way between shards count, too.
    pub(crate) fn others(&self, item: Item) -> usize {
        if self.is_lone() {
            return 0;
        }
        let moves = matches!(item, Item::Connections | Item::Descriptors);
        let of = |(index, slot): (usize, &Slot)| {
            // First: one that arrives meanwhile is in both counts, and not in none.
            let arriving = if moves { slot.arriving.load(Ordering::SeqCst) } else { 0 };
            let has = match slot.items.get(item as usize) {
                Some(counter) if index != self.index => counter.load(Ordering::SeqCst),
                _ => 0,
            };
            has + arriving
        };
        self.slots.iter().enumerate().map(of).sum()
    }

    /// Whether there are no more to be had, of which this shard has `own`. Shards that ask at the same time may each
    /// get the last one.
    pub(crate) fn is_full(&self, item: Item, own: usize, limit: usize) -> bool {
        self.note(item, own);
        own + self.others(item) >= limit
    }

    /// Whether this shard, which has `own`, may have one more. That is noted as had, so that no two shards get
    /// the last one; at the worst neither gets it, and asks again later.
    pub(crate) fn may_add(&self, item: Item, own: usize, limit: usize) -> bool {
        self.note(item, own + 1);
        let may = own + self.others(item) < limit;
        if !may {
            self.note(item, own);
        }
        may
    }

    /// Notes that a connection is on its way to another shard.
    pub(crate) fn send_to(&self, shard: usize) {
        if let Some(slot) = self.slots.get(shard) {
            slot.arriving.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes that a connection has arrived at a shard, or was lost on its way.
    pub(crate) fn arrive_at(&self, shard: usize) {
        if let Some(slot) = self.slots.get(shard) {
            slot.arriving.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn own(&self, item: Item) -> Option<&AtomicUsize> {
        self.slots.get(self.index)?.items.get(item as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_for_all_shards_together() {
        let shards: Vec<Tally> = Tally::of_shards(3);
        let mut own = [0; 3];
        for at in (0..3).cycle().take(30) {
            own[at] += usize::from(shards[at].may_add(Item::Connections, own[at], 10));
        }
        assert_eq!(own.iter().sum::<usize>(), 10, "{own:?}");
        // What one gives back, another gets.
        shards[0].note(Item::Connections, own[0] - 1);
        assert!(shards[2].may_add(Item::Connections, own[2], 10));
        assert!(shards[0].is_full(Item::Connections, own[0] - 1, 10));
        assert!(!shards[0].is_full(Item::Echoes, 0, 1), "other things have limits of their own");
    }

    #[test]
    fn a_connection_between_two_shards_counts_for_all_and_once() {
        let shards = Tally::of_shards(3);
        shards[0].send_to(2);
        for shard in &shards {
            assert_eq!(shard.others(Item::Connections), 1);
            assert_eq!(shard.others(Item::Queries), 0);
        }
        shards[2].note(Item::Connections, 1);
        shards[2].arrive_at(2);
        assert_eq!(shards[0].others(Item::Connections), 1);
        assert_eq!(shards[2].others(Item::Connections), 0);
    }

    #[test]
    fn a_single_shard_has_the_whole_limit_and_no_others() {
        let lone = Tally::lone();
        assert!(lone.may_add(Item::Connections, 0, 1) && lone.may_add(Item::Connections, 0, 1));
        assert!(!lone.may_add(Item::Connections, 1, 1) && lone.is_full(Item::Echoes, 1, 1));
        assert_eq!((lone.part_of(7), Tally::of_shards(32)[0].part_of(16)), (7, 1));
    }
}
