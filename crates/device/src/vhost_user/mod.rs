//! Byte path, steps R1 and S6 with a virtual machine at the other end: a vhost-user back end, to
//! which QEMU and its like connect over a Unix socket and hand the guest's memory.
//!
//! ```text
//!   front end --messages--> control thread --lock--> session: features, memory, rings
//!                                                         ^
//!   guest's TX ring --> receive --> frames --> stack      | lock, once per burst
//!   guest's RX ring <-- transmit <------------ stack   device thread
//! ```
//!
//! Read [`VhostUser`]'s `Device` implementation first, then `receive` and `transmit`; `chain` (what
//! a descriptor chain says) and `vring` (what was taken and given back) under them, `ring` and
//! `window` (all access to the guest's memory) at the bottom; `held` for descriptors that fragments
//! hold; `session`, `control` and `memory` for what the front end says.
//!
//! What is trusted: nothing that the guest writes, and no message. A guest's lie costs the frame or,
//! where the ring itself makes no sense, the ring; a front end's costs the session; each has its
//! counter ([`VhostCounters`]). Guest memory must be a file sealed against shrinking (QEMU's
//! `memory-backend-memfd` is), because a page that vanishes would kill the process that touches it:
//! memory that cannot be sealed is refused. Two things are left to the front end's good will, which
//! anyhow runs the guest: that it does not punch holes into huge pages, and that it does not make its
//! own eventfd block when it is full.

mod builder;
mod chain;
mod control;
mod counters;
pub mod double;
mod events;
mod features;
mod held;
pub mod limits;
mod memory;
mod receive;
mod ring;
mod session;
#[cfg(test)]
mod tests;
mod transmit;
mod vring;
mod window;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant, PacketBuf, PoolAudit};

pub use builder::VhostUserBuilder;
use control::{Control, Shared};
pub use counters::VhostCounters;
use events::Events;
use limits::FLOWS;
use receive::Receiver;
use session::Session;
use transmit::{Sender, Sent};

use crate::headers;
use crate::{Capabilities, Device, DeviceCounters, DeviceError};

/// A port that a virtual machine is plugged into: the back end of a vhost-user network device.
///
/// Front ends come and go; while none is there, or the guest's driver has not set its rings up, the
/// link is as if the cable were pulled: what is sent is dropped and counted. Long frames of the
/// guest's come in as fragments of its memory, whose descriptors it gets back when the last fragment
/// is dropped, on whatever thread and in whatever order; what it has shared stays mapped for them
/// even when it is gone.
pub struct VhostUser {
    control: Control,
    capabilities: Capabilities,
    events: Arc<Events>,
    receiver: Receiver,
    sender: Sender,
    counters: DeviceCounters,
    /// The pair to look at next.
    next: usize,
    /// The pair by which the flow of each slot came last.
    flows: [u8; FLOWS],
    /// The pair whose buffers were too few, and how many waited there.
    short: Option<(usize, u16)>,
    armed: bool,
}

/// A look at a [`VhostUser`] from elsewhere, while a host has it.
#[derive(Clone)]
pub struct VhostMonitor(Arc<Shared>);

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

    /// Counts and state, to be looked at while a host has the device.
    pub fn monitor(&self) -> VhostMonitor {
        VhostMonitor(Arc::clone(self.control.shared()))
    }

    fn over(
        control: Control,
        capabilities: Capabilities,
        events: Arc<Events>,
        receiver: Receiver,
    ) -> Self {
        Self {
            control,
            capabilities,
            events,
            receiver,
            sender: Sender::default(),
            counters: DeviceCounters::default(),
            next: 0,
            flows: [0; FLOWS],
            short: None,
            armed: false,
        }
    }

    /// The pair to send a frame by: the one its flow came by, if that runs, else the first.
    fn pair_for(flows: &[u8; FLOWS], session: &Session, packet: &PacketBuf) -> usize {
        if session.vrings.len() <= 2 {
            return 0;
        }
        let runs =
            |pair: usize| session.vrings.get(2 * pair).is_some_and(|v| v.running().is_some());
        let pair = flow(packet.head()).and_then(|slot| flows.get(slot)).map_or(0, |&p| p.into());
        if runs(pair) { pair } else { 0 }
    }
}

impl VhostMonitor {
    /// Whether a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.0.session().connected
    }

    /// Whether the guest's driver has set up a pair of rings that may run.
    pub fn is_up(&self) -> bool {
        let session = self.0.session();
        session.vrings.iter().take(2).all(|vring| vring.running().is_some())
    }

    /// Counts so far.
    pub fn counters(&self) -> VhostCounters {
        let session = self.0.session();
        let held = session.vrings.iter().map(|vring| u64::from(vring.held())).sum();
        VhostCounters { held, ..session.counters }
    }

    /// Why the last front end was disconnected, if it was.
    pub fn refused(&self) -> Option<String> {
        self.0.session().refused.clone()
    }
}

/// The slot of a frame's flow, the same in both directions: what is exclusive-or'ed is symmetric.
fn flow(head: &[u8]) -> Option<usize> {
    let layout = headers::parse(head).ok()?;
    let ports = head.get(layout.transport_at..layout.transport_at + 4);
    let bytes = layout.addresses(head)?.iter().chain(ports.unwrap_or_default());
    Some(usize::from(bytes.fold(0, |sum: u8, byte| sum ^ byte)) % FLOWS)
}

impl Device for VhostUser {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        _now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        self.short = None;
        if frames.is_empty() {
            return Ok(());
        }
        let mut session = self.control.shared().session();
        let session = &mut *session;
        let up = session.vrings.first().is_some_and(|vring| vring.running().is_some());
        if !up {
            self.counters.tx_dropped_closed += frames.len() as u64;
            frames.clear();
            return Ok(());
        }
        loop {
            // What was cut from a super-frame goes before the frames behind it.
            let mut packet = match self.sender.cut.pop_front().or_else(|| frames.pop_front()) {
                Some(packet) => packet,
                None => break,
            };
            if self.sender.prepare(session, &mut packet, &mut self.counters, ledger) {
                continue;
            }
            let pair = Self::pair_for(&self.flows, session, &packet);
            let Some(before) = session.waiting(pair) else {
                self.counters.tx_dropped_closed += 1;
                continue;
            };
            match self.sender.send(session, pair, &packet, ledger) {
                Sent::Done => {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += packet.len() as u64;
                }
                Sent::Never => self.counters.tx_dropped_error += 1,
                Sent::Later => {
                    self.sender.cut.push_front(packet);
                    // The ring broke, or one that was given back empty was not the last.
                    let now = session.waiting(pair);
                    if now.is_none_or(|now| now > 0 && now < before) {
                        continue;
                    }
                    self.short = now.map(|now| (pair, now));
                    break;
                }
            }
        }
        // They are ordinary frames, and the caller's to keep.
        while let Some(packet) = self.sender.cut.pop_back() {
            frames.push_front(packet);
        }
        for vring in session.vrings.iter_mut().step_by(2) {
            vring.publish(&mut session.counters);
        }
        Ok(())
    }

    fn receive(
        &mut self,
        _now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        self.receiver.pool.drain();
        let mut session = self.control.shared().session();
        let pairs = session.vrings.len() / 2;
        let before = frames.len();
        let mut looked = 0;
        for turn in 0..pairs {
            let pair = (self.next + turn) % pairs;
            let flows = &mut self.flows;
            let take = |packet: PacketBuf| {
                if pairs > 1
                    && let Some(slot) = flow(packet.head()).and_then(|slot| flows.get_mut(slot))
                {
                    *slot = pair as u8;
                }
                frames.push_back(packet);
            };
            let counts = (&mut self.counters, &mut *ledger);
            looked += self.receiver.receive(&mut session, pair, max - looked, counts, take);
            if looked >= max {
                self.next = pair + 1;
                break;
            }
        }
        Ok(frames.len() - before)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.fd())
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        let mut session = self.control.shared().session();
        let mut ready = false;
        for (index, vring) in session.vrings.iter_mut().enumerate() {
            match self.short {
                _ if index % 2 == 1 => ready |= vring.arm(0),
                Some((pair, waiting)) if index == 2 * pair => ready |= vring.arm(waiting),
                _ => {}
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
        for vring in &mut self.control.shared().session().vrings {
            vring.disarm();
        }
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        Some(self.receiver.pool.audit())
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
