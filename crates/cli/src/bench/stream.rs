//! `bench stream`: the bulk rate of one connection.
//!
//! Over the pair link: sent by reference from a buffer larger than any cache, received by
//! reference; with a reader that touches nothing, and with one that sums every byte. Both hosts
//! are driven on one thread, and then each on its own. Over a tap: to and from a kernel socket.
//! Beside it, in the same rounds, kernel to kernel: over loopback for the pair, over veth for the
//! tap. Over a port, to and from a virtual machine.

mod guest;
mod via;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagewire::{Host, SendBuf, TcpListener, TcpStream};
use pagewire_device::{Pair, PairConfig, Tap};
use pagewire_mem::{CopyLedger, Frag};

use super::kernel::{self, Between, PATIENCE};
use super::machine::{Machine, Sides, pin};
use super::report::{Record, print, rounded};
use super::source::{Meter, Reader, Round, Source};
use crate::args::{Direction, NetLink, StreamOptions};
use crate::failure::{Failure, reason};
use crate::limits::RECV_PIECE;

/// Bytes handed to a connection at once.
const SEND_PIECE: usize = 1 << 20;

/// Bytes of single reads and writes of a kernel peer: as large as helps.
const PEER_MESSAGE: usize = 1 << 20;

/// Addresses of the two sides of a link, and where the right one listens.
pub(super) const LEFT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(super) const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PORT: u16 = 9000;

/// Measures and prints.
pub(crate) fn run(options: &StreamOptions) -> Result<(), Failure> {
    if options.link == NetLink::VhostUser {
        return guest::run(options);
    }
    if options.socket.is_some() {
        return Err(Failure::Usage("--socket needs --link vhost-user".into()));
    }
    if options.link == NetLink::Pair && options.direction.is_some() {
        let text = "--direction says which way over a tap; with it give --link tap";
        return Err(Failure::Usage(text.into()));
    }
    if options.link == NetLink::Tap {
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
        NetLink::Pair => Between::Loopback,
        NetLink::Tap | NetLink::VhostUser => Between::Veth { mtu: options.mtu },
    };
    let message = kernel::best_message(kernel, &bench.source, Reader::None, bench.sides)?;
    let mut lines: Vec<Line> = lines(options, kernel, message);
    // The first round warms up: it is measured and left out.
    for round in 0..=options.common.rounds {
        for line in &mut lines {
            let result = bench.round(line.what)?;
            if round > 0 {
                line.rounds.push(result.round);
                line.ledger = result.ledger;
            }
            line.mtu = result.mtu;
        }
    }
    let machine = Machine::describe();
    let records: Vec<_> = lines.iter().map(|line| line.record().on(&machine)).collect();
    let heading = format!(
        "{machine}; {} rounds of {} s each, medians (lowest and highest beside them)",
        options.common.rounds, options.seconds
    );
    let columns = [
        "engine",
        "link",
        "direction",
        "peer",
        "reader",
        "threads",
        "via",
        "mtu",
        "message",
        "gbit_per_s",
        "min_gbit_per_s",
        "max_gbit_per_s",
        "receiver_cpu_us_per_mib",
        "payload_bytes_copied",
    ];
    print(&records, options.common.json, &heading, &columns);
    Ok(())
}

/// One thing that is measured.
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
    /// Of the last round.
    ledger: CopyLedger,
    mtu: u32,
}

fn lines(options: &StreamOptions, kernel: Between, message: usize) -> Vec<Line> {
    let line = |what| Line { what, rounds: Vec::new(), ledger: CopyLedger::new(), mtu: 0 };
    let both = [Reader::None, Reader::Sum];
    let mut all: Vec<What> = Vec::new();
    match options.link {
        NetLink::Pair => {
            for threads in [1, 2] {
                all.extend(both.map(|reader| What::Pair { reader, threads }));
                if options.via_proxy {
                    all.extend(both.map(|reader| What::PairViaProxy { reader, threads }));
                }
            }
        }
        NetLink::Tap | NetLink::VhostUser => {
            let wanted = |d: &Direction| options.direction.is_none_or(|only| only == *d);
            for direction in [Direction::Send, Direction::Receive].into_iter().filter(wanted) {
                all.push(What::Tap { direction, reader: Reader::None });
                if direction == Direction::Receive {
                    all.push(What::Tap { direction, reader: Reader::Sum });
                }
            }
        }
    }
    if options.via_proxy && options.link == NetLink::Tap {
        all.extend(both.map(|reader| What::TapViaProxy { reader }));
    }
    all.extend(both.map(|reader| What::Kernel { between: kernel, message, reader }));
    all.into_iter().map(line).collect()
}

impl Line {
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
            .with("reader", reader.name())
            .with("threads", threads)
            .with("mtu", self.mtu);
        if let What::PairViaProxy { .. } | What::TapViaProxy { .. } = self.what {
            record = record.with("via", "proxy");
        }
        if let What::Kernel { message, .. } = self.what {
            record = record.with("message", message).with("congestion", "cubic");
        }
        // On one thread, sender and receiver cannot be told apart by the thread's clock.
        let cpu: f64 = self.rounds.iter().map(|r| r.receiver_cpu.as_secs_f64()).sum();
        let mib = self.rounds.iter().map(|r| r.bytes as f64).sum::<f64>() / f64::from(1 << 20);
        let per_mib = rounded(cpu * 1e6 / mib.max(1e-9), 3);
        match self.what {
            What::Pair { threads: 1, .. } | What::PairViaProxy { .. } => {
                record = record.with("cpu_us_per_mib", per_mib)
            }
            _ => record = record.with("receiver_cpu_us_per_mib", per_mib),
        }
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

struct Result1 {
    round: Round,
    ledger: CopyLedger,
    mtu: u32,
}

impl Bench {
    fn round(&self, what: What) -> Result<Result1, Failure> {
        // A thread of its own, so that it may be pinned and may change its network namespace.
        let run = || match what {
            What::Kernel { between, message, reader } => {
                let round = kernel::stream(
                    between,
                    &self.source,
                    message,
                    reader,
                    self.seconds,
                    self.sides,
                )?;
                let default = if between == Between::Loopback { 65_536 } else { 1500 };
                let mtu = match between {
                    Between::Loopback => default,
                    Between::Veth { mtu } => mtu.unwrap_or(default),
                };
                Ok(Result1 { round, ledger: CopyLedger::new(), mtu })
            }
            What::Pair { reader, threads: 1 } => self.pair_on_one_thread(reader),
            What::Pair { reader, .. } => self.pair_on_two_threads(reader),
            What::Tap { direction, reader } => self.tap(direction, reader),
            What::PairViaProxy { reader, threads } => self.pair_via_proxy(reader, threads),
            What::TapViaProxy { reader } => self.tap_via_proxy(reader),
        };
        std::thread::scope(|scope| {
            let died = |_| Err(Failure::Failed("a thread of the measurement died".into()));
            scope.spawn(run).join().unwrap_or_else(died)
        })
    }

    fn pair_config(&self) -> PairConfig {
        let mut config = PairConfig::default();
        if let Some(mtu) = self.mtu {
            config.mtu = mtu as usize;
        }
        config
    }

    /// Sender, receiver and both stacks, in turns.
    fn pair_on_one_thread(&self, reader: Reader) -> Result<Result1, Failure> {
        pin(self.sides.left);
        let config = self.pair_config();
        let mtu = config.mtu as u32;
        let (a, b) = Pair::new(config).map_err(|e| failed(&e))?;
        let left = Host::builder().device(a).address(format!("{LEFT}/24")).manual().start();
        let right = Host::builder().device(b).address(format!("{RIGHT}/24")).manual().start();
        let (left, right) = (left.map_err(|e| failed(&e))?, right.map_err(|e| failed(&e))?);
        let (sender, receiver) = connect_in_turns(&left, &right)?;
        let round = self.in_turns(&sender, &receiver, reader, || left.turn() | right.turn())?;
        Ok(self.finish(round, mtu, &[&left, &right]))
    }

    /// Sends and receives on one thread; `turn` drives the hosts, and says whether anything came.
    fn in_turns(
        &self,
        sender: &TcpStream,
        receiver: &TcpStream,
        reader: Reader,
        turn: impl Fn() -> bool,
    ) -> Result<Round, Failure> {
        let mut source = self.source.frags(SEND_PIECE);
        let mut meter = Meter::new(self.seconds);
        let mut pending = SendBuf::default();
        let mut frags: Vec<Frag> = Vec::new();
        loop {
            loop {
                if pending.is_empty() {
                    pending = source.next().map(SendBuf::from).unwrap_or_default();
                }
                if would_block(sender.send_some(&mut pending))?.is_none() {
                    break;
                }
            }
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
    fn pair_on_two_threads(&self, reader: Reader) -> Result<Result1, Failure> {
        pin(self.sides.left);
        let config = self.pair_config();
        let mtu = config.mtu as u32;
        let (a, b) = Pair::new(config).map_err(|e| failed(&e))?;
        let left = Host::builder().device(a).address(format!("{LEFT}/24")).manual().start();
        let right = Host::builder().device(b).address(format!("{RIGHT}/24")).manual().start();
        let (left, right) = (left.map_err(|e| failed(&e))?, right.map_err(|e| failed(&e))?);
        let (sender, receiver) = connect_in_turns(&left, &right)?;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| -> Result<(), Failure> {
                let mut source = self.source.frags(SEND_PIECE);
                let mut pending = SendBuf::default();
                while !done.load(Ordering::Relaxed) {
                    if pending.is_empty() {
                        pending = source.next().map(SendBuf::from).unwrap_or_default();
                    }
                    if would_block(sender.send_some(&mut pending))?.is_none() && !left.turn() {
                        std::hint::spin_loop();
                    }
                }
                Ok(())
            });
            let receiving = scope.spawn(|| -> Result<Round, Failure> {
                pin(self.sides.right);
                let result = (|| {
                    let mut meter = Meter::new(self.seconds);
                    let mut frags: Vec<Frag> = Vec::new();
                    loop {
                        match would_block(receiver.recv_into(RECV_PIECE, &mut frags))? {
                            Some(0) => {
                                return Err(Failure::Failed("the sender ended too early".into()));
                            }
                            Some(n) => {
                                frags.drain(..).for_each(|frag| reader.see_frag(&frag));
                                if let Some(round) = meter.count(n) {
                                    return Ok(round);
                                }
                            }
                            None if !right.turn() => std::hint::spin_loop(),
                            None => {}
                        }
                    }
                })();
                done.store(true, Ordering::Relaxed);
                result
            });
            let round = joined(receiving)?;
            joined(sending)?;
            Ok(self.finish(round, mtu, &[&left, &right]))
        })
    }

    /// A stack on a tap, and a kernel socket on the tap's other side, in a network namespace made
    /// for it: nothing of the machine's network is touched, and all of it ends with the threads.
    fn tap(&self, direction: Direction, reader: Reader) -> Result<Result1, Failure> {
        pin(self.sides.left);
        kernel::enter_namespace()?;
        let mut tap = Tap::builder().name("pwbench").host_address(format!("{RIGHT}/24"));
        if let Some(mtu) = self.mtu {
            tap = tap.mtu(mtu as usize);
        }
        let tap = tap.open().map_err(|e| failed(&e))?;
        let mtu = pagewire_device::Device::capabilities(&tap).mtu as u32;
        let host = Host::builder().device(tap).address(format!("{LEFT}/24"));
        let host = host.start().map_err(|e| failed(&e))?;
        let round = std::thread::scope(|scope| match direction {
            Direction::Send => {
                let listener = kernel::listen(RIGHT.into())?;
                let to = listener.local_addr().map_err(|e| failed(&reason(&e)))?;
                let receiving = scope.spawn(move || {
                    pin(self.sides.right);
                    let peer = kernel::accept(&listener)?;
                    kernel::receive(peer, PEER_MESSAGE, reader, self.seconds)
                });
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
                let listener = host.listen(on).map_err(|e| failed(&reason(&e)))?;
                let sending = scope.spawn(move || -> Result<(), Failure> {
                    pin(self.sides.right);
                    kernel::send(kernel::connect(on)?, &self.source, PEER_MESSAGE);
                    Ok(())
                });
                let connection = patient(accept(&listener, nap))?;
                let round = receive(&connection, reader, self.seconds);
                connection.abort();
                drop(connection);
                joined(sending)?;
                round
            }
        })?;
        Ok(self.finish(round, mtu, &[&host]))
    }

    fn finish(&self, round: Round, mtu: u32, hosts: &[&Host]) -> Result1 {
        let mut ledger = CopyLedger::new();
        for host in hosts {
            let stats = host.stats();
            ledger.add(&stats.ledger);
            if self.stats {
                eprint!("{stats}");
            }
        }
        Result1 { round, ledger, mtu }
    }
}

fn receive(connection: &TcpStream, reader: Reader, seconds: f64) -> Result<Round, Failure> {
    let mut meter = Meter::new(seconds);
    let mut frags: Vec<Frag> = Vec::new();
    loop {
        let n = connection.recv_into(RECV_PIECE, &mut frags).map_err(|e| failed(&reason(&e)))?;
        if n == 0 {
            return Err(Failure::Failed("the sender ended too early".into()));
        }
        frags.drain(..).for_each(|frag| reader.see_frag(&frag));
        if let Some(round) = meter.count(n) {
            return Ok(round);
        }
    }
}

/// A connection between two hosts without driver threads; both ends do not wait.
pub(crate) fn connect_in_turns(
    left: &Host,
    right: &Host,
) -> Result<(TcpStream, TcpStream), Failure> {
    let none = || Failure::Failed("no connection was made".into());
    connect_many_in_turns(left, right, 1)?.pop().ok_or_else(none)
}

/// Several of them, one after the other.
pub(crate) fn connect_many_in_turns(
    left: &Host,
    right: &Host,
    count: usize,
) -> Result<Vec<(TcpStream, TcpStream)>, Failure> {
    let on = SocketAddr::from((RIGHT, PORT));
    let listener = right.listen(on).map_err(|e| failed(&reason(&e)))?;
    let mut connections = Vec::new();
    for _ in 0..count {
        let (client, server) = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                patient(accept(&listener, || {
                    right.turn();
                }))
            });
            let client = patient(left.connect_timeout(on, PATIENCE));
            (client, joined(accepting))
        });
        let (client, server) = (client?, server?);
        for stream in [&client, &server] {
            let set = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
            set.map_err(|e| failed(&reason(&e)))?;
        }
        connections.push((client, server));
    }
    Ok(connections)
}

/// What a thread does that waits for something rare and need not be quick.
pub(crate) fn nap() {
    std::thread::park_timeout(Duration::from_millis(1));
}

/// The next connection, unless its peer failed; `meanwhile` is called until it comes.
pub(crate) fn accept(listener: &TcpListener, mut meanwhile: impl FnMut()) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((connection, _)) => return Ok(connection),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                meanwhile();
            }
            Err(e) => return Err(e),
        }
    }
}

/// A connection on which no call waits for ever.
pub(super) fn patient(connection: io::Result<TcpStream>) -> Result<TcpStream, Failure> {
    let set = connection.and_then(|c| {
        c.set_read_timeout(Some(PATIENCE))?;
        c.set_write_timeout(Some(PATIENCE))?;
        Ok(c)
    });
    set.map_err(|e| failed(&reason(&e)))
}

/// `None`: nothing to do now.
pub(crate) fn would_block(result: std::io::Result<usize>) -> Result<Option<usize>, Failure> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(failed(&reason(&e))),
    }
}

pub(crate) fn joined<T>(
    thread: std::thread::ScopedJoinHandle<'_, Result<T, Failure>>,
) -> Result<T, Failure> {
    let died = |_| Err(Failure::Failed("a thread of the measurement died".into()));
    thread.join().unwrap_or_else(died)
}

pub(super) fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}
