//! [`Options`]: the arguments of a measurement, which know how it runs; arguments that several measurements
//! share; and the parsers of values.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pagewire::device::{FaultConfig, FaultConfigError};

use crate::failure::Failure;
use crate::kit::machine::Machine;
use crate::progress::Progress;
use crate::table::{Measurement, Results, TableInfo};

/// The arguments of a measurement, which know how it runs.
pub(crate) trait Options {
    fn plan(&self) -> Plan;

    /// Parts that are left out on this machine, and why.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Measures, and prints the results.
    ///
    /// # Errors
    /// Arguments make no sense together, or something is missing on this machine.
    fn run(&self, progress: &Progress) -> Result<Results, Failure>;
}

/// The facts of a measurement that are known before it runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) shown: TableInfo,
    /// The measurement makes taps and namespaces.
    pub(crate) needs_root: bool,
    /// The measurement writes to standard error, where a line of progress would be in the way.
    pub(crate) writes: bool,
}

impl Plan {
    pub(crate) fn of<M: Measurement>(needs_root: bool, writes: bool) -> Self {
        Self { shown: TableInfo::of::<M>(), needs_root, writes }
    }
}

/// Arguments of all measurements with rounds.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Rounds of each engine that count, 3 to 1000, taken in turns; one more before them warms up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=1000), value_name = "N")]
    pub(crate) rounds: u16,

    /// One JSON object per line instead of a table
    #[arg(long)]
    pub(crate) json: bool,

    /// Print copies by reason, drops by reason and TCP counters after each round
    #[arg(long)]
    pub(crate) stats: bool,
}

impl Common {
    /// The heading of a table: what was measured on, and how; `more` follows "medians".
    pub(crate) fn heading(&self, seconds: f64, more: &str) -> String {
        let machine = Machine::describe();
        format!("{machine}; {} rounds of {seconds} s each, medians{more}", self.rounds)
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Time {
    /// Seconds that a round lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Mtu {
    /// Largest IP packet on the link, in bytes: 1280 to 65535 [default: the link's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub(crate) mtu: Option<u32>,
}

/// Kinds of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Link {
    /// Two ends in one process, frames by reference
    Pair,
    /// A tap device of the kernel; needs root or CAP_NET_ADMIN
    Tap,
}

/// Where data goes, as seen from Pagewire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    Send,
    Receive,
}

/// Parses a time as fault settings have it.
pub(crate) fn delay(text: &str) -> Result<Duration, FaultConfigError> {
    Ok(format!("delay={text}").parse::<FaultConfig>()?.delay)
}

/// The name of a value on the command line, which results use, too.
pub(crate) fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Most bytes of one send: above the longest of the source document, far below the source's buffer.
const MAX_SEND_SIZE: u64 = 16 << 20;

/// Parses bytes: a number, also with K, M or G for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let parsed = parse_size::Config::new().with_binary().parse_size(text);
    parsed.map_err(|_| "give a number of bytes, as in 65536, 64K or 1G".to_owned())
}

/// Parses what is sent at once.
pub(crate) fn send_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ 1..=MAX_SEND_SIZE => Ok(bytes),
        _ => Err("give bytes between 1 and 16M".to_owned()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.01..=3600.0).contains(&s) => Ok(s),
        _ => Err("give seconds between 0.01 and 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("2m"), Ok(2 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        assert!(
            size("").is_err() && size("-1").is_err() && size("1Q").is_err() && size("K").is_err()
        );
        assert!(size("99999999999G").is_err());
    }
}
