//! `bench send`: a sender's CPU time, by copy and by reference with completions, measured as in the
//! cover letter of Linux's MSG_ZEROCOPY.
//!
//! There, one figure is the cycles of the sending process, the other those of its machine, without
//! the peer. So the receiver here takes by reference in both modes (`--receiver copy`: it copies),
//! and the system's figure is the sender with both stacks. [`engines`] divides the time.

mod engines;

use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::args::{Common, Link, Mtu, Options, Plan, name, seconds, send_size};
use crate::failure::{Failure, say};
use crate::kit::engine::Engine;
use crate::kit::machine::{SPREAD, Sides};
use crate::kit::meter::{Round, Spread};
use crate::kit::source::{Mode, Source};
use crate::numbers::size_name;
use crate::progress::Progress;
use crate::table::{
    COPIED, Field, IN_A_ROUND, InTurns, Measurement, ResultLine, Results, Row, US_PER_MIB,
    in_turns, records, some,
};
use engines::{SendBench, SendSample};

/// CPU time of a sender: by copy, and by reference with completions
///
/// Beside it, the kernel's sockets with and without MSG_ZEROCOPY. Over the pair link the sender's
/// figure excludes the receiver; over a tap (root) the peer is a kernel socket.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SendOptions {
    /// Kind of link; over a tap the peer is a kernel socket (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    link: Link,

    /// Bytes of each send: a number with K or M, 1 to 16M; repeatable, or with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4K,16K,64K,256K,1M",
        value_parser = send_size,
        value_name = "BYTES"
    )]
    size: Vec<u64>,

    /// How the receiver on the pair link takes the data, in both modes
    #[arg(long, value_enum, default_value_t = SendReceiver::Reference, value_name = "HOW")]
    receiver: SendReceiver,

    /// Seconds that a round of each size, mode and engine lasts
    #[arg(long, default_value_t = 0.5, value_parser = seconds, value_name = "S")]
    seconds: f64,

    #[command(flatten)]
    link_mtu: Mtu,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench send --rounds 5 --plot send.svg
      sizes of 4K to 1M by copy and by reference, and a drawing of them
  pagewire bench send --link tap --size 64K,1M
      to a kernel socket; root";

/// How received data is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SendReceiver {
    /// As references, which are dropped
    Reference,
    /// Copied out, into one buffer
    Copy,
}

/// The cover letter's figures for a size in bytes: per cent of copy, for the sender and its system.
const SOURCE_DOCUMENT: [(usize, u32, u32); 5] = [
    (4 << 10, 41, 79),
    (16 << 10, 18, 67),
    (64 << 10, 11, 64),
    (256 << 10, 10, 63),
    (1 << 20, 8, 61),
];

impl Options for SendOptions {
    fn plan(&self) -> Plan {
        Plan::of::<SendBench>(self.link == Link::Tap, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        if self.link == Link::Tap && self.receiver == SendReceiver::Copy {
            let text = "--receiver says how the pair link's receiver takes data; over a tap it is the kernel's";
            return Err(Failure::Usage(text.into()));
        }
        let engines = Engine::on(self.link, self.link_mtu.mtu);
        let (source, sides) = (Source::new(), Sides::choose());
        let bench = SendBench { source, sides, options: self.clone() };
        // Copy and zero copy of an engine follow each other, so that they run under equal conditions.
        let mut cases = Vec::new();
        for &size in &self.size {
            for engine in engines {
                let modes = [Mode::Copy, Mode::Zerocopy];
                cases.extend(modes.map(|mode| SendCase { engine, mode, size: size as usize }));
            }
        }
        let lines = in_turns(&bench, cases, self.common.rounds, progress)?;
        let heading = self.common.heading(self.seconds, SPREAD);
        let columns = "engine link mode size gbit_per_s sends completions completed_copied \
            sender_cpu_us_per_mib min_sender_cpu_us_per_mib max_sender_cpu_us_per_mib \
            system_cpu_us_per_mib sender_cycles_per_64k payload_bytes_copied";
        let results = Results::print(records(&bench, &lines), self.common.json, heading, columns);
        if !self.common.json {
            print_ratios(&results);
        }
        Ok(results)
    }
}

#[derive(Clone, Copy, Debug)]
struct SendCase {
    engine: Engine,
    mode: Mode,
    size: usize,
}

type F = Field<SendBench>;

impl Measurement for SendBench {
    type Case = SendCase;
    type Sample = SendSample;

    const NAME: &'static str = "send";
    const TITLE: &'static str = "CPU time of a sender";
    const ABOUT: &'static str = "\
        By copy, and by reference with completions, as in the source document of Linux's \
        MSG_ZEROCOPY, whose own figures stand beside the ratios.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("mode", |of| some(name(of.case.mode))).part("{}"),
        F::value("size", |of| some(of.case.size))
            .group("sends of {} bytes")
            .over("bytes of each send"),
        F::value("sends", |of| of.median(|s| s.sent.sends)).plain("Sends", "in a round"),
        F::value("completions", |of| of.median(|s| s.sent.completions))
            .plain("Completions", "in a round"),
        F::value("completed_copied", |of| of.median(|s| s.sent.completed_copied))
            .lower("Completions of copies", "in a round"),
        F::bounded("sender_cpu_us_per_mib", 3, |of| of.spread(|s| s.sender))
            .lower("CPU time of the sender", US_PER_MIB)
            .first(),
        F::bounded("system_cpu_us_per_mib", 3, |of| of.spread(|s| s.system))
            .lower("CPU time of both stacks", US_PER_MIB)
            .first(),
        F::value("receiver", |of| match of.case.engine {
            Engine::Pair => some(name(of.bench.options.receiver)),
            Engine::Tap | Engine::Kernel(_) => some("kernel"),
        }),
        F::value("mtu", |of| of.median(|s| s.mtu)),
        F::spread("sender_percent_of_copy", 1, |of| percent_of_copy(of, |s| s.sender))
            .lower("Sender, by reference", "% of by copy")
            .first(),
        F::spread("system_percent_of_copy", 1, |of| percent_of_copy(of, |s| s.system))
            .lower("Both stacks, by reference", "% of by copy")
            .first(),
        F::spread("sender_cycles_per_64k", 0, |of| {
            let has_cycles = of.case.engine == Engine::Pair && cfg!(target_arch = "x86_64");
            of.spread(|s| s.ticks.unwrap_or_default()).filter(|_| has_cycles)
        })
        .lower("Cycles of the sender", "for 64 KiB"),
        F::value("payload_bytes_copied", |of| {
            of.median(|s| s.copied).filter(|_| !of.case.engine.is_kernel())
        })
        .lower(COPIED, IN_A_ROUND),
    ];

    fn engine(&self, case: &SendCase) -> (String, &'static str) {
        case.engine.names()
    }

    fn round(&self, _: &SendCase, sample: &SendSample) -> Round {
        sample.round
    }

    /// The figures of MSG_ZEROCOPY's source document, beside ratios.
    fn beside(field: &str, rows: &[&Row]) -> Vec<Row> {
        if !field.ends_with("_percent_of_copy") {
            return Vec::new();
        }
        let measured = |size: usize| rows.iter().any(|row| row.get("size") == Some(&size.into()));
        let known = SOURCE_DOCUMENT.iter().filter(|(size, ..)| measured(*size));
        let row = |&(size, sender, system): &(usize, u32, u32)| {
            let engine = ("engine", "source document of MSG_ZEROCOPY".into());
            let percent = |who, n: u32| (who, n.into());
            let sender = percent("sender_percent_of_copy", sender);
            let system = percent("system_percent_of_copy", system);
            let fields = [engine, ("size", size.into()), sender, system];
            fields
                .map(|(name, value): (&str, Value)| (name.to_owned(), value))
                .into_iter()
                .collect()
        };
        known.map(row).collect()
    }
}

impl InTurns for SendBench {
    fn sample(&self, &case: &SendCase, _: u16) -> Result<SendSample, Failure> {
        match case.engine {
            Engine::Pair => self.pair(case),
            Engine::Tap => self.tap(case),
            Engine::Kernel(between) => self.kernel(between, case),
        }
    }
}

/// Zero copy in per cent of copy, in pairs of rounds.
fn percent_of_copy(of: &ResultLine<'_, SendBench>, part: fn(&SendSample) -> f64) -> Option<Spread> {
    let SendCase { engine, mode, size } = *of.case;
    let is_copy = |c: &SendCase| c.engine == engine && c.size == size && c.mode == Mode::Copy;
    let (_, copies) = of.all.iter().find(|(case, _)| is_copy(case))?;
    let pairs = of.samples.iter().zip(copies);
    let percent = |(zc, copy): (&SendSample, &SendSample)| 100.0 * part(zc) / part(copy).max(1e-9);
    (mode == Mode::Zerocopy).then(|| Spread::of(pairs.map(percent)))
}

/// The table of the cover letter, with ours beside it.
fn print_ratios(results: &Results) {
    say("");
    say("CPU time by reference in per cent of by copy, beside MSG_ZEROCOPY's cover letter");
    say(format_args!(
        "{:>8}  {:>8}  {:>8}  {:>10}  {:>8}  {:>8}  {:>10}",
        "size", "engine", "sender", "(document)", "system", "", "(document)"
    ));
    for line in results.records.iter().map(|record| &record.line) {
        let number = |field: &str| line.get(field).and_then(Value::as_f64);
        let engine = line.get("engine").and_then(Value::as_str).unwrap_or_default();
        let (Some(size), Some(sender), Some(system)) =
            (number("size"), number("sender_percent_of_copy"), number("system_percent_of_copy"))
        else {
            continue;
        };
        let known = SOURCE_DOCUMENT.iter().find(|(known, ..)| *known as f64 == size);
        let (its_sender, its_system) = known
            .map_or(("-".to_owned(), "-".to_owned()), |(_, a, b)| {
                (format!("{a} %"), format!("{b} %"))
            });
        say(format_args!(
            "{:>8}  {engine:>8}  {sender:>6.1} %  {its_sender:>10}  {system:>6.1} %  {:>8}  {its_system:>10}",
            size_name(size),
            ""
        ));
    }
}
