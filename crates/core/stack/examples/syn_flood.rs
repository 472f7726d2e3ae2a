//! Measures the cost of a flood of forged SYNs, for an established flow over the pair link and for newcomers.
//!
//! ```text
//! cargo run --release -p pagewire-stack --example syn_flood [SYNs per second] [pairs of slices]
//! cargo run --release -p pagewire-stack --example syn_flood cost [SYNs]
//! valgrind --tool=callgrind target/release/examples/syn_flood count SYNS
//! ```
//!
//! The first form lets the flow run in slices of time, alternately alone and beside the flood, in the
//! order alone, flooded, flooded, alone; each pair of slices gives one share of the rate that is
//! kept, so that a machine that grows faster or slower meanwhile counts for little. Both stacks are on one
//! thread, which has no time for the flood but the flow's. The clock is the thread's processor time, so
//! that other programs on the machine count for nothing. Medians and quartiles are printed.
//!
//! The SYNs come from made-up addresses and are handed to the server's stack as a device would hand
//! them over, with their checksums still to be verified; its answers leave over the link, to a
//! gateway. In a slice without the flood they are made all the same, and dropped.
//!
//! The second form takes nothing but SYNs, and prints nanoseconds of processor time for each; the
//! third reads no clock, for a profiler that counts instructions.

#[path = "../tests/suite/common/forge.rs"]
mod forge;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::{Device, Pair, PairConfig, PairEnd};
use pagewire_mem::{Frag, FragVec, Instant, PacketBuf};
use pagewire_stack::{Chunks, Error, ListenerId, Readiness, Stack, StackConfig, TcpId};
use pagewire_testkit::frames::{arp, received};
use pagewire_testkit::sim::Verbs;

const SLICE: Duration = Duration::from_millis(50);
const PAIRS: u64 = 24;
const BUFFER: usize = 64 << 20;
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 80);
const BACKLOG: usize = 128;

/// Time between two newcomers.
const KNOCK: Duration = Duration::from_millis(10);

/// SYNs at a time: what a host takes from a device before it sends again.
const BURST: usize = 256;

/// How late a SYN may come.
const LATE: Duration = Duration::from_millis(5);

/// A flow must keep this share of its rate.
const FLOOR: f64 = 0.9;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == "cost").is_some() {
        return cost(args.next().map_or(1_000_000, |n| n.parse().expect("a number")));
    }
    if args.next_if(|arg| arg == "count").is_some() {
        let syns = args.next().map_or(100_000, |n| n.parse().expect("a number"));
        meet().1.deliver(syns, true);
        return ExitCode::SUCCESS;
    }
    let mut args = args.map(|arg| arg.parse::<u64>().expect("a number"));
    let per_second = args.next().unwrap_or(200_000);
    let pairs = args.next().unwrap_or(PAIRS).max(1);
    println!("{per_second} forged SYNs per second, {pairs} pairs of {SLICE:?}");
    let (mut client, mut server) = meet();
    server.per_second = per_second;
    let slices = measure(&mut client, &mut server, pairs);
    if report(&slices, &client, &server) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Bytes per second of each slice, alone and flooded.
#[derive(Default)]
struct Slices {
    alone: Vec<f64>,
    flooded: Vec<f64>,
}

impl Slices {
    /// Whether the slice of this number has the flood.
    fn is_flooded(number: u64) -> bool {
        matches!(number % 4, 1 | 2)
    }
}

fn report(slices: &Slices, client: &Client, server: &Server) -> bool {
    for (what, rates) in [("alone", &slices.alone), ("flooded", &slices.flooded)] {
        let [low, mid, high] = quartiles(rates).map(|rate| rate * 8.0 / 1e9);
        println!("  {what:8} {mid:6.1} Gbit/s (quartiles {low:.1}, {high:.1})");
    }
    let shares: Vec<f64> = slices.flooded.iter().zip(&slices.alone).map(|(f, a)| f / a).collect();
    let [low, kept, high] = quartiles(&shares).map(|share| share * 100.0);
    println!("  kept     {kept:6.1} %      (quartiles {low:.1}, {high:.1})");
    let micros: Vec<f64> = client.waits.iter().map(|wait| wait.as_nanos() as f64 / 1e3).collect();
    let [_, mid, _] = quartiles(&micros);
    let last = micros.iter().copied().fold(0.0, f64::max);
    let (asked, let_in) = (client.asked, micros.len() as u64);
    println!("  newcomers: {let_in} of {asked}, median {mid:.0} µs, slowest {last:.0} µs");
    let stack = &server.end.stack;
    let (cookies, sockets) = (stack.counters().tcp_syn_cookies_sent, stack.socket_count());
    let memory = stack.receive_memory_used() >> 10;
    println!("  {cookies} cookies, {} SYNs not in time", server.late);
    println!("  {sockets} sockets and {memory} KiB of payload at the server");
    // Half open at most a backlog and one, the listener, the flow, newcomers on their way.
    let bounded = sockets <= BACKLOG + 1 + 2 + 8;
    kept >= FLOOR * 100.0 && let_in + 2 >= asked && let_in > 0 && bounded
}

/// The lower quartile, the median and the upper quartile.
fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |q: usize| sorted.get((sorted.len() * q / 4).min(sorted.len().saturating_sub(1)));
    [1, 2, 3].map(|q| at(q).copied().unwrap_or(f64::NAN))
}

/// Processor time of this thread.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A moment of the stacks' clock, from one that runs from 0.
fn moment(passed: Duration) -> Instant {
    Instant::from_millis(1000) + passed
}

/// Runs the flow in slices, with and without the flood.
fn measure(client: &mut Client, server: &mut Server, pairs: u64) -> Slices {
    let mut slices = Slices::default();
    let start = cpu();
    // The first four slices warm caches up.
    for number in 0..2 * pairs + 4 {
        let flooded = Slices::is_flooded(number);
        let (begin, before) = (cpu(), server.got);
        let mut passed = Duration::ZERO;
        while passed < SLICE {
            let now = cpu() - start;
            server.flood(now, flooded);
            client.turn(now);
            server.turn(now);
            passed = cpu() - begin;
        }
        if number >= 4 {
            let rates = if flooded { &mut slices.flooded } else { &mut slices.alone };
            rates.push((server.got - before) as f64 / passed.as_secs_f64());
        }
    }
    slices
}

/// Nanoseconds for a forged SYN, all the way to the answer's frame, which is dropped.
fn cost(syns: u64) -> ExitCode {
    let (_, mut server) = meet();
    // Until the queue of half-open connections is full.
    server.deliver(2 * BACKLOG, true);
    const ROUNDS: u64 = 9;
    let mut each = Vec::new();
    for _ in 0..ROUNDS {
        let round = (syns / ROUNDS) as usize;
        let begin = cpu();
        server.deliver(round, false);
        let made = cpu();
        server.deliver(round, true);
        each.push((cpu() - made).saturating_sub(made - begin).as_nanos() as f64 / round as f64);
    }
    let [low, mid, high] = quartiles(&each);
    println!("{mid:.0} ns for each forged SYN and its answer (quartiles {low:.0}, {high:.0})");
    ExitCode::SUCCESS
}

struct End {
    stack: Stack,
    device: PairEnd,
    out: VecDeque<PacketBuf>,
    into: VecDeque<PacketBuf>,
}

impl End {
    fn new(host: u8, device: PairEnd) -> Self {
        let address = format!("10.0.0.{host}/24").parse().expect("an address");
        let mut config = StackConfig::new(device.capabilities().clone(), vec![address], [host; 32]);
        config.announce = false;
        // The way back to the made-up addresses leads over a third station on the link.
        config.gateways = vec![Ipv4Addr::new(10, 0, 0, 9).into()];
        let stack = Stack::new(Instant::ZERO, config).expect("a stack");
        Self { stack, device, out: VecDeque::new(), into: VecDeque::new() }
    }

    /// Receives and sends all frames that there are.
    fn turn(&mut self, now: Instant) {
        let ledger = self.stack.ledger_mut();
        self.device.receive(now, &mut self.into, 256, ledger).expect("the link");
        for frame in self.into.drain(..) {
            self.stack.handle_frame(now, frame);
        }
        if self.stack.poll_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
        loop {
            // Frames for which the other end had no room go first; until then, no more are made.
            let more = !self.out.is_empty() || self.stack.poll_transmit(now, &mut self.out);
            let ledger = self.stack.ledger_mut();
            self.device.transmit(now, &mut self.out, ledger).expect("the link");
            if !more || !self.out.is_empty() {
                break;
            }
        }
        while self.stack.poll_event().is_some() {}
        self.stack.end_turn();
    }
}

/// Feeds the flow, and lets a newcomer knock now and then.
struct Client {
    end: End,
    flow: TcpId,
    whole: Frag,
    offset: usize,
    pending: FragVec,
    newcomer: Option<(TcpId, Duration)>,
    next_knock: Duration,
    asked: u64,
    waits: Vec<Duration>,
}

/// Drains the flow, and greets newcomers: whoever is accepted is let go at once.
struct Server {
    end: End,
    flow: TcpId,
    listener: ListenerId,
    got: u64,
    chunks: Vec<Frag>,
    rng: forge::Rng,
    mac: [u8; 6],
    per_second: u64,
    forged_until: Duration,
    /// SYNs that were too late, in slices of both kinds.
    late: u64,
}

/// The two, with a flow between them.
fn meet() -> (Client, Server) {
    let link = PairConfig::default();
    let mac = link.macs[1];
    let (left, right) = Pair::with(link).expect("a pair");
    let (mut a, mut b) = (End::new(1, left), End::new(2, right));
    let now = moment(Duration::ZERO);
    let listener = b.stack.listen(SERVER.into(), BACKLOG).expect("a listener");
    let client = a.stack.connect(now, SERVER.into(), None).expect("a connection");
    let server = loop {
        a.turn(now);
        b.turn(now);
        if let Ok((server, _)) = b.stack.accept(listener) {
            break server;
        }
    };
    // The gateway has said where it is.
    let hello = arp(1, [2, 0, 0, 0, 0, 99], [10, 0, 0, 9], [0; 6], [10, 0, 0, 2]);
    b.stack.handle_frame(now, received(&hello, 42));
    let client = Client {
        end: a,
        flow: client,
        whole: Frag::from_bytes(Bytes::from(vec![0u8; BUFFER])),
        offset: 0,
        pending: FragVec::new(),
        newcomer: None,
        next_knock: KNOCK,
        asked: 0,
        waits: Vec::new(),
    };
    let server = Server {
        end: b,
        flow: server,
        listener,
        got: 0,
        chunks: Vec::new(),
        rng: forge::Rng(7),
        mac,
        per_second: 0,
        forged_until: Duration::ZERO,
        late: 0,
    };
    (client, server)
}

impl Client {
    fn turn(&mut self, passed: Duration) {
        let now = moment(passed);
        self.knock(passed);
        loop {
            if self.pending.is_empty() {
                let len = (1 << 20).min(BUFFER - self.offset);
                self.pending.push(self.whole.slice(self.offset..self.offset + len));
                self.offset = (self.offset + len) % BUFFER;
            }
            match self.end.stack.send(now, self.flow, &mut self.pending) {
                Ok(_) => {}
                Err(Error::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.end.turn(now);
    }

    fn knock(&mut self, passed: Duration) {
        let now = moment(passed);
        if let Some((id, asked)) = self.newcomer {
            let gone = Readiness::READ_CLOSED | Readiness::ERROR;
            if self.end.stack.readiness(id).is_ok_and(|is| !is.intersects(gone)) {
                return;
            }
            // Accepted, and let go.
            if self.end.stack.take_error(id).is_none() {
                self.waits.push(passed - asked);
            }
            self.end.stack.abort(now, id);
            self.end.stack.close(now, id);
            self.newcomer = None;
        } else if passed >= self.next_knock {
            let id = self.end.stack.connect(now, SERVER.into(), None).expect("a port");
            (self.newcomer, self.next_knock) = (Some((id, passed)), passed + KNOCK);
            self.asked += 1;
        }
    }
}

impl Server {
    fn turn(&mut self, passed: Duration) {
        let now = moment(passed);
        self.end.turn(now);
        while let Ok((newcomer, _)) = self.end.stack.accept(self.listener) {
            self.end.stack.close(now, newcomer);
        }
        let (stack, chunks) = (&mut self.end.stack, &mut self.chunks);
        while let Ok(n) = stack.recv(now, self.flow, Chunks { max: 1 << 20, into: chunks }) {
            self.got += n as u64;
            chunks.clear();
        }
    }

    /// The SYNs that are due, at most a burst of them. What a thread that was not let run for long
    /// is too late for, a device's queue would have lost.
    fn flood(&mut self, passed: Duration, delivered: bool) {
        if self.per_second == 0 {
            return;
        }
        let interval = Duration::from_nanos(1_000_000_000 / self.per_second);
        let oldest = passed.saturating_sub(LATE);
        if self.forged_until < oldest {
            self.late += ((oldest - self.forged_until).as_nanos() / interval.as_nanos()) as u64;
            self.forged_until = oldest;
        }
        for _ in 0..BURST {
            if self.forged_until >= passed {
                break;
            }
            let frame = self.forged();
            if delivered {
                self.end.stack.handle_frame(moment(passed), frame);
            }
            self.forged_until += interval;
        }
    }

    /// SYNs and nothing else; the answers are dropped.
    fn deliver(&mut self, syns: usize, delivered: bool) {
        let now = moment(Duration::from_secs(1));
        for i in 0..syns {
            let frame = self.forged();
            if delivered {
                handle(&mut self.end.stack, now, frame);
            }
            if i % 64 == 63 || i + 1 == syns {
                while transmit(&mut self.end.stack, now, &mut self.end.out) {}
                self.end.out.clear();
            }
        }
    }

    fn forged(&mut self) -> PacketBuf {
        let (from, syn) = forge::stranger(&mut self.rng);
        let mut frame = forge::frame(0, from, SERVER, syn);
        frame.head_mut()[..6].copy_from_slice(&self.mac);
        forge::sum(&mut frame);
        frame
    }
}

// Apart, so that a profiler can tell the stack's work from the forger's.

#[inline(never)]
fn handle(stack: &mut Stack, now: Instant, frame: PacketBuf) {
    stack.handle_frame(now, frame);
}

#[inline(never)]
fn transmit(stack: &mut Stack, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
    stack.poll_transmit(now, out)
}
