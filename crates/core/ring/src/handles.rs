//! [`Handles`]: a table of values whose handles turn invalid when their value is removed.
//!
//! The engine keeps sockets, sends and pieces of lent memory in such tables: the application names them by
//! numbers that may be stale or invented. A handle is a generation (the high 32 bits) and a slot. A short
//! handle has 12 bits of generation, so it is valid again after 4,096 uses of its slot.

/// Values by handle. A handle is a slot and the slot's generation, so that an old handle is refused.
pub(crate) struct Handles<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    limit: usize,
}

/// Bits of a short handle for the slot; the others are the generation.
const SLOT_BITS: u32 = pagewire_mem::limits::LEASE_PAGE_BITS;

impl<T> Handles<T> {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit }
    }

    /// Inserts a value; returns it if the table is full.
    pub(crate) fn insert(&mut self, item: T) -> Result<u64, T> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() < self.limit.min(u32::MAX as usize) => {
                // Generations begin at 1: 0 is no handle.
                self.slots.push((1, None));
                (self.slots.len() - 1) as u32
            }
            None => return Err(item),
        };
        match self.slots.get_mut(at as usize) {
            Some((generation, slot)) => {
                *slot = Some(item);
                Ok(u64::from(*generation) << 32 | u64::from(at))
            }
            None => Err(item),
        }
    }

    pub(crate) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        let (generation, slot) = self.slots.get_mut(handle as u32 as usize)?;
        slot.as_mut().filter(|_| u64::from(*generation) == handle >> 32)
    }

    pub(crate) fn remove(&mut self, handle: u64) -> Option<T> {
        let (generation, slot) = self.slots.get_mut(handle as u32 as usize)?;
        if u64::from(*generation) != handle >> 32 {
            return None;
        }
        let item = slot.take()?;
        *generation = generation.checked_add(1).unwrap_or(1);
        self.free.push(handle as u32);
        Some(item)
    }

    /// A handle in 32 bits, for a table of at most `MAX_LENT` values.
    pub(crate) const fn short(handle: u64) -> u32 {
        ((handle >> 32) as u32) << SLOT_BITS | handle as u32
    }

    /// Removes the value of a short handle.
    pub(crate) fn remove_short(&mut self, short: u32) -> Option<T> {
        let at = short & ((1 << SLOT_BITS) - 1);
        let (generation, _) = self.slots.get(at as usize)?;
        if generation << SLOT_BITS != short & !((1 << SLOT_BITS) - 1) {
            return None;
        }
        self.remove(u64::from(*generation) << 32 | u64::from(at))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.limit
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|(_, slot)| slot.as_mut())
    }
}

#[cfg(test)]
#[path = "handles_tests.rs"]
mod tests;
