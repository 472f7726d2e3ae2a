//! The application's side: engines are added to a host, removed, and used under its lock.

use std::sync::Arc;

use pagewire_mem::Instant;
use pagewire_ring::Engine;
use pagewire_stack::Stack;

use super::serve::RingWaker;
use crate::shared::{Inner, Shared};

impl Shared {
    pub(crate) fn attach(&self, engine: Engine) -> (u64, Arc<RingWaker>) {
        self.wake_on_completion(engine.let_go());
        self.lock().rings.add(engine)
    }

    /// Removes the engine of an application that dropped its rings.
    pub(crate) fn detach(&self, id: u64) {
        let (mut inner, now) = self.lock_now();
        let Some(mut engine) = inner.rings.remove(id) else { return };
        let Inner { stack, devices, .. } = &mut *inner;
        engine.close_all(now, stack);
        if let Some(steering) = devices.steering() {
            for queue in engine.queues() {
                drop(steering.unbind(queue));
            }
        }
        drop(engine);
        inner.flush(now);
        self.unlock_and_wake(inner);
    }

    /// Runs one operation on an engine and the stack, under the lock.
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
