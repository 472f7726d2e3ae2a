//! What a file wakes when it becomes ready: blocked threads, and epoll instances.
//!
//! A file has one [`Watch`]. The stack's events find it through [`Notices`], by socket. Locks are taken
//! in one order: stack, notices, watch, epoll; nothing here takes the stack's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Thread;

use pagewire_stack::{Event, Readiness, SocketId};

use crate::events::Events;

/// What a blocked thread waits for: a flag, set when something happened that may concern it.
#[derive(Debug)]
pub struct Signal {
    set: AtomicBool,
    thread: Thread,
}

impl Signal {
    /// For the calling thread.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { set: AtomicBool::new(false), thread: std::thread::current() })
    }

    /// Whether something happened.
    pub fn is_set(&self) -> bool {
        // Pairs with `set`: a thread that sees the flag sees what happened before it was set.
        self.set.load(Ordering::Acquire)
    }

    /// Clears the flag, before the thread looks again.
    pub(crate) fn clear(&self) {
        self.set.store(false, Ordering::Release);
    }

    pub(crate) fn set(&self) {
        self.set.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// What waits for one file.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<Watchers>);

#[derive(Debug, Default)]
struct Watchers {
    threads: Vec<(Events, Arc<Signal>)>,
    epolls: Vec<Weak<dyn Subscriber>>,
}

/// An epoll instance's entry for a file, as the file's watch knows it.
pub(crate) trait Subscriber: core::fmt::Debug + Send + Sync {
    /// The file may be ready for `what` (nothing: for anything). Returns whether a thread waited.
    fn push(&self, what: Events) -> bool;

    fn is_exclusive(&self) -> bool;

    /// The file is closed.
    fn forget(&self);
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Watchers> {
        // The lists are whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes what waits for `what`, which may be possible now; for anything, if it is empty.
    pub(crate) fn wake(&self, what: Events) {
        let mut watchers = self.lock();
        let all = what.is_empty();
        for (interest, signal) in &watchers.threads {
            if all || interest.intersects(what) {
                signal.set();
            }
        }
        // As Linux: all that share the wake-up, and the first exclusive one with a thread waiting.
        let mut taken = false;
        watchers.epolls.retain(|epoll| {
            let Some(ready) = epoll.upgrade() else { return false };
            if !(taken && ready.is_exclusive()) {
                taken |= ready.push(what) && ready.is_exclusive();
            }
            true
        });
    }

    /// The file is closed: no epoll instance watches it any more.
    pub(crate) fn forget_epolls(&self) {
        let epolls = std::mem::take(&mut self.lock().epolls);
        epolls.iter().filter_map(Weak::upgrade).for_each(|ready| ready.forget());
    }

    /// Sets `signal` whenever `interest` may be possible, until the guard is dropped.
    pub(crate) fn watch<'a>(&'a self, interest: Events, signal: &Arc<Signal>) -> Watching<'a> {
        self.lock().threads.push((interest | Events::ALWAYS, Arc::clone(signal)));
        Watching { watch: self, signal: Arc::clone(signal) }
    }

    pub(crate) fn add_epoll(&self, ready: Weak<dyn Subscriber>) {
        push_weak(&mut self.lock().epolls, ready);
    }
}

/// Appends to a list, and removes dropped entries before the list grows.
pub(crate) fn push_weak<T: ?Sized>(list: &mut Vec<Weak<T>>, entry: Weak<T>) {
    if list.len() == list.capacity() {
        list.retain(|entry| entry.strong_count() > 0);
    }
    list.push(entry);
}

/// Ends a thread's watch when dropped.
pub(crate) struct Watching<'a> {
    watch: &'a Watch,
    signal: Arc<Signal>,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let mut watchers = self.watch.lock();
        if let Some(at) = watchers.threads.iter().position(|(_, s)| Arc::ptr_eq(s, &self.signal)) {
            watchers.threads.swap_remove(at);
        }
    }
}

/// Where a [`Backend`](crate::Backend) delivers the events of its stack.
#[derive(Debug, Default)]
pub struct Notices(Mutex<HashMap<SocketId, Arc<Watch>>>);

impl Notices {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketId, Arc<Watch>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes what waits for the events that the socket has become ready for. Returns at once.
    pub fn notify(&self, event: Event) {
        let watch = self.lock().get(&event.socket).cloned();
        if let Some(watch) = watch {
            watch.wake(wakes(event.gained));
        }
    }

    /// Sends the socket's events to `watch`. Called under the stack lock that made the socket.
    pub(crate) fn insert(&self, id: SocketId, watch: &Arc<Watch>) {
        self.lock().insert(id, Arc::clone(watch));
    }

    pub(crate) fn remove(&self, id: SocketId) {
        self.lock().remove(&id);
    }
}

/// The events that Linux wakes with: data, room and errors have their own, a change of state wakes all.
fn wakes(gained: Readiness) -> Events {
    let state = Readiness::READ_CLOSED | Readiness::WRITE_CLOSED | Readiness::CONNECTED;
    if gained.intersects(state) {
        return Events::empty();
    }
    let mut events = Events::empty();
    if gained.intersects(Readiness::READABLE | Readiness::URGENT) {
        events |= Events::IN | Events::PRI | Events::RDNORM | Events::RDBAND;
    }
    if gained.contains(Readiness::WRITABLE) {
        events |= Events::OUT | Events::WRNORM | Events::WRBAND;
    }
    if gained.intersects(Readiness::ERROR | Readiness::ERROR_QUEUE) {
        events |= Events::ERR;
    }
    events
}
