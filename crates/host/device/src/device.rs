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

pagewire_mem::counters! {
    /// Counts of a device, in frames unless the name says bytes.
    #[derive(Copy)]
    pub struct DeviceCounters {
        /// Frames sent.
        tx_frames,
        /// Bytes in them.
        tx_bytes,
        /// Frames received.
        rx_frames,
        /// Bytes in them.
        rx_bytes,
        /// System calls made to send and to receive.
        syscalls,
        /// Frames lost because the other side or memory was full.
        tx_dropped_full,
        /// Frames lost because the other side is gone.
        tx_dropped_closed,
        /// Frames that the kernel refused (a bad address, too long).
        tx_dropped_error,
        /// Frames lost because no page was free to receive into.
        rx_dropped_memory,
        /// Malformed frames (a short or contradictory virtio header, too long).
        rx_dropped_malformed,
        /// Received payload bytes.
        rx_payload_bytes,
        /// Received payload bytes on a page boundary, or right behind their flow's previous bytes.
        rx_aligned_bytes,
        /// Frames whose header length was predicted wrongly.
        rx_mispredicted,
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
    /// The device's capabilities.
    fn capabilities(&self) -> &Capabilities;

    /// Sends frames from the front of `frames`, as far as there is room; the rest stays. A frame
    /// that can never be sent is dropped and counted. `ledger` counts copies, also the kernel's.
    ///
    /// Frames that stayed come first in the next call. A call without any says that they do not come again: the
    /// device no longer waits for room.
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

    /// Gives memory that was not used for a while back to the system. A host calls it about once a second.
    fn trim(&mut self) {}

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
#[doc(hidden)]
#[macro_export]
macro_rules! forward_device {
    ($this:ident => $inner:expr; $($method:ident)*) => {
        $($crate::forward_device! { @$method $this $inner })*
    };
    (@capabilities $this:ident $inner:expr) => {
        fn capabilities(&$this) -> &$crate::Capabilities {
            $inner.capabilities()
        }
    };
    (@transmit $this:ident $inner:expr) => {
        fn transmit(
            &mut $this,
            now: $crate::memory::Instant,
            frames: &mut ::std::collections::VecDeque<$crate::memory::PacketBuf>,
            ledger: &mut $crate::memory::CopyLedger,
        ) -> ::core::result::Result<(), $crate::DeviceError> {
            $inner.transmit(now, frames, ledger)
        }
    };
    (@receive $this:ident $inner:expr) => {
        fn receive(
            &mut $this,
            now: $crate::memory::Instant,
            frames: &mut ::std::collections::VecDeque<$crate::memory::PacketBuf>,
            max: usize,
            ledger: &mut $crate::memory::CopyLedger,
        ) -> ::core::result::Result<usize, $crate::DeviceError> {
            $inner.receive(now, frames, max, ledger)
        }
    };
    (@take_refused $this:ident $inner:expr) => {
        fn take_refused(
            &mut $this,
            frames: &mut ::std::collections::VecDeque<$crate::memory::PacketBuf>,
        ) {
            $inner.take_refused(frames);
        }
    };
    (@poll_timeout $this:ident $inner:expr) => {
        fn poll_timeout(&$this) -> Option<$crate::memory::Instant> {
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
        fn pool_audit(&$this) -> Option<$crate::memory::PoolAudit> {
            $inner.pool_audit()
        }
    };
    (@room $this:ident $inner:expr) => {
        fn room(&$this) -> Option<usize> {
            $inner.room()
        }
    };
    (@trim $this:ident $inner:expr) => {
        fn trim(&mut $this) {
            $inner.trim();
        }
    };
    (@steering $this:ident $inner:expr) => {
        fn steering(&mut $this) -> Option<&mut $crate::Steering> {
            $inner.steering()
        }
    };
}
pub(crate) use crate::forward_device;

impl<D: Device + ?Sized> Device for Box<D> {
    forward_device! {
        self => (**self);
        capabilities transmit receive take_refused poll_timeout wait_fd arm disarm counters
        pool_audit trim room steering
    }
}
