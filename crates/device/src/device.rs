//! The trait between a stack's driver and a device.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use pagewire_mem::link::{Capabilities, Steering};
use pagewire_mem::{CopyLedger, Instant, PAGE_SIZE, PacketBuf, PagePool};

#[cfg(any(feature = "fault", feature = "pcap"))]
use crate::limits::MAX_MTU;
use crate::limits::RECEIVING_PART;

/// Capabilities of a wrapper that reads headers: super-frames only as long as these can express.
#[cfg(any(feature = "fault", feature = "pcap"))]
pub(crate) fn of_a_wire(capabilities: &Capabilities) -> Capabilities {
    let (mtu, longest) = (capabilities.mtu, capabilities.max_super_frame.min(MAX_MTU));
    // Without room for two segments, a small segment would follow every large one.
    let max_super_frame = if mtu <= longest / 2 { longest } else { mtu };
    Capabilities { max_super_frame, ..capabilities.clone() }
}

/// Counts of a device, in frames unless the name says bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes in them.
    pub tx_bytes: u64,
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes in them.
    pub rx_bytes: u64,
    /// System calls made to send and to receive.
    pub syscalls: u64,
    /// Frames lost because the other side or memory was full.
    pub tx_dropped_full: u64,
    /// Frames lost because the other side is gone.
    pub tx_dropped_closed: u64,
    /// Frames that the kernel refused (a bad address, too long).
    pub tx_dropped_error: u64,
    /// Frames lost because no page was free to receive into.
    pub rx_dropped_memory: u64,
    /// Malformed frames (a short or contradictory virtio header, too long).
    pub rx_dropped_malformed: u64,
    /// Received payload bytes on a page boundary, or right behind their flow's previous bytes.
    pub rx_aligned_bytes: u64,
    /// Received payload bytes.
    pub rx_payload_bytes: u64,
    /// Frames whose header length was predicted wrongly.
    pub rx_mispredicted: u64,
}

impl DeviceCounters {
    /// Names and counts, in the order of a report.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        // A counter that is not named here does not compile.
        let Self {
            tx_frames,
            tx_bytes,
            rx_frames,
            rx_bytes,
            syscalls,
            tx_dropped_full,
            tx_dropped_closed,
            tx_dropped_error,
            rx_dropped_memory,
            rx_dropped_malformed,
            rx_aligned_bytes,
            rx_payload_bytes,
            rx_mispredicted,
        } = *self;
        [
            ("tx_frames", tx_frames),
            ("tx_bytes", tx_bytes),
            ("rx_frames", rx_frames),
            ("rx_bytes", rx_bytes),
            ("syscalls", syscalls),
            ("tx_dropped_full", tx_dropped_full),
            ("tx_dropped_closed", tx_dropped_closed),
            ("tx_dropped_error", tx_dropped_error),
            ("rx_dropped_memory", rx_dropped_memory),
            ("rx_dropped_malformed", rx_dropped_malformed),
            ("rx_payload_bytes", rx_payload_bytes),
            ("rx_aligned_bytes", rx_aligned_bytes),
            ("rx_mispredicted", rx_mispredicted),
        ]
        .into_iter()
    }
}

/// Errors of a device as a whole. The loss of a frame is no error, but a counted drop.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The other side is gone for good; or the device is, as a tap that somebody deleted.
    #[error("the device was closed by its other side, or deleted")]
    Closed,
    /// An invalid setting; the text says which and what to do.
    #[error("{0}")]
    Config(String),
    /// The system refused; the text says which call failed and what to do.
    #[error("{what}: {source}")]
    System {
        /// The operation, and what to do about it.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// The text: a program whose `main` returns the error prints this form.
impl std::fmt::Debug for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<DeviceError> for std::io::Error {
    fn from(error: DeviceError) -> Self {
        let kind = match &error {
            DeviceError::Closed => std::io::ErrorKind::NotConnected,
            DeviceError::Config(_) => std::io::ErrorKind::InvalidInput,
            DeviceError::System { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

/// Sends and receives frames. For one thread at a time.
pub trait Device: Send {
    /// What the device can do.
    fn capabilities(&self) -> &Capabilities;

    /// Sends frames from the front of `frames`, as far as there is room; the rest stays. A frame
    /// that can never be sent is dropped and counted. `ledger` counts copies, also the kernel's.
    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError>;

    /// Receives up to `max` frames at the back of `frames`, without waiting; returns how many.
    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError>;

    /// Moves to the back of `frames`, in order, what `transmit` took since the last call and then
    /// lost for a temporary reason (no memory, a full queue). They are counted as dropped.
    fn take_refused(&mut self, frames: &mut VecDeque<PacketBuf>) {
        let _ = frames;
    }

    /// When the device needs `receive` or `transmit` although nothing came in (delayed frames).
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Descriptor that becomes readable when there is a frame to receive, or room to send again
    /// after a `transmit` left frames behind. `None`: the device must be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Arms [`wait_fd`](Self::wait_fd) before a wait; `true`: a frame is there, do not wait.
    fn arm(&mut self) -> bool {
        false
    }

    /// Ends the wait: the device is polled from here on, and the other side need not wake it.
    fn disarm(&mut self) {}

    /// Counts so far.
    fn counters(&self) -> DeviceCounters;

    /// The audit of the device's receive pool, if it has one.
    fn pool_audit(&self) -> Option<pagewire_mem::PoolAudit> {
        None
    }

    /// Bytes of the device's memory that received frames may keep, beyond those that keep some now,
    /// so that it can still receive; as known at the last `receive`. `None`: the device receives
    /// short frames without such memory, or has no bound.
    fn room(&self) -> Option<usize> {
        None
    }

    /// Queues that take memory to receive into, and the rules that steer flows there, if any.
    fn steering(&mut self) -> Option<&mut Steering> {
        None
    }
}

/// Bytes that frames may keep of a pool: a part stays for those that are dropped at once.
pub(crate) fn room(pool: &PagePool) -> usize {
    let stats = pool.stats();
    stats.free.saturating_sub(stats.total / RECEIVING_PART) * PAGE_SIZE
}

/// Methods of [`Device`] that a wrapper forwards unchanged to its device.
macro_rules! forward_device {
    ($this:ident => $inner:expr; $($method:ident)*) => {
        $($crate::device::forward_device! { @$method $this $inner })*
    };
    (@capabilities $this:ident $inner:expr) => {
        fn capabilities(&$this) -> &$crate::Capabilities {
            $inner.capabilities()
        }
    };
    (@transmit $this:ident $inner:expr) => {
        fn transmit(
            &mut $this,
            now: ::pagewire_mem::Instant,
            frames: &mut ::std::collections::VecDeque<::pagewire_mem::PacketBuf>,
            ledger: &mut ::pagewire_mem::CopyLedger,
        ) -> ::core::result::Result<(), $crate::DeviceError> {
            $inner.transmit(now, frames, ledger)
        }
    };
    (@receive $this:ident $inner:expr) => {
        fn receive(
            &mut $this,
            now: ::pagewire_mem::Instant,
            frames: &mut ::std::collections::VecDeque<::pagewire_mem::PacketBuf>,
            max: usize,
            ledger: &mut ::pagewire_mem::CopyLedger,
        ) -> ::core::result::Result<usize, $crate::DeviceError> {
            $inner.receive(now, frames, max, ledger)
        }
    };
    (@take_refused $this:ident $inner:expr) => {
        fn take_refused(
            &mut $this,
            frames: &mut ::std::collections::VecDeque<::pagewire_mem::PacketBuf>,
        ) {
            $inner.take_refused(frames);
        }
    };
    (@poll_timeout $this:ident $inner:expr) => {
        fn poll_timeout(&$this) -> Option<::pagewire_mem::Instant> {
            $inner.poll_timeout()
        }
    };
    (@wait_fd $this:ident $inner:expr) => {
        fn wait_fd(&$this) -> Option<::std::os::fd::BorrowedFd<'_>> {
            $inner.wait_fd()
        }
    };
    (@arm $this:ident $inner:expr) => {
        fn arm(&mut $this) -> bool {
            $inner.arm()
        }
    };
    (@disarm $this:ident $inner:expr) => {
        fn disarm(&mut $this) {
            $inner.disarm();
        }
    };
    (@counters $this:ident $inner:expr) => {
        fn counters(&$this) -> $crate::DeviceCounters {
            $inner.counters()
        }
    };
    (@pool_audit $this:ident $inner:expr) => {
        fn pool_audit(&$this) -> Option<::pagewire_mem::PoolAudit> {
            $inner.pool_audit()
        }
    };
    (@room $this:ident $inner:expr) => {
        fn room(&$this) -> Option<usize> {
            $inner.room()
        }
    };
    (@steering $this:ident $inner:expr) => {
        fn steering(&mut $this) -> Option<&mut $crate::Steering> {
            $inner.steering()
        }
    };
}
pub(crate) use forward_device;

impl<D: Device + ?Sized> Device for Box<D> {
    forward_device! {
        self => (**self);
        capabilities transmit receive take_refused poll_timeout wait_fd arm disarm counters
        pool_audit room steering
    }
}
