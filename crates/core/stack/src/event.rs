//! Reports to a socket's owner: readiness, its changes, and entries of the error queue.

use core::fmt;
use core::net::SocketAddr;

use pagewire_mem::Instant;

use crate::net::Flow;
use crate::{Coalescing, Error, SocketId};

bitflags::bitflags! {
    /// Operations that a socket is ready for: a level, not an edge.
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct Readiness: u8 {
        /// There is data, a datagram, a connection to accept or the end of the stream.
        const READABLE = 1 << 0;
        /// There is room to send.
        const WRITABLE = 1 << 1;
        /// No more data will arrive.
        const READ_CLOSED = 1 << 2;
        /// Nothing more can be sent.
        const WRITE_CLOSED = 1 << 3;
        /// There is an error: [`Stack::take_error`](crate::Stack::take_error).
        const ERROR = 1 << 4;
        /// The handshake is complete (and stays so).
        const CONNECTED = 1 << 5;
        /// The error queue has entries: [`Stack::poll_error_queue`](crate::Stack::poll_error_queue).
        /// Each entry is an [`Event`] of its own, also a merged one.
        const ERROR_QUEUE = 1 << 6;
        /// There is an urgent byte: [`Tcp::read_urgent`](crate::Tcp::read_urgent).
        const URGENT = 1 << 7;
    }
}

impl Readiness {
    /// Ready for nothing.
    pub const NONE: Self = Self::empty();
    /// Ends a wait to read or accept.
    pub const FOR_READ: Self = Self::READABLE.union(Self::READ_CLOSED).union(Self::ERROR);
    /// Ends a wait to send or connect.
    pub const FOR_WRITE: Self =
        Self::WRITABLE.union(Self::WRITE_CLOSED).union(Self::ERROR).union(Self::CONNECTED);

    /// From a connection's, which has the same bits.
    pub(crate) fn from_tcp(readiness: pagewire_tcp::Readiness) -> Self {
        Self::from_bits_retain(readiness.bits())
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, _) in self.iter_names() {
            write!(f, "{separator}{name}")?;
            separator = "|";
        }
        if self.is_empty() { f.write_str("NONE") } else { Ok(()) }
    }
}

/// A socket has become ready for something since its last event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The socket.
    pub socket: SocketId,
    /// Readiness that is new: wakes those that wait for one of these.
    pub gained: Readiness,
    /// Readiness now, the new one included.
    pub readiness: Readiness,
}

/// A socket's state of reports: which are wanted, and what the last one contained.
#[derive(Default)]
pub(crate) struct ReportState {
    /// The socket is on the list of those whose readiness may have grown.
    pub(crate) event_pending: bool,
    /// Every arrival is an event, see [`SocketOption::EveryArrival`](crate::SocketOption).
    pub(crate) every_arrival: bool,
    /// The socket has opted in to zero-copy sends: completions are reported.
    pub(crate) zerocopy: bool,
    /// The readiness that was reported to the owner.
    pub(crate) reported: Readiness,
}

/// The origin of an entry in the error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorOrigin {
    /// This stack: a time limit, a reset.
    Local,
    /// An ICMP error about a packet of ours.
    Icmp,
    /// A zero-copy send is complete.
    ZeroCopy,
    /// A timestamp was requested.
    Timestamping,
}

/// An entry of a socket's error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorEntry {
    /// An error.
    Network(QueuedError),
    /// No error: zero-copy sends are complete.
    ZeroCopy(Notification),
    /// No error: sent data has left, or was acknowledged.
    Timestamp(TxTimestamp),
}

impl ErrorEntry {
    /// `ee_errno` of Linux's `struct sock_extended_err`; `ENOMSG` for a timestamp.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Network(queued) => queued.error.errno(),
            Self::ZeroCopy(_) => 0,
            Self::Timestamp(_) => ENOMSG,
        }
    }

    /// The entry's origin.
    pub const fn origin(&self) -> ErrorOrigin {
        match self {
            Self::Network(queued) => queued.origin,
            Self::ZeroCopy(_) => ErrorOrigin::ZeroCopy,
            Self::Timestamp(_) => ErrorOrigin::Timestamping,
        }
    }
}

/// Zero-copy sends whose memory is free to use again: it has no more references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Notification {
    /// The first send's id (`ee_info`).
    pub lo: u32,
    /// The last send's id (`ee_data`); smaller than `lo` where ids wrapped in between.
    pub hi: u32,
    /// Whether data was copied on the way (`SO_EE_CODE_ZEROCOPY_COPIED` in `ee_code`).
    pub copied: bool,
}

impl Notification {
    /// Merges `next` if it continues this one.
    pub(crate) fn extend(&mut self, next: Self, coalescing: Coalescing) -> bool {
        let same_kind = match coalescing {
            // A range does not wrap around.
            Coalescing::SameKind => self.copied == next.copied && self.hi < u32::MAX,
            // As Linux: the older entry's flag counts.
            Coalescing::Linux => true,
        };
        let ids = |n: &Self| u64::from(n.hi.wrapping_sub(n.lo)) + 1;
        let fits = ids(self) + ids(&next) < 1 << 32;
        if !same_kind || !fits || next.lo != self.hi.wrapping_add(1) {
            return false;
        }
        self.hi = next.hi;
        true
    }
}

/// Linux's number for "no message".
const ENOMSG: i32 = 42;

/// The kind of a timestamp of a sent byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxMoment {
    /// The byte entered the queue of packets to be sent.
    Scheduled,
    /// The byte was handed to the device, for the first time.
    Sent,
    /// The peer acknowledged the byte.
    Acknowledged,
}

/// A timestamp of a sent byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TxTimestamp {
    /// The kind of timestamp.
    pub moment: TxMoment,
    /// The byte's number, from the first request for timestamps on.
    pub byte: u32,
    /// The time.
    pub at: Instant,
}

/// An error that the network or the stack reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedError {
    /// The error.
    pub error: Error,
    /// The error's origin.
    pub origin: ErrorOrigin,
    /// If a datagram was too long: the path's MTU, in bytes of IP packet (`ee_info`); else 0.
    pub mtu: u32,
    /// The datagram's destination; `None` for a stream.
    pub to: Option<SocketAddr>,
    /// On a socket of [`Stack::bind_every`](crate::Stack::bind_every): the datagram's flow, as its
    /// destination sees it: `from` is `to`, and the flow's `to` is the source that the datagram had.
    pub about: Option<Flow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_tcp() {
        use pagewire_tcp::Readiness as Tcp;
        for (ours, theirs) in [
            (Readiness::READABLE, Tcp::READABLE),
            (Readiness::WRITABLE, Tcp::WRITABLE),
            (Readiness::READ_CLOSED, Tcp::READ_CLOSED),
            (Readiness::WRITE_CLOSED, Tcp::WRITE_CLOSED),
            (Readiness::ERROR, Tcp::ERROR),
            (Readiness::CONNECTED, Tcp::CONNECTED),
            (Readiness::URGENT, Tcp::URGENT),
        ] {
            assert_eq!(ours, Readiness::from_tcp(theirs));
        }
        // The error queue is the stack's.
        assert_eq!(Tcp::all().iter().count() + 1, Readiness::all().iter().count());
    }

    #[test]
    fn a_readiness_prints_its_names() {
        assert_eq!(format!("{:?}", Readiness::READABLE | Readiness::ERROR), "READABLE|ERROR");
        assert_eq!(format!("{:?}", Readiness::NONE), "NONE");
    }
}
