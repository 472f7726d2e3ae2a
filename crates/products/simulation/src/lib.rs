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

mod agenda;
mod builder;
mod capture;
mod chaos;
mod check;
mod clock;
mod command;
pub mod control;
mod digest;
mod engine;
mod fabric;
mod fate;
mod gate;
mod hosts;
mod icmp;
mod jobs;
mod life;
mod limits;
mod link;
mod machine;
mod names;
pub mod net;
mod notes;
#[cfg(feature = "openraft")]
pub mod openraft;
mod packet;
mod panics;
mod path;
mod random;
mod record;
mod report;
pub mod rng;
mod run;
mod runtime;
mod seeds;
mod sim;
mod stuck;
mod tape;
pub mod time;
mod timeline;
#[cfg(feature = "subscriber")]
pub mod trace;
#[cfg(feature = "turmoil")]
pub mod turmoil;
mod watch;
mod world;

pub use builder::{Builder, ForeignThreads, Leaks, Panics};
pub use chaos::{Chaos, Rate};
pub use check::Check;
pub use clock::{SimTime, Skew};
pub use command::Pause;
pub use control::Control;
pub use digest::{Digest, DigestError};
pub use fabric::Unreachable;
pub use hosts::{All, HostOptions, Hosts, all};
pub use jobs::{JOBS_VARIABLE, SEEDS_VARIABLE, TWICE_VARIABLE};
pub use link::{Link, LinkError, Queue};
pub use names::IpVersion;
pub use pagewire_stack::TcpConfig;
pub use record::Counts;
pub use report::{Failure, FailureDetails, FailureKind, Repeats, Report};
pub use rng::SimRng;
pub use sim::{Sim, View};
pub use world::{HostHandle, HostId};

/// What programs and scenarios return: any error fails the run.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
