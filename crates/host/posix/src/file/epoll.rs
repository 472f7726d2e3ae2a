//! [`Epoll`]: an epoll instance: level and edge triggered, one-shot, exclusive, nested.
//!
//! As in Linux, an instance has a list of entries that may be ready. A file's wake-up puts its
//! entries there ([`Ready::push`]); `epoll_wait` takes them off, asks the files, and puts those back
//! that are level triggered and still ready. An edge-triggered entry is not put back.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use pagewire_sockets::WaiterId;

use super::{File, Object};
use crate::backend::Backend;
use crate::events::Events;
use crate::limits::{MAX_EPOLL_DEPTH, MAX_EPOLL_PATHS};
use crate::runtime::Runtime;
use crate::watch::{Subscriber, Watch, push_weak};
use crate::{Errno, Fd};

/// An event that epoll reports, or is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollEvent {
    /// The events to wait for, or those that the file is ready for.
    pub events: Events,
    /// The caller's own.
    pub data: u64,
}

/// An operation of [`Descriptors::epoll_ctl`](crate::Descriptors::epoll_ctl).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollOp {
    /// Watches a file.
    Add(EpollEvent),
    /// Watches it for something else.
    Modify(EpollEvent),
    /// Watches it no longer.
    Delete,
}

#[derive(Debug)]
pub(crate) struct Epoll(Arc<Core>);

#[derive(Debug)]
struct Core {
    lists: Mutex<Lists>,
    /// Threads in `epoll_wait`.
    waiters: AtomicUsize,
    /// The watchers of the instance's own file.
    watch: Arc<Watch>,
    /// Entries of instances that watch this one.
    upper: Mutex<Vec<Weak<Ready>>>,
}

#[derive(Debug, Default)]
struct Lists {
    /// As in Linux, by the file and the number that it was added by.
    entries: HashMap<(usize, Fd), Entry>,
    ready: VecDeque<(usize, Fd)>,
}

#[derive(Debug)]
struct Entry {
    file: Weak<File>,
    wanted: Events,
    data: u64,
    queued: bool,
    /// Kept so that the file's watch finds it.
    link: Arc<Ready>,
}

/// An entry as the watch of its file knows it.
#[derive(Debug)]
struct Ready {
    core: Weak<Core>,
    key: (usize, Fd),
    exclusive: bool,
}

/// Settings among the event bits.
const PRIVATE: Events =
    Events::EDGE.union(Events::ONESHOT).union(Events::EXCLUSIVE).union(Events::WAKEUP);

/// The events that may be asked for together with `EPOLLEXCLUSIVE`.
const WITH_EXCLUSIVE: Events = Events::IN
    .union(Events::OUT)
    .union(Events::ERR)
    .union(Events::HUP)
    .union(Events::WAKEUP)
    .union(Events::EDGE)
    .union(Events::EXCLUSIVE);

impl Subscriber for Ready {
    fn push(&self, what: Events) -> bool {
        let Some(core) = self.core.upgrade() else { return false };
        {
            let mut lists = core.lock();
            let Lists { entries, ready } = &mut *lists;
            let Some(entry) = entries.get_mut(&self.key) else { return false };
            // Reported once, and not modified since.
            if PRIVATE.contains(entry.wanted) {
                return false;
            }
            if !what.is_empty() && !what.intersects(entry.wanted) {
                return false;
            }
            if !std::mem::replace(&mut entry.queued, true) {
                ready.push_back(self.key);
            }
        }
        let waited_for = core.waiters.load(Ordering::Acquire) > 0;
        core.watch.wake(Events::READ);
        waited_for
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn forget(&self) {
        if let Some(core) = self.core.upgrade() {
            core.lock().remove(&self.key);
        }
    }
}

impl Lists {
    /// Takes an entry off both lists: a file that is added again must not be reported twice.
    fn remove(&mut self, key: &(usize, Fd)) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        if entry.queued {
            self.ready.retain(|queued| queued != key);
        }
        Some(entry)
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, Lists> {
        // A key in one list only is skipped, so every state is sound.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    fn new(watch: Arc<Watch>) -> Arc<Self> {
        let (lists, upper) = (Mutex::default(), Mutex::default());
        Arc::new(Self { lists, waiters: AtomicUsize::new(0), watch, upper })
    }

    fn upper(&self) -> MutexGuard<'_, Vec<Weak<Ready>>> {
        self.upper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Epoll {
    pub(crate) fn file() -> Arc<File> {
        let watch = Arc::<Watch>::default();
        let epoll = Self(Core::new(Arc::clone(&watch)));
        File::with_watch(Object::Epoll(epoll), false, watch)
    }

    /// The last descriptor is closed.
    pub(crate) fn close(&self) {
        *self.0.lock() = Lists::default();
    }

    /// Changes what the instance watches of `target`, which the caller knows as `fd`.
    pub(crate) fn control<B: Backend>(
        &self,
        runtime: &Runtime<B>,
        op: EpollOp,
        fd: Fd,
        target: &Arc<File>,
    ) -> Result<(), Errno> {
        let Self(core) = self;
        let key = (Arc::as_ptr(target) as usize, fd);
        match op {
            EpollOp::Add(event) => {
                let exclusive = event.events.contains(Events::EXCLUSIVE);
                let nested = match &target.object {
                    Object::Epoll(Self(inner)) => Some(inner),
                    _ => None,
                };
                if exclusive && (nested.is_some() || !WITH_EXCLUSIVE.contains(event.events)) {
                    return Err(Errno::INVAL);
                }
                // Two threads that close a ring must not both find it open.
                let _nesting =
                    nested.map(|_| runtime.nesting.lock().unwrap_or_else(PoisonError::into_inner));
                if let Some(inner) = nested {
                    // Both ways: a tower grows at its foot too.
                    let above = check_above(core, MAX_EPOLL_DEPTH, &mut HashMap::new())?;
                    let mut looked = HashMap::new();
                    check_depth(inner, core, MAX_EPOLL_DEPTH - above, &mut looked)?;
                    check_breadth(inner, core, &looked)?;
                }
                let link = Arc::new(Ready { core: Arc::downgrade(core), key, exclusive });
                {
                    let mut lists = core.lock();
                    if lists.entries.contains_key(&key) {
                        return Err(Errno::EXIST);
                    }
                    let entry = Entry {
                        file: Arc::downgrade(target),
                        wanted: event.events | Events::ERR | Events::HUP,
                        data: event.data,
                        queued: false,
                        link: Arc::clone(&link),
                    };
                    lists.entries.insert(key, entry);
                }
                let weak = Arc::downgrade(&link);
                if let Some(inner) = nested {
                    push_weak(&mut inner.upper(), weak.clone());
                }
                target.watch.add_epoll(weak);
                if let Object::Socket(socket) = &target.object {
                    socket.report_edges(runtime, &target.watch);
                }
                link.push_if_ready(runtime, target, event.events);
            }
            EpollOp::Modify(event) => {
                let link = {
                    let mut lists = core.lock();
                    let entry = lists.entries.get_mut(&key).ok_or(Errno::NOENT)?;
                    if entry.link.exclusive || event.events.contains(Events::EXCLUSIVE) {
                        return Err(Errno::INVAL);
                    }
                    entry.wanted = event.events | Events::ERR | Events::HUP;
                    entry.data = event.data;
                    Arc::clone(&entry.link)
                };
                link.push_if_ready(runtime, target, event.events);
            }
            EpollOp::Delete => {
                core.lock().remove(&key).ok_or(Errno::NOENT)?;
            }
        }
        Ok(())
    }

    /// Waits until something is ready, or `timeout` is over; returns how many of `events` were filled.
    pub(crate) fn wait<B: Backend>(
        &self,
        runtime: &Runtime<B>,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let Self(core) = self;
        let n = core.report(runtime, events);
        if n > 0 || timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Ok(n);
        }
        let id = WaiterId::new();
        let mut waits = false;
        let mut set_waiting = |on: bool| {
            if std::mem::replace(&mut waits, on) != on {
                let step = if on { 1 } else { usize::MAX };
                core.waiters.fetch_add(step, Ordering::AcqRel);
            }
        };
        let found = runtime.poll_until(timeout, |cx| {
            set_waiting(false);
            core.watch.add(Events::IN, id, cx.waker());
            match core.report(runtime, events) {
                0 => set_waiting(true),
                n => return Poll::Ready(n),
            }
            Poll::Pending
        });
        set_waiting(false);
        core.watch.remove(id);
        found.map(Option::unwrap_or_default)
    }

    /// Readable, if the instance has something to report.
    pub(crate) fn events<B: Backend>(&self, runtime: &Runtime<B>) -> Events {
        let files: Vec<_> = {
            let lists = self.0.lock();
            let entry = |key| lists.entries.get(key).map(|e| (e.file.clone(), e.wanted));
            lists.ready.iter().filter_map(entry).collect()
        };
        let is_ready = |(file, wanted): &(Weak<File>, Events)| {
            !PRIVATE.contains(*wanted)
                && file.upgrade().is_some_and(|file| file.events(runtime).intersects(*wanted))
        };
        Events::READ.when(files.iter().any(is_ready))
    }
}

impl Ready {
    fn push_if_ready<B: Backend>(&self, runtime: &Runtime<B>, target: &File, wanted: Events) {
        let ready = target.events(runtime) & (wanted | Events::ERR | Events::HUP);
        if !ready.is_empty() {
            self.push(ready);
        }
    }
}

impl Core {
    /// Reports entries that are ready, each at most once.
    fn report<B: Backend>(&self, runtime: &Runtime<B>, events: &mut [EpollEvent]) -> usize {
        let (mut found, mut left) = (0, self.lock().ready.len());
        while left > 0 && found < events.len() {
            left -= 1;
            let taken = {
                let mut lists = self.lock();
                let Lists { entries, ready } = &mut *lists;
                let Some(key) = ready.pop_front() else { break };
                entries.get_mut(&key).map(|entry| {
                    entry.queued = false;
                    (key, entry.file.clone())
                })
            };
            let Some((key, file)) = taken else { continue };
            let Some(file) = file.upgrade() else { continue };
            let ready = file.events(runtime);
            let mut lists = self.lock();
            let Lists { entries, ready: list } = &mut *lists;
            let Some(entry) = entries.get_mut(&key) else { continue };
            let reported = ready & entry.wanted & !PRIVATE;
            if PRIVATE.contains(entry.wanted) || reported.is_empty() {
                continue;
            }
            events[found] = EpollEvent { events: reported, data: entry.data };
            found += 1;
            if entry.wanted.contains(Events::ONESHOT) {
                entry.wanted &= PRIVATE;
            } else if !entry.wanted.contains(Events::EDGE)
                && !std::mem::replace(&mut entry.queued, true)
            {
                list.push_back(key);
            }
        }
        found
    }
}

/// The instances that a walk has visited, and the paths at each, so that it visits each edge of a mesh a few times only.
type Looked = HashMap<*const Core, (Arc<Core>, usize)>;

/// Whether `core` may watch `inner`: no ring, and no deeper than Linux allows. `looked` has the
/// instances from `inner` down, with the least depth left there.
fn check_depth(
    inner: &Arc<Core>,
    core: &Arc<Core>,
    depth: usize,
    looked: &mut Looked,
) -> Result<(), Errno> {
    if Arc::ptr_eq(inner, core) || depth == 0 {
        return Err(Errno::LOOP);
    }
    let fresh = || (Arc::clone(inner), usize::MAX);
    let (_, least) = looked.entry(Arc::as_ptr(inner)).or_insert_with(fresh);
    if *least <= depth {
        return Ok(());
    }
    *least = depth;
    let below: Vec<_> = inner.lock().entries.values().filter_map(|e| e.file.upgrade()).collect();
    below.iter().try_for_each(|file| match &file.object {
        Object::Epoll(Epoll(next)) => check_depth(next, core, depth - 1, looked),
        _ => Ok(()),
    })
}

/// The instances that watch `core`.
fn above(core: &Core) -> Vec<Arc<Core>> {
    let links: Vec<_> = core.upper().iter().filter_map(Weak::upgrade).collect();
    let upper = links.iter().filter_map(|link| link.core.upgrade().map(|core| (link, core)));
    // Links of deleted entries stay in the list.
    let upper = upper.filter(|(link, core)| core.lock().entries.contains_key(&link.key));
    upper.map(|(_, core)| core).collect()
}

/// How many levels of instances watch `core`: no more than `depth`.
fn check_above(core: &Arc<Core>, depth: usize, looked: &mut Looked) -> Result<usize, Errno> {
    let mut highest = 0;
    for upper in above(core) {
        let depth = depth.checked_sub(1).ok_or(Errno::LOOP)?;
        let height = match looked.get(&Arc::as_ptr(&upper)) {
            Some(&(_, height)) if height > depth => return Err(Errno::LOOP),
            Some(&(_, height)) => height,
            None => check_above(&upper, depth, looked)?,
        };
        looked.insert(Arc::as_ptr(&upper), (Arc::clone(&upper), height));
        highest = highest.max(1 + height);
    }
    Ok(highest)
}

/// Whether a wake-up still has few enough paths up from `below` once `core` watches `inner`.
fn check_breadth(inner: &Arc<Core>, core: &Arc<Core>, below: &Looked) -> Result<(), Errno> {
    let mut looked = HashMap::new();
    let new = 1 + ways_up(core, &mut looked);
    let old = ways_up(inner, &mut looked);
    // The instances below were not visited yet: their paths lead through `inner`.
    looked.insert(Arc::as_ptr(inner), (Arc::clone(inner), old.saturating_add(new)));
    let many = |(core, _): &(Arc<Core>, usize)| ways_up(core, &mut looked) > MAX_EPOLL_PATHS;
    // As Linux.
    if below.values().any(many) { Err(Errno::INVAL) } else { Ok(()) }
}

/// How many paths a wake-up has up from `core`.
fn ways_up(core: &Arc<Core>, looked: &mut Looked) -> usize {
    if let Some(&(_, ways)) = looked.get(&Arc::as_ptr(core)) {
        return ways;
    }
    let mut ways = 0usize;
    for upper in &above(core) {
        ways = ways.saturating_add(1).saturating_add(ways_up(upper, looked));
    }
    looked.insert(Arc::as_ptr(core), (Arc::clone(core), ways));
    ways
}

#[cfg(test)]
#[path = "epoll_tests.rs"]
mod tests;
