//! `bench path`: goodput over a bad path, to and from the kernel, beside kernel to kernel.
//!
//! ```text
//!   pagewire -- fault -- tap -- kernel
//!   kernel -- tap -- hub -- fault -- tap -- kernel
//! ```
//!
//! Both have fault wrappers with equal seeds, which cut super-frames first. Every kernel has its
//! own network namespace for the round, so that no path is remembered. Kernel sockets use CUBIC.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use pagewire::device::{Chance, Fault, FaultConfig};

use crate::args::{Common, Direction, Options, Plan, delay, seconds};
use crate::failure::{Because, Failure};
use crate::kit::flows::{Part, Traffic, host_receive, host_send, kernel_receive, kernel_send};
use crate::kit::hosts::{self, LEFT, PORT, RIGHT, captured};
use crate::kit::hub;
use crate::kit::kernel;
use crate::kit::machine::SPREAD;
use crate::kit::meter::{Round, Spread};
use crate::kit::namespace::NetNs;
use crate::kit::source::Source;
use crate::progress::Progress;
use crate::table::{
    Field, InTurns, Measured, Measurement, ResultLine, Results, measure, records, some,
};

/// Goodput over a bad path, to and from the kernel, beside kernel to kernel; needs root
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PathOptions {
    /// Packets that are lost, each way; repeatable, or with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0%,0.1%,1%,3%,10%",
        value_name = "PERCENT"
    )]
    loss: Vec<Chance>,

    /// Delay each way; repeatable, or with commas between
    #[arg(long, value_delimiter = ',', default_value = "1ms,50ms", value_parser = delay, value_name = "TIME")]
    delay: Vec<Duration>,

    /// Direction, as seen from Pagewire [default: both]
    #[arg(long, value_enum, value_name = "WAY")]
    direction: Option<Direction>,

    /// Connections side by side [default: 1, and 8 where 0.05% or more are lost]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    flows: Option<u16>,

    /// Seconds that a round lasts, without its warm-up of 20 round trips
    #[arg(long, default_value_t = 5.0, value_parser = seconds, value_name = "S")]
    seconds: f64,

    /// Seed of the first round's losses; each round takes the next
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    /// Write the headers of every packet to files in DIR, in pcapng
    #[arg(long, value_name = "DIR")]
    pcap: Option<PathBuf>,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench path
      losses of 0 to 10 %, 1 and 50 ms each way, both directions
  pagewire bench path --loss 1% --delay 20ms --direction send --seconds 30 --pcap captures
      one path, with a capture of each round in the directory captures";

/// Loss from which on one connection is slow and its rate random, so several are measured side by side.
const LOSSY: Chance = Chance::per_million(500);
/// Connections side by side from [`LOSSY`] on.
const LOSSY_FLOWS: u16 = 8;

/// Round trips before a round counts: slow start is over, and windows are settled.
const WARM_UP_ROUND_TRIPS: u32 = 20;
const LEAST_WARM_UP: Duration = Duration::from_millis(500);

impl Options for PathOptions {
    fn plan(&self) -> Plan {
        Plan::of::<PathBench>(true, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        if let Some(dir) = &self.pcap {
            std::fs::create_dir_all(dir).because(format_args!("--pcap {}", dir.display()))?;
        }
        let bench = PathBench { source: Source::new(), options: self.clone() };
        let wanted = |d: Direction| self.direction.is_none_or(|only| only == d);
        let mut all_ends = vec![PathEnds::Kernel];
        all_ends.extend(wanted(Direction::Send).then_some(PathEnds::Send));
        all_ends.extend(wanted(Direction::Receive).then_some(PathEnds::Receive));
        let (rounds, paths) = (self.common.rounds, self.delay.len() * self.loss.len());
        progress.begin(paths * all_ends.len() * usize::from(rounds));
        let mut all: Vec<Measured<PathBench>> = Vec::new();
        for &delay in &self.delay {
            for &loss in &self.loss {
                let flows = self.flows.unwrap_or(if loss >= LOSSY { LOSSY_FLOWS } else { 1 });
                let case = |&ends| PathCase { ends, loss, delay, flows: usize::from(flows) };
                let mut lines: Vec<_> = all_ends.iter().map(|ends| (case(ends), vec![])).collect();
                measure(&bench, &mut lines, 1..=rounds, progress)?;
                all.extend(lines);
            }
        }
        progress.end();
        let heading = self.common.heading(self.seconds, SPREAD) + "; ratio to kernel to kernel";
        let columns = "engine direction peer loss_percent delay_ms flows mbit_per_s \
            min_mbit_per_s max_mbit_per_s ratio";
        Ok(Results::print(records(&bench, &all), self.common.json, heading, columns))
    }
}

/// A path, how many connections it carries, and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathCase {
    ends: PathEnds,
    loss: Chance,
    /// Each way.
    delay: Duration,
    flows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathEnds {
    Kernel,
    Send,
    Receive,
}

impl PathCase {
    fn faults(self, seed: u64) -> FaultConfig {
        FaultConfig {
            loss: self.loss,
            delay: self.delay,
            cut: true,
            seed,
            ..FaultConfig::default()
        }
    }
}

struct PathBench {
    source: Source,
    options: PathOptions,
}

type F = Field<PathBench>;

impl Measurement for PathBench {
    type Case = PathCase;
    type Sample = Round;

    const NAME: &'static str = "path";
    const TITLE: &'static str = "Goodput over bad paths";
    const ABOUT: &'static str =
        "To and from the kernel, beside kernel to kernel over the same losses.";
    const RATE: bool = false;
    const FIELDS: &'static [Field<Self>] = &[
        F::value("direction", |of| match of.case.ends {
            PathEnds::Kernel | PathEnds::Send => some("send"),
            PathEnds::Receive => some("receive"),
        })
        .part("{}"),
        F::value("peer", |_| some("kernel")),
        F::value("loss_percent", |of| some(f64::from(of.case.loss.as_per_million()) / 1e4))
            .group("{} % lost"),
        F::value("delay_ms", |of| some(of.case.delay.as_secs_f64() * 1e3)).split("{} ms each way"),
        F::value("flows", |of| some(of.case.flows)).group("{} connection(s)"),
        // On a bad path, the gigabits of every line are mostly zeros.
        F::bounded("mbit_per_s", 3, |of| of.spread(|round| round.gbit_per_s() * 1e3))
            .higher("Goodput", "Mbit/s"),
        F::value("ratio", ratio).higher("Ratio to kernel to kernel", "times"),
        F::value("congestion", |_| some("cubic")),
    ];

    fn engine(&self, case: &PathCase) -> (String, &'static str) {
        match case.ends {
            PathEnds::Kernel => ("kernel".to_owned(), "tap-tap"),
            PathEnds::Send | PathEnds::Receive => ("pagewire".to_owned(), "tap"),
        }
    }

    fn round(&self, _: &PathCase, round: &Round) -> Round {
        *round
    }
}

/// The goodput beside that of two kernels on the same path.
fn ratio(of: &ResultLine<'_, PathBench>) -> Option<serde_json::Value> {
    let kernels = PathCase { ends: PathEnds::Kernel, ..*of.case };
    of.ratio_to(&kernels, |rounds| Spread::of(rounds.iter().map(Round::gbit_per_s)).median)
}

impl InTurns for PathBench {
    fn sample(&self, &case: &PathCase, round: u16) -> Result<Round, Failure> {
        let PathCase { ends, loss, delay, .. } = case;
        let number = round - 1;
        let faults = case.faults(self.options.seed + u64::from(number));
        let stats = self.options.common.stats;
        let traffic = Traffic::new(stats);
        let name = format!("{ends:?}-{loss}-{delay:?}-{number}.pcapng");
        let name = name.to_lowercase().replace('%', "");
        let pcap = self.options.pcap.as_ref().map(|dir| dir.join(name));
        let pcap = pcap.as_deref();
        let result = match ends {
            PathEnds::Kernel => self.kernel_to_kernel(case, faults, pcap, &traffic),
            PathEnds::Send | PathEnds::Receive => self.host(case, faults, pcap, &traffic),
        };
        if stats {
            let reports = traffic.reports().join("\n");
            eprintln!("{case:?} round {number}: {result:?}\n{reports}");
        }
        result
    }
}

impl PathBench {
    fn run(
        &self,
        case: PathCase,
        traffic: &Traffic,
        parts: Vec<Part<'_>>,
    ) -> Result<Round, Failure> {
        let warm_up = (case.delay * 2 * WARM_UP_ROUND_TRIPS).max(LEAST_WARM_UP);
        let length = Duration::from_secs_f64(self.options.seconds);
        let [round, _] = traffic.run(parts, case.flows, warm_up, length)?;
        Ok(round)
    }

    fn kernel_to_kernel(
        &self,
        case: PathCase,
        faults: FaultConfig,
        pcap: Option<&Path>,
        traffic: &Traffic,
    ) -> Result<Round, Failure> {
        let (left, left_tap) = NetNs::with_tap(LEFT)?;
        let (right, right_tap) = NetNs::with_tap(RIGHT)?;
        let (listener, to) = right.inside(|| kernel::listen(RIGHT))?;
        // The wrapper is around the sender's device, as it is around a host's.
        let left_tap = captured(Fault::new(left_tap, faults), pcap)?;
        let parts: [Part<'_>; 3] = [
            Box::new(|| hub::run(vec![left_tap, Box::new(right_tap)], &traffic.over)),
            Box::new(move || kernel_receive(&listener, case.flows, 0, traffic)),
            Box::new(|| kernel_send(&left, to, case.flows, &self.source, traffic)),
        ];
        self.run(case, traffic, parts.into())
    }

    /// A host behind the wrapper, and the kernel on the tap's other side.
    fn host(
        &self,
        case: PathCase,
        faults: FaultConfig,
        pcap: Option<&Path>,
        traffic: &Traffic,
    ) -> Result<Round, Failure> {
        let (kernel, tap) = NetNs::with_tap(RIGHT)?;
        let host = hosts::on(captured(Fault::new(tap, faults), pcap)?, LEFT).start()?;
        let (host, kernel) = (&host, &kernel);
        let parts: [Part<'_>; 2] = match case.ends {
            PathEnds::Send | PathEnds::Kernel => {
                let (listener, to) = kernel.inside(|| kernel::listen(RIGHT))?;
                [
                    Box::new(move || kernel_receive(&listener, case.flows, 0, traffic)),
                    Box::new(move || host_send(host, to, case.flows, &self.source, traffic)),
                ]
            }
            PathEnds::Receive => {
                let on = SocketAddr::from((LEFT, PORT));
                let listener = host.listen(on).because("a socket of the measurement")?;
                [
                    Box::new(move || host_receive(&listener, case.flows, 0, traffic)),
                    Box::new(move || kernel_send(kernel, on, case.flows, &self.source, traffic)),
                ]
            }
        };
        let round = self.run(case, traffic, parts.into())?;
        if self.options.common.stats {
            traffic.report(host.stats().to_string());
        }
        Ok(round)
    }
}
