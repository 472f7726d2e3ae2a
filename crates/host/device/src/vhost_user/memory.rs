//! The guest's memory as the front end shared it: regions by guest and by front-end address.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::allowance::Allowance;
use super::limits::MAX_MEMORY_REGIONS;
use super::virtqueue::Part;
use super::window::{MapError, Window};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    pub(super) guest: u64,
    pub(super) user: u64,
    pub(super) len: u64,
    /// The region's offset in its file.
    pub(super) offset: u64,
}

#[derive(Clone, Debug)]
struct Slot {
    about: Announced,
    window: Window,
    /// How often it was announced and not yet removed.
    times: usize,
}

/// A range of the guest's bytes within one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    slot: u16,
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// Why memory was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemoryError {
    #[error("a region of {0:#x} bytes at {1:#x} is empty, wraps around or overlaps another")]
    Range(u64, u64),
    #[error("more than {MAX_MEMORY_REGIONS} regions")]
    TooMany,
    #[error("no region is at {0:#x}")]
    Unknown(u64),
    #[error(transparent)]
    Map(#[from] MapError),
}

/// The regions of a guest. Cloned, and replaced as a whole, when one changes; fragments keep their window.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    slots: Vec<Slot>,
    allowance: Arc<Allowance>,
}

impl Memory {
    pub(super) fn new(allowance: &Arc<Allowance>) -> Self {
        Self { slots: Vec::new(), allowance: Arc::clone(allowance) }
    }

    /// Memory without regions, within the same limits.
    pub(super) fn emptied(&self) -> Self {
        Self::new(&self.allowance)
    }

    /// Maps one more region.
    pub(super) fn add(&mut self, about: Announced, file: File) -> Result<(), MemoryError> {
        let Announced { guest, user, len, offset } = about;
        let range = MemoryError::Range(len, guest);
        if self.slots.len() >= MAX_MEMORY_REGIONS {
            return Err(MemoryError::TooMany);
        }
        let ends = (guest.checked_add(len), user.checked_add(len), offset.checked_add(len));
        let (Some(guest_end), Some(user_end), Some(end)) = ends else { return Err(range) };
        let meets = |slot: &Slot| {
            let other = &slot.about;
            (guest < other.guest + other.len && other.guest < guest_end)
                || (user < other.user + other.len && other.user < user_end)
        };
        if len == 0 || self.slots.iter().any(meets) {
            return Err(range);
        }
        let end = usize::try_from(end).map_err(|_| range)?;
        let window = Window::map(OwnedFd::from(file), end, &self.allowance)?;
        self.slots.push(Slot { about, window, times: 1 });
        Ok(())
    }

    /// Notes that an existing region is announced once more, `most` times in all at most. QEMU 7.2
    /// does that for each pair of queues, and removes each as often.
    pub(super) fn add_again(&mut self, about: &Announced, most: usize) -> bool {
        let again = |slot: &&mut Slot| slot.about == *about && slot.times < most;
        let Some(slot) = self.slots.iter_mut().find(again) else { return false };
        slot.times += 1;
        true
    }

    /// Removes a region, named by its addresses and its length, if this is its last removal.
    pub(super) fn remove(&mut self, guest: u64, user: u64, len: u64) -> Result<(), MemoryError> {
        let is =
            |slot: &Slot| (slot.about.guest, slot.about.user, slot.about.len) == (guest, user, len);
        let at = self.slots.iter().position(is).ok_or(MemoryError::Unknown(guest))?;
        match self.slots.get_mut(at).filter(|slot| slot.times > 1) {
            Some(slot) => slot.times -= 1,
            None => drop(self.slots.remove(at)),
        }
        Ok(())
    }

    /// The first of the bytes `guest..guest + len`, as far as they lie in one region, if any does.
    #[inline]
    pub(super) fn find(&self, guest: u64, len: usize) -> Option<Piece> {
        self.slots.iter().enumerate().find_map(|(slot, Slot { about, .. })| {
            let into = guest.checked_sub(about.guest).filter(|&into| into < about.len)?;
            let len = len.min((about.len - into) as usize);
            Some(Piece { slot: slot as u16, offset: (about.offset + into) as usize, len })
        })
    }

    /// `len` bytes at an address of the front end's, which must lie in one region.
    pub(super) fn part(&self, user: u64, len: usize) -> Option<Part> {
        self.slots.iter().find_map(|Slot { about, window, .. }| {
            let into = user.checked_sub(about.user).filter(|&into| into < about.len)?;
            let fits = about.len - into >= len as u64;
            fits.then(|| Part { window: window.clone(), offset: (about.offset + into) as usize })
        })
    }

    /// The window that a piece lies in.
    #[inline]
    pub(super) fn window(&self, piece: &Piece) -> Option<&Window> {
        self.slots.get(usize::from(piece.slot)).map(|slot| &slot.window)
    }
}

impl Piece {
    /// Whether both lie in one window.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.slot == other.slot
    }

    /// Whether `next` begins where this one ends, in the same window.
    pub(super) fn is_followed_by(&self, next: &Self) -> bool {
        self.is_beside(next) && self.offset + self.len == next.offset
    }

    /// Splits off up to `n` bytes at the front.
    pub(super) fn split_to(&mut self, n: usize) -> Self {
        let n = n.min(self.len);
        let front = Self { len: n, ..*self };
        self.offset += n;
        self.len -= n;
        front
    }
}
