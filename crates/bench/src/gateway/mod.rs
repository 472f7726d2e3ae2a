//! `bench gateway`: what a guest gets through `pagewire gateway`, beside other gateways and the
//! kernel's own forwarding.
//!
//! Every engine runs all the time, each with guests of its own (`world.rs`, `engines.rs`), and is
//! measured once in each round (`load.rs`): bytes in both directions over one connection and over
//! several, for each MTU; then connections and requests a second, round trips, and memory.
//! `report.rs` makes lines and ratios of it.

mod engines;
mod load;
mod report;
mod world;

use crate::failure::Failure;
use crate::kernel::check_privilege;
use crate::machine::Machine;
use crate::options::{Engine, GatewayOptions};
use crate::progress::Progress;
use crate::report::Results;
use engines::Guest;
use load::{Bulk, Way};
use world::World;

/// What is measured with one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Bulk {
        way: Way,
        flows: usize,
    },
    /// Everything else, with the first MTU only.
    Small,
}

/// A case of a guest, with the results of the rounds that count.
struct Line {
    /// Which of the guests.
    guest: usize,
    engine: Engine,
    mtu: u32,
    case: Case,
    bulk: Vec<Bulk>,
    small: Vec<Small>,
}

/// What a round gave besides bytes.
#[derive(Clone, Copy, Debug)]
struct Small {
    connections_per_s: f64,
    requests_per_s: f64,
    rtt_us: f64,
    udp_rtt_us: f64,
}

/// Memory of an engine, in bytes, before it was used, and with idle connections.
#[derive(Clone, Copy, Debug)]
struct Memory {
    engine: Engine,
    fresh: Option<u64>,
    idle: Option<u64>,
}

enum Outcome {
    Bulk(Bulk),
    Small(Small),
}

pub(crate) fn run(options: &GatewayOptions, progress: &Progress) -> Result<Results, Failure> {
    check_privilege()?;
    let world = World::new()?;
    progress.prepare("starting guests");
    let (guests, memory) = start(options, &world, progress)?;
    let mut lines = lines(options, &guests);
    let rounds = options.common.rounds;
    progress.begin((usize::from(rounds) + 1) * lines.len());
    for round in 0..=rounds {
        for line in &mut lines {
            progress.round(round, rounds, &line.name());
            let Some(guest) = guests.get(line.guest) else { continue };
            match measure(&world, guest, line.case, options.seconds) {
                Ok(_) if round == 0 => {}
                Ok(Outcome::Bulk(bulk)) => line.bulk.push(bulk),
                Ok(Outcome::Small(small)) => line.small.push(small),
                // The others go on: that an engine fails is a result, too.
                Err(error) => progress.note(&format!("{}: {error:?}", line.name())),
            }
            progress.step();
        }
    }
    progress.end();
    drop(guests);
    let machine = Machine::describe();
    let records = report::records(&lines, &memory, &machine);
    let results = report::print(records, options, &machine);
    let checks = report::checks(&lines);
    if options.check {
        report::print_checks(&checks);
    }
    Ok(results)
}

impl Line {
    /// What is measured, for the line of progress.
    fn name(&self) -> String {
        let (engine, mtu) = (self.engine.name(), self.mtu);
        match self.case {
            Case::Bulk { way, flows } => {
                format!("{engine}, MTU {mtu}, {}, {flows} connection(s)", way.name())
            }
            Case::Small => format!("{engine}, connections, requests and round trips"),
        }
    }
}

/// Starts a guest of each engine for each MTU; the memory of the engines as long as they are fresh.
fn start(
    options: &GatewayOptions,
    world: &World,
    progress: &Progress,
) -> Result<(Vec<Guest>, Vec<Memory>), Failure> {
    let chosen = if options.engine.is_empty() { &Engine::ALL[..] } else { &options.engine };
    let (mut guests, mut memory): (Vec<Guest>, Vec<Memory>) = (Vec::new(), Vec::new());
    for &engine in chosen {
        if let Some(program) = engine.lacks() {
            let name = engine.name();
            progress.note(&format!("{name} is not measured: there is no {program} in PATH"));
            continue;
        }
        let mut started = Vec::new();
        for &mtu in &options.mtu {
            let number = (guests.len() + started.len()) as u8;
            match Guest::start(world, engine, mtu, number) {
                Ok(guest) => started.push(guest),
                Err(error) if engine.is_peer() => {
                    progress.note(&format!("{} is not measured: {error:?}", engine.name()));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if started.len() < options.mtu.len() {
            continue;
        }
        if let Some(first) = started.first() {
            let fresh = first.rss();
            let idle = load::idle(world, first).unwrap_or_else(|error| {
                progress.note(&format!("{}, idle connections: {error:?}", engine.name()));
                None
            });
            memory.push(Memory { engine, fresh, idle });
        }
        guests.extend(started);
    }
    Ok((guests, memory))
}

/// Engines of a case follow each other, so that they run under equal conditions.
fn lines(options: &GatewayOptions, guests: &[Guest]) -> Vec<Line> {
    let mut cases: Vec<Option<(u32, Case)>> = Vec::new();
    for &mtu in &options.mtu {
        for way in [Way::Out, Way::In] {
            for &flows in &options.flows {
                cases.push(Some((mtu, Case::Bulk { way, flows: flows.into() })));
            }
        }
    }
    cases.push(options.mtu.first().map(|mtu| (*mtu, Case::Small)));
    let mut all = Vec::new();
    for (mtu, case) in cases.into_iter().flatten() {
        for (at, guest) in guests.iter().enumerate().filter(|(_, guest)| guest.mtu == mtu) {
            let (bulk, small) = (Vec::new(), Vec::new());
            all.push(Line { guest: at, engine: guest.engine, mtu, case, bulk, small });
        }
    }
    all
}

fn measure(world: &World, guest: &Guest, case: Case, seconds: f64) -> Result<Outcome, Failure> {
    Ok(match case {
        Case::Bulk { way, flows } => Outcome::Bulk(load::bulk(world, guest, way, flows, seconds)?),
        Case::Small => Outcome::Small(Small {
            connections_per_s: load::connections(world, guest, seconds)?,
            requests_per_s: load::requests(world, guest, seconds)?,
            rtt_us: load::round_trip(world, guest, seconds)?,
            udp_rtt_us: load::udp_round_trip(world, guest, seconds)?,
        }),
    })
}
