//! `bench stream`: the bulk rate of one connection.
//!
//! Over the pair link: by reference from a buffer larger than any cache; with a reader that touches
//! nothing, and with one that sums every byte; both hosts on one thread, and each on its own. Over
//! a tap: to and from a kernel socket. Beside it, in the same rounds, kernel to kernel: over
//! loopback for the pair, over veth for the tap. Over a port, to and from a virtual machine.

mod guest;
mod via;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};

use pagewire::memory::{CopyLedger, Frag};
use pagewire::{Host, TcpStream};

use crate::failure::Failure;
use crate::hosts::{
    self, Feed, LEFT, PORT, RECV_PIECE, RIGHT, SEND_PIECE, accept, connect_in_turns,
    hosts_in_turns, patient, would_block,
};
use crate::kernel::{self, Between, PATIENCE, PEER_MESSAGE};
use crate::machine::{Machine, SPREAD, Sides, joined, nap, on_a_thread, pin};
use crate::meter::{Meter, Round, in_turns};
use crate::options::{Direction, StreamLink, StreamOptions, name};
use crate::progress::Progress;
use crate::report::{Record, Results, print};
use crate::source::{Reader, Source};

pub(crate) fn run(options: &StreamOptions, progress: &Progress) -> Result<Results, Failure> {
    if options.link == StreamLink::VhostUser {
        return guest::run(options, progress);
    }
    if options.socket.is_some() {
        return Err(Failure::Usage("--socket needs --link vhost-user".into()));
    }
    if options.link == StreamLink::Pair && options.direction.is_some() {
        let text = "--direction says which way over a tap; with it give --link tap";
        return Err(Failure::Usage(text.into()));
    }
    if options.link == StreamLink::Tap {
        kernel::check_privilege()?;
    }
    let bench = Bench {
        source: Source::new(),
        sides: Sides::choose(),
        seconds: options.seconds,
        mtu: options.mtu,
        stats: options.common.stats,
    };
    let kernel = match options.link {
        StreamLink::Pair => Between::Loopback,
        StreamLink::Tap | StreamLink::VhostUser => Between::Veth { mtu: options.mtu },
    };
    progress.prepare("the kernel's best message size");
    let message = kernel::best_message(kernel, &bench.source, Reader::None, bench.sides)?;
    let mut lines: Vec<Line> = lines(options, kernel, message);
    let round = |line: &Line| bench.round(line.what);
    in_turns(progress, options.common.rounds, &mut lines, Line::name, round, |line, result| {
        line.rounds.push(result.round);
        (line.ledger, line.mtu) = (result.ledger, result.mtu);
    })?;
    let machine = Machine::describe();
    let records: Vec<_> = lines.iter().map(|line| line.record().on(&machine)).collect();
    let heading = machine.heading(options.common.rounds, options.seconds, SPREAD);
    let columns = "engine link direction peer reader threads via mtu message gbit_per_s min_gbit_per_s \
        max_gbit_per_s receiver_cpu_us_per_mib payload_bytes_copied";
    Ok(print(records, options.common.json, heading, columns))
}

#[derive(Clone, Copy, Debug)]
enum What {
    Kernel { between: Between, message: usize, reader: Reader },
    Pair { reader: Reader, threads: usize },
    Tap { direction: Direction, reader: Reader },
    PairViaProxy { reader: Reader, threads: usize },
    TapViaProxy { reader: Reader },
}

struct Line {
    what: What,
    rounds: Vec<Round>,
    ledger: CopyLedger,
    mtu: u32,
}

fn lines(options: &StreamOptions, kernel: Between, message: usize) -> Vec<Line> {
    let line = |what| Line { what, rounds: Vec::new(), ledger: CopyLedger::new(), mtu: 0 };
    let both = [Reader::None, Reader::Sum];
    let mut all: Vec<What> = Vec::new();
    match options.link {
        StreamLink::Pair => {
            for threads in [1, 2] {
                all.extend(both.map(|reader| What::Pair { reader, threads }));
                if options.via_proxy {
                    all.extend(both.map(|reader| What::PairViaProxy { reader, threads }));
                }
            }
        }
        StreamLink::Tap | StreamLink::VhostUser => {
            let wanted = |d: &Direction| options.direction.is_none_or(|only| only == *d);
            for direction in [Direction::Send, Direction::Receive].into_iter().filter(wanted) {
                all.push(What::Tap { direction, reader: Reader::None });
                if direction == Direction::Receive {
                    all.push(What::Tap { direction, reader: Reader::Sum });
                }
            }
        }
    }
    if options.via_proxy && options.link == StreamLink::Tap {
        all.extend(both.map(|reader| What::TapViaProxy { reader }));
    }
    all.extend(both.map(|reader| What::Kernel { between: kernel, message, reader }));
    all.into_iter().map(line).collect()
}

impl Line {
    /// What is measured, for the line of progress.
    fn name(&self) -> String {
        match self.what {
            What::Kernel { between: Between::Loopback, reader, .. } => {
                format!("kernel over loopback, reader {}", name(reader))
            }
            What::Kernel { reader, .. } => format!("kernel over veth, reader {}", name(reader)),
            What::Pair { reader, threads } => {
                format!("pair on {threads} thread(s), reader {}", name(reader))
            }
            What::PairViaProxy { reader, threads } => {
                format!("pair through a proxy on {threads} thread(s), reader {}", name(reader))
            }
            What::Tap { direction, reader } => {
                format!("tap, {}, reader {}", name(direction), name(reader))
            }
            What::TapViaProxy { reader } => {
                format!("tap through a proxy, reader {}", name(reader))
            }
        }
    }

    fn record(&self) -> Record {
        let (engine, link) = match self.what {
            What::Kernel { between: Between::Loopback, .. } => ("kernel", "loopback"),
            What::Kernel { .. } => ("kernel", "veth"),
            What::Pair { .. } | What::PairViaProxy { .. } => ("pagewire", "pair"),
            What::Tap { .. } | What::TapViaProxy { .. } => ("pagewire", "tap"),
        };
        let (direction, peer, reader, threads) = match self.what {
            What::Kernel { reader, .. } => ("send", "kernel", reader, 2),
            What::Pair { reader, threads } | What::PairViaProxy { reader, threads } => {
                ("send", "pagewire", reader, threads)
            }
            What::TapViaProxy { reader } => ("send", "kernel", reader, 2),
            What::Tap { direction: Direction::Send, reader } => ("send", "kernel", reader, 2),
            What::Tap { direction: Direction::Receive, reader } => ("receive", "kernel", reader, 2),
        };
        let mut record = Record::of_rounds("stream", engine, link, &self.rounds)
            .with("direction", direction)
            .with("peer", peer)
            .with("reader", name(reader))
            .with("threads", threads)
            .with("mtu", self.mtu);
        if let What::PairViaProxy { .. } | What::TapViaProxy { .. } = self.what {
            record = record.with("via", "proxy");
        }
        if let What::Kernel { message, .. } = self.what {
            record = record.with("message", message).with("congestion", "cubic");
        }
        // On one thread, the thread's clock cannot separate sender and receiver.
        let per_mib = match self.what {
            What::Pair { threads: 1, .. } | What::PairViaProxy { .. } => "cpu_us_per_mib",
            _ => "receiver_cpu_us_per_mib",
        };
        record = record.with_mean(per_mib, Round::us_per_mib(&self.rounds), 3);
        if engine == "pagewire" {
            record = record.with("payload_bytes_copied", self.ledger.ours());
        }
        record
    }
}

struct Bench {
    source: Source,
    sides: Sides,
    seconds: f64,
    mtu: Option<u32>,
    stats: bool,
}

struct Outcome {
    round: Round,
    ledger: CopyLedger,
    mtu: u32,
}

impl Bench {
    fn round(&self, what: What) -> Result<Outcome, Failure> {
        on_a_thread(|| match what {
            What::Kernel { between, message, reader } => {
                let (source, seconds) = (&self.source, self.seconds);
                let round = kernel::stream(between, source, message, reader, seconds, self.sides)?;
                Ok(Outcome { round, ledger: CopyLedger::new(), mtu: between.mtu() })
            }
            What::Pair { reader, threads: 1 } => self.pair_on_one_thread(reader),
            What::Pair { reader, .. } => self.pair_on_two_threads(reader),
            What::Tap { direction, reader } => self.tap(direction, reader),
            What::PairViaProxy { reader, threads } => self.pair_via_proxy(reader, threads),
            What::TapViaProxy { reader } => self.tap_via_proxy(reader),
        })
    }

    /// Sender, receiver and both stacks, in turns.
    fn pair_on_one_thread(&self, reader: Reader) -> Result<Outcome, Failure> {
        pin(self.sides.left);
        let (left, right, mtu) = hosts_in_turns(self.mtu)?;
        let (sender, receiver) = connect_in_turns(&left, &right)?;
        let round = self.in_turns(&sender, &receiver, reader, || left.turn() | right.turn())?;
        Ok(self.finish(round, mtu, &[&left, &right]))
    }

    /// Sends and receives on one thread; `turn` drives the hosts, and returns whether anything came.
    fn in_turns(
        &self,
        sender: &TcpStream,
        receiver: &TcpStream,
        reader: Reader,
        turn: impl Fn() -> bool,
    ) -> Result<Round, Failure> {
        let mut feed = Feed::new(self.source.frags(SEND_PIECE));
        let mut meter = Meter::new(self.seconds);
        let mut frags: Vec<Frag> = Vec::new();
        loop {
            while feed.send(sender)?.is_some() {}
            if !turn() {
                std::hint::spin_loop();
            }
            let mut got = 0;
            while let Some(n) = would_block(receiver.recv_into(RECV_PIECE, &mut frags))? {
                if n == 0 {
                    return Err(Failure::Failed("the sender ended too early".into()));
                }
                frags.drain(..).for_each(|frag| reader.see_frag(&frag));
                got += n;
            }
            if got > 0
                && let Some(round) = meter.count(got)
            {
                return Ok(round);
            }
        }
    }

    /// Each host on a thread of its own, polling.
    fn pair_on_two_threads(&self, reader: Reader) -> Result<Outcome, Failure> {
        pin(self.sides.left);
        let (left, right, mtu) = hosts_in_turns(self.mtu)?;
        let (sender, receiver) = connect_in_turns(&left, &right)?;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| -> Result<(), Failure> {
                let mut feed = Feed::new(self.source.frags(SEND_PIECE));
                while !done.load(Ordering::Relaxed) {
                    if feed.send(&sender)?.is_none() && !left.turn() {
                        std::hint::spin_loop();
                    }
                }
                Ok(())
            });
            let receiving = scope.spawn(|| -> Result<Round, Failure> {
                pin(self.sides.right);
                let result = receive(&receiver, reader, self.seconds, || {
                    if !right.turn() {
                        std::hint::spin_loop();
                    }
                });
                done.store(true, Ordering::Relaxed);
                result
            });
            let round = joined(receiving)?;
            joined(sending)?;
            Ok(self.finish(round, mtu, &[&left, &right]))
        })
    }

    /// A stack on a tap, and a kernel socket on the tap's other side.
    fn tap(&self, direction: Direction, reader: Reader) -> Result<Outcome, Failure> {
        pin(self.sides.left);
        let (tap, mtu) = hosts::tap(RIGHT, self.mtu)?;
        let host = hosts::on(tap, LEFT).start()?;
        let round = std::thread::scope(|scope| match direction {
            Direction::Send => {
                let listener = kernel::listen(RIGHT.into())?;
                let to = listener.local_addr()?;
                let receiving = scope.spawn(move || self.kernel_receives(&listener, reader));
                let connection = host.connect_timeout(to, PATIENCE);
                let connection = patient(connection)?;
                // Until the peer closes.
                for piece in self.source.frags(SEND_PIECE) {
                    if connection.send(piece).is_err() {
                        break;
                    }
                }
                joined(receiving)
            }
            Direction::Receive => {
                let on = SocketAddr::from((LEFT, PORT));
                let listener = host.listen(on)?;
                let sending = scope.spawn(move || self.kernel_sends(on));
                let connection = patient(accept(&listener, nap))?;
                let round = receive(&connection, reader, self.seconds, || {});
                connection.abort();
                drop(connection);
                joined(sending)?;
                round
            }
        })?;
        Ok(self.finish(round, mtu, &[&host]))
    }

    fn kernel_sends(&self, to: SocketAddr) -> Result<(), Failure> {
        pin(self.sides.right);
        kernel::send(kernel::connect(to)?, &self.source, PEER_MESSAGE);
        Ok(())
    }

    fn kernel_receives(&self, listener: &TcpListener, reader: Reader) -> Result<Round, Failure> {
        pin(self.sides.right);
        kernel::receive(kernel::accept(listener)?, PEER_MESSAGE, reader, self.seconds)
    }

    fn finish(&self, round: Round, mtu: u32, hosts: &[&Host]) -> Outcome {
        let mut ledger = CopyLedger::new();
        for host in hosts {
            let stats = host.stats();
            ledger.add(&stats.ledger);
            if self.stats {
                eprint!("{stats}");
            }
        }
        Outcome { round, ledger, mtu }
    }
}

/// Reads for a round; calls `idle` where a stream that does not wait has nothing.
fn receive(
    connection: &TcpStream,
    reader: Reader,
    seconds: f64,
    idle: impl Fn(),
) -> Result<Round, Failure> {
    let mut meter = Meter::new(seconds);
    let mut frags: Vec<Frag> = Vec::new();
    loop {
        match would_block(connection.recv_into(RECV_PIECE, &mut frags))? {
            Some(0) => return Err(Failure::Failed("the sender ended too early".into())),
            Some(n) => {
                frags.drain(..).for_each(|frag| reader.see_frag(&frag));
                if let Some(round) = meter.count(n) {
                    return Ok(round);
                }
            }
            None => idle(),
        }
    }
}
