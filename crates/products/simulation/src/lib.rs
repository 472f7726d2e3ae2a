//! Deterministic tests of tokio programs on a simulated network with a real TCP.
//!
//! Read [`Sim`] first: hosts and clients are async blocks, each with an address, a name, a clock and a
//! TCP/IP stack of its own; [`net`] is `tokio::net` for them, and `tokio::time` works as it is. Time
//! is virtual. One seed determines the network and the order of everything that happens; what a program
//! takes from elsewhere (the order of a `HashMap`, random numbers of the system, `std::time`, threads)
//! it does not: [`Builder::twice`] finds such programs. Needs Linux. Then, as needed: [`Link`] (latency, loss,
//! bandwidth), [`Control`] (partitions, crashes), [`Chaos`], [`Report`] and [`Failure`].

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

#[cfg(test)]
extern crate self as pagewire_simulation;

mod builder;
mod check;
mod compat;
mod events;
mod faults;
mod host;
mod limits;
pub mod net;
mod network;
mod random;
mod record;
mod report;
pub mod rng;
mod runtime;
mod seeds;
mod sim;
pub mod time;

pub use builder::{Builder, ForeignThreads, Leaks, Panics};
pub use check::jobs::{JOBS_VARIABLE, SEEDS_VARIABLE, TWICE_VARIABLE};
pub use check::many_seeds::Check;
#[cfg(feature = "openraft")]
pub use compat::openraft;
#[cfg(feature = "turmoil")]
pub use compat::turmoil;
pub use faults::chaos::{Chaos, Rate};
pub use faults::command::Pause;
pub use faults::control::{self, Control};
pub use host::clock::{SimTime, Skew};
pub use host::selectors::{All, HostOptions, Hosts, all};
pub use host::world::{HostHandle, HostId};
pub use network::link::{Link, LinkError, Queue};
pub use network::names::IpVersion;
pub use network::routing::Unreachable;
pub use pagewire_stack::TcpConfig;
pub use record::digest::{Digest, DigestError};
pub use record::recorder::Counts;
#[cfg(feature = "subscriber")]
pub use record::trace;
pub use report::outcome::{Failure, FailureDetails, FailureKind, Repeats, Report};
pub use rng::SimRng;
pub use sim::{Sim, View};

/// The result of programs and scenarios: any error fails the run.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
