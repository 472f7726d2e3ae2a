//! What a socket's owner is told: readiness, its changes, and queued errors.

use core::fmt;
use core::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Not};

use crate::{Error, SocketId};

/// What a socket is ready for. A level, not an edge: it says how things stand.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Readiness(u8);

impl Readiness {
    /// From a connection's, which has the same bits.
    pub(crate) fn from_tcp(readiness: pagewire_tcp::Readiness) -> Self {
        Self(readiness.bits())
    }

    /// Ready for nothing.
    pub const NONE: Self = Self(0);
    /// Data, a datagram, a connection to accept or the end of the stream can be taken.
    pub const READABLE: Self = Self(1 << 0);
    /// There is room to send.
    pub const WRITABLE: Self = Self(1 << 1);
    /// Nothing will arrive beyond what is queued.
    pub const READ_CLOSED: Self = Self(1 << 2);
    /// Nothing more can be sent.
    pub const WRITE_CLOSED: Self = Self(1 << 3);
    /// An error waits: [`Stack::take_error`](crate::Stack::take_error), or the error queue.
    pub const ERROR: Self = Self(1 << 4);
    /// The handshake is complete (and stays so).
    pub const CONNECTED: Self = Self(1 << 5);

    /// Whatever ends a wait to read or accept.
    pub const FOR_READ: Self = Self(Self::READABLE.0 | Self::READ_CLOSED.0 | Self::ERROR.0);
    /// Whatever ends a wait to send or to connect.
    pub const FOR_WRITE: Self =
        Self(Self::WRITABLE.0 | Self::WRITE_CLOSED.0 | Self::ERROR.0 | Self::CONNECTED.0);

    const NAMES: [(Self, &'static str); 6] = [
        (Self::READABLE, "READABLE"),
        (Self::WRITABLE, "WRITABLE"),
        (Self::READ_CLOSED, "READ_CLOSED"),
        (Self::WRITE_CLOSED, "WRITE_CLOSED"),
        (Self::ERROR, "ERROR"),
        (Self::CONNECTED, "CONNECTED"),
    ];

    /// Whether all of `other` is in here.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in here.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it is ready for nothing.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Readiness {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Readiness {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Readiness {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitAndAssign for Readiness {
    fn bitand_assign(&mut self, other: Self) {
        self.0 &= other.0;
    }
}

impl Not for Readiness {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (bit, name) in Self::NAMES {
            if self.contains(bit) {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if self.is_empty() { f.write_str("NONE") } else { Ok(()) }
    }
}

/// A socket became ready for something that it was not ready for when it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which socket.
    pub socket: SocketId,
    /// What it has become ready for: whoever waits for one of these is to be woken.
    pub gained: Readiness,
    /// All that it is ready for now.
    pub readiness: Readiness,
}

/// Who found an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorOrigin {
    /// This stack: a time limit, a reset.
    Local,
    /// An ICMP message about a packet of ours.
    Icmp,
}

/// An entry of a socket's error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedError {
    /// What went wrong.
    pub error: Error,
    /// Who says so.
    pub origin: ErrorOrigin,
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
        ] {
            assert_eq!(ours, Readiness::from_tcp(theirs));
        }
        assert_eq!(Tcp::all().iter().count(), Readiness::NAMES.len());
    }

    #[test]
    fn a_readiness_prints_its_names() {
        assert_eq!(format!("{:?}", Readiness::READABLE | Readiness::ERROR), "READABLE|ERROR");
        assert_eq!(format!("{:?}", Readiness::NONE), "NONE");
    }
}
