//! Rings, from the driver's side: each turn of the host serves the engines.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_ring::Engine;
use pagewire_stack::{Event, Stack};

/// When an engine that found no room in a ring tries again.
pub(crate) const STUCK_RETRY: Duration = Duration::from_millis(1);

/// The engines of a host.
#[derive(Default)]
pub(crate) struct AttachedEngines {
    engines: Vec<AttachedEngine>,
    next: u64,
    /// The rings are armed, to wake the driver: no thread takes turns.
    armed: bool,
}

/// An engine, its number on the host, and the wakers of its application.
struct AttachedEngine {
    id: u64,
    engine: Engine,
    waker: Arc<RingWaker>,
}

/// Wakers of tasks and threads that sleep until completions are posted.
#[derive(Default)]
pub(crate) struct RingWaker(Mutex<Vec<Waker>>);

impl RingWaker {
    /// Calls `waker` once, when there is a completion. To be called before the ring is armed.
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

impl AttachedEngines {
    pub(crate) fn engine(&mut self, id: u64) -> Option<&mut Engine> {
        self.engines.iter_mut().find(|a| a.id == id).map(|a| &mut a.engine)
    }

    /// Adds an engine; returns its handle and wakers.
    pub(super) fn add(&mut self, engine: Engine) -> (u64, Arc<RingWaker>) {
        let (id, waker) = (self.next, Arc::<RingWaker>::default());
        self.next += 1;
        self.engines.push(AttachedEngine { id, engine, waker: Arc::clone(&waker) });
        (id, waker)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Engine> {
        let at = self.engines.iter().position(|a| a.id == id)?;
        Some(self.engines.swap_remove(at).engine)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.engines.is_empty()
    }

    /// Passes an event of a socket on.
    pub(crate) fn handle_event(&mut self, event: Event) {
        for attached in &mut self.engines {
            attached.engine.handle_event(event);
        }
    }

    /// Has the engines answer all operations, because every socket is gone.
    pub(crate) fn answer_all(&mut self) {
        self.engines.iter_mut().for_each(|attached| attached.engine.look_at_all());
    }

    /// Takes a turn of every engine; `true`: there was work. Adds wakers to `ready`.
    pub(crate) fn serve(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        ready: &mut Vec<Waker>,
    ) -> bool {
        self.disarm();
        let mut worked = false;
        for AttachedEngine { engine, waker, .. } in &mut self.engines {
            worked |= engine.turn(now, stack);
            if engine.publish() {
                waker.take(ready);
            }
        }
        worked
    }

    /// Arms the rings before a sleep, to wake the driver. `false`: there is work.
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
