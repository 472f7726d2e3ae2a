//! `bench sim`: how fast a simulation of programs runs, beside turmoil.
//!
//! Both run the same programs. Fair to compare are simulated seconds in a second, and messages of
//! applications in a second: with turmoil a message is one event, here it is packets and
//! acknowledgements of a real TCP. Each round has a process of its own, so that its memory is seen.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::args::{Options, Plan, name, seconds};
use crate::failure::{Because, Failure, say};
use crate::kit::machine::{Machine, number_in};
use crate::kit::meter::Spread;
use crate::numbers::rounded;
use crate::progress::Progress;
use crate::table::{Field, Measured, Measurement, Record, ResultLine, Results, records, some};

use scenarios::Figures;

mod scenarios;

/// How fast simulated programs run, beside turmoil
///
/// Hosts with a program, a clock and a TCP/IP stack each, in one thread: simulated seconds and
/// messages in a second of real time, and memory.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SimOptions {
    /// Work of the programs
    #[arg(long, value_enum, default_value_t = Scenario::Echo, value_name = "WHAT")]
    scenario: Scenario,

    /// Hosts; one in eleven is a server
    #[arg(long, default_value_t = 110, value_parser = clap::value_parser!(u32).range(2..=100_000), value_name = "N")]
    hosts: u32,

    /// Connections of all clients together
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    connections: u32,

    /// Simulated seconds that a round lasts; `bulk` ends with its transfers
    #[arg(long, default_value_t = 10.0, value_parser = seconds, value_name = "S")]
    seconds: f64,

    /// Milliseconds that a packet takes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "MS")]
    latency: u32,

    /// Only this simulator
    #[arg(long, value_enum, value_name = "NAME")]
    engine: Option<Simulator>,

    /// Rounds of each simulator, in turns, each in a process of its own; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100), value_name = "N")]
    rounds: u16,

    /// The seed of everything random
    #[arg(long, default_value_t = 7, value_name = "N")]
    seed: u64,

    /// One JSON object per line instead of a table
    #[arg(long)]
    json: bool,

    /// Measure here, one round, and print its figures: what each round's process does
    #[arg(long, hide = true, requires = "engine")]
    here: bool,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench sim
      100 connections, 1 KB there and back, beside turmoil
  pagewire bench sim --scenario idle --hosts 1000 --engine pagewire
      a thousand hosts that only wait for timers
  pagewire bench sim --hosts 1000 --connections 10000 --seconds 1 --rounds 1 --json";

/// The work of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// 1 KB there and back on each connection, again and again
    Echo,
    /// A megabyte on each connection
    Bulk,
    /// Nothing but a timer every 100 ms on each host
    Idle,
}

/// A simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Simulator {
    /// pagewire-simulation
    Pagewire,
    /// turmoil
    #[cfg(feature = "turmoil")]
    Turmoil,
}

/// A round that takes longer is given up: turmoil visits every pair of hosts in every millisecond.
const PATIENCE: Duration = Duration::from_secs(60);

impl Options for SimOptions {
    fn plan(&self) -> Plan {
        Plan::of::<SimBench>(false, self.here)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        if let (true, Some(engine)) = (self.here, self.engine) {
            here(engine, self)?;
            return Ok(Results::default());
        }
        let engines = match &self.engine {
            Some(engine) => std::slice::from_ref(engine),
            None => Simulator::value_variants(),
        };
        let mut lines: Vec<Measured<SimBench>> =
            engines.iter().map(|engine| (*engine, Vec::new())).collect();
        progress.begin(usize::from(self.rounds) * engines.len());
        for number in 1..=self.rounds {
            for (engine, rounds) in &mut lines {
                // An engine that was given up once would be given up again.
                progress.round(number, self.rounds, &name(*engine));
                if rounds.last().is_none_or(Option::is_some) {
                    rounds.push(round(*engine, self)?);
                }
                progress.advance(1);
            }
        }
        progress.end();
        let heading = format!("{}; {} rounds, medians", Machine::describe(), self.rounds);
        let columns = "engine scenario hosts connections simulated_s_per_s messages_per_s \
            events_per_s rss_bytes wall_s result";
        let records = records(&SimBench(self.clone()), &lines);
        Ok(Results::print(records, self.json, heading, columns))
    }
}

struct SimBench(SimOptions);

type F = Field<SimBench>;

impl Measurement for SimBench {
    type Case = Simulator;
    /// The figures of [`here`]; nothing: the round was given up.
    type Sample = Option<Value>;

    const NAME: &'static str = "sim";
    const TITLE: &'static str = "Simulated programs";
    const ABOUT: &'static str = "\
        The same programs on both simulators. With turmoil a message is one event; here it \
        is packets and acknowledgements of a real TCP.";
    const HEAD: bool = false;
    const FIELDS: &'static [Field<Self>] = &[
        F::value("scenario", |of| some(name(of.bench.0.scenario))).group("{}"),
        F::value("hosts", |of| some(of.bench.0.hosts)).group("{} hosts"),
        F::value("connections", |of| some(of.bench.0.connections)).group("{} connections"),
        F::value("latency_ms", |of| some(of.bench.0.latency)),
        F::value("seed", |of| some(of.bench.0.seed)),
        F::value("rounds", |of| some(of.samples.len())),
        F::value("bytes", |of| some(of.middle(|r| number(r, "messages")) as u64 * 1024)),
        F::value("seconds", |of| some(rounded(of.middle(wall), 6))),
        F::value("gbit_per_s", |of| {
            some(rounded(of.middle(|r| per_second(r, "messages") * 8192.0 / 1e9), 3))
        }),
        F::spread("wall_s", 6, |of| of.figures(wall)).lower("Time of a round", "s"),
        F::value("simulated_s", |of| some(rounded(of.middle(|r| number(r, "simulated_s")), 6))),
        F::spread("simulated_s_per_s", 3, |of| of.figures(|r| per_second(r, "simulated_s")))
            .higher("Simulated time", "s in a second")
            .first(),
        F::spread("messages_per_s", 0, |of| of.figures(|r| per_second(r, "messages")))
            .higher("Messages", "a second")
            .first(),
        F::value("events", |of| some(of.middle(|r| number(r, "events")) as u64))
            .plain("Events of a round", "events"),
        F::spread("events_per_s", 0, |of| of.figures(|r| per_second(r, "events")))
            .higher("Events", "a second")
            .first(),
        F::count("rss_bytes", |of| of.figures(|r| number(r, "rss_bytes")))
            .lower("Memory of the process", "bytes")
            .first(),
        F::value("digest", |of| some(of.done().0.and_then(|r| r.get("digest")).cloned())),
        F::value("result", |of| {
            some(if of.samples.iter().any(Option::is_none) { "timeout" } else { "done" })
        }),
    ];

    fn engine(&self, simulator: &Simulator) -> (String, &'static str) {
        (name(*simulator), "simulated")
    }
}

fn number(round: &Value, name: &str) -> f64 {
    round.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

fn wall(round: &Value) -> f64 {
    number(round, "wall_s")
}

fn per_second(round: &Value, name: &str) -> f64 {
    number(round, name) / wall(round).max(1e-9)
}

impl ResultLine<'_, SimBench> {
    /// The median round, and all of them; none where one was given up.
    fn done(&self) -> (Option<&Value>, Vec<&Value>) {
        let all: Option<Vec<&Value>> = self.samples.iter().map(Option::as_ref).collect();
        let all = all.unwrap_or_default();
        (Spread::by(all.iter().copied(), |round| wall(round)).map(|all| all.median), all)
    }

    /// A figure of the median round.
    fn middle(&self, figure: impl Fn(&Value) -> f64) -> f64 {
        self.done().0.map_or(0.0, figure)
    }

    /// The same, with the spread of all rounds.
    fn figures(&self, figure: impl Fn(&Value) -> f64) -> Option<Spread> {
        let all = Spread::of(self.done().1.into_iter().map(&figure));
        Some(Spread { median: self.middle(figure), ..all })
    }
}

/// Measures in this process, and prints the figures for the one that asked.
fn here(engine: Simulator, options: &SimOptions) -> Result<(), Failure> {
    let figures = match engine {
        Simulator::Pagewire => scenarios::pagewire(options)?,
        #[cfg(feature = "turmoil")]
        Simulator::Turmoil => scenarios::turmoil(options)?,
    };
    let Figures { wall, simulated, messages, events, digest } = figures;
    let record = Record::default()
        .with("wall_s", wall.as_secs_f64())
        .with("simulated_s", simulated.as_secs_f64())
        .with("messages", messages)
        .with("events", events)
        .with("rss_bytes", most_memory()?)
        .with("digest", digest.map_or(Value::Null, |digest| digest.to_string().into()));
    say(serde_json::to_string(&record.line)?);
    Ok(())
}

/// Runs a round in a process of its own; `None`: it was given up.
fn round(engine: Simulator, options: &SimOptions) -> Result<Option<Value>, Failure> {
    let program = std::env::current_exe().because("our program's file")?;
    let mut child = Command::new(program)
        .args(["bench", "sim", "--here"])
        .args(["--engine", &name(engine)])
        .args(["--scenario", &name(options.scenario)])
        .args(["--hosts", &options.hosts.to_string()])
        .args(["--connections", &options.connections.to_string()])
        .args(["--seconds", &options.seconds.to_string()])
        .args(["--latency", &options.latency.to_string()])
        .args(["--seed", &options.seed.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .because("a process for the round")?;
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut text = String::new();
    if let Some(out) = &mut child.stdout {
        out.read_to_string(&mut text)?;
    }
    if !status.success() {
        return Err(Failure::because(format!("the round with {}", name(engine)), status));
    }
    serde_json::from_str(&text).map(Some).because("the round's figures")
}

/// The most memory that this process ever had, in bytes.
fn most_memory() -> Result<u64, Failure> {
    let file = "/proc/self/status";
    let kib = number_in(file, "VmHWM:");
    Ok(kib.ok_or_else(|| Failure::because(file, "not understood"))? * 1024)
}
