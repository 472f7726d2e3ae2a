//! Variant of step R1, for virtual machines: the stack's side of a tap, to which a guest writes frames.
//!
//! ```text
//!   writer's memory: may change at any time, read once
//!        |
//!        |-- build ------> room in a shared page  --> hook --\
//!        |-- accounted --> pages of the frame's own --> hook --+--> headers to the head, payload a
//!        |                  (charged until dropped)            |    fragment of what was filled
//!        \-- zero copy --> headers copied out --> hook -------/    (or of the writer's memory)
//!                                                   |
//!                                 drop | send back | redirect to another port
//! ```
//!
//! Read [`Port::write`] first; `write` has the three ways in, `source` the writer's frame, `hook`
//! the program that sees it, `table` the redirection between ports, `account` the send buffer.
//!
//! A frame is **built in place** if all of this holds, as for a tap of Linux: it is Ethernet; the
//! port's send buffer is unlimited; the writer does not wait; zero copy was not chosen for it;
//! headroom, frame and packet record fit one page ([`limits::fits_page`]). It costs one copy, into
//! a shared page: no allocation, no charge. Every other copied frame takes the **accounted** way:
//! pages and a record of its own, charged to the send buffer until its consumer drops it. Frames
//! for which the writer chose **zero copy** keep their payload in place.
//!
//! A port makes no system call and knows no ring: a device offers each frame as a [`FrameSource`].

mod account;
mod error;
mod hook;
pub mod limits;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;

use account::Account;
pub use account::{SendBuffer, Wake};
pub use error::{PortDrop, PortError};
pub use hook::{EarlyHook, FirstBytes, OutOfBounds, RawFrame, Verdict};
use pagewire_mem::{Carver, GsoKind, MemError, PacketBuf, PagePool, PoolAudit, Tally};
pub use source::{BytesSource, Fault, FrameSource};
use table::Seat;
pub use table::{PortId, PortTable};

use pagewire_mem::link::Medium;
#[cfg(feature = "sockets")]
pub(crate) use write::header_len;

/// Settings of a port.
#[derive(Clone)]
#[non_exhaustive]
pub struct PortConfig {
    /// The first header of frames: a tap's are Ethernet, a tun's IP.
    pub medium: Medium,
    /// How much the writer may have outstanding.
    pub send_buffer: SendBuffer,
    /// Bytes of memory for frames that are copied, at least [`limits::MIN_POOL_BYTES`].
    pub pool_bytes: usize,
    /// Called, on any thread, when there is room for a writer that got
    /// [`WouldBlock`](PortError::WouldBlock), and when the first frame is redirected here.
    pub wake: Option<Wake>,
    /// The ports that may redirect frames here.
    pub table: Option<Arc<PortTable>>,
}

impl PortConfig {
    /// Settings with the defaults of everything else.
    pub fn new(medium: Medium) -> Self {
        let (send_buffer, pool_bytes) = (SendBuffer::Unlimited, limits::POOL_BYTES);
        Self { medium, send_buffer, pool_bytes, wake: None, table: None }
    }
}

impl core::fmt::Debug for PortConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { medium, send_buffer, pool_bytes, .. } = self;
        f.debug_struct("PortConfig")
            .field("medium", medium)
            .field("send_buffer", send_buffer)
            .field("pool_bytes", pool_bytes)
            .finish_non_exhaustive()
    }
}

/// How a writer writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// The writer does not wait for room: vhost never does.
    pub nonblock: bool,
    /// Payload is to stay in place, if it can.
    pub zerocopy: bool,
}

/// The content of a frame's virtio header, offsets counted from the start of the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// A super-frame: its kind, and the payload bytes of each segment.
    pub gso: Option<(GsoKind, u16)>,
    /// The transport checksum.
    pub checksum: FrameChecksum,
}

/// The writer's information on the transport checksum of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameChecksum {
    /// Nothing.
    #[default]
    Unknown,
    /// The checksum was verified (`VIRTIO_NET_HDR_F_DATA_VALID`).
    Valid,
    /// The checksum is incomplete, which only matters if the frame is forwarded
    /// (`VIRTIO_NET_HDR_F_NEEDS_CSUM`): to be summed from `start`, stored `offset` bytes from there.
    Partial {
        /// Where the sum begins.
        start: u16,
        /// The checksum field's offset from there.
        offset: u16,
    },
}

/// The way a frame took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Built in place.
    Built,
    /// Copied to pages of its own, and charged.
    Accounted,
    /// Payload, if the frame has any, stayed in the writer's memory.
    ZeroCopy,
}

pagewire_mem::counters! {
    /// Counts of a port, in frames.
    #[derive(Copy)]
    pub struct PortCounters {
        /// Built in place, dropped later or not.
        built,
        /// Copied to pages of their own.
        accounted,
        /// Passed by reference.
        zerocopy,
        /// Frames that stayed with their writer because the send buffer was full.
        blocked,
        /// Frames that the hook sent back.
        sent_back,
        /// Frames that the hook redirected to another port.
        redirected,
    }
    {
        dropped: Tally<PortDrop, { PortDrop::COUNT }>,
    }
}

impl PortCounters {
    /// Frames dropped for this reason.
    pub fn dropped(&self, reason: PortDrop) -> u64 {
        self.dropped.get(reason)
    }

    /// Frames dropped for any reason.
    pub fn all_dropped(&self) -> u64 {
        self.dropped.total()
    }

    fn drop_one(&mut self, reason: PortDrop) {
        self.dropped.note(reason, 1);
    }
}

/// The stack's side of a tap that a guest writes to. For one thread at a time.
///
/// ```
/// use std::collections::VecDeque;
///
/// use pagewire_device::port::{BytesSource, Offload, Path, WriteFlags};
/// use pagewire_device::{Medium, Port, PortConfig};
/// use pagewire_mem::CopyLedger;
///
/// let mut port = Port::new(PortConfig::new(Medium::Ethernet))?;
/// let (mut packets, mut ledger) = (VecDeque::new(), CopyLedger::default());
///
/// // An Ethernet frame that a guest's driver wrote, here an ARP request to everybody.
/// let mut frame = [0u8; 60];
/// frame[..6].fill(0xff);
/// frame[12..14].copy_from_slice(&[0x08, 0x06]);
///
/// let how = WriteFlags { nonblock: true, zerocopy: false };
/// let source = &mut BytesSource::new(&frame);
/// let way = port.write(source, how, Offload::default(), &mut packets, &mut ledger)?;
/// assert_eq!((way, packets.len()), (Path::Built, 1));
/// port.end_turn();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Port {
    medium: Medium,
    send_buffer: SendBuffer,
    up: bool,
    pool: PagePool,
    carver: Carver,
    account: Arc<Account>,
    hook: Option<Box<dyn EarlyHook>>,
    table: Option<(Arc<PortTable>, Seat)>,
    /// Frames that the hook sent back.
    back: VecDeque<PacketBuf>,
    counters: PortCounters,
}

impl Port {
    /// A port that is up, without a hook.
    ///
    /// # Errors
    /// The error of the pool's memory; a length error also if the table is full.
    pub fn new(config: PortConfig) -> Result<Self, MemError> {
        let PortConfig { medium, send_buffer, pool_bytes, wake, table } = config;
        let pool = PagePool::new("pagewire-port", pool_bytes.max(limits::MIN_POOL_BYTES))?;
        let table = match table {
            Some(table) => {
                let seat = table.join(wake.clone()).ok_or(MemError::Length(limits::MAX_PORTS))?;
                Some((table, seat))
            }
            None => None,
        };
        Ok(Self {
            medium,
            send_buffer,
            up: true,
            pool,
            carver: Carver::new(),
            account: Account::new(send_buffer, wake),
            hook: None,
            table,
            back: VecDeque::new(),
            counters: PortCounters::default(),
        })
    }

    /// Sets the send buffer, for frames from now on.
    ///
    /// # Errors
    /// [`PortError::SendBuffer`] for one of no bytes (Linux's `TUNSETSNDBUF`).
    pub fn set_send_buffer(&mut self, send_buffer: SendBuffer) -> Result<(), PortError> {
        if send_buffer == SendBuffer::Bytes(0) {
            return Err(PortError::SendBuffer);
        }
        self.send_buffer = send_buffer;
        self.account.set(send_buffer);
        Ok(())
    }

    /// Sets or removes the hook.
    pub fn set_hook(&mut self, hook: Option<Box<dyn EarlyHook>>) {
        self.hook = hook;
    }

    /// Takes the port up or down. Frames written to a port that is down are dropped.
    pub fn set_up(&mut self, up: bool) {
        self.up = up;
    }

    /// Whether a writer that waits would find room now; if not, its `wake` is called when there is.
    pub fn wait_for_room(&mut self) -> bool {
        self.account.has_room(true)
    }

    /// Moves frames for the guest to the back of `out`: sent back, or redirected here.
    pub fn poll_transmit(&mut self, out: &mut VecDeque<PacketBuf>) {
        out.append(&mut self.back);
        if let Some((_, seat)) = &self.table {
            seat.take(out);
        }
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) would move any.
    pub fn has_transmit(&self) -> bool {
        !self.back.is_empty() || self.table.as_ref().is_some_and(|(_, seat)| seat.has_some())
    }

    /// Bytes of the port's memory that frames may keep, so that it can still take others.
    pub(crate) fn room(&self) -> usize {
        crate::device::room(&self.pool)
    }

    /// Ends a turn: takes back the pages of dropped frames.
    pub fn end_turn(&mut self) {
        self.pool.drain();
    }

    /// Gives memory that was not used for a while back to the system; for about once a second.
    pub fn trim(&mut self) {
        self.pool.trim();
    }

    /// The port's id in its table.
    pub fn id(&self) -> Option<PortId> {
        self.table.as_ref().map(|(_, seat)| seat.id())
    }

    /// Counts so far.
    pub fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// Bytes charged for frames that took the accounted way and are not dropped yet.
    pub fn charged(&self) -> usize {
        self.account.used()
    }

    /// Pages of the port's memory: a walk over all of them.
    pub fn pool_audit(&self) -> PoolAudit {
        self.pool.audit()
    }
}

impl core::fmt::Debug for Port {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Port")
            .field("medium", &self.medium)
            .field("send_buffer", &self.send_buffer)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
