//! The name that a connection of the guest shows to the far side: by TLS in its ClientHello, by HTTP in the
//! `Host` line of each request. Servers that share an address tell their clients apart by that name, so a
//! permission by name holds for the connections that show it, and not for all of the address.
//!
//! Read [`Gate`] first, which holds a guest's bytes back until rules have judged what they show; then the leaves
//! `tls` (records and their ClientHello) and `http` (the head of a request, and where its body ends). [`DatagramGate`]
//! does the same for QUIC, whose Initial packets `quic` reads.
//!
//! ```text
//!   guest --> [receive queue] --copy--> [held bytes] --judged--> [kernel's send queue]     what shows the name
//!                             --by reference-------------------> [kernel's send queue]     the rest
//! ```
//!
//! The gateway judges and sends the same copy: a guest may change its own memory at any time.

mod datagrams;
#[cfg(test)]
mod datagrams_tests;
mod gate;
#[cfg(test)]
mod gate_tests;
mod http;
#[cfg(test)]
mod http_tests;
mod quic;
#[cfg(test)]
mod quic_tests;
mod tls;
#[cfg(test)]
mod tls_tests;

pub(crate) use datagrams::{DatagramGate, Pass};
pub(crate) use gate::{Gate, Next};

use crate::request::{Demand, Shown, ShownBy};

/// The error that a message breaks its protocol's rules, or is longer than [`HELD`](crate::limits::HELD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unreadable;
