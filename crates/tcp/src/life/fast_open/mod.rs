//! TCP Fast Open (RFC 7413): data in the SYN, for a client that proves with a cookie that it was
//! there before.
//!
//! Read this file first: what client and server remember while the handshake lasts. `cookie.rs`
//! has cookies and the keys that they are made with, `client.rs` the side that connects,
//! `server.rs` the side that listens. Whose cookie is sent where is the stack's to know.

pub(crate) mod client;
mod cookie;
mod server;

pub use client::{FastOpen, FastOpenConnect, FastOpenOutcome, SynData, TryExperimental};
pub use cookie::{CookieCheck, FastOpenCookie, FastOpenKeys};

bitflags::bitflags! {
    /// What a host does with Fast Open. The bits are those of Linux's `net.ipv4.tcp_fastopen`;
    /// those without a name here have no meaning there either.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FastOpenMode: u32 {
        /// Connections that ask for it send data in the SYN.
        const CLIENT = 0x1;
        /// Listeners that ask for it take data in a SYN.
        const SERVER = 0x2;
        /// Data is sent in the SYN without a cookie.
        const CLIENT_NO_COOKIE = 0x4;
        /// Data in a SYN is taken without a cookie.
        const SERVER_NO_COOKIE = 0x200;
        /// Every listener takes data in a SYN, with its backlog for the limit.
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

/// What a connection remembers of Fast Open until its handshake is complete.
#[derive(Debug, Default)]
pub(crate) struct FastOpenState {
    /// The option of our first SYN or SYN,ACK; not of those sent again.
    pub(crate) option: Option<FastOpenCookie>,
    /// The option of our first SYN stays known, to judge the answer by.
    pub(crate) sent: Option<FastOpenCookie>,
    /// The peer's MSS as of the last connection.
    pub(crate) cached_mss: Option<u16>,
    /// The SYN waits for the application's first data.
    pub(crate) deferred: bool,
    /// Bytes of data in the SYN.
    pub(crate) syn_data: u32,
    /// What the handshake taught, until the stack has taken it.
    pub(crate) outcome: Option<FastOpenOutcome>,
}
