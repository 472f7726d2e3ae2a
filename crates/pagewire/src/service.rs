//! Programs that run inside a host.

use std::cell::Cell;

use pagewire_mem::Instant;
use pagewire_stack::{Event, Stack};

use crate::contain::{Panics, contain};

/// A program without a thread inside a host: the thread that drives the host calls it.
///
/// It runs under the host's lock: it must be quick, must not wait, and must call nothing of that
/// host; it gets the stack instead. A service that panics is dropped
/// ([`Stats::contained`](crate::Stats::contained)).
pub trait Service: Send {
    /// Handles events of any socket of the host, or the time of [`poll_timeout`](Self::poll_timeout).
    /// Events report changes: continue with a socket until it returns `WouldBlock`.
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]);

    /// When the next turn is due although nothing happens.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// A service, and whether it is part of this crate: then its panics are not contained.
pub(crate) struct Attached {
    pub(crate) service: Box<dyn Service>,
    pub(crate) ours: bool,
    /// Its `poll_timeout` panicked: it has no further turn.
    pub(crate) dead: Cell<bool>,
}

impl Attached {
    /// Takes a turn; `false`: the service panicked and is over.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        events: &[Event],
        panics: &Panics,
    ) -> bool {
        let Self { service, ours, dead } = self;
        if *ours {
            service.turn(now, stack, events);
            return true;
        }
        if dead.get() {
            return false;
        }
        contain(&panics.services, "a service", || service.turn(now, stack, events)).is_some()
    }

    /// When the next turn is due; at once after a panic, which ends the service.
    pub(crate) fn poll_timeout(&self, panics: &Panics) -> Option<Instant> {
        if self.ours {
            return self.service.poll_timeout();
        }
        if self.dead.get() {
            return Some(Instant::ZERO);
        }
        let asked = contain(&panics.services, "a service", || self.service.poll_timeout());
        asked.unwrap_or_else(|| {
            self.dead.set(true);
            Some(Instant::ZERO)
        })
    }
}
