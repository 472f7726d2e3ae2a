//! What the control thread and one device share ([`Shared`]): the session, under its lock. The device tries the
//! lock, and is woken when it is free.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::limits::LOOK;
use super::port_state::PortState;
use super::session::Session;

/// The state that both threads share.
pub(super) struct Shared {
    session: Mutex<Session>,
    /// The device found the session in use, and is to be woken when it is free.
    wanted: AtomicBool,
    pub(super) port_state: Arc<PortState>,
}

/// The session, in use until this is dropped. Fields are dropped in order: first the lock.
pub(super) struct InUse<'a> {
    session: MutexGuard<'a, Session>,
    _wake: Wake<'a>,
}

/// Wakes the device, if it found the session in use meanwhile.
struct Wake<'a>(&'a Shared);

impl Shared {
    pub(super) fn new(session: Session) -> Self {
        let port_state = Arc::clone(&session.port_state);
        Self { session: Mutex::new(session), wanted: AtomicBool::new(false), port_state }
    }

    /// The session, for all but the device.
    pub(super) fn session(&self) -> InUse<'_> {
        // After a panic under the lock, fields are whole; their values are checked anyway.
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        InUse { session, _wake: Wake(self) }
    }

    /// The session, for the device, which never waits: a message may take as long as its front end
    /// likes. `None`: it is in use, and the wake is rung when it is free.
    pub(super) fn try_session(&self) -> Option<MutexGuard<'_, Session>> {
        let try_lock = || match self.session.try_lock() {
            Ok(session) => Some(session),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        try_lock().or_else(|| {
            self.wanted.store(true, Ordering::Relaxed);
            // Pairs with the fence in `wake`. Here: set the word, fence, try the lock. There: unlock,
            // fence, read the word. So either the lock is free now, or its holder sees the word.
            fence(Ordering::SeqCst);
            try_lock()
        })
    }

    /// The session, for a device that ends: waits for it up to `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Option<MutexGuard<'_, Session>> {
        let until = Instant::now() + limit;
        loop {
            let session = self.try_session();
            if session.is_some() || Instant::now() >= until {
                return session;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Wakes the device after the session was in use.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::Relaxed) {
            self.port_state.wake.wake();
        }
    }
}

impl Deref for InUse<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for InUse<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        self.0.wake();
    }
}
