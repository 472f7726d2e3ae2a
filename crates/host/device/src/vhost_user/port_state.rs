//! [`PortState`]: the state of a device that does not depend on its front end, made once and shared by its rings.

use std::io;
use std::sync::Arc;

use super::allowance::Allowance;
use super::events::Signals;
use crate::wake_event::WakeEvent;

#[derive(Debug)]
pub(super) struct PortState {
    /// Wakes the device.
    pub(super) wake: Arc<WakeEvent>,
    /// Wakes guests.
    pub(super) signals: Signals,
    pub(super) allowance: Arc<Allowance>,
    /// Queue pairs of the device.
    pub(super) pairs: usize,
    /// Queue pairs of all devices of the port.
    pub(super) port_pairs: usize,
}

impl PortState {
    /// Of a device with `pairs` of the port's queue pairs. Fails for untrusted front ends where the system cannot wake guests without waiting for them.
    pub(super) fn new(
        wake: &Arc<WakeEvent>,
        [pairs, port_pairs]: [usize; 2],
        allowance: &Arc<Allowance>,
        trusted: bool,
    ) -> io::Result<Arc<Self>> {
        let (wake, signals) = (Arc::clone(wake), Signals::new(trusted)?);
        let allowance = Arc::clone(allowance);
        Ok(Arc::new(Self { wake, signals, allowance, pairs, port_pairs }))
    }
}
