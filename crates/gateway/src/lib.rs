//! Networking for sandboxes, microVMs and programs: what a guest sends leaves through sockets of
//! this process, so neither side needs root.
//!
//! Read `ask.rs` first: the questions that all parts of the gateway share.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod ask;
mod limits;
pub mod netns;
pub mod sandbox;

pub use ask::{
    Ask, Direction, GuestId, How, Journal, Judge, Name, NameError, Protocol, Record, Verdict,
};
