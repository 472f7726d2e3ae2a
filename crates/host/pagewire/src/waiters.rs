//! The tasks and threads that wait for a socket ([`HostWaiters`]), or for the end of the host
//! ([`EndWatchers`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_sockets::Waiters;
use pagewire_stack::{Readiness, SocketId};

/// How long after a thread went to sleep its answer is expected soon.
const SOON: Duration = Duration::from_millis(10);

/// The waiters for a host's sockets, and the wakers that are to be called.
#[derive(Default)]
pub(crate) struct HostWaiters {
    pub(crate) sockets: Waiters,
    /// Wakers to be called when the lock is released: one wake per waiter and batch.
    pub(crate) ready: Vec<Waker>,
    /// Number of wakers called because a socket became ready.
    pub(crate) wakeups: u64,
    /// The two sockets for which threads went to sleep last, and when.
    asleep: [Option<(SocketId, Instant)>; 2],
}

impl HostWaiters {
    /// A thread goes to sleep for a socket.
    pub(crate) fn note_sleep(&mut self, socket: SocketId, now: Instant) {
        let [last, before] = &mut self.asleep;
        if last.is_none_or(|(id, _)| id != socket) {
            *before = *last;
        }
        *last = Some((socket, now));
    }

    /// Whether a thread that went to sleep just now still waits, for another socket than this one.
    pub(crate) fn is_other_asleep(&self, socket: SocketId, now: Instant) -> bool {
        let any = Readiness::FOR_READ | Readiness::FOR_WRITE;
        self.asleep.iter().flatten().any(|(id, since)| {
            *id != socket && now < *since + SOON && self.sockets.is_awaited(*id, any)
        })
    }

    /// Wakes the waits that a change of readiness ends.
    #[inline]
    pub(crate) fn handle_event(&mut self, socket: SocketId, gained: Readiness) {
        let before = self.ready.len();
        self.sockets.take(socket, gained, &mut self.ready);
        self.wakeups += (self.ready.len() - before) as u64;
    }

    /// Wakes the sleeps that are over.
    #[inline]
    pub(crate) fn fire(&mut self, now: Instant) {
        self.sockets.take_timers(now, &mut self.ready);
    }

    /// Wakes all waits for a socket that is closed.
    pub(crate) fn forget(&mut self, socket: SocketId) {
        self.sockets.forget(socket, &mut self.ready);
    }

    pub(crate) fn forget_all(&mut self) {
        self.sockets.clear(&mut self.ready);
    }
}

/// The waiters for the end of a host. Not under the host's lock: a wait may be dropped where that is held.
#[derive(Clone, Default)]
pub(crate) struct EndWatchers(Arc<Mutex<Vec<(u64, Waker)>>>);

impl EndWatchers {
    /// Registers a waker; returns the one before it, to be dropped without a lock.
    pub(crate) fn set(&self, key: u64, waker: Waker) -> Option<Waker> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.iter_mut().find(|(of, _)| *of == key) {
            Some((_, before)) => Some(std::mem::replace(before, waker)),
            None => {
                all.push((key, waker));
                None
            }
        }
    }

    pub(crate) fn remove(&self, key: u64) -> Option<Waker> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = all.iter().position(|(of, _)| *of == key)?;
        Some(all.swap_remove(at).1)
    }

    pub(crate) fn take(&self) -> Vec<(u64, Waker)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
