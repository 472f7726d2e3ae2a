//! `bench share`: flows from Pagewire and flows from a kernel meet in one bottleneck.
//!
//! ```text
//!   pagewire -- pair --\
//!                       hub -- rate, drop-tail queue, delay -- tap -- kernel
//!   kernel ---- tap ---/
//! ```
//!
//! Both sides have equally many flows to one kernel, which begin together and are counted apart.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use pagewire::device::{Fault, FaultConfig, FaultDirection, PairEnd};
use pagewire::{Device, Host, Tap};

use crate::failure::{Because, Failure};
use crate::flows::{SOCKET, Traffic, host_send, kernel_receive, kernel_send};
use crate::hosts::{self, LEFT, RIGHT, captured};
use crate::hub;
use crate::kernel;
use crate::machine::{Machine, joined};
use crate::meter::{Round, Spread};
use crate::options::ShareOptions;
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};
use crate::source::Source;

const RIVAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

/// Time before a round counts: all flows are out of slow start.
const WARM_UP: Duration = Duration::from_secs(2);

pub(crate) fn run(options: &ShareOptions, progress: &Progress) -> Result<Results, Failure> {
    kernel::check_privilege()?;
    let source = Source::new();
    let machine = Machine::describe();
    let mut rounds: Vec<[Round; 2]> = Vec::new();
    progress.begin(options.common.rounds.into());
    for number in 1..=options.common.rounds {
        progress.round(number, options.common.rounds, "both sides at once");
        rounds.push(round(options, &source)?);
        progress.step();
    }
    progress.end();
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
    let columns = "engine flows mbit_per_s share_percent min_share_percent max_share_percent \
        of_rate_percent";
    Ok(print(records, options.common.json, heading, columns))
}

fn record(engine: &str, class: usize, rounds: &[[Round; 2]], options: &ShareOptions) -> Record {
    let own: Vec<Round> = rounds.iter().filter_map(|both| both.get(class).copied()).collect();
    let share = |both: &[Round; 2]| {
        let all: u64 = both.iter().map(|round| round.bytes).sum();
        both.get(class).map_or(0.0, |own| own.bytes as f64 * 100.0 / all.max(1) as f64)
    };
    let shares = Spread::of(rounds.iter().map(share));
    let rates = Spread::of(own.iter().map(Round::gbit_per_s));
    let rate = |times: f64| Spread {
        min: rates.min * times,
        median: rates.median * times,
        max: rates.max * times,
    };
    Record::of_rounds("share", engine, "bottleneck", &own)
        .with("flows", options.flows)
        .with_spread("mbit_per_s", rate(1e3), 3)
        .with("share_percent", rounded(shares.median, 1))
        .with("min_share_percent", rounded(shares.min, 1))
        .with("max_share_percent", rounded(shares.max, 1))
        .with_spread("of_rate_percent", rate(1e11 / options.rate.0 as f64), 1)
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

/// Where the flows of both classes are received.
type Addresses = [SocketAddr; 2];

/// What a tap is one end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Receiver,
    Sender,
}

/// What the threads of a round have in common.
struct Meeting<'a> {
    options: &'a ShareOptions,
    source: &'a Source,
    traffic: &'a Traffic,
    /// Of each class.
    flows: usize,
}

fn round(options: &ShareOptions, source: &Source) -> Result<[Round; 2], Failure> {
    let traffic = &Traffic::new(options.common.stats);
    let flows = usize::from(options.flows);
    let meeting = &Meeting { options, source, traffic, flows };
    let (host, device) = if options.kernels {
        (None, None)
    } else {
        let (ours, hubs, _) = hosts::pair(Some(1500))?;
        let ours = captured(ours, options.pcap.as_deref())?;
        let host = Host::builder().device(ours).address(format!("{LEFT}/24")).start()?;
        (Some(host), Some(hubs))
    };
    let host = host.as_ref();
    let (taps, tap) = mpsc::channel();
    let (addresses, address) = mpsc::channel();
    let (first_to, to_first) = mpsc::channel();
    let (second_to, to_second) = mpsc::channel();
    std::thread::scope(|scope| {
        let (of_receiver, of_rival) = (taps.clone(), taps.clone());
        let receiving =
            scope.spawn(move || traffic.part(|| meeting.receive(of_receiver, addresses)));
        let rival = scope.spawn(move || {
            traffic.part(|| meeting.send_from_kernel(RIVAL, 1, of_rival, to_second))
        });
        let sending = scope.spawn(move || {
            traffic.part(|| match host {
                Some(host) => {
                    drop(taps);
                    meeting.send_from_host(host, to_first)
                }
                None => meeting.send_from_kernel(LEFT, 0, taps, to_first),
            })
        });
        let joining = scope.spawn(move || {
            traffic.part(|| meeting.join(tap, device, address, [first_to, second_to]))
        });
        let length = Duration::from_secs_f64(options.seconds);
        let rounds = traffic.measure(2 * flows, WARM_UP, length);
        let ends = [joined(receiving), joined(rival), joined(sending), joined(joining)];
        ends.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        if options.common.stats {
            eprintln!("{rounds:?}\n{}", traffic.reports().join("\n"));
        }
        Ok(rounds)
    })
}

impl Meeting<'_> {
    /// A kernel takes the flows of both classes.
    fn receive(
        &self,
        taps: Sender<(End, Tap)>,
        addresses: Sender<Addresses>,
    ) -> Result<(), Failure> {
        let _ = taps.send((End::Receiver, hosts::tap(RIGHT, None)?.0));
        drop(taps);
        let listeners = [kernel::listen(RIGHT.into())?, kernel::listen(RIGHT.into())?];
        let [a, b] = &listeners;
        let to = a.local_addr().and_then(|a| Ok([a, b.local_addr()?])).because(SOCKET)?;
        let _ = addresses.send(to);
        std::thread::scope(|scope| {
            let classes = listeners.iter().enumerate().map(|(class, listener)| {
                scope.spawn(move || kernel_receive(listener, self.flows, class, self.traffic))
            });
            classes.collect::<Vec<_>>().into_iter().try_for_each(joined)
        })
    }

    /// A kernel with this address sends the flows of a class.
    fn send_from_kernel(
        &self,
        from: Ipv4Addr,
        class: usize,
        taps: Sender<(End, Tap)>,
        to: Receiver<Addresses>,
    ) -> Result<(), Failure> {
        let _ = taps.send((End::Sender, hosts::tap(from, None)?.0));
        drop(taps);
        // Disconnected: another thread failed, and says why.
        let Ok(to) = to.recv() else { return Ok(()) };
        let Some(&to) = to.get(class) else { return Ok(()) };
        kernel_send(to, self.flows, self.source, self.traffic)
    }

    fn send_from_host(&self, host: &Host, to: Receiver<Addresses>) -> Result<(), Failure> {
        let Ok([to, _]) = to.recv() else { return Ok(()) };
        host_send(host, to, self.flows, self.source, self.traffic)
    }

    /// Runs the hub, with the bottleneck at the receiver's port, then gives the senders the address.
    fn join(
        &self,
        taps: Receiver<(End, Tap)>,
        host: Option<PairEnd>,
        address: Receiver<Addresses>,
        senders: [Sender<Addresses>; 2],
    ) -> Result<(), Failure> {
        let (mut devices, mut receiver) = (Vec::<Box<dyn Device>>::new(), None);
        // Ends when every thread has made its tap, or failed.
        while let Ok((end, tap)) = taps.recv() {
            match end {
                End::Receiver => receiver = Some(tap),
                End::Sender => devices.push(Box::new(tap)),
            }
        }
        let expected = 1 + usize::from(self.options.kernels);
        let Some(receiver) = receiver.filter(|_| devices.len() == expected) else { return Ok(()) };
        if let Some(device) = host {
            devices.push(Box::new(device));
        }
        let back = FaultConfig {
            delay: self.options.delay.0,
            on: FaultDirection::Receive,
            cut: false,
            ..FaultConfig::default()
        };
        let path = Fault::new(Fault::new(receiver, bottleneck(self.options)), back);
        devices.push(Box::new(path));
        // Connections are possible from now on.
        let Ok(both) = address.recv() else { return Ok(()) };
        for sender in senders {
            let _ = sender.send(both);
        }
        hub::run(devices, &self.traffic.over)
    }
}
