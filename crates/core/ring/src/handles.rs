//! A table whose handles are never reused.

/// Values by handle: a place and its generation, so that an old handle is refused.
pub(crate) struct Handles<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    limit: usize,
}

/// Bits of a short handle for the place; the others are the generation.
const PLACE_BITS: u32 = pagewire_mem::limits::LEASE_PAGE_BITS;

impl<T> Handles<T> {
    pub(crate) const fn new(limit: usize) -> Self {
        Self { places: Vec::new(), free: Vec::new(), limit }
    }

    /// Inserts a value; returns it if the table is full.
    pub(crate) fn insert(&mut self, item: T) -> Result<u64, T> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.places.len() < self.limit.min(u32::MAX as usize) => {
                // Generations begin at 1: 0 is no handle.
                self.places.push((1, None));
                (self.places.len() - 1) as u32
            }
            None => return Err(item),
        };
        match self.places.get_mut(at as usize) {
            Some((turn, place)) => {
                *place = Some(item);
                Ok(u64::from(*turn) << 32 | u64::from(at))
            }
            None => Err(item),
        }
    }

    pub(crate) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        let (turn, place) = self.places.get_mut(handle as u32 as usize)?;
        place.as_mut().filter(|_| u64::from(*turn) == handle >> 32)
    }

    pub(crate) fn remove(&mut self, handle: u64) -> Option<T> {
        let (turn, place) = self.places.get_mut(handle as u32 as usize)?;
        if u64::from(*turn) != handle >> 32 {
            return None;
        }
        let item = place.take()?;
        *turn = turn.checked_add(1).unwrap_or(1);
        self.free.push(handle as u32);
        Some(item)
    }

    /// A handle in 32 bits, for a table of at most `MAX_LENT` values.
    pub(crate) const fn short(handle: u64) -> u32 {
        ((handle >> 32) as u32) << PLACE_BITS | handle as u32
    }

    /// Removes the value of a short handle.
    pub(crate) fn remove_short(&mut self, short: u32) -> Option<T> {
        let at = short & ((1 << PLACE_BITS) - 1);
        let (turn, _) = self.places.get(at as usize)?;
        if turn << PLACE_BITS != short & !((1 << PLACE_BITS) - 1) {
            return None;
        }
        self.remove(u64::from(*turn) << 32 | u64::from(at))
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.places.len() >= self.limit
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|(_, place)| place.as_mut())
    }
}

#[cfg(test)]
#[path = "handles_tests.rs"]
mod tests;
