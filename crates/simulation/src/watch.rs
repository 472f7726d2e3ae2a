//! A thread with a real clock that watches the simulations of this process. It never steers a run
//! that is well: it ends one that would not end, and finds tasks that block their thread.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::Duration;

use crate::HostId;
use crate::limits::{MAX_BLOCKED, MAX_TURN, WATCH_INTERVAL};
use crate::runtime::{HostRuntime, Stopper};

/// One simulation, as the thread sees it.
pub(crate) struct Watch {
    /// Odd while tasks run: changes with every begin and end.
    turn: AtomicU64,
    /// The thread that runs them.
    thread: i32,
    /// Milliseconds that this turn's thread was found asleep.
    asleep: AtomicU64,
    /// The host whose tasks run.
    host: AtomicUsize,
    /// How to end the runs of each host.
    stoppers: Mutex<Vec<Option<Stopper>>>,
}

static WATCHED: Mutex<Vec<Weak<Watch>>> = Mutex::new(Vec::new());

impl Watch {
    /// Watches a simulation on this thread, as long as it lives.
    pub(crate) fn new() -> Arc<Self> {
        let watch = Arc::new(Self {
            turn: AtomicU64::new(0),
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            asleep: AtomicU64::new(0),
            host: AtomicUsize::new(0),
            stoppers: Mutex::new(Vec::new()),
        });
        lock(&WATCHED).push(Arc::downgrade(&watch));
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // Without the thread, a run that does not end does not end.
            let _ = std::thread::Builder::new().name("pagewire watch".into()).spawn(watch_all);
        });
        watch
    }

    /// A host was started.
    pub(crate) fn start(&self, host: HostId, runtime: &HostRuntime) {
        let mut stoppers = lock(&self.stoppers);
        let len = stoppers.len().max(host.index() + 1);
        stoppers.resize(len, None);
        if let Some(slot) = stoppers.get_mut(host.index()) {
            *slot = Some(runtime.stopper());
        }
    }

    /// Tasks begin to run.
    pub(crate) fn begin(&self, host: HostId) {
        self.host.store(host.index(), Relaxed);
        self.turn.fetch_add(1, Relaxed);
    }

    /// Tasks are at rest. `Some`: the thread slept for so long meanwhile.
    pub(crate) fn end(&self) -> Option<Duration> {
        self.turn.fetch_add(1, Relaxed);
        if self.asleep.load(Relaxed) == 0 {
            return None;
        }
        let slept = Duration::from_millis(self.asleep.swap(0, Relaxed));
        (slept >= MAX_BLOCKED).then_some(slept)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was seen of a simulation when it was last looked at.
struct Seen {
    watch: Weak<Watch>,
    turn: u64,
    since: Duration,
}

fn watch_all() {
    let (mut all, mut time) = (Vec::<Seen>::new(), Duration::ZERO);
    loop {
        std::thread::sleep(WATCH_INTERVAL);
        time += WATCH_INTERVAL;
        let new = std::mem::take(&mut *lock(&WATCHED));
        all.extend(new.into_iter().map(|watch| Seen { watch, turn: 0, since: time }));
        all.retain_mut(|seen| {
            let Some(watch) = seen.watch.upgrade() else { return false };
            let turn = watch.turn.load(Relaxed);
            if turn != seen.turn || turn.is_multiple_of(2) {
                (seen.turn, seen.since) = (turn, time);
                return true;
            }
            if is_asleep(watch.thread) && watch.turn.load(Relaxed) == turn {
                watch.asleep.fetch_add(WATCH_INTERVAL.as_millis() as u64, Relaxed);
            }
            if time - seen.since >= MAX_TURN {
                let host = watch.host.load(Relaxed);
                if let Some(Some(stopper)) = lock(&watch.stoppers).get(host) {
                    stopper.stop();
                }
            }
            true
        });
    }
}

/// Whether a thread of this process sleeps, and does not merely wait for a processor.
fn is_asleep(thread: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")) else {
        return false;
    };
    // proc_pid_stat(5): the state follows the name, which is in parentheses.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}
