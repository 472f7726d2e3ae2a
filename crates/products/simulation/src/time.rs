//! Simulated time, beside `tokio::time`, which works as it is: the wall clock, and the time since the start.

use std::io;
use std::time::{Duration, SystemTime};

use crate::host::clock::{Clock, shown};
use crate::host::world::HostHandle;

/// The wall clock of the host whose code runs: the simulation's epoch, the time since its start, and
/// the host's skew. In code of the test that is no host's, while a simulation lives on its thread: the
/// same without a skew. Elsewhere it is the real one: in production, and on threads that a program
/// starts by itself, which a simulation cannot have.
pub fn now() -> SystemTime {
    let here = || {
        let here = HostHandle::get().ok()?;
        let world = here.lock();
        let skew = world.hosts.get(here.host.id.index())?.clock;
        Some(skew.wall(world.epoch, world.now))
    };
    let test = || shown().map(|(now, epoch)| Clock::default().wall(epoch, now));
    here().or_else(test).unwrap_or_else(SystemTime::now)
}

/// The time since the start of the simulation, the same on all hosts.
///
/// # Errors
/// `Unsupported` outside of a simulation.
pub fn elapsed() -> io::Result<Duration> {
    Ok(HostHandle::get()?.lock().now.elapsed())
}

/// Whether this code runs inside of a simulation.
pub fn in_simulation() -> bool {
    HostHandle::get().is_ok()
}
