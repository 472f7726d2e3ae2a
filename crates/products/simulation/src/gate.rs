//! Makes `spawn_blocking` repeatable: its thread waits at a gate until the host's tasks are at rest,
//! and they wait until it is done. So its results come at one place in the order of events, and at
//! the simulated time at which the work was handed over.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::world::HostHandle;

thread_local! {
    /// Threads that this one was about to spawn, and that the system refused.
    static REFUSED: Cell<u32> = const { Cell::new(0) };
}

/// What tokio says, as a panic of the task that calls `spawn_blocking`, if its pool has no thread and
/// the system gives it none.
const REFUSAL: &str = "OS can't spawn worker thread";

/// A task of this thread panics.
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
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that were spawned and have not stopped.
    threads: u32,
    open: bool,
    /// How often threads were let through.
    passes: u64,
    /// The thread that works, as the kernel numbers it.
    worker: Option<i32>,
    /// Whose code the threads run.
    here: Option<HostHandle>,
}

impl Gate {
    /// Says whose code the threads run.
    pub(crate) fn set_here(&self, here: Option<HostHandle>) {
        self.lock().here = here;
    }

    /// A thread is about to be spawned; called by the thread that spawns it.
    pub(crate) fn handle_spawn(&self) {
        self.lock().threads += 1;
    }

    /// Waits until the gate opens; called by the new thread.
    pub(crate) fn enter(&self) {
        let mut state = self.lock();
        while !state.open {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let here = state.here.clone();
        state.worker = Some(rustix::thread::gettid().as_raw_nonzero().get());
        drop(state);
        HostHandle::set(here);
    }

    /// The thread's work is done; called by it.
    pub(crate) fn leave(&self) {
        HostHandle::set(None);
        let mut state = self.lock();
        (state.threads, state.worker) = (state.threads - 1, None);
        drop(state);
        self.changed.notify_all();
    }

    /// Lets the threads work, and waits until they are done; whether there were any.
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

    /// How often threads were let through, and are done.
    pub(crate) fn passes(&self) -> u64 {
        self.lock().passes
    }

    /// Whether threads work now, and the one that does. A gate that is open for good without threads
    /// says nothing: the simulation's own thread drops the runtime then.
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
