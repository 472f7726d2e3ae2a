//! Log lines with simulated time, for `tracing` (feature `subscriber`).
//!
//! The tasks of each host run in a span `host{name="..." seed=7}`; events of the simulation itself have the
//! target `pagewire_simulation`: commands at level `info`, packets at `trace`.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

use crate::host::clock::shown;
use crate::host::world::HostHandle;

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

/// Writes the log lines of hosts' tasks into the timeline of their simulation, if it has one: a layer of
/// a subscriber.
#[derive(Clone, Copy, Debug, Default)]
pub struct InTimeline;

impl<S: Subscriber> Layer<S> for InTimeline {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let meta = event.metadata();
        let Ok(here) = HostHandle::get() else { return };
        // The simulation's own events have lines already.
        if meta.target() == "pagewire_simulation" {
            return;
        }
        let mut line = Line(format!("{} {}:", meta.level(), meta.target()));
        event.record(&mut line);
        here.world.log(here.host.id, line.0);
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

/// Prints log lines with simulated time and host, as `RUST_LOG` selects, and writes them into the
/// timelines of simulations. Does nothing if there is a subscriber already, so every test may call it.
pub fn init() {
    let lines = tracing_subscriber::fmt::layer().with_timer(SimulatedTime).with_test_writer();
    let all = tracing_subscriber::registry().with(EnvFilter::from_default_env());
    let _ = all.with(lines).with(InTimeline).try_init();
}
