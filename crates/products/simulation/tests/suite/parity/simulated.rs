//! The cases on sockets of a simulation.

use std::future::Future;

pub(crate) use pagewire_simulation::net;
use pagewire_simulation::{IpVersion, Sim};

/// Runs a case on a host of its own.
pub(crate) fn run(case: impl Future<Output = Result<(), Box<dyn std::error::Error>>> + 'static) {
    let mut sim = Sim::builder().ip(IpVersion::Both).build();
    sim.client("client", case);
    sim.run().unwrap();
}

#[allow(clippy::duplicate_mod)]
#[path = "cases/mod.rs"]
mod cases;
