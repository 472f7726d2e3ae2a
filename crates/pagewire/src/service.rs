//! Programs that live inside of a host.

use std::cell::Cell;

use pagewire_mem::Instant;
use pagewire_stack::{Event, Stack};

use crate::contain::{Panics, contain};

/// A program that lives inside of a host and is called when something happens, on whatever thread
/// drives the host then: no thread of its own, no wake-up, however many connections it has.
///
/// It runs under the host's lock, so it must be quick, must not wait, and may call nothing of that
/// host: the stack is lent to it instead. One that panics is dropped; the host goes on
/// ([`Stats::contained`](crate::Stats::contained)).
pub trait Service: Send {
    /// Something happened to sockets, its own or others, or the time of
    /// [`poll_timeout`](Self::poll_timeout) has come. Events tell of changes: go on with a socket
    /// until it says `WouldBlock`.
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]);

    /// When it wants its turn although nothing happens.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// A service, and whether it is part of this crate: then its panics are ours.
pub(crate) struct Attached {
    pub(crate) service: Box<dyn Service>,
    pub(crate) ours: bool,
    /// Its `poll_timeout` panicked: it has no further turn.
    pub(crate) dead: Cell<bool>,
}

impl Attached {
    /// A turn; `false`: it panicked, which ends it.
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

    /// When it wants its turn. If it panics: at once, which ends it.
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
