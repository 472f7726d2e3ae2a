//! [`Watch`]: the threads that wait for a file, and the epoll instances that watch it.
//!
//! ```text
//!   socket --Waiters--> a thread's waker                       \
//!     |  \--Waiters (once an epoll instance watches)--> Watch   } wake
//!   pipe, epoll instance --> Watch --> threads, instances      /
//! ```
//!
//! A thread that waits for a socket is one of the runtime's [`Waiters`], as those of other sockets are. A file's
//! [`Watch`] adds what only Linux has: files that are no sockets, and several epoll instances of which an event
//! wakes one. Locks are taken in one order: stack, watch, epoll; nothing here takes the stack's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

use pagewire_sockets::{Call, Waiter, WaiterId, Waiters};
use pagewire_stack::{Readiness, SocketId};

use crate::events::Events;

/// The watchers of a file.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<Watchers>);

#[derive(Debug, Default)]
struct Watchers {
    threads: Vec<(Events, WaiterId, Waker)>,
    epolls: Vec<Weak<dyn Subscriber>>,
    /// The watch's names among the waiters of its socket, one for each of [`WAKES`], once an instance watches.
    names: Option<[WaiterId; WAKES.len()]>,
}

/// An epoll instance's entry for a file, as the file's watch knows it.
pub(crate) trait Subscriber: core::fmt::Debug + Send + Sync {
    /// The file may be ready for `what` (nothing: for anything). Returns whether a thread waited.
    fn push(&self, what: Events) -> bool;

    fn is_exclusive(&self) -> bool;

    /// The file is closed.
    fn forget(&self);
}

/// The events that Linux wakes with: data, room and errors have their own, a change of state wakes all.
const WAKES: [(Readiness, Events); 4] = [
    (
        Readiness::READ_CLOSED.union(Readiness::WRITE_CLOSED).union(Readiness::CONNECTED),
        Events::empty(),
    ),
    (
        Readiness::READABLE.union(Readiness::URGENT),
        Events::READ.union(Events::PRI).union(Events::RDBAND),
    ),
    (Readiness::WRITABLE, Events::WRITE.union(Events::WRBAND)),
    (Readiness::ERROR.union(Readiness::ERROR_QUEUE), Events::ERR),
];

/// The readiness that a socket gains when it becomes ready for one of `interest`.
pub(crate) fn gains(interest: Events) -> Readiness {
    let wakes = WAKES.iter().filter(|(_, what)| what.is_empty() || interest.intersects(*what));
    wakes.fold(Readiness::empty(), |all, (gained, _)| all | *gained)
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Watchers> {
        // The lists are whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes what waits for `what`, which may be possible now; for anything, if it is empty.
    pub(crate) fn wake(&self, what: Events) {
        let mut watchers = self.lock();
        let threads = watchers.wakers(what);
        // As Linux: all that share the wake-up, and the first exclusive one with a thread waiting.
        let mut taken = false;
        watchers.epolls.retain(|epoll| {
            let Some(ready) = epoll.upgrade() else { return false };
            if !(taken && ready.is_exclusive()) {
                taken |= ready.push(what) && ready.is_exclusive();
            }
            true
        });
        drop(watchers);
        threads.into_iter().for_each(Waker::wake);
    }

    /// Wakes the threads only: the socket has another id, and they have to wait for that.
    pub(crate) fn wake_threads(&self) {
        let threads = self.lock().wakers(Events::empty());
        threads.into_iter().for_each(Waker::wake);
    }

    /// The file is closed: no epoll instance watches it any more.
    pub(crate) fn forget_epolls(&self) {
        let epolls = std::mem::take(&mut self.lock().epolls);
        epolls.iter().filter_map(Weak::upgrade).for_each(|ready| ready.forget());
    }

    /// Calls `waker` whenever `interest` may be possible, until it is removed.
    pub(crate) fn add(&self, interest: Events, id: WaiterId, waker: &Waker) {
        let mut watchers = self.lock();
        match watchers.threads.iter_mut().find(|(_, old, _)| *old == id) {
            Some((_, _, old)) => old.clone_from(waker),
            None => watchers.threads.push((interest | Events::ALWAYS, id, waker.clone())),
        }
    }

    pub(crate) fn remove(&self, id: WaiterId) {
        self.lock().threads.retain(|(_, other, _)| *other != id);
    }

    pub(crate) fn add_epoll(&self, ready: Weak<dyn Subscriber>) {
        let mut watchers = self.lock();
        watchers.names.get_or_insert_with(|| std::array::from_fn(|_| WaiterId::new()));
        push_weak(&mut watchers.epolls, ready);
    }

    /// Has the file's new socket wake the epoll instances, if there are any. Called under the stack's lock.
    pub(crate) fn follow(self: &Arc<Self>, waiters: &mut Waiters, socket: SocketId) {
        let Some(names) = self.lock().names else { return };
        for (id, (gained, what)) in names.into_iter().zip(WAKES) {
            let waker = Waker::from(Arc::new(Follower { watch: Arc::clone(self), what }));
            let waiter = Waiter { id, call: Call::new("in epoll"), since: None, waker };
            waiters.add_lasting(socket, gained, waiter);
        }
    }
}

impl Watchers {
    fn wakers(&self, what: Events) -> Vec<Waker> {
        let threads = self.threads.iter();
        let woken = threads.filter(|(interest, ..)| what.is_empty() || interest.intersects(what));
        woken.map(|(_, _, waker)| waker.clone()).collect()
    }
}

/// A watch as one of its socket's waiters.
struct Follower {
    watch: Arc<Watch>,
    what: Events,
}

impl Wake for Follower {
    fn wake(self: Arc<Self>) {
        self.watch.wake(self.what);
    }
}

/// Appends to a list, and removes dropped entries before the list grows.
pub(crate) fn push_weak<T: ?Sized>(list: &mut Vec<Weak<T>>, entry: Weak<T>) {
    if list.len() == list.capacity() {
        list.retain(|entry| entry.strong_count() > 0);
    }
    list.push(entry);
}
