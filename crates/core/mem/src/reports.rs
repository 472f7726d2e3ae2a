//! A queue of reports, from any thread to one stack. Its use is [`CompletionQueue`]: sent memory was
//! released.

use std::sync::{Arc, PoisonError};

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// Ids of sends whose memory was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The owner of the ids, as given to [`Completion::new`](crate::Completion::new).
    pub owner: u64,
    /// The first id.
    pub lo: u32,
    /// The last id; smaller than `lo` if the numbers wrapped between them.
    pub hi: u32,
    /// Whether any of the memory was copied on the way after all.
    pub copied: bool,
}

/// Completed sends of one stack.
pub type CompletionQueue = Reports<Completed>;

/// Called when the queue is not empty any more; see [`Reports::set_waker`].
type Waker = Box<dyn Fn() + Send + Sync>;

/// Reports to one stack, in the order of the releases.
pub struct Reports<T> {
    queue: Mutex<Vec<T>>,
    /// Whether there are any, to be checked without the lock.
    pending: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl<T> Default for Reports<T> {
    fn default() -> Self {
        let (queue, waker) = (Mutex::new(Vec::new()), Mutex::new(None));
        Self { queue, pending: AtomicBool::new(false), waker }
    }
}

impl<T> Reports<T> {
    /// An empty queue.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether there is anything to drain.
    pub fn is_pending(&self) -> bool {
        // SeqCst: pairs with the store in `push`, so that a driver that sets its sleep flag and
        // then checks here misses nothing queued by a thread that did not see the flag.
        self.pending.load(Ordering::SeqCst)
    }

    /// Sets `waker`, which the first push after a drain calls. It runs on the releasing thread,
    /// possibly under a stack's lock, for which it must not wait.
    pub fn set_waker(&self, waker: impl Fn() + Send + Sync + 'static) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(waker));
    }

    pub(crate) fn push(&self, report: T) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push(report);
        let first = !self.pending.swap(true, Ordering::SeqCst);
        drop(queue);
        if first && let Some(wake) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }

    /// The queue, which its holder empties.
    pub(crate) fn drained(&self) -> MutexGuard<'_, Vec<T>> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::SeqCst);
        queue
    }
}

impl CompletionQueue {
    /// Appends all queued completions to `out`.
    pub fn drain(&self, out: &mut Vec<Completed>) {
        out.append(&mut self.drained());
    }
}

impl<T> core::fmt::Debug for Reports<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Reports").field("pending", &self.is_pending()).finish()
    }
}
