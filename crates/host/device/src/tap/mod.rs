//! A tap device of the kernel, `/dev/net/tun` with virtio headers: what it is, and its settings.
//!
//! Read `send` (step S6) and `receive` (step R1: one scattering read per frame) first, then
//! `predict` (where its payload should land), `bulk_flows` and `queues` (several mapped flows at once),
//! `builder` (making the device), and the leaves `netlink` and `sys` (and the crate's `vnet`).
//!
//! Where the time goes, and what that decided:
//!
//! - Nearly all of it is in the kernel. Sending: its copy, its TCP, which runs inside `writev`, waking its
//!   reader, its buffers. Nothing in the driver matters beside the number of frames: super-frames of 64 KiB
//!   are the lever.
//! - Frames are asked for after each burst of eight sent, because asking after each one costs more.
//! - The old virtio header of 10 bytes is enough; the 12-byte one says nothing more on a tap.
//! - 2 MiB of receive memory are reused while they come back in time (`mem`'s `HOT_PAGES`): no
//!   slower than walking the pool, and only that much is ever touched, so it is not populated
//!   beforehand. Smaller rounds gained nothing.
//! - The peer's receive path runs in our `writev`. On two processors each way to move it elsewhere costs
//!   requests: `IFF_NAPI` a tenth of them, RPS a quarter, a thread for NAPI two fifths.
//! - Fewer acknowledgements do not pay: one for 360 KiB instead of for 80 took a tenth more of the receiver's
//!   time for a byte, as the data that then waits in the kernel has left the caches.
//! - The send buffer stays unlimited, as the kernel has it: frames are taken in inside `writev`,
//!   so a limit would only make good frames wait.

mod builder;
mod bulk_flows;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzzing;
pub mod limits;
mod netlink;
mod predict;
mod queues;
#[cfg(test)]
mod queues_tests;
mod receive;
mod send;
mod sys;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use pagewire_mem::{
    Carver, CopyLedger, HEAD_CAPACITY, Instant, PacketBuf, PagePool, PageWriter, PoolAudit,
};
use rustix::io::Errno;

pub use builder::{TapBuilder, TapParts, loopback_up};
use limits::VNET_HEADER;
use queues::{TapQueue, TapQueues};

use crate::device::room;
use crate::{Device, DeviceCounters, DeviceError};
use pagewire_mem::link::{Capabilities, Steering};

/// A queue of a tap device, with memory of its own to receive into.
///
/// A tap that this program made vanishes when its last queue is dropped.
///
/// Frames are sent with one gathering `writev` and received with one scattering `readv`, whose
/// payload part follows the previous frame's in memory while one flow is running, so that a stream
/// fills pages without holes. The kernel does checksums and segmentation in both directions.
#[derive(Debug)]
pub struct Tap {
    queues: TapQueues,
    name: String,
    kernel_mac: [u8; 6],
    capabilities: Capabilities,
    counters: DeviceCounters,
    receiver: Receiver,
    steering: Steering,
    /// Frames that the kernel had no memory for, until they are asked for.
    refused: VecDeque<PacketBuf>,
}

struct Receiver {
    pool: PagePool,
    /// Carves room for small payload, out of the way of bulk data.
    carver: Carver,
    /// The writer of other payload that cannot stay in place.
    small: PageWriter,
    /// The virtio header and the first bytes of the frame, as far as they are headers.
    front: [u8; FRONT],
}

/// Bytes read in front of the payload: one more than fits a packet's head, so that a frame which leaves the last
/// one unused was received whole.
const FRONT: usize = VNET_HEADER + HEAD_CAPACITY + 1;

impl Tap {
    /// Opens the tap `name`, or makes it if there is none; with the builder's defaults otherwise.
    ///
    /// # Errors
    /// As [`TapBuilder::open`].
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        Self::builder(name).open()
    }

    /// Settings of the tap `name`; [`TapBuilder::new`] leaves the name to the kernel.
    pub fn builder(name: impl Into<String>) -> TapBuilder {
        TapBuilder::new().name(name)
    }

    /// The name of the network device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The link address of the kernel's side. The stack's is in the capabilities.
    pub fn kernel_mac(&self) -> [u8; 6] {
        self.kernel_mac
    }

    fn over(
        queues: TapQueues,
        name: String,
        kernel_mac: [u8; 6],
        capabilities: Capabilities,
        pool: PagePool,
    ) -> Self {
        let (carver, small) = (Carver::new(), PageWriter::new());
        let receiver = Receiver { pool, carver, small, front: [0; FRONT] };
        let counters = DeviceCounters::default();
        let mut steering = Steering::private(queues.interface_queues());
        steering.attach_by(queues.attacher());
        let refused = VecDeque::new();
        Self { queues, name, kernel_mac, capabilities, counters, receiver, steering, refused }
    }
}

impl Device for Tap {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        self.send_all(now, frames, ledger)
    }

    fn take_refused(&mut self, frames: &mut VecDeque<PacketBuf>) {
        if !self.refused.is_empty() {
            frames.append(&mut self.refused);
        }
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        self.receive_burst(now, frames, max, ledger)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queues.wait_fd())
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        Some(self.receiver.pool.audit())
    }

    fn trim(&mut self) {
        self.receiver.pool.trim();
    }

    fn room(&self) -> Option<usize> {
        Some(room(&self.receiver.pool))
    }

    /// A tap that was made here has queues beside the first that can be given memory, which must be
    /// private; others have the first only. The module `queues` delivers frames to them.
    fn steering(&mut self) -> Option<&mut Steering> {
        Some(&mut self.steering)
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("pool", &self.pool.stats()).finish_non_exhaustive()
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
