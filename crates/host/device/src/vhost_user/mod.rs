//! Variant of steps R1 and S6, with a virtual machine at the other end: a vhost-user back end, to
//! which QEMU and others connect over a Unix socket and share the guest's memory.
//!
//! ```text
//!   front end --messages--> control thread --lock--> session: features, memory, rings
//!                                                         ^
//!   guest's TX ring --> receive --> port --> stack        | lock, once per burst
//!   guest's RX ring <-- transmit <---------- stack     device thread
//! ```
//!
//! A port has one device, or [several](VhostUserBuilder::listen_queues) for a host of several cores. Each
//! has a session with rings of its own, and they have the front end in common.
//!
//! Read [`VhostUser`]'s `Device` implementation first, then `receive` and `transmit`; under them
//! `chain` and `vring`, at the bottom `virtqueue` and `window` (all access to the guest's memory);
//! `returned` for descriptors that fragments hold; `control`, `front_end`, `session` and `memory` for
//! messages.
//!
//! Nothing that the guest writes is trusted, and no message. Invalid input of a guest costs the
//! frame or, where the ring itself is invalid, the ring; that of a front end costs the session;
//! each has its counter ([`VhostCounters`]). Guest memory must be a file sealed against shrinking
//! (QEMU's `memory-backend-memfd` is), because a page that vanishes would kill the process that
//! touches it: memory that cannot be sealed is refused. So are huge pages: a hole punched into them
//! does the same where no page is left to fill it. Eventfds are signalled in a way that cannot wait
//! (`aio`), and the device never waits for the control thread (`Shared::try_session`). The
//! resources of all sessions of a port together are limited ([`FrontEndLimits`]). A
//! [trusted](VhostUserBuilder::trust_front_end) front end may use huge pages.

mod aio;
mod allowance;
mod builder;
mod chain;
mod control;
mod counters;
#[cfg(any(test, feature = "testing"))]
pub mod double;
mod events;
mod features;
mod front_end;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzzing;
pub mod limits;
mod memory;
mod port_state;
mod receive;
mod returned;
mod session;
mod shared;
mod spill;
#[cfg(test)]
mod tests;
mod transmit;
mod virtqueue;
mod vring;
mod window;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant, PacketBuf, PoolAudit};

pub use allowance::FrontEndLimits;
pub use builder::VhostUserBuilder;
use control::Control;
pub use counters::VhostCounters;
use events::Events;
use limits::{ENDING, SIGNAL_RETRY};
use receive::Receiver;
use session::Session;
use shared::Shared;
use spill::SpillEnd;
use transmit::Sender;
use vring::Vring;

use crate::port::{Port, PortCounters};
use crate::{Device, DeviceCounters, DeviceError};
use pagewire_mem::link::Capabilities;

/// A port for a virtual machine: the back end of a vhost-user network device.
///
/// Front ends come and go; while none is there, or the guest's driver has not set its rings up, the
/// link is down: frames to send are dropped and counted, by the first device of the port for all. Long frames of the guest are received as
/// fragments of its memory, whose descriptors it gets back when the last fragment is dropped, on any
/// thread and in any order; the shared memory stays mapped for them even when the guest is gone.
pub struct VhostUser {
    shared: Arc<Shared>,
    /// The thread of all devices of the port.
    control: Arc<Control>,
    spill: SpillEnd,
    capabilities: Capabilities,
    events: Arc<Events>,
    receiver: Receiver,
    sender: Sender,
    counters: DeviceCounters,
    /// The pair to serve next.
    next: usize,
    armed: bool,
    /// When refused interrupts are to be sent again.
    retry_at: Option<Instant>,
}

/// A view of a port, while a host has its devices.
#[derive(Clone)]
pub struct VhostMonitor(Arc<[Arc<Shared>]>);

impl VhostUser {
    /// Listens at `path`; everything else as the builder's defaults.
    ///
    /// # Errors
    /// As [`VhostUserBuilder::listen`].
    pub fn listen(path: impl AsRef<std::path::Path>) -> Result<Self, DeviceError> {
        Self::builder().listen(path)
    }

    /// Settings of a port.
    pub fn builder() -> VhostUserBuilder {
        VhostUserBuilder::default()
    }

    /// A view of counts and state of the port, of all its devices together, while a host has the device.
    pub fn monitor(&self) -> VhostMonitor {
        VhostMonitor(Arc::clone(self.control.devices()))
    }

    /// The port that receives frames: its hook, its counts, its place in a table.
    pub fn port(&self) -> &Port {
        &self.receiver.port
    }

    /// The port, mutable.
    pub fn port_mut(&mut self) -> &mut Port {
        &mut self.receiver.port
    }
}

impl VhostMonitor {
    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.first(|session| session.connected).unwrap_or_default()
    }

    /// Whether the guest's driver has set up a pair of rings that may run: the first.
    pub fn is_up(&self) -> bool {
        let is_up = |session: &mut Session| {
            session.vrings.iter().take(2).all(|vring| vring.running().is_some())
        };
        self.first(is_up).unwrap_or_default()
    }

    /// Counts so far.
    pub fn counters(&self) -> VhostCounters {
        let mut sum = VhostCounters::default();
        for device in self.0.iter() {
            let session = device.session();
            sum.add(&session.counters);
            sum.held += session.vrings.iter().map(|vring| u64::from(vring.held())).sum::<u64>();
        }
        let used = self.first(|session| session.port_state.allowance.used());
        let (bytes, mappings) = used.unwrap_or_default();
        VhostCounters { mapped_bytes: bytes as u64, mappings: mappings as u64, ..sum }
    }

    /// The port's counts, as of the last burst.
    pub fn port_counters(&self) -> PortCounters {
        let mut sum = PortCounters::default();
        self.0.iter().for_each(|device| sum.add(&device.session().port));
        sum
    }

    /// Why the last front end was disconnected, if it was.
    pub fn refused(&self) -> Option<String> {
        self.first(|session| session.refused.clone()).flatten()
    }

    fn first<T>(&self, look: impl FnOnce(&mut Session) -> T) -> Option<T> {
        self.0.first().map(|device| look(&mut device.session()))
    }
}

impl Device for VhostUser {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        if frames.is_empty() {
            self.sender.rest();
            return Ok(());
        }
        // The session's holder wakes the device when done; until then the frames wait.
        let Some(mut session) = self.shared.try_session() else { return Ok(()) };
        if !session.has_receiver() && self.spill.give(frames) {
            self.sender.rest();
            return Ok(());
        }
        self.sender.send_all(&mut session, frames, &mut self.counters, ledger);
        self.retry_at = session.has_pending_signals().then(|| now + SIGNAL_RETRY);
        Ok(())
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        self.receiver.port.end_turn();
        self.receiver.blocked = false;
        let Some(mut session) = self.shared.try_session() else { return Ok(0) };
        if session.has_pending_signals() {
            session.retry_signals();
        }
        let pairs = session.vrings.len() / 2;
        let before = frames.len();
        let mut looked = 0;
        for turn in 0..pairs {
            let pair = (self.next + turn) % pairs;
            let from = frames.len();
            let counts = (&mut self.counters, &mut *ledger);
            looked += self.receiver.receive(&mut session, pair, max - looked, counts, frames);
            for packet in frames.range(from..).filter(|_| pairs > 1) {
                self.sender.note(packet, pair);
            }
            if looked >= max {
                self.next = pair + 1;
                break;
            }
        }
        let port = &mut self.receiver.port;
        self.sender.collect_returned(port, &self.spill);
        self.sender.send_returned(&mut session, &mut self.counters, ledger);
        if looked > 0 {
            session.port = *self.receiver.port.counters();
        }
        self.retry_at = session.has_pending_signals().then(|| now + SIGNAL_RETRY);
        match frames.len() - before {
            0 if session.spent => Err(DeviceError::Closed),
            received => Ok(received),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.fd())
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        let mut ready = self.receiver.blocked && self.receiver.port.wait_for_room();
        let Some(mut session) = self.shared.try_session() else { return ready };
        // The list of returned heads reports its first entry only.
        ready |= self.sender.has_returned(&self.receiver.port, &self.spill);
        for (index, vring) in session.vrings.iter_mut().enumerate() {
            if index % 2 == 1 {
                // A blocked one has frames, which can wait.
                ready |= !self.receiver.blocked && vring.arm(0);
                continue;
            }
            for seen in self.sender.short_of(index / 2) {
                ready |= vring.arm(seen);
            }
        }
        ready
    }

    fn disarm(&mut self) {
        if !std::mem::take(&mut self.armed) {
            return;
        }
        self.events.clear();
        self.counters.syscalls += 1;
        if let Some(mut session) = self.shared.try_session() {
            session.vrings.iter_mut().for_each(Vring::disarm);
        }
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        Some(self.receiver.port.pool_audit())
    }

    fn trim(&mut self) {
        self.receiver.port.trim();
    }
}

impl Drop for VhostUser {
    /// Sends what other devices have left, and returns all descriptors to the guest, so that its driver and
    /// the next device agree on the rings' positions. Remaining fragments stay mapped, but the guest may write there now.
    fn drop(&mut self) {
        self.spill.close();
        if let Some(mut session) = self.shared.wait(ENDING) {
            let ledger = &mut CopyLedger::new();
            self.sender.collect_returned(&mut self.receiver.port, &self.spill);
            self.sender.send_returned(&mut session, &mut self.counters, ledger);
            session.surrender();
        }
    }
}

impl std::fmt::Debug for VhostUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mac = self.capabilities.mac;
        f.debug_struct("VhostUser").field("mac", &mac).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for VhostMonitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VhostMonitor").field("connected", &self.is_connected()).finish()
    }
}
