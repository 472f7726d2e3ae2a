//! Services: programs that run inside a host. [`Service`] is the trait; [`AttachedService`] calls one, and
//! contains its panics.

use std::cell::Cell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use pagewire_mem::Instant;
use pagewire_stack::{Event, Stack};

use crate::contain::{Panics, contain};

/// A program without a thread inside a host: the thread that drives the host calls it.
///
/// A service runs under the host's lock: it must be quick, must not wait, and must call nothing of
/// that host; it gets the stack instead. A service that panics is dropped
/// ([`Stats::contained`](crate::counts::Stats::contained)).
///
/// A service that works with descriptors of the kernel gathers them in an epoll, and returns that from
/// [`wait_fd`](Self::wait_fd): the driver sleeps on it beside the devices. [`poll`](Self::poll) then
/// asks the epoll, once in each turn.
pub trait Service: Send {
    /// Handles events of any socket of the host, or the time of [`poll_timeout`](Self::poll_timeout).
    /// Events report changes: continue with a socket until it returns `WouldBlock`.
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]);

    /// When the next turn is due although nothing happens.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// A descriptor that is readable while [`poll`](Self::poll) would return `true`. Asked once, when
    /// the service is attached.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether [`turn`](Self::turn) has something to do although there is no event, and nothing is due. The
    /// host asks once in each of its turns. As long as the answer is `true`, the driver does not sleep.
    fn poll(&mut self) -> bool {
        false
    }
}

/// A service, and whether it is part of this crate: then its panics are not contained.
pub(crate) struct AttachedService {
    pub(crate) service: Box<dyn Service>,
    pub(crate) ours: bool,
    /// `poll_timeout` or `poll` of the service panicked: it has no further turn.
    pub(crate) dead: Cell<bool>,
    /// A duplicate of the service's descriptor.
    pub(crate) fd: Option<Arc<OwnedFd>>,
    /// The descriptor could not be duplicated: the service is polled again and again.
    pub(crate) polled: bool,
    /// The state of the sockets that were there before the service, which its first turn reports.
    pub(crate) first_events: Vec<Event>,
}

impl AttachedService {
    pub(crate) fn new(service: Box<dyn Service>, ours: bool) -> Self {
        let fd = service.wait_fd().map(|fd| fd.try_clone_to_owned());
        if let Some(Err(error)) = &fd {
            tracing::warn!(%error, "a service's descriptor cannot be duplicated: it is polled");
        }
        let (polled, dead) = (matches!(fd, Some(Err(_))), Cell::new(false));
        let fd = fd.and_then(Result::ok).map(Arc::new);
        Self { service, ours, dead, fd, polled, first_events: Vec::new() }
    }

    /// Whether the service wants a turn. After a panic it does, and that turn ends it.
    pub(crate) fn poll(&mut self, panics: &Panics) -> bool {
        let Self { service, ours, dead, .. } = self;
        if *ours {
            return service.poll();
        }
        if dead.get() {
            return true;
        }
        contain(&panics.services, "a service", || service.poll()).unwrap_or_else(|| {
            dead.set(true);
            true
        })
    }

    /// Takes a turn; `false`: the service panicked and is over.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        events: &[Event],
        panics: &Panics,
    ) -> bool {
        let mut first = std::mem::take(&mut self.first_events);
        if !first.is_empty() {
            first.extend(events);
        }
        let events = if first.is_empty() { events } else { &first };
        let Self { service, ours, dead, .. } = self;
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
        if !self.first_events.is_empty() {
            return Some(Instant::ZERO);
        }
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

/// A waker of a host's driver, for any thread: the driver takes a turn, in which it
/// [polls](Service::poll) the services. See [`Host::waker`](crate::Host::waker). Does not keep the host
/// alive.
#[derive(Clone, Debug)]
pub struct HostWaker(pub(crate) Arc<OwnedFd>);

impl HostWaker {
    /// Wakes the driver.
    pub fn wake(&self) {
        // A full counter means that a wake-up is pending already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}
