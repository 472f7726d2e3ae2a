//! `--cores`: the cores that a command uses.

use std::num::NonZero;

use clap::Args;
use pagewire::Cores;

/// The cores of a host, or of a guest's gateway.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct CoresOption {
    /// Cores to use, 1 to 32, each with a stack, a thread and a part of the connections; `all`: those that are available
    #[arg(long, default_value = "1", value_parser = number, value_name = "N|all")]
    pub(crate) cores: usize,
}

/// A number of cores; `all`: as many as this process may use.
fn number(text: &str) -> Result<usize, String> {
    if text == "all" {
        let all = std::thread::available_parallelism().map_or(1, NonZero::get);
        return Ok(all.min(Cores::MAX));
    }
    let count = text.parse().ok().filter(|count| (1..=Cores::MAX).contains(count));
    count.ok_or_else(|| format!("give a number from 1 to {}, or all", Cores::MAX))
}
