//! The TCP machine of the Pagewire stack: one connection, no I/O (RFC 9293).
//!
//! A [`Connection`] never reads a clock and never sends anything by itself: its documentation says
//! which methods a driver calls, and in which order. It has four parts:
//!
//! ```text
//!   path.rs       Path       settings, link, ports, state, negotiated options: all parts read it
//!   life/         Life       what decides whether the connection continues: errors, resets, timers
//!   outbound/     Outbound   the send queue, and what leaves next
//!                 Transfer   the flight, loss recovery, congestion control, round trip
//!   inbound/      Inbound    the receive queue, the window, acknowledgements
//! ```
//!
//! The methods of a type stand in its file, or in files of the folder of that name. Methods of a part
//! take what they need of the others as arguments; what involves several parts is `connection/`:
//!
//! ```text
//!   input         a segment arrives, by the steps of RFC 9293 section 3.10.7; ICMP errors
//!   output        the next segment;  refused: the device did not take it
//!   application   calls;  coalesce, mapping, forward: variants of sending and receiving
//!   timeout       timers;  handshake, fast_open, time_wait: the beginning and the end;  info
//! ```
//!
//! Read [`State`] first (the state machine), then `connection.rs`, its `input.rs` and `output.rs`, and
//! the `mod.rs` of each part.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod config;
mod connection;
mod error;
mod header;
mod inbound;
mod info;
mod io_flags;
mod isn;
mod life;
pub mod limits;
mod memory;
mod options;
mod outbound;
mod pages;
mod path;
mod segment;
mod seq;
mod settings;
mod shared;
mod syn_cookie;
#[cfg(test)]
mod tests;
mod timer;

pub use config::{Config, EcnMode, EcnOption, KeepAlive, LinkLimits, MtuProbing};
pub use connection::{
    Available, Connection, FastOpen, MapRefusal, Merge, TimeWait, TimeWaitStep, check_map_len,
};
pub use error::{DropReason, TcpError};
pub use header::{CHECKSUM_OFFSET, Flags, HeaderError, MAX_HEADER_LEN, MIN_HEADER_LEN, TcpHeader};
pub use inbound::receive_queue::Parts;
pub use info::{Info, Readiness};
pub use io_flags::{RecvFlags, SendFlags};
pub use isn::IsnGenerator;
pub use life::defer::{defer_accept_time, defer_accept_timeouts};
pub use life::fast_open::{
    CookieCheck, FastOpenConnect, FastOpenCookie, FastOpenKeys, FastOpenMode, FastOpenOutcome,
    SynData, TryExperimental,
};
pub use life::state::{Event, State};
pub use memory::{MemoryAccount, Promise};
pub use options::{AccurateEcnOption, OptionError, SackBlocks, TcpOptions};
pub use outbound::congestion::{CongestionKind, SlowStartExit};
pub use outbound::ecn::EcnCounts;
pub use outbound::loss::CaState;
pub use pages::{mss_of_pages, mtu_of_pages};
pub use path::Ports;
pub use segment::{Arrival, Disposition, IcmpKind, IcmpNotice, SegmentOut, reset_for};
pub use seq::Seq;
pub use settings::Settings;
pub use shared::{ChallengeLimit, Env, Shared};
pub use syn_cookie::{Cookie, CookieJar};
