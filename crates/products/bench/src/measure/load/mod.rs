//! The work of a service: many connections, small messages, little memory (`bench requests`,
//! `bench connections`, `bench crowd`).
//!
//! A server and a load generator serve all engines. Both are single-threaded tokio programs that know only
//! tokio's `AsyncRead` and `AsyncWrite`: a program that moves from tokio's sockets to Pagewire's uses those. Over
//! the pair link both sides are Pagewire's, beside the kernel over loopback. Over a tap the server is Pagewire's
//! and the clients are the kernel's, as they are over veth beside it.
//!
//! [`network`] has the sockets, [`runner`] the threads and namespaces, [`usage`] and [`memory`] what
//! they cost.

mod crowd;
mod memory;
mod network;
mod requests;
mod runner;
mod usage;

use crate::kit::engine::Engine;
pub(crate) use crowd::CrowdOptions;
pub(crate) use requests::{ConnectionsOptions, RequestsOptions};

/// The stack of an engine's clients.
const fn peer(engine: Engine) -> &'static str {
    match engine {
        Engine::Pair => "pagewire",
        Engine::Tap | Engine::Kernel(_) => "kernel",
    }
}
