//! A bounded lock-free queue with one producer and one consumer. Its `unsafe` is all here.
//!
//! ```text
//!        head (consumer writes)          tail (producer writes)      reserved (producer only)
//!   .......|============ consumer's =======|---- not yet published ----|........ free ........
//! ```
//!
//! Both indices count up for ever; a mask gives the slot. Each side keeps the last value it saw of
//! the other's index and reads it again only when that one says full or empty, so in a steady flow
//! a cache line travels once a burst: the producer shows what it [pushed](Producer::push) with
//! [`publish`](Producer::publish), the consumer gives slots back with
//! [`release`](Consumer::release).
//!
//! `sync` names the atomics, so that `tests/suite/loom_spsc.rs` can compile this very file against loom's.

use core::mem::MaybeUninit;

use super::sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};

/// Keeps the sides off each other's cache lines. 128, because x86 fetches lines in pairs.
#[repr(align(128))]
struct Padded<T>(T);

struct Shared<T> {
    /// First slot of the consumer's; the consumer stores it.
    head: Padded<AtomicUsize>,
    /// First slot that is not the consumer's; the producer stores it.
    tail: Padded<AtomicUsize>,
    /// Set by a consumer that is dropped, as its last step.
    consumer_gone: Padded<AtomicBool>,
    /// The slots, a power of two of them.
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is reached by one side at a time: by the producer while its index lies in
// `tail..head+capacity`, by the consumer while it lies in `head..tail`. Each side moves its own
// index with Release after it is done with a slot, and the other reads it with Acquire before it
// begins. What travels is `Send`.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send> Sync for Shared<T> {}

/// The side that adds items. For one thread at a time.
pub(crate) struct Producer<T> {
    shared: Arc<Shared<T>>,
    /// Where the next push goes; `published..reserved` is filled but not shown yet.
    reserved: usize,
    published: usize,
    /// The consumer's index when last read.
    head: usize,
}

/// The side that takes items. For one thread at a time.
pub(crate) struct Consumer<T> {
    shared: Arc<Shared<T>>,
    /// The index that the next pop takes; `released..next` is taken but not given back yet.
    next: usize,
    released: usize,
    /// The producer's index when last read.
    tail: usize,
}

/// A queue of `capacity` items, rounded up to a power of two.
pub(crate) fn ring<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.max(1).next_power_of_two();
    let shared = Arc::new(Shared {
        head: Padded(AtomicUsize::new(0)),
        tail: Padded(AtomicUsize::new(0)),
        consumer_gone: Padded(AtomicBool::new(false)),
        slots: (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
    });
    let producer = Producer { shared: Arc::clone(&shared), reserved: 0, published: 0, head: 0 };
    (producer, Consumer { shared, next: 0, released: 0, tail: 0 })
}

impl<T> Producer<T> {
    /// Puts an item in a slot, not yet visible to the consumer; returns it if all are taken.
    #[inline]
    pub(crate) fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        let Some(slot) = self.shared.slot(self.reserved) else { return Err(item) };
        slot.with_mut(|at| {
            // SAFETY: `head <= reserved < head + capacity`, so the consumer has released this
            // slot (`free` read its index with Acquire) and will not read it before we publish.
            unsafe { at.cast::<T>().write(item) };
        });
        self.reserved = self.reserved.wrapping_add(1);
        Ok(())
    }

    /// Shows the consumer all that was pushed; `true` if that was anything.
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.reserved {
            return false;
        }
        // Release pairs with the Acquire in `Consumer::available`: the items come with the index.
        self.shared.tail.0.store(self.reserved, Ordering::Release);
        self.published = self.reserved;
        true
    }

    pub(crate) fn is_full(&mut self) -> bool {
        self.reserved.wrapping_sub(self.head) == self.shared.slots.len() && self.free() == 0
    }

    pub(crate) fn free(&mut self) -> usize {
        // Acquire pairs with the Release in `Consumer::release`: the items have been moved out.
        self.head = self.shared.head.0.load(Ordering::Acquire);
        self.shared.slots.len() - self.reserved.wrapping_sub(self.head)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Whether the consumer is dropped. [`reclaim`](Self::reclaim) drops what it left.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.consumer_gone.0.load(Ordering::Acquire)
    }

    /// Drops the items that a dropped consumer did not take; returns how many.
    pub(crate) fn reclaim(&mut self) -> usize {
        if !self.is_closed() {
            return 0;
        }
        self.publish();
        // Acquire in `is_closed` pairs with the Release in the consumer's drop, after which it
        // touches nothing: the producer has its role.
        // SAFETY: there is no consumer any more, and `&mut self` is the only producer.
        unsafe { self.shared.drop_all() }
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest item. Its slot stays taken until [`release`](Self::release).
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.next == self.tail && self.available() == 0 {
            return None;
        }
        let slot = self.shared.slot(self.next)?;
        let item = slot.with_mut(|at| {
            // SAFETY: `next < tail`, which was read with Acquire, so the producer has filled the
            // slot and will not touch it before we release; `next` moves on, so no code reads the
            // item out a second time.
            unsafe { at.cast::<T>().read() }
        });
        self.next = self.next.wrapping_add(1);
        Some(item)
    }

    /// Gives the slots of all items taken back to the producer; `true` if there were any.
    pub(crate) fn release(&mut self) -> bool {
        if self.released == self.next {
            return false;
        }
        // Release pairs with the Acquire in `Producer::free`.
        self.shared.head.0.store(self.next, Ordering::Release);
        self.released = self.next;
        true
    }

    pub(crate) fn available(&mut self) -> usize {
        // Acquire pairs with the Release in `Producer::publish`.
        self.tail = self.shared.tail.0.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.next)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.shared.slots.len()
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.publish();
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Each slot is released before its item is dropped: a drop that panics must not leave an
        // item behind that would be dropped again.
        while let Some(item) = self.pop() {
            self.release();
            drop(item);
        }
        self.release();
        // As the last step: from here on the slots are the producer's alone.
        self.shared.consumer_gone.0.store(true, Ordering::Release);
    }
}

impl<T> Shared<T> {
    fn slot(&self, index: usize) -> Option<&UnsafeCell<MaybeUninit<T>>> {
        // The mask keeps it in range; `get` because nothing in this crate indexes.
        self.slots.get(index & (self.slots.len() - 1))
    }

    /// Drops all items; returns how many.
    ///
    /// # Safety
    /// The caller is the only one to reach the slots.
    unsafe fn drop_all(&self) -> usize {
        let tail = self.tail.0.load(Ordering::Acquire);
        let mut at = self.head.0.load(Ordering::Acquire);
        let mut count = 0;
        while at != tail {
            let slot = self.slot(at);
            at = at.wrapping_add(1);
            count += 1;
            self.head.0.store(at, Ordering::Release);
            if let Some(slot) = slot {
                // SAFETY: the slot lay in `head..tail`, so it is filled; `head` has moved on, so it
                // is dropped once; no other code reaches it (the caller's promise).
                slot.with_mut(|item| unsafe { item.cast::<T>().drop_in_place() });
            }
        }
        count
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: `&mut self`: neither side is left.
        unsafe { self.drop_all() };
    }
}
