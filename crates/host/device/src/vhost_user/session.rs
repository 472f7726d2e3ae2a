//! The settings of a front end, as far as one device needs them: features, memory, its rings. Messages
//! change a session on the control thread, the device uses it on its own; one lock, taken once per burst
//! and once per message.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::counters::VhostCounters;
use super::events::Events;
use super::features;
use super::limits::{GUEST_HEADER, MAX_QUEUE_SIZE};
use super::memory::Memory;
use super::port_state::PortState;
use super::vring::{Addresses, Vring};
use crate::limits::VNET_HEADER;
use crate::port::PortCounters;

/// The state that both threads share.
pub(super) struct Session {
    pub(super) features: u64,
    pub(super) memory: Memory,
    /// The guest receives by even ones and sends by odd ones.
    pub(super) vrings: Vec<Vring>,
    pub(super) counters: VhostCounters,
    pub(super) connected: bool,
    /// No front end will connect any more.
    pub(super) spent: bool,
    pub(super) events: Arc<Events>,
    pub(super) port_state: Arc<PortState>,
    /// The port's counts, as of the last burst.
    pub(super) port: PortCounters,
    /// The last refusal, in words.
    pub(super) refused: Option<String>,
}

impl Session {
    /// Whether a signal to a guest or a front end was refused by the kernel.
    pub(super) fn has_pending_signals(&self) -> bool {
        self.vrings.iter().any(Vring::owes_signal)
    }

    pub(super) fn retry_signals(&mut self) {
        let Self { vrings, counters, .. } = self;
        vrings.iter_mut().for_each(|vring| vring.retry_signals(counters));
    }

    pub(super) fn new(events: &Arc<Events>, port_state: &Arc<PortState>) -> Self {
        Self {
            features: 0,
            memory: Memory::new(&port_state.allowance),
            vrings: (0..2 * port_state.pairs).map(|_| Vring::new(port_state)).collect(),
            counters: VhostCounters::default(),
            connected: false,
            spent: false,
            events: Arc::clone(events),
            port_state: Arc::clone(port_state),
            port: PortCounters::default(),
            refused: None,
        }
    }

    /// A front end has connected.
    pub(super) fn begin(&mut self) {
        self.end();
        self.connected = true;
    }

    /// Returns all held descriptors to the guest, while the front end is still there.
    pub(super) fn surrender(&mut self) {
        for vring in &mut self.vrings {
            vring.surrender(&mut self.counters);
        }
    }

    /// The front end is gone: its rings are not used again. Memory that fragments hold stays mapped.
    pub(super) fn end(&mut self) {
        for vring in &mut self.vrings {
            vring.stop(&self.events);
            *vring = Vring::new(&self.port_state);
        }
        self.memory = Memory::new(&self.port_state.allowance);
        self.features = 0;
        self.connected = false;
        self.port_state.wake.wake();
    }

    pub(super) fn spend(&mut self) {
        self.spent = true;
        self.port_state.wake.wake();
    }

    pub(super) fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Bytes of the virtio header in front of each frame (Virtio 1.2, section 5.1.6.1).
    pub(super) fn header_len(&self) -> usize {
        let whole = self.has(features::VERSION_1) || self.has(features::MRG_RXBUF);
        if whole { GUEST_HEADER } else { VNET_HEADER }
    }

    /// Buffers in the receive ring of a pair; `None`: it does not run.
    pub(super) fn waiting(&mut self, pair: usize) -> Option<u16> {
        let Self { vrings, counters, .. } = self;
        let vring = vrings.get_mut(2 * pair)?;
        let waiting = vring.waiting(counters);
        vring.running().map(|_| waiting)
    }

    /// Whether the guest's driver receives by the first pair.
    pub(super) fn has_receiver(&self) -> bool {
        self.vrings.first().is_some_and(|vring| vring.running().is_some())
    }
}

/// # Messages
///
/// Each returns `None` where the front end breaks the rules.
impl Session {
    pub(super) fn vring(&mut self, index: usize) -> Option<&mut Vring> {
        self.vrings.get_mut(index)
    }

    /// Stops all rings.
    pub(super) fn reset(&mut self) {
        for vring in &mut self.vrings {
            vring.stop(&self.events);
            vring.enabled = false;
        }
    }

    pub(super) fn set_features(&mut self, features: u64) {
        self.features = features;
        let event_index = self.has(features::EVENT_IDX);
        for vring in &mut self.vrings {
            vring.event_index = event_index;
        }
    }

    /// Replaces the memory and finds the rings there.
    pub(super) fn replace_memory(&mut self, memory: &Memory) -> Option<()> {
        self.memory = memory.clone();
        for vring in &mut self.vrings {
            if vring.rebind(&self.memory).is_none() {
                self.counters.bad_rings += 1;
                return None;
            }
        }
        Some(())
    }

    pub(super) fn set_size(&mut self, index: usize, size: u32) -> Option<()> {
        let size = u16::try_from(size).ok().filter(|&n| n.is_power_of_two() && n <= MAX_QUEUE_SIZE);
        let vring = self.vrings.get_mut(index)?;
        let Some(size) = size.filter(|_| !vring.is_started()) else {
            self.counters.bad_rings += 1;
            return None;
        };
        vring.size = size;
        Some(())
    }

    pub(super) fn set_addresses(&mut self, index: usize, addresses: Addresses) -> Option<()> {
        let vring = self.vrings.get_mut(index)?;
        vring.addresses = Some(addresses);
        let bound = vring.rebind(&self.memory);
        self.counters.bad_rings += u64::from(bound.is_none());
        bound
    }

    /// Stops a ring; returns its position.
    pub(super) fn stop(&mut self, index: usize) -> Option<u16> {
        Some(self.vrings.get_mut(index)?.stop(&self.events))
    }

    pub(super) fn set_kick(&mut self, index: usize, fd: Option<OwnedFd>) -> Option<()> {
        let enable = !self.has(features::PROTOCOL_FEATURES);
        let vring = self.vrings.get_mut(index)?;
        // Front ends take "The ring starts when a kick is received" to mean the kick's descriptor.
        if !vring.is_started() && vring.start(&self.memory).is_none() {
            self.counters.bad_rings += 1;
            return None;
        }
        vring.set_kick(fd, &self.events);
        vring.enabled |= enable;
        self.port_state.wake.wake();
        Some(())
    }

    pub(super) fn enable(&mut self, index: usize, enable: bool) -> Option<()> {
        self.vrings.get_mut(index)?.enabled = enable;
        self.port_state.wake.wake();
        Some(())
    }

    /// Takes the eventfd of a message. `Err`: it is something else.
    pub(super) fn event_fd(&mut self, fd: Option<File>) -> Result<Option<OwnedFd>, ()> {
        let Some(fd) = fd else { return Ok(None) };
        let taken = self.port_state.signals.take(OwnedFd::from(fd));
        self.counters.bad_event_fds += u64::from(taken.is_none());
        taken.map(Some).ok_or(())
    }
}
