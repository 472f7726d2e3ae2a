//! Who rings whom between the two ends of a pair: the word that says what a sleeping end waits
//! for. `spsc` is the queue beside it; `mod.rs` puts both together with an eventfd.
//!
//! An end that polls leaves the word at 0 and costs its peer one load a burst. An end about to
//! sleep writes what it waits for, looks once more, and sleeps; the peer that finds the word set
//! takes it down to 0, which makes the ring its duty, exactly once for each time it was set.

use super::sync::{AtomicU32, Ordering, fence};

/// There are frames to receive.
pub(crate) const FRAMES: u32 = 1;
/// There is room to transmit again.
pub(crate) const ROOM: u32 = 2;
/// The peer went away. An end that sleeps always waits for that.
pub(crate) const GONE: u32 = 4;

/// What one end waits for.
#[derive(Default)]
pub(crate) struct Bell(AtomicU32);

impl Bell {
    /// The waiter says that it is about to sleep. It must look for what it waits for once more
    /// after this, and not sleep if that is there.
    pub(crate) fn set(&self, what: u32) {
        self.0.store(what | GONE, Ordering::Relaxed);
        // Pairs with the fence in `claim`. Waiter: set the word, fence, read the ring. Waker:
        // write the ring, fence, read the word. Of two such sides at least one sees the other's
        // write; without either fence both could read old values, and the waiter would sleep on a
        // ring with frames in it until something else woke it.
        fence(Ordering::SeqCst);
    }

    /// The waiter polls again. `true`: the peer took the word first, so it has rung or will.
    pub(crate) fn clear(&self) -> bool {
        self.0.swap(0, Ordering::AcqRel) == 0
    }

    /// The waker, after it changed the ring: `true` if it must ring now.
    pub(crate) fn claim(&self, what: u32) -> bool {
        // Pairs with the fence in `set`, which see.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) & what != 0 && self.0.swap(0, Ordering::AcqRel) != 0
    }
}
