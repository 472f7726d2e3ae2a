//! Whole frames into a stack with open sockets, and what the application does meanwhile.
//!
//! The input is a list of records: one byte of control, two bytes of length, the bytes. With the top
//! bit of the length they come by the second link; packets are passed on between the two.
//!
//! | control bit | meaning |
//! |---|---|
//! | 0 | the transport checksum counts as verified |
//! | 1 | 300 ms pass |
//! | 2 | only the first 20 bytes land in the head, the rest in pages |
//! | 3 | the destination MAC becomes ours |
//! | 4 | numbers follow the stack's: acknowledgements, SACK edges, echoed timestamps and quoted sequence numbers count from what it last sent |
//! | 5 | the port of ours becomes that of the last connection we opened |
//! | 6 | the IPv4 header's checksum becomes right |
//! | 7 | the bytes are no frame but verbs of the application, four bytes each (`Run::verb`) |
//!
//! Bits 4 to 6 are what a peer knows and blind mutation cannot guess.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use super::verbs::{self, Sends, tcp};
use pagewire_device::{Capabilities, HeaderSplit, Medium};
use pagewire_mem::checksum::Checksum;
use pagewire_mem::{CopyLedger, CopyReason, Instant, PacketBuf, PagePool, PageWriter, RxChecksum};
use pagewire_stack::{
    Answer, BindOptions, Chunks, DatagramKind, Error, FastOpenConfig, FastOpenMode, KeepAlive,
    LinkConfig, LinkId, ListenerId, Message, RecvFlags, RequestId, SendFlags, SocketId,
    SocketOption, Stack, StackConfig, SynEvent, TcpId, UdpId, UdpTarget, Unreachable,
};

/// The stack's station. Its addresses are 10.0.0.1/24 and fd00::1/64; on both it listens on
/// port 80 and has a datagram socket at 53, and it is connecting to 10.0.0.2:9.
pub(crate) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The stack's station on the second link. The stack has 10.0.1.1/24 and fd01::1/64 there.
const SECOND_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];

const MTU: usize = 1500;
/// MTU of the second link.
const SECOND_MTU: usize = 1280;
/// Verbs in one input: each may do as much work as a frame.
const MAX_VERBS: usize = 256;

/// How far an input got, so that a test notices a corpus that no longer gets there.
#[derive(Debug, Default)]
pub struct Depth {
    /// Connections that a listener handed out.
    pub accepted: usize,
    /// Bytes of streams that were read.
    pub read: usize,
    /// Bytes that were taken for sending.
    pub written: usize,
    /// Datagrams that were received.
    pub datagrams: usize,
    /// Frames that the stack sent.
    pub sent: usize,
    /// Errors that sockets reported.
    pub errors: usize,
    /// Sends that completed.
    pub completed: usize,
    /// Packets that were forwarded between the links.
    pub forwarded: usize,
}

/// Runs one input; see the head of this file.
pub fn stack_frames(data: &[u8]) -> Depth {
    run(Run::new(Purpose::Router), data)
}

/// The same with a transparent first link, whose sockets take whatever comes.
pub fn gateway_frames(data: &[u8]) -> Depth {
    run(Run::new(Purpose::Gateway), data)
}

/// The role that the first byte of the input gives to the stack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Router,
    Gateway,
}

fn run(mut run: Run, data: &[u8]) -> Depth {
    let mut rest = data;
    while let [control, a, b, tail @ ..] = rest {
        let link = usize::from(a >> 7);
        let len = usize::from(u16::from_be_bytes([*a & 0x7f, *b])).min(tail.len());
        let (bytes, next) = tail.split_at(len);
        rest = next;
        if control & 2 != 0 {
            run.now += Duration::from_millis(300);
        }
        if control & 0x80 == 0 {
            run.frame(*control, link, bytes);
        } else {
            for verb in bytes.as_chunks().0 {
                run.verb(*verb);
            }
        }
        run.turn();
    }
    assert!(run.stack.pool_audit().is_conserved());
    let forwarded = run.stack.counters().forwarded_packets as usize;
    Depth { completed: run.sends.completed, forwarded, ..run.depth }
}

/// A peer's knowledge of a connection, learnt from segments that the stack sent.
#[derive(Default)]
struct Flow {
    next: u32,
    timestamp: u32,
}

struct Run {
    purpose: Purpose,
    /// Requests of the wildcard listener that wait for an answer. Only a gateway has some.
    waiting: Vec<RequestId>,
    answers: usize,
    stack: Stack,
    now: Instant,
    listeners: Vec<ListenerId>,
    /// IPv4 and IPv6.
    datagrams: [UdpId; 2],
    streams: Vec<TcpId>,
    connect_port: u16,
    /// By the stack's port and the peer's.
    flows: BTreeMap<(u16, u16), Flow>,
    reads: bool,
    verbs: usize,
    frames: usize,
    sends: Sends,
    pool: PagePool,
    writer: PageWriter,
    ledger: CopyLedger,
    depth: Depth,
}

impl Run {
    fn new(purpose: Purpose) -> Self {
        let addresses = ["10.0.0.1/24", "fd00::1/64"].map(|a| a.parse().expect("address"));
        let mut config = StackConfig::new(capabilities(), addresses.to_vec(), [7; 32]);
        config.memory = 1 << 20;
        config.gateways = vec!["10.0.0.2".parse().expect("address")];
        config.tcp.recv_buffer = 64 << 10;
        config.tcp.send_buffer = 64 << 10;
        let addresses = ["10.0.1.1/24", "fd01::1/64"].map(|a| a.parse().expect("address"));
        config.links = vec![LinkConfig::new(second(), addresses.to_vec())];
        config.ip_forwarding = purpose == Purpose::Router;
        config.transparent = purpose == Purpose::Gateway;
        let now = Instant::from_millis(1);
        let mut stack = Stack::new(now, config).expect("stack");
        let mode = FastOpenMode::CLIENT | FastOpenMode::SERVER;
        stack.fast_open().configure(FastOpenConfig { mode, ..FastOpenConfig::default() });
        let (listeners, datagrams) = match purpose {
            Purpose::Router => sockets(&mut stack),
            Purpose::Gateway => sockets_for_all(&mut stack),
        };
        let mut run = Self {
            purpose,
            waiting: Vec::new(),
            answers: 0,
            stack,
            now,
            listeners,
            datagrams,
            streams: Vec::new(),
            connect_port: 0,
            flows: BTreeMap::new(),
            reads: true,
            verbs: 0,
            frames: 0,
            sends: Sends::default(),
            pool: PagePool::new("fuzz", 1 << 20).expect("pool"),
            writer: PageWriter::new(),
            ledger: CopyLedger::new(),
            depth: Depth::default(),
        };
        run.connect("10.0.0.2:9".parse().expect("address"));
        run.turn();
        run
    }

    fn connect(&mut self, to: SocketAddr) {
        if let Ok(id) = self.stack.connect(self.now, to, None) {
            self.connect_port = self.stack.local_addr(id).map_or(0, |addr| addr.port());
            self.streams.push(id);
        }
    }

    /// A frame arrives.
    fn frame(&mut self, control: u8, link: usize, bytes: &[u8]) {
        self.frames += 1;
        let mut frame = bytes.to_vec();
        if control & 8 != 0 {
            let mac = [MAC, SECOND_MAC][link];
            frame.iter_mut().zip(mac).for_each(|(to, from)| *to = from);
        }
        let port = (control & 0x20 != 0).then_some(self.connect_port);
        follow(&mut frame, port, (control & 0x10 != 0).then_some(&self.flows));
        if control & 0x40 != 0 {
            mend_ipv4_checksum(&mut frame);
        }
        let mut packet = PacketBuf::for_rx();
        let head = if control & 4 != 0 { 20 } else { pagewire_mem::HEAD_CAPACITY };
        let (head, payload) = frame.split_at(head.min(frame.len()));
        packet.append(head.len()).expect("fits").copy_from_slice(head);
        let reason = CopyReason::DeviceRx;
        let (frags, _) = self.writer.write(&mut self.pool, payload, &mut self.ledger, reason);
        for frag in frags {
            packet.push_frag(frag).expect("few fragments");
        }
        if control & 1 != 0 {
            packet.rx_checksum = RxChecksum::Valid;
        }
        let link = self.stack.links().nth(link).expect("two links");
        self.stack.handle_frame_on(self.now, link, packet);
    }

    /// The application does something: which verb, to which socket, how much.
    fn verb(&mut self, [verb, which, a, b]: [u8; 4]) {
        self.verbs += 1;
        if self.verbs > MAX_VERBS {
            return;
        }
        let (now, n) = (self.now, usize::from(u16::from_be_bytes([a, b])));
        let stack = &mut self.stack;
        let id = match self.streams.len() {
            0 => SocketId::from(self.listeners[0]),
            len => self.streams[usize::from(which) % len].into(),
        };
        // Later verbs have the upper half.
        if verb >= 0x80 {
            let streams = self.streams.iter().map(|&id| SocketId::from(id));
            let listeners = self.listeners.iter().map(|&id| id.into());
            let datagrams = self.datagrams.iter().map(|&id| id.into());
            let sockets: Vec<_> = streams.chain(listeners).chain(datagrams).collect();
            let id = sockets[usize::from(which) % sockets.len()];
            return verbs::more(
                stack,
                now,
                id,
                &mut self.sends,
                [verb & 0x7f | which & 0x80, a, b],
            );
        }
        match verb % 14 {
            0 => {
                let sent = tcp(stack, id, |tcp| tcp.send(now, &vec![b; n], SendFlags::empty()));
                self.depth.written += sent.unwrap_or(0);
            }
            1 => _ = tcp(stack, id, |tcp| tcp.shutdown(now, Shutdown::Write)),
            2 => _ = tcp(stack, id, |tcp| tcp.shutdown(now, Shutdown::Both)),
            3 => {
                stack.close(now, id);
                self.sends.forget(id);
            }
            4 => stack.abort(now, id),
            5 => self.connect(SocketAddr::from(([10, 0, 0, a], u16::from(b)))),
            6 => {
                let to = if which & 1 == 0 { "10.0.0.2:1000" } else { "[fd00::2]:1000" };
                let to = to.parse().expect("address");
                let id = self.datagrams[usize::from(which & 1)];
                let _ = stack.udp(id).and_then(|mut udp| udp.send(now, &vec![b; n], Some(to)));
            }
            7 => self.reads = !self.reads,
            8 => self.now += Duration::from_millis(1 << (a % 18)),
            9 => {
                let keepalive = KeepAlive {
                    idle: Duration::from_secs(u64::from(a) + 1),
                    ..KeepAlive::default()
                };
                let option = match b % 6 {
                    0 => SocketOption::NoDelay(a & 1 == 0),
                    1 => SocketOption::Cork(a & 1 == 0),
                    2 => SocketOption::KeepAlive(Some(keepalive)),
                    3 => SocketOption::KeepAlive(None),
                    4 => SocketOption::CountCopies(a & 1 == 0),
                    _ => SocketOption::QueueErrors(a & 1 == 0),
                };
                let _ = tcp(stack, id, |tcp| tcp.set_option(now, option));
            }
            10 => {
                let flags = RecvFlags::empty();
                let got = tcp(stack, id, |tcp| tcp.recv(now, &mut vec![0; n][..], flags));
                self.depth.read += got.unwrap_or(0);
            }
            11 => {
                let mut chunks = Vec::new();
                let (into, flags) = (Chunks { max: n, into: &mut chunks }, RecvFlags::empty());
                let got = tcp(stack, id, |tcp| tcp.recv(now, into, flags));
                self.depth.read += got.unwrap_or(0);
            }
            12 => self.connect(SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 2], u16::from(b)))),
            _ => {
                let to = SocketAddr::from(([10, 0, 0, 2], u16::from(b)));
                let _ = stack.udp(self.datagrams[0]).and_then(|mut udp| udp.connect(to));
                let _ = stack.udp(self.datagrams[0]).map(|mut udp| udp.queue_errors(a & 1 == 0));
            }
        }
    }

    /// A turn of a driver, until there is nothing left to do now.
    fn turn(&mut self) {
        let mut rounds = 0;
        self.transmit();
        while self.stack.poll_timeout().is_some_and(|at| at <= self.now) {
            self.stack.handle_timeout(self.now);
            self.transmit();
            rounds += 1;
            assert!(rounds < 1000, "a timer that is due again and again");
        }
        self.applications();
        self.transmit();
        self.stack.end_turn();
        let used = self.stack.receive_memory_used();
        let limit = self.stack.memory().limit();
        assert!(used <= limit, "{used} of {limit} bytes are pinned by what nobody reads");
        // Five sockets exist from the start. Each frame makes one more at most; each call two, where
        // it connects the stack with itself.
        let most = 5 + self.frames + 2 * self.verbs;
        assert!(self.stack.socket_count() <= most, "more sockets than anybody asked for");
    }

    /// Answers what comes for other hosts.
    fn serve(&mut self) {
        let (now, listener, stack) = (self.now, self.listeners[0], &mut self.stack);
        while let Some(event) = stack.listener(listener).ok().and_then(|mut l| l.poll_request()) {
            match event {
                SynEvent::New(request) => self.waiting.push(request.id),
                SynEvent::Cancelled(id, _) => {
                    let at = self.waiting.iter().position(|&waiting| waiting == id);
                    self.waiting.remove(at.expect("only what was shown and not answered ends"));
                }
                _ => {}
            }
        }
        // Some wait for later.
        while self.waiting.len() > self.answers % 3 {
            let id = self.waiting.remove(0);
            self.answers += 1;
            let answer = match self.answers % 8 {
                0 => Answer::Refuse,
                1 => Answer::Unreachable(Unreachable::Host),
                2 => Answer::Silence,
                3 => Answer::Forget,
                _ => Answer::Accept,
            };
            let Ok(mut listener) = stack.listener(listener) else { return self.waiting.clear() };
            match listener.answer(now, id, answer) {
                Ok(Some(id)) => {
                    self.streams.push(id);
                    self.depth.accepted += 1;
                }
                Ok(None) | Err(Error::AddressInUse | Error::WouldBlock) => {}
                Err(Error::NetworkUnreachable | Error::NoBuffers) => {}
                Err(error) => panic!("{answer:?}: {error}"),
            }
        }
        for id in self.datagrams {
            while let Ok(message) =
                stack.udp(id).and_then(|mut udp| udp.recv(Message(1 << 16), RecvFlags::empty()))
            {
                self.depth.datagrams += 1;
                let (remote, source) = (Some(message.from), Some(message.to));
                let target = UdpTarget { remote, source, ..UdpTarget::default() };
                let _ = stack.udp(id).and_then(|mut udp| udp.send(now, message.payload, target));
                let about = pagewire_stack::Flow::udp(message.from, message.to);
                let _ = stack.send_unreachable(now, &about, Unreachable::TimeExceeded, None);
            }
        }
    }

    fn applications(&mut self) {
        while self.stack.poll_event().is_some() {}
        if self.purpose == Purpose::Gateway {
            self.serve();
        }
        for &listener in &self.listeners {
            if let Ok((id, _)) =
                self.stack.listener(listener).and_then(|mut listener| listener.accept())
            {
                self.streams.push(id);
                self.depth.accepted += 1;
            }
        }
        for &id in &self.streams {
            if self.reads {
                let mut chunks = Vec::new();
                let read = self.stack.tcp(id).and_then(|mut tcp| {
                    tcp.recv(
                        self.now,
                        pagewire_stack::Chunks { max: 1000, into: &mut chunks },
                        RecvFlags::empty(),
                    )
                });
                let failed = read.is_err_and(|error| error != Error::WouldBlock);
                self.depth.errors += usize::from(failed);
                let read = read.unwrap_or(0);
                assert_eq!(read, chunks.iter().map(|chunk| chunk.len()).sum::<usize>());
                self.depth.read += read;
                if read > 0 {
                    let written = self
                        .stack
                        .tcp(id)
                        .and_then(|mut tcp| tcp.send(self.now, b"answer", SendFlags::empty()))
                        .unwrap_or(0);
                    self.depth.written += written;
                }
            }
            self.depth.errors += usize::from(self.stack.take_error(id).is_some());
            self.sends.read(&mut self.stack, id.into());
        }
        for id in self.datagrams {
            while self
                .stack
                .udp(id)
                .and_then(|mut udp| udp.recv(pagewire_stack::Datagram, RecvFlags::empty()))
                .is_ok()
            {
                self.depth.datagrams += 1;
            }
            self.depth.errors += usize::from(self.stack.take_error(id).is_some());
            self.sends.read(&mut self.stack, id.into());
        }
    }

    fn transmit(&mut self) {
        let links: Vec<_> = self.stack.links().collect();
        for (link, (mac, mtu)) in links.into_iter().zip([(MAC, MTU), (SECOND_MAC, SECOND_MTU)]) {
            let mut out = VecDeque::new();
            while self.stack.poll_transmit_on(self.now, link, &mut out) {
                assert!(out.len() < 100_000, "the stack never stops sending");
            }
            for packet in out {
                self.depth.sent += 1;
                let (head, len) = (packet.head(), packet.len());
                assert!(head.len() >= 14 && head[6..12] == mac, "{head:02x?}");
                assert!(packet.gso.is_some() || len <= 14 + mtu, "{len} bytes in one frame");
                self.learn(&packet);
            }
        }
    }

    /// Checks a frame of the stack's, and learns its numbers.
    fn learn(&mut self, packet: &PacketBuf) {
        let (head, len) = (packet.head(), packet.len());
        match u16_at(head, 12) {
            0x0800 => assert_eq!(usize::from(u16_at(head, 16)), len - 14, "{head:02x?}"),
            0x86dd => assert_eq!(usize::from(u16_at(head, 18)), len - 54, "{head:02x?}"),
            _ => {}
        }
        let Some(Found { at, quoted: false }) = find_tcp(head) else { return };
        // Forwarded packets are not the stack's.
        let ours = match u16_at(head, 12) {
            0x0800 => matches!(head[26..30], [10, 0, 0 | 1, 1]),
            _ => head[22] != 0xfd || head[36..38] == [0, 1],
        };
        let ours = ours || self.purpose == Purpose::Gateway;
        if !ours || head.len() < at + 20 {
            return;
        }
        let flags = head[at + 13];
        let payload = len - at - usize::from(head[at + 12] >> 4) * 4;
        let marks = u32::from(flags & 1) + u32::from(flags >> 1 & 1);
        let next = u32_at(head, at + 4).wrapping_add(payload as u32).wrapping_add(marks);
        let flow = self.flows.entry((u16_at(head, at), u16_at(head, at + 2))).or_default();
        if flags & 2 != 0 || next.wrapping_sub(flow.next) as i32 > 0 {
            flow.next = next;
        }
        for_each_option(head, at, |kind, at, _| {
            if kind == 8 && head.len() >= at + 10 {
                flow.timestamp = u32_at(head, at + 2);
            }
        });
    }
}

/// Sockets at ports.
fn sockets(stack: &mut Stack) -> (Vec<ListenerId>, [UdpId; 2]) {
    let any = |port| SocketAddr::from(([0, 0, 0, 0], port));
    let six = |port| SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, 1], port));
    let listeners = [any(80), six(80)].map(|at| stack.listen(at, 4).expect("listen"));
    let bind = |at| stack.bind_udp(at, BindOptions::default()).expect("bind");
    (listeners.to_vec(), [any(53), six(53)].map(bind))
}

/// Sockets for all that comes by the first link.
fn sockets_for_all(stack: &mut Stack) -> (Vec<ListenerId>, [UdpId; 2]) {
    let listener = stack.listen_every(LinkId::FIRST).expect("listen");
    let bind = |kind| stack.bind_every(LinkId::FIRST, kind).expect("bind");
    (vec![listener], [DatagramKind::Udp, DatagramKind::Echo].map(bind))
}

/// Makes a frame's numbers follow the stack's.
fn follow(frame: &mut [u8], port: Option<u16>, flows: Option<&BTreeMap<(u16, u16), Flow>>) {
    let Some(Found { at, quoted }) = find_tcp(frame) else { return };
    if frame.len() < at + if quoted { 8 } else { 20 } {
        return;
    }
    // An error quotes a packet that the stack sent: source and destination are swapped.
    let (ours, peers) = if quoted { (at, at + 2) } else { (at + 2, at) };
    if let Some(port) = port {
        frame[ours..ours + 2].copy_from_slice(&port.to_be_bytes());
    }
    let key = (u16_at(frame, ours), u16_at(frame, peers));
    let Some(flow) = flows.and_then(|flows| flows.get(&key)) else { return };
    add_at(frame, if quoted { at + 4 } else { at + 8 }, flow.next);
    if quoted {
        return;
    }
    let mut numbers = Vec::new();
    for_each_option(frame, at, |kind, at, len| match kind {
        5 => numbers.extend((2..len).step_by(4).map(|i| (at + i, flow.next))),
        8 => numbers.push((at + 6, flow.timestamp)),
        _ => {}
    });
    for (at, number) in numbers {
        add_at(frame, at, number);
    }
}

struct Found {
    at: usize,
    /// Inside of an ICMP error.
    quoted: bool,
}

/// Where a frame's TCP header begins, or the one that its ICMP error quotes.
fn find_tcp(frame: &[u8]) -> Option<Found> {
    let ip = frame.get(14..)?;
    let (protocol, len) = transport(u16_at(frame, 12), ip)?;
    let error = match (protocol, *ip.get(len)?) {
        (6, _) => return Some(Found { at: 14 + len, quoted: false }),
        (1, 3 | 4 | 11 | 12) => 0x0800,
        (58, 1..=4) => 0x86dd,
        _ => return None,
    };
    let (protocol, inner) = transport(error, ip.get(len + 8..)?)?;
    (protocol == 6).then_some(Found { at: 14 + len + 8 + inner, quoted: true })
}

/// The protocol that an IP header carries, and the header's length.
fn transport(ethertype: u16, ip: &[u8]) -> Option<(u8, usize)> {
    match ethertype {
        0x0800 => Some((*ip.get(9)?, usize::from(ip[0] & 15) * 4)),
        0x86dd => Some((*ip.get(6)?, 40)),
        _ => None,
    }
}

/// Kind, position and length of each option of the TCP header at `at`.
fn for_each_option(frame: &[u8], at: usize, mut f: impl FnMut(u8, usize, usize)) {
    let end = (at + usize::from(frame[at + 12] >> 4) * 4).min(frame.len());
    let mut at = at + 20;
    while at + 1 < end {
        match frame[at] {
            0 => return,
            1 => at += 1,
            kind => {
                let len = usize::from(frame[at + 1]);
                if len < 2 || at + len > end {
                    return;
                }
                f(kind, at, len);
                at += len;
            }
        }
    }
}

fn mend_ipv4_checksum(frame: &mut [u8]) {
    if frame.len() < 34 || u16_at(frame, 12) != 0x0800 {
        return;
    }
    let end = (14 + usize::from(frame[14] & 15) * 4).clamp(34, frame.len());
    frame[24..26].fill(0);
    let mut sum = Checksum::new();
    sum.add_bytes(&frame[14..end]);
    frame[24..26].copy_from_slice(&sum.finish().to_be_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn add_at(bytes: &mut [u8], at: usize, n: u32) {
    let sum = u32_at(bytes, at).wrapping_add(n);
    if let Some(to) = bytes.get_mut(at..at + 4) {
        to.copy_from_slice(&sum.to_be_bytes());
    }
}

/// A card without offloads.
fn second() -> Capabilities {
    Capabilities {
        mac: SECOND_MAC,
        mtu: SECOND_MTU,
        max_super_frame: SECOND_MTU,
        rx_checksum: false,
        tx_checksum: false,
        tso_v4: false,
        tso_v6: false,
        uso: false,
        ..capabilities()
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        medium: Medium::Ethernet,
        mac: MAC,
        mtu: MTU,
        max_super_frame: 65_535,
        rx_checksum: true,
        tx_checksum: true,
        tso_v4: true,
        tso_v6: true,
        uso: true,
        max_frags: pagewire_mem::MAX_FRAGS,
        header_split: HeaderSplit::None,
        queues: 1,
        by_reference: false,
    }
}
