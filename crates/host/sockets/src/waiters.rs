//! [`Waiters`]: the tasks and threads that wait for sockets of one stack: for which events, since when, and from which line.

use std::collections::BTreeMap;
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
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for WaiterId {
    fn default() -> Self {
        Self::new()
    }
}

/// The tasks that last polled a read, a write and a completion of a socket, as in tokio. Readiness counts as a
/// read or a write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polls {
    pub(crate) reads: WaiterId,
    pub(crate) writes: WaiterId,
    pub(crate) completes: WaiterId,
}

impl Polls {
    pub(crate) fn all(self) -> [WaiterId; 3] {
        [self.reads, self.writes, self.completes]
    }
}

/// A call that waits, for reports.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The purpose of the wait, as it reads after "waits": `"to read"`, `"to accept"`.
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
    /// When the wait began; `None` if nobody read the clock.
    pub since: Option<Instant>,
    /// Called once, outside of the runtime's lock.
    pub waker: Waker,
}

/// The waiters of one stack, by socket, and those that wait for a time of its clock.
#[derive(Debug)]
pub struct Waiters {
    /// No peer chooses the ids. Nobody walks the map but reports, which sort.
    sockets: FxHashMap<SocketId, SmallVec<[Entry; 2]>>,
    timers: BTreeMap<(Instant, WaiterId), Waker>,
    /// When the next timer is due, or earlier; far: there is none. Every turn of a host asks.
    next: Instant,
}

impl Default for Waiters {
    fn default() -> Self {
        Self { sockets: FxHashMap::default(), timers: BTreeMap::new(), next: Instant::FAR }
    }
}

/// A waiter of one socket.
#[derive(Debug)]
struct Entry {
    interest: Readiness,
    /// The waiter stays when it is woken.
    stays: bool,
    waiter: Waiter,
}

impl Waiters {
    /// Remembers `waiter` until the socket gains one of `interest`. Only a socket that is not ready now
    /// can become ready: try the operation first. Returns the waker that is replaced, to be dropped without
    /// the runtime's lock.
    #[inline]
    pub fn add(&mut self, socket: SocketId, interest: Readiness, waiter: Waiter) -> Option<Waker> {
        self.insert(socket, Entry { interest, stays: false, waiter })
    }

    /// [`add`](Self::add) for a waiter that is woken every time, until it is removed: an instance of epoll.
    pub fn add_lasting(
        &mut self,
        socket: SocketId,
        interest: Readiness,
        waiter: Waiter,
    ) -> Option<Waker> {
        self.insert(socket, Entry { interest, stays: true, waiter })
    }

    fn insert(&mut self, socket: SocketId, mut new: Entry) -> Option<Waker> {
        let waiters = self.sockets.entry(socket).or_default();
        match waiters.iter_mut().find(|old| old.waiter.id == new.waiter.id) {
            Some(old) => {
                // The same wait goes on.
                if old.waiter.call.what == new.waiter.call.what {
                    new.waiter.since = old.waiter.since;
                }
                Some(std::mem::replace(old, new).waiter.waker)
            }
            None => {
                waiters.push(new);
                None
            }
        }
    }

    /// Forgets a waiter. Returns its waker, to be dropped without the runtime's lock.
    pub fn remove(&mut self, socket: SocketId, id: WaiterId) -> Option<Waker> {
        let waiters = self.sockets.get_mut(&socket)?;
        let at = waiters.iter().position(|entry| entry.waiter.id == id)?;
        Some(waiters.remove(at).waiter.waker)
    }

    /// Takes the wakers of those that wait for something in `gained`.
    #[inline]
    pub fn take(&mut self, socket: SocketId, gained: Readiness, wakes: &mut Vec<Waker>) {
        let Some(waiters) = self.sockets.get_mut(&socket) else { return };
        let mut at = 0;
        while let Some(entry) = waiters.get(at) {
            match entry.interest.intersects(gained) {
                true if entry.stays => wakes.push(entry.waiter.waker.clone()),
                true => {
                    wakes.push(waiters.remove(at).waiter.waker);
                    continue;
                }
                false => {}
            }
            at += 1;
        }
    }

    /// Whether a call waits for one of `interest` of the socket.
    pub fn is_awaited(&self, socket: SocketId, interest: Readiness) -> bool {
        let waits = |entry: &Entry| !entry.stays && entry.interest.intersects(interest);
        self.sockets.get(&socket).is_some_and(|all| all.iter().any(waits))
    }

    /// Remembers a waker until the clock has reached `at`. Returns the one that is replaced, to be dropped
    /// without the runtime's lock.
    pub fn add_timer(&mut self, at: Instant, id: WaiterId, waker: Waker) -> Option<Waker> {
        self.next = self.next.min(at);
        self.timers.insert((at, id), waker)
    }

    /// Forgets a waker of [`add_timer`](Self::add_timer), and returns it to be dropped without the lock.
    pub fn remove_timer(&mut self, at: Instant, id: WaiterId) -> Option<Waker> {
        self.timers.remove(&(at, id))
    }

    /// When [`take_timers`](Self::take_timers) is due: the time of the next timer, or that of one that was
    /// removed before.
    #[inline]
    pub fn next_timer(&self) -> Option<Instant> {
        (self.next < Instant::FAR).then_some(self.next)
    }

    /// Takes the wakers whose time has come.
    #[inline]
    pub fn take_timers(&mut self, now: Instant, wakes: &mut Vec<Waker>) {
        if self.next <= now {
            self.take_due(now, wakes);
        }
    }

    #[cold]
    fn take_due(&mut self, now: Instant, wakes: &mut Vec<Waker>) {
        while let Some(first) = self.timers.first_entry()
            && first.key().0 <= now
        {
            wakes.push(first.remove());
        }
        self.next = self.timers.first_key_value().map_or(Instant::FAR, |(key, _)| key.0);
    }

    /// Takes all wakers of a socket that is closed.
    pub fn forget(&mut self, socket: SocketId, wakes: &mut Vec<Waker>) {
        let gone = self.sockets.remove(&socket).unwrap_or_default();
        wakes.extend(gone.into_iter().map(|entry| entry.waiter.waker));
    }

    /// Takes all wakers, those of sockets in the order of [`sorted`](Self::sorted): the sockets are gone, and
    /// nobody reads the clock any more.
    pub fn clear(&mut self, wakes: &mut Vec<Waker>) {
        let mut all: Vec<_> =
            self.sockets.drain().flat_map(|(_, some)| some).map(|entry| entry.waiter).collect();
        all.sort_by_key(|waiter| (waiter.since, waiter.id));
        wakes.extend(all.into_iter().map(|waiter| waiter.waker));
        wakes.extend(std::mem::take(&mut self.timers).into_values());
        self.next = Instant::FAR;
    }

    /// The waiters, ordered by when they began to wait.
    pub fn sorted(&self) -> Vec<(SocketId, &Waiter)> {
        let all = self.sockets.iter();
        let mut all: Vec<_> = all
            .flat_map(|(socket, some)| some.iter().map(|entry| (*socket, &entry.waiter)))
            .collect();
        all.sort_by_key(|(_, waiter)| (waiter.since, waiter.id));
        all
    }
}

#[cfg(test)]
#[path = "waiters_tests.rs"]
mod tests;
