//! Times of futures that sleep.

use std::collections::BTreeMap;
use std::task::Waker;

use pagewire_mem::Instant;

/// Times at which wakers are called, and their numbers.
pub(crate) struct Timers {
    all: BTreeMap<(Instant, u64), Waker>,
    /// When the next is due, or earlier; far: there is none. Every turn asks.
    next: Instant,
    last: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self { all: BTreeMap::new(), next: Instant::FAR, last: 0 }
    }
}

impl Timers {
    /// When the next waker is due.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        (self.next < Instant::FAR).then_some(self.next)
    }

    /// Takes the wakers that are due.
    #[inline]
    pub(crate) fn fire(&mut self, now: Instant, wakes: &mut Vec<Waker>) {
        if self.next <= now {
            self.fire_due(now, wakes);
        }
    }

    /// A number for a new waker.
    pub(crate) fn new_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Calls `waker` at a time. Returns the waker of the same time and number, to be dropped without the lock.
    pub(crate) fn set(&mut self, at: Instant, id: u64, waker: Waker) -> Option<Waker> {
        self.next = self.next.min(at);
        self.all.insert((at, id), waker)
    }

    pub(crate) fn remove(&mut self, at: Instant, id: u64) -> Option<Waker> {
        self.all.remove(&(at, id))
    }

    #[cold]
    fn fire_due(&mut self, now: Instant, wakes: &mut Vec<Waker>) {
        let first = |all: &BTreeMap<(Instant, u64), _>| all.first_key_value().map(|(key, _)| key.0);
        while first(&self.all).is_some_and(|at| at <= now) {
            wakes.extend(self.all.pop_first().map(|(_, waker)| waker));
        }
        self.next = first(&self.all).unwrap_or(Instant::FAR);
    }
}
