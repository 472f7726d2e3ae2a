//! `bench receive`: what receiving costs the receiver, by copy, by mapping and in chunks.
//!
//! Over the pair link both hosts run on one thread: the sender's pages are those of a registered
//! region, and the receiver's time is measured apart. Over a tap a kernel socket sends. Beside it,
//! in the same rounds, kernel sockets: `read`, and `TCP_ZEROCOPY_RECEIVE` for pages that were sent
//! with `MSG_ZEROCOPY` and an MSS of whole pages.
//!
//! This file counts and prints; [`ours`] is how a host receives, [`kernel`] how a kernel socket does.

mod kernel;
mod ours;

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::args::{Common, Link, Mtu, Options, Plan, Time, name};
use crate::failure::{Failure, say};
use crate::kit::engine::Engine;
use crate::kit::machine::{SPREAD, Sides};
use crate::kit::meter::{Meter, Round, us_per_mib};
use crate::kit::source::{Reader, Source};
use crate::numbers::rounded;
use crate::progress::Progress;
use crate::sys::{Usage, process_usage, thread_usage};
use crate::table::{
    COPIED, Field, IN_A_ROUND, InTurns, Measurement, Results, US_PER_MIB, in_turns, records, some,
};

/// CPU time of a receiver: by copy, by mapping and in chunks
///
/// Beside it, the kernel's sockets with read and with TCP_ZEROCOPY_RECEIVE. Over the pair link the
/// time of the receiver's stack and application is measured apart from the sender's; over a tap
/// (root) kernel sockets send.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ReceiveOptions {
    /// Kind of link; over a tap kernel sockets send (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    link: Link,

    /// How the receiver takes what came [default: each in its turn]
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<ReceiveMode>,

    /// Connections that are received on at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "N")]
    flows: u16,

    /// Whether the receiver touches every byte
    #[arg(long, value_enum, default_value_t = Reader::None, value_name = "READER")]
    reader: Reader,

    #[command(flatten)]
    time: Time,

    #[command(flatten)]
    link_mtu: Mtu,

    /// Have the other side send segments of N whole pages of 4096 bytes, 1 to 15, and take the
    /// MTU for it unless one is given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=15))]
    payload_pages: Option<u8>,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench receive --flows 8 --reader sum
      eight connections over the pair link, every byte summed
  pagewire bench receive --link tap --mode map --payload-pages 15
      mapped, from a kernel socket that sends whole pages; root";

/// How a receiver takes data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReceiveMode {
    /// Into a buffer of its own
    Copy,
    /// Whole pages as one view, the rest by copy
    Map,
    /// By reference, whatever the alignment
    Chunks,
}

/// Bytes read or mapped at once, by either engine: as in the kernel's `tcp_mmap`.
const CHUNK: usize = 512 << 10;

impl Options for ReceiveOptions {
    fn plan(&self) -> Plan {
        Plan::of::<ReceiveBench>(self.link == Link::Tap, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let [ours, kernel] = Engine::on(self.link, self.link_mtu.mtu);
        let (source, sides) = (Source::new(), Sides::choose());
        let bench = ReceiveBench { source, sides, options: self.clone() };
        let wanted = |mode: ReceiveMode| self.mode.is_none_or(|only| only == mode);
        let mut cases: Vec<ReceiveCase> = Vec::new();
        for &mode in ReceiveMode::value_variants().iter().filter(|mode| wanted(**mode)) {
            cases.push(ReceiveCase { engine: ours, mode });
        }
        // The kernel's receive by copy is always measured: all others are compared with it.
        cases.push(ReceiveCase { engine: kernel, mode: ReceiveMode::Copy });
        if wanted(ReceiveMode::Map) {
            cases.push(ReceiveCase { engine: kernel, mode: ReceiveMode::Map });
        }
        let lines = in_turns(&bench, cases, self.common.rounds, progress)?;
        if !self.common.json {
            for (ReceiveCase { engine, mode }, samples) in &lines {
                let (engine, link) = engine.names();
                say(format_args!("{engine} {link}, {}:", name(*mode)));
                samples.iter().for_each(say);
            }
        }
        let heading = self.common.heading(self.time.seconds, SPREAD);
        let columns = "engine link mode reader flows mtu gbit_per_s min_gbit_per_s max_gbit_per_s \
            receiver_cpu_us_per_mib system_cpu_us_per_mib mapped_percent payload_bytes_copied";
        Ok(Results::print(records(&bench, &lines), self.common.json, heading, columns))
    }
}

#[derive(Clone, Copy, Debug)]
struct ReceiveCase {
    engine: Engine,
    mode: ReceiveMode,
}

struct ReceiveBench {
    source: Source,
    sides: Sides,
    options: ReceiveOptions,
}

type F = Field<ReceiveBench>;

impl Measurement for ReceiveBench {
    type Case = ReceiveCase;
    type Sample = ReceiveSample;

    const NAME: &'static str = "receive";
    const TITLE: &'static str = "CPU time of a receiver";
    const ABOUT: &'static str = "\
        Into a buffer (copy), as mapped pages (map), and by reference (chunks), beside the \
        kernel's read and TCP_ZEROCOPY_RECEIVE.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("mode", |of| some(name(of.case.mode))).part("{}"),
        F::value("flows", |of| some(of.bench.options.flows)).group("{} connection(s)"),
        F::value("reader", |of| some(name(of.bench.options.reader))),
        F::value("mtu", |of| of.samples.last().map(|sample| sample.mtu.into())),
        F::spread("receiver_cpu_us_per_mib", 3, |of| of.spread(ReceiveSample::receiver_us_per_mib))
            .lower("CPU time of the receiver", US_PER_MIB)
            .first(),
        F::spread("system_cpu_us_per_mib", 3, |of| of.spread(ReceiveSample::system_us_per_mib))
            .lower("CPU time of both stacks", US_PER_MIB)
            .first(),
        F::spread("mapped_percent", 4, |of| of.spread(ReceiveSample::mapped_percent))
            .higher("Received in mapped pages", "% of the bytes"),
        F::value("payload_bytes_copied", |of| {
            of.samples.iter().map(|sample| sample.copied).max().map(Into::into)
        })
        .lower(COPIED, IN_A_ROUND),
    ];

    fn engine(&self, case: &ReceiveCase) -> (String, &'static str) {
        case.engine.names()
    }

    fn round(&self, _: &ReceiveCase, sample: &ReceiveSample) -> Round {
        sample.round
    }
}

impl InTurns for ReceiveBench {
    fn sample(
        &self,
        &ReceiveCase { engine, mode }: &ReceiveCase,
        _: u16,
    ) -> Result<ReceiveSample, Failure> {
        match engine {
            Engine::Kernel(between) => kernel::round(self, between, mode),
            Engine::Pair => ours::pair(self, mode),
            Engine::Tap => ours::tap(self, mode),
        }
    }
}

/// The result of a round.
#[derive(Clone, Copy, Debug)]
struct ReceiveSample {
    /// `receiver_cpu` includes the receiver's stack, its application, and the kernel's work for them.
    round: Round,
    /// Bytes that were seen in mapped pages.
    mapped: u64,
    /// The receiver's part of the time, as the system divides it.
    user: Duration,
    system: Duration,
    switches: u64,
    /// CPU time of all threads of both sides.
    everyone: Duration,
    /// Payload bytes that the receiving side copied, in all of the round.
    copied: u64,
    mtu: u32,
}

impl ReceiveSample {
    fn receiver_us_per_mib(&self) -> f64 {
        us_per_mib(self.round.receiver_cpu, self.round.bytes)
    }

    fn system_us_per_mib(&self) -> f64 {
        us_per_mib(self.everyone, self.round.bytes)
    }

    fn mapped_percent(&self) -> f64 {
        100.0 * self.mapped as f64 / (self.round.bytes as f64).max(1.0)
    }
}

/// The lines that users of the kernel's `tcp_mmap` know.
impl std::fmt::Display for ReceiveSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = self.round.bytes as f64 / f64::from(1 << 20);
        let percent = rounded(self.mapped_percent(), 4);
        let (seconds, rate) = (self.round.time.as_secs_f64(), self.round.gbit_per_s());
        writeln!(
            f,
            "received {mib:.0} MB ({percent} % mmap'ed) in {seconds:.5} s, {rate:.4} Gbit,"
        )?;
        let (user, system) = (self.user.as_secs_f64(), self.system.as_secs_f64());
        let per_mib = self.receiver_us_per_mib();
        let switches = self.switches;
        write!(
            f,
            "  cpu usage user:{user:.3} sys:{system:.3}, {per_mib:.3} usec per MB, {switches} c-switches"
        )
    }
}

/// Counts what a receiver gets from the end of the warm-up to the end of the round.
struct ReceiveMeter {
    meter: Meter,
    /// The use of this thread, and of all threads, at the end of the warm-up.
    before: Option<(Usage, Usage)>,
    mapped: u64,
}

/// The bytes that a receiver took at once.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    bytes: usize,
    /// The part of `bytes` in mapped pages.
    mapped: usize,
}

impl ReceiveMeter {
    fn new(seconds: f64) -> Self {
        Self { meter: Meter::new(seconds), before: None, mapped: 0 }
    }

    /// Whether the warm-up is over.
    fn counts(&self) -> bool {
        self.before.is_some()
    }

    /// Counts what was taken; returns the result when the round is over. `receiving`: on a shared
    /// thread, the receiver's time since the warm-up, for its part of the thread's CPU time.
    fn add(&mut self, taken: Taken, receiving: Option<Duration>) -> Option<ReceiveSample> {
        let round = self.meter.count(taken.bytes);
        let Some((thread, everyone)) = self.before else {
            self.before = self.meter.is_running().then(|| (thread_usage(), process_usage()));
            return None;
        };
        self.mapped += taken.mapped as u64;
        let round = round?;
        let (thread, everyone) = (since(thread_usage(), thread), since(process_usage(), everyone));
        let all = thread.user + thread.system;
        let whole = round.time.as_secs_f64().max(1e-9);
        let part = receiving.map_or(1.0, |own| (own.as_secs_f64() / whole).min(1.0));
        Some(ReceiveSample {
            round: Round { receiver_cpu: all.mul_f64(part), ..round },
            mapped: self.mapped,
            user: thread.user.mul_f64(part),
            system: thread.system.mul_f64(part),
            switches: thread.switches,
            everyone: everyone.user + everyone.system,
            copied: 0,
            mtu: 0,
        })
    }
}

fn since(now: Usage, before: Usage) -> Usage {
    Usage {
        user: now.user.saturating_sub(before.user),
        system: now.system.saturating_sub(before.system),
        switches: now.switches.saturating_sub(before.switches),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readable_lines_are_those_of_the_source_document() {
        let sample = ReceiveSample {
            round: Round {
                bytes: 32_768 << 20,
                time: Duration::from_millis(8_018),
                receiver_cpu: Duration::from_millis(1_466),
            },
            mapped: (32_768 << 20) / 100 * 99,
            user: Duration::from_millis(20),
            system: Duration::from_millis(1_446),
            switches: 65_505,
            everyone: Duration::from_secs(8),
            copied: 0,
            mtu: 4168,
        };
        assert_eq!(
            sample.to_string(),
            "received 32768 MB (99 % mmap'ed) in 8.01800 s, 34.2826 Gbit,\n  \
             cpu usage user:0.020 sys:1.446, 44.739 usec per MB, 65505 c-switches"
        );
    }
}
