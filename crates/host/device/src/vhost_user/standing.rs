//! The state of a port that does not depend on its front end: made once, shared by its rings.

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
    /// Fails for untrusted front ends where the system cannot wake guests without waiting for them.
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
