//! [`Numbers`]: the free descriptor numbers, as runs, so the lowest is found without a search. [`Numbering`]: who
//! chooses numbers, if not the table.

use std::collections::BTreeMap;

use crate::{Errno, Fd};

/// Numbers of descriptors that are not the table's own choice, such as numbers that the kernel reserves.
pub trait Numbering: Send + Sync {
    /// The number for a new descriptor, `least` or more; `None` for the table's lowest free one, as Linux does.
    ///
    /// # Errors
    /// The error of the call that wants the descriptor.
    fn open(&self, least: Fd) -> Result<Option<Fd>, Errno>;

    /// Takes exactly this number, for [`dup3`](crate::Descriptors::dup3). A number that names a file of the table
    /// already is not claimed again.
    ///
    /// # Errors
    /// The error of the call that wants the descriptor.
    fn claim(&self, fd: Fd) -> Result<(), Errno>;

    /// The descriptor `fd` is closed: its number is free.
    fn close(&self, fd: Fd);
}

/// The table chooses, as Linux does.
pub(crate) struct Lowest;

impl Numbering for Lowest {
    fn open(&self, _: Fd) -> Result<Option<Fd>, Errno> {
        Ok(None)
    }

    fn claim(&self, _: Fd) -> Result<(), Errno> {
        Ok(())
    }

    fn close(&self, _: Fd) {}
}

/// The free numbers below a limit.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Runs of free numbers: the first of each, and the one after its last; no two touch.
    runs: BTreeMap<usize, usize>,
}

impl Numbers {
    /// The numbers below `limit`, all free.
    pub(crate) fn new(limit: usize) -> Self {
        Self { runs: BTreeMap::from([(0, limit)]) }
    }

    /// The lowest free number from `least` on.
    pub(crate) fn lowest(&self, least: usize) -> Option<usize> {
        let here = self.runs.range(..=least).next_back().filter(|(_, end)| **end > least);
        here.map(|_| least).or_else(|| self.runs.range(least..).next().map(|(start, _)| *start))
    }

    /// Takes a number; whether it was free.
    pub(crate) fn take(&mut self, number: usize) -> bool {
        let run = self.runs.range(..=number).next_back().map(|(start, end)| (*start, *end));
        let Some((start, end)) = run.filter(|(_, end)| *end > number) else { return false };
        if start < number {
            self.runs.insert(start, number);
        } else {
            self.runs.remove(&start);
        }
        if number + 1 < end {
            self.runs.insert(number + 1, end);
        }
        true
    }

    /// Gives back a number that was taken.
    pub(crate) fn give_back(&mut self, number: usize) {
        let end = self.runs.remove(&(number + 1)).unwrap_or(number + 1);
        let before = self.runs.range_mut(..number).next_back();
        match before.filter(|(_, end)| **end == number) {
            Some((_, before)) => *before = end,
            None => drop(self.runs.insert(number, end)),
        }
    }
}

#[cfg(test)]
#[path = "numbers_tests.rs"]
mod tests;
