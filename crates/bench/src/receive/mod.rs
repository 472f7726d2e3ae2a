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

use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::failure::{Failure, say};
use crate::kernel::{Between, check_privilege};
use crate::machine::{Machine, SPREAD, Sides, on_a_thread};
use crate::meter::{Round, Spread, WARM_UP, in_turns};
use crate::options::{Link, ReceiveMode, ReceiveOptions, name};
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};
use crate::source::{Reader, Source};
use crate::sys::{Usage, process_usage, thread_usage};

/// Bytes read or mapped at once, by either engine: as in the kernel's `tcp_mmap`.
const CHUNK: usize = 512 << 10;

pub(crate) fn run(options: &ReceiveOptions, progress: &Progress) -> Result<Results, Failure> {
    if options.link == Link::Tap {
        check_privilege()?;
    }
    let bench = Bench {
        source: Source::new(),
        sides: Sides::choose(),
        link: options.link,
        flows: usize::from(options.flows),
        reader: options.reader,
        seconds: options.seconds,
        mtu: options.mtu,
        payload_pages: options.payload_pages,
        stats: options.common.stats,
    };
    let mut lines = lines(options);
    let round = |line: &Line| bench.round(line.what);
    let what = |line: &Line| {
        format!("{} over {}, {}", line.engine(), bench.link(line.what), name(line.mode()))
    };
    in_turns(progress, options.common.rounds, &mut lines, what, round, |line, tally| {
        line.tallies.push(tally)
    })?;
    let machine = Machine::describe();
    let records: Vec<_> = lines.iter().map(|line| bench.record(line).on(&machine)).collect();
    let heading = machine.heading(options.common.rounds, options.seconds, SPREAD);
    if !options.common.json {
        for line in &lines {
            let mode = name(line.mode());
            say(format_args!("{} {}, {mode}:", line.engine(), bench.link(line.what)));
            line.tallies.iter().for_each(say);
        }
    }
    let columns = "engine link mode reader flows mtu gbit_per_s min_gbit_per_s max_gbit_per_s \
        receiver_cpu_us_per_mib system_cpu_us_per_mib mapped_percent payload_bytes_copied";
    Ok(print(records, options.common.json, heading, columns))
}

#[derive(Clone, Copy, Debug)]
enum What {
    Kernel(ReceiveMode),
    Pagewire(ReceiveMode),
}

struct Line {
    what: What,
    tallies: Vec<Tally>,
}

fn lines(options: &ReceiveOptions) -> Vec<Line> {
    let wanted = |mode: &ReceiveMode| options.mode.is_none_or(|only| only == *mode);
    let modes = ReceiveMode::value_variants().iter().copied();
    let ours = modes.filter(wanted).map(What::Pagewire);
    // The kernel's receive by copy is always measured: all others are compared with it.
    let theirs = [What::Kernel(ReceiveMode::Copy), What::Kernel(ReceiveMode::Map)];
    let theirs = theirs.into_iter().filter(|what| match what {
        What::Kernel(ReceiveMode::Map) => wanted(&ReceiveMode::Map),
        _ => true,
    });
    ours.chain(theirs).map(|what| Line { what, tallies: Vec::new() }).collect()
}

impl Line {
    fn mode(&self) -> ReceiveMode {
        match self.what {
            What::Kernel(mode) | What::Pagewire(mode) => mode,
        }
    }

    fn engine(&self) -> &'static str {
        match self.what {
            What::Kernel(_) => "kernel",
            What::Pagewire(_) => "pagewire",
        }
    }

    fn spread(&self, of: impl Fn(&Tally) -> f64) -> Spread {
        Spread::of(self.tallies.iter().map(of))
    }
}

struct Bench {
    source: Source,
    sides: Sides,
    link: Link,
    flows: usize,
    reader: Reader,
    seconds: f64,
    mtu: Option<u32>,
    payload_pages: Option<u8>,
    stats: bool,
}

impl Bench {
    fn round(&self, what: What) -> Result<Tally, Failure> {
        on_a_thread(|| match (what, self.link) {
            (What::Kernel(mode), _) => kernel::round(self, mode),
            (What::Pagewire(mode), Link::Pair) => ours::pair(self, mode),
            (What::Pagewire(mode), Link::Tap) => ours::tap(self, mode),
        })
    }

    /// Where kernel talks to kernel beside us.
    fn between(&self) -> Between {
        match self.link {
            Link::Pair => Between::Loopback,
            Link::Tap => Between::Veth { mtu: self.mtu },
        }
    }

    fn link(&self, what: What) -> &'static str {
        match (what, self.link) {
            (What::Pagewire(_), Link::Pair) => "pair",
            (What::Pagewire(_), Link::Tap) => "tap",
            (What::Kernel(_), Link::Pair) => "loopback",
            (What::Kernel(_), Link::Tap) => "veth",
        }
    }

    fn record(&self, line: &Line) -> Record {
        let rounds: Vec<Round> = line.tallies.iter().map(|t| t.round).collect();
        let mtu = line.tallies.last().map_or(0, |t| t.mtu);
        let copied = line.tallies.iter().map(|t| t.copied).max().unwrap_or(0);
        Record::of_rounds("receive", line.engine(), self.link(line.what), &rounds)
            .with("mode", name(line.mode()))
            .with("flows", self.flows)
            .with("reader", name(self.reader))
            .with("mtu", mtu)
            .with_spread("receiver_cpu_us_per_mib", line.spread(Tally::receiver_us_per_mib), 3)
            .with_spread("system_cpu_us_per_mib", line.spread(Tally::system_us_per_mib), 3)
            .with_spread("mapped_percent", line.spread(Tally::mapped_percent), 4)
            .with("payload_bytes_copied", copied)
    }
}

/// What one round came to.
#[derive(Clone, Copy, Debug)]
struct Tally {
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

impl Tally {
    fn mib(&self) -> f64 {
        (self.round.bytes as f64 / f64::from(1 << 20)).max(1e-9)
    }

    fn receiver_us_per_mib(&self) -> f64 {
        self.round.receiver_cpu.as_secs_f64() * 1e6 / self.mib()
    }

    fn system_us_per_mib(&self) -> f64 {
        self.everyone.as_secs_f64() * 1e6 / self.mib()
    }

    fn mapped_percent(&self) -> f64 {
        100.0 * self.mapped as f64 / (self.round.bytes as f64).max(1.0)
    }
}

/// The lines that users of the kernel's `tcp_mmap` know.
impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mib, percent) = (self.mib(), rounded(self.mapped_percent(), 4));
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
struct Counter {
    warm_until: Instant,
    length: Duration,
    begun: Option<(Instant, Usage, Usage)>,
    bytes: u64,
    mapped: u64,
}

/// What a receiver took at once.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    bytes: usize,
    /// Of these, in mapped pages.
    mapped: usize,
}

impl Counter {
    fn new(seconds: f64) -> Self {
        let length = Duration::from_secs_f64(seconds);
        let warm_until = Instant::now() + WARM_UP;
        Self { warm_until, length, begun: None, bytes: 0, mapped: 0 }
    }

    /// Whether the warm-up is over.
    fn counts(&self) -> bool {
        self.begun.is_some()
    }

    /// Counts what was taken; returns the result when the round is over. `receiving`: on a shared
    /// thread, the receiver's time since the warm-up, for its part of the thread's CPU time.
    fn add(&mut self, taken: Taken, receiving: Option<Duration>) -> Option<Tally> {
        let now = Instant::now();
        let Some((begun, thread, everyone)) = self.begun else {
            if now >= self.warm_until {
                self.begun = Some((now, thread_usage(), process_usage()));
            }
            return None;
        };
        self.bytes += taken.bytes as u64;
        self.mapped += taken.mapped as u64;
        let time = now - begun;
        if time < self.length {
            return None;
        }
        let (thread, everyone) = (since(thread_usage(), thread), since(process_usage(), everyone));
        let all = thread.user + thread.system;
        let whole = time.as_secs_f64().max(1e-9);
        let part = receiving.map_or(1.0, |own| (own.as_secs_f64() / whole).min(1.0));
        Some(Tally {
            round: Round { bytes: self.bytes, time, receiver_cpu: all.mul_f64(part) },
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
        let tally = Tally {
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
            tally.to_string(),
            "received 32768 MB (99 % mmap'ed) in 8.01800 s, 34.2826 Gbit,\n  \
             cpu usage user:0.020 sys:1.446, 44.739 usec per MB, 65505 c-switches"
        );
    }
}
