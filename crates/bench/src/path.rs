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
use std::sync::mpsc;
use std::time::Duration;

use pagewire::device::{Chance, Fault, FaultConfig};
use pagewire::{Host, Tap};

use crate::failure::{Because, Failure};
use crate::flows::{SOCKET, Traffic, host_receive, host_send, kernel_receive, kernel_send};
use crate::hosts::{self, LEFT, PORT, RIGHT, captured};
use crate::hub;
use crate::kernel;
use crate::machine::{Machine, SPREAD, joined, on_a_thread};
use crate::meter::{Round, Spread};
use crate::options::{Direction, PathOptions};
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};
use crate::source::Source;

/// From this loss on, one connection is slow and its rate random: several are measured side by side.
const LOSSY: Chance = Chance::per_million(500);
/// So many.
const LOSSY_FLOWS: u16 = 8;

/// Round trips before a round counts: slow start is over, and windows are settled.
const WARM_UP_ROUND_TRIPS: u32 = 20;
const LEAST_WARM_UP: Duration = Duration::from_millis(500);

pub(crate) fn run(options: &PathOptions, progress: &Progress) -> Result<Results, Failure> {
    kernel::check_privilege()?;
    if let Some(dir) = &options.pcap {
        std::fs::create_dir_all(dir).because(format_args!("--pcap {}", dir.display()))?;
    }
    let bench = Bench {
        source: Source::new(),
        length: Duration::from_secs_f64(options.seconds),
        seed: options.seed,
        stats: options.common.stats,
        pcap: options.pcap.clone(),
    };
    let machine = Machine::describe();
    let mut records = Vec::new();
    progress.begin(steps(options));
    for &delay in &options.delay {
        for &loss in &options.loss {
            let flows = options.flows.unwrap_or(if loss >= LOSSY { LOSSY_FLOWS } else { 1 });
            let case = Case { loss, delay: delay.0, flows: usize::from(flows) };
            let wanted = |d: Direction| options.direction.is_none_or(|only| only == d);
            let lines = [
                Some(What::Kernel),
                wanted(Direction::Send).then_some(What::Send),
                wanted(Direction::Receive).then_some(What::Receive),
            ];
            let mut lines: Vec<(What, Vec<Round>)> =
                lines.into_iter().flatten().map(|what| (what, Vec::new())).collect();
            for number in 0..options.common.rounds {
                for (what, rounds) in &mut lines {
                    progress.round(number + 1, options.common.rounds, &case.name(*what));
                    rounds.push(bench.round(*what, case, number)?);
                    progress.step();
                }
            }
            let kernel = lines.first().map_or(0.0, |(_, rounds)| rates(rounds).median);
            for (what, rounds) in &lines {
                records.push(record(*what, case, rounds, kernel).on(&machine));
            }
        }
    }
    progress.end();
    let heading = machine.heading(options.common.rounds, options.seconds, SPREAD);
    let heading = heading + "; ratio to kernel to kernel";
    let columns = "engine direction peer loss_percent delay_ms flows mbit_per_s min_mbit_per_s \
        max_mbit_per_s ratio";
    Ok(print(records, options.common.json, heading, columns))
}

/// Rounds of all cases.
fn steps(options: &PathOptions) -> usize {
    let lines = if options.direction.is_some() { 2 } else { 3 };
    options.delay.len() * options.loss.len() * lines * usize::from(options.common.rounds)
}

/// A path, and how many connections it carries.
#[derive(Clone, Copy, Debug)]
struct Case {
    loss: Chance,
    /// Each way.
    delay: Duration,
    flows: usize,
}

impl Case {
    /// What is measured, for the line of progress.
    fn name(self, what: What) -> String {
        let Self { loss, delay, flows } = self;
        let what = match what {
            What::Kernel => "kernel to kernel",
            What::Send => "to the kernel",
            What::Receive => "from the kernel",
        };
        format!("{what}, {loss} lost, {delay:?} each way, {flows} connection(s)")
    }

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Kernel,
    Send,
    Receive,
}

fn rates(rounds: &[Round]) -> Spread {
    Spread::of(rounds.iter().map(Round::gbit_per_s))
}

fn record(what: What, case: Case, rounds: &[Round], kernel: f64) -> Record {
    let (engine, link, direction) = match what {
        What::Kernel => ("kernel", "tap-tap", "send"),
        What::Send => ("pagewire", "tap", "send"),
        What::Receive => ("pagewire", "tap", "receive"),
    };
    let Spread { min, median, max } = rates(rounds);
    Record::of_rounds("path", engine, link, rounds)
        .with("direction", direction)
        .with("peer", "kernel")
        .with("loss_percent", f64::from(case.loss.as_per_million()) / 1e4)
        .with("delay_ms", case.delay.as_secs_f64() * 1e3)
        .with("flows", case.flows)
        // On a bad path, the gigabits of every line are mostly zeros.
        .with("mbit_per_s", rounded(median * 1e3, 3))
        .with("min_mbit_per_s", rounded(min * 1e3, 3))
        .with("max_mbit_per_s", rounded(max * 1e3, 3))
        .with("ratio", rounded(median / kernel.max(1e-9), 3))
        .with("congestion", "cubic")
}

struct Bench {
    source: Source,
    length: Duration,
    seed: u64,
    stats: bool,
    pcap: Option<PathBuf>,
}

impl Bench {
    fn round(&self, what: What, case: Case, number: u16) -> Result<Round, Failure> {
        let faults = case.faults(self.seed + u64::from(number));
        let traffic = Traffic::new(self.stats);
        let name = format!("{what:?}-{}-{:?}-{number}.pcapng", case.loss, case.delay);
        let pcap = self.pcap.as_ref().map(|dir| dir.join(name.to_lowercase().replace('%', "")));
        let pcap = pcap.as_deref();
        let result = match what {
            What::Kernel => self.kernel_to_kernel(case, faults, pcap, &traffic),
            What::Send | What::Receive => self.host(what, case, faults, pcap, &traffic),
        };
        if self.stats {
            let reports = traffic.reports();
            eprintln!("{what:?} {case:?} round {number}: {result:?}\n{}", reports.join("\n"));
        }
        result
    }

    fn measure(&self, case: Case, traffic: &Traffic) -> Round {
        let warm_up = (case.delay * 2 * WARM_UP_ROUND_TRIPS).max(LEAST_WARM_UP);
        let [round, _] = traffic.measure(case.flows, warm_up, self.length);
        round
    }

    fn kernel_to_kernel(
        &self,
        case: Case,
        faults: FaultConfig,
        pcap: Option<&Path>,
        traffic: &Traffic,
    ) -> Result<Round, Failure> {
        let (left_tap, left) = mpsc::channel::<Tap>();
        let (right_tap, right) = mpsc::channel::<Tap>();
        let (address, to) = mpsc::channel::<SocketAddr>();
        std::thread::scope(|scope| {
            let receiving = scope.spawn(move || {
                traffic.part(|| {
                    let _ = right_tap.send(hosts::tap(RIGHT, None)?.0);
                    let listener = kernel::listen(RIGHT.into())?;
                    let _ = address.send(listener.local_addr().because(SOCKET)?);
                    kernel_receive(&listener, case.flows, 0, traffic)
                })
            });
            let sending = scope.spawn(move || {
                traffic.part(|| {
                    let _ = left_tap.send(hosts::tap(LEFT, None)?.0);
                    // Disconnected: the receiver failed, and reports why.
                    let Ok(to) = to.recv() else { return Ok(()) };
                    kernel_send(to, case.flows, &self.source, traffic)
                })
            });
            let joining = scope.spawn(move || {
                traffic.part(|| {
                    let (Ok(left), Ok(right)) = (left.recv(), right.recv()) else { return Ok(()) };
                    // The wrapper is around the sender's device, as it is around a host's.
                    let left = captured(Fault::new(left, faults), pcap)?;
                    hub::run(vec![left, Box::new(right)], &traffic.over)
                })
            });
            let round = self.measure(case, traffic);
            joined(receiving).and(joined(sending)).and(joined(joining))?;
            Ok(round)
        })
    }

    /// A host behind the wrapper, and the kernel on the tap's other side.
    fn host(
        &self,
        what: What,
        case: Case,
        faults: FaultConfig,
        pcap: Option<&Path>,
        traffic: &Traffic,
    ) -> Result<Round, Failure> {
        let run = || {
            let (tap, _) = hosts::tap(RIGHT, None)?;
            let device = captured(Fault::new(tap, faults), pcap)?;
            let host = Host::builder().device(device).address(format!("{LEFT}/24"));
            let host = host.start()?;
            std::thread::scope(|scope| {
                let (host, flows) = (&host, case.flows);
                let parts = match what {
                    What::Send | What::Kernel => {
                        let listener = kernel::listen(RIGHT.into())?;
                        let to = listener.local_addr().because(SOCKET)?;
                        let receiving = scope.spawn(move || {
                            traffic.part(|| kernel_receive(&listener, flows, 0, traffic))
                        });
                        let sending = scope.spawn(move || {
                            traffic.part(|| host_send(host, to, flows, &self.source, traffic))
                        });
                        [receiving, sending]
                    }
                    What::Receive => {
                        let on = SocketAddr::from((LEFT, PORT));
                        let listener = host.listen(on).because(SOCKET)?;
                        let receiving = scope.spawn(move || {
                            traffic.part(|| host_receive(&listener, flows, 0, traffic))
                        });
                        let sending = scope.spawn(move || {
                            traffic.part(|| kernel_send(on, flows, &self.source, traffic))
                        });
                        [receiving, sending]
                    }
                };
                let round = self.measure(case, traffic);
                for part in parts {
                    joined(part)?;
                }
                if self.stats {
                    traffic.report(host.stats().to_string());
                }
                Ok(round)
            })
        };
        on_a_thread(run)
    }
}
