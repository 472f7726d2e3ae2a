//! A hierarchical timer wheel with one timer per socket, linked through an array indexed by socket.
//!
//! ```text
//!   level 0: 64 slots of 1 tick      |.|.|x|.|...     due within 64 ticks of a multiple of 64
//!   level 1: 64 slots of 64 ticks    |.|x|x|.|...     each slot spills into level 0 when it starts
//!   ...
//!   level 7: slots of 64^7 ticks                      48 bits of ticks: the range of an Instant
//! ```
//!
//! A timer's level is the highest group of 6 bits in which its tick differs from the present one:
//! every slot in use is ahead of the present, and the lowest level in use has the earliest timer.
//! Setting and clearing touch a fixed number of words; a timer spills at most once per level.
//! Setting allocates nothing: the links are made with the socket.
//!
//! Deadlines are rounded up to a tick: a timer never fires early, and late by less than a tick.

use pagewire_mem::Instant;

use crate::limits::TIMERS_COMPARED;
use crate::sockets::table::grow;

/// log2 of the nanoseconds in a tick.
const TICK_SHIFT: u32 = 17;

/// Resolution of all timers: 131 µs. A power of two, so that no division is needed.
#[cfg(test)]
const TICK: core::time::Duration = core::time::Duration::from_nanos(1 << TICK_SHIFT);

const GROUP_BITS: u32 = 6;
const SLOTS: usize = 1 << GROUP_BITS;
const LEVELS: usize = 8;
const NIL: u32 = u32::MAX;
/// Stands for a slot's number: the timer is not set.
const UNSET: u16 = u16::MAX;

pub(crate) struct TimerWheel {
    /// Every set timer's tick is at or after this one.
    elapsed: u64,
    /// Per level, a set bit for each slot in use.
    occupied: [u64; LEVELS],
    /// First timer of each slot.
    heads: [[u32; SLOTS]; LEVELS],
    entries: Vec<Entry>,
    /// How often a timer was put into a slot.
    #[cfg(test)]
    links: u64,
}

/// Sixteen bytes for each socket, set or not.
#[derive(Clone, Copy)]
struct Entry {
    next: u32,
    /// Unused for the first of a slot.
    prev: u32,
    /// The tick in the upper 48 bits, `level * 64 + slot` or [`UNSET`] in the lower 16.
    when: u64,
}

impl Entry {
    const IDLE: Self = Self { next: NIL, prev: NIL, when: UNSET as u64 };

    fn tick(self) -> u64 {
        self.when >> 16
    }

    fn place(self) -> u16 {
        self.when as u16
    }
}

impl TimerWheel {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            elapsed: now.as_nanos() >> TICK_SHIFT,
            occupied: [0; LEVELS],
            heads: [[NIL; SLOTS]; LEVELS],
            entries: Vec::new(),
            #[cfg(test)]
            links: 0,
        }
    }

    /// Sets the timer of socket `index`, which may have been set to another time.
    pub(crate) fn schedule(&mut self, index: u32, at: Instant) {
        let at = at.as_nanos();
        let tick = (at >> TICK_SHIFT) + u64::from(at & ((1 << TICK_SHIFT) - 1) != 0);
        let tick = tick.max(self.elapsed);
        while self.entries.len() <= index as usize {
            grow(&mut self.entries);
            self.entries.push(Entry::IDLE);
        }
        if self.entries.get(index as usize).is_some_and(|e| e.place() != UNSET && e.tick() == tick)
        {
            return;
        }
        self.cancel(index);
        self.link(index, tick);
    }

    /// Clears the timer of socket `index`.
    pub(crate) fn cancel(&mut self, index: u32) {
        let Some(entry) = self.entries.get_mut(index as usize) else { return };
        let Entry { next, prev, .. } = *entry;
        let place = entry.place();
        if place == UNSET {
            return;
        }
        *entry = Entry::IDLE;
        if let Some(next) = self.entries.get_mut(next as usize) {
            next.prev = prev;
        }
        let (level, slot) = (usize::from(place) / SLOTS, usize::from(place) % SLOTS);
        let Some(head) = self.heads.get_mut(level).and_then(|l| l.get_mut(slot)) else { return };
        if *head != index {
            if let Some(prev) = self.entries.get_mut(prev as usize) {
                prev.next = next;
            }
            return;
        }
        *head = next;
        if next == NIL
            && let Some(occupied) = self.occupied.get_mut(level)
        {
            *occupied &= !(1 << slot);
        }
    }

    /// Whether the timer of socket `index` fires by `at`: then it need not be set again.
    pub(crate) fn covers(&self, index: u32, at: Instant) -> bool {
        // The additional tick is there because `schedule` rounds up.
        self.entries
            .get(index as usize)
            .is_some_and(|e| e.place() != UNSET && e.tick() <= (at.as_nanos() >> TICK_SHIFT) + 1)
    }

    #[cfg(test)]
    fn is_set(&self, index: u32) -> bool {
        self.entries.get(index as usize).is_some_and(|e| e.place() != UNSET)
    }

    /// When [`pop_expired`](Self::pop_expired) is due; may be early, never late.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let (level, slot, begins) = self.first_slot()?;
        let tick = self.first_tick(level, slot).unwrap_or(begins);
        Some(Instant::from_nanos(tick << TICK_SHIFT))
    }

    /// The first tick of a slot with few timers. Else a host with one timer would wake for each level
    /// that the timer passes.
    fn first_tick(&self, level: usize, slot: usize) -> Option<u64> {
        let mut at = *self.heads.get(level)?.get(slot)?;
        let mut first = u64::MAX;
        for _ in 0..TIMERS_COMPARED {
            let entry = self.entries.get(at as usize)?;
            first = first.min(entry.tick());
            at = entry.next;
            if at == NIL {
                return Some(first);
            }
        }
        None
    }

    /// Clears and returns a timer that is due; in order of their ticks. `None`: no more.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<u32> {
        let now = now.as_nanos() >> TICK_SHIFT;
        loop {
            let Some((level, slot, tick)) = self.first_slot().filter(|&(_, _, tick)| tick <= now)
            else {
                self.elapsed = self.elapsed.max(now);
                return None;
            };
            self.elapsed = self.elapsed.max(tick);
            let first = self.heads.get(level).and_then(|l| l.get(slot)).copied()?;
            if level == 0 {
                self.cancel(first);
                return Some(first);
            }
            self.spill(level, slot);
        }
    }

    /// Level, slot and first tick of the earliest slot in use.
    fn first_slot(&self) -> Option<(usize, usize, u64)> {
        let (level, occupied) = self.occupied.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        let slot = occupied.trailing_zeros();
        let shift = GROUP_BITS * level as u32;
        let above = (self.elapsed >> shift) & !(SLOTS as u64 - 1);
        Some((level, slot as usize, (above | u64::from(slot)) << shift))
    }

    /// Distributes a slot that begins now over the levels below.
    fn spill(&mut self, level: usize, slot: usize) {
        let Some(head) = self.heads.get_mut(level).and_then(|l| l.get_mut(slot)) else { return };
        let mut at = core::mem::replace(head, NIL);
        if let Some(occupied) = self.occupied.get_mut(level) {
            *occupied &= !(1 << slot);
        }
        while let Some(entry) = self.entries.get(at as usize).copied() {
            self.link(at, entry.tick());
            at = entry.next;
        }
    }

    fn link(&mut self, index: u32, tick: u64) {
        #[cfg(test)]
        {
            self.links += 1;
        }
        let differs = (self.elapsed ^ tick) | (SLOTS as u64 - 1);
        let level = ((63 - differs.leading_zeros()) / GROUP_BITS) as usize;
        let slot = ((tick >> (GROUP_BITS * level as u32)) as usize) % SLOTS;
        let Some(head) = self.heads.get_mut(level).and_then(|l| l.get_mut(slot)) else { return };
        let next = core::mem::replace(head, index);
        if let Some(occupied) = self.occupied.get_mut(level) {
            *occupied |= 1 << slot;
        }
        if let Some(next) = self.entries.get_mut(next as usize) {
            next.prev = index;
        }
        let place = (level * SLOTS + slot) as u64;
        if let Some(entry) = self.entries.get_mut(index as usize) {
            *entry = Entry { next, prev: NIL, when: (tick << 16) | place };
        }
    }
}

#[cfg(test)]
mod tests;
