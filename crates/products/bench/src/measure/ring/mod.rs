//! `bench ring`: receive through rings, by copy and by reference.
//!
//! Over the pair link, both hosts on one thread in turns. By reference, the receiver has registered
//! the sender's buffer as lent memory: nothing is copied. With `--place`, a queue of its end of the
//! pair writes payload into a region instead: that copy is the device's. Over a tap, a kernel
//! socket writes into a queue's region. With `--udp` datagrams come instead of a stream.

mod ends;

use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use pagewire::device::{Queues, Rule};
use pagewire::memory::{PAGE_SIZE, Region};
use pagewire::rings::{COPY_GROUP, EngineConfig, QueueConfig, Rings};
use pagewire::{Device, Host};

use crate::args::{Common, Link, Mtu, Options, Plan, Time, name};
use crate::failure::{Failure, say};
use crate::kit::hosts::{self, LEFT, PORT, RIGHT};
use crate::kit::kernel;
use crate::kit::machine::{Sides, joined, pin};
use crate::kit::meter::{Round, Spread};
use crate::kit::namespace::enter_with_tap;
use crate::kit::source::{Mode, Source};
use crate::progress::Progress;
use crate::table::{
    COPIED, Field, IN_A_ROUND, InTurns, Measurement, ResultLine, Results, US_PER_MIB, in_turns,
    records, some,
};
use ends::{ENTRIES, Receiver, RingCounts, Sender, kernel_datagrams};

/// Receive through rings, by copy and by reference
///
/// By reference over the pair link, the receiver has registered the sender's memory, and nothing is
/// copied; with --place its end writes into its own region instead, one copy by the device. Over a
/// tap (root) the kernel writes into the region.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct RingOptions {
    /// Kind of link; over a tap the sender is a kernel socket (root)
    #[arg(long, value_enum, default_value_t = Link::Pair, value_name = "KIND")]
    link: Link,

    /// By reference over a pair: have the receiver's end write payload into a registered region, as
    /// a network card would, instead of registering the sender's memory
    #[arg(long)]
    place: bool,

    /// Datagrams instead of a stream
    #[arg(long)]
    udp: bool,

    /// Payload bytes of each datagram [default: what one packet of the link takes, in whole pages if
    /// that is more than one]
    #[arg(long, requires = "udp", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=65_507))]
    datagram: Option<u32>,

    /// MiB of the registered region, and of the copy group: pages go round through the fill ring, so
    /// a region larger than the caches is written to cold memory
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024), value_name = "MIB")]
    region: u32,

    #[command(flatten)]
    time: Time,

    #[command(flatten)]
    link_mtu: Mtu,

    #[command(flatten)]
    common: Common,
}

const EXAMPLES: &str = "\
Examples:
  pagewire bench ring
      the sender's memory is registered with the receiver: nothing is copied
  pagewire bench ring --place --region 16
      the receiver's end of the pair writes into a region of 16 MiB
  pagewire bench ring --link tap --json
      the kernel writes into the region; root";

/// IPv4's header and UDP's, in bytes.
const DATAGRAM_HEADERS: usize = 28;

impl Options for RingOptions {
    fn plan(&self) -> Plan {
        Plan::of::<RingBench>(self.link == Link::Tap && !self.place, self.common.stats)
    }

    fn run(&self, progress: &Progress) -> Result<Results, Failure> {
        if self.place && self.link != Link::Pair {
            let text =
                "--place says what an end of a pair does; over a tap the kernel always writes";
            return Err(Failure::Usage(text.into()));
        }
        let (source, sides) = (Source::new(), Sides::choose());
        let bench = RingBench { options: self.clone(), source, sides };
        let lines = in_turns(&bench, [Mode::Copy, Mode::Zerocopy], self.common.rounds, progress)?;
        let heading = self.common.heading(self.time.seconds, "");
        let records = records(&bench, &lines);
        if self.common.json {
            return Ok(Results::print(records, true, heading, ""));
        }
        say(&heading);
        lines.iter().for_each(|(mode, outcomes)| bench.show(*mode, outcomes));
        Ok(Results { heading, records })
    }
}

struct RingBench {
    options: RingOptions,
    source: Source,
    sides: Sides,
}

struct RingSample {
    round: Round,
    counted: RingCounts,
    /// Payload bytes of each; 0: a stream.
    size: usize,
    mtu: u32,
    /// Payload that our own code copied, and that the device did, on the receiving host.
    ours: u64,
    device: u64,
}

type F = Field<RingBench>;

impl Measurement for RingBench {
    type Case = Mode;
    type Sample = RingSample;

    const NAME: &'static str = "ring";
    const TITLE: &'static str = "Receiving through rings";
    const ABOUT: &'static str =
        "By copy and by reference. The kernel has no measurement beside this one.";
    const FIELDS: &'static [Field<Self>] = &[
        F::value("transport", |of| some(if of.bench.options.udp { "udp" } else { "tcp" }))
            .group("{}"),
        F::value("datagram_bytes", |of| of.median(|one| one.size).filter(|_| is_udp(of))),
        F::value("datagrams", |of| of.median(|one| one.counted.datagrams).filter(|_| is_udp(of)))
            .higher("Datagrams", "in a round"),
        F::value("datagrams_dropped", |of| {
            of.median(|one| one.counted.dropped).filter(|_| is_udp(of))
        })
        .lower("Datagrams without room", "in a round"),
        F::value("mode", |of| some(name(*of.case))).part("{}"),
        F::value("memory", |of| some(of.bench.memory(*of.case))).part("memory {}"),
        F::value("copy_bytes", |of| of.median(|one| one.counted.copied))
            .plain("Received by copy", IN_A_ROUND),
        F::value("zc_bytes", |of| of.median(|one| one.counted.zc))
            .plain("Received by reference", IN_A_ROUND),
        F::value("total_bytes", |of| of.median(|one| one.counted.copied + one.counted.zc)),
        F::spread("receiver_cpu_us_per_mib", 3, |of| Some(of.receiver_us_per_mib()))
            .lower("CPU time of the receiver", US_PER_MIB)
            .first(),
        F::value("payload_bytes_copied", |of| of.median(|one| one.ours)).lower(COPIED, IN_A_ROUND),
        F::value("device_bytes_copied", |of| of.median(|one| one.device))
            .plain("Payload that the device wrote", IN_A_ROUND),
        F::value("region_mib", |of| some(of.bench.options.region)),
        F::value("mtu", |of| of.median(|one| one.mtu)),
    ];

    fn engine(&self, _: &Mode) -> (String, &'static str) {
        ("pagewire".to_owned(), if self.options.link == Link::Pair { "pair" } else { "tap" })
    }

    fn round(&self, _: &Mode, outcome: &RingSample) -> Round {
        outcome.round
    }
}

fn is_udp(of: &ResultLine<'_, RingBench>) -> bool {
    of.bench.options.udp
}

impl InTurns for RingBench {
    fn sample(&self, mode: &Mode, _: u16) -> Result<RingSample, Failure> {
        match self.options.link {
            Link::Pair => self.pair(*mode),
            Link::Tap => self.tap(*mode),
        }
    }
}

impl RingBench {
    /// Where the bytes of a mode lie.
    fn memory(&self, mode: Mode) -> &'static str {
        match (mode, self.options.link, self.options.place) {
            (Mode::Copy, ..) => "copied",
            (_, Link::Pair, false) => "lent",
            (_, Link::Pair, true) => "placed",
            (_, Link::Tap, _) => "registered",
        }
    }

    /// The lines that users of the source document's program know.
    fn show(&self, mode: Mode, outcomes: &[RingSample]) {
        let by_rate = Spread::by(outcomes, |outcome| outcome.round.gbit_per_s());
        let Some(Spread { median, .. }) = by_rate else { return };
        let RingCounts { zc, copied, datagrams, dropped } = median.counted;
        let link = name(self.options.link);
        say(format!("{} over {link}, memory {}:", name(mode), self.memory(mode)));
        say(format!(" copy bytes: {copied}"));
        say(format!("   ZC bytes: {zc}"));
        let nsec = median.round.time.as_nanos();
        say(format!("Total bytes: {}, nsec:{nsec}", copied + zc));
        say(format!("       Rate: {:.2} Gb/s", median.round.gbit_per_s()));
        if median.size > 0 {
            say(format!("  Datagrams: {datagrams} of {} bytes, {dropped} dropped", median.size));
        }
    }

    /// Payload bytes of a datagram over a link of this MTU; 0: a stream.
    fn datagram(&self, mtu: u32) -> usize {
        let fits = (mtu as usize).saturating_sub(DATAGRAM_HEADERS);
        let whole = if fits > PAGE_SIZE { fits - fits % PAGE_SIZE } else { fits };
        match (self.options.udp, self.options.datagram) {
            (false, _) => 0,
            (true, asked) => asked.map_or(whole, |bytes| bytes as usize),
        }
    }

    /// Where a mode receives, and with which memory.
    fn group(&self, rings: &mut Rings, mode: Mode) -> Result<u16, Failure> {
        let rule = if self.options.udp { Rule::udp_port(PORT) } else { Rule::tcp_port(PORT) };
        match (mode, self.memory(mode)) {
            (Mode::Copy, _) => Ok(COPY_GROUP),
            (_, "lent") => Ok(rings.register_lent(self.source.frag())?),
            _ => {
                let region = self.memory_of("pagewire-region")?;
                Ok(rings.register(1, region, &[rule])?)
            }
        }
    }

    fn rings(&self, host: &Host) -> Result<Rings, Failure> {
        let copy = self.memory_of("pagewire-copy")?;
        let config = EngineConfig { entries: ENTRIES, ..EngineConfig::new(copy) };
        Ok(host.rings(config)?)
    }

    fn memory_of(&self, name: &str) -> Result<QueueConfig, Failure> {
        let bytes = (self.options.region as usize) << 20;
        let region = Region::memfd(name, bytes)?;
        // Every delivery fits: the host leaves at most half of the region in the ring.
        Ok(QueueConfig { fill_entries: 2 * ENTRIES, ..QueueConfig::new(region) })
    }

    /// Sender, receiver and both stacks, in turns.
    fn pair(&self, mode: Mode) -> Result<RingSample, Failure> {
        pin(self.sides.left);
        let (a, b, mtu) = hosts::pair(self.options.link_mtu.mtu)?;
        let left = hosts::on(a, LEFT).manual().start()?;
        let b: Box<dyn Device> =
            if self.options.place { Box::new(Queues::new(b, 2)) } else { Box::new(b) };
        let right = Host::builder().device(b).address(format!("{RIGHT}/24")).manual();
        let right = right.start()?;
        let mut rings = self.rings(&right)?;
        let (group, size) = (self.group(&mut rings, mode)?, self.datagram(mtu));
        let mut receiver =
            Receiver::open(&mut rings, RIGHT, group, size, self.options.time.seconds)?;
        let mut sender = Sender::open(&left, &self.source, size)?;
        loop {
            sender.send()?;
            left.turn();
            right.turn();
            if let Some(round) = receiver.poll(&mut rings)? {
                return Ok(outcome(&receiver, round, size, mtu, &right));
            }
        }
    }

    /// A kernel socket sends; the receiver sleeps on its rings.
    fn tap(&self, mode: Mode) -> Result<RingSample, Failure> {
        pin(self.sides.left);
        let (tap, mtu) = enter_with_tap(RIGHT, self.options.link_mtu.mtu)?;
        let host = hosts::on(tap, LEFT).start()?;
        let mut rings = self.rings(&host)?;
        let (group, size) = (self.group(&mut rings, mode)?, self.datagram(mtu));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut receiver =
                Receiver::open(&mut rings, LEFT, group, size, self.options.time.seconds)?;
            if size > 0 {
                receiver.answer(&mut rings)?;
            }
            let to = receiver.local();
            let over = &over;
            let sending = scope.spawn(move || -> Result<(), Failure> {
                if size == 0 {
                    return kernel::peer_sends(to, &self.source, self.sides);
                }
                pin(self.sides.right);
                kernel_datagrams(to, &self.source, size, over)
            });
            let round = loop {
                if !rings.wait(kernel::PATIENCE) {
                    break Err(Failure::Failed("nothing arrives".into()));
                }
                match receiver.poll(&mut rings) {
                    Ok(Some(round)) => break Ok(round),
                    Ok(None) => {}
                    Err(error) => break Err(error),
                }
            };
            let outcome = round.map(|round| outcome(&receiver, round, size, mtu, &host));
            // Closes the connection, on which the sender ends.
            drop(rings);
            over.store(true, Ordering::Relaxed);
            joined(sending).and(outcome)
        })
    }
}

fn outcome(receiver: &Receiver, round: Round, size: usize, mtu: u32, host: &Host) -> RingSample {
    let ledger = host.stats().ledger;
    let device = ledger.get(pagewire::memory::CopyReason::DeviceRx);
    RingSample { round, counted: receiver.counted, size, mtu, ours: ledger.ours(), device }
}
