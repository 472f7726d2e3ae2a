//! Tasks and threads that wait for sockets of one stack: what for, since when, and from which line.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use pagewire_mem::Instant;
use pagewire_stack::{Readiness, SocketId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Names a waiter: a future, a thread, or one direction of a socket's `poll_*` calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(u64);

impl WaiterId {
    /// A new id, greater than all before.
    pub fn new() -> Self {
        let [id] = Self::several();
        id
    }

    /// Several new ids.
    pub(crate) fn several<const N: usize>() -> [Self; N] {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let first = NEXT.fetch_add(N as u64, Ordering::Relaxed);
        std::array::from_fn(|at| Self(first + at as u64))
    }
}

impl Default for WaiterId {
    fn default() -> Self {
        Self::new()
    }
}

/// A call that waits, for reports.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What the caller does, after "waits": `"to read"`, `"to accept"`.
    pub what: &'static str,
    /// The line of the call, if a future remembers it.
    pub location: Option<&'static Location<'static>>,
}

impl Call {
    /// A call of unknown origin.
    pub const fn new(what: &'static str) -> Self {
        Self { what, location: None }
    }

    /// A call by the line that called the current function, which is `#[track_caller]`.
    #[track_caller]
    pub(crate) fn here(what: &'static str) -> Self {
        Self { what, location: Some(Location::caller()) }
    }
}

/// Who waits for a socket.
#[derive(Debug)]
pub struct Waiter {
    /// A waiter replaces the one that was registered before with the same id.
    pub id: WaiterId,
    /// The call that waits.
    pub call: Call,
    /// When the wait began; `None`, if nobody looked at the clock.
    pub since: Option<Instant>,
    /// Called once, outside of the runtime's lock.
    pub waker: Waker,
}

/// The waiters of one stack, by socket.
#[derive(Debug, Default)]
pub struct Waiters {
    /// No peer chooses the ids. Nobody walks the map but reports, which sort.
    sockets: FxHashMap<SocketId, SmallVec<[(Readiness, Waiter); 2]>>,
}

impl Waiters {
    /// Remembers `waiter` until the socket gains one of `interest`. Only a socket that is not ready now
    /// can become ready: try the operation first. Returns the waker that is replaced, to be dropped without
    /// the runtime's lock.
    pub fn add(&mut self, socket: SocketId, interest: Readiness, waiter: Waiter) -> Option<Waker> {
        let waiters = self.sockets.entry(socket).or_default();
        match waiters.iter_mut().find(|(_, old)| old.id == waiter.id) {
            Some((for_what, old)) => {
                *for_what = interest;
                // The same wait goes on.
                let since =
                    if old.call.what == waiter.call.what { old.since } else { waiter.since };
                Some(std::mem::replace(old, Waiter { since, ..waiter }).waker)
            }
            None => {
                waiters.push((interest, waiter));
                None
            }
        }
    }

    /// Forgets a waiter. Returns its waker, to be dropped without the runtime's lock.
    pub fn remove(&mut self, socket: SocketId, id: WaiterId) -> Option<Waker> {
        let waiters = self.sockets.get_mut(&socket)?;
        let at = waiters.iter().position(|(_, waiter)| waiter.id == id)?;
        Some(waiters.remove(at).1.waker)
    }

    /// Takes the wakers of those that wait for something in `gained`.
    #[inline]
    pub fn take(&mut self, socket: SocketId, gained: Readiness, wakes: &mut Vec<Waker>) {
        let Some(waiters) = self.sockets.get_mut(&socket) else { return };
        let mut at = 0;
        while let Some((interest, _)) = waiters.get(at) {
            if interest.intersects(gained) {
                wakes.push(waiters.remove(at).1.waker);
            } else {
                at += 1;
            }
        }
    }

    /// Whether anybody waits for one of `interest` of the socket.
    pub fn is_awaited(&self, socket: SocketId, interest: Readiness) -> bool {
        let waiters = self.sockets.get(&socket);
        waiters.is_some_and(|all| all.iter().any(|(waits_for, _)| waits_for.intersects(interest)))
    }

    /// Takes all wakers of a socket that is closed.
    pub fn forget(&mut self, socket: SocketId, wakes: &mut Vec<Waker>) {
        let gone = self.sockets.remove(&socket).unwrap_or_default();
        wakes.extend(gone.into_iter().map(|(_, waiter)| waiter.waker));
    }

    /// Takes all wakers, in the order of [`sorted`](Self::sorted): the sockets are gone.
    pub fn clear(&mut self, wakes: &mut Vec<Waker>) {
        let mut all: Vec<_> =
            self.sockets.drain().flat_map(|(_, some)| some).map(|(_, waiter)| waiter).collect();
        all.sort_by_key(|waiter| (waiter.since, waiter.id));
        wakes.extend(all.into_iter().map(|waiter| waiter.waker));
    }

    /// All waiters, ordered by when they began to wait.
    pub fn sorted(&self) -> Vec<(SocketId, &Waiter)> {
        let all = self.sockets.iter();
        let mut all: Vec<_> = all
            .flat_map(|(socket, some)| some.iter().map(|(_, waiter)| (*socket, waiter)))
            .collect();
        all.sort_by_key(|(_, waiter)| (waiter.since, waiter.id));
        all
    }
}

#[cfg(test)]
#[path = "waiters_tests.rs"]
mod tests;
