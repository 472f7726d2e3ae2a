//! Completed sends on their way to the stack whose they are.

use std::sync::{Arc, PoisonError};

use crate::sync::{AtomicBool, Mutex, Ordering};

/// Ids that nobody refers to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Whose they are: what [`Completion::new`](crate::Completion::new) was given.
    pub owner: u64,
    /// The first id.
    pub lo: u32,
    /// The last id; smaller than `lo` if the numbers wrapped between them.
    pub hi: u32,
    /// Whether any of the memory was copied on the way after all.
    pub copied: bool,
}

/// Called when a completion waits that nobody knows of yet; see [`CompletionQueue::set_waker`].
type Waker = Box<dyn Fn() + Send + Sync>;

/// Completions on their way home to one stack, in the order of the releases.
#[derive(Default)]
pub struct CompletionQueue {
    done: Mutex<Vec<Completed>>,
    /// Whether there are some: a look that costs no lock.
    pending: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl CompletionQueue {
    /// An empty queue.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether there is anything to drain.
    pub fn is_pending(&self) -> bool {
        // SeqCst: pairs with the store in `push`, so that whoever says that it goes to sleep and
        // then looks here does not miss what was queued by somebody who did not see it asleep.
        self.pending.load(Ordering::SeqCst)
    }

    /// Moves everything queued behind what `out` has.
    pub fn drain(&self, out: &mut Vec<Completed>) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::SeqCst);
        out.append(&mut done);
    }

    /// Has `waker` called by whoever queues the first completion since the last drain. It runs on
    /// the releasing thread, possibly inside the stack's own work: it must not wait for a lock that
    /// is held around such work.
    pub fn set_waker(&self, waker: impl Fn() + Send + Sync + 'static) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(waker));
    }

    pub(crate) fn push(&self, completed: Completed) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push(completed);
        let first = !self.pending.swap(true, Ordering::SeqCst);
        drop(done);
        if first && let Some(wake) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }
}

impl core::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CompletionQueue").field("pending", &self.is_pending()).finish()
    }
}
