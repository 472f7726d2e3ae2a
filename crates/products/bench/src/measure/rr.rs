//! `bench rr`: round trips of a small message, and how often a blocked reader is woken.

mod blocking;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use self::blocking::Trips;
use crate::args::{Common, Options, Plan, Time};
use crate::failure::{Because, Failure};
use crate::kit::engine::Engine;
use crate::kit::hosts::{RIGHT, accept, connect_in_turns, hosts_in_turns, on_a_pair};
use crate::kit::kernel::{self, Between, PATIENCE, poll_ping, poll_pong};
use crate::kit::machine::{Sides, joined, nap, pin};
use crate::kit::meter::{Round, Spread, percentile};
use crate::kit::source::Source;
use crate::numbers::rounded;
use crate::progress::Progress;
use crate::table::{Field, InTurns, Measurement, ResultLine, Results, in_turns, records, some};

/// 64 bytes there and back: both sides poll, or threads block
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RrOptions {
    /// Bytes each way
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536), value_name = "BYTES")]
    size: u32,

    #[command(flatten)]
    time: Time,

    /// Threads that share one host, and block, each with its own connection; 0: both sides poll
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=256), value_name = "N")]
    threads: u32,

    /// Microseconds that each of these threads sleeps before a message
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000_000), value_name = "US")]
    think: u32,

    /// Bulk flows beside these threads, between the same hosts
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=256), value_name = "FLOWS")]
    bulk: u32,

    /// Busy threads beside these, which only compute
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=256), value_name = "N")]
    busy: u32,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench rr
      64 bytes each way
  pagewire bench rr --size 4096 --seconds 5 --json
      a page each way, for longer, as one object per line
  pagewire bench rr --threads 8
      how fair the lock of a host is: the fewest and the most round trips of a thread
  pagewire bench rr --threads 1 --busy 2
      a thread that blocks, where two others take the processors";

/// Bytes of a batch whose wakeups are counted, and how many batches.
const BATCH: usize = 256 << 10;
const BATCHES: u64 = 2_000;

impl Options for RrOptions {
    fn plan(&self) -> Plan {
        Plan::of::<RrBench>(false, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let blocking = self.threads > 0;
        if !blocking && (self.think > 0 || self.bulk > 0 || self.busy > 0) {
            return Err(Failure::Usage("--think, --bulk and --busy need --threads".into()));
        }
        let (options, sides) = (self.clone(), Sides::choose());
        let mut bench = RrBench { options, sides, wakeups: 0.0 };
        let engines = [Engine::Pair, Engine::Kernel(Between::Loopback)];
        let lines = in_turns(&bench, engines, self.common.rounds, progress)?;
        bench.wakeups = wakeups_per_batch(&Source::new())?;
        let wait = if blocking { "; threads block" } else { "; both sides poll" };
        let heading = self.common.heading(self.time.seconds, wait);
        let mut columns =
            "engine link size rtt_us_p50 rtt_us_p99 min_rtt_us_p50 max_rtt_us_p50 wakeups_per_batch"
                .to_owned();
        if blocking {
            columns += " threads think_us bulk busy least_round_trips most_round_trips longest_us bulk_gbit_per_s";
        }
        Ok(Results::print(records(&bench, &lines), self.common.json, heading, &columns))
    }
}

struct RrBench {
    options: RrOptions,
    sides: Sides,
    wakeups: f64,
}

/// Times of round trips in one round, in nanoseconds.
struct RrSample {
    round: Round,
    p50: u32,
    p99: u32,
    longest: u32,
    /// Round trips of the slowest and of the fastest thread.
    least: usize,
    most: usize,
    /// Gigabits a second of all bulk flows together.
    bulk: f64,
}

type F = Field<RrBench>;

impl Measurement for RrBench {
    type Case = Engine;
    type Sample = RrSample;

    const NAME: &'static str = "rr";
    const TITLE: &'static str = "A message there and back";
    const ABOUT: &'static str = "Both sides poll, or threads block. Wake-ups are those of a blocked reader, for batches of 256 KiB.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("size", |of| some(of.bench.options.size)).group("{} bytes each way"),
        F::value("rtt_us_p50", |of| p50(of).map(|us| rounded(us.median, 3).into()))
            .lower("Round trip, median", "µs")
            .first(),
        F::spread("rtt_us_p99", 3, |of| of.spread(|s| f64::from(s.p99) / 1000.0))
            .lower("Round trip, 99th percentile", "µs")
            .first(),
        F::bounds("rtt_us_p50", 3, p50),
        F::value("wakeups_per_batch", |of| of.ours(rounded(of.bench.wakeups, 3)))
            .lower("Wake-ups of a blocked reader", "for each batch"),
        F::value("threads", |of| of.of_threads(of.bench.options.threads)).group("{} threads"),
        F::value("think_us", |of| of.of_threads(of.bench.options.think)).group("{} µs of thought"),
        F::value("bulk", |of| of.of_threads(of.bench.options.bulk)).group("{} bulk flows"),
        F::value("busy", |of| of.of_threads(of.bench.options.busy)).group("{} busy threads"),
        F::count("least_round_trips", |of| of.spread_of_threads(|s| s.least as f64))
            .higher("Round trips of the slowest thread", "in a round"),
        F::count("most_round_trips", |of| of.spread_of_threads(|s| s.most as f64))
            .higher("Round trips of the fastest thread", "in a round"),
        F::spread("longest_us", 1, |of| of.spread_of_threads(|s| f64::from(s.longest) / 1000.0))
            .lower("Longest round trip", "µs"),
        F::spread("bulk_gbit_per_s", 2, |of| {
            (of.bench.options.bulk > 0).then(|| of.spread_of_threads(|s| s.bulk)).flatten()
        })
        .higher("Bulk flows", "Gbit/s"),
    ];

    fn engine(&self, engine: &Engine) -> (String, &'static str) {
        engine.names()
    }

    fn round(&self, _: &Engine, sample: &RrSample) -> Round {
        sample.round
    }
}

fn p50(of: &ResultLine<'_, RrBench>) -> Option<Spread> {
    of.spread(|sample| f64::from(sample.p50) / 1000.0)
}

impl ResultLine<'_, RrBench> {
    /// A field that the kernel's line does not have.
    fn ours(&self, value: impl Into<Value>) -> Option<Value> {
        (*self.case == Engine::Pair).then(|| value.into())
    }

    /// A field of threads that block.
    fn of_threads(&self, value: u32) -> Option<Value> {
        (self.bench.options.threads > 0).then(|| value.into())
    }

    fn spread_of_threads(&self, of: impl Fn(&RrSample) -> f64) -> Option<Spread> {
        (self.bench.options.threads > 0).then(|| self.spread(of)).flatten()
    }
}

impl InTurns for RrBench {
    fn sample(&self, engine: &Engine, _: u16) -> Result<RrSample, Failure> {
        let (size, seconds) = (self.options.size as usize, self.options.time.seconds);
        let (sides, stats) = (self.sides, self.options.common.stats);
        let trips = match (engine, self.options.blocking()) {
            (Engine::Kernel(_), None) => Trips::of_one(kernel::ping_pong(size, seconds, sides)?),
            (Engine::Kernel(_), Some(plan)) => blocking::loopback(plan)?,
            (_, None) => Trips::of_one(pair(size, seconds, sides, stats)?),
            (_, Some(plan)) => blocking::pair(plan, stats)?,
        };
        let Trips { times, least, most, bulk } = trips;
        let time = times.iter().map(|&ns| Duration::from_nanos(ns.into())).sum();
        let bytes = 2 * (size * times.len()) as u64;
        let round = Round { bytes, time, receiver_cpu: Duration::ZERO };
        let (p50, p99) = (percentile(&times, 0.5), percentile(&times, 0.99));
        let longest = times.last().copied().unwrap_or(0);
        let bulk = bulk.0 as f64 * 8.0 / 1e9 / bulk.1.as_secs_f64().max(1e-9);
        Ok(RrSample { round, p50, p99, longest, least, most, bulk })
    }
}

impl RrOptions {
    /// The plan of threads that block.
    fn blocking(&self) -> Option<blocking::Plan> {
        (self.threads > 0).then(|| blocking::Plan {
            threads: self.threads,
            size: self.size as usize,
            seconds: self.time.seconds,
            think: Duration::from_micros(self.think.into()),
            bulk: self.bulk,
            busy: self.busy,
        })
    }
}

impl Trips {
    /// The round trips of one side that polls.
    fn of_one(times: Vec<u32>) -> Self {
        let count = times.len();
        Self { times, least: count, most: count, bulk: (0, Duration::ZERO) }
    }
}

/// Two hosts, each polled by its own thread.
fn pair(size: usize, seconds: f64, sides: Sides, stats: bool) -> Result<Vec<u32>, Failure> {
    let (left, right, _) = hosts_in_turns(None)?;
    let (mut client, mut server) = connect_in_turns(&left, &right)?;
    let done = AtomicBool::new(false);
    let samples = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(sides.right);
            let over = || done.load(Ordering::Relaxed);
            poll_pong(&mut server, size, over, || {
                right.turn();
            });
        });
        let pinging = scope.spawn(|| -> Result<Vec<u32>, Failure> {
            pin(sides.left);
            let samples = poll_ping(&mut client, size, seconds, || {
                left.turn();
            });
            done.store(true, Ordering::Relaxed);
            Ok(samples?)
        });
        joined(pinging)
    })?;
    if stats {
        eprint!("{}{}", left.stats(), right.stats());
    }
    Ok(samples)
}

/// How often a blocked reader is woken for data that its peer queued at once: batches are sent by
/// reference, each when the last was answered. The caller makes the source first, because filling
/// it may take longer than the reader's timeout.
fn wakeups_per_batch(source: &Source) -> Result<f64, Failure> {
    // Without spinning: a reader that finds nothing sleeps at once.
    let (left, right, _) = on_a_pair(None, |host| host.spin(Duration::ZERO))?;
    let what = "counting wakeups";
    let on = SocketAddr::from((RIGHT, 9001));
    let listener = right.listen(on).because(what)?;
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| -> Result<u64, Failure> {
            let mut stream = accept(&listener, nap).because(what)?;
            let set = stream.set_nodelay(true);
            set.and_then(|()| stream.set_read_timeout(Some(PATIENCE))).because(what)?;
            let mut frags = Vec::new();
            let before = right.stats().wakeups;
            for _ in 0..BATCHES {
                let mut have = 0;
                while have < BATCH {
                    match stream.recv_into(BATCH, &mut frags).because(what)? {
                        0 => return Err(Failure::Failed("the peer went away".into())),
                        n => have += n,
                    }
                    frags.clear();
                }
                stream.write_all(b"!").because(what)?;
            }
            Ok(right.stats().wakeups - before)
        });
        let mut stream = left.connect_timeout(on, PATIENCE).because(what)?;
        stream.set_read_timeout(Some(PATIENCE)).because(what)?;
        for piece in source.frags(BATCH).take(BATCHES as usize) {
            let mut answer = [0];
            let sent = stream.send(piece).and_then(|_| stream.read_exact(&mut answer));
            if let Err(e) = sent {
                // The reader's error says more, if it has one.
                joined(reading)?;
                return Err(Failure::because(what, e));
            }
        }
        let wakeups = joined(reading)?;
        Ok(wakeups as f64 / BATCHES as f64)
    })
}
