//! `bench share`: flows from Pagewire and flows from a kernel meet in one bottleneck.
//!
//! ```text
//!   pagewire -- pair --\
//!                       hub -- rate, drop-tail queue, delay -- tap -- kernel
//!   kernel ---- tap ---/
//! ```
//!
//! Both sides have equally many flows to one kernel, which begin together and are counted apart.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use pagewire::Device;
use pagewire::device::{Fault, FaultConfig, FaultConfigError, FaultDirection};

use crate::args::{Common, Options, Plan, delay, seconds};
use crate::failure::Failure;
use crate::kit::flows::{Part, Traffic, host_send, kernel_receive, kernel_send};
use crate::kit::hosts::{self, LEFT, RIGHT, captured};
use crate::kit::hub;
use crate::kit::kernel;
use crate::kit::machine::{Machine, SPREAD};
use crate::kit::meter::Round;
use crate::kit::namespace::NetNs;
use crate::kit::source::Source;
use crate::progress::Progress;
use crate::table::{Field, Measurement, Results, records, some};

/// How flows of Pagewire and of the kernel share a bottleneck; needs root
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ShareOptions {
    /// Rate of the bottleneck, as in 20mbit
    #[arg(long, default_value = "50mbit", value_parser = rate, value_name = "RATE")]
    rate: u64,

    /// Packets that its drop-tail queue holds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    limit: u16,

    /// Delay each way
    #[arg(long, default_value = "10ms", value_parser = delay, value_name = "TIME")]
    delay: Duration,

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

/// Parses bits in a second as fault settings have them.
fn rate(text: &str) -> Result<u64, FaultConfigError> {
    Ok(format!("rate={text}").parse::<FaultConfig>()?.rate.unwrap_or_default())
}

const RIVAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);

/// Time before a round counts: all flows are out of slow start.
const WARM_UP: Duration = Duration::from_secs(2);

impl Options for ShareOptions {
    fn plan(&self) -> Plan {
        Plan::of::<Sides>(true, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let source = Source::new();
        let mut rounds: Vec<[Round; 2]> = Vec::new();
        progress.begin(self.common.rounds.into());
        for number in 1..=self.common.rounds {
            progress.round(number, self.common.rounds, "both sides at once");
            rounds.push(round(self, &source)?);
            progress.advance(1);
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
            let rate = of.bench.0.rate as f64;
            of.spread(|both| own(both, *of.case).gbit_per_s() * 1e11 / rate)
        })
        .plain("Part of the bottleneck", "%"),
        F::value("bottleneck", |of| some(bottleneck(&of.bench.0).to_string())).group("{}"),
        F::value("congestion", |_| some("cubic")),
    ];

    fn engine(&self, class: &usize) -> (String, &'static str) {
        let ours = *class == 0 && !self.0.kernels;
        (if ours { "pagewire" } else { "kernel" }.to_owned(), "bottleneck")
    }

    fn round(&self, class: &usize, both: &[Round; 2]) -> Round {
        own(both, *class)
    }
}

/// Towards the receiver.
fn bottleneck(options: &ShareOptions) -> FaultConfig {
    FaultConfig {
        rate: Some(options.rate),
        limit: usize::from(options.limit),
        delay: options.delay,
        cut: true,
        on: FaultDirection::Transmit,
        ..FaultConfig::default()
    }
}

fn round(options: &ShareOptions, source: &Source) -> Result<[Round; 2], Failure> {
    let traffic = &Traffic::new(options.common.stats);
    let flows = usize::from(options.flows);
    let (receiver, receiver_tap) = NetNs::with_tap(RIGHT)?;
    let (rival, rival_tap) = NetNs::with_tap(RIVAL)?;
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(rival_tap)];
    // A kernel takes the flows of both classes.
    let listen = || receiver.inside(|| kernel::listen(RIGHT));
    let ((first, to_first), (second, to_second)) = (listen()?, listen()?);
    let sending: Part<'_> = if options.kernels {
        let (kernel, tap) = NetNs::with_tap(LEFT)?;
        devices.push(Box::new(tap));
        Box::new(move || kernel_send(&kernel, to_first, flows, source, traffic))
    } else {
        let (ours, hubs, _) = hosts::pair(Some(1500))?;
        devices.push(Box::new(hubs));
        let host = hosts::on(captured(ours, options.pcap.as_deref())?, LEFT).start()?;
        Box::new(move || host_send(&host, to_first, flows, source, traffic))
    };
    let back = FaultConfig {
        delay: options.delay,
        on: FaultDirection::Receive,
        cut: false,
        ..FaultConfig::default()
    };
    let bottleneck = Fault::new(receiver_tap, bottleneck(options));
    devices.push(Box::new(Fault::new(bottleneck, back)));
    let parts: [Part<'_>; 5] = [
        Box::new(|| hub::run(devices, &traffic.over)),
        Box::new(move || kernel_receive(&first, flows, 0, traffic)),
        Box::new(move || kernel_receive(&second, flows, 1, traffic)),
        sending,
        Box::new(|| kernel_send(&rival, to_second, flows, source, traffic)),
    ];
    let length = Duration::from_secs_f64(options.seconds);
    let rounds = traffic.run(parts.into(), 2 * flows, WARM_UP, length)?;
    if options.common.stats {
        eprintln!("{rounds:?}\n{}", traffic.reports().join("\n"));
    }
    Ok(rounds)
}
