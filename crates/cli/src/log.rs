//! What the command says on standard error besides its results: events of `tracing`.

use pagewire::Host;
use tracing::Level;
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// The variable that has a filter if no option says one.
const VARIABLE: &str = "PAGEWIRE_LOG";

/// Has events written to standard error: those of `filter`, or as many as `-v` was given.
pub(crate) fn begin(verbose: u8, filter: Option<&str>) -> Result<(), Failure> {
    let text = match (filter, verbose) {
        (Some(filter), _) => filter.to_owned(),
        (None, 0) if std::env::var_os(VARIABLE).is_some() => {
            std::env::var(VARIABLE).unwrap_or_default()
        }
        (None, 0) => "warn,pagewire_control=error".to_owned(),
        (None, 1) => "info,pagewire_control=debug".to_owned(),
        (None, _) => "trace".to_owned(),
    };
    let filter = EnvFilter::builder().parse(&text).map_err(|error| {
        let hint = "give a level (error, warn, info, debug, trace), or several as in \
                    warn,pagewire_control=debug";
        Failure::misused(format!("--log-level {text}"), format!("{error}; {hint}"))
    })?;
    let plain = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    // Fails only if there is a subscriber already: in tests.
    let _ = plain.with_writer(std::io::stderr).try_init();
    Ok(())
}

/// Reports a host's connections and anomalies, if somebody wants to read that.
pub(crate) fn trace(name: &str, host: &Host) {
    if tracing::enabled!(target: "pagewire_control", Level::WARN) {
        pagewire_control::trace(name, host);
    }
}
