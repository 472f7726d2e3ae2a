//! Letting go of memory that somebody else's code owns, and waking somebody else's tasks.
//!
//! The last reference to sent memory goes in the middle of a stack's work, under its lock, and with it
//! the owner is dropped: a type of the application's, which may do anything in there, even call the
//! host whose lock this is, or panic. The same holds for the waker of a task. So whoever works under
//! such a lock begins a [`Deferral`] first and ends it when it has let go of the lock; only then are
//! owners dropped and tasks woken.

use core::cell::{Cell, RefCell};
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::any::Any;
use std::panic::catch_unwind;
use std::sync::Arc;

use bytes::Bytes;

use crate::completions::{Completed, CompletionQueue};
use crate::limits::LATER_KEPT;

/// What is let go of later, oldest first.
pub(crate) enum Later {
    Bytes(#[allow(dead_code, reason = "dropped, no more")] Bytes),
    Owner(#[allow(dead_code, reason = "dropped, no more")] Box<dyn Any + Send>),
    Wake(Waker),
    /// The news that memory was let go of, behind the memory itself.
    News(Arc<CompletionQueue>, Completed),
}

thread_local! {
    /// Deferrals that this thread has begun and not ended, and what waits for their end.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static WAITING: Cell<usize> = const { Cell::new(0) };
    static LATER: RefCell<Vec<Later>> = const { RefCell::new(Vec::new()) };
    /// In its place once it is dropped, at the very end of a thread, where other locals' drops may let
    /// go of memory under a lock. Never dropped; empty and without memory outside of deferrals.
    static LAST: RefCell<ManuallyDrop<Vec<Later>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Has this thread drop the owners of memory at its [`end`](Self::end), not before.
#[derive(Debug)]
pub struct Deferral(PhantomData<*const ()>);

/// How often the code of others panicked when it was called at the end of a [`Deferral`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Panicked {
    /// In the drop of an owner, or of what else was dropped.
    pub owners: u64,
    /// In a waker.
    pub wakers: u64,
}

impl Deferral {
    /// From here on. One may begin inside of another, whose end then counts.
    #[inline]
    pub fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(PhantomData)
    }

    /// Drops and wakes what was deferred; returns how often that panicked. As does its drop, which
    /// tells nobody.
    #[inline]
    pub fn end(self) -> Panicked {
        core::mem::forget(self);
        leave()
    }

    /// Drops something at the end of the deferral that this thread is in; without one, now.
    pub fn later(owner: Box<dyn Any + Send>) {
        release(Later::Owner(owner));
    }

    /// Wakes a task at the end of the deferral that this thread is in; without one, now.
    pub fn wake(waker: Waker) {
        release(Later::Wake(waker));
    }

    /// Whether something was deferred on this thread.
    #[inline]
    pub fn is_pending() -> bool {
        WAITING.get() > 0
    }
}

impl Drop for Deferral {
    #[inline]
    fn drop(&mut self) {
        leave();
    }
}

#[inline]
fn leave() -> Panicked {
    let depth = DEPTH.get() - 1;
    DEPTH.set(depth);
    if depth == 0 && WAITING.get() > 0 { run() } else { Panicked::default() }
}

#[cold]
#[inline(never)]
fn run() -> Panicked {
    let mut panics = Panicked::default();
    // An owner's drop may lead to others.
    loop {
        let mut batch = match LATER.try_with(RefCell::take) {
            Ok(batch) => batch,
            Err(_) => LAST.with(|list| ManuallyDrop::into_inner(list.take())),
        };
        WAITING.set(0);
        if batch.is_empty() {
            return panics;
        }
        for later in batch.drain(..) {
            let count = match later {
                Later::Wake(_) => &mut panics.wakers,
                _ => &mut panics.owners,
            };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| later.happen())) {
                // Its drop is the application's code, too, and may panic in turn.
                core::mem::forget(payload);
                *count += 1;
            }
        }
        // The room serves again, within reason.
        if batch.capacity() <= LATER_KEPT {
            let _ = LATER.try_with(|list| {
                let mut list = list.borrow_mut();
                if list.capacity() == 0 {
                    *list = batch;
                }
            });
        }
    }
}

impl Later {
    fn happen(self) {
        match self {
            Self::Bytes(_) | Self::Owner(_) => {}
            Self::Wake(waker) => waker.wake(),
            Self::News(queue, completed) => queue.push(completed),
        }
    }
}

/// What this thread has deferred so far.
pub(crate) fn deferred() -> usize {
    WAITING.get()
}

/// Lets go now, or at the end of the deferral that this thread is in.
pub(crate) fn release(later: Later) {
    if DEPTH.get() == 0 {
        return later.happen();
    }
    let mut later = Some(later);
    if LATER.try_with(|list| list.borrow_mut().extend(later.take())).is_err() {
        LAST.with(|list| list.borrow_mut().extend(later.take()));
    }
    WAITING.set(WAITING.get() + 1);
}

/// Bytes whose owner may be anybody's.
#[derive(Debug)]
pub(crate) struct KeptBytes(pub(crate) Bytes);

impl Drop for KeptBytes {
    fn drop(&mut self) {
        release(Later::Bytes(core::mem::take(&mut self.0)));
    }
}

/// An owner that may be anybody's.
pub(crate) struct KeptOwner(pub(crate) Option<Box<dyn Any + Send + Sync>>);

impl Drop for KeptOwner {
    fn drop(&mut self) {
        if let Some(owner) = self.0.take() {
            release(Later::Owner(owner));
        }
    }
}
