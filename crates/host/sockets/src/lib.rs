//! The sockets of Pagewire, written once: streams, listeners and datagram sockets over a
//! [`Stack`](pagewire_stack::Stack), wherever that lives.
//!
//! A [`Runtime`] says where: the lock of a host (`pagewire::Host`), a simulated world
//! (`pagewire_simulation`), a script's virtual time. Above it the same socket has two forms:
//!
//! ```text
//!   net::TcpStream<R>       for tasks, shaped as tokio::net       \
//!                                                                 Socket<R, Id> --> R: Runtime --> Stack
//!   blocking::TcpStream<R>  for threads, shaped as std::net       /
//! ```
//!
//! Calls fail with the runtime's own error once its stack is gone: `NetworkDown` on a host,
//! `NotConnected` in a simulation. Where a method has an `# Errors` section, these come beside.
//!
//! A program that is tested on one runtime meets the same sockets on another. The registry of those that
//! wait is one type, too: [`Waiters`].
//!
//! Read [`Runtime`] first, then `socket.rs`: how an operation is tried, and how its caller waits. The
//! operations are in `ops.rs`.
//!
//! Programs use this crate by `pagewire` or `pagewire_simulation`, which name its types for their runtime.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod addr;
pub mod blocking;
mod buf;
mod connect;
mod coop;
mod datagram;
mod limits;
mod mapping;
mod multicast;
pub mod net;
mod ops;
mod options;
mod reference;
mod runtime;
mod socket;
mod threads;
mod waiters;
mod zerocopy;

pub use addr::{ToSocketAddrs, resolve};
pub use buf::{Chunk, Chunks, IntoChunks, SendBuf};
pub use connect::{BindOptions, ConnectOptions, first, resolve_blocking};
pub use datagram::Datagram;
pub use mapping::{MapAvailable, Mapping};
pub use pagewire_stack::MtuDiscover;
pub use pagewire_stack::limits::{
    UDP_MAX_PAYLOAD_V4 as MAX_SEND, UDP_MAX_SEGMENTS as MAX_SEGMENTS,
};
pub use reference::by_reference;
pub use runtime::{Blocking, Clock, Patience, Runtime, io_error, timeout};
pub use threads::{Signal, block_on};
pub use waiters::{Call, Waiter, WaiterId, Waiters};
pub use zerocopy::{Completion, CompletionStream, Completions, Sent};
