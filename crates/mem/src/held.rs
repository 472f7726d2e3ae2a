//! Received memory that an application keeps: counted for each connection, so that its window
//! closes before a pool is empty, with a report when some of it is released.
//!
//! ```text
//!   recv_chunks, map ---> Held (goes with the memory, to any thread)
//!                           | dropped: the count falls
//!                           v
//!                        Holdings (one for each connection) --- if the owner waits --> Returns
//!                                                                              (one for each stack)
//! ```

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

use crate::reports::{Returned, Returns};

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
