//! What a port has whoever is connected to it: made once, shared by its rings.

use std::io;
use std::sync::Arc;

use super::allowance::{Allowance, FrontEndLimits};
use super::events::{Bell, Signals};

#[derive(Debug)]
pub(super) struct Standing {
    /// Wakes the device.
    pub(super) bell: Arc<Bell>,
    /// Wakes guests.
    pub(super) signals: Signals,
    pub(super) allowance: Arc<Allowance>,
    /// Pairs of queues.
    pub(super) pairs: usize,
}

impl Standing {
    /// Fails where front ends are not trusted, and the system has no way to wake their guests without
    /// waiting for them.
    pub(super) fn new(
        bell: &Arc<Bell>,
        pairs: usize,
        limits: FrontEndLimits,
        trusted: bool,
    ) -> io::Result<Arc<Self>> {
        let (bell, signals) = (Arc::clone(bell), Signals::new(trusted)?);
        let allowance = Allowance::new(limits, trusted);
        Ok(Arc::new(Self { bell, signals, allowance, pairs }))
    }
}
