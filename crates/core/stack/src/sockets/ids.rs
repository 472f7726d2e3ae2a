//! Ids of sockets: of any kind, and by kind.

use core::num::NonZeroU32;

/// Names a socket of one stack. Never used again: an id whose socket is gone gives
/// [`Error::NoSuchSocket`](crate::Error).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    pub(super) index: u32,
    /// From 1 on.
    pub(super) generation: NonZeroU32,
}

impl SocketId {
    /// Where the socket is in the table: small numbers, used again after the socket is gone.
    pub(crate) fn index(self) -> u32 {
        self.index
    }

    /// Whether this socket came right after `before` in the same slot.
    pub(crate) fn follows(self, before: Self) -> bool {
        self.index == before.index && Some(self.generation) == before.generation.checked_add(1)
    }

    /// The id as a number, for queues that only return it.
    pub(crate) fn token(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.index)
    }

    /// The id of a number that [`token`](Self::token) gave.
    pub(crate) fn from_token(token: u64) -> Self {
        let generation = NonZeroU32::new((token >> 32) as u32).unwrap_or(NonZeroU32::MIN);
        Self { index: token as u32, generation }
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) SocketId);

        impl From<$name> for SocketId {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl PartialEq<SocketId> for $name {
            fn eq(&self, other: &SocketId) -> bool {
                self.0 == *other
            }
        }

        impl PartialEq<$name> for SocketId {
            fn eq(&self, other: &$name) -> bool {
                *self == other.0
            }
        }
    )*};
}

ids! {
    /// Names a connection of one stack, see [`Stack::tcp`](crate::Stack::tcp).
    TcpId
    /// Names a datagram socket of one stack, see [`Stack::udp`](crate::Stack::udp).
    UdpId
    /// Names a listener of one stack, see [`Stack::listener`](crate::Stack::listener).
    ListenerId
}

impl TcpId {
    /// Where the socket is in the table.
    pub(crate) fn index(self) -> u32 {
        self.0.index()
    }
}
