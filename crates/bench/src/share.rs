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
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use clap::Args;
use pagewire::device::{Fault, FaultConfig, FaultConfigError, FaultDirection, PairEnd};
use pagewire::{Device, Host, Tap};

use crate::args::{Common, Delay, Options, Plan, seconds};
use crate::failure::{Because, Failure};
use crate::flows::{SOCKET, Traffic, host_send, kernel_receive, kernel_send};
use crate::hosts::{self, LEFT, RIGHT, captured};
use crate::hub;
use crate::kernel;
use crate::machine::{Machine, SPREAD, joined};
use crate::meter::Round;
use crate::progress::Progress;
use crate::source::Source;
use crate::table::{Field, Measurement, Results, records, some};

/// How flows of Pagewire and of the kernel share a bottleneck; needs root
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ShareOptions {
    /// Rate of the bottleneck, as in 20mbit
    #[arg(long, default_value = "50mbit", value_name = "RATE")]
    rate: Rate,

    /// Packets that its drop-tail queue holds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    limit: u16,

    /// Delay each way
    #[arg(long, default_value = "10ms", value_name = "TIME")]
    delay: Delay,

    /// Flows of each side
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    flows: u16,

    /// Seconds that a round lasts, after a warm-up of two
    #[arg(long, default_value_t = 60.0, value_parser = seconds, value_name = "S")]
    seconds: f64,

    /// Write the headers of Pagewire's packets to FILE, in pcapng: those of the last round
    #[arg(long, value_name = "FILE", conflicts_with = "kernels")]
    pcap: Option<PathBuf>,

    /// A second kernel in Pagewire's place: how even kernels share
    #[arg(long)]
    kernels: bool,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench share
      two flows of each side in 50 Mbit/s
  pagewire bench share --rate 20mbit --delay 40ms --flows 8 --kernels
      how two kernels share that bottleneck";

/// Bits in a second as fault settings have them.
#[derive(Clone, Copy, Debug)]
struct Rate(u64);

impl FromStr for Rate {
    type Err = FaultConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let config = format!("rate={text}").parse::<FaultConfig>()?;
        Ok(Self(config.rate.unwrap_or_default()))
    }
}

const RIVAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

/// Time before a round counts: all flows are out of slow start.
const WARM_UP: Duration = Duration::from_secs(2);

impl Options for ShareOptions {
    fn plan(&self) -> Plan {
        Plan::of::<Sides>(true, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        kernel::check_privilege()?;
        let source = Source::new();
        let mut rounds: Vec<[Round; 2]> = Vec::new();
        progress.begin(self.common.rounds.into());
        for number in 1..=self.common.rounds {
            progress.round(number, self.common.rounds, "both sides at once");
            rounds.push(round(self, &source)?);
            progress.step();
        }
        progress.end();
        let heading = format!(
            "{}; {} against {} flow(s) in {} for {} s, {} rounds, medians{SPREAD}",
            Machine::describe(),
            self.flows,
            self.flows,
            bottleneck(self),
            self.seconds,
            self.common.rounds
        );
        let columns = "engine flows mbit_per_s share_percent min_share_percent max_share_percent \
            of_rate_percent";
        let lines = [(0, rounds.clone()), (1, rounds)];
        let records = records(&Sides(self.clone()), &lines);
        Ok(Results::print(records, self.common.json, heading, columns))
    }
}

/// Both sides, which are measured at once.
struct Sides(ShareOptions);

/// The round of a class.
fn own(both: &[Round; 2], class: usize) -> Round {
    let [first, second] = both;
    if class == 0 { *first } else { *second }
}

type F = Field<Sides>;

impl Measurement for Sides {
    /// The class of flows.
    type Case = usize;
    type Sample = [Round; 2];

    const NAME: &'static str = "share";
    const TITLE: &'static str = "A shared bottleneck";
    const ABOUT: &'static str = "Flows of both sides meet in one queue. A half each is fair.";
    const RATE: bool = false;
    const FIELDS: &'static [Field<Self>] = &[
        F::value("flows", |of| some(of.bench.0.flows)).group("{} flow(s) of each side"),
        F::spread("mbit_per_s", 3, |of| of.spread(|both| own(both, *of.case).gbit_per_s() * 1e3))
            .higher("Goodput", "Mbit/s"),
        F::bounded("share_percent", 1, |of| {
            of.spread(|both| {
                let all: u64 = both.iter().map(|round| round.bytes).sum();
                own(both, *of.case).bytes as f64 * 100.0 / all.max(1) as f64
            })
        })
        .plain("Share of what arrived", "%")
        .first(),
        F::spread("of_rate_percent", 1, |of| {
            let rate = of.bench.0.rate.0 as f64;
            of.spread(|both| own(both, *of.case).gbit_per_s() * 1e11 / rate)
        })
        .plain("Part of the bottleneck", "%"),
        F::value("bottleneck", |of| some(bottleneck(&of.bench.0).to_string())).group("{}"),
        F::value("congestion", |_| some("cubic")),
    ];

    fn engine(&self, class: &usize) -> (&'static str, &'static str) {
        let ours = *class == 0 && !self.0.kernels;
        (if ours { "pagewire" } else { "kernel" }, "bottleneck")
    }

    fn round(&self, class: &usize, both: &[Round; 2]) -> Round {
        own(both, *class)
    }
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
