//! Proxies on the way out: which flows go by one ([`Vias`]), and how it is asked for a connection ([`Handshake`]).
//!
//! ```text
//!   SYN --> judged --> Vias: direct ---------> the destination is dialled ------------> accepted
//!                            by a proxy -----> the proxy is dialled --> Handshake ----> accepted
//!                            neither (UDP) --> prohibited
//! ```
//!
//! Rules judge the guest's destination before there is a proxy. The proxy's own address is not judged: the gateway's
//! settings name it. The guest's SYN is answered as the proxy answers.
//!
//! A handshake does no I/O. The relay sends its bytes, and shows it the bytes that the proxy's socket has. A handshake
//! takes the proxy's answer alone: bytes of the server that follow stay in the socket.

mod connect;
mod handshake;
#[cfg(test)]
mod handshake_tests;
mod proxy;
mod routes;
#[cfg(test)]
mod routes_tests;
mod socks5;

pub(crate) use handshake::Handshake;
pub use proxy::{Credentials, CredentialsError, Proxy, ProxyError, ProxyKind, ProxyUrl};
pub(crate) use routes::{Route, Way};
pub use routes::{Via, ViaError, Vias};

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::request::Name;

/// The destination that a proxy is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) host: TargetHost,
    pub(crate) port: u16,
}

impl Target {
    pub(crate) fn name(&self) -> Option<&Name> {
        match &self.host {
            TargetHost::Name(name) => Some(name),
            TargetHost::Address(_) => None,
        }
    }
}

/// The host that a proxy is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetHost {
    Name(Name),
    Address(IpAddr),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            TargetHost::Name(name) => write!(f, "{name}:{}", self.port),
            TargetHost::Address(address) => SocketAddr::new(*address, self.port).fmt(f),
        }
    }
}

/// The next step of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next<'a> {
    /// These bytes go to the proxy.
    Send(&'a [u8]),
    /// More of the proxy's answer is needed.
    Receive,
    /// The connection is the guest's from now on.
    Done,
    Refused(Refused),
}

/// Why a proxy gave no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The destination refused the connection.
    Destination,
    /// The proxy prohibits the connection.
    Prohibited,
    NetUnreachable,
    HostUnreachable,
    /// The proxy wants credentials, or others.
    Credentials,
    /// The answer is not one of the protocol, is too long, or ended too soon.
    Broken,
}
