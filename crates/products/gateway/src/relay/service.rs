//! [`RelayService`]: the relay as a service of its guest's host, and the handle by which the guest's owner reaches it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewire::services::{Event, Instant, Service, Stack};

use super::Relay;

#[derive(Clone)]
pub(crate) struct RelayService(Arc<Shared>);

struct Shared {
    /// The relay; locked under the host's lock by the host's thread, or alone and for a moment by callers.
    relay: Mutex<Relay>,
    epoll: Arc<OwnedFd>,
    /// The time of the next turn in nanoseconds: read in every turn of the host, without the relay's lock.
    due: AtomicU64,
}

impl RelayService {
    pub(crate) fn new(relay: Relay) -> Self {
        let epoll = relay.epoll();
        let due = AtomicU64::new(Instant::FAR.as_nanos());
        Self(Arc::new(Shared { relay: Mutex::new(relay), epoll, due }))
    }

    fn lock(&self) -> MutexGuard<'_, Relay> {
        self.0.relay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Relay) -> T) -> T {
        read(&self.lock())
    }

    /// Changes the relay, under the host's lock, and publishes when the next turn is due.
    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Relay) -> T) -> T {
        let mut relay = self.lock();
        let result = change(&mut relay);
        relay.note_in_use();
        let due = relay.poll_timeout().unwrap_or(Instant::FAR);
        // `due` is read and written under the host's lock only, so the ordering is free.
        self.0.due.store(due.as_nanos(), Ordering::Relaxed);
        result
    }
}

impl Service for RelayService {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        self.with(|relay| relay.turn(now, stack, events));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = Instant::from_nanos(self.0.due.load(Ordering::Relaxed));
        (due < Instant::FAR).then_some(due)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.epoll.as_fd())
    }

    fn poll(&mut self) -> bool {
        self.lock().poll()
    }
}
