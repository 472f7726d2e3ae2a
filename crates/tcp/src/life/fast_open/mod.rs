//! TCP Fast Open (RFC 7413): data in the SYN, for a client with a cookie from before.
//!
//! This file has the state during the handshake. `cookie.rs` has cookies and their keys,
//! `client.rs` the active side, `server.rs` the passive side. The stack stores peers' cookies.

pub(crate) mod client;
mod cookie;
mod server;

pub use client::{FastOpen, FastOpenConnect, FastOpenOutcome, SynData, TryExperimental};
pub use cookie::{CookieCheck, FastOpenCookie, FastOpenKeys};

bitflags::bitflags! {
    /// A host's use of Fast Open. The bits are those of Linux's `net.ipv4.tcp_fastopen`; those
    /// without a name have no meaning in Linux either.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FastOpenMode: u32 {
        /// Connections may send data in the SYN.
        const CLIENT = 0x1;
        /// Listeners may accept data in a SYN.
        const SERVER = 0x2;
        /// Data in the SYN is sent without a cookie.
        const CLIENT_NO_COOKIE = 0x4;
        /// Data in a SYN is accepted without a cookie.
        const SERVER_NO_COOKIE = 0x200;
        /// Every listener accepts data in a SYN, with its backlog as the limit.
        const SERVER_ALWAYS = 0x400;
        const _ = !0;
    }
}

impl Default for FastOpenMode {
    /// Linux's: the client side only.
    fn default() -> Self {
        Self::CLIENT
    }
}

/// State of Fast Open until the handshake is complete.
#[derive(Debug, Default)]
pub(crate) struct FastOpenState {
    /// The option of our first SYN or SYN,ACK; later ones have none.
    pub(crate) option: Option<FastOpenCookie>,
    /// The option that our first SYN had.
    pub(crate) sent: Option<FastOpenCookie>,
    pub(crate) cached_mss: Option<u16>,
    pub(crate) deferred: bool,
    pub(crate) syn_data: u32,
    /// The outcome of the handshake, until the stack takes it.
    pub(crate) outcome: Option<FastOpenOutcome>,
}
