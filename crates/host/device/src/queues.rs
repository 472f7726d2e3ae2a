//! Variant of step R1, into memory of an application: queues of a device that have a region of
//! their own, and the flows steered there.
//!
//! ```text
//!   device --frame--> rules: protocol, local port, peer --> queue with memory --> payload placed
//!                                                      \--> default queue: stays where it is
//! ```
//!
//! [`Queues`] gives any device such queues. It writes a frame's payload into the next buffers of
//! the region, as a network card does. That is one copy at the device's boundary
//! ([`CopyReason::DeviceRx`](pagewire_mem::CopyReason::DeviceRx)), counted as such; nothing above
//! it copies again. A tap needs none: its queues read directly into the region of their flows.

use std::collections::VecDeque;

use pagewire_mem::{CopyLedger, Instant, PacketBuf};

use crate::device::{Device, DeviceError, forward_device};
use pagewire_mem::link::{Capabilities, Steering};

/// Any device, with queues that can be given memory.
#[derive(Debug)]
pub struct Queues<D> {
    device: D,
    steering: Steering,
    capabilities: Capabilities,
    /// Received frames, before they are placed.
    arrived: VecDeque<PacketBuf>,
}

impl<D: Device> Queues<D> {
    /// `device` with `queues` queues, at most 64.
    pub fn new(device: D, queues: usize) -> Self {
        let steering = Steering::new(queues);
        let capabilities =
            Capabilities { queues: steering.queues(), ..device.capabilities().clone() };
        Self { device, steering, capabilities, arrived: VecDeque::new() }
    }

    /// The device inside.
    pub fn get_ref(&self) -> &D {
        &self.device
    }
}

impl<D: Device> Device for Queues<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        self.steering.drain();
        let n = self.device.receive(now, &mut self.arrived, max, ledger)?;
        for mut frame in self.arrived.drain(..) {
            self.steering.place(&mut frame, ledger);
            frames.push_back(frame);
        }
        Ok(n)
    }

    forward_device! {
        self => self.device;
        transmit take_refused poll_timeout wait_fd arm disarm counters pool_audit trim room
    }

    fn steering(&mut self) -> Option<&mut Steering> {
        Some(&mut self.steering)
    }
}
