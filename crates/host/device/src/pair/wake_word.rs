//! [`WakeWord`]: the word by which a sleeping end of a pair is woken. It holds the events that the end waits for.
//!
//! An end that polls leaves the word at 0 and costs its peer one load a burst. An end about to
//! sleep writes what it waits for, checks once more, and sleeps; a peer that finds the word set
//! clears it and then has to wake, exactly once for each time it was set.

use super::sync::{AtomicU32, Ordering, fence};

/// There are frames to receive.
pub(crate) const FRAMES: u32 = 1;
/// There is room to transmit again.
pub(crate) const ROOM: u32 = 2;
/// The peer was dropped. An end that sleeps always waits for that, too.
pub(crate) const GONE: u32 = 4;

/// The events that an end waits for; 0 while it polls.
#[derive(Default)]
pub(crate) struct WakeWord(AtomicU32);

impl WakeWord {
    /// Sets what the waiter waits for. It must check once more after this, before it sleeps.
    pub(crate) fn set(&self, what: u32) {
        self.0.store(what | GONE, Ordering::Relaxed);
        // Pairs with the fence in `claim`. Waiter: set the word, fence, read the ring. Waker: write the
        // ring, fence, read the word. At least one of the two sees the other's write; without either
        // fence both could read old values, and the waiter would sleep although the ring has frames.
        fence(Ordering::SeqCst);
    }

    /// Ends the wait. `true`: the peer took the word first, so it has woken this end or will.
    pub(crate) fn clear(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) == 0
    }

    /// Called by the waker after it changed the ring: `true` if it must wake the waiter now.
    pub(crate) fn claim(&self, what: u32) -> bool {
        // Pairs with the fence in `set`, which see.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) & what != 0 && self.0.swap(0, Ordering::AcqRel) != 0
    }
}
