//! The name that a connection of the guest shows to the far side: by TLS in its ClientHello, by HTTP in the
//! `Host` line of each request. Servers that share an address tell their clients apart by that name, so a
//! permission by name holds for the connections that show it, and not for all of the address.
//!
//! Read [`Gate`] first, which holds a guest's bytes back until rules have judged what they show; then the leaves
//! `tls` (records and their ClientHello) and `http` (the head of a request, and where its body ends).
//!
//! ```text
//!   guest --> [receive queue] --copy--> [held bytes] --judged--> [kernel's send queue]     what shows the name
//!                             --by reference-------------------> [kernel's send queue]     the rest
//! ```
//!
//! The gateway judges and sends the same copy: a guest may change its own memory at any time.

mod gate;
#[cfg(test)]
mod gate_tests;
mod http;
#[cfg(test)]
mod http_tests;
mod tls;
#[cfg(test)]
mod tls_tests;

pub(crate) use gate::{Gate, Next};

use crate::request::Name;

/// The rules' demand on a connection that they permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Demand {
    /// No demand: an address, or a rule that asks for no name, permits the connection.
    #[default]
    Nothing,
    /// The connection goes on unless it shows a name that a denial has.
    NoDeniedName,
    /// Only names permit the connection, which must show one of them.
    PermittedName,
}

/// The protocol by which a connection shows its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShownBy {
    /// TLS: the server name of a ClientHello (RFC 6066 section 3).
    Tls,
    /// TLS with an encrypted ClientHello (RFC 9849): the name in the clear need not be the server's.
    EncryptedHello,
    /// HTTP/1: the `Host` line of a request (RFC 9112 section 3.2).
    Http,
    /// SSH, which shows no name (RFC 4253 section 4.2).
    Ssh,
    /// Another protocol, or a message of these that cannot be read.
    Unknown,
}

impl ShownBy {
    /// The word in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::EncryptedHello => "ech",
            Self::Http => "http",
            Self::Ssh => "ssh",
            Self::Unknown => "unknown",
        }
    }
}

/// The first bytes of a connection: its protocol and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The protocol.
    pub by: ShownBy,
    /// The name; `None`: the connection shows none.
    pub name: Option<Name>,
}

/// The error that a message breaks its protocol's rules, or is longer than [`HELD`](crate::limits::HELD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unreadable;
