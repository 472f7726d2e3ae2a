//! `bench ring`: receive through rings, by copy and by reference.
//!
//! Over the pair link, both hosts on one thread in turns. By reference, the receiver has registered
//! the sender's buffer as lent memory: nothing is copied. With `--place`, a queue of its end of the
//! pair writes payload into a region instead: that copy is the device's. Over a tap, a kernel
//! socket writes into a queue's region. With `--udp` datagrams come instead of a stream.

mod ends;

use std::sync::atomic::{AtomicBool, Ordering};

use pagewire::device::{Queues, Rule};
use pagewire::memory::{PAGE_SIZE, Region};
use pagewire::rings::{COPY_GROUP, EngineConfig, QueueConfig, Rings};
use pagewire::{Device, Host};

use crate::failure::{Failure, say};
use crate::hosts::{self, LEFT, PORT, RIGHT};
use crate::kernel;
use crate::machine::{Machine, Sides, joined, on_a_thread, pin};
use crate::meter::{Round, Spread, in_turns};
use crate::options::{Link, RingOptions, name};
use crate::progress::Progress;
use crate::report::{Record, Results, print};
use crate::source::{Mode, Source};
use ends::{ENTRIES, Receiver, Sender, kernel_datagrams};

/// Bytes of single writes of a kernel peer.
const PEER_MESSAGE: usize = 1 << 20;

/// IPv4's header and UDP's, in bytes.
const DATAGRAM_HEADERS: usize = 28;

struct Outcome {
    round: Round,
    zc: u64,
    copied: u64,
    /// Datagrams that were received, and that their socket had no room for.
    datagrams: u64,
    dropped: u64,
    /// Payload bytes of each; 0: a stream.
    size: usize,
    mtu: u32,
    /// Payload that our own code copied, and that the device did, on the receiving host.
    ours: u64,
    device: u64,
}

struct Bench {
    options: RingOptions,
    source: Source,
    sides: Sides,
}

pub(crate) fn run(options: &RingOptions, progress: &Progress) -> Result<Results, Failure> {
    if options.place && options.link != Link::Pair {
        let text = "--place says what an end of a pair does; over a tap the kernel always writes";
        return Err(Failure::Usage(text.into()));
    }
    if options.link == Link::Tap {
        kernel::check_privilege()?;
    }
    let bench = Bench { options: options.clone(), source: Source::new(), sides: Sides::choose() };
    let mut modes = [(Mode::Copy, Vec::new()), (Mode::Zerocopy, Vec::new())];
    let round = |(mode, _): &(Mode, Vec<Outcome>)| bench.round(*mode);
    let what =
        |(mode, _): &(Mode, Vec<Outcome>)| format!("{} over {}", mode.name(), name(options.link));
    in_turns(progress, options.common.rounds, &mut modes, what, round, |(_, outcomes), one| {
        outcomes.push(one)
    })?;
    let machine = Machine::describe();
    let records: Vec<Record> =
        modes.iter().map(|(mode, all)| bench.record(*mode, all).on(&machine)).collect();
    let heading = machine.heading(options.common.rounds, options.seconds, "");
    if options.common.json {
        return Ok(print(records, true, heading, ""));
    }
    say(&heading);
    modes.iter().for_each(|(mode, outcomes)| bench.show(*mode, outcomes));
    Ok(Results { heading, records })
}

impl Bench {
    /// Where the bytes of a mode lie.
    fn memory(&self, mode: Mode) -> &'static str {
        match (mode, self.options.link, self.options.place) {
            (Mode::Copy, ..) => "copied",
            (_, Link::Pair, false) => "lent",
            (_, Link::Pair, true) => "placed",
            (_, Link::Tap, _) => "registered",
        }
    }

    fn record(&self, mode: Mode, outcomes: &[Outcome]) -> Record {
        let rounds: Vec<Round> = outcomes.iter().map(|outcome| outcome.round).collect();
        let record = Record::of_rounds("ring", "pagewire", &name(self.options.link), &rounds);
        let Some(median) = median(outcomes) else { return record };
        let record = match median.size {
            0 => record.with("transport", "tcp"),
            size => record
                .with("transport", "udp")
                .with("datagram_bytes", size)
                .with("datagrams", median.datagrams)
                .with("datagrams_dropped", median.dropped),
        };
        record
            .with("mode", mode.name())
            .with("memory", self.memory(mode))
            .with("copy_bytes", median.copied)
            .with("zc_bytes", median.zc)
            .with("total_bytes", median.copied + median.zc)
            .with_mean("receiver_cpu_us_per_mib", Round::us_per_mib(&rounds), 3)
            .with("payload_bytes_copied", median.ours)
            .with("device_bytes_copied", median.device)
            .with("region_mib", self.options.region)
            .with("mtu", median.mtu)
    }

    /// The lines that users of the source document's program know.
    fn show(&self, mode: Mode, outcomes: &[Outcome]) {
        let Some(median) = median(outcomes) else { return };
        let link = name(self.options.link);
        say(format!("{} over {link}, memory {}:", mode.name(), self.memory(mode)));
        say(format!(" copy bytes: {}", median.copied));
        say(format!("   ZC bytes: {}", median.zc));
        let nsec = median.round.time.as_nanos();
        say(format!("Total bytes: {}, nsec:{nsec}", median.copied + median.zc));
        say(format!("       Rate: {:.2} Gb/s", median.round.gbit_per_s()));
        if median.size > 0 {
            let (datagrams, dropped) = (median.datagrams, median.dropped);
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
        // All that is delivered fits: the host leaves at most half of it in there.
        Ok(QueueConfig { fill_entries: 2 * ENTRIES, ..QueueConfig::new(region) })
    }

    fn round(&self, mode: Mode) -> Result<Outcome, Failure> {
        on_a_thread(|| match self.options.link {
            Link::Pair => self.pair(mode),
            Link::Tap => self.tap(mode),
        })
    }

    /// Sender, receiver and both stacks, in turns.
    fn pair(&self, mode: Mode) -> Result<Outcome, Failure> {
        pin(self.sides.left);
        let (a, b, mtu) = hosts::pair(self.options.mtu)?;
        let left = hosts::on(a, LEFT).manual().start()?;
        let b: Box<dyn Device> =
            if self.options.place { Box::new(Queues::new(b, 2)) } else { Box::new(b) };
        let right = Host::builder().device(b).address(format!("{RIGHT}/24")).manual();
        let right = right.start()?;
        let mut rings = self.rings(&right)?;
        let (group, size) = (self.group(&mut rings, mode)?, self.datagram(mtu));
        let mut receiver = Receiver::open(&mut rings, RIGHT, group, size, self.options.seconds)?;
        let mut sender = Sender::open(&left, &self.source, size)?;
        loop {
            sender.send()?;
            left.turn();
            right.turn();
            if let Some(round) = receiver.look(&mut rings)? {
                return Ok(outcome(&receiver, round, size, mtu, &right));
            }
        }
    }

    /// A kernel socket sends; the receiver sleeps on its rings.
    fn tap(&self, mode: Mode) -> Result<Outcome, Failure> {
        pin(self.sides.left);
        let (tap, mtu) = hosts::tap(RIGHT, self.options.mtu)?;
        let host = hosts::on(tap, LEFT).start()?;
        let mut rings = self.rings(&host)?;
        let (group, size) = (self.group(&mut rings, mode)?, self.datagram(mtu));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut receiver = Receiver::open(&mut rings, LEFT, group, size, self.options.seconds)?;
            if size > 0 {
                receiver.answer(&mut rings)?;
            }
            let to = receiver.local();
            let over = &over;
            let sending = scope.spawn(move || -> Result<(), Failure> {
                pin(self.sides.right);
                if size > 0 {
                    return kernel_datagrams(to, &self.source, size, over);
                }
                kernel::send(kernel::connect(to)?, &self.source, PEER_MESSAGE);
                Ok(())
            });
            let round = loop {
                if !rings.wait(kernel::PATIENCE) {
                    break Err(Failure::Failed("nothing arrives".into()));
                }
                match receiver.look(&mut rings) {
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

/// The round whose rate is the median.
fn median(outcomes: &[Outcome]) -> Option<&Outcome> {
    Spread::by(outcomes, |outcome| outcome.round.gbit_per_s()).map(|all| all.median)
}

fn outcome(receiver: &Receiver, round: Round, size: usize, mtu: u32, host: &Host) -> Outcome {
    let ledger = host.stats().ledger;
    let device = ledger.get(pagewire::memory::CopyReason::DeviceRx);
    let &Receiver { zc, copied, datagrams, dropped, .. } = receiver;
    Outcome { round, zc, copied, datagrams, dropped, size, mtu, ours: ledger.ours(), device }
}
