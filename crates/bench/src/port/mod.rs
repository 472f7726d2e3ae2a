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

use clap::ValueEnum;

use crate::failure::Failure;
use crate::machine::{Machine, Sides, on_a_thread, pin};
use crate::meter::{Round, Spread, in_turns};
use crate::options::{PortOptions, PortPath, name};
use crate::progress::Progress;
use crate::report::{Record, Results, print, rounded};

/// Frames that enter before the socket is emptied: a ring's burst.
const BURST: usize = 64;

/// The port that the datagrams are for.
const SINK: u16 = 9;

pub(crate) fn run(options: &PortOptions, progress: &Progress) -> Result<Results, Failure> {
    let cpu = Sides::choose().left;
    let wanted = |path: &PortPath| options.path.is_empty() || options.path.contains(path);
    let all = PortPath::value_variants().iter().copied();
    let mut paths: Vec<PortPath> = all.filter(wanted).collect();
    if paths.contains(&PortPath::KernelTap) && !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: the kernel's tap beside ours needs root");
        paths.retain(|path| *path != PortPath::KernelTap);
    }
    let mut lines: Vec<Line> = Vec::new();
    for &frame in &options.frame {
        lines.extend(paths.iter().map(|&path| Line { path, frame, rounds: Vec::new() }));
    }
    let round = |line: &Line| line.round(options, cpu);
    let what = |line: &Line| format!("{}, frames of {}", name(line.path), line.frame);
    in_turns(progress, options.common.rounds, &mut lines, what, round, |line, round| {
        line.rounds.push(round)
    })?;
    let machine = Machine::describe();
    let records: Vec<_> =
        lines.iter().map(|line| line.record(options.frames, &lines).on(&machine)).collect();
    let heading = format!(
        "{machine}; {} rounds of {} frames each, medians; frames per second of one core",
        options.common.rounds, options.frames
    );
    let columns = "engine link path frame frames mpps min_mpps max_mpps to_accounted to_kernel_tap";
    Ok(print(records, options.common.json, heading, columns))
}

struct Line {
    path: PortPath,
    frame: u32,
    rounds: Vec<Round>,
}

impl Line {
    fn round(&self, options: &PortOptions, cpu: Option<usize>) -> Result<Round, Failure> {
        let (path, frame, frames) = (self.path, self.frame as usize, options.frames);
        let time = on_a_thread(|| {
            pin(cpu);
            match path {
                PortPath::KernelTap => tap::round(frame, frames),
                _ => ours::round(path, frame, frames, options.common.stats),
            }
        })?;
        Ok(Round { bytes: frames * u64::from(self.frame), time, receiver_cpu: time })
    }

    fn rate(&self, frames: u64, round: &Round) -> f64 {
        frames as f64 / round.time.as_secs_f64().max(1e-9) / 1e6
    }

    /// Million frames per second.
    fn rates(&self, frames: u64) -> Spread {
        Spread::of(self.rounds.iter().map(|round| self.rate(frames, round)))
    }

    fn record(&self, frames: u64, all: &[Self]) -> Record {
        let (engine, link) = match self.path {
            PortPath::KernelTap => ("kernel", "tap"),
            _ => ("pagewire", "vhost-user"),
        };
        let Spread { min, median: mpps, max } = self.rates(frames);
        let mut record = Record::of_rounds("port", engine, link, &self.rounds)
            .with("path", name(self.path))
            .with("frame", self.frame)
            .with("frames", frames)
            .with("mpps", rounded(mpps, 3))
            .with("min_mpps", rounded(min, 3))
            .with("max_mpps", rounded(max, 3));
        let others =
            [("to_accounted", PortPath::Accounted), ("to_kernel_tap", PortPath::KernelTap)];
        for (name, other) in others {
            let beside = all.iter().find(|l| l.path == other && l.frame == self.frame);
            if let Some(beside) = beside.filter(|_| other != self.path) {
                record =
                    record.with(name, rounded(mpps / beside.rates(frames).median.max(1e-9), 3));
            }
        }
        record
    }
}

/// An Ethernet frame of `len` bytes with a UDP datagram over IPv4, from `10.77.0.2` to `10.77.0.1`.
fn datagram(to: [u8; 6], len: usize) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], to)
        .ipv4([10, 77, 0, 2], [10, 77, 0, 1], 64)
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
