//! The driver's side: engines are served in every turn of the host.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_ring::Engine;
use pagewire_stack::{Event, Stack};

use crate::shared::{Inner, Shared};

/// How long an engine that found no room in a ring waits until it looks again.
pub(crate) const STUCK_RETRY: Duration = Duration::from_millis(1);

/// The engines of a host.
#[derive(Default)]
pub(crate) struct Attachments {
    engines: Vec<Attached>,
    next: u64,
    /// Bells are set: nobody takes turns.
    armed: bool,
}

struct Attached {
    id: u64,
    engine: Engine,
    waker: Arc<RingWaker>,
}

/// Whom to wake when completions were posted to somebody who sleeps.
#[derive(Default)]
pub(crate) struct RingWaker(Mutex<Vec<Waker>>);

impl RingWaker {
    /// Has `waker` called once, when there is a completion. To be called before the ring is armed.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    pub(crate) fn take(&self, into: &mut Vec<Waker>) {
        into.append(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Attachments {
    /// The engine of a handle.
    pub(crate) fn engine(&mut self, id: u64) -> Option<&mut Engine> {
        self.engines.iter_mut().find(|a| a.id == id).map(|a| &mut a.engine)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.engines.is_empty()
    }

    /// Something happened to a socket.
    pub(crate) fn handle_event(&mut self, event: Event) {
        for attached in &mut self.engines {
            attached.engine.handle_event(event);
        }
    }

    /// Every socket is gone: whoever waits on one is to be told.
    pub(crate) fn look_at_all(&mut self) {
        self.engines.iter_mut().for_each(|attached| attached.engine.look_at_all());
    }

    /// A turn of every engine; `true`: something was done. Who is to be woken goes to `ready`.
    pub(crate) fn serve(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        ready: &mut Vec<Waker>,
    ) -> bool {
        self.disarm();
        let mut worked = false;
        for Attached { engine, waker, .. } in &mut self.engines {
            worked |= engine.turn(now, stack);
            if engine.publish() {
                waker.take(ready);
            }
        }
        worked
    }

    /// Nobody takes turns until a bell rings. `false`: there is something to do.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = true;
        let quiet = self.engines.iter_mut().all(|attached| attached.engine.arm());
        if !quiet {
            self.disarm();
        }
        quiet
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.engines.iter_mut().for_each(|attached| attached.engine.disarm());
        }
    }

    pub(crate) fn is_stuck(&self) -> bool {
        self.engines.iter().any(|attached| attached.engine.is_stuck())
    }
}

impl Shared {
    pub(crate) fn attach(&self, engine: Engine) -> (u64, Arc<RingWaker>) {
        let waker = Arc::new(RingWaker::default());
        self.wake_when_let_go(engine.let_go());
        let mut inner = self.lock();
        let id = inner.rings.next;
        inner.rings.next += 1;
        inner.rings.engines.push(Attached { id, engine, waker: Arc::clone(&waker) });
        (id, waker)
    }

    /// The application of an engine is gone.
    pub(crate) fn detach(&self, id: u64) {
        let (mut inner, now) = self.lock_now();
        let Some(at) = inner.rings.engines.iter().position(|a| a.id == id) else { return };
        let mut attached = inner.rings.engines.swap_remove(at);
        let Inner { stack, devices, .. } = &mut *inner;
        attached.engine.close_all(now, stack);
        if let Some(steering) = devices.steering() {
            for queue in attached.engine.queues() {
                drop(steering.unbind(queue));
            }
        }
        drop(attached);
        inner.flush(now);
        self.unlock_and_wake(inner);
    }

    /// One operation on an engine and the stack, under the lock.
    pub(crate) fn with_rings<T>(
        &self,
        id: u64,
        op: impl FnOnce(&mut Engine, &mut Stack, Instant) -> Result<T, pagewire_stack::Error>,
    ) -> Result<T, pagewire_stack::Error> {
        let (mut inner, now) = self.lock_now();
        let Inner { stack, rings, .. } = &mut *inner;
        let engine = rings.engine(id).ok_or(pagewire_stack::Error::NoSuchSocket)?;
        let result = op(engine, stack, now);
        inner.flush(now);
        self.unlock_and_wake(inner);
        result
    }
}
