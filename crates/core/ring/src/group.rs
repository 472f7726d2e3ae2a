//! A group: memory for received bytes, the ring that returns its buffers, and its scarcity.

use core::ops::Range;
use std::collections::BTreeSet;
use std::sync::Arc;

use pagewire_mem::link::Level;
use pagewire_mem::{Frag, Lease, PagePool, PageWriter, Refused};

use crate::counters::Counters;
use crate::handles::Handles;
use crate::layout::{Entry, Fill};
use crate::limits::{CACHE_BUFFERS, FILL_BATCH, MAX_LENT, MIN_WINDOW, WINDOW_SHARE};
use crate::ring::Consumer;

pub(crate) struct Group {
    pub(crate) memory: Memory,
    fill: Consumer<Fill>,
    /// With fewer buffers than this, the application gets a notice.
    threshold: usize,
    /// Fill entries after which the application gets a notice; 0: never.
    notify_every: u32,
    /// Fill entries taken since the last notice.
    taken: u32,
    /// Pages returned since the device's check number `checks`, which the device does not know of yet.
    given: usize,
    checks: usize,
    low: Edge,
    empty: Edge,
    /// The windows of the queue's flows are closed.
    pub(crate) squeezed: bool,
    /// Handles of the connections that receive into it.
    pub(crate) flows: BTreeSet<u64>,
    /// Number of flows when their windows were last divided.
    pub(crate) shared_by: usize,
    /// Unregistered: nothing is delivered here, and returned buffers are taken at once.
    pub(crate) dying: bool,
    /// Jumps of the fill ring that are counted already.
    jumps: u64,
}

pub(crate) enum Memory {
    /// Pages that a device's queue fills.
    Queue { lease: Lease, level: Arc<Level>, queue: usize },
    /// Pages that the engine copies into.
    Copy { lease: Lease, pool: PagePool, writer: PageWriter },
    /// A sender's memory: each piece that the application holds.
    Lent { whole: Frag, pieces: Handles<Frag> },
}

/// A condition that is reported once each time it comes true.
#[derive(Clone, Copy, Default)]
struct Edge {
    is: bool,
    unreported: bool,
}

impl Edge {
    /// Returns whether it has just come true.
    fn set(&mut self, is: bool) -> bool {
        let rises = is && !self.is;
        self.is = is;
        self.unreported |= rises;
        rises
    }
}

impl Group {
    pub(crate) fn new(
        memory: Memory,
        fill: Consumer<Fill>,
        threshold: usize,
        notify_every: u32,
    ) -> Self {
        Self {
            memory,
            fill,
            threshold,
            notify_every,
            taken: 0,
            given: 0,
            checks: 0,
            low: Edge::default(),
            empty: Edge::default(),
            squeezed: false,
            flows: BTreeSet::new(),
            shared_by: 0,
            dying: false,
            jumps: 0,
        }
    }

    /// Takes returned buffers, as far as they are wanted; returns whether any was taken.
    pub(crate) fn refill(&mut self, id: u16, counters: &mut Counters) -> bool {
        let mut worked = false;
        // At most one ring's capacity in a turn.
        let mut budget = self.fill.capacity();
        while budget > 0 && self.wants_buffers() {
            let batch = FILL_BATCH.min(budget);
            let mut n = 0;
            while n < batch
                && let Some(fill) = self.fill.pop()
            {
                n += 1;
                self.take_back(id, fill, counters);
            }
            self.fill.release();
            if n == 0 {
                break;
            }
            worked = true;
            budget -= n;
            self.taken = self.taken.saturating_add(n as u32);
            counters.fills += n as u64;
            if let Memory::Copy { pool, .. } = &mut self.memory {
                pool.drain();
            }
        }
        let jumps = self.fill.jumps();
        counters.jumps += jumps - core::mem::replace(&mut self.jumps, jumps);
        worked
    }

    /// Whether the cache of free buffers is not full.
    fn wants_buffers(&mut self) -> bool {
        let target = match &self.memory {
            _ if self.dying => return true,
            Memory::Queue { lease, .. } | Memory::Copy { lease, .. } => lease.pages() / 2,
            Memory::Lent { .. } => return true,
        };
        // A half-full ring is emptied anyway: parts of a page come back one by one.
        self.free() < CACHE_BUFFERS.min(target) || self.fill.available() > self.fill.capacity() / 2
    }

    /// Pages that are free to receive into, including those that the device does not know of yet.
    fn free(&mut self) -> usize {
        match &self.memory {
            Memory::Queue { level, .. } => {
                if level.checks() != self.checks {
                    (self.checks, self.given) = (level.checks(), 0);
                }
                level.free() + self.given
            }
            Memory::Copy { pool, .. } => pool.stats().free,
            Memory::Lent { .. } => usize::MAX,
        }
    }

    fn take_back(&mut self, id: u16, fill: Fill, counters: &mut Counters) {
        if fill.group != id {
            counters.fills_foreign += 1;
            return;
        }
        let refused = match &mut self.memory {
            Memory::Queue { lease, .. } | Memory::Copy { lease, .. } => {
                let taken = lease.take_back(pagewire_mem::BufferId(fill.buffer));
                self.given += usize::from(taken == Ok(true));
                taken.err()
            }
            Memory::Lent { pieces, .. } => match pieces.remove_short(fill.buffer) {
                Some(piece) => {
                    drop(piece);
                    None
                }
                None => Some(Refused::NotHeld),
            },
        };
        if let Some(why) = refused {
            counters.refuse(why);
        }
    }

    /// Buffers that are, or will be, free to receive into without the application.
    pub(crate) fn available(&mut self) -> usize {
        let waiting = self.fill.available();
        self.free().saturating_add(waiting)
    }

    /// Bytes that can be copied here, counting returned buffers that were not taken yet.
    pub(crate) fn room_for_copies(&mut self) -> usize {
        let available = self.available();
        match &self.memory {
            Memory::Copy { writer, .. } => {
                writer.spare() + available.saturating_mul(pagewire_mem::PAGE_SIZE)
            }
            _ => 0,
        }
    }

    /// Prepares a notice if buffers are scarce; not before the application has given the first.
    pub(crate) fn watch(&mut self, counters: &mut Counters) -> usize {
        if let Memory::Queue { lease, .. } = &self.memory
            && lease.unposted() == lease.pages()
        {
            return usize::MAX;
        }
        let available = self.available();
        counters.low += u64::from(self.low.set(available < self.threshold));
        counters.empty += u64::from(self.empty.set(available == 0));
        available
    }

    /// The notice that is due: entries taken, whether buffers are low, whether there are none.
    pub(crate) fn notice(&mut self) -> Option<(u32, bool, bool)> {
        let drained = self.notify_every > 0 && self.taken >= self.notify_every;
        if !(drained || self.low.unreported || self.empty.unreported) {
            return None;
        }
        let reported =
            (core::mem::take(&mut self.taken), self.low.unreported, self.empty.unreported);
        (self.low.unreported, self.empty.unreported) = (false, false);
        Some(reported)
    }

    /// The number of buffers below which windows close and the application gets a notice.
    pub(crate) fn threshold(&self) -> usize {
        self.threshold
    }

    /// The number of buffers from which on closed windows open again.
    pub(crate) fn relief(&self) -> usize {
        let (threshold, Memory::Queue { lease, .. }) = (self.threshold.max(1), &self.memory) else {
            return 1;
        };
        let rest = lease.pages().saturating_sub(threshold);
        threshold.saturating_mul(2).min(threshold.saturating_add(rest / 4))
    }

    /// Whether a fragment can be delivered in this group as it is.
    pub(crate) fn owns(&self, frag: &Frag) -> bool {
        match &self.memory {
            _ if self.dying => false,
            Memory::Queue { lease, .. } => lease.owns(frag),
            Memory::Copy { .. } => false,
            Memory::Lent { whole, pieces } => {
                let memory = whole.addr()..whole.addr() + whole.len();
                !pieces.is_full()
                    && memory.contains(&frag.addr())
                    && frag.addr() + frag.len() <= memory.end
            }
        }
    }

    /// Delivers a fragment of the group's memory, or copies made of one; entries go to `each`.
    pub(crate) fn deliver(&mut self, id: u16, frag: Frag, mut each: impl FnMut(Entry)) {
        match &mut self.memory {
            Memory::Queue { lease, .. } | Memory::Copy { lease, .. } => {
                let handed = lease.hand_out(frag, |part| {
                    let (offset, len, buffer) = (part.offset, part.len, part.id.0);
                    each(Entry { offset, len, buffer, group: id });
                });
                debug_assert!(handed.is_ok(), "a fragment of another group");
            }
            Memory::Lent { whole, pieces } => {
                let offset = (frag.addr() - whole.addr()) as u32;
                let len = frag.len() as u32;
                if let Ok(handle) = pieces.insert(frag) {
                    let buffer = Handles::<Frag>::short(handle);
                    each(Entry { offset, len, buffer, group: id });
                }
            }
        }
    }

    /// Entries that delivering `frag` takes at most.
    pub(crate) fn entries_for(&self, frag: &Frag) -> usize {
        match &self.memory {
            Memory::Lent { .. } => 1,
            _ => frag.pinned() / pagewire_mem::PAGE_SIZE,
        }
    }

    /// Whether an unregistered group has all its buffers back.
    pub(crate) fn is_home(&self) -> bool {
        match &self.memory {
            Memory::Queue { lease, .. } => lease.is_home(),
            Memory::Copy { .. } => false,
            Memory::Lent { pieces, .. } => pieces.is_empty(),
        }
    }

    /// Bytes that one flow may have in flight: all together a part of the memory.
    pub(crate) fn window(&self) -> Option<u32> {
        let Memory::Queue { lease, .. } = &self.memory else { return None };
        let bytes = lease.pages() * pagewire_mem::PAGE_SIZE;
        let share = bytes / (WINDOW_SHARE * self.flows.len().max(1));
        Some(u32::try_from(share).unwrap_or(u32::MAX).max(MIN_WINDOW))
    }

    /// The current limit of each flow's window.
    pub(crate) fn clamp(&self) -> Option<u32> {
        if self.squeezed { Some(0) } else { self.window() }
    }

    /// Pieces that the application holds.
    pub(crate) fn delivered(&self) -> usize {
        match &self.memory {
            Memory::Queue { lease, .. } | Memory::Copy { lease, .. } => lease.delivered(),
            Memory::Lent { pieces, .. } => pieces.len(),
        }
    }

    /// The address range of its memory.
    pub(crate) fn span(&self) -> Range<usize> {
        match &self.memory {
            Memory::Queue { lease, .. } | Memory::Copy { lease, .. } => lease.span(),
            Memory::Lent { whole, .. } => whole.addr()..whole.addr() + whole.len(),
        }
    }

    /// Arms the fill ring before a sleep. `false`: it has entries that are wanted.
    pub(crate) fn arm(&mut self) -> bool {
        self.fill.arm() || !self.wants_buffers()
    }

    pub(crate) fn disarm(&mut self) {
        self.fill.disarm();
    }
}

/// Pieces of lent memory.
pub(crate) fn lent(whole: Frag) -> Memory {
    Memory::Lent { whole, pieces: Handles::new(MAX_LENT) }
}
