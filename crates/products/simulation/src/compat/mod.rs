//! Other crates on a simulation: turmoil, whose names programs may keep, and openraft.

#[cfg(feature = "openraft")]
pub mod openraft;
#[cfg(feature = "turmoil")]
pub mod turmoil;
