//! `bench idle`: what an established connection costs while nothing happens on it.
//!
//! Both ends of each are in this process, over the pair link. The growth of its resident memory,
//! divided by the number of ends, is the cost: connection, tables, timers, and handle.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use pagewire::{BindOptions, Host, TcpStream};

use crate::args::{Options, Plan};
use crate::failure::Failure;
use crate::kit::hosts::{RIGHT, accept, on_a_pair};
use crate::kit::kernel::PATIENCE;
use crate::kit::machine::{Machine, joined, resident};
use crate::numbers::rounded;
use crate::progress::Progress;
use crate::table::{Field, Measurement, Results, records, some};

/// Memory that an established idle connection takes
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct IdleOptions {
    /// Established connections
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    connections: u32,

    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench idle
      100,000 connections
  pagewire bench idle --connections 1000 --json";

const FIRST_PORT: u16 = 9000;

/// Connections to one listening port, fewer than there are local ports.
const PER_PORT: u32 = 20_000;

/// Opened before memory is first measured, so that memory of the whole process does not count.
const WARM_UP: u32 = 64;

impl Options for IdleOptions {
    fn plan(&self) -> Plan {
        Plan::of::<Idle>(false, false)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let (left, right, _) = on_a_pair(None, |host| host)?;
        let _warm = open(&left, &right, WARM_UP, FIRST_PORT)?;
        let before = resident()?;
        let started = Instant::now();
        let mut held = Vec::new();
        progress.begin(self.connections as usize);
        let (mut left_to_open, mut port) = (self.connections, FIRST_PORT + 1);
        while left_to_open > 0 {
            progress.say(format!("{left_to_open} connections are left to open"));
            let count = left_to_open.min(PER_PORT);
            held.push(open(&left, &right, count, port)?);
            progress.advance(count.into());
            left_to_open -= count;
            port += 1;
        }
        progress.end();
        let time = started.elapsed();
        let grown = resident()?.saturating_sub(before);
        drop(held);
        let heading = Machine::describe();
        let heading = format!("{heading}; both ends of each connection are in this process");
        let columns = "engine link connections ends resident_bytes bytes_per_connection seconds";
        let records =
            records(&Idle { connections: self.connections, time, grown }, &[((), vec![])]);
        Ok(Results::print(records, self.json, heading, columns))
    }
}

/// The measurement, which is made once.
struct Idle {
    connections: u32,
    time: Duration,
    /// Bytes of memory.
    grown: u64,
}

impl Idle {
    fn ends(&self) -> u64 {
        2 * u64::from(self.connections)
    }
}

type F = Field<Idle>;

impl Measurement for Idle {
    type Case = ();
    type Sample = ();

    const NAME: &'static str = "idle";
    const TITLE: &'static str = "Memory of an idle connection";
    const ABOUT: &'static str = "\
        Growth of the process for each end, both ends in one process. It is measured once; \
        the kernel's is not measured.";
    const RATE: bool = false;
    const HEAD: bool = false;
    const FIELDS: &'static [Field<Self>] = &[
        F::value("bytes", |_| some(0)),
        F::value("seconds", |of| some(rounded(of.bench.time.as_secs_f64(), 3)))
            .lower("Time to open all", "s"),
        F::value("gbit_per_s", |_| some(0)),
        F::value("connections", |of| some(of.bench.connections)).part("{} connections"),
        F::value("bytes_per_connection", |of| {
            some(rounded(of.bench.grown as f64 / of.bench.ends() as f64, 1))
        })
        .lower("Memory of an end", "bytes")
        .first(),
        F::value("resident_bytes", |of| some(of.bench.grown))
            .lower("Memory of all", "bytes")
            .first(),
        F::value("ends", |of| some(of.bench.ends())),
    ];

    fn engine(&self, (): &()) -> (String, &'static str) {
        ("pagewire".to_owned(), "pair")
    }
}

/// Opens `count` connections and keeps both ends.
fn open(
    left: &Host,
    right: &Host,
    count: u32,
    port: u16,
) -> Result<Vec<(TcpStream, TcpStream)>, Failure> {
    let on = SocketAddr::from((RIGHT, port));
    let listener = right.listen_with(on, &BindOptions::new().backlog(1024))?;
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| -> Result<Vec<TcpStream>, Failure> {
            (0..count)
                .map(|_| accept(&listener, std::thread::yield_now).map_err(Failure::from))
                .collect()
        });
        let mut clients = Vec::with_capacity(count as usize);
        for _ in 0..count {
            clients.push(left.connect_timeout(on, PATIENCE)?);
        }
        Ok(clients.into_iter().zip(joined(accepting)?).collect())
    })
}
