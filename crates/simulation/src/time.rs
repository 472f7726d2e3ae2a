//! Simulated time. `tokio::time` works as it is; here is what it does not have.

use std::io;
use std::time::{Duration, SystemTime};

use crate::world::Here;

/// The wall clock of the host whose code runs: the simulation's epoch, the time since its start, and
/// the host's skew. Outside of a simulation, the real one.
pub fn now() -> SystemTime {
    let clock = || {
        let here = Here::get().ok()?;
        let world = here.lock();
        let skew = world.hosts.get(here.host.id.index())?.clock;
        Some(skew.wall(world.epoch, world.now))
    };
    clock().unwrap_or_else(SystemTime::now)
}

/// The time since the start of the simulation, the same on all hosts.
///
/// # Errors
/// `Unsupported` outside of a simulation.
pub fn elapsed() -> io::Result<Duration> {
    Ok(Here::get()?.lock().now.elapsed())
}

/// Whether this code runs inside of a simulation.
pub fn in_simulation() -> bool {
    Here::get().is_ok()
}
