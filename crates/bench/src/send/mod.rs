//! `bench send`: a sender's CPU time, by copy and by reference with completions, measured as in the
//! cover letter of Linux's MSG_ZEROCOPY.
//!
//! There, one figure is the cycles of the sending process, the other those of its machine, without
//! the peer. So the receiver here takes by reference in both modes (`--receiver copy`: it copies),
//! and the system's figure is the sender with both stacks. [`engines`] divides the time.

mod engines;

use crate::failure::{Failure, say};
use crate::kernel::{Between, check_privilege};
use crate::machine::{Machine, SPREAD, Sides, on_a_thread};
use crate::meter::{Round, Spread, in_turns};
use crate::options::{Link, SendOptions, Taking, name};
use crate::plot::size_name;
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};
use crate::source::{Mode, Source};
use engines::{Engines, Sample};

/// The cover letter's figures for a size in bytes: per cent of copy, for the sender and its system.
pub(crate) const SOURCE_DOCUMENT: [(usize, u32, u32); 5] = [
    (4 << 10, 41, 79),
    (16 << 10, 18, 67),
    (64 << 10, 11, 64),
    (256 << 10, 10, 63),
    (1 << 20, 8, 61),
];

pub(crate) fn run(options: &SendOptions, progress: &Progress) -> Result<Results, Failure> {
    let kernel = match options.link {
        Link::Pair => Between::Loopback,
        Link::Tap if options.receiver == Taking::Copy => {
            let text = "--receiver says how the pair link's receiver takes data; over a tap it is the kernel's";
            return Err(Failure::Usage(text.into()));
        }
        Link::Tap => Between::Veth { mtu: options.mtu },
    };
    if options.link == Link::Tap {
        check_privilege()?;
    }
    let engines = Engines {
        source: Source::new(),
        sides: Sides::choose(),
        seconds: options.seconds,
        mtu: options.mtu,
        receiver: options.receiver,
        stats: options.common.stats,
    };
    let mut lines = lines(options, kernel);
    let sample = |line: &Line| on_a_thread(|| engines.sample(line.engine, line.case));
    in_turns(progress, options.common.rounds, &mut lines, Line::name, sample, |line, sample| {
        line.samples.push(sample)
    })?;
    let machine = Machine::describe();
    let ratios: Vec<_> = lines.iter().map(|line| ratios(line, &lines)).collect();
    let records: Vec<_> =
        lines.iter().zip(&ratios).map(|(line, r)| line.record(*r, options).on(&machine)).collect();
    let heading = machine.heading(options.common.rounds, options.seconds, SPREAD);
    let columns = "engine link mode size gbit_per_s sends completions completed_copied \
        sender_cpu_us_per_mib min_sender_cpu_us_per_mib max_sender_cpu_us_per_mib \
        system_cpu_us_per_mib sender_cycles_per_64k payload_bytes_copied";
    let results = print(records, options.common.json, heading, columns);
    if !options.common.json {
        print_ratios(&lines, &ratios);
    }
    Ok(results)
}

#[derive(Clone, Copy, Debug)]
struct Case {
    mode: Mode,
    size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Pair,
    Tap,
    Kernel(Between),
}

impl Engine {
    /// The engine and its link.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Pair => ("pagewire", "pair"),
            Self::Tap => ("pagewire", "tap"),
            Self::Kernel(Between::Loopback) => ("kernel", "loopback"),
            Self::Kernel(Between::Veth { .. }) => ("kernel", "veth"),
        }
    }
}

/// What is measured in turns, and what came out.
struct Line {
    engine: Engine,
    case: Case,
    samples: Vec<Sample>,
}

/// Copy and zero copy of an engine follow each other, so that they run under equal conditions.
fn lines(options: &SendOptions, kernel: Between) -> Vec<Line> {
    let ours = match options.link {
        Link::Pair => Engine::Pair,
        Link::Tap => Engine::Tap,
    };
    let mut all = Vec::new();
    for &size in &options.size {
        for engine in [ours, Engine::Kernel(kernel)] {
            for mode in [Mode::Copy, Mode::Zerocopy] {
                let case = Case { mode, size: size as usize };
                all.push(Line { engine, case, samples: Vec::new() });
            }
        }
    }
    all
}

impl Engines {
    fn sample(&self, engine: Engine, case: Case) -> Result<Sample, Failure> {
        match engine {
            Engine::Pair => self.pair(case),
            Engine::Tap => self.tap(case),
            Engine::Kernel(between) => self.kernel(between, case),
        }
    }
}

/// Zero copy in per cent of copy, of the sender and of the system.
type Ratios = (Spread, Spread);

/// Medians of pairs of rounds.
fn ratios(line: &Line, all: &[Line]) -> Option<Ratios> {
    let same = |l: &&Line| l.engine == line.engine && l.case.size == line.case.size;
    let copy = all.iter().filter(same).find(|l| l.case.mode == Mode::Copy)?;
    let of = |part: fn(&Sample) -> f64| {
        let pairs = line.samples.iter().zip(&copy.samples);
        Spread::of(pairs.map(|(zc, copy)| 100.0 * part(zc) / part(copy).max(1e-9)))
    };
    (line.case.mode == Mode::Zerocopy).then(|| (of(|s| s.sender), of(|s| s.system)))
}

impl Line {
    /// What is measured, for the line of progress.
    fn name(&self) -> String {
        let ((engine, link), Case { mode, size }) = (self.engine.names(), self.case);
        format!("{engine} over {link}, {}, sends of {}", mode.name(), size_name(size as f64))
    }

    fn spread(&self, part: fn(&Sample) -> f64) -> Spread {
        Spread::of(self.samples.iter().map(part))
    }

    /// The round whose rate is the median.
    fn median_round(&self) -> Option<&Sample> {
        Spread::by(&self.samples, |s| s.round.gbit_per_s()).map(|all| all.median)
    }

    fn record(&self, ratios: Option<Ratios>, options: &SendOptions) -> Record {
        let (engine, link) = self.engine.names();
        let rounds: Vec<Round> = self.samples.iter().map(|s| s.round).collect();
        let (sender, system) = (self.spread(|s| s.sender), self.spread(|s| s.system));
        let median = self.median_round();
        let sent = median.map(|s| s.sent).unwrap_or_default();
        let receiver = match self.engine {
            Engine::Pair => name(options.receiver),
            Engine::Tap | Engine::Kernel(_) => "kernel".to_owned(),
        };
        let mut record = Record::of_rounds("send", engine, link, &rounds)
            .with("mode", self.case.mode.name())
            .with("size", self.case.size)
            .with("sends", sent.sends)
            .with("completions", sent.completions)
            .with("completed_copied", sent.completed_copied)
            .with("sender_cpu_us_per_mib", rounded(sender.median, 3))
            .with("min_sender_cpu_us_per_mib", rounded(sender.min, 3))
            .with("max_sender_cpu_us_per_mib", rounded(sender.max, 3))
            .with("system_cpu_us_per_mib", rounded(system.median, 3))
            .with("min_system_cpu_us_per_mib", rounded(system.min, 3))
            .with("max_system_cpu_us_per_mib", rounded(system.max, 3))
            .with("receiver", receiver)
            .with("mtu", median.map_or(0, |s| s.mtu));
        if let Some((sender, system)) = ratios {
            record = record.with_spread("sender_percent_of_copy", sender, 1).with_spread(
                "system_percent_of_copy",
                system,
                1,
            );
        }
        if self.engine == Engine::Pair && cfg!(target_arch = "x86_64") {
            let cycles = self.spread(|s| s.ticks.unwrap_or_default());
            record = record.with_spread("sender_cycles_per_64k", cycles, 0);
        }
        if engine == "pagewire" {
            record = record.with("payload_bytes_copied", median.map_or(0, |s| s.copied));
        }
        record
    }
}

/// The table of the cover letter, with ours beside it.
fn print_ratios(lines: &[Line], ratios: &[Option<Ratios>]) {
    say("");
    say("CPU time by reference in per cent of by copy, beside MSG_ZEROCOPY's cover letter");
    say(format_args!(
        "{:>8}  {:>8}  {:>8}  {:>10}  {:>8}  {:>8}  {:>10}",
        "size", "engine", "sender", "(document)", "system", "", "(document)"
    ));
    for (line, ratios) in lines.iter().zip(ratios) {
        let Some((sender, system)) = ratios else { continue };
        let (sender, system) = (sender.median, system.median);
        let known = SOURCE_DOCUMENT.iter().find(|(size, ..)| *size == line.case.size);
        let (its_sender, its_system) = known
            .map_or(("-".to_owned(), "-".to_owned()), |(_, a, b)| {
                (format!("{a} %"), format!("{b} %"))
            });
        let (engine, _) = line.engine.names();
        say(format_args!(
            "{:>8}  {engine:>8}  {sender:>6.1} %  {its_sender:>10}  {system:>6.1} %  {:>8}  {its_system:>10}",
            size_name(line.case.size as f64),
            ""
        ));
    }
}
