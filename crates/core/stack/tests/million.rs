//! A million connections to one stack, half of them idle and half trickling: resident memory of this
//! whole process, the peers included, which is why the test is a program of its own.
//!
//! The clock is virtual. The peers are a generator of segments with eight bytes for each connection;
//! the generator parses and answers the segments of the stack. The program at the stack reads when an
//! event says that there is data, and sends the data back.

#[path = "suite/common/forge.rs"]
mod forge;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant as WallClock};

use bytes::Bytes;
use pagewire_device::Capabilities;
use pagewire_mem::{Frag, Instant, PacketBuf};
use pagewire_stack::{DropReason, ListenerId, Readiness, Stack, StackConfig, TcpId, limits};
use pagewire_tcp::{Flags, Seq, TcpHeader, TcpOptions};
use pagewire_testkit::frames::{arp, received};
use pagewire_testkit::sim::Verbs;

const CONNECTIONS: usize = 1_000_000;
/// Virtual time during which half of the connections trickle.
const SECONDS: usize = 20;
/// Bytes that the process may hold at any time.
const LIMIT: usize = 1 << 30;
/// Bytes of a trickling connection's request, and of the answer.
const REQUEST: usize = 200;
/// Time between two requests of a trickling connection.
const EVERY: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(1);
/// Connections opened before the first of them is accepted.
const BATCH: usize = 2000;
/// Ports of each of the peers' addresses that are used.
const PORTS: usize = 60_000;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 80);

struct World {
    stack: Stack,
    listener: ListenerId,
    now: Instant,
    frames: VecDeque<PacketBuf>,
    peers: Vec<Peer>,
    accepted: usize,
    /// Answers that the peers have got, in bytes.
    answered: u64,
    request: Bytes,
    buffer: Vec<u8>,
}

/// State of a peer: the next sequence number of each side.
#[derive(Clone, Copy, Default)]
struct Peer {
    ours: u32,
    theirs: u32,
}

/// The address of a peer. All of them are behind the gateway.
fn address(index: usize) -> SocketAddrV4 {
    let (host, port) = (index / PORTS, index % PORTS);
    SocketAddrV4::new(Ipv4Addr::new(10, 1, (host >> 8) as u8, host as u8), 1024 + port as u16)
}

fn index(addr: SocketAddrV4) -> usize {
    let [_, _, hi, lo] = addr.ip().octets();
    usize::from(u16::from_be_bytes([hi, lo])) * PORTS + usize::from(addr.port() - 1024)
}

#[test]
fn a_million_connections_half_of_them_trickling_fit_in_a_gibibyte() {
    let begin = WallClock::now();
    let empty = resident("VmRSS");
    let mut world = World::new();
    while world.accepted < CONNECTIONS {
        world.open(BATCH.min(CONNECTIONS - world.accepted));
    }
    world.run(Duration::from_secs(5));
    report("established", resident("VmRSS") - empty, begin);

    // Odd ones trickle.
    let begin = WallClock::now();
    let ticks = (EVERY.as_nanos() / TICK.as_nanos()) as usize;
    for tick in 0..SECONDS * 1000 {
        for peer in (1..CONNECTIONS).step_by(2).skip(tick % ticks).step_by(ticks) {
            world.ask(peer);
        }
        world.run(TICK);
    }
    report("half of them trickling", resident("VmRSS") - empty, begin);
    world.run(Duration::from_secs(2));
    assert_eq!(world.stack.socket_count(), CONNECTIONS + 1, "all connections are alive");
    let expected = (CONNECTIONS / 2 * REQUEST * SECONDS) as u64 / EVERY.as_secs();
    assert_eq!(world.answered, expected, "bytes that were sent back");

    // The stack refuses connections beyond its limit, and the others go on.
    world.open(limits::MAX_SOCKETS - CONNECTIONS - 1 + 10_000);
    assert_eq!(world.stack.socket_count(), limits::MAX_SOCKETS);
    assert!(world.stack.counters().drops(DropReason::TcpConnectionLimit) > 0);
    world.ask(1);
    world.run(Duration::from_millis(100));
    assert_eq!(world.answered, expected + REQUEST as u64);

    println!("{}", world.stack.counters());
    let peak = resident("VmHWM");
    println!("{peak} bytes resident at most, of {LIMIT}");
    assert!(peak <= LIMIT, "{peak} bytes were resident");
}

fn report(what: &str, bytes: usize, begin: WallClock) {
    let (each, took) = (bytes / CONNECTIONS, begin.elapsed());
    println!("{CONNECTIONS} connections {what}: {bytes} bytes resident, {each} each, {took:.1?}");
}

/// A line of this process's status, in bytes.
fn resident(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with(field)).expect("a line for it");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok()).expect("a number") * 1024
}

impl World {
    fn new() -> Self {
        let capabilities = Capabilities {
            max_super_frame: 1500,
            tso_v4: false,
            tso_v6: false,
            uso: false,
            by_reference: true,
            ..Capabilities::offloading([2, 0, 0, 0, 0, 1], 1500)
        };
        let address = "10.0.0.1/24".parse().expect("an address");
        let mut config = StackConfig::new(capabilities, vec![address], [1; 32]);
        config.gateways = vec!["10.0.0.2".parse().expect("an address")];
        config.announce = false;
        let now = Instant::from_millis(1000);
        let mut stack = Stack::new(now, config).expect("a stack");
        let listener = stack.listen(SERVER.into(), BATCH + 1).expect("a listener");
        Self {
            stack,
            listener,
            now,
            frames: VecDeque::new(),
            peers: Vec::new(),
            accepted: 0,
            answered: 0,
            request: Bytes::from(vec![7; REQUEST]),
            buffer: vec![0; 4 * REQUEST],
        }
    }

    /// `n` more peers open connections.
    fn open(&mut self, n: usize) {
        let first = self.peers.len();
        self.peers.reserve_exact(n);
        for batch in (first..first + n).step_by(BATCH) {
            for peer in batch..(batch + BATCH).min(first + n) {
                let isn = (peer as u32).wrapping_mul(0x9e37_79b9);
                self.peers.push(Peer { ours: isn.wrapping_add(1), theirs: 0 });
                let syn = forge::syn(isn, self.clock());
                let frame = forge::frame(1, address(peer), SERVER, syn);
                self.stack.handle_frame(self.now, frame);
            }
            self.run(TICK);
        }
    }

    fn clock(&self) -> u32 {
        self.now.as_millis() as u32
    }

    fn segment(&self, peer: usize, flags: Flags, echo: u32) -> TcpHeader {
        let Peer { ours, theirs } = self.peers[peer];
        TcpHeader {
            seq: Seq(ours),
            ack: Seq(theirs),
            flags,
            window: 512,
            options: TcpOptions { timestamps: Some((self.clock(), echo)), ..TcpOptions::default() },
            ..TcpHeader::default()
        }
    }

    /// A peer sends a request.
    fn ask(&mut self, peer: usize) {
        let header = self.segment(peer, Flags::ACK | Flags::PSH, 0);
        let payload = Frag::from_bytes(self.request.clone());
        let frame = forge::with_payload(1, address(peer), SERVER, header, payload);
        self.peers[peer].ours = self.peers[peer].ours.wrapping_add(REQUEST as u32);
        self.stack.handle_frame(self.now, frame);
    }

    /// Lets time pass.
    fn run(&mut self, for_: Duration) {
        let end = self.now + for_;
        loop {
            self.turn();
            let next = self.stack.poll_timeout().filter(|at| *at <= end);
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            self.stack.handle_timeout(self.now);
        }
        self.now = end;
    }

    fn turn(&mut self) {
        loop {
            let mut frames = std::mem::take(&mut self.frames);
            let mut more = self.stack.poll_transmit(self.now, &mut frames);
            more |= !frames.is_empty();
            for frame in frames.drain(..) {
                self.receive(&frame);
            }
            self.frames = frames;
            while let Some(event) = self.stack.poll_event() {
                more = true;
                if event.socket == self.listener {
                    while self.stack.accept(self.listener).is_ok() {
                        self.accepted += 1;
                    }
                } else if event.gained.contains(Readiness::READABLE) {
                    let id = self.stack.as_tcp(event.socket).map(|tcp| tcp.id());
                    id.into_iter().for_each(|id| self.serve(id));
                }
            }
            // Whoever was ready when it was accepted has no event.
            self.stack.end_turn();
            if !more {
                return;
            }
        }
    }

    /// The program at the stack: what is read is sent back.
    fn serve(&mut self, id: TcpId) {
        if let Ok(n @ 1..) = self.stack.recv(self.now, id, &mut self.buffer[..]) {
            let sent = self.stack.send(self.now, id, &self.buffer[..n]);
            assert_eq!(sent, Ok(n));
        }
    }

    /// A frame gets to the gateway, or to a peer.
    fn receive(&mut self, frame: &PacketBuf) {
        let Some((_, to, header)) = forge::parse(frame) else {
            return self.resolve(frame);
        };
        let peer = index(to);
        let len = frame.frag_len() as u32;
        let syn = header.flags.contains(Flags::SYN);
        if len == 0 && !syn {
            return;
        }
        let end = header.seq + len + u32::from(syn);
        if end.since(Seq(self.peers[peer].theirs)) as i32 <= 0 && !syn {
            return;
        }
        self.peers[peer].theirs = end.get();
        self.answered += u64::from(len);
        let echo = header.options.timestamps.map_or(0, |(value, _)| value);
        let ack = self.segment(peer, Flags::ACK, echo);
        self.stack.handle_frame(self.now, forge::frame(1, to, SERVER, ack));
    }

    /// The gateway says where it is.
    fn resolve(&mut self, frame: &PacketBuf) {
        let head = frame.head();
        if head.get(12..14) != Some(&[8, 6]) {
            return;
        }
        let (them, us) = ([2, 0, 0, 0, 0, 99], [2, 0, 0, 0, 0, 1]);
        let reply = arp(2, them, [10, 0, 0, 2], us, [10, 0, 0, 1]);
        self.stack.handle_frame(self.now, received(&reply, 42));
    }
}
