//! A virtual network with a virtual clock: for the stack's own tests, and for programs that want
//! to see what they do when packets are lost, without waiting for it.
//!
//! Read [`Sim`] first: nodes, links with faults, a clock that jumps from event to event. A seed
//! decides all that is random, so a failure happens again for the same seed ([`run_seed`]).

#![forbid(unsafe_code)]

pub mod limits;
mod node;
mod seeds;
mod sim;
mod station;
mod stream;
#[cfg(test)]
mod tests;
mod transfer;

pub use node::Node;
pub use seeds::{Failure, SEED_VARIABLE, run_seed, seed_from_env};
pub use sim::{NodeId, Sim, SimError};
pub use station::{App, Station};
pub use stream::{Mismatch, Stream};
pub use transfer::{Report, Transfer, transfer};
