//! Link, IP, ICMP, UDP and sockets of the Pagewire stack.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod cidr;
mod counters;
mod error;
pub mod limits;
mod net;

pub use cidr::{Cidr, CidrError};
pub use counters::{Counters, DropReason};
pub use error::{Error, StackError};
