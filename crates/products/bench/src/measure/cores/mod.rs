//! `bench cores`: one host on one core and on several: what a second core gives, and what a packet costs that comes
//! in at the wrong one.
//!
//! ```text
//!   thread on core 0:  client 0 -- pair 0 --> queue 0 of shard 0 -- server
//!   thread on core 1:  client 1 -- pair 1 --> queue 1 of shard 1 -- server
//! ```
//!
//! Each core's thread drives a shard of the server and a client of its own in turns, and never sleeps. So a core does
//! the same work whether it is alone or not. Connections have their homes at the core of their client. Beside the
//! shards of one host (`pagewire`) are plain hosts that know nothing of each other (`plain`), one for each core: what
//! the machine gives. Beside the shards that pass strays on are the same shards with a link that draws the same frames
//! and keeps them (`drawn`), and with queues that pass them on (`relay`): the bench's own way from core to core, twice,
//! and nothing else. The kernel's sockets over loopback, and a host whose clients are such sockets on the other side of
//! a tap, are checks of the bench.

mod flood;
mod kernel;
mod link;
mod load;
mod run;
mod stations;
mod tap;
mod world;

use std::time::Duration;

use clap::{Args, ValueEnum};
use pagewire::Cores;

use self::flood::FloodKind;
use self::load::SIZE;
use self::run::{CoreRound, RoundPlan, run};
use crate::args::{Common, Options, Plan, Time, name};
use crate::failure::{Failure, say};
use crate::kit::machine::{SPREAD, processors};
use crate::kit::meter::{Round, Spread};
use crate::kit::namespace::check_tap;
use crate::kit::source::Source;
use crate::progress::Progress;
use crate::table::{
    Field, InTurns, Measured, Measurement, ResultLine, Results, in_turns_both_ways, records, some,
};

/// A host on one core, and on several
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct CoresOptions {
    /// Cores of the larger host, 2 to 32; `all`: those that are available
    #[arg(long, default_value = "2", value_parser = number, value_name = "N|all")]
    cores: u8,

    /// What the cores do; several with commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "requests,connections,bulk",
        value_name = "WORK"
    )]
    what: Vec<CoresWork>,

    /// Share of the clients' frames that come in at the next core, in per cent; several with commas
    #[arg(long, value_delimiter = ',', default_value = "0,1,10,50", value_parser = clap::value_parser!(u8).range(0..=100), value_name = "PERCENT")]
    strays: Vec<u8>,

    /// Connections of each core, for requests and connections
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024), value_name = "N")]
    connections: u16,

    /// Floods of the first core, for requests; several with commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "datagrams,syns,segments,fragments",
        value_name = "FLOOD"
    )]
    floods: Vec<FloodKind>,

    #[command(flatten)]
    time: Time,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench cores
      requests, connections and bulk data on one core and on two
  pagewire bench cores --what requests --strays 0,50 --seconds 3 --rounds 9
      what a request costs more if every second packet comes in at the wrong core";

/// What the cores do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CoresWork {
    /// 64 bytes there and back, over connections that stay
    Requests,
    /// Connect, one such request, close
    Connections,
    /// Bulk data by reference, in super-frames
    Bulk,
}

/// The server of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerKind {
    /// A plain host on each core.
    Plain,
    /// A host of several cores, and queues that pass strays on in place of the shards.
    Relay,
    /// A host of several cores, and a link that draws the strays and then keeps them.
    Drawn,
    /// A host of several cores, and a link that draws the strays, and brings them late to their own core.
    Late,
    /// A host of several cores.
    Cores,
    /// A host of several cores on a tap, whose clients are the kernel's sockets.
    Tap,
    /// Sockets of the kernel, over loopback.
    Kernel,
}

impl ServerKind {
    /// Whether the server is one host, with a shard on each core.
    fn has_shards(self) -> bool {
        matches!(self, Self::Relay | Self::Drawn | Self::Late | Self::Cores)
    }
}

/// A line of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CoresCase {
    server: ServerKind,
    cores: usize,
    work: CoresWork,
    strays_percent: u8,
    /// The flood of the first core.
    flood: Option<FloodKind>,
}

impl Options for CoresOptions {
    fn plan(&self) -> Plan {
        Plan::of::<CoresBench>(false, self.common.stats)
    }

    fn notes(&self) -> Vec<String> {
        let why = self.has_tap_cases().then(tap_refused).flatten();
        why.map(|why| format!("The host on a tap is not measured: {why}.")).into_iter().collect()
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let (processors, wanted) = (processors(), usize::from(self.cores));
        if processors.len() < wanted {
            let have = processors.len();
            let text =
                format!("{wanted} cores need as many processors, and this process has {have}");
            return Err(Failure::Failed(text));
        }
        // One for each core: all frames count references to their source.
        let sources = (0..wanted).map(|_| Source::new()).collect();
        let bench = CoresBench { options: self.clone(), processors, sources };
        let cases = self.what.iter().flat_map(|work| self.cases(*work));
        let mut cases: Vec<CoresCase> = cases.collect();
        if let Some(why) = self.has_tap_cases().then(tap_refused).flatten() {
            eprintln!("SKIPPED: the host on a tap: {why}");
            cases.retain(|case| case.server != ServerKind::Tap);
        }
        let lines = in_turns_both_ways(&bench, cases, self.common.rounds, progress)?;
        let heading = self.common.heading(self.time.seconds, SPREAD);
        let columns = "engine link cores what strays_percent flood rate min_rate max_rate cpu_us \
            server_cpu_us times_one_core strays_each stray_ns times_quiet";
        let records = records(&bench, &lines);
        let results = Results::print(records, self.common.json, heading, columns);
        if !self.common.json {
            self.what.iter().for_each(|work| say(bench.summary(*work, &lines)));
        }
        Ok(results)
    }
}

/// A number of cores of the larger host; `all`: as many as this process may use.
fn number(text: &str) -> Result<u8, String> {
    const MOST: u8 = Cores::MAX as u8;
    let count = match text {
        "all" => Some(u8::try_from(processors().len()).unwrap_or(MOST).min(MOST)),
        _ => text.parse().ok().filter(|count| *count <= MOST),
    };
    let count = count.filter(|count| *count >= 2);
    count.ok_or_else(|| match text {
        "all" => "this process has one processor, and the larger host has 2 cores".to_owned(),
        _ => format!("give a number from 2 to {MOST}, or all"),
    })
}

/// Why this process may not measure over a tap, if so.
fn tap_refused() -> Option<String> {
    check_tap().err().map(|error| error.to_string())
}

impl CoresOptions {
    fn has_tap_cases(&self) -> bool {
        self.what.iter().any(|work| *work != CoresWork::Bulk)
    }

    /// The cases of a kind of work.
    fn cases(&self, work: CoresWork) -> impl Iterator<Item = CoresCase> {
        let case = move |server, cores: u8, strays_percent| CoresCase {
            server,
            cores: cores.into(),
            work,
            strays_percent,
            flood: None,
        };
        let (several, strays) = (self.cores, self.strays.clone());
        let floods = if work == CoresWork::Requests { &self.floods[..] } else { &[] };
        let floods = floods.iter().filter(|flood| **flood != FloodKind::None);
        let flooded = floods.map(move |flood| CoresCase {
            flood: Some(*flood),
            ..case(ServerKind::Cores, several, 0)
        });
        let plain = [1, several].map(|cores| case(ServerKind::Plain, cores, 0));
        // Bulk by reference has no like with the kernel's sockets.
        let sockets = [1, several].into_iter().filter(move |_| work != CoresWork::Bulk);
        let kernel = sockets.clone().map(move |cores| case(ServerKind::Kernel, cores, 0));
        let tap = sockets.map(move |cores| case(ServerKind::Tap, cores, 0));
        // What the others are compared with.
        let without = [1, several].map(|cores| case(ServerKind::Cores, cores, 0));
        let strays = strays.into_iter().filter(|percent| *percent > 0);
        let with = strays.flat_map(move |percent| {
            let servers =
                [ServerKind::Drawn, ServerKind::Late, ServerKind::Relay, ServerKind::Cores];
            servers.map(|server| case(server, several, percent))
        });
        kernel.chain(plain).chain(without).chain(tap).chain(with).chain(flooded)
    }
}

struct CoresBench {
    options: CoresOptions,
    processors: Vec<usize>,
    sources: Vec<Source>,
}

/// What all cores did in a round.
type CoresSample = Vec<CoreRound>;

type F = Field<CoresBench>;

impl Measurement for CoresBench {
    type Case = CoresCase;
    type Sample = CoresSample;

    const NAME: &'static str = "cores";
    const TITLE: &'static str = "A host on one core and on several";
    const ABOUT: &'static str = "\
        A thread on each core drives a shard and its client. Plain hosts know nothing of each other. \
        Strays come in at the wrong core. Over a tap, the clients are the kernel's sockets.";
    const RATE: bool = false;
    const FIELDS: &'static [Field<Self>] = &[
        F::value("what", |of| some(name(of.case.work))).split("{}"),
        F::value("cores", |of| some(of.case.cores)).group("{} core(s)"),
        F::value("strays_percent", |of| some(of.case.strays_percent)).part("{} % strays"),
        F::value("flood", |of| of.case.flood.and_then(|kind| some(name(kind)))).part("flood of {}"),
        F::bounded("rate", 0, |of| of.spread(|sample| rate(of.case.measured(sample))))
            .higher("Requests, connections or bytes", "a second")
            .first(),
        F::spread("cpu_us", 3, |of| of.spread(|sample| of.case.each_us(sample, |c| c.cpu)))
            .lower("CPU time of both sides", "µs for each, or for each MiB")
            .first(),
        F::spread("server_cpu_us", 3, |of| {
            of.spread(|sample| of.case.each_us(sample, |c| c.server_cpu))
        })
        .lower("CPU time of the server", "µs for each, or for each MiB"),
        F::spread("times_one_core", 3, |of| {
            of.case.flood.is_none().then_some(())?;
            let server = match of.case.server {
                server if server.has_shards() => ServerKind::Cores,
                server => server,
            };
            let one = CoresCase { server, cores: 1, strays_percent: 0, ..*of.case };
            pairwise(of.samples, samples_of(of.all, one)?, |all, one| rate(all) / rate(one))
        })
        .higher("Rate, of that of one core", "times"),
        F::spread("strays_each", 3, |of| {
            of.case.flood.is_none().then_some(())?;
            of.spread(|sample| sum(sample, |core| core.strays as f64) / of.case.work.units(sample))
        })
        .plain("Packets passed on", "for each, or for each MiB"),
        F::spread("stray_ns", 1, |of| of.stray_ns()).lower("CPU time of a stray", "ns"),
        F::spread("times_quiet", 3, |of| {
            let quiet = CoresCase { flood: of.case.flood.map(|_| None)?, ..*of.case };
            pairwise(of.samples, samples_of(of.all, quiet)?, |flooded, quiet| {
                rate(of.case.measured(flooded)) / rate(of.case.measured(quiet))
            })
        })
        .higher("Rate of the cores beside one that is flooded, of that without a flood", "times"),
        F::value("connections", |of| {
            (of.case.work != CoresWork::Bulk).then(|| of.bench.options.connections.into())
        }),
    ];

    fn engine(&self, case: &CoresCase) -> (String, &'static str) {
        let engine = match case.server {
            ServerKind::Kernel => return ("kernel".to_owned(), "loopback"),
            ServerKind::Tap => return ("pagewire".to_owned(), "tap"),
            ServerKind::Plain => "plain",
            ServerKind::Relay => "relay",
            ServerKind::Drawn => "drawn",
            ServerKind::Late => "late",
            ServerKind::Cores => "pagewire",
        };
        (engine.to_owned(), "pair")
    }

    fn round(&self, case: &CoresCase, sample: &CoresSample) -> Round {
        let done: u64 = sample.iter().map(|core| core.done).sum();
        let bytes = if case.work == CoresWork::Bulk { done } else { done * 2 * SIZE as u64 };
        let time = sample.iter().map(|core| core.time).max().unwrap_or_default();
        Round { bytes, time, receiver_cpu: sample.iter().map(|core| core.server_cpu).sum() }
    }
}

impl InTurns for CoresBench {
    fn sample(&self, case: &CoresCase, _: u16) -> Result<CoresSample, Failure> {
        let plan = RoundPlan {
            processors: &self.processors,
            sources: &self.sources,
            connections: self.options.connections.into(),
            seconds: self.options.time.seconds,
            stats: self.options.common.stats,
        };
        run(case, &plan)
    }
}

fn sum(sample: &[CoreRound], of: impl Fn(&CoreRound) -> f64) -> f64 {
    sample.iter().map(of).sum()
}

/// What all cores do in a second.
fn rate(sample: &[CoreRound]) -> f64 {
    sum(sample, |core| core.done as f64 / core.time.as_secs_f64().max(1e-9))
}

impl CoresCase {
    /// The cores that are measured: not one that is flooded.
    fn measured(self, sample: &[CoreRound]) -> &[CoreRound] {
        let first = usize::from(self.flood.is_some());
        sample.get(first..).unwrap_or_default()
    }

    /// A time for each request, connection or MiB, in microseconds.
    fn each_us(self, sample: &[CoreRound], time: impl Fn(&CoreRound) -> Duration) -> f64 {
        self.work.each_us(self.measured(sample), time)
    }
}

impl CoresWork {
    /// What costs are told for: requests, connections, or MiB.
    fn units(self, sample: &[CoreRound]) -> f64 {
        let unit = if self == Self::Bulk { f64::from(1 << 20) } else { 1.0 };
        (sum(sample, |core| core.done as f64) / unit).max(1e-9)
    }

    /// A time for each of these, in microseconds.
    fn each_us(self, sample: &[CoreRound], time: impl Fn(&CoreRound) -> Duration) -> f64 {
        sum(sample, |core| time(core).as_secs_f64() * 1e6) / self.units(sample)
    }
}

/// The rounds of a case, if it was measured.
fn samples_of(all: &[Measured<CoresBench>], case: CoresCase) -> Option<&[CoresSample]> {
    all.iter().find(|(other, _)| *other == case).map(|(_, samples)| &samples[..])
}

/// The spread of a figure of two cases, taken round by round: machines drift.
fn pairwise(
    samples: &[CoresSample],
    others: &[CoresSample],
    figure: impl Fn(&CoresSample, &CoresSample) -> f64,
) -> Option<Spread> {
    Some(Spread::of(samples.iter().zip(others).map(|(sample, other)| figure(sample, other))))
}

impl ResultLine<'_, CoresBench> {
    /// CPU time of both sides for each stray: what a unit costs more than with frames that are drawn and do not stray,
    /// divided by its strays. The bench's own way to the other core is part of that. A relay takes this way twice.
    fn stray_ns(&self) -> Option<Spread> {
        let work = self.case.work;
        let is_stray = matches!(self.case.server, ServerKind::Relay | ServerKind::Cores);
        (is_stray && self.case.strays_percent > 0).then_some(())?;
        let drawn = CoresCase { server: ServerKind::Drawn, ..*self.case };
        let without = samples_of(self.all, drawn)?;
        pairwise(self.samples, without, |with, without| {
            let cpu = |sample| work.each_us(sample, |core| core.cpu);
            let strays = sum(with, |core| core.strays as f64) / work.units(with);
            (cpu(with) - cpu(without)) * 1e3 / strays.max(1e-9)
        })
    }
}

impl CoresBench {
    /// The result of a kind of work in a sentence.
    fn summary(&self, work: CoresWork, all: &[Measured<Self>]) -> String {
        let several = usize::from(self.options.cores);
        let ratio = |of: (ServerKind, usize), to: (ServerKind, usize)| {
            let samples = |(server, cores)| {
                samples_of(all, CoresCase { server, cores, work, strays_percent: 0, flood: None })
            };
            let spread = pairwise(samples(of)?, samples(to)?, |of, to| rate(of) / rate(to))?;
            Some(format!("{:.2}", spread.median))
        };
        let known = |of, to| ratio(of, to).unwrap_or_default();
        let (plain, cores) = (ServerKind::Plain, ServerKind::Cores);
        let mut text = format!(
            "{}: {several} cores have {} times the rate of one (plain hosts {} times); one core has {} times that of a \
            plain host",
            name(work),
            known((cores, several), (cores, 1)),
            known((plain, several), (plain, 1)),
            known((cores, 1), (plain, 1)),
        );
        let tap = ServerKind::Tap;
        if let Some(times) = ratio((tap, several), (tap, 1)) {
            text += &format!("; over a tap {several} cores have {times} times the rate of one");
        }
        let most = self.options.strays.iter().copied().max().unwrap_or_default();
        let price = |server| {
            let is_it = |case: &CoresCase| {
                case.work == work && case.server == server && case.strays_percent == most
            };
            let (case, samples) = all.iter().find(|(case, _)| is_it(case))?;
            Some(ResultLine { bench: self, case, samples, all }.stray_ns()?.median)
        };
        if let (Some(stray), Some(relay)) = (price(cores), price(ServerKind::Relay)) {
            text += &format!(
                "; a stray costs {stray:.0} ns with the bench's way to the wrong core, and this way and the way back \
                 {relay:.0} ns"
            );
        }
        text
    }
}
