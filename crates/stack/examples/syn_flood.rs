//! What a flood of forged SYNs costs, in processor time: the rate of an established flow over the pair
//! link alone and beside 200,000 forged SYNs per second, newcomers during the flood, and
//! nanoseconds for each forged SYN.
//!
//! ```text
//! cargo run --profile quick -p pagewire-stack --example syn_flood [SYNs per second] [MTU] [rounds]
//! ```
//!
//! Two stacks and the pair device between them, all on one thread, so that whatever the flood costs
//! is missing from the flow. The SYNs come from made-up addresses, are handed to the server's
//! stack as a device would hand them over, with their checksums still to be verified, and its
//! answers leave over the link, to a gateway. The clock is the processor time of the thread, so that other
//! programs on the machine count for nothing. Rounds alternate; medians are printed.
//!
//! Twice: a flow that takes what there is, so that the thread has nothing left for the flood but
//! what it takes from the flow; and one of 100 Gbit/s, as fast as a kernel's socket can be fed.

#[path = "../tests/common/forge.rs"]
mod forge;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::{Device, Pair, PairConfig, PairEnd};
use pagewire_mem::{Frag, FragVec, Instant, PacketBuf};
use pagewire_stack::{Error, SocketId, Stack, StackConfig};
use pagewire_tcp::{Flags, Seq, TcpHeader, TcpOptions};

const ROUND: Duration = Duration::from_millis(300);
const BUFFER: usize = 64 << 20;
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 80);

/// Gbit/s of the flow that does not take all there is.
const PACE: f64 = 100.0;

/// Processor time of this thread.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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

    /// Receives and sends what there is.
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
            let more = self.stack.poll_transmit(now, &mut self.out);
            let ledger = self.stack.ledger_mut();
            self.device.transmit(now, &mut self.out, ledger).expect("the link");
            // What the other end has no room for yet stays for the next turn.
            if !more || !self.out.is_empty() {
                break;
            }
        }
        while self.stack.poll_event().is_some() {}
        self.stack.end_turn();
    }
}

/// What happens to the forged SYNs of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flood {
    /// They are made, and dropped: what making them costs is in both kinds of round.
    Withheld,
    Delivered,
}

#[derive(Default)]
struct Round {
    gbit_per_s: f64,
    newcomers: usize,
    slowest: Duration,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let per_second = args.next().unwrap_or(200_000);
    let mut link = PairConfig::default();
    if let Some(mtu) = args.next() {
        link.mtu = mtu as usize;
    }
    let rounds = args.next().map_or(9, |n| n as usize);
    let macs = link.macs;
    let (left, right) = Pair::new(link).expect("a pair");
    let mut world = World::new(End::new(1, left), End::new(2, right), macs[1]);

    world.round(Flood::Withheld, per_second, f64::INFINITY);
    let (mut left, mut let_in) = (0.0, 0);
    for cap in [f64::INFINITY, PACE] {
        let (mut alone, mut flooded) = (Vec::new(), Vec::new());
        for _ in 0..rounds.max(1) {
            alone.push(world.round(Flood::Withheld, per_second, cap));
            flooded.push(world.round(Flood::Delivered, per_second, cap));
        }
        let (alone, flooded) = (median(&mut alone), median(&mut flooded));
        for (what, round) in [("alone", &alone), ("flooded", &flooded)] {
            let Round { gbit_per_s, newcomers, slowest } = round;
            println!(
                "{what:8} {gbit_per_s:8.1} Gbit/s, {newcomers} newcomers, slowest {slowest:.1?}"
            );
        }
        left = flooded.gbit_per_s / alone.gbit_per_s * 100.0;
        let_in = flooded.newcomers;
        println!("{left:.1} % of the rate is left beside {per_second} forged SYNs per second");
    }
    let sockets = world.b.stack.socket_count();
    println!("{sockets} sockets; {} cookies sent", world.b.stack.counters().tcp_syn_cookies_sent);
    let each = world.cost();
    println!(
        "{each:.0} ns for each forged SYN and its answer, from the frame that comes in to the one that leaves"
    );
    // Half open at most a backlog and one, newcomers, and a few.
    let bounded = sockets <= 129 + 4 * rounds * 200 + 100;
    if left >= 90.0 && let_in > 0 && bounded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn median(rounds: &mut Vec<Round>) -> Round {
    rounds.sort_by(|a, b| a.gbit_per_s.total_cmp(&b.gbit_per_s));
    rounds.swap_remove(rounds.len() / 2)
}

struct World {
    a: End,
    b: End,
    mac: [u8; 6],
    client: SocketId,
    server: SocketId,
    listener: SocketId,
    whole: Frag,
    offset: usize,
    rng: forge::Rng,
}

impl World {
    fn new(mut a: End, mut b: End, mac: [u8; 6]) -> Self {
        let now = Instant::from_millis(1000);
        let listener = b.stack.tcp_listen(now, SERVER.into(), 128).expect("a listener");
        let client = a.stack.tcp_connect(now, SERVER.into(), None).expect("a connection");
        let server = loop {
            a.turn(now);
            b.turn(now);
            if let Ok((server, _)) = b.stack.tcp_accept(now, listener) {
                break server;
            }
        };
        // The gateway has said where it is.
        let mut hello = PacketBuf::for_rx();
        let out = hello.append(42).expect("room");
        out[..6].copy_from_slice(&mac);
        out[6..22].copy_from_slice(&[2, 0, 0, 0, 0, 99, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        out[22..32].copy_from_slice(&[2, 0, 0, 0, 0, 99, 10, 0, 0, 9]);
        out[32..42].copy_from_slice(&[0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        b.stack.handle_frame(now, hello);
        let whole = Frag::from_bytes(Bytes::from(vec![0u8; BUFFER]));
        Self { a, b, mac, client, server, listener, whole, offset: 0, rng: forge::Rng(7) }
    }

    fn now() -> Instant {
        Instant::from_nanos(1_000_000_000 + cpu().as_nanos() as u64)
    }

    fn forged(&mut self) -> PacketBuf {
        let r = self.rng.next();
        let ip = Ipv4Addr::new(198, 18 + (r & 1) as u8, (r >> 8) as u8, (r >> 16) as u8);
        let from = SocketAddrV4::new(ip, 1024 + (r >> 32) as u16 % 60_000);
        let options = TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((r as u32, 0)),
            ..TcpOptions::default()
        };
        let seq = Seq((r >> 24) as u32);
        let syn =
            TcpHeader { seq, flags: Flags::SYN, window: 65_535, options, ..TcpHeader::default() };
        let mut frame = forge::frame(0, from, SERVER, syn);
        frame.head_mut()[..6].copy_from_slice(&self.mac);
        forge::sum(&mut frame);
        frame
    }

    /// The flow, a newcomer every 10 ms, and the flood.
    fn round(&mut self, flood: Flood, per_second: u64, cap: f64) -> Round {
        let begin = cpu();
        let (mut sent, mut got, mut forged) = (0usize, 0usize, 0u64);
        let (mut pending, mut chunks) = (FragVec::new(), Vec::new());
        let mut waiting: Option<(SocketId, Duration)> = None;
        let (mut round, mut next) = (Round::default(), Duration::from_millis(10));
        loop {
            let passed = cpu() - begin;
            if passed >= ROUND {
                break;
            }
            let now = Self::now();
            let due = passed.as_micros() as u64 * per_second / 1_000_000;
            while forged < due {
                let frame = self.forged();
                if flood == Flood::Delivered {
                    self.b.stack.handle_frame(now, frame);
                }
                forged += 1;
            }
            if waiting.is_none() && passed >= next {
                let id = self.a.stack.tcp_connect(now, SERVER.into(), None).expect("a port");
                (waiting, next) = (Some((id, cpu())), passed + Duration::from_millis(10));
            }
            if let Ok((end, _)) = self.b.stack.tcp_accept(now, self.listener)
                && let Some((id, asked)) = waiting.take()
            {
                round.newcomers += 1;
                round.slowest = round.slowest.max(cpu() - asked);
                self.a.stack.abort(now, id);
                self.a.stack.close(now, id);
                self.b.stack.close(now, end);
            }
            while sent as f64 * 8.0 <= passed.as_nanos() as f64 * cap {
                if pending.is_empty() {
                    let len = (1 << 20).min(BUFFER - self.offset);
                    pending.push(self.whole.slice(self.offset..self.offset + len));
                    self.offset = (self.offset + len) % BUFFER;
                }
                match self.a.stack.tcp_send(now, self.client, &mut pending) {
                    Ok(n) => sent += n,
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            self.a.turn(now);
            self.b.turn(now);
            while let Ok(n) = self.b.stack.tcp_recv_chunks(now, self.server, 1 << 20, &mut chunks) {
                got += n;
                chunks.clear();
            }
        }
        round.gbit_per_s = got as f64 * 8.0 / (cpu() - begin).as_secs_f64() / 1e9;
        round
    }

    /// Nanoseconds for a forged SYN, all the way to the answer's frame, which is dropped.
    fn cost(&mut self) -> f64 {
        const SYNS: usize = 1_000_000;
        let mut run = |delivered: bool| {
            let begin = cpu();
            for i in 0..SYNS {
                let frame = self.forged();
                if delivered {
                    self.b.stack.handle_frame(Self::now_at(begin), frame);
                }
                if i % 64 == 63 {
                    while self.b.stack.poll_transmit(Self::now_at(begin), &mut self.b.out) {}
                    self.b.out.clear();
                }
            }
            cpu() - begin
        };
        let made = run(false);
        (run(true).saturating_sub(made)).as_nanos() as f64 / SYNS as f64
    }

    /// A moment of the clock that was read already.
    fn now_at(read: Duration) -> Instant {
        Instant::from_nanos(1_000_000_000 + read.as_nanos() as u64)
    }
}
