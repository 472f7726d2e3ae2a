//! Addresses reserved for received pages, as Linux's `TCP_ZEROCOPY_RECEIVE` uses them.
//!
//! An access where no page is mapped is a `SIGBUS`, as on Linux. Every change of a page takes a
//! system call; [`Mapping`](crate::Mapping) is for callers that need no addresses of their own.

use core::ops::Range;
use std::collections::BTreeMap;

use crate::frag::Frag;
use crate::held::Held;
use crate::limits::PAGE_SIZE;
use crate::mapping::{MapFault, Window, runs};
use crate::region::MemError;

#[cfg(test)]
mod tests;

/// A range of addresses, for reading only, and the pages that are mapped there now.
#[derive(Debug)]
pub struct Reserved {
    window: Window,
    /// Every visible page, by the byte at which it begins: released, it would show foreign bytes.
    pieces: BTreeMap<usize, MappedPiece>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.window.unmap() {
            // The addresses stay visible: the pages are never released.
            core::mem::forget(core::mem::take(&mut self.pieces));
        }
    }
}

#[derive(Debug)]
struct MappedPiece {
    frag: Frag,
    held: Held,
}

impl Reserved {
    /// Reserves `len` bytes, rounded up to whole pages.
    pub fn new(len: usize) -> Result<Self, MemError> {
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(MemError::Length(len))?;
        Ok(Self { window: Window::of_nothing(len)?, pieces: BTreeMap::new() })
    }

    /// The first address.
    pub fn addr(&self) -> usize {
        self.window.addr()
    }

    /// Bytes reserved.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes mapped now.
    pub fn mapped(&self) -> usize {
        self.pieces.values().map(|piece| piece.frag.len()).sum()
    }

    /// Maps the given lengths of fragments from byte `at` on, in place of what is there: whole
    /// pages, as far as their file can be mapped again and for reading only; returns the number of
    /// bytes. The pages stay until they are replaced or [cleared](Self::clear).
    ///
    /// # Errors
    /// `NotPages` if not even the first can be mapped, `Memory`. Then the old pages are gone, or
    /// stay, if the system has no memory to unmap them.
    pub fn put<'a>(
        &mut self,
        at: usize,
        parts: impl Iterator<Item = (&'a Frag, usize)>,
    ) -> Result<usize, MapFault> {
        if !at.is_multiple_of(PAGE_SIZE) {
            return Err(MapFault::NotPages);
        }
        let mut frags = Vec::new();
        let mut room = self.len().saturating_sub(at);
        for (frag, len) in parts {
            let len = len.min(frag.len()).min(room) / PAGE_SIZE * PAGE_SIZE;
            let sealed = frag.region().is_some_and(|region| region.sealed_fd().is_some());
            if len == 0 || !sealed || !frag.is_page_aligned() {
                break;
            }
            frags.push(frag.slice(0..len));
            room -= len;
        }
        let total: usize = frags.iter().map(Frag::len).sum();
        if total == 0 {
            return Err(MapFault::NotPages);
        }
        let runs = runs(&frags);
        let (mut frags, mut to) = (frags.into_iter(), at);
        for run in runs {
            if let Err(error) = self.window.put(to, &run) {
                // Pages that cannot be unmapped are kept with the others.
                let _ = self.clear(at..at + total);
                return Err(error.into());
            }
            // The new pages are held from now on, even if a later run fails.
            let end = to + run.len();
            self.forget(to..end);
            while to < end
                && let Some(frag) = frags.next()
            {
                let len = frag.len();
                self.pieces.insert(to, MappedPiece { frag, held: Held::default() });
                to += len;
            }
        }
        Ok(total)
    }

    /// Counts the pages in a range as held, until they are replaced or cleared.
    pub fn hold(&mut self, range: Range<usize>, mut held: Held) {
        for (_, piece) in self.pieces.range_mut(range) {
            piece.held = held.split(piece.frag.pinned_pages());
        }
    }

    /// Bytes of pools' pages that are mapped in a range.
    pub fn pinned(&self, range: Range<usize>) -> usize {
        self.pieces.range(range).map(|(_, piece)| piece.frag.pinned_pages()).sum()
    }

    /// Unmaps the pages in a range, rounded outwards to whole pages. On failure they stay.
    pub fn clear(&mut self, range: Range<usize>) -> Result<(), MemError> {
        let start = range.start / PAGE_SIZE * PAGE_SIZE;
        let end = range.end.next_multiple_of(PAGE_SIZE).min(self.len());
        if start >= end || self.pieces.is_empty() {
            return Ok(());
        }
        self.window.empty(start, end - start)?;
        self.forget(start..end);
        Ok(())
    }

    /// Releases the pages in a range, which are not mapped there any more.
    fn forget(&mut self, range: Range<usize>) {
        // The last piece that begins before may reach into it.
        let first = self.pieces.range(..range.start).next_back().map_or(range.start, |(&at, _)| at);
        let touched: Vec<usize> = self.pieces.range(first..range.end).map(|(&at, _)| at).collect();
        for at in touched {
            let Some(MappedPiece { mut frag, mut held }) = self.pieces.remove(&at) else {
                continue;
            };
            let end = at + frag.len();
            if at < range.start {
                let before = frag.split_to((range.start - at).min(frag.len()));
                let held = held.split(before.pinned_pages());
                self.pieces.insert(at, MappedPiece { frag: before, held });
            }
            if end > range.end {
                let gone = frag.len().saturating_sub(end - range.end);
                let gone = frag.split_to(gone);
                drop(held.split(gone.pinned_pages()));
                self.pieces.insert(range.end, MappedPiece { frag, held });
            }
        }
    }
}
