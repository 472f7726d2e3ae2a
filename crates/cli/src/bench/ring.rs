//! `bench ring`: receive through rings, by copy and by reference.
//!
//! Over the pair link, both hosts on one thread in turns, sent by reference from a buffer larger than
//! any cache. By reference, the receiver has registered the sender's buffer as lent memory: nobody
//! copies. With `--place` it has given a region to a queue of its end of the pair instead, which
//! writes payload there as a network card would: the copy that this takes is the device's. Over a
//! tap: from a kernel socket; the region is a queue's of its own, and the kernel writes into it.

use std::net::{Ipv4Addr, SocketAddr};

use pagewire::rings::Rings;
use pagewire::{Host, SendBuf};
use pagewire_device::{Device, Pair, PairConfig, Queues, Rule, Tap};
use pagewire_mem::Region;
use pagewire_ring::layout::{COPY_GROUP, NOTICE};
use pagewire_ring::{EngineConfig, Op, QueueConfig, Submission};

use super::kernel;
use super::machine::{Machine, Sides, pin};
use super::report::{Record, rounded};
use super::source::{Meter, Round, Source};
use super::stream::would_block;
use crate::args::{Link, RingOptions};
use crate::failure::{Failure, reason, say};

const LEFT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PORT: u16 = 9000;

/// Bytes handed to a connection at once.
const SEND_PIECE: usize = 1 << 20;

/// Bytes of single writes of a kernel peer.
const PEER_MESSAGE: usize = 1 << 20;

/// Pieces that may be delivered and not given back.
const ENTRIES: u32 = 16_384;

/// What the submissions of this measurement are called.
const ACCEPT: u64 = 1;
const RECEIVE: u64 = 2;

/// How received bytes get to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Copy,
    ZeroCopy,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::ZeroCopy => "zerocopy",
        }
    }
}

/// What a round came to.
struct Outcome {
    round: Round,
    zc: u64,
    copied: u64,
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

/// Measures and prints.
pub(crate) fn run(options: &RingOptions) -> Result<(), Failure> {
    if options.place && options.link != Link::Pair {
        let text = "--place says what an end of a pair does; over a tap the kernel always writes";
        return Err(Failure::Usage(text.into()));
    }
    if options.link == Link::Tap {
        kernel::check_privilege()?;
    }
    let bench = Bench { options: options.clone(), source: Source::new(), sides: Sides::choose() };
    let mut modes = [(Mode::Copy, Vec::new()), (Mode::ZeroCopy, Vec::new())];
    // The first round warms up: it is measured and left out.
    for round in 0..=options.common.rounds {
        for (mode, outcomes) in &mut modes {
            let outcome = bench.round(*mode)?;
            if round > 0 {
                outcomes.push(outcome);
            }
        }
    }
    let machine = Machine::describe();
    if !options.common.json {
        say(format!(
            "{machine}; {} rounds of {} s each, medians",
            options.common.rounds, options.seconds
        ));
    }
    for (mode, outcomes) in &mut modes {
        outcomes.sort_by(|a, b| a.round.gbit_per_s().total_cmp(&b.round.gbit_per_s()));
        if options.common.json {
            let record = bench.record(*mode, outcomes).on(&machine);
            say(serde_json::to_string(&record).unwrap_or_default());
        } else {
            bench.show(*mode, outcomes);
        }
    }
    Ok(())
}

impl Bench {
    fn link(&self) -> &'static str {
        match self.options.link {
            Link::Pair => "pair",
            Link::Tap => "tap",
        }
    }

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
        let record = Record::of_rounds("ring", "pagewire", self.link(), &rounds);
        let Some(median) = outcomes.get(outcomes.len() / 2) else { return record };
        let mib = rounds.iter().map(|r| r.bytes as f64).sum::<f64>() / f64::from(1 << 20);
        let cpu: f64 = rounds.iter().map(|r| r.receiver_cpu.as_secs_f64()).sum();
        record
            .with("mode", mode.name())
            .with("memory", self.memory(mode))
            .with("copy_bytes", median.copied)
            .with("zc_bytes", median.zc)
            .with("total_bytes", median.copied + median.zc)
            .with("receiver_cpu_us_per_mib", rounded(cpu * 1e6 / mib.max(1e-9), 3))
            .with("payload_bytes_copied", median.ours)
            .with("device_bytes_copied", median.device)
            .with("region_mib", self.options.region)
            .with("mtu", median.mtu)
    }

    /// The lines that users of the source document's program know.
    fn show(&self, mode: Mode, outcomes: &[Outcome]) {
        let Some(median) = outcomes.get(outcomes.len() / 2) else { return };
        say(format!("{} over {}, memory {}:", mode.name(), self.link(), self.memory(mode)));
        say(format!(" copy bytes: {}", median.copied));
        say(format!("   ZC bytes: {}", median.zc));
        let nsec = median.round.time.as_nanos();
        say(format!("Total bytes: {}, nsec:{nsec}", median.copied + median.zc));
        say(format!("       Rate: {:.2} Gb/s", median.round.gbit_per_s()));
    }

    fn rings(&self, host: &Host) -> Result<Rings, Failure> {
        let copy = self.memory_of("pagewire-copy")?;
        let config = EngineConfig { entries: ENTRIES, ..EngineConfig::new(copy) };
        host.rings(config).map_err(|e| failed(&e))
    }

    fn memory_of(&self, name: &str) -> Result<QueueConfig, Failure> {
        let bytes = (self.options.region as usize) << 20;
        let region = Region::memfd(name, bytes).map_err(|e| failed(&e))?;
        // Whatever is delivered can be given back at once, whoever has the next turn: at most half of it
        // is left in there by the host.
        Ok(QueueConfig { fill_entries: 2 * ENTRIES, ..QueueConfig::new(region) })
    }

    fn round(&self, mode: Mode) -> Result<Outcome, Failure> {
        // A thread of its own, so that it may be pinned and may change its network namespace.
        std::thread::scope(|scope| {
            let run = || match self.options.link {
                Link::Pair => self.pair(mode),
                Link::Tap => self.tap(mode),
            };
            let died = |_| Err(Failure::Failed("a thread of the measurement died".into()));
            scope.spawn(run).join().unwrap_or_else(died)
        })
    }

    /// Sender, receiver and both stacks, in turns.
    fn pair(&self, mode: Mode) -> Result<Outcome, Failure> {
        pin(self.sides.left);
        let mut config = PairConfig::default();
        if let Some(mtu) = self.options.mtu {
            config.mtu = mtu as usize;
        }
        let mtu = config.mtu as u32;
        let (a, b) = Pair::new(config).map_err(|e| failed(&e))?;
        let left = Host::builder().device(a).address(format!("{LEFT}/24")).manual().start();
        let b: Box<dyn Device> =
            if self.options.place { Box::new(Queues::new(b, 2)) } else { Box::new(b) };
        let right = Host::builder().boxed_device(b).address(format!("{RIGHT}/24")).manual();
        let (left, right) = (left.map_err(|e| failed(&e))?, right.start().map_err(|e| failed(&e))?);
        let mut rings = self.rings(&right)?;
        let group = match (mode, self.options.place) {
            (Mode::Copy, _) => COPY_GROUP,
            (Mode::ZeroCopy, false) => {
                rings.register_lent(self.source.whole()).map_err(|e| failed(&e))?
            }
            (Mode::ZeroCopy, true) => rings
                .register(1, self.memory_of("pagewire-region")?, &[Rule::tcp_port(PORT)])
                .map_err(|e| failed(&e))?,
        };
        let to = listen(&mut rings, RIGHT)?;
        let sender = left.start_connect(to).map_err(|e| failed(&reason(&e)))?;
        let set = sender.set_nonblocking(true).and_then(|()| sender.set_nodelay(true));
        set.map_err(|e| failed(&reason(&e)))?;
        let mut receiver = Receiver::new(group, self.options.seconds);
        let mut source = self.source.frags(SEND_PIECE);
        let mut pending = SendBuf::default();
        loop {
            loop {
                if pending.is_empty() {
                    pending = source.next().map(SendBuf::from).unwrap_or_default();
                }
                if !matches!(would_block(sender.send_some(&mut pending)), Ok(Some(_))) {
                    break;
                }
            }
            left.turn();
            right.turn();
            if let Some(round) = receiver.look(&mut rings)? {
                return Ok(receiver.finish(round, mtu, &right));
            }
        }
    }

    /// A kernel socket sends; the receiver sleeps on its rings.
    fn tap(&self, mode: Mode) -> Result<Outcome, Failure> {
        pin(self.sides.left);
        kernel::enter_namespace()?;
        let mut tap = Tap::builder().name("pwbench").host_address(format!("{RIGHT}/24"));
        if let Some(mtu) = self.options.mtu {
            tap = tap.mtu(mtu as usize);
        }
        let tap = tap.open().map_err(|e| failed(&e))?;
        let mtu = tap.capabilities().mtu as u32;
        let host = Host::builder().device(tap).address(format!("{LEFT}/24"));
        let host = host.start().map_err(|e| failed(&e))?;
        let mut rings = self.rings(&host)?;
        let group = match mode {
            Mode::Copy => COPY_GROUP,
            Mode::ZeroCopy => rings
                .register(1, self.memory_of("pagewire-region")?, &[Rule::tcp_port(PORT)])
                .map_err(|e| failed(&e))?,
        };
        let on = listen(&mut rings, LEFT)?;
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || -> Result<(), Failure> {
                pin(self.sides.right);
                kernel::send(kernel::connect(on)?, &self.source, PEER_MESSAGE);
                Ok(())
            });
            let mut receiver = Receiver::new(group, self.options.seconds);
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
            let outcome = round.map(|round| receiver.finish(round, mtu, &host));
            // Closes the connection, on which the sender ends.
            drop(rings);
            match sending.join() {
                Ok(sent) => sent.and(outcome),
                Err(_) => Err(Failure::Failed("a thread of the measurement died".into())),
            }
        })
    }
}

/// The application on rings.
struct Receiver {
    group: u16,
    meter: Meter,
    zc: u64,
    copied: u64,
}

impl Receiver {
    fn new(group: u16, seconds: f64) -> Self {
        Self { group, meter: Meter::new(seconds), zc: 0, copied: 0 }
    }

    /// Takes what has arrived and gives it back; the result, when the round is over.
    fn look(&mut self, rings: &mut Rings) -> Result<Option<Round>, Failure> {
        let (mut zc, mut copied) = (0, 0);
        while let Some(done) = rings.next_completion() {
            match done.user_data {
                NOTICE => continue,
                ACCEPT if done.result == 0 => {
                    let submission = Submission::receive(done.handle, self.group, 0, RECEIVE);
                    rings.submit(submission.multishot());
                    continue;
                }
                RECEIVE if done.result > 0 => {}
                _ => return Err(Failure::Failed(format!("the stream ended too early: {done:?}"))),
            }
            for _ in 0..done.entries {
                let Some(entry) = rings.next_entry() else { break };
                let bytes = if entry.group == COPY_GROUP { &mut copied } else { &mut zc };
                *bytes += u64::from(entry.len);
                while !rings.give_back(entry) {
                    rings.flush();
                    std::hint::spin_loop();
                }
            }
        }
        rings.flush();
        if zc + copied == 0 {
            return Ok(None);
        }
        if self.meter.is_running() {
            self.zc += zc;
            self.copied += copied;
        }
        Ok(self.meter.count((zc + copied) as usize))
    }

    fn finish(&self, round: Round, mtu: u32, host: &Host) -> Outcome {
        let ledger = host.stats().ledger;
        let device = ledger.get(pagewire::CopyReason::DeviceRx);
        Outcome { round, zc: self.zc, copied: self.copied, mtu, ours: ledger.ours(), device }
    }
}

/// Listens and accepts one connection.
fn listen(rings: &mut Rings, on: Ipv4Addr) -> Result<SocketAddr, Failure> {
    let (listener, local) = rings.listen((on, PORT)).map_err(|e| failed(&reason(&e)))?;
    rings.submit(Submission::new(Op::Accept, listener, ACCEPT));
    rings.flush();
    Ok(local)
}

fn failed(error: &impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}
