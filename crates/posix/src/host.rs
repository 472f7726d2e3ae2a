//! Real time: descriptors over a [`Host`].

use std::sync::Arc;
use std::time::Duration;

use pagewire::Host;
use pagewire_mem::Instant;
use pagewire_stack::Stack;

use crate::backend::Backend;
use crate::notice::{Notices, Signal};

/// Longest sleep of a thread that waits: bounds the cost of a lost wake-up.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Longest sleep of the host's own driver thread here.
const DRIVER_LOOK: Duration = Duration::from_millis(1);

/// A [`Host`] as a [`Backend`]. The host's own sockets may be used beside descriptors.
#[derive(Clone, Debug)]
pub struct HostBackend(Host);

impl HostBackend {
    /// Over a host with a driver thread.
    pub fn new(host: Host) -> Self {
        Self(host)
    }
}

impl Backend for HostBackend {
    fn attach(&self, notices: Arc<Notices>) {
        self.0.on_event(move |event| notices.notify(event));
    }

    fn now(&self) -> Instant {
        self.0.now()
    }

    fn with<T>(&self, verb: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        self.0.with_stack(verb)
    }

    fn wait(&self, signal: &Signal, deadline: Option<Instant>) {
        let left = deadline.map_or(LONGEST_SLEEP, |at| at.saturating_since(self.now()));
        if self.0.is_driver_thread() {
            // A waker or an owner's drop on the driver thread: no other thread drives the host.
            self.0.wait_turn(left.min(DRIVER_LOOK));
            return;
        }
        if !signal.is_set() && !left.is_zero() {
            std::thread::park_timeout(left.min(LONGEST_SLEEP));
        }
    }
}
