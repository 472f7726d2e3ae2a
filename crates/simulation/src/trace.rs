//! Log lines with simulated time (feature `subscriber`).
//!
//! The tasks of each host run in a span `host{name="..." seed=7}`; events of the simulation itself have the
//! target `pagewire_simulation`: orders at level `info`, packets at `trace`.

use std::fmt;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use crate::clock::shown;

/// Formats the simulated time of the simulation that runs on this thread; `-` where none runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, w: &mut Writer<'_>) -> fmt::Result {
        match shown() {
            Some((now, _)) => write!(w, "{now}"),
            None => w.write_str("-"),
        }
    }
}

/// Prints log lines with simulated time and host, as `RUST_LOG` selects. Does nothing if there is a
/// subscriber already, so every test may call it.
pub fn init() {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_timer(SimulatedTime)
        .with_test_writer();
    let _ = lines.try_init();
}
