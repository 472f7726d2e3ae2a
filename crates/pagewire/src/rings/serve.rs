//! The driver's side: engines are served in every turn of the host.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_ring::Engine;
use pagewire_stack::{Event, Stack};

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

    /// One more engine: its handle, and who is to be woken.
    pub(super) fn add(&mut self, engine: Engine) -> (u64, Arc<RingWaker>) {
        let (id, waker) = (self.next, Arc::<RingWaker>::default());
        self.next += 1;
        self.engines.push(Attached { id, engine, waker: Arc::clone(&waker) });
        (id, waker)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Engine> {
        let at = self.engines.iter().position(|a| a.id == id)?;
        Some(self.engines.swap_remove(at).engine)
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
