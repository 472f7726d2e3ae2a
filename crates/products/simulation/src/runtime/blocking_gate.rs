//! A gate that makes `spawn_blocking` repeatable: the pool's thread waits at the gate until the host's tasks
//! are at rest, and the tasks wait until the thread is done. So results come at one place in the order of
//! events, and at the simulated time at which the work was handed over.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::host::world::HostHandle;

thread_local! {
/// Number of threads that this thread tried to spawn and that the system refused.
    static REFUSED: Cell<u32> = const { Cell::new(0) };
}

/// The text of tokio's panic in the task that calls `spawn_blocking`, if the pool has no thread and the
/// system gives it none.
const REFUSAL: &str = "OS can't spawn worker thread";

/// Counts a refused thread, if the panic of a task says so.
pub(crate) fn handle_panic(text: &str) {
    if text.starts_with(REFUSAL) {
        let _ = REFUSED.try_with(|refused| refused.set(refused.get() + 1));
    }
}

fn take_refused() -> u32 {
    REFUSED.try_with(Cell::take).unwrap_or(0)
}

/// The gate of one runtime, whose pool has one thread at a time.
#[derive(Debug, Default)]
pub(crate) struct BlockingGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that were spawned and have not stopped.
    threads: u32,
    open: bool,
    passes: u64,
    worker: Option<i32>,
    /// The host whose code the threads run.
    host: Option<HostHandle>,
}

impl BlockingGate {
    pub(crate) fn set_host(&self, host: HostHandle) {
        self.lock().host = Some(host);
    }

    /// Counts a thread that is about to be spawned; called by the thread that spawns it.
    pub(crate) fn handle_spawn(&self) {
        self.lock().threads += 1;
    }

    /// Waits until the gate opens; called by the new thread.
    pub(crate) fn enter(&self) {
        let mut state = self.lock();
        while !state.open {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let host = state.host.clone();
        state.worker = Some(rustix::thread::gettid().as_raw_nonzero().get());
        drop(state);
        HostHandle::set(host);
    }

    /// Uncounts a thread whose work is done; called by that thread.
    pub(crate) fn leave(&self) {
        HostHandle::set(None);
        let mut state = self.lock();
        (state.threads, state.worker) = (state.threads - 1, None);
        drop(state);
        self.changed.notify_all();
    }

    /// Lets the threads work, and waits until they are done. Returns whether there were any.
    pub(crate) fn pass(&self) -> bool {
        let mut state = self.lock();
        state.threads -= take_refused().min(state.threads);
        if state.threads == 0 {
            return false;
        }
        state.open = true;
        self.changed.notify_all();
        while state.threads > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.open = false;
        state.passes += 1;
        true
    }

    /// Number of times that threads were let through and are done.
    pub(crate) fn passes(&self) -> u64 {
        self.lock().passes
    }

    /// `Some` while threads work, with the id of the thread that does. An open gate without threads
    /// is `None`: the simulation's own thread drops the runtime then.
    pub(crate) fn at_work(&self) -> Option<Option<i32>> {
        let state = self.lock();
        (state.open && state.threads > 0).then_some(state.worker)
    }

    /// Lets all threads through from now on: the runtime is about to be dropped.
    pub(crate) fn open_for_good(&self) {
        self.lock().open = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
