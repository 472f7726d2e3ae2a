//! Frames that a program has in its own memory: the way to embed a stack, or the gateway, in a
//! program that runs a guest itself.
//!
//! ```text
//!   guest --> the program: FramesEnd::send ----> pair ----> host (Frames)
//!   guest <-- the program: FramesEnd::receive <-- pair <--- host
//! ```
//!
//! A frame that is sent is copied once, into a page; or it is passed by reference
//! ([`FramesEnd::send_bytes`]). A frame that is received is copied once, into the program's buffer;
//! or it is taken by reference ([`FramesEnd::receive_packet`]). The two sides may be on different
//! threads. Neither makes a system call but to wake the other while that sleeps.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::copy::copy_bytes;
use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec, Instant, PacketBuf, PoolAudit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::forward_device;
use crate::limits::FRAMES_QUEUE;
use crate::port::{BytesSource, Fault, FrameSource, Offload, PortError, WriteFlags};
use crate::{Device, DeviceCounters, DeviceError, Pair, PairConfig, PairEnd, Port, PortConfig};
use pagewire_mem::link::{Capabilities, Medium};

/// Settings of [`Frames`].
#[derive(Clone, Copy, Debug)]
pub struct FramesConfig {
    /// Largest IP packet in bytes, 576 to 65,535 (at least 1,280 for IPv6).
    pub mtu: usize,
    /// The link address of the host on the device.
    pub mac: [u8; 6],
    /// Frames that each direction holds.
    pub queue_frames: usize,
    /// Memory for copied frames, in bytes; touched only as far as used.
    pub pool_bytes: usize,
}

impl Default for FramesConfig {
    fn default() -> Self {
        Self {
            mtu: 1500,
            mac: [0x02, 0x50, 0x57, 0, 0, 1],
            queue_frames: FRAMES_QUEUE,
            pool_bytes: crate::port::limits::POOL_BYTES,
        }
    }
}

/// A device whose other side is in this program: see [`FramesEnd`]. Frames are plain Ethernet, with
/// complete checksums, at most the MTU long.
///
/// ```
/// use pagewire_device::{Device, Frames, FramesConfig};
///
/// let (device, mut end) = Frames::new(FramesConfig::default())?;
/// // `device` goes to a host or to a gateway. What the guest sends:
/// let frame = [0xff; 64];
/// end.send(&frame)?;
/// // What the guest is to receive:
/// let mut buffer = [0; 1514];
/// while let Some(len) = end.receive(&mut buffer) {
///     println!("{len} bytes for the guest");
/// }
/// # drop(device);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Frames {
    pair: PairEnd,
    /// The room that the other side's memory had left with its last frame.
    room: Arc<AtomicUsize>,
}

/// The program's side of [`Frames`]. For one thread at a time.
pub struct FramesEnd {
    pair: PairEnd,
    port: Port,
    room: Arc<AtomicUsize>,
    ledger: CopyLedger,
    /// Frames for the host, on their way into the pair.
    out: VecDeque<PacketBuf>,
    /// The last frame was refused with [`FrameError::Full`].
    refused: bool,
    /// Frames for the guest that were taken from the pair.
    arrived: VecDeque<PacketBuf>,
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The queue is full: [`wait_fd`](FramesEnd::wait_fd) is readable when there is room.
    #[error("the queue of frames is full")]
    Full,
    /// No frame has this length.
    #[error("a frame of {0} bytes is not possible")]
    Length(usize),
    /// The memory for frames is used up. The frame is lost, as on a full line.
    #[error("no memory is left for frames")]
    NoMemory,
    /// The device was dropped.
    #[error("the other side is gone")]
    Closed,
}

/// Frames taken from the pair at once.
const BURST: usize = 64;

/// The end's own link address, which no frame carries.
const END: [u8; 6] = [0x02, 0x50, 0x57, 0, 1, 0];

impl Frames {
    /// A device, and the program's side of it.
    ///
    /// # Errors
    /// [`DeviceError::Config`] if a setting is out of its range, [`DeviceError::System`] if the
    /// process has no descriptor or no memory left.
    // Not `Self`: the device is one of two values.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(config: FramesConfig) -> Result<(Self, FramesEnd), DeviceError> {
        let FramesConfig { mtu, mac, queue_frames, pool_bytes } = config;
        let pair = PairConfig {
            mtu,
            queue_frames,
            macs: [mac, END],
            offload: false,
            ..Default::default()
        };
        let (ours, theirs) = Pair::with(pair)?;
        let port = PortConfig { pool_bytes, ..PortConfig::new(Medium::Ethernet) };
        let port = Port::new(port).map_err(|e| DeviceError::System {
            what: format!("frames: map {pool_bytes} bytes"),
            source: std::io::Error::other(e),
        })?;
        let (out, arrived) = (VecDeque::new(), VecDeque::with_capacity(BURST));
        let (ledger, room) = (CopyLedger::new(), Arc::new(AtomicUsize::new(port.room())));
        let device = Self { pair: ours, room: Arc::clone(&room) };
        Ok((device, FramesEnd { pair: theirs, port, room, ledger, out, refused: false, arrived }))
    }
}

impl Device for Frames {
    forward_device! {
        self => self.pair;
        capabilities transmit receive take_refused poll_timeout wait_fd arm disarm counters
        pool_audit trim steering
    }

    fn room(&self) -> Option<usize> {
        // A hint: no memory is read on its strength.
        Some(self.room.load(Ordering::Relaxed))
    }
}

impl FramesEnd {
    /// Sends an Ethernet frame to the host, without its checksum (FCS); it is copied.
    ///
    /// # Errors
    /// [`FrameError`]; with [`FrameError::Full`] the frame may be sent again later.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), FrameError> {
        self.write(&mut BytesSource::new(frame), false)
    }

    /// Sends an Ethernet frame to the host by reference: the memory is held until the host is done
    /// with it. For payloads of some kilobytes; copying shorter ones costs less.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_bytes(&mut self, frame: Bytes) -> Result<(), FrameError> {
        let bytes = frame.clone();
        self.write(&mut Referred { bytes: &bytes, frag: Some(Frag::from_bytes(frame)) }, true)
    }

    fn write<S: FrameSource>(&mut self, source: &mut S, zerocopy: bool) -> Result<(), FrameError> {
        if self.pair.is_peer_gone() {
            return Err(FrameError::Closed);
        }
        if source.len() > self.pair.capabilities().mtu + crate::limits::MAX_LINK_HEADER {
            return Err(FrameError::Length(source.len()));
        }
        self.flush();
        self.refused = !self.out.is_empty();
        if self.refused {
            return Err(FrameError::Full);
        }
        let how = WriteFlags { nonblock: true, zerocopy };
        let Self { port, out, ledger, .. } = self;
        match port.write(source, how, Offload::default(), out, ledger) {
            Ok(_) => {}
            Err(PortError::Length(len)) => return Err(FrameError::Length(len)),
            Err(_) => return Err(FrameError::NoMemory),
        }
        // Before the frame is on its way.
        self.room.store(port.room(), Ordering::Relaxed);
        self.flush();
        // A frame that found no room goes first next time; further ones are refused until then.
        Ok(())
    }

    /// Sends what found no room before.
    fn flush(&mut self) {
        let Self { pair, out, ledger, .. } = self;
        // Fails in no case: the other side's end is seen by `is_peer_gone`.
        let _ = pair.transmit(Instant::ZERO, out, ledger);
        self.port.end_turn();
    }

    /// Receives the next frame for the guest into `into`, which has room for the MTU and 18 bytes;
    /// returns its length. One that does not fit is cut. `None`: there is none.
    pub fn receive(&mut self, into: &mut [u8]) -> Option<usize> {
        let packet = self.receive_packet()?;
        let (mut at, ledger) = (0, &mut self.ledger);
        // Headers are no payload, and not counted.
        at += copy_bytes(into, packet.head(), &mut CopyLedger::new(), CopyReason::DeviceTx);
        for frag in packet.frags() {
            let room = into.get_mut(at..).unwrap_or_default();
            at += frag.copy_to(0, room, ledger, CopyReason::DeviceTx);
        }
        Some(at)
    }

    /// The next frame for the guest by reference: its headers are the packet's head, its payload the
    /// fragments. `None`: there is none.
    pub fn receive_packet(&mut self) -> Option<PacketBuf> {
        if self.arrived.is_empty() {
            let Self { pair, arrived, ledger, .. } = self;
            let _ = pair.receive(Instant::ZERO, arrived, BURST, ledger);
        }
        self.arrived.pop_front()
    }

    /// A descriptor that becomes readable when there is a frame to receive, or room after
    /// [`FrameError::Full`]: wait on it only after [`arm`](Self::arm).
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.pair.wait_fd()
    }

    /// Asks for a wake-up by [`wait_fd`](Self::wait_fd); `true`: there is a frame already, or room
    /// after [`FrameError::Full`], or the host is gone. After the wait, [`disarm`](Self::disarm).
    pub fn arm(&mut self) -> bool {
        self.flush();
        let has_room = self.refused && self.out.is_empty();
        self.pair.arm() || !self.arrived.is_empty() || has_room
    }

    /// Ends a wait: the host makes no system call to wake this side from here on.
    pub fn disarm(&mut self) {
        self.pair.disarm();
    }

    /// Waits until there is a frame to receive, or room, or the host is gone; at most `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) {
        if !self.arm()
            && let Some(fd) = self.pair.wait_fd()
        {
            let limit = limit.map(|limit| Timespec {
                tv_sec: limit.as_secs().cast_signed(),
                tv_nsec: limit.subsec_nanos().into(),
            });
            // An interrupted wait is a short one.
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], limit.as_ref());
        }
        self.disarm();
    }

    /// Whether the device was dropped. Frames that it sent before may still be there.
    pub fn is_closed(&self) -> bool {
        self.pair.is_peer_gone()
    }

    /// Largest IP packet in bytes, and the host's link address, are in here.
    pub fn capabilities(&self) -> &Capabilities {
        self.pair.capabilities()
    }

    /// Counts of this side: sent is what the guest sent.
    pub fn counters(&self) -> DeviceCounters {
        self.pair.counters()
    }

    /// Copies of payload made by this side.
    pub fn ledger(&self) -> &CopyLedger {
        &self.ledger
    }

    /// The audit of the memory for copied frames.
    pub fn pool_audit(&self) -> PoolAudit {
        self.port.pool_audit()
    }
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").field("counters", &self.pair.counters()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for FramesEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FramesEnd").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// A frame whose payload is passed by reference.
struct Referred<'a> {
    bytes: &'a [u8],
    frag: Option<Frag>,
}

impl FrameSource for Referred<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_out(&mut self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        BytesSource::new(self.bytes).copy_out(offset, into)
    }

    fn take_frags(&mut self, from: usize, max: usize) -> Option<FragVec> {
        let frag = if max > 0 { self.frag.take()? } else { return None };
        Some(FragVec::from_iter([frag.slice(from..frag.len())]))
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
