//! Descriptors that fragments hold: they come back from any thread over one lock-free list.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use super::allowance::RingShare;
use crate::wake_event::WakeEvent;

/// Ends the list.
const NIL: u32 = u32::MAX;

/// Heads that came back to one ring and are not in its used ring yet.
#[derive(Debug)]
pub(super) struct ReturnedHeads {
    top: AtomicU32,
    /// `next[head]` is the head pushed before `head`.
    next: Box<[AtomicU32]>,
    wake: Arc<WakeEvent>,
    /// The device sleeps, and is to be woken.
    awaited: AtomicBool,
    /// The share of a ring whose descriptors may be held, until none is.
    share: Option<RingShare>,
}

impl ReturnedHeads {
    /// An empty list, for a ring of `size`.
    pub(super) fn new(size: u16, wake: &Arc<WakeEvent>, share: Option<RingShare>) -> Arc<Self> {
        Arc::new(Self {
            top: AtomicU32::new(NIL),
            next: (0..size).map(|_| AtomicU32::new(NIL)).collect(),
            wake: Arc::clone(wake),
            awaited: AtomicBool::new(false),
            share,
        })
    }

    /// Whether descriptors may be held: too many former rings of the port are not held.
    pub(super) fn may_hold(&self) -> bool {
        self.share.is_some()
    }

    /// Takes all heads that came back and shows each to `take`.
    pub(super) fn drain(&self, mut take: impl FnMut(u16)) {
        if self.top.load(Ordering::Relaxed) == NIL {
            return;
        }
        // Acquire pairs with the release in `push`. Taking the whole list at once leaves no ABA.
        let mut head = self.top.swap(NIL, Ordering::Acquire);
        while let Some(next) = self.next.get(head as usize) {
            // Read before `take`: once that has put the head into the used ring, it may come again.
            let following = next.load(Ordering::Relaxed);
            take(head as u16);
            head = following;
        }
    }

    /// Rings the wake when the next head comes back. `true`: there is one already.
    pub(super) fn await_one(&self) -> bool {
        // SeqCst, as the list's push is: either this sees the head, or its thread sees the mark.
        self.awaited.store(true, Ordering::SeqCst);
        self.top.load(Ordering::SeqCst) != NIL
    }

    fn push(&self, head: u16) {
        let Some(next) = self.next.get(usize::from(head)) else { return };
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            next.store(top, Ordering::Relaxed);
            let new = u32::from(head);
            match self.top.compare_exchange_weak(top, new, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
        if self.awaited.load(Ordering::SeqCst) && self.awaited.swap(false, Ordering::SeqCst) {
            self.wake.wake();
        }
    }
}

/// A descriptor of a frame: its drop returns it to the guest.
#[derive(Debug)]
pub(super) struct Descriptor {
    returns: Arc<ReturnedHeads>,
    head: u16,
}

impl Descriptor {
    /// A descriptor of the ring of `returns`.
    pub(super) fn new(returns: &Arc<ReturnedHeads>, head: u16) -> Self {
        Self { returns: Arc::clone(returns), head }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.returns.push(self.head);
    }
}
