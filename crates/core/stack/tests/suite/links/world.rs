//! [`World`]: a kit with several stacks, and wires between their links, under a virtual clock. Each frame is
//! checked against the capabilities of the wire's devices.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::common::{Verbs, pattern, ready};
pub(crate) use crate::common::{addr, capabilities as able, plain};
use pagewire_device::{Capabilities, hand_over};
use pagewire_mem::{GsoKind, Instant, PacketBuf, TxChecksum};
use pagewire_stack::{DropReason, Forwarder, LinkConfig, LinkId, Stack, StackConfig, TcpId};
use pagewire_testkit::built;
use pagewire_testkit::frames::{self, received};
pub(crate) use pagewire_testkit::frames::{fix_v4, payload_of, sum};

/// The stacks that most tests have: two peers, and between them one with a link to each.
pub(crate) const LEFT: usize = 0;
pub(crate) const MIDDLE: usize = 1;
pub(crate) const RIGHT: usize = 2;

/// The wires between the stacks.
pub(crate) const WEST: usize = 0;
pub(crate) const EAST: usize = 1;

pub(crate) const LEFT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const WEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// One end of a wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    stack: usize,
    link: LinkId,
}

/// A wire joins two links of the same kind.
struct Wire {
    ends: [End; 2],
    capabilities: Capabilities,
    delay: Duration,
    /// Whether the devices take no frames, so that the wire carries nothing.
    pub(crate) stuck: bool,
    under_way: [VecDeque<(Instant, PacketBuf)>; 2],
}

/// A frame that was put on a wire.
pub(crate) struct Seen {
    pub(crate) wire: usize,
    /// The stack that sent it.
    pub(crate) from: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_super: bool,
}

pub(crate) struct World {
    pub(crate) stacks: Vec<Stack>,
    wires: Vec<Wire>,
    pub(crate) now: Instant,
    pub(crate) seen: Vec<Seen>,
    /// Whether the frames that are sent are kept in `seen`.
    pub(crate) watch: bool,
    /// A program of the stack between the peers.
    pub(crate) forwarder: Option<Forwarder>,
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn config(
    capabilities: Capabilities,
    addresses: &[&str],
    gateways: &[&str],
) -> StackConfig {
    let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
    let secret = [capabilities.mac[5]; 32];
    let mut config = StackConfig::new(capabilities, addresses, secret);
    config.gateways = gateways.iter().map(|a| ip(a)).collect();
    config.memory = 32 << 20;
    config.announce = false;
    config
}

pub(crate) fn link(capabilities: Capabilities, addresses: &[&str]) -> LinkConfig {
    LinkConfig::new(capabilities, addresses.iter().map(|a| a.parse().unwrap()).collect())
}

/// The stack between the two peers, before it is built.
pub(crate) fn middle() -> StackConfig {
    let mut middle = config(able(1), &["10.0.0.1/24", "fd00::1/64"], &[]);
    middle.links = vec![link(able(3), &["10.0.1.1/24", "fd01::1/64"])];
    middle.ip_forwarding = true;
    middle
}

impl World {
    /// Three stacks that know each other's link addresses.
    pub(crate) fn met() -> Self {
        let mut world = Self::three();
        world.meet();
        world
    }

    pub(crate) fn new(configs: Vec<StackConfig>) -> Self {
        let now = Instant::from_millis(1000);
        let stacks = configs.into_iter().map(|c| Stack::new(now, c).unwrap()).collect();
        let (wires, seen) = (Vec::new(), Vec::new());
        Self { stacks, wires, now, seen, watch: false, forwarder: None }
    }

    /// Two peers and a stack between them, which passes packets on.
    pub(crate) fn three() -> Self {
        Self::three_with(middle(), able, able)
    }

    /// As [`three`](Self::three), with cards of other kinds, and another stack between them.
    pub(crate) fn three_with(
        mut middle: StackConfig,
        west: fn(u8) -> Capabilities,
        east: fn(u8) -> Capabilities,
    ) -> Self {
        middle.capabilities = west(1);
        middle.links[0].capabilities = east(3);
        let left = config(west(2), &["10.0.0.2/24", "fd00::2/64"], &["10.0.0.1", "fd00::1"]);
        let right = config(east(4), &["10.0.1.2/24", "fd01::2/64"], &["10.0.1.1", "fd01::1"]);
        let mut world = Self::new(vec![left, middle, right]);
        world.join((LEFT, 0), (MIDDLE, 0), west(0));
        world.join((MIDDLE, 1), (RIGHT, 0), east(0));
        world
    }

    /// Adds a wire between two links, each given by stack and index.
    pub(crate) fn join(&mut self, a: (usize, usize), b: (usize, usize), kind: Capabilities) {
        let end = |(stack, at): (usize, usize)| {
            let link = self.stacks[stack].links().nth(at).unwrap();
            End { stack, link }
        };
        let ends = [end(a), end(b)];
        let delay = Duration::from_micros(10);
        let under_way = Default::default();
        self.wires.push(Wire { ends, capabilities: kind, delay, stuck: false, under_way });
    }

    pub(crate) fn middle(&mut self) -> &mut Stack {
        &mut self.stacks[MIDDLE]
    }

    pub(crate) fn drops(&self, stack: usize, reason: DropReason) -> u64 {
        self.stacks[stack].counters().drops(reason)
    }

    /// The devices of a wire take no frames, or do again.
    pub(crate) fn set_stuck(&mut self, wire: usize, stuck: bool) {
        self.wires[wire].stuck = stuck;
    }

    /// A link of the stack between the peers.
    pub(crate) fn link(&self, at: usize) -> LinkId {
        self.stacks[MIDDLE].links().nth(at).unwrap()
    }

    /// A packet comes to that stack by a link.
    pub(crate) fn arrive(&mut self, at: usize, packet: PacketBuf) {
        let link = self.link(at);
        self.stacks[MIDDLE].handle_frame_on(self.now, link, packet);
    }

    /// A frame from nobody comes to a stack by a link.
    pub(crate) fn inject(&mut self, stack: usize, at: usize, frame: &[u8]) {
        let link = self.stacks[stack].links().nth(at).unwrap();
        self.stacks[stack].handle_frame_on(self.now, link, packet(frame));
    }

    /// Puts on the wires what all stacks have to send, and what follows from that.
    pub(crate) fn flush(&mut self) {
        self.send_all();
        while let Some(forwarder) = &mut self.forwarder {
            let stack = &mut self.stacks[MIDDLE];
            let events: Vec<_> = std::iter::from_fn(|| stack.poll_event()).collect();
            if events.is_empty() {
                break;
            }
            forwarder.turn(self.now, stack, &events);
            self.send_all();
        }
        self.stacks.iter_mut().for_each(Stack::end_turn);
    }

    fn send_all(&mut self) {
        let now = self.now;
        for (number, wire) in self.wires.iter_mut().enumerate() {
            for (side, end) in wire.ends.into_iter().enumerate() {
                let stack = &mut self.stacks[end.stack];
                let mut frames = VecDeque::new();
                while !wire.stuck && stack.poll_transmit_on(now, end.link, &mut frames) {
                    assert!(frames.len() < 1_000_000, "it never stops sending");
                }
                let has_owner = self.forwarder.is_some() && end.stack == MIDDLE;
                while !has_owner && stack.poll_event().is_some() {}
                for mut frame in frames {
                    check(&frame, &wire.capabilities);
                    if self.watch {
                        let (bytes, is_super) = (frames::bytes_of(&frame), frame.gso.is_some());
                        self.seen.push(Seen { wire: number, from: end.stack, bytes, is_super });
                    }
                    hand_over(&mut frame);
                    wire.under_way[1 - side].push_back((now + wire.delay, frame));
                }
            }
        }
    }

    /// Moves on to the next thing that happens before `limit`; `false`: nothing does.
    pub(crate) fn step(&mut self, limit: Instant) -> bool {
        self.flush();
        let queues = self.wires.iter().flat_map(|wire| &wire.under_way);
        let arrivals = queues.filter_map(|queue| queue.front().map(|(at, _)| *at));
        let timers = self.stacks.iter().filter_map(Stack::poll_timeout);
        let Some(next) = arrivals.chain(timers).min().filter(|&at| at <= limit) else {
            return false;
        };
        self.now = self.now.max(next);
        let now = self.now;
        for wire in &mut self.wires {
            for (end, queue) in wire.ends.into_iter().zip(&mut wire.under_way) {
                while let Some((_, frame)) = queue.pop_front_if(|(at, _)| *at <= now) {
                    self.stacks[end.stack].handle_frame_on(now, end.link, frame);
                }
            }
        }
        for stack in &mut self.stacks {
            if stack.poll_timeout().is_some_and(|at| at <= now) {
                stack.handle_timeout(now);
            }
        }
        true
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let limit = self.now + time;
        let mut steps = 0;
        while self.step(limit) {
            steps += 1;
            assert!(steps < 10_000_000, "livelock at {:?}", self.now);
        }
        self.now = limit;
        self.flush();
    }

    /// Lets time pass until `done`, at most two virtual minutes.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.now + Duration::from_secs(120);
        loop {
            self.flush();
            if done(self) {
                return;
            }
            assert!(self.step(limit), "{what} did not happen");
        }
    }

    /// Lets the peers and the stack between them learn each other's stations.
    pub(crate) fn meet(&mut self) {
        for (peer, to) in [
            (LEFT, "10.0.0.1:9"),
            (LEFT, "[fd00::1]:9"),
            (RIGHT, "10.0.1.1:9"),
            (RIGHT, "[fd01::1]:9"),
        ] {
            let id = self.stacks[peer].connect(self.now, addr(to), None).unwrap();
            self.run(Duration::from_millis(1));
            let now = self.now;
            self.stacks[peer].close(now, id);
        }
        self.seen.clear();
    }

    /// Opens a connection; the ends of who asked and who was asked.
    pub(crate) fn connect(&mut self, (from, to): (usize, usize), at: SocketAddr) -> (TcpId, TcpId) {
        let now = self.now;
        let listener = self.stacks[to].listen(unscoped(at), 8).unwrap();
        let near = self.stacks[from].connect(now, at, None).unwrap();
        let mut far = None;
        self.until("a connection", |w| {
            if let Ok((id, _)) = w.stacks[to].accept(listener) {
                far = Some(id);
            }
            far.is_some()
        });
        let now = self.now;
        self.stacks[to].close(now, listener);
        (near, far.unwrap())
    }

    /// Opens `count` connections from the stack between the peers to the left one.
    pub(crate) fn connections(&mut self, count: usize) -> Vec<(TcpId, TcpId)> {
        let at = |n| SocketAddr::new(ip("10.0.0.2"), 80 + n as u16);
        (0..count).map(|n| self.connect((MIDDLE, LEFT), at(n))).collect()
    }

    /// Sends `len` bytes each way and checks them.
    pub(crate) fn exchange(&mut self, a: (usize, TcpId), b: (usize, TcpId), len: usize) {
        let bytes = pattern(len + 1);
        let mut flows = [(a, b, &bytes[..len], 0, 0), (b, a, &bytes[1..], 0, 0)];
        let mut buf = [0; 16_384];
        self.until("a transfer", |w| {
            for (from, to, data, sent, got) in &mut flows {
                while *sent < len {
                    let next = &data[*sent..len.min(*sent + buf.len())];
                    let Some(n) = ready(w.stacks[from.0].send(w.now, from.1, next)) else { break };
                    *sent += n;
                }
                while let Some(n) = ready(w.stacks[to.0].recv(w.now, to.1, &mut buf[..])) {
                    assert!(n > 0, "the stream ends after {got} bytes");
                    assert!(buf[..n] == data[*got..*got + n], "other bytes at {got}");
                    *got += n;
                }
            }
            flows.iter().all(|(.., got)| *got == len)
        });
    }

    /// Checks that no page of any stack is lost, or in two places.
    pub(crate) fn pages_are_conserved(&mut self) {
        for stack in &mut self.stacks {
            stack.end_turn();
            assert!(stack.pool_audit().is_conserved(), "{:?}", stack.pool_audit());
        }
    }
}

fn unscoped(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip(), at.port())
}

/// Panics on a frame that a device with these capabilities would not take.
fn check(frame: &PacketBuf, caps: &Capabilities) {
    let limit = match frame.gso {
        Some(gso) => {
            let takes = if gso.kind == GsoKind::Udp { caps.uso } else { caps.tso_v4 };
            assert!(takes && frame.tx_checksum != TxChecksum::Done, "{gso:?}");
            let on_wire = usize::from(gso.header_len) + usize::from(gso.size);
            assert!(on_wire <= caps.mtu + 14 && gso.size > 0, "{gso:?}");
            assert_eq!(usize::from(gso.header_len), frame.head().len(), "{gso:?}");
            caps.max_super_frame
        }
        None => caps.mtu,
    };
    assert!(frame.len() <= limit + 14, "{} bytes where {limit} go", frame.len());
    assert!(caps.tx_checksum || frame.tx_checksum == TxChecksum::Done);
    if let TxChecksum::Partial { start, .. } = frame.tx_checksum {
        let next = if start == 34 { 23 } else { 20 };
        assert!([6, 17].contains(&frame.head()[next]), "only sums of TCP and UDP are left open");
    }
    match caps.max_frags {
        // The device takes a frame in one piece only.
        0 => assert!(frame.frags().is_empty() || frame.head().is_empty()),
        max => assert!(frame.frags().len() <= max),
    }
}

/// A datagram of the left peer's.
pub(crate) fn udp_frame(src: &str, dst: &str, hops: u8, payload: &[u8]) -> Vec<u8> {
    built!(frames::ip([LEFT_MAC, WEST_MAC], [ip(src), ip(dst)], hops).udp(1000, 2000), payload)
}

/// A segment of the left peer's for the right one.
pub(crate) fn tcp_frame(payload: usize, fin: bool) -> Vec<u8> {
    let ends = [ip("10.0.0.2"), ip("10.0.1.2")];
    let tcp = frames::ip([LEFT_MAC, WEST_MAC], ends, 64).tcp(1000, 80, 1, 1000);
    built!(if fin { tcp.fin() } else { tcp }, &vec![7; payload])
}

/// A received frame, as much of it in the head as fits.
pub(crate) fn packet(frame: &[u8]) -> PacketBuf {
    received(frame, frame.len())
}
