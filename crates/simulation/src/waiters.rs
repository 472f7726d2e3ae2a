//! Tasks that wait for a socket of one host: what for, since when, and from which line.

use std::panic::Location;
use std::task::Waker;

use pagewire_stack::{Readiness, SocketId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::SimTime;

/// Names a waiter of one simulation: one for each future, or for each direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WaiterId(u64);

/// A task that waits for a socket.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Replaces the one that was registered before with the same id.
    pub(crate) id: WaiterId,
    /// For reports, after "waits": `"to read"`, `"to accept"`.
    pub(crate) what: &'static str,
    /// When this wait began.
    pub(crate) since: SimTime,
    /// The line that called, if a future remembers it.
    pub(crate) location: Option<&'static Location<'static>>,
    /// Woken once, outside of the world's lock.
    pub(crate) waker: Waker,
}

/// The waiters of one host.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Nobody walks this map but reports, which sort.
    sockets: FxHashMap<SocketId, SmallVec<[(Readiness, Waiter); 2]>>,
}

/// Numbers for waiters.
#[derive(Debug, Default)]
pub(crate) struct WaiterIds(u64);

impl WaiterIds {
    pub(crate) fn next(&mut self) -> WaiterId {
        self.0 += 1;
        WaiterId(self.0)
    }
}

impl Waiters {
    /// Remembers `waiter` until the socket gains one of `interest`; returns the waker that it
    /// replaces, to be dropped without the lock.
    pub(crate) fn add(
        &mut self,
        socket: SocketId,
        interest: Readiness,
        waiter: Waiter,
    ) -> Option<Waker> {
        let waiters = self.sockets.entry(socket).or_default();
        match waiters.iter_mut().find(|(_, old)| old.id == waiter.id) {
            Some((for_what, old)) => {
                *for_what = interest;
                // The same wait goes on.
                let since = if old.what == waiter.what { old.since } else { waiter.since };
                let old = std::mem::replace(old, Waiter { since, ..waiter });
                Some(old.waker)
            }
            None => {
                waiters.push((interest, waiter));
                None
            }
        }
    }

    /// Forgets a waiter; returns its waker, to be dropped without the lock.
    pub(crate) fn remove(&mut self, socket: SocketId, id: WaiterId) -> Option<Waker> {
        let waiters = self.sockets.get_mut(&socket)?;
        let at = waiters.iter().position(|(_, waiter)| waiter.id == id)?;
        let (_, waiter) = waiters.remove(at);
        if waiters.is_empty() {
            self.sockets.remove(&socket);
        }
        Some(waiter.waker)
    }

    /// Takes those that wait for something in `gained`.
    pub(crate) fn take(&mut self, socket: SocketId, gained: Readiness, wakes: &mut Vec<Waker>) {
        let Some(waiters) = self.sockets.get_mut(&socket) else { return };
        let mut at = 0;
        while let Some((interest, _)) = waiters.get(at) {
            if interest.intersects(gained) {
                wakes.push(waiters.remove(at).1.waker);
            } else {
                at += 1;
            }
        }
        if waiters.is_empty() {
            self.sockets.remove(&socket);
        }
    }

    /// All, ordered by when they began to wait.
    pub(crate) fn sorted(&self) -> Vec<(SocketId, &Waiter)> {
        let all = self.sockets.iter();
        let mut all: Vec<_> =
            all.flat_map(|(socket, some)| some.iter().map(|(_, w)| (*socket, w))).collect();
        all.sort_by_key(|(_, waiter)| (waiter.since, waiter.id));
        all
    }

    /// All wakers, in that order: their sockets are gone.
    pub(crate) fn clear(&mut self, wakes: &mut Vec<Waker>) {
        let mut all: Vec<_> =
            self.sockets.drain().flat_map(|(_, some)| some).map(|(_, waiter)| waiter).collect();
        all.sort_by_key(|waiter| (waiter.since, waiter.id));
        wakes.extend(all.into_iter().map(|waiter| waiter.waker));
    }
}

#[cfg(test)]
#[path = "waiters_tests.rs"]
mod tests;
