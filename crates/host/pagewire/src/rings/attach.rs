//! Rings, from the application's side: engines are added to a host, removed, and used under its lock.

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
        self.modify(|Inner { stack, devices, rings, .. }, now| {
            let Some(mut engine) = rings.remove(id) else { return };
            engine.close_all(now, stack);
            if let Some(steering) = devices.steering() {
                for queue in engine.queues() {
                    drop(steering.unbind(queue));
                }
            }
        });
    }

    /// Runs one operation on an engine and the stack, under the lock.
    pub(crate) fn with_rings<T>(
        &self,
        id: u64,
        op: impl FnOnce(&mut Engine, &mut Stack, Instant) -> Result<T, pagewire_stack::Error>,
    ) -> Result<T, pagewire_stack::Error> {
        self.modify(|Inner { stack, rings, .. }, now| {
            let engine = rings.engine(id).ok_or(pagewire_stack::Error::NoSuchSocket)?;
            op(engine, stack, now)
        })
    }
}
