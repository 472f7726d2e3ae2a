//! [`Mappings`]: the ranges of memory that a program has mapped.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pagewire_mem::{Held, Mapping, PAGE_SIZE, Reserved};

use crate::Errno;

/// The mapped ranges of a program, by their first address.
#[derive(Debug, Default)]
pub(crate) struct Mappings(Mutex<BTreeMap<usize, Mapped>>);

#[derive(Debug)]
pub(crate) enum Mapped {
    /// Pages of a socket, some of which may have been unmapped again.
    Received { mapping: Mapping, left: Vec<bool>, _held: Held },
    /// Addresses for any socket's pages.
    Reserved(Reserved),
}

impl Mapped {
    fn len(&self) -> usize {
        match self {
            Self::Received { mapping, .. } => mapping.len(),
            Self::Reserved(reserved) => reserved.len(),
        }
    }
}

impl Mappings {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Mapped>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds pages of a socket; returns the first address.
    pub(crate) fn add_received(&self, mapping: Mapping, held: Held) -> usize {
        let at = mapping.as_ptr().expose_provenance();
        let left = vec![true; mapping.len() / PAGE_SIZE];
        self.lock().insert(at, Mapped::Received { mapping, left, _held: held });
        at
    }

    /// Adds reserved addresses; returns the first.
    pub(crate) fn add_reserved(&self, reserved: Reserved) -> usize {
        let at = reserved.addr();
        self.lock().insert(at, Mapped::Reserved(reserved));
        at
    }

    pub(crate) fn contains(&self, addr: usize) -> bool {
        let mappings = self.lock();
        let last = mappings.range(..=addr).next_back();
        last.is_some_and(|(&at, mapped)| addr - at < mapped.len())
    }

    pub(crate) fn unmap(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE_SIZE));
        let Some(end) = end.filter(|_| len > 0 && addr.is_multiple_of(PAGE_SIZE)) else {
            return Err(Errno::INVAL);
        };
        let mut mappings = self.lock();
        let first = mappings.range(..addr).next_back().map_or(addr, |(&at, _)| at);
        let touched: Vec<usize> = mappings.range(first..end).map(|(&at, _)| at).collect();
        let mut gone = Vec::new();
        for at in touched {
            let Some(mapped) = mappings.get_mut(&at) else { continue };
            let (from, to) = (addr.max(at) - at, end.min(at + mapped.len()).saturating_sub(at));
            if from >= to {
                continue;
            }
            let over = match mapped {
                Mapped::Received { left, .. } => {
                    left[from / PAGE_SIZE..to / PAGE_SIZE].fill(false);
                    left.iter().all(|left| !left)
                }
                Mapped::Reserved(reserved) => {
                    reserved.clear(from..to).map_err(|_| Errno::NOMEM)?;
                    to - from == reserved.len()
                }
            };
            if over {
                gone.extend(mappings.remove(&at));
            }
        }
        // Memory goes home without the lock.
        drop(mappings);
        drop(gone);
        Ok(())
    }

    /// `MADV_DONTNEED`: the reserved addresses in the range show no pages any more.
    pub(crate) fn clear(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let mut mappings = self.lock();
        match mappings.range_mut(..=addr).next_back() {
            Some((&at, Mapped::Reserved(reserved))) if addr - at + len <= reserved.len() => {
                reserved.clear(addr - at..addr - at + len).map_err(|_| Errno::NOMEM)
            }
            // Read-only bytes of a file: they are there again when touched.
            Some((&at, Mapped::Received { mapping, .. })) if addr - at + len <= mapping.len() => {
                Ok(())
            }
            _ => Err(Errno::NOMEM),
        }
    }
}
