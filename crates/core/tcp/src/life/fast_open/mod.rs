//! TCP Fast Open (RFC 7413): data in the SYN, for a client with a cookie from before.
//!
//! A server may get the data of a SYN twice, so hosts and listeners have to ask for Fast Open, as on Linux.
//!
//! This file has the state of a handshake, `cookie.rs` cookies and their keys. The stack stores
//! peers' cookies.

mod cookie;

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

/// How a connection opens with Fast Open, see [`FastOpen::begin`](crate::FastOpen::begin).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenConnect {
    /// The option of the SYN: a cookie, or the request for one. `None`: data without a cookie.
    pub option: Option<FastOpenCookie>,
    /// The MSS that the peer announced last, if known: data in the SYN must fit it.
    pub mss: Option<u16>,
    /// The SYN waits for the application's first data. Only with a cookie, or if none is needed.
    pub deferred: bool,
}

/// The facts about a peer's Fast Open that a handshake, or its failure, revealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenOutcome {
    /// The MSS that the peer announced, if any.
    pub mss: Option<u16>,
    /// The cookie that the peer gave.
    pub cookie: Option<FastOpenCookie>,
    /// Whether our SYN had the option: a cookie, or the request for one.
    pub had_option: bool,
    /// The result of data in our SYN.
    pub syn_data: SynData,
    /// How to request a cookie next time.
    pub try_experimental: TryExperimental,
}

/// The result of data in a SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynData {
    /// The SYN had no data; or it was not accepted, but the peer gave a new cookie.
    #[default]
    Unknown,
    /// The data was acknowledged, at least in part.
    Taken,
    /// No data was acknowledged, the peer did not answer, or the network reported an error.
    Refused,
}

/// The form of the option to request a cookie with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TryExperimental {
    /// The RFC's form, because nothing is known.
    #[default]
    No,
    /// The experimental form, because the RFC's was not answered.
    Once,
    /// The RFC's form, because neither was answered.
    Never,
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
