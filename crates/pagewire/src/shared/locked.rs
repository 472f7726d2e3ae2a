//! Holding a host's lock, and letting go of it: what others made is called and dropped only then.
//!
//! Wakers, services and the owners of sent memory are other people's code. A task that is woken or
//! dropped may drop its sockets, and an owner may hold one: each would take the lock again. And what
//! panics in there is contained, counted, and no business of the thread that happened to be here.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::task::Waker;

use pagewire_mem::Deferral;

use super::{Inner, Shared};
use crate::contain::contain;
use crate::inside;

/// The lock, held.
pub(crate) struct Locked<'a> {
    /// Before `after`: fields are dropped in this order.
    inner: MutexGuard<'a, Inner>,
    after: After<'a>,
    /// The thread was unwinding already.
    unwinding: bool,
}

/// What follows when the lock is let go of.
struct After<'a> {
    shared: &'a Shared,
    deferral: Option<Deferral>,
    /// Nearly always there is nothing.
    calls: Option<Calls>,
}

/// Others' code to be called.
struct Calls {
    ready: Vec<Waker>,
    discarded: Vec<Box<dyn Any + Send>>,
}

impl Shared {
    /// The lock.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        let after = After::new(self);
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(inner)) => inner.into_inner(),
            Err(TryLockError::WouldBlock) => self.lock_contended(),
        };
        Locked::new(inner, after)
    }

    /// # Panics
    /// In code of an application that this host calls under its lock: it would wait for itself. The panic
    /// is contained and counted, as any in there.
    #[cold]
    #[allow(clippy::panic, reason = "the application's mistake, contained")]
    fn lock_contended(&self) -> MutexGuard<'_, Inner> {
        if inside::is_called_by(self.id) {
            panic!("a service, an observer or a verb called the host that it lives in");
        }
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        let after = After::new(self);
        match self.inner.try_lock() {
            Ok(inner) => Some(Locked::new(inner, after)),
            Err(TryLockError::Poisoned(inner)) => Some(Locked::new(inner.into_inner(), after)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<'a> Locked<'a> {
    #[inline]
    fn new(inner: MutexGuard<'a, Inner>, after: After<'a>) -> Self {
        let mut locked = Self { inner, after, unwinding: std::thread::panicking() };
        if locked.broken {
            broken(&mut locked);
        }
        locked
    }
}

impl<'a> After<'a> {
    /// To be made before the lock is taken: the deferral ends after that is let go of.
    #[inline]
    fn new(shared: &'a Shared) -> Self {
        Self { shared, deferral: Some(Deferral::begin()), calls: None }
    }

    /// Calls others' code, and lets go of what is theirs.
    #[cold]
    #[inline(never)]
    fn follow(&mut self) {
        let panics = &self.shared.panics;
        if let Some(Calls { ready, discarded }) = self.calls.take() {
            for waker in ready {
                contain(&panics.wakers, "a waker", || waker.wake());
            }
            for discarded in discarded {
                contain(&panics.owners, "what was dropped", || drop(discarded));
            }
        }
        panics.note_owners(self.deferral.take().map_or(0, Deferral::end));
    }
}

#[cold]
#[inline(never)]
fn broken(inner: &mut Inner) {
    inner.give_up();
}

impl Deref for Locked<'_> {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            // What is the application's is caught before it comes here: this is our own, in the
            // middle of something.
            self.inner.broken = true;
            // Others are told by whoever takes the lock next.
            self.after.shared.kick();
            return;
        }
        if !self.inner.ready.is_empty() || !self.inner.discarded.is_empty() {
            let ready = std::mem::take(&mut self.inner.ready);
            let discarded = std::mem::take(&mut self.inner.discarded);
            self.after.calls = Some(Calls { ready, discarded });
        }
    }
}

impl Drop for After<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.calls.is_some() || Deferral::is_pending() {
            self.follow();
        }
    }
}

impl Inner {
    /// A thread panicked in the middle of our own work: nothing in here can be relied on. All sockets
    /// fail, whoever waits is woken, and nothing is sent or received any more.
    #[cold]
    pub(crate) fn give_up(&mut self) {
        self.broken = false;
        if self.failed {
            // Not even that can be told of.
            self.silent = true;
            return;
        }
        self.failed = true;
        let text =
            "the stack panicked, which is a bug of its own; the message is on standard error";
        tracing::error!("{text}");
        self.cause = Some(text.to_owned());
        // Each step may meet what is broken. What cannot be failed in order is forgotten.
        let stack = &mut self.stack;
        if catch_unwind(AssertUnwindSafe(|| stack.handle_network_down())).is_err() {
            stack.forget_all();
        }
        let services = std::mem::take(&mut self.services);
        self.discarded.extend(services.into_iter().map(|s| Box::new(s.service) as _));
        self.forget_all();
    }
}
