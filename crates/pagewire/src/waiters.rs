//! The tasks and threads that wait for a socket, or for the end of the host.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{Readiness, SocketId};
use rustc_hash::FxHashMap;

/// How long after a thread went to sleep its answer is expected soon.
const SOON: Duration = Duration::from_millis(10);

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Data, a connection to accept, the end of the stream, an error.
    Read,
    /// Room to send, the end of the handshake, an error.
    Write,
    /// Any of these.
    #[cfg(feature = "tokio")]
    Either,
    /// The completion of a zero-copy send.
    Completion,
}

#[derive(Default)]
pub(crate) struct Waiters {
    /// No peer chooses the ids.
    sockets: FxHashMap<SocketId, Lists>,
    /// Wakers to be called when the lock is released: one wake per waiter and batch.
    pub(crate) ready: Vec<Waker>,
    /// Wakers called because a socket became ready.
    pub(crate) wakeups: u64,
    /// The two sockets for which threads went to sleep last, and when.
    asleep: [Option<(SocketId, Instant)>; 2],
}

#[derive(Default)]
struct Lists {
    read: Vec<Waker>,
    write: Vec<Waker>,
    completion: Vec<Waker>,
}

impl Lists {
    fn register(&mut self, interest: Interest, waker: &Waker) {
        let list = match interest {
            Interest::Read => &mut self.read,
            Interest::Write => &mut self.write,
            Interest::Completion => &mut self.completion,
            #[cfg(feature = "tokio")]
            Interest::Either => {
                self.register(Interest::Read, waker);
                return self.register(Interest::Write, waker);
            }
        };
        if !list.iter().any(|w| w.will_wake(waker)) {
            list.push(waker.clone());
        }
    }

    fn all(&mut self) -> [&mut Vec<Waker>; 3] {
        [&mut self.read, &mut self.write, &mut self.completion]
    }
}

impl Waiters {
    /// Calls `waker` once when `socket` becomes ready.
    pub(crate) fn register(&mut self, socket: SocketId, interest: Interest, waker: &Waker) {
        self.sockets.entry(socket).or_default().register(interest, waker);
    }

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
        self.asleep.iter().flatten().any(|(id, since)| {
            let waits = |lists: &Lists| !(lists.read.is_empty() && lists.write.is_empty());
            *id != socket && now < *since + SOON && self.sockets.get(id).is_some_and(waits)
        })
    }

    /// Ends a wait whose waker was not called; returns the wakers, to be dropped without the lock.
    pub(crate) fn unregister(&mut self, socket: SocketId, waker: &Waker) -> Vec<Waker> {
        let mut gone = Vec::new();
        let Some(lists) = self.sockets.get_mut(&socket) else { return gone };
        for list in lists.all() {
            gone.extend(list.extract_if(.., |w| w.will_wake(waker)));
        }
        if lists.all().iter().all(|list| list.is_empty()) {
            self.sockets.remove(&socket);
        }
        gone
    }

    /// Wakes the waits that a change of readiness ends.
    pub(crate) fn handle_event(&mut self, socket: SocketId, gained: Readiness) {
        let Some(lists) = self.sockets.get_mut(&socket) else { return };
        let before = self.ready.len();
        let closed = Readiness::READ_CLOSED | Readiness::WRITE_CLOSED;
        // After a close, no completion may follow.
        if gained.intersects(Readiness::ERROR_QUEUE | closed) {
            self.ready.append(&mut lists.completion);
        }
        if gained.intersects(Readiness::FOR_READ | Readiness::URGENT) {
            self.ready.append(&mut lists.read);
        }
        if gained.intersects(Readiness::FOR_WRITE) {
            self.ready.append(&mut lists.write);
        }
        self.wakeups += (self.ready.len() - before) as u64;
    }

    /// Wakes all waits for a socket that is closed.
    pub(crate) fn forget(&mut self, socket: SocketId) {
        if let Some(mut lists) = self.sockets.remove(&socket) {
            lists.all().into_iter().for_each(|list| self.ready.append(list));
        }
    }

    pub(crate) fn forget_all(&mut self) {
        for mut lists in std::mem::take(&mut self.sockets).into_values() {
            lists.all().into_iter().for_each(|list| self.ready.append(list));
        }
    }
}

/// Who waits for the end of a host. Not under the host's lock: a wait may end where that is held.
#[derive(Clone, Default)]
pub(crate) struct Watchers(Arc<Mutex<Vec<(u64, Waker)>>>);

impl Watchers {
    /// `waker` is to be called; returns the one before it, to be dropped without a lock.
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
