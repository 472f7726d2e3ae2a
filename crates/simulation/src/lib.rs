//! Deterministic tests of tokio programs on a simulated network with a real TCP.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(any(
    feature = "axum",
    feature = "hyper",
    feature = "openraft",
    feature = "quinn",
    feature = "tonic"
))]
pub mod fit;
pub mod limits;
mod names;
pub mod net;
mod time;
mod waiters;
mod world;

pub use names::IpVersion;
pub use time::SimTime;
pub use world::HostId;

/// What programs and scenarios return: any error fails the run.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;
