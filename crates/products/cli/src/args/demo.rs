//! Options of the demonstration, and the parser of sizes in bytes.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DemoOptions {
    /// Directory to serve; without it, 1 GiB of files is made in the temporary directory
    pub(crate) dir: Option<PathBuf>,

    /// Bytes of files to make when no directory is given: a number with K, M or G (powers of 1024)
    #[arg(long, default_value = "1G", value_parser = size, conflicts_with = "dir", value_name = "BYTES")]
    pub(crate) size: u64,

    /// Connections that fetch at the same time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub(crate) connections: u16,

    /// Print copies by reason, drops by reason and TCP counters of both hosts at the end; also on
    /// SIGUSR1
    #[arg(long)]
    pub(crate) stats: bool,
}

pub(super) const DEMO_EXAMPLES: &str = "\
Examples:
  pagewire demo
      with 1 GiB of made-up files of 0 bytes to 256 MiB, removed afterwards
  pagewire demo /usr/share/doc
      with the files of a directory";

/// Parses bytes: a number, also with K, M or G for powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let parsed = parse_size::Config::new().with_binary().parse_size(text);
    parsed.map_err(|_| "give a number of bytes, as in 65536, 64K or 1G".to_owned())
}
