//! Receiving by reference into memory that the application registered, through rings.
//!
//! The application gives a region of its memory to a device's queue. Payload of the flows steered
//! there lands in the region, uncopied; the stack reports its place, and the buffers come back.
//!
//! ```text
//!            submissions  (receive, send, accept, connect, bind, close, cancel)
//!        ------------------------------------------------------->
//!            completions  (how many bytes, how many entries)
//!  app   <-------------------------------------------------------   engine -- stack -- device
//!            entries      (offset, length, group, buffer)                              | fills
//!        <-------------------------------------------------------                      v
//!            fill rings, one a group  (buffers given back)                          region
//!        ------------------------------------------------------->
//! ```
//!
//! Read in this order: [`layout`] (the rings' memory), [`Producer`] and [`Consumer`] (the rings),
//! [`Engine`] (the stack's side; no clock, no thread, no system call), [`Ends`] (the application's
//! side). `pagewire::rings` runs an engine on a host's driver and adds an async API: most programs
//! begin there, with the example `ring_to_file`.
//!
//! # Groups
//!
//! A *group* is memory for received bytes:
//!
//! - the **copy group** ([`layout::COPY_GROUP`]) holds copied bytes: those that arrived elsewhere,
//!   small pieces, and all bytes of a receive that names no other group;
//! - a **queue's group** ([`Engine::register_queue`]) is a region that a device's queue fills;
//! - a **lent group** ([`Engine::register_lent`]) is memory of a sender on the same machine, which a
//!   link that passes references (the pair) does not copy at all.
//!
//! # Two kinds of socket
//!
//! | | connection | datagram socket |
//! |---|---|---|
//! | opened | accept, connect | bind |
//! | a completion reports | a number of bytes of the stream | one datagram: [`Completion::address`], [`Completion::length`] |
//! | a limit bounds | the whole receive | each datagram: the rest is lost ([`Completion::TRUNCATED`]) |
//! | 0 bytes | the end of the stream | an empty datagram |
//! | no room in a ring, no buffer to copy into | delivered in parts | waits until there is room for all of it; truncated if the ring of entries is too small for it |
//! | no buffer in the region | the window closes; data within the window is copied | copied |
//! | no buffer to copy into either | the peer waits | waits in the socket's queue; beyond its limits dropped and counted ([`Completion::dropped`]) |
//!
//! Groups, notices, steering ([`Rule::udp_port`](pagewire_mem::link::Rule::udp_port)) and the end of a
//! registration are equal. Of a datagram in IP fragments, only the first matches rules by port.
//!
//! # Trust
//!
//! Nothing that the application writes into a ring is trusted: indices are kept in private memory
//! and compared, buffers counted by `pagewire_mem::Lease`, invalid entries refused ([`Counters`]).
//!
//! # Where Linux's two designs differ
//!
//! From io_uring's zctap (2022) this crate takes the vector of entries in a buffer of the application, the
//! ring of copy buffers, and the notices when the fill ring is drained. From zcrx (2025) it takes the
//! references counted on the stack's side, multishot receives with a limit, results in bytes, and
//! rings that survive any value an application writes there. A receive that finds no room in a ring
//! waits for it instead of ending.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod counters;
mod engine;
mod error;
mod group;
mod handles;
pub mod layout;
pub mod limits;
mod ring;
mod sync;

pub use counters::Counters;
pub use engine::{Ends, Engine, EngineConfig, QueueConfig, Registered};
pub use error::RegisterError;
pub use layout::{Completion, Entry, Fill, Op, Submission};
pub use ring::{Consumer, Producer};
