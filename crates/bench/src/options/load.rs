//! Options of the measurements of load.

use clap::{Args, ValueEnum};

use super::{BenchCommon, Link, seconds, send_size};

pub(super) const REQUESTS_EXAMPLES: &str = "\
Examples:
  pagewire bench requests
      128 bytes each way over the pair link, beside kernel loopback
  pagewire bench requests --link tap --connections 1,64,1000 --json
      from clients of the kernel over a tap, beside veth; root
  pagewire bench requests --link tap --pin
      the server's side on one processor, the clients' on another";

pub(super) const CONNECTIONS_EXAMPLES: &str = "\
Examples:
  pagewire bench connections
      64 clients side by side over the pair link, beside kernel loopback
  pagewire bench connections --link tap --connections 1,64
      from clients of the kernel over a tap, beside veth; root";

pub(super) const CROWD_EXAMPLES: &str = "\
Examples:
  pagewire bench crowd
      1,000 clients of 1 MiB over the pair link, beside kernel loopback
  pagewire bench crowd --link tap --connections 5000 --not-reading 50
      half of them never read what comes back, over a tap, beside veth; root";

/// What drives a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// A task of the program's runtime
    Task,
    /// A thread of its own, as for programs without a runtime
    Thread,
}

/// Where the two programs and their stacks run.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PlaceOptions {
    /// What drives Pagewire's hosts
    #[arg(long, value_enum, default_value_t = Driver::Task, value_name = "KIND")]
    pub(crate) driver: Driver,

    /// Keep each side's threads on one processor, instead of leaving them to the kernel
    #[arg(long)]
    pub(crate) pin: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RequestsOptions {
    /// Kind of link; over a tap the clients are kernel sockets (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    pub(crate) link: Link,

    /// Connections, each with one request under way; several numbers with commas
    #[arg(long, value_delimiter = ',', default_value = "1,64,1000", value_parser = clap::value_parser!(u32).range(1..=20_000), value_name = "N")]
    pub(crate) connections: Vec<u32>,

    /// Bytes of a request, and of an answer
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536), value_name = "BYTES")]
    pub(crate) size: u32,

    #[command(flatten)]
    pub(crate) place: PlaceOptions,

    /// Seconds that a round lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectionsOptions {
    /// Kind of link; over a tap the clients are kernel sockets (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    pub(crate) link: Link,

    /// Clients side by side, each with one connection at a time; several numbers with commas
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    pub(crate) connections: Vec<u32>,

    /// Bytes of a request, and of an answer
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536), value_name = "BYTES")]
    pub(crate) size: u32,

    #[command(flatten)]
    pub(crate) place: PlaceOptions,

    /// Seconds that a round lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    pub(crate) seconds: f64,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CrowdOptions {
    /// Kind of link; over a tap the clients are kernel sockets (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    pub(crate) link: Link,

    /// Clients
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=20_000), value_name = "N")]
    pub(crate) connections: u32,

    /// Bytes that each sends and has echoed: a number with K or M, 1 to 16M
    #[arg(long, default_value = "1M", value_parser = send_size, value_name = "BYTES")]
    pub(crate) size: u64,

    /// Of a hundred clients, so many write and never read
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=99), value_name = "PERCENT")]
    pub(crate) not_reading: u8,

    #[command(flatten)]
    pub(crate) place: PlaceOptions,

    #[command(flatten)]
    pub(crate) common: BenchCommon,
}
