//! The TCP machine of the Pagewire stack: one connection, no I/O (RFC 9293).
//!
//! A [`Connection`] never reads a clock and never sends anything by itself. Its methods are of
//! four kinds, and a driver calls them in this order:
//!
//! 1. **inputs**: [`handle_segment`](Connection::handle_segment),
//!    [`handle_timeout`](Connection::handle_timeout), [`handle_icmp`](Connection::handle_icmp);
//! 2. **calls of the application**: [`send`](Connection::send), [`read`](Connection::read),
//!    [`close`](Connection::close) and so on;
//! 3. **outputs**, after any of those: [`poll_transmit`](Connection::poll_transmit) until it
//!    returns `None`, then [`poll_timeout`](Connection::poll_timeout);
//! 4. **getters**, at any time.
//!
//! A connection has four parts, with fields private to their file or folder:
//!
//! ```text
//!   path.rs     Path       settings, link, ports, state, negotiated options: all parts read it
//!   life/       Life       opening, ending, keep-alive, errors
//!   outbound/   Outbound   the send queue, and what leaves next
//!               Transfer   the flight, loss recovery, congestion control, round trip
//!   inbound/    Inbound    the receive queue, the window, acknowledgements
//! ```
//!
//! A method of a part takes `&Path` and small values, and returns small values: the next segment
//! (`Outgoing`), the result of a timer (`Waited`). [`Connection`] carries them between parts.
//!
//! Read [`State`] first (the state machine), then `connection.rs`, `input.rs` (the steps of RFC
//! 9293 section 3.10.7), `output.rs` (the next segment), and the `mod.rs` of each part.

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
mod options;
mod outbound;
mod pages;
mod path;
mod reset;
mod segment;
mod seq;
mod settings;
mod shared;
mod syn_cookie;
mod timer;

pub use config::{Config, EcnMode, EcnOption, KeepAlive, LinkLimits, MtuProbing};
pub use connection::{
    Available, Connection, FastOpen, MapRefusal, Merge, TimeWait, TimeWaitStep, check_map_len,
};
pub use error::{DropReason, TcpError};
pub use header::{
    CHECKSUM_OFFSET, Flags, HeaderError, HeaderView, MAX_HEADER_LEN, MIN_HEADER_LEN, TcpHeader,
};
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
pub use options::{AccurateEcnOption, OptionError, OptionItem, OptionIter, SackBlocks, TcpOptions};
pub use outbound::congestion::{CongestionKind, SlowStartExit};
pub use outbound::ecn::EcnCounts;
pub use outbound::loss::CaState;
pub use pages::{mss_of_pages, mtu_of_pages};
pub use path::Ports;
pub use reset::reset_for;
pub use segment::{Arrival, Disposition, IcmpKind, IcmpNotice, SegmentOut};
pub use seq::Seq;
pub use settings::Settings;
pub use shared::{ChallengeLimit, Env, ReceiveBudget, Shared};
pub use syn_cookie::{Cookie, CookieJar};
