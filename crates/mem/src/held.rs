//! Received memory that an application keeps: counted for each connection, so that its window
//! closes before a pool is empty, with a report when some of it is released.
//!
//! ```text
//!   recv_chunks, map ---> Held (goes with the memory, to any thread)
//!                           | dropped: the count falls
//!                           v
//!                        Holdings (one for each connection) --- if somebody waits ---> Returns
//!                                                                              (one for each stack)
//! ```

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of memory that one connection's application keeps.
#[derive(Debug)]
pub struct Holdings {
    bytes: AtomicUsize,
    /// The owner wants a report when it becomes less.
    awaited: AtomicBool,
    /// Bytes that stay charged after the connection's end, until all is released.
    abandoned: AtomicUsize,
    owner: u64,
    returns: Arc<Returns>,
}

/// A part of a connection's [`Holdings`], until it is dropped. The default holds nothing.
#[derive(Debug, Default)]
pub struct Held {
    holdings: Option<Arc<Holdings>>,
    bytes: usize,
}

/// A release of held memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// A part of this owner's memory.
    Some(u64),
    /// The rest of an ended connection's memory, for which so many bytes were charged.
    Rest(usize),
}

impl Holdings {
    /// Nothing held, for `owner`.
    pub fn new(returns: &Arc<Returns>, owner: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            awaited: AtomicBool::new(false),
            abandoned: AtomicUsize::new(0),
            owner,
            returns: Arc::clone(returns),
        })
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Counts `bytes` more.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        Held { holdings: Some(Arc::clone(self)), bytes }
    }

    /// Reports the next release; returns the bytes held now.
    pub fn await_return(&self) -> usize {
        // SeqCst, as the count is: a release after this look sees the mark.
        self.awaited.store(true, Ordering::SeqCst);
        self.bytes()
    }

    /// Ends the connection, for which `charged` bytes stay charged until all is released.
    pub fn abandon(self: Arc<Self>, charged: usize) {
        self.abandoned.store(charged, Ordering::Relaxed);
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        let charged = *self.abandoned.get_mut();
        if charged > 0 {
            self.returns.push(Returned::Rest(charged));
        }
    }
}

impl Held {
    /// Bytes counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Splits off a part of up to `bytes`.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { holdings: self.holdings.clone(), bytes }
    }
}

impl Clone for Held {
    /// Counts the same bytes once more: a clone may be kept longer.
    fn clone(&self) -> Self {
        match &self.holdings {
            Some(holdings) => holdings.hold(self.bytes),
            None => Self::default(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(holdings) = &self.holdings else { return };
        if self.bytes == 0 {
            return;
        }
        holdings.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if holdings.awaited.load(Ordering::SeqCst) && holdings.awaited.swap(false, Ordering::SeqCst)
        {
            holdings.returns.push(Returned::Some(holdings.owner));
        }
    }
}

/// Called when the queue is not empty any more.
type Waker = Box<dyn Fn() + Send + Sync>;

/// The releases to report to one stack.
#[derive(Default)]
pub struct Returns {
    list: Mutex<Vec<Returned>>,
    /// Whether there are any, to be checked without the lock.
    pending: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Returns {
    /// An empty queue.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether there is anything to drain.
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::SeqCst)
    }

    /// Takes all reports.
    pub fn drain(&self) -> Vec<Returned> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::SeqCst);
        core::mem::take(&mut *list)
    }

    /// Sets `waker`, which the first release after a drain calls, on its own thread: it must not
    /// wait for a lock.
    pub fn set_waker(&self, waker: impl Fn() + Send + Sync + 'static) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(waker));
    }

    fn push(&self, returned: Returned) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(returned);
        let first = !self.pending.swap(true, Ordering::SeqCst);
        drop(list);
        if first && let Some(wake) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            wake();
        }
    }
}

impl core::fmt::Debug for Returns {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Returns").field("pending", &self.is_pending()).finish()
    }
}
