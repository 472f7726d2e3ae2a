//! `bench port`: how many small frames of a virtual machine one core processes.
//!
//! ```text
//!   guest's ring --> VhostUser, its Port --> Stack --> datagram socket --> counted, let go   (ours)
//!   frames ------- write(2) ------> tap of the kernel --> its own stack, a socket    (the kernel's)
//! ```
//!
//! Frames are UDP datagrams as Linux's packet generator makes them, without a checksum, all to one
//! socket, which an application empties once per burst, by reference. Every frame is counted where it
//! ends. A rate is frames per processor time of the one thread that does all work of its side.

mod ours;
mod tap;

use std::net::Ipv4Addr;

use clap::{Args, ValueEnum};

use crate::args::{Common, Options, Plan, name};
use crate::failure::Failure;
use crate::kit::machine::{Machine, Sides, pin};
use crate::kit::meter::{Round, Spread};
use crate::progress::Progress;
use crate::table::{Field, InTurns, Measurement, ResultLine, Results, in_turns, records, some};

/// Small frames into the stack through a port, beside writes to a kernel's tap
///
/// Frames per second of one core: built in place, copied and charged to a send buffer, with a hook
/// that passes or drops them, and written to a tap of the kernel (root).
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct PortOptions {
    /// Bytes of a frame, its Ethernet header included; several with commas
    #[arg(long, value_delimiter = ',', default_value = "60,128,256,512,1024,1500", value_parser = clap::value_parser!(u32).range(60..=9014), value_name = "BYTES")]
    frame: Vec<u32>,

    /// Frames of a round
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), value_name = "N")]
    frames: u64,

    /// Only these paths; several with commas
    #[arg(long, value_delimiter = ',', value_enum, value_name = "PATH")]
    path: Vec<PortPath>,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench port
      frames of 60 to 1500 bytes by every path; the kernel's tap beside them if this is root
  pagewire bench port --frame 60,1500 --path build,accounted --frames 2000000
      two lengths by two paths, longer rounds";

/// How frames enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PortPath {
    /// Built in place
    Build,
    /// Copied to pages of their own, and charged
    Accounted,
    /// Built in place, a hook passes them
    HookPass,
    /// Built in place, a hook drops them
    HookDrop,
    /// Written to a tap of the kernel
    KernelTap,
}

/// Frames that enter before the socket is emptied: a ring's burst.
const BURST: usize = 64;

/// Where the datagrams go.
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const SINK: u16 = 9;

impl Options for PortOptions {
    fn plan(&self) -> Plan {
        Plan::of::<PortBench>(false, self.common.stats)
    }

    fn notes(&self) -> Vec<String> {
        let text = "The kernel's tap beside ours needs root.";
        if is_root() { Vec::new() } else { vec![text.to_owned()] }
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        let wanted = |path: &PortPath| self.path.is_empty() || self.path.contains(path);
        let all = PortPath::value_variants().iter().copied();
        let mut paths: Vec<PortPath> = all.filter(wanted).collect();
        if paths.contains(&PortPath::KernelTap) && !is_root() {
            eprintln!("SKIPPED: the kernel's tap beside ours needs root");
            paths.retain(|path| *path != PortPath::KernelTap);
        }
        let cases = self.frame.iter().flat_map(|&frame| {
            let paths = paths.iter();
            paths.map(move |&path| PortCase { path, frame })
        });
        let (frames, stats) = (self.frames, self.common.stats);
        let bench = PortBench { frames, cpu: Sides::choose().left, stats };
        let lines = in_turns(&bench, cases, self.common.rounds, progress)?;
        let heading = format!(
            "{}; {} rounds of {frames} frames each, medians; frames per second of one core",
            Machine::describe(),
            self.common.rounds
        );
        let columns =
            "engine link path frame frames mpps min_mpps max_mpps to_accounted to_kernel_tap";
        Ok(Results::print(records(&bench, &lines), self.common.json, heading, columns))
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PortCase {
    path: PortPath,
    /// Bytes of a frame.
    frame: u32,
}

struct PortBench {
    frames: u64,
    cpu: Option<usize>,
    stats: bool,
}

impl PortBench {
    /// Million frames per second.
    fn rates(&self, rounds: &[Round]) -> Spread {
        let rate = |round: &Round| self.frames as f64 / round.time.as_secs_f64().max(1e-9) / 1e6;
        Spread::of(rounds.iter().map(rate))
    }
}

type F = Field<PortBench>;

impl Measurement for PortBench {
    type Case = PortCase;
    type Sample = Round;

    const NAME: &'static str = "port";
    const TITLE: &'static str = "Small frames of a virtual machine";
    const ABOUT: &'static str = "\
        Frames a second of one core, from a port into the stack, beside writes to a tap of \
        the kernel.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("path", |of| some(name(of.case.path))).part("{}"),
        F::value("frame", |of| some(of.case.frame))
            .group("frames of {} bytes")
            .over("bytes of a frame"),
        F::value("frames", |of| some(of.bench.frames)),
        F::bounded("mpps", 3, |of| Some(of.bench.rates(of.samples)))
            .higher("Frames of one core", "million a second")
            .first(),
        F::value("to_accounted", |of| ratio(of, PortPath::Accounted))
            .higher("Ratio to the usual way, with a charge each", "times"),
        F::value("to_kernel_tap", |of| ratio(of, PortPath::KernelTap))
            .higher("Ratio to the kernel's tap", "times"),
    ];

    fn engine(&self, case: &PortCase) -> (String, &'static str) {
        match case.path {
            PortPath::KernelTap => ("kernel".to_owned(), "tap"),
            _ => ("pagewire".to_owned(), "vhost-user"),
        }
    }

    fn round(&self, _: &PortCase, round: &Round) -> Round {
        *round
    }
}

/// The rate beside that of another path.
fn ratio(of: &ResultLine<'_, PortBench>, path: PortPath) -> Option<serde_json::Value> {
    let other = PortCase { path, ..*of.case };
    let ratio = || of.ratio_to(&other, |rounds| of.bench.rates(rounds).median);
    if other == *of.case { None } else { ratio() }
}

impl InTurns for PortBench {
    fn sample(&self, &PortCase { path, frame }: &PortCase, _: u16) -> Result<Round, Failure> {
        pin(self.cpu);
        let time = match path {
            PortPath::KernelTap => tap::round(frame as usize, self.frames),
            _ => ours::round(path, frame as usize, self.frames, self.stats),
        }?;
        Ok(Round { bytes: self.frames * u64::from(frame), time, receiver_cpu: time })
    }
}

/// An Ethernet frame of `len` bytes with a UDP datagram over IPv4, from `10.77.0.2` to [`RECEIVER`].
fn datagram(len: usize) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], MAC)
        .ipv4([10, 77, 0, 2], RECEIVER.octets(), 64)
        .udp(SINK, SINK);
    let payload = vec![0x5a; len.saturating_sub(42)];
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    let built = builder.write(&mut frame, &payload);
    debug_assert!(built.is_ok(), "a datagram of {len} bytes");
    // No checksum, as the kernel's packet generator has it.
    if let Some(checksum) = frame.get_mut(40..42) {
        checksum.fill(0);
    }
    frame
}
