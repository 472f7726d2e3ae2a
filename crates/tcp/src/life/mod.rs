//! Whether a connection lives: its state, how it opens and ends, and how long it waits for what.

pub(crate) mod defer;
pub(crate) mod fast_open;
pub(crate) mod handshake;
mod icmp;
pub(crate) mod state;
pub(crate) mod time_wait;
pub(crate) mod timeout;

use crate::error::TcpError;
use crate::life::fast_open::FastOpenState;
use crate::seq::Seq;
use crate::timer::Timer;

/// The part of a connection that decides whether the connection goes on.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) flags: LifeFlags,
    /// Probes in a row without an answer, of keep-alive.
    pub(crate) keepalive_probes: u8,
    /// What the application has not been told yet.
    pub(crate) error: Option<TcpError>,
    /// What the network last complained of: the reason, should the connection time out.
    pub(crate) soft_error: Option<TcpError>,
    /// A reset to be sent.
    pub(crate) reset: Option<Reset>,
    /// Present while a handshake with Fast Open lasts.
    pub(crate) fast_open: Option<Box<FastOpenState>>,
    /// Nothing was heard of the peer for long (RFC 9293 section 3.8.4).
    pub(crate) keepalive: Timer,
    /// TIME-WAIT's 2 MSL, or FIN-WAIT-2 when the application is gone.
    pub(crate) linger: Timer,
    /// Queues that have fallen empty give back their memory.
    pub(crate) shrink: Timer,
}

bitflags::bitflags! {
    /// How the connection opened, and who has it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct LifeFlags: u8 {
        /// It was established, once.
        const CONNECTED = 1 << 0;
        /// A SYN was sent more than once.
        const SYN_RESENT = 1 << 1;
        /// The peer has acknowledged our SYN,ACK, and its data is waited for (`defer.rs`).
        const DEFERRED = 1 << 2;
        /// All data of a SYN was taken by the other side.
        const SYN_DATA_ACKED = 1 << 3;
        /// We sent the Fast Open option, or data in the SYN.
        const FAST_OPEN_CLIENT = 1 << 4;
        /// The application has it since before the handshake was complete.
        const ACCEPTED_EARLY = 1 << 5;
        /// The acknowledgement of the SYN,ACK waits for data that the application has ready.
        const WRITE_PENDING = 1 << 6;
        /// Something on the path seems to swallow Fast Open connections.
        const BLACK_HOLE = 1 << 7;
    }
}
/// A reset to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) seq: Seq,
    /// Whether it also acknowledges.
    pub(crate) ack: bool,
}
