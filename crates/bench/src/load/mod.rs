//! What a service does all day: many connections, small messages, little memory
//! (`bench requests`, `bench connections`, `bench crowd`).
//!
//! One server and one load generator serve all engines. Both are single-threaded tokio programs
//! that know only tokio's `AsyncRead` and `AsyncWrite`: a program that moves from tokio's sockets
//! to Pagewire's uses those. Over the pair link both sides are Pagewire's, beside the kernel over
//! loopback. Over a tap the server is Pagewire's and the clients are the kernel's, as they are
//! over veth beside it.
//!
//! [`network`] has the sockets, [`place`] the threads and namespaces, [`usage`] and [`memory`] what
//! they cost.

pub(crate) mod connections;
pub(crate) mod crowd;
mod memory;
mod network;
mod place;
pub(crate) mod requests;
mod usage;

use std::time::Duration;

use crate::failure::Failure;
use crate::kernel::{Between, check_privilege};
use crate::meter::{Round, Spread, percentile};
use crate::options::Link;
use crate::report::{Record, rounded};
use usage::Used;

/// An engine on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Pair,
    Tap,
    Kernel(Between),
}

impl Engine {
    /// Those that are compared, once this process may run them.
    fn on(link: Link) -> Result<[Self; 2], Failure> {
        usage::raise_descriptor_limit();
        match link {
            Link::Pair => Ok([Self::Pair, Self::Kernel(Between::Loopback)]),
            Link::Tap => {
                check_privilege()?;
                Ok([Self::Tap, Self::Kernel(Between::Veth { mtu: None })])
            }
        }
    }

    /// The engine, its link, and whose the clients are.
    const fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Pair => ("pagewire", "pair", "pagewire"),
            Self::Tap => ("pagewire", "tap", "kernel"),
            Self::Kernel(Between::Loopback) => ("kernel", "loopback", "kernel"),
            Self::Kernel(Between::Veth { .. }) => ("kernel", "veth", "kernel"),
        }
    }
}

/// What a round of requests counted, from the end of its warm-up on.
struct Sample {
    /// Requests that were answered.
    answered: u64,
    time: Duration,
    p50: Duration,
    p99: Duration,
    used: Used,
}

impl Sample {
    /// From the requests' times in nanoseconds.
    fn of(mut times: Vec<u32>, time: Duration, used: Used) -> Self {
        times.sort_unstable();
        let at = |p| Duration::from_nanos(percentile(&times, p).into());
        Self { answered: times.len() as u64, time, p50: at(0.5), p99: at(0.99), used }
    }

    fn per_second(&self) -> f64 {
        self.answered as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// A share of what was used, for each request.
    fn each(&self, used: f64) -> f64 {
        used / (self.answered as f64).max(1.0)
    }
}

/// What is measured in turns, and what came out.
struct Line {
    engine: Engine,
    connections: u32,
    samples: Vec<Sample>,
}

/// Every engine with every number of connections, engines side by side.
fn lines(engines: [Engine; 2], connections: &[u32]) -> Vec<Line> {
    let line = |engine, &connections| Line { engine, connections, samples: Vec::new() };
    connections.iter().flat_map(|n| engines.map(|engine| line(engine, n))).collect()
}

impl Line {
    /// What is measured, for the line of progress.
    fn name(&self) -> String {
        let (engine, link, _) = self.engine.names();
        format!("{engine} over {link}, {} connection(s)", self.connections)
    }

    /// The fields of requests; `unit` names the field of their rate, `size` is bytes each way.
    fn record(&self, bench: &str, [rate, least, most]: [&'static str; 3], size: usize) -> Record {
        let (engine, link, peer) = self.engine.names();
        let bytes = |s: &Sample| 2 * s.answered * size as u64;
        let round =
            |s: &Sample| Round { bytes: bytes(s), time: s.time, receiver_cpu: s.used.server.cpu };
        let rounds: Vec<Round> = self.samples.iter().map(round).collect();
        let spread = |part: fn(&Sample) -> f64| Spread::of(self.samples.iter().map(part));
        let us = |part: fn(&Sample) -> f64| {
            let Spread { min, median, max } = spread(part);
            Spread { min: min * 1e6, median: median * 1e6, max: max * 1e6 }
        };
        let rates = spread(Sample::per_second);
        Record::of_rounds(bench, engine, link, &rounds)
            .with("peer", peer)
            .with("connections", self.connections)
            .with("size", size)
            .with(rate, rounded(rates.median, 1))
            .with(least, rounded(rates.min, 1))
            .with(most, rounded(rates.max, 1))
            .with_spread("p50_us", us(|s| s.p50.as_secs_f64()), 3)
            .with_spread("p99_us", us(|s| s.p99.as_secs_f64()), 3)
            .with_spread(
                "server_cpu_us_per_request",
                us(|s| s.each(s.used.server.cpu.as_secs_f64())),
                3,
            )
            .with_spread(
                "client_cpu_us_per_request",
                us(|s| s.each(s.used.client.cpu.as_secs_f64())),
                3,
            )
            .with_spread(
                "server_sleeps_per_request",
                spread(|s| s.each(s.used.server.sleeps as f64)),
                3,
            )
            .with_spread(
                "client_sleeps_per_request",
                spread(|s| s.each(s.used.client.sleeps as f64)),
                3,
            )
            .with("congestion", "cubic")
    }
}
