//! Counts of received memory that applications keep. [`Holdings`] counts for a connection, whose window
//! closes before a pool is empty. [`Returns`] counts for a stack, whose budget includes it. A [`Held`] is a
//! part of both counts, and goes with the memory, to any thread. `Holdings` uses `SeqCst`, because a release
//! and [`Holdings::await_return`] must not miss each other.
//!
//! ```text
//!   recv_chunks, map ---> Held (goes with the memory, to any thread)
//!                           | dropped: both counts fall
//!                           v
//!                        Holdings (one for each connection) --- if the owner waits, a report ---> Returns
//!                                                                                    (one for each stack)
//! ```

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::reports::Reports;

/// The received memory that the applications of one stack keep, and reports of its release.
#[derive(Debug, Default)]
pub struct Returns {
    kept: AtomicUsize,
    reports: Reports<u64>,
}

impl Returns {
    /// Counts of a stack whose applications keep nothing yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Bytes kept now, of connections that have ended too.
    #[inline]
    pub fn kept(&self) -> usize {
        // Relaxed: a release that this check misses is seen by the next one.
        self.kept.load(Ordering::Relaxed)
    }

    /// Whether there are reports to drain.
    pub fn is_pending(&self) -> bool {
        self.reports.is_pending()
    }

    /// As [`Reports::set_waker`].
    pub fn set_waker(&self, waker: impl Fn() + Send + Sync + 'static) {
        self.reports.set_waker(waker);
    }

    /// Takes the owners of released memory that asked for a report.
    pub fn drain(&self) -> Vec<u64> {
        core::mem::take(&mut *self.reports.drained())
    }
}

/// Bytes of memory that one connection's application keeps.
#[derive(Debug)]
pub struct Holdings {
    bytes: AtomicUsize,
    /// The owner wants a report when it becomes less.
    awaited: AtomicBool,
    owner: u64,
    returns: Arc<Returns>,
}

/// A part of a connection's [`Holdings`], until it is dropped. The default holds nothing.
#[derive(Debug, Default)]
pub struct Held {
    holdings: Option<Arc<Holdings>>,
    bytes: usize,
}

impl Holdings {
    /// Nothing held, for `owner`.
    pub fn new(returns: &Arc<Returns>, owner: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            awaited: AtomicBool::new(false),
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
        self.returns.kept.fetch_add(bytes, Ordering::Relaxed);
        Held { holdings: Some(Arc::clone(self)), bytes }
    }

    /// Reports the next release; returns the bytes held now.
    pub fn await_return(&self) -> usize {
        // SeqCst, as the count is: a release after this check sees the mark.
        self.awaited.store(true, Ordering::SeqCst);
        self.bytes()
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
        holdings.returns.kept.fetch_sub(self.bytes, Ordering::Relaxed);
        holdings.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if holdings.awaited.load(Ordering::SeqCst) && holdings.awaited.swap(false, Ordering::SeqCst)
        {
            holdings.returns.reports.push(holdings.owner);
        }
    }
}
