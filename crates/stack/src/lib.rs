//! Link, IP, ICMP, UDP and sockets of the Pagewire stack: everything between a device's frames and
//! an application's verbs, without a clock, a random source, a thread or a system call.
//!
//! Read [`Stack`] first: its methods are sorted into inputs (`handle_*`), verbs of the application
//! (`tcp_*`, `udp_*`) and outputs (`poll_*`), and its page says in which order to call them.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod event;
mod stack;
mod stub;

pub use event::{ErrorOrigin, Event, QueuedError, Readiness};
pub use stack::{SocketId, Stack, StackConfig, TcpInfo, TcpOption};
pub use stub::{Cidr, Counters, Error, StackError, TcpConfig};
