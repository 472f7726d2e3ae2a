//! Events of `tracing` on standard error: `-v`, `--log-level`, and the events of a host.

use pagewire::Host;
use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use crate::failure::Failure;

/// The variable that has a filter if no option says one.
const VARIABLE: &str = "PAGEWIRE_LOG";

/// Has events written to standard error: those of `filter`, or as many as `-v` was given.
pub(crate) fn begin(verbose: u8, filter: Option<&str>) -> Result<(), Failure> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    let text = match (filter, verbose) {
        (Some(filter), _) => filter.to_owned(),
        (None, 0) => variable.map_or("warn,pagewire_control=error".to_owned(), |value| {
            value.to_string_lossy().into_owned()
        }),
        (None, 1) => "info,pagewire_control=debug".to_owned(),
        (None, _) => "trace".to_owned(),
    };
    let filter = parse(&text).ok_or_else(|| {
        let hint = "give a level (error, warn, info, debug, trace), or several as in \
                    warn,pagewire_control=debug";
        Failure::misused(format!("--log-level {text}"), hint)
    })?;
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    // Fails only if there is a subscriber already: in tests.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}

/// A filter: a level, and levels for targets, `TARGET=LEVEL`, with commas between them.
fn parse(text: &str) -> Option<Targets> {
    let mut filter = Targets::new();
    for part in text.split(',').map(str::trim) {
        filter = match part.split_once('=') {
            Some(("", _)) => return None,
            Some((target, level)) => filter.with_target(target, self::level(level)?),
            None => filter.with_default(self::level(part)?),
        };
    }
    Some(filter)
}

fn level(text: &str) -> Option<LevelFilter> {
    text.parse().ok().filter(|_| !text.is_empty())
}

/// Reports what was not reported so far of a host that was traced, and has ended its connections.
pub(crate) fn trace_end(name: &str, host: &Host) {
    if tracing::enabled!(target: "pagewire_control", Level::WARN) {
        pagewire_control::trace_end(name, host);
    }
}

/// Reports a host's connections and anomalies, if somebody wants to read that.
pub(crate) fn trace(name: &str, host: &Host) {
    if tracing::enabled!(target: "pagewire_control", Level::WARN) {
        pagewire_control::trace(name, host);
    }
}
