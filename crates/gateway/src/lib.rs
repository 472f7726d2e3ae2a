//! Networking for sandboxes, microVMs and programs: what a guest sends leaves through sockets of
//! this process, so neither side needs root.
//!
//! Read `ask.rs` first: the questions that all parts of the gateway share.

#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod ask;
mod autoconf;
mod dns;
pub mod limits;
mod log;
mod policy;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzzing;

pub use ask::{
    Ask, Direction, GuestId, How, Journal, Judge, Name, NameError, Protocol, Record, Verdict,
};
pub use autoconf::{Autoconf, AutoconfConfig, AutoconfCounters, AutoconfWatch};
pub use dns::{DeniedName, DnsConfig, DnsCounters, DnsServer, OwnNames, Resolver};
pub use log::Log;
pub use policy::{Glob, Names, Pattern, Ports, Resolved, Rule, RuleError, Rules, Whereabouts};
