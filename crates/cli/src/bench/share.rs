//! `bench share`: flows from Pagewire and flows from a kernel meet in one bottleneck.
//!
//! ```text
//!   pagewire -- pair --\
//!                       hub -- rate, drop-tail queue, delay -- tap -- kernel
//!   kernel ---- tap ---/
//! ```
//!
//! All go to the same kernel. Each side has as many flows as the other, all begin together, and
//! what arrives is counted apart.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use pagewire::Host;
use pagewire_device::{Device, Fault, FaultConfig, FaultDirection, Pair, PairConfig, Tap};

use super::flows::{Traffic, host_send, kernel_receive, kernel_send};
use super::hub;
use super::kernel;
use super::machine::Machine;
use super::path::{LEFT, RIGHT, captured, failed, tap_in_namespace};
use super::report::{Record, print, rounded};
use super::source::{Round, Source};
use super::stream::joined;
use crate::args::ShareOptions;
use crate::failure::Failure;

/// The kernel that competes.
const RIVAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

/// Before a round counts: everybody is out of slow start.
const WARM_UP: Duration = Duration::from_secs(2);

/// Measures and prints.
pub(crate) fn run(options: &ShareOptions) -> Result<(), Failure> {
    kernel::check_privilege()?;
    let source = Source::new();
    let machine = Machine::describe();
    let mut rounds: Vec<[Round; 2]> = Vec::new();
    for _ in 0..options.common.rounds {
        rounds.push(round(options, &source)?);
    }
    let engines = [if options.kernels { "kernel" } else { "pagewire" }, "kernel"];
    let records: Vec<Record> = engines
        .iter()
        .enumerate()
        .map(|(class, engine)| record(engine, class, &rounds, options).on(&machine))
        .collect();
    let heading = format!(
        "{machine}; {} against {} flow(s) in {} for {} s, {} rounds, medians (lowest and highest \
         beside them)",
        options.flows,
        options.flows,
        bottleneck(options),
        options.seconds,
        options.common.rounds
    );
    let columns = [
        "engine",
        "flows",
        "mbit_per_s",
        "share_percent",
        "min_share_percent",
        "max_share_percent",
        "of_rate_percent",
    ];
    print(&records, options.common.json, &heading, &columns);
    Ok(())
}

fn record(engine: &str, class: usize, rounds: &[[Round; 2]], options: &ShareOptions) -> Record {
    let own: Vec<Round> = rounds.iter().filter_map(|both| both.get(class).copied()).collect();
    let share = |both: &[Round; 2]| {
        let all: u64 = both.iter().map(|round| round.bytes).sum();
        both.get(class).map_or(0.0, |own| own.bytes as f64 * 100.0 / all.max(1) as f64)
    };
    let mut shares: Vec<f64> = rounds.iter().map(share).collect();
    shares.sort_by(f64::total_cmp);
    let at = |i: usize| rounded(shares.get(i).copied().unwrap_or(0.0), 1);
    let mut rates: Vec<f64> = own.iter().map(Round::gbit_per_s).collect();
    rates.sort_by(f64::total_cmp);
    let rate = rates.get(rates.len() / 2).copied().unwrap_or(0.0);
    Record::of_rounds("share", engine, "bottleneck", &own)
        .with("flows", options.flows)
        .with("mbit_per_s", rounded(rate * 1e3, 3))
        .with("share_percent", at(shares.len() / 2))
        .with("min_share_percent", at(0))
        .with("max_share_percent", at(shares.len().saturating_sub(1)))
        .with("of_rate_percent", rounded(rate * 1e11 / options.rate.0 as f64, 1))
        .with("bottleneck", bottleneck(options).to_string())
        .with("congestion", "cubic")
}

/// Towards the receiver.
fn bottleneck(options: &ShareOptions) -> FaultConfig {
    FaultConfig {
        rate: Some(options.rate.0),
        limit: usize::from(options.limit),
        delay: options.delay.0,
        cut: true,
        on: FaultDirection::Transmit,
        ..FaultConfig::default()
    }
}

/// Where the first class of flows comes from.
enum First {
    Pagewire(Host),
    Kernel,
}

fn round(options: &ShareOptions, source: &Source) -> Result<[Round; 2], Failure> {
    let traffic = &Traffic::new(options.common.stats);
    let flows = usize::from(options.flows);
    let (taps, tap) = mpsc::channel::<(usize, Tap)>();
    let (addresses, address) = mpsc::channel::<[SocketAddr; 2]>();
    let (first, first_device) = if options.kernels {
        (First::Kernel, None)
    } else {
        let (ours, hubs) = Pair::new(PairConfig { mtu: 1500, ..PairConfig::default() })
            .map_err(|e| Failure::Failed(e.to_string()))?;
        let ours = captured(ours, options.pcap.as_deref())?;
        let host = Host::builder().boxed_device(ours).address(format!("{LEFT}/24")).start();
        (First::Pagewire(host.map_err(|e| Failure::Failed(e.to_string()))?), Some(hubs))
    };
    let first = &first;
    std::thread::scope(|scope| {
        let receiver_taps = taps.clone();
        let receiving = scope.spawn(move || {
            traffic.part(|| {
                let _ = receiver_taps.send((0, tap_in_namespace(RIGHT)?));
                drop(receiver_taps);
                let listeners = [kernel::listen(RIGHT.into())?, kernel::listen(RIGHT.into())?];
                let [a, b] = &listeners;
                let to = a.local_addr().and_then(|a| Ok([a, b.local_addr()?]));
                let to = to.map_err(|e| failed(&e))?;
                let _ = addresses.send(to);
                std::thread::scope(|scope| {
                    let classes = listeners.iter().enumerate().map(|(class, listener)| {
                        scope.spawn(move || kernel_receive(listener, flows, class, traffic))
                    });
                    classes.collect::<Vec<_>>().into_iter().try_for_each(joined)
                })
            })
        });
        let (to, rivals_to) = mpsc::channel::<[SocketAddr; 2]>();
        let rival_taps = taps.clone();
        let rival = scope.spawn(move || {
            traffic.part(|| {
                let _ = rival_taps.send((1, tap_in_namespace(RIVAL)?));
                drop(rival_taps);
                let Ok([_, to]) = rivals_to.recv() else { return Ok(()) };
                kernel_send(to, flows, source, traffic)
            })
        });
        let (first_to, to_first) = mpsc::channel::<[SocketAddr; 2]>();
        let sending = scope.spawn(move || {
            traffic.part(|| {
                if let First::Kernel = first {
                    let _ = taps.send((2, tap_in_namespace(LEFT)?));
                }
                drop(taps);
                let Ok([at, _]) = to_first.recv() else { return Ok(()) };
                match first {
                    First::Pagewire(host) => host_send(host, at, flows, source, traffic),
                    First::Kernel => kernel_send(at, flows, source, traffic),
                }
            })
        });
        let joining = scope.spawn(move || {
            traffic.part(|| {
                // Ends when every thread has made its tap, or failed.
                let mut devices: Vec<Box<dyn Device>> = Vec::new();
                let (mut expected, mut receiver) = (2 + usize::from(options.kernels), None);
                while let Ok((which, tap)) = tap.recv() {
                    expected -= 1;
                    if which == 0 { receiver = Some(tap) } else { devices.push(Box::new(tap)) }
                }
                let (0, Some(receiver)) = (expected, receiver) else { return Ok(()) };
                if let Some(device) = first_device {
                    devices.push(Box::new(device));
                }
                let back = FaultConfig {
                    delay: options.delay.0,
                    on: FaultDirection::Receive,
                    ..FaultConfig::default()
                };
                let path = Fault::new(Fault::new(receiver, bottleneck(options)), back);
                devices.push(Box::new(path));
                // Only now can anybody connect.
                let Ok(both) = address.recv() else { return Ok(()) };
                let _ = (to.send(both), first_to.send(both));
                hub::run(devices, &traffic.over)
            })
        });
        let length = Duration::from_secs_f64(options.seconds);
        let rounds = traffic.measure(2 * flows, WARM_UP, length);
        let ends = [joined(receiving), joined(rival), joined(sending), joined(joining)];
        ends.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        if options.common.stats {
            eprintln!("{rounds:?}\n{}", traffic.said().join("\n"));
        }
        Ok(rounds)
    })
}
