//! Random numbers for programs in a simulation, from the seed.

use std::io;

use crate::host::world::HostHandle;
pub use crate::random::SimRng;

/// Random numbers for the host whose code runs, from the simulation's seed, its name, and how often
/// it was started. Each call gives others.
///
/// # Errors
/// `Unsupported` outside of a simulation, `NotConnected` in a task that outlived its host.
pub fn rng() -> io::Result<SimRng> {
    let here = HostHandle::get()?;
    let mut world = here.lock();
    Ok(SimRng::new(world.alive(here.host)?.random.next_u64()))
}
