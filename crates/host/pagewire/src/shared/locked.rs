//! The lock of a host ([`Shared::lock`]). Wakers are called, and values of the application dropped, only
//! after its release, because each may take the lock again. Their panics are contained and counted.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{MutexGuard, TryLockError};

use pagewire_mem::{Deferral, Panicked};

use super::{Inner, Shared};
use crate::reentrancy;

/// The held lock. Every call of an application makes one, so it stays small.
pub(crate) struct Locked<'a> {
    /// Before `_after_unlock`: fields are dropped in this order.
    inner: MutexGuard<'a, Inner>,
    _after_unlock: AfterUnlock<'a>,
}

/// A guard whose drop comes after the lock's release.
struct AfterUnlock<'a> {
    shared: &'a Shared,
    deferral: Option<Deferral>,
}

impl Shared {
    /// Takes the lock, and waits for it if another thread has it.
    // Not `#[inline]`: operations of sockets are compiled in the crates that use them, where the parts of
    // this function would not be inlined.
    pub(crate) fn lock(&self) -> Locked<'_> {
        if self.member.is_some() {
            self.refuse_under_lock();
        }
        let after_unlock = AfterUnlock::new(self);
        match self.inner.try_lock() {
            Ok(inner) => Locked { inner, _after_unlock: after_unlock },
            Err(refused) => self.lock_contended(refused, after_unlock),
        }
    }

    /// Refuses a call of a shard in code that a shard of the same host called under its lock: two such calls, each
    /// with the lock that the other waits for, would wait for ever.
    ///
    /// # Panics
    /// In such code; contained and counted.
    fn refuse_under_lock(&self) {
        if reentrancy::is_called_under_lock_of(self.host_id) {
            called_under_lock();
        }
    }

    /// Waits for the lock, or takes over a host whose state a panic may have broken.
    ///
    /// # Panics
    /// In code of an application that this host called under its lock; contained and counted.
    #[cold]
    #[inline(never)]
    fn lock_contended<'a>(
        &'a self,
        refused: TryLockError<MutexGuard<'a, Inner>>,
        after_unlock: AfterUnlock<'a>,
    ) -> Locked<'a> {
        let poisoned = match refused {
            TryLockError::Poisoned(poisoned) => poisoned,
            TryLockError::WouldBlock if reentrancy::is_called_under_lock_of(self.host_id) => {
                called_under_lock();
            }
            TryLockError::WouldBlock => match self.inner.lock() {
                Ok(inner) => return Locked { inner, _after_unlock: after_unlock },
                Err(poisoned) => poisoned,
            },
        };
        self.locked_broken(poisoned.into_inner(), after_unlock)
    }

    /// Takes the lock, unless another thread has it.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        let after_unlock = AfterUnlock::new(self);
        match self.inner.try_lock() {
            Ok(inner) => Some(Locked { inner, _after_unlock: after_unlock }),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(self.locked_broken(poisoned.into_inner(), after_unlock))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Fails the host: a thread panicked while it held the lock, in this crate's own code (other panics are
    /// caught).
    #[cold]
    fn locked_broken<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        after_unlock: AfterUnlock<'a>,
    ) -> Locked<'a> {
        self.inner.clear_poison();
        inner.give_up();
        Locked { inner, _after_unlock: after_unlock }
    }
}

#[cold]
#[allow(clippy::panic, reason = "the application's mistake, contained")]
fn called_under_lock() -> ! {
    panic!("a service, an observer or an operation called the host that it lives in");
}

impl<'a> AfterUnlock<'a> {
    /// A guard to be made before the lock is taken: the deferral ends after the release.
    #[inline]
    fn new(shared: &'a Shared) -> Self {
        Self { shared, deferral: Some(Deferral::begin()) }
    }
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
        if !self.inner.waiters.ready.is_empty() || !self.inner.discarded.is_empty() {
            self.inner.call_later();
        }
    }
}

impl Drop for AfterUnlock<'_> {
    #[inline]
    fn drop(&mut self) {
        let panicked = self.deferral.take().map(Deferral::end).unwrap_or_default();
        if panicked != Panicked::default() {
            self.shared.panics.note(panicked);
        }
        if std::thread::panicking() {
            // Perhaps in the middle of a turn: the next thread that takes the lock reports the failure.
            self.shared.wake_driver();
        }
    }
}

impl Inner {
    /// Calls wakers, and drops values of the application, when the lock is released.
    #[cold]
    #[inline(never)]
    fn call_later(&mut self) {
        self.waiters.ready.drain(..).for_each(Deferral::wake);
        self.discarded.drain(..).for_each(Deferral::later);
    }

    /// Fails the host after a panic of this crate's own code: all sockets fail, all waits end.
    #[cold]
    pub(crate) fn give_up(&mut self) {
        if self.failed {
            // Even the report panicked.
            self.silent = true;
            return;
        }
        self.failed = true;
        // A packet for another shard may come in at a device of this one.
        self.exchange.iter().for_each(|exchange| exchange.member().fail());
        let text =
            "the stack panicked, which is a bug of its own; the message is on standard error";
        tracing::error!("{text}");
        self.cause = Some(text.to_owned());
        // The broken state may panic again; sockets that cannot be failed in order are forgotten.
        let stack = &mut self.stack;
        if catch_unwind(AssertUnwindSafe(|| stack.handle_network_down())).is_err() {
            stack.forget_all();
        }
        let services = std::mem::take(&mut self.services);
        self.note_services();
        self.discarded.extend(services.into_iter().map(|s| Box::new(s.service) as _));
        self.waiters.forget_all();
        self.note_down();
    }
}
