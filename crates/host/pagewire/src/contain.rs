//! Contained panics: [`contain`] calls an application's code, and counts its panics. Panics of this crate's
//! own code end the host instead (`shared/locked.rs`).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagewire_mem::Panicked;

/// Panics of applications' code, by the code that panicked. Clones count together.
#[derive(Clone, Default)]
pub(crate) struct Panics(Arc<Counts>);

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) services: AtomicU64,
    pub(crate) observers: AtomicU64,
    pub(crate) wakers: AtomicU64,
    pub(crate) owners: AtomicU64,
}

impl std::ops::Deref for Panics {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.0
    }
}

/// Panics of the application's code that a host contained; see [`Stats`](crate::counts::Stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contained {
    /// In a [`Service`](crate::services::Service), which is then not called again.
    pub services: u64,
    /// In an observer ([`Host::on_event`](crate::Host::on_event)).
    pub observers: u64,
    /// In the waker of a task.
    pub wakers: u64,
    /// In the drop of memory's owner, of a waker or of a service.
    pub owners: u64,
}

impl Contained {
    /// Adds the panics of another shard of the host.
    pub(crate) fn add(&mut self, other: Self) {
        self.services += other.services;
        self.observers += other.observers;
        self.wakers += other.wakers;
        self.owners += other.owners;
    }
}

impl Panics {
    pub(crate) fn read(&self) -> Contained {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Contained {
            services: read(&self.services),
            observers: read(&self.observers),
            wakers: read(&self.wakers),
            owners: read(&self.owners),
        }
    }

    /// Counts panics of wakers and owners that were called when a lock was released.
    pub(crate) fn note(&self, panicked: Panicked) {
        let Panicked { owners, wakers } = panicked;
        self.owners.fetch_add(owners, Ordering::Relaxed);
        self.wakers.fetch_add(wakers, Ordering::Relaxed);
        tracing::error!(owners, wakers, "owners of memory or wakers panicked; the host goes on");
    }
}

/// Calls the application's code. A panic is counted and logged, and returns `None`.
pub(crate) fn contain<T>(count: &AtomicU64, what: &str, call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => Some(done),
        Err(payload) => {
            // The payload's drop is the application's code, too, and may panic in turn.
            std::mem::forget(payload);
            count.fetch_add(1, Ordering::Relaxed);
            tracing::error!("{what} panicked; the host goes on");
            None
        }
    }
}

impl fmt::Display for Contained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { services, observers, wakers, owners } = *self;
        let all = [
            ("services", services),
            ("observers", observers),
            ("wakers", wakers),
            ("owners", owners),
        ];
        for (name, value) in all.into_iter().filter(|(_, value)| *value > 0) {
            writeln!(f, "  {name:<24} {value}")?;
        }
        Ok(())
    }
}
