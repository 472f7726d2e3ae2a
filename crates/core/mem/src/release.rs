//! Releasing memory whose owner is the application's code, and waking the application's tasks.
//!
//! The last reference to sent memory is dropped in the middle of a stack's work, under its lock,
//! and its owner with it: a type of the application, whose drop may do anything, even call the same
//! host, or panic. So may the waker of a task. Code that works under such a lock begins a
//! [`Deferral`] before it and ends it after: only then are owners dropped and tasks woken.

use core::cell::{Cell, RefCell};
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::any::Any;
use std::panic::catch_unwind;
use std::sync::Arc;

use bytes::Bytes;

use crate::limits::LATER_KEPT;
use crate::reports::{Completed, CompletionQueue};

/// A deferred release, oldest first.
pub(crate) enum Later {
    Bytes(#[allow(dead_code, reason = "dropped, no more")] Bytes),
    Owner(#[allow(dead_code, reason = "dropped, no more")] Box<dyn Any + Send>),
    Wake(Waker),
    /// The report of a release, after the memory itself.
    News(Arc<CompletionQueue>, Completed),
}

thread_local! {
    /// The number of deferrals under way on this thread, and what they have deferred.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static WAITING: Cell<usize> = const { Cell::new(0) };
    static LATER: RefCell<Vec<Later>> = const { RefCell::new(Vec::new()) };
    /// Used instead at the very end of a thread, where drops of other thread locals may release
    /// memory under a lock. Never dropped; empty and without memory outside of deferrals.
    static LAST: RefCell<ManuallyDrop<Vec<Later>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Defers the drop of memory's owners on this thread until its [`end`](Self::end).
#[derive(Debug)]
pub struct Deferral(PhantomData<*const ()>);

/// Panics of the application's code at the end of a [`Deferral`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Panicked {
    /// In the drop of an owner, or of another deferred value.
    pub owners: u64,
    /// In a waker.
    pub wakers: u64,
}

impl Deferral {
    /// Begins a deferral. It may be nested; the end of the outermost counts.
    #[inline]
    pub fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(PhantomData)
    }

    /// Drops and wakes what was deferred; returns the panics. A drop does so without a report.
    #[inline]
    pub fn end(self) -> Panicked {
        core::mem::forget(self);
        leave()
    }

    /// Drops a value at the end of this thread's deferral, or now if there is none.
    pub fn later(owner: Box<dyn Any + Send>) {
        release(Later::Owner(owner));
    }

    /// Wakes a task at the end of this thread's deferral, or now if there is none.
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
    // An owner's drop may defer others.
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
                // The drop of the payload is the application's code, too, and may panic in turn.
                core::mem::forget(payload);
                *count += 1;
            }
        }
        // The room is kept, within a limit.
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

/// The number of deferred releases of this thread.
pub(crate) fn deferred() -> usize {
    WAITING.get()
}

/// Releases at the end of this thread's deferral, or now if there is none.
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

/// Bytes whose owner may be a type of the application.
#[derive(Debug)]
pub(crate) struct KeptBytes(pub(crate) Bytes);

impl Drop for KeptBytes {
    fn drop(&mut self) {
        release(Later::Bytes(core::mem::take(&mut self.0)));
    }
}

/// An owner that may be a type of the application.
pub(crate) struct KeptOwner(pub(crate) Option<Box<dyn Any + Send + Sync>>);

impl Drop for KeptOwner {
    fn drop(&mut self) {
        if let Some(owner) = self.0.take() {
            release(Later::Owner(owner));
        }
    }
}
