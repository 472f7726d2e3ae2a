//! A wrapper that simulates a bad link repeatably. `line` decides what happens to each frame,
//! `config` has the settings; this file moves, cuts and damages frames.
//!
//! ```text
//!   stack --transmit--> [cut] line --> ready --> device
//!   stack <--receive--- ready <-- line [cut] <-- device
//! ```

use std::collections::VecDeque;

use bytes::Bytes;
use pagewire_mem::{CopyLedger, CopyReason, Frag, Instant, PacketBuf, RxChecksum, TxChecksum};

use crate::device::{Device, DeviceError, forward_device, of_a_wire};
use counters::Both;
use pagewire_mem::link::{Capabilities, Medium, offload};

pub use config::{Aqm, Chance, FaultConfig, FaultConfigError, FaultDirection};
pub use counters::{FaultCounters, FaultWatch};
pub use line::{FaultLine, FaultRng, Passed};

mod config;
mod counters;
mod ecn;
mod line;
#[cfg(test)]
mod line_tests;
mod queue;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod tests;

/// A device with faults. Payload is shared and never changed in place: a damaged frame gets a
/// private copy of the damaged piece, counted as `CopyReason::Fault`.
///
/// Super-frames are cut first, so that chances are those of packets on the wire; without
/// [`FaultConfig::cut`] a super-frame is lost as one.
pub struct Fault<D> {
    device: D,
    capabilities: Capabilities,
    transmit: Option<FaultPath>,
    receive: Option<FaultPath>,
    /// Frames that the device has received, before they enter the line.
    arrived: VecDeque<PacketBuf>,
    /// The watch that shows the counts, and the counts that it has already.
    watch: Option<(FaultWatch, Both)>,
    /// The device is gone, though frames may still be on the line.
    gone: bool,
}

/// A direction of a bad link: a [`FaultLine`] that also cuts and damages frames.
pub struct FaultPath {
    line: FaultLine<PacketBuf>,
    medium: Medium,
    cut: bool,
    /// Frames at the end of the line that were not taken yet.
    ready: VecDeque<PacketBuf>,
}

impl<D: Device> Fault<D> {
    /// `device` with these faults.
    pub fn new(device: D, config: FaultConfig) -> Self {
        // Each direction has random numbers of its own.
        let mut seeds = FaultRng::new(config.seed);
        let medium = device.capabilities().medium;
        let mut path = |but: FaultDirection| {
            let seed = seeds.next_u64();
            let path = FaultPath::new(FaultConfig { seed, ..config }, medium);
            (config.on != but).then_some(path)
        };
        let transmit = path(FaultDirection::Receive);
        let receive = path(FaultDirection::Transmit);
        let capabilities = of_a_wire(device.capabilities());
        let arrived = VecDeque::new();
        Self { device, capabilities, transmit, receive, arrived, gone: false, watch: None }
    }

    /// Has `watch` count what happens on this line, too.
    pub fn watched_by(mut self, watch: &FaultWatch) -> Self {
        self.watch = Some((watch.clone(), Both::default()));
        self
    }

    /// Counts of the frames that the stack sent.
    pub fn transmit_faults(&self) -> FaultCounters {
        self.transmit.as_ref().map(FaultPath::counters).unwrap_or_default()
    }

    /// Counts of the frames for the stack.
    pub fn receive_faults(&self) -> FaultCounters {
        self.receive.as_ref().map(FaultPath::counters).unwrap_or_default()
    }

    /// The device inside.
    pub fn get_ref(&self) -> &D {
        &self.device
    }

    /// Adds the counts since the last call to the watch.
    fn publish(&mut self) {
        let after = Both { tx: self.transmit_faults(), rx: self.receive_faults() };
        if let Some((watch, before)) = &mut self.watch
            && *before != after
        {
            watch.add(&after, before);
            *before = after;
        }
    }

    /// Sends the frames at the end of the line.
    fn pump(&mut self, now: Instant, ledger: &mut CopyLedger) -> Result<(), DeviceError> {
        let Some(path) = &mut self.transmit else { return Ok(()) };
        path.collect(now, ledger);
        if path.ready.is_empty() {
            return Ok(());
        }
        self.device.transmit(now, &mut path.ready, ledger)
    }
}

impl FaultPath {
    /// A path with nothing on it, for frames that begin as `medium` says.
    pub fn new(config: FaultConfig, medium: Medium) -> Self {
        Self { line: FaultLine::new(config), medium, cut: config.cut, ready: VecDeque::new() }
    }

    /// As [`FaultLine::reconfigure`].
    pub fn reconfigure(&mut self, config: FaultConfig) {
        self.line.reconfigure(config);
        self.cut = config.cut;
    }

    /// A frame enters, with its checksum work as on the way to a device.
    pub fn handle(&mut self, now: Instant, frame: PacketBuf, ledger: &mut CopyLedger) {
        let capable = ecn::is_capable(frame.head(), self.medium);
        if !self.cut || frame.gso.is_none() {
            let bytes = frame.len();
            return self.line.handle_capable(now, frame, bytes, capable);
        }
        for wire in cut_frame(frame, ledger) {
            let bytes = wire.len();
            self.line.handle_capable(now, wire, bytes, capable);
        }
    }

    /// The next frame that has arrived by `now`.
    pub fn poll(&mut self, now: Instant, ledger: &mut CopyLedger) -> Option<PacketBuf> {
        if self.ready.is_empty() {
            self.collect(now, ledger);
        }
        self.ready.pop_front()
    }

    /// When the next frame arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.ready.is_empty() { self.line.poll_timeout() } else { Some(Instant::ZERO) }
    }

    /// Counts so far.
    pub fn counters(&self) -> FaultCounters {
        self.line.counters()
    }

    /// Frames on the way.
    pub fn in_flight(&self) -> usize {
        self.line.in_flight() + self.ready.len()
    }

    /// Takes frames from the line, and damages those that are marked.
    fn collect(&mut self, now: Instant, ledger: &mut CopyLedger) {
        while let Some(Passed { mut item, damage, congested }) = self.line.poll(now) {
            if congested {
                ecn::mark(item.head_mut(), self.medium);
            }
            match damage {
                None => self.ready.push_back(item),
                Some(random) => self.ready.extend(damage_frame(item, self.medium, random, ledger)),
            }
        }
    }
}

impl<D: Device> Device for Fault<D> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        if self.transmit.is_none() {
            return self.device.transmit(now, frames, ledger);
        }
        self.pump(now, ledger)?;
        let Some(path) = &mut self.transmit else { return Ok(()) };
        // The device's backlog goes first; new frames stay with the stack, so no queue grows here.
        if !path.ready.is_empty() {
            return Ok(());
        }
        for frame in frames.drain(..) {
            path.handle(now, frame, ledger);
        }
        let done = self.pump(now, ledger);
        self.publish();
        done
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        self.pump(now, ledger)?;
        let Some(path) = &mut self.receive else {
            self.publish();
            return self.device.receive(now, frames, max, ledger);
        };
        let result = self.device.receive(now, &mut self.arrived, max, ledger);
        for mut frame in self.arrived.drain(..) {
            if path.cut && frame.gso.is_some() {
                offload::leave_checksum_open(&mut frame);
            }
            path.handle(now, frame, ledger);
        }
        path.collect(now, ledger);
        let count = max.min(path.ready.len());
        frames.extend(path.ready.drain(..count));
        let left = path.in_flight();
        self.publish();
        match result {
            // Frames sent before the device was gone are still on the line.
            Err(DeviceError::Closed) if left > 0 || count > 0 => {
                self.gone = true;
                Ok(count)
            }
            result => result.map(|_| count),
        }
    }

    /// Frames that went over a line count as lost there: they may have been duplicated or reordered.
    fn take_refused(&mut self, frames: &mut VecDeque<PacketBuf>) {
        let before = frames.len();
        self.device.take_refused(frames);
        if self.transmit.is_some() {
            frames.truncate(before);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let paths = [&self.transmit, &self.receive].into_iter().flatten();
        // Ready frames wait for room in the device, not for a time.
        let lines = paths.filter_map(|path| path.line.poll_timeout());
        lines.chain(self.device.poll_timeout()).min()
    }

    fn arm(&mut self) -> bool {
        let waiting = self.receive.as_ref().is_some_and(|path| !path.ready.is_empty());
        // A device that is gone has nothing more to say: what is on the line has a time.
        (!self.gone && self.device.arm()) || waiting
    }

    forward_device! {
        self => self.device;
        wait_fd disarm counters pool_audit trim room steering
    }
}

/// Cuts a super-frame into the frames of the wire. If its headers cannot be read, it stays whole.
fn cut_frame(frame: PacketBuf, ledger: &mut CopyLedger) -> VecDeque<PacketBuf> {
    let mut wire = VecDeque::new();
    // A frame shares its payload: the clone is references.
    if offload::segment(frame.clone(), &mut wire, ledger).is_err() {
        wire.clear();
        wire.push_back(frame);
    }
    wire
}

/// Flips one bit, behind the link header (a wire's own check finds damage there). The frame gets a
/// complete checksum that does not match; a super-frame is cut, and one of its frames damaged.
fn damage_frame(
    mut frame: PacketBuf,
    medium: Medium,
    random: u64,
    ledger: &mut CopyLedger,
) -> VecDeque<PacketBuf> {
    if frame.rx_checksum == RxChecksum::Valid {
        offload::leave_checksum_open(&mut frame);
    }
    let mut wire = if frame.gso.is_some() {
        cut_frame(frame, ledger)
    } else {
        // Fails only where the field is not in the frame, and then there is nothing to complete.
        let _ = offload::complete_checksum(&mut frame, ledger);
        frame.tx_checksum = TxChecksum::Done;
        VecDeque::from([frame])
    };
    let mut random = FaultRng::new(random);
    let victim = random.below(wire.len() as u64) as usize;
    if let Some(frame) = wire.get_mut(victim) {
        let link = match medium {
            Medium::Ethernet => 14,
            Medium::Ip => 0,
        };
        let span = frame.len().saturating_sub(link);
        if span > 0 {
            let at = link + random.below(span as u64) as usize;
            flip(frame, at, 1 << random.below(8), ledger);
        }
    }
    // Every checksum was completed, so a receiver can verify it.
    for frame in &mut wire {
        frame.rx_checksum = RxChecksum::Unknown;
    }
    wire
}

/// Flips the bits of `mask` in byte `at` of a frame.
fn flip(frame: &mut PacketBuf, at: usize, mask: u8, ledger: &mut CopyLedger) {
    if let Some(byte) = frame.head_mut().get_mut(at) {
        *byte ^= mask;
        return;
    }
    let mut at = at - frame.head().len();
    let mut hit = false;
    for frag in frame.take_frags() {
        let len = frag.len();
        let frag = if hit {
            frag
        } else if at < len {
            hit = true;
            damaged_copy(&frag, at, mask, ledger)
        } else {
            at -= len;
            frag
        };
        // As many as came out go in.
        let _ = frame.push_frag(frag);
    }
}

fn damaged_copy(frag: &Frag, at: usize, mask: u8, ledger: &mut CopyLedger) -> Frag {
    let mut copy = vec![0; frag.len()];
    frag.copy_to(0, &mut copy, ledger, CopyReason::Fault);
    if let Some(byte) = copy.get_mut(at) {
        *byte ^= mask;
    }
    Frag::from_bytes(Bytes::from(copy))
}
