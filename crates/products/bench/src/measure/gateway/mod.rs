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
mod shows;
mod world;

use clap::{Args, ValueEnum};

use crate::args::{Common, Options, Plan, name, seconds};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::table::{Measured, Results, records};
use engines::{EngineGuest, GatewayEngine};
use load::{BulkDirection, Client, Ends, GatewaySample, SmallRates};
use shows::Shows;
use world::World;

/// The service of `pagewire gateway` to a guest, beside other gateways; needs root
///
/// Bytes in both directions, connections and requests a second, round trips and memory; the same for
/// clients of the machine at a published port. Beside it
/// run pasta, slirp4netns and gvproxy where they are installed, and the kernel's own forwarding.
/// The measurement runs in network namespaces of its own.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct GatewayOptions {
    /// Engines to measure; repeatable, or with commas between [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ENGINE")]
    engine: Vec<GatewayEngine>,

    /// Largest IP packet that guests send and receive, in bytes: 1280 to 65520; the first is that of
    /// connections, requests and round trips
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1500,65520",
        value_parser = clap::value_parser!(u32).range(1280..=65_520),
        value_name = "BYTES"
    )]
    mtu: Vec<u32>,

    /// Connections side by side that move bytes; repeatable, or with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8",
        value_parser = clap::value_parser!(u16).range(1..=64),
        value_name = "N"
    )]
    flows: Vec<u16>,

    /// Loads to measure; repeatable, or with commas between [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LOAD")]
    load: Vec<LoadKind>,

    /// Have connections of guests first show a name by this protocol, and measure `pagewire gateway` also where
    /// only that name permits them: engine named
    #[arg(long, value_enum, value_name = "PROTOCOL")]
    names: Option<Shows>,

    /// Seconds that a round of each case lasts
    #[arg(long, default_value_t = 1.0, value_parser = seconds, value_name = "S")]
    seconds: f64,

    /// Print our ratios to the other gateways, and which of them are as they should be
    #[arg(long, conflicts_with = "json")]
    check: bool,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench gateway --json
      every engine that is there, MTU 1500 and 65520, one and eight connections
  pagewire bench gateway --engine pagewire,pasta --mtu 1500 --flows 1 --check
      ours beside pasta's, and whether the ratios are what they should be
  pagewire bench gateway --engine pagewire,named --names tls --load out,in,small
      the cost of a look at the name that each connection shows";

/// A load, and the guest that it is measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GatewayCase {
    /// Index of the guest.
    guest: usize,
    engine: GatewayEngine,
    mtu: u32,
    load: Load,
    /// What connections of the guest begin with.
    shows: Option<Shows>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Bulk {
        client: Client,
        direction: BulkDirection,
        flows: usize,
    },
    /// Everything else, with the first MTU only.
    SmallRates(Client),
}

/// Loads by their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LoadKind {
    /// Bytes of the guest to the far side
    Out,
    /// Bytes of the far side to the guest
    In,
    /// Connections, requests and round trips of the guest
    Small,
    /// Bytes of the guest to clients of its published port
    PublishedOut,
    /// Bytes of clients to the guest's published port
    PublishedIn,
    /// Connections, requests and round trips of clients
    PublishedSmall,
}

impl LoadKind {
    fn client(self) -> Client {
        match self {
            Self::Out | Self::In | Self::Small => Client::Guest,
            Self::PublishedOut | Self::PublishedIn | Self::PublishedSmall => Client::Machine,
        }
    }

    /// The direction of bytes; `None`: everything else is measured.
    fn direction(self) -> Option<BulkDirection> {
        match self {
            Self::Out | Self::PublishedOut => Some(BulkDirection::Out),
            Self::In | Self::PublishedIn => Some(BulkDirection::In),
            Self::Small | Self::PublishedSmall => None,
        }
    }
}

impl Load {
    fn client(self) -> Client {
        match self {
            Self::Bulk { client, .. } | Self::SmallRates(client) => client,
        }
    }
}

/// Memory of an engine, in bytes, before it was used, and with idle connections.
#[derive(Clone, Copy, Debug)]
struct EngineMemory {
    engine: GatewayEngine,
    fresh: Option<u64>,
    idle: Option<u64>,
}

/// The results beside the rounds: memory of the engines.
struct GatewayBench {
    memory: Vec<EngineMemory>,
}

impl Options for GatewayOptions {
    fn plan(&self) -> Plan {
        Plan::of::<GatewayBench>(true, self.common.stats)
    }

    fn notes(&self) -> Vec<String> {
        let lacks = |engine: GatewayEngine| {
            let program = engine.lacks()?;
            Some(format!("{} is not measured: there is no {program} in PATH.", name(engine)))
        };
        GatewayEngine::value_variants().iter().copied().filter_map(lacks).collect()
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let world = World::new()?;
        progress.prepare("starting guests");
        let (guests, memory) = start(self, &world, progress)?;
        let mut lines = lines(self, &guests);
        let rounds = self.common.rounds;
        progress.begin((usize::from(rounds) + 1) * lines.len());
        for round in 0..=rounds {
            for (case, outcomes) in &mut lines {
                progress.round(round, rounds, &case.name());
                let Some(guest) = guests.get(case.guest) else { continue };
                match measure(&world, guest, case, self.seconds) {
                    Ok(_) if round == 0 => {}
                    Ok(outcome) => outcomes.push(outcome),
                    // The others go on: that an engine fails is a result, too.
                    Err(error) => progress.note(&format!("{}: {error:?}", case.name())),
                }
                progress.advance(1);
            }
        }
        progress.end();
        drop(guests);
        let checks = report::checks(&lines);
        lines.retain(|(_, outcomes)| !outcomes.is_empty());
        let results = report::print(records(&GatewayBench { memory }, &lines), self);
        if self.check {
            report::print_checks(&checks);
        }
        Ok(results)
    }
}

impl GatewayOptions {
    /// What connections of guests begin with: a ClientHello where only a name permits them.
    fn shows(&self) -> Option<Shows> {
        let named = self.engine.contains(&GatewayEngine::Named);
        self.names.or_else(|| named.then_some(Shows::Tls))
    }
}

impl GatewayCase {
    /// The case as text, for the line of progress.
    fn name(&self) -> String {
        let (engine, mtu) = (name(self.engine), self.mtu);
        let ports = match self.load.client() {
            Client::Guest => "",
            Client::Machine => ", published port",
        };
        match self.load {
            Load::Bulk { direction, flows, .. } => {
                format!("{engine}{ports}, MTU {mtu}, {}, {flows} connection(s)", name(direction))
            }
            Load::SmallRates(_) => {
                format!("{engine}{ports}, connections, requests and round trips")
            }
        }
    }
}

/// Starts a guest of each engine for each MTU; the memory of the engines as long as they are fresh.
fn start(
    options: &GatewayOptions,
    world: &World,
    progress: &Progress,
) -> Result<(Vec<EngineGuest>, Vec<EngineMemory>), Failure> {
    let all = GatewayEngine::value_variants().iter();
    let all = all.filter(|engine| options.names.is_some() || **engine != GatewayEngine::Named);
    let all: Vec<GatewayEngine> = all.copied().collect();
    let chosen = if options.engine.is_empty() { &all } else { &options.engine };
    let (mut guests, mut memory): (Vec<EngineGuest>, Vec<EngineMemory>) = (Vec::new(), Vec::new());
    for &engine in chosen {
        if let Some(program) = engine.lacks() {
            let name = name(engine);
            progress.note(&format!("{name} is not measured: there is no {program} in PATH"));
            continue;
        }
        let mut started = Vec::new();
        for &mtu in &options.mtu {
            let number = (guests.len() + started.len()) as u8;
            match EngineGuest::start(world, engine, mtu, number) {
                Ok(guest) => started.push(guest),
                Err(error) if engine.is_peer() => {
                    progress.note(&format!("{} is not measured: {error:?}", name(engine)));
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
            let ends = Ends::of(world, first, Client::Guest, options.shows());
            let idle = load::idle(&ends).unwrap_or_else(|error| {
                progress.note(&format!("{}, idle connections: {error:?}", name(engine)));
                None
            });
            memory.push(EngineMemory { engine, fresh, idle });
        }
        guests.extend(started);
    }
    Ok((guests, memory))
}

/// Engines of a case follow each other, so that they run under equal conditions.
fn lines(options: &GatewayOptions, guests: &[EngineGuest]) -> Vec<Measured<GatewayBench>> {
    let kinds = if options.load.is_empty() { LoadKind::value_variants() } else { &options.load };
    let mut loads: Vec<(u32, Load)> = Vec::new();
    for &mtu in &options.mtu {
        for kind in kinds {
            let Some(direction) = kind.direction() else { continue };
            let client = kind.client();
            let bulk = |flows: &u16| Load::Bulk { client, direction, flows: usize::from(*flows) };
            loads.extend(options.flows.iter().map(|flows| (mtu, bulk(flows))));
        }
    }
    let small = kinds.iter().filter(|kind| kind.direction().is_none());
    let first = options.mtu.first();
    loads.extend(small.flat_map(|kind| first.map(|mtu| (*mtu, Load::SmallRates(kind.client())))));
    let mut all = Vec::new();
    for (mtu, load) in loads {
        let may = |guest: &EngineGuest| {
            let measured = match load.client() {
                Client::Guest => guest.engine.goes_out(),
                Client::Machine => guest.engine.publishes(),
            };
            guest.mtu == mtu && measured
        };
        for (at, guest) in guests.iter().enumerate().filter(|(_, guest)| may(guest)) {
            let shows = options.shows().filter(|_| load.client() == Client::Guest);
            let case = GatewayCase { guest: at, engine: guest.engine, mtu, load, shows };
            all.push((case, Vec::new()));
        }
    }
    all
}

fn measure(
    world: &World,
    guest: &EngineGuest,
    case: &GatewayCase,
    seconds: f64,
) -> Result<GatewaySample, Failure> {
    guest.ask_for_name()?;
    let ends = Ends::of(world, guest, case.load.client(), case.shows);
    match case.load {
        Load::Bulk { client, direction, flows } => {
            load::bulk(&ends, client, direction, flows, seconds)
        }
        Load::SmallRates(client) => {
            let udp = client == Client::Guest;
            let small = SmallRates {
                connections_per_s: load::connections(&ends, seconds)?,
                requests_per_s: load::requests(&ends, seconds)?,
                rtt_us: load::round_trip(&ends, seconds)?,
                udp_rtt_us: udp.then(|| load::udp_round_trip(world, guest, seconds)).transpose()?,
            };
            Ok(GatewaySample { small: Some(small), ..GatewaySample::default() })
        }
    }
}
