//! `bench path`: goodput over a bad path, to and from the kernel, beside kernel to kernel.
//!
//! ```text
//!   pagewire -- fault -- tap -- kernel
//!   kernel -- tap -- hub -- fault -- tap -- kernel
//! ```
//!
//! The fault wrapper is the same, with the same seeds, and cuts super-frames first, so that packets
//! are lost as on a wire. Every kernel has a network namespace of its own, made for the round, so
//! nothing is remembered of the path and nothing of the machine's network is touched; both end
//! with their threads. Kernel sockets use CUBIC and the machine's own buffer sizes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pagewire::Host;
use pagewire_device::{Chance, Device, Fault, FaultConfig, Pcap, PcapConfig, Tap};

use super::flows::{Traffic, host_receive, host_send, kernel_receive, kernel_send};
use super::hub;
use super::kernel;
use super::machine::Machine;
use super::report::{Record, print, rounded};
use super::source::{Round, Source};
use super::stream::joined;
use crate::args::{Direction, PathOptions};
use crate::failure::{Failure, reason};

/// The sender of kernel to kernel, or the host.
pub(crate) const LEFT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The kernel that is there in every line.
pub(crate) const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PORT: u16 = 9000;

/// Losses from which on one connection is so slow, and so much a matter of luck, that several are
/// measured side by side.
const LOSSY: Chance = Chance::per_million(500);
/// So many.
const LOSSY_FLOWS: u16 = 8;

/// Round trips before a round counts: slow start is over, and windows have found their sizes.
const WARM_UP_ROUND_TRIPS: u32 = 20;
const LEAST_WARM_UP: Duration = Duration::from_millis(500);

/// Measures and prints.
pub(crate) fn run(options: &PathOptions) -> Result<(), Failure> {
    kernel::check_privilege()?;
    if let Some(dir) = &options.pcap {
        std::fs::create_dir_all(dir)
            .map_err(|e| Failure::because(format!("--pcap {}", dir.display()), reason(&e)))?;
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
                    rounds.push(bench.round(*what, case, number)?);
                }
            }
            let kernel = lines.first().map_or(0.0, |(_, rounds)| median(rounds));
            for (what, rounds) in &lines {
                records.push(record(*what, case, rounds, kernel).on(&machine));
            }
        }
    }
    let heading = format!(
        "{machine}; {} rounds of {} s each, medians (lowest and highest beside them); ratio to \
         kernel to kernel",
        options.common.rounds, options.seconds
    );
    let columns = [
        "engine",
        "direction",
        "peer",
        "loss_percent",
        "delay_ms",
        "flows",
        "mbit_per_s",
        "min_mbit_per_s",
        "max_mbit_per_s",
        "ratio",
    ];
    print(&records, options.common.json, &heading, &columns);
    Ok(())
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

/// One line of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Kernel to kernel.
    Kernel,
    /// Pagewire to the kernel.
    Send,
    /// The kernel to Pagewire.
    Receive,
}

fn median(rounds: &[Round]) -> f64 {
    let mut rates: Vec<f64> = rounds.iter().map(Round::gbit_per_s).collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}

fn record(what: What, case: Case, rounds: &[Round], kernel: f64) -> Record {
    let (engine, link, direction) = match what {
        What::Kernel => ("kernel", "tap-tap", "send"),
        What::Send => ("pagewire", "tap", "send"),
        What::Receive => ("pagewire", "tap", "receive"),
    };
    let rates = rounds.iter().map(Round::gbit_per_s);
    let (low, high) = rates.fold((f64::MAX, 0.0), |(l, h), r| (r.min(l), r.max(h)));
    Record::of_rounds("path", engine, link, rounds)
        .with("direction", direction)
        .with("peer", "kernel")
        .with("loss_percent", f64::from(case.loss.as_per_million()) / 1e4)
        .with("delay_ms", case.delay.as_secs_f64() * 1e3)
        .with("flows", case.flows)
        // Of a bad path, the gigabits that every line has are mostly zeros.
        .with("mbit_per_s", rounded(median(rounds) * 1e3, 3))
        .with("min_mbit_per_s", rounded(low * 1e3, 3))
        .with("max_mbit_per_s", rounded(high * 1e3, 3))
        .with("ratio", rounded(median(rounds) / kernel.max(1e-9), 3))
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
            let said = traffic.said();
            eprintln!("{what:?} {case:?} round {number}: {result:?}\n{}", said.join("\n"));
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
                    let _ = right_tap.send(tap_in_namespace(RIGHT)?);
                    let listener = kernel::listen(RIGHT.into())?;
                    send_address(&listener, &address)?;
                    kernel_receive(&listener, case.flows, 0, traffic)
                })
            });
            let sending = scope.spawn(move || {
                traffic.part(|| {
                    let _ = left_tap.send(tap_in_namespace(LEFT)?);
                    // Disconnected: the receiver failed, and says why.
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
            let tap = tap_in_namespace(RIGHT)?;
            let device = captured(Fault::new(tap, faults), pcap)?;
            let host = Host::builder().boxed_device(device).address(format!("{LEFT}/24"));
            let host = host.start().map_err(|e| Failure::Failed(e.to_string()))?;
            std::thread::scope(|scope| {
                let (host, flows) = (&host, case.flows);
                let parts = match what {
                    What::Send | What::Kernel => {
                        let listener = kernel::listen(RIGHT.into())?;
                        let to = listener.local_addr().map_err(|e| failed(&e))?;
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
                        let listener = host.listen(on).map_err(|e| failed(&e))?;
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
                    traffic.say(host.stats().to_string());
                }
                Ok(round)
            })
        };
        // A thread of its own, because it goes into another network namespace.
        std::thread::scope(|scope| joined(scope.spawn(run)))
    }
}

/// A tap in a network namespace that is made for it, which this thread enters.
pub(crate) fn tap_in_namespace(kernel_side: Ipv4Addr) -> Result<Tap, Failure> {
    kernel::enter_namespace()?;
    let tap = Tap::builder().name("pwpath").host_address(format!("{kernel_side}/24"));
    tap.open().map_err(|e| Failure::Failed(e.to_string()))
}

pub(crate) fn send_address(
    listener: &TcpListener,
    to: &mpsc::Sender<SocketAddr>,
) -> Result<(), Failure> {
    let _ = to.send(listener.local_addr().map_err(|e| failed(&e))?);
    Ok(())
}

/// What goes into the device and comes out of it is written to a file, if there is one.
pub(crate) fn captured(
    device: impl Device + 'static,
    path: Option<&Path>,
) -> Result<Box<dyn Device>, Failure> {
    let Some(path) = path else { return Ok(Box::new(device)) };
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let config = PcapConfig { epoch, snaplen: 128 };
    let failed =
        |e: std::io::Error| Failure::because(format!("--pcap {}", path.display()), reason(&e));
    Ok(Box::new(Pcap::create(device, path, config).map_err(failed)?))
}

pub(crate) fn failed(error: &std::io::Error) -> Failure {
    Failure::because("a socket of the measurement", reason(error))
}
