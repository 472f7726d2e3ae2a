//! `bench sim`: how fast a simulation of programs runs, beside turmoil.
//!
//! Both run the same programs. Fair to compare are simulated seconds in a second, and messages of
//! applications in a second: with turmoil a message is one event, here it is packets and
//! acknowledgements of a real TCP. Each round has a process of its own, so that its memory is seen.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::failure::{Because, Failure, say};
use crate::machine::Machine;
use crate::meter::Spread;
use crate::options::{SimOptions, Simulator};
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};

use scenarios::Figures;

mod scenarios;

/// A round that takes longer is given up: turmoil visits every pair of hosts in every millisecond.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(options: &SimOptions, progress: &Progress) -> Result<Results, Failure> {
    if let (true, Some(engine)) = (options.here, options.engine) {
        here(engine, options)?;
        return Ok(Results::none());
    }
    let engines = match &options.engine {
        Some(engine) => std::slice::from_ref(engine),
        None => Simulator::all(),
    };
    let mut rounds = vec![Vec::new(); engines.len()];
    progress.begin(usize::from(options.rounds) * engines.len());
    for number in 1..=options.rounds {
        for (engine, rounds) in engines.iter().zip(&mut rounds) {
            // One that was given up will be again.
            progress.round(number, options.rounds, &engine.to_string());
            if rounds.last().is_none_or(Option::is_some) {
                rounds.push(round(*engine, options)?);
            }
            progress.step();
        }
    }
    progress.end();
    let machine = Machine::describe();
    let all = engines.iter().zip(rounds);
    let records: Vec<Record> =
        all.map(|(engine, rounds)| record(*engine, options, rounds, &machine)).collect();
    let heading = format!("{machine}; {} rounds, medians", options.rounds);
    let columns = "engine scenario hosts connections simulated_s_per_s messages_per_s \
                   events_per_s rss_bytes wall_s result";
    Ok(print(records, options.json, heading, columns))
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
    say(serde_json::to_string(&record)?);
    Ok(())
}

/// One round in a process of its own; `None`: it was given up.
fn round(engine: Simulator, options: &SimOptions) -> Result<Option<Value>, Failure> {
    let program = std::env::current_exe().because("our program's file")?;
    let mut child = Command::new(program)
        .args(["bench", "sim", "--here"])
        .args(["--engine", &engine.to_string()])
        .args(["--scenario", &options.scenario.to_string()])
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
        return Err(Failure::because(format!("the round with {engine}"), status));
    }
    serde_json::from_str(&text).map(Some).because("the round's figures")
}

fn record(
    engine: Simulator,
    options: &SimOptions,
    rounds: Vec<Option<Value>>,
    machine: &Machine,
) -> Record {
    let count = rounds.len();
    let mut done: Vec<Value> = rounds.into_iter().flatten().collect();
    let number = |round: &Value, name: &str| round.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    done.sort_by(|a, b| number(a, "wall_s").total_cmp(&number(b, "wall_s")));
    let gave_up = done.len() < count;
    let median = done.get(done.len() / 2).filter(|_| !gave_up);
    let of = |name: &str| median.map_or(0.0, |round| number(round, name));
    let wall = of("wall_s").max(f64::MIN_POSITIVE);
    // Of the median round; the spread is that of all.
    let spread = |median: f64, value: &dyn Fn(&Value) -> f64| {
        let all = Spread::of(done.iter().filter(|_| !gave_up).map(value));
        Spread { median, ..all }
    };
    let rate = |name: &str| {
        let per_second = if median.is_some() { of(name) / wall } else { 0.0 };
        let each = |round: &Value| number(round, name) / number(round, "wall_s").max(1e-9);
        spread(per_second, &each)
    };
    let plain = |name: &str| spread(of(name), &|round| number(round, name));
    let digest = median.and_then(|round| round.get("digest")).cloned().unwrap_or(Value::Null);
    Record::default()
        .with("bench", "sim")
        .with("engine", engine.to_string())
        .with("link", "simulated")
        .with("scenario", options.scenario.to_string())
        .with("hosts", options.hosts)
        .with("connections", options.connections)
        .with("latency_ms", options.latency)
        .with("seed", options.seed)
        .with("rounds", count)
        .with("bytes", of("messages") as u64 * 1024)
        .with("seconds", rounded(of("wall_s"), 6))
        .with("gbit_per_s", rounded(of("messages") * 8192.0 / wall / 1e9, 3))
        .with_spread("wall_s", plain("wall_s"), 6)
        .with("simulated_s", rounded(of("simulated_s"), 6))
        .with_spread("simulated_s_per_s", rate("simulated_s"), 3)
        .with_spread("messages_per_s", rate("messages"), 0)
        .with("events", of("events") as u64)
        .with_spread("events_per_s", rate("events"), 0)
        .with_counts("rss_bytes", plain("rss_bytes"))
        .with("digest", digest)
        .with("result", if gave_up { "timeout" } else { "done" })
        .on(machine)
}

/// The most memory that this process ever had, in bytes.
fn most_memory() -> Result<u64, Failure> {
    let file = "/proc/self/status";
    let text = std::fs::read_to_string(file).because(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| Failure::because(file, "not understood"))? * 1024)
}
