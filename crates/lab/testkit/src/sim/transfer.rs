//! The main scenario: two stacks, a stream each way, a bad link between, and every oracle on.

use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::{Aqm, Chance, FaultConfig, FaultCounters, FaultRng};
use pagewire_mem::{CopyLedger, Frag, FragVec, GROUP_PAGES, Instant};
use pagewire_stack::{
    Cidr, Error, Event, KeepAlive, ListenerId, Readiness, SocketOption, Stack, TcpConfig, TcpId,
};
use pagewire_tcp::{CongestionKind, EcnMode, RecvFlags, SendFlags};

use super::limits::{MAX_STALL, MAX_TRANSFER};
use super::network::{NodeId, Sim, SimError};
use super::station::{App, Station};
use super::stream::Stream;
use super::verbs::Verbs;

/// A scenario: one connection between two stacks, the data of both directions, and the link.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Determines everything random.
    pub seed: u64,
    /// Faults of the link, each way.
    pub faults: FaultConfig,
    /// Bytes from the client to the server, and back.
    pub bytes: [u64; 2],
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// Largest IP packet, in bytes.
    pub mtu: usize,
    /// Checksum and segmentation are left to the device; else the stacks do them in software.
    pub offload: bool,
    /// Programs send and receive by reference; else by copy.
    pub by_reference: bool,
    /// Longest time that a program waits before it continues with a ready socket.
    pub think: Duration,
    /// Longest piece that a program sends or receives at once, in bytes.
    pub piece: usize,
    /// Small segments leave at once.
    pub no_delay: bool,
    /// Programs use other features at random: corks, record marks, urgent data, peeking.
    pub whims: bool,
    /// Settings of the connections of the client and of the server.
    pub tcp: [TcpConfig; 2],
}

/// The result of a transfer.
#[derive(Clone, Debug)]
pub struct Report {
    /// Virtual time until both streams had arrived.
    pub time: Duration,
    /// Counts of the link: towards the server, and back.
    pub faults: [FaultCounters; 2],
    /// Payload that the client and the server copied.
    pub ledgers: [CopyLedger; 2],
}

/// Two stacks, `bytes` both ways, over a link with these faults.
pub fn transfer(seed: u64, faults: FaultConfig, bytes: u64) -> Result<Report, SimError> {
    Transfer { faults, bytes: [bytes; 2], ..Transfer::new(seed) }.run(None)
}

const PORT: u16 = 7000;

impl Transfer {
    /// A megabyte each way over a good network.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            faults: FaultConfig::delayed(Duration::from_millis(1)),
            bytes: [1 << 20; 2],
            v6: false,
            mtu: 1500,
            offload: true,
            by_reference: true,
            think: Duration::ZERO,
            piece: 64 << 10,
            no_delay: false,
            whims: false,
            tcp: Default::default(),
        }
    }

    /// Any kind of network, with at most 10% loss, from the seed.
    pub fn random(seed: u64) -> Self {
        let mut random = FaultRng::new(seed ^ 0x7472_616e_7366_6572);
        let r = &mut random;
        let one_in = |r: &mut FaultRng, n: u64| r.below(n) == 0;
        let up_to = |r: &mut FaultRng, percent: u64| {
            let often = one_in(r, 4);
            let chance = r.below(percent * 10_000 + 1) as u32;
            if often { Chance::NEVER } else { Chance::per_million(chance) }
        };
        let most = if one_in(r, 2) { 50_000 } else { 500 };
        let delay = Duration::from_micros(r.below(most));
        let faults = FaultConfig {
            loss: up_to(r, 10),
            duplicate: up_to(r, 5),
            reorder: up_to(r, 5),
            corrupt: if one_in(r, 2) { up_to(r, 1) } else { Chance::NEVER },
            delay,
            jitter: if one_in(r, 2) { delay / 4 } else { Duration::ZERO },
            rate: one_in(r, 3).then(|| 1_000_000 << r.below(10)),
            limit: 20 + r.below(500) as usize,
            cut: one_in(r, 2),
            ..FaultConfig::default()
        };
        let v6 = one_in(r, 2);
        let mtu = [1280, 1500, 1500, 9000, 61_512][r.below(5) as usize];
        let bytes = |r: &mut FaultRng| match r.below(8) {
            0 => 0,
            1 => r.below(100),
            2 | 3 => r.below(10_000),
            _ => r.below(200_000),
        };
        let mut tcp = TcpConfig::default();
        if one_in(r, 3) {
            tcp.recv_buffer = 4096 << r.below(6);
        }
        if one_in(r, 3) {
            tcp.send_buffer = 4096 << r.below(6);
        }
        tcp.sack = !one_in(r, 4);
        tcp.timestamps = !one_in(r, 4);
        tcp.window_scaling = !one_in(r, 4);
        Self {
            seed,
            faults,
            bytes: [bytes(r), bytes(r)],
            v6,
            mtu,
            offload: !one_in(r, 3),
            by_reference: one_in(r, 2),
            think: if one_in(r, 3) { Duration::from_millis(r.below(50)) } else { Duration::ZERO },
            piece: 1 << (4 + r.below(13)),
            no_delay: one_in(r, 2),
            whims: false,
            tcp: [tcp.clone(), tcp],
        }
    }

    /// As [`random`](Self::random), with any settings, over queues that drop and mark.
    pub fn varied(seed: u64) -> Self {
        let mut random = FaultRng::new(seed ^ 0x0076_6172_6965_6421);
        let mut transfer = Self { whims: true, ..Self::random(seed) };
        if transfer.faults.rate.is_some() {
            transfer.faults.aqm = match random.below(3) {
                0 => Aqm::None,
                1 => Aqm::Mark { above: Duration::from_millis(random.below(20)) },
                _ => Aqm::Codel,
            };
            transfer.faults.limit_bytes = (random.below(2) == 0).then_some(50_000);
        }
        for tcp in &mut transfer.tcp {
            *tcp = varied_config(&mut random);
        }
        transfer
    }

    /// Runs it to the end: both streams complete, both connections closed, every page returned.
    pub fn run(&self, capture: Option<&Path>) -> Result<Report, SimError> {
        let mut sim = Sim::new(self.seed);
        if let Some(file) = capture {
            sim.capture(file)?;
        }
        let client = self.station(&mut sim, 0, self.faults)?;
        let server = self.station(&mut sim, 1, FaultConfig::delayed(Duration::ZERO))?;
        let ends = [client, server];

        let limit = sim.now() + MAX_TRANSFER;
        let (mut progress, mut last) = (0, sim.now());
        sim.run_until(limit, |sim| {
            for id in ends {
                if let Some(what) = &sim.node(id).app.wrong {
                    return Err(SimError::Oracle(format!("{id:?}: {what}")));
                }
            }
            let moved = ends.iter().map(|&id| sim.node(id).app.moved()).sum();
            if moved != progress {
                (progress, last) = (moved, sim.now());
            }
            if sim.now().saturating_since(last) > MAX_STALL {
                return Err(stalled(sim, ends));
            }
            Ok(ends.iter().all(|&id| sim.node(id).app.is_done()))
        })
        .map_err(|error| match error {
            SimError::Deadlock { .. } | SimError::TooLong { .. } => stalled_at(&error, &sim, ends),
            other => other,
        })?;
        let time = sim.now().saturating_since(Instant::ZERO);
        self.wind_up(&mut sim, ends)?;
        let (up, down) = sim.faults(client);
        let ledgers = ends.map(|id| *sim.node(id).stack.ledger());
        Ok(Report { time, faults: [up, down], ledgers })
    }

    /// After both programs are done: connections end, frames arrive, pages are returned.
    fn wind_up(&self, sim: &mut Sim<Station<Peer>>, ends: [NodeId; 2]) -> Result<(), SimError> {
        for id in ends {
            let now = sim.now();
            let station = sim.node_mut(id);
            station.app.let_go(now, &mut station.stack);
        }
        let limit = sim.now() + MAX_TRANSFER;
        sim.run_until(limit, |sim| {
            Ok(sim.in_flight() == 0
                && ends.iter().all(|&id| sim.node(id).stack.socket_count() == 0))
        })
        .map_err(|error| {
            let left = ends.map(|id| sim.node(id).stack.socket_count());
            SimError::Oracle(format!("after both programs closed: {error}; sockets left: {left:?}"))
        })?;
        for id in ends {
            sim.node_mut(id).stack.end_turn();
            let audit = sim.node(id).stack.pool_audit();
            // The writer of the stack keeps the run of pages that it fills.
            if !audit.is_conserved() || audit.out > GROUP_PAGES {
                return Err(SimError::Pages { node: id, audit });
            }
        }
        Ok(())
    }

    fn station(
        &self,
        sim: &mut Sim<Station<Peer>>,
        side: usize,
        faults: FaultConfig,
    ) -> Result<NodeId, SimError> {
        let address = |side: usize| -> IpAddr {
            match self.v6 {
                false => [10, 0, 0, 1 + side as u8].into(),
                true => [0xfd77, 0, 0, 0, 0, 0, 0, 1 + side as u16].into(),
            }
        };
        let cidr = Cidr::new(address(side), if self.v6 { 64 } else { 24 });
        let cidr = cidr.map_err(|e| SimError::Oracle(e.to_string()))?;
        let mut config = sim.stack_config(cidr);
        let device = &mut config.capabilities;
        device.mtu = self.mtu;
        if !self.offload {
            device.max_super_frame = self.mtu;
            (device.rx_checksum, device.tx_checksum) = (false, false);
            (device.tso_v4, device.tso_v6, device.uso) = (false, false, false);
        }
        if let Some(tcp) = self.tcp.get(side) {
            config.tcp = tcp.clone();
        }
        let stack = Stack::new(sim.now(), config).map_err(|e| SimError::Oracle(e.to_string()))?;
        let peer = Peer {
            role: match side {
                0 => Role::Client { to: SocketAddr::new(address(1), PORT) },
                _ => Role::Server { on: SocketAddr::new(address(1), PORT), listener: None },
            },
            socket: None,
            settings: Settings {
                by_reference: self.by_reference,
                think: self.think,
                piece: self.piece.max(1),
                no_delay: self.no_delay,
                whims: self.whims,
            },
            outgoing: Flow::new(Stream(self.seed * 2 + side as u64), self.bytes[side]),
            incoming: Flow::new(Stream(self.seed * 2 + 1 - side as u64), self.bytes[1 - side]),
            held: VecDeque::new(),
            think_until: None,
            finished: false,
            random: FaultRng::new(sim.random().next_u64()),
            wrong: None,
        };
        sim.add(Station::new(stack, peer), faults)
    }
}

const ECN_MODES: [EcnMode; 6] = [
    EcnMode::Off,
    EcnMode::Request,
    EcnMode::Accept,
    EcnMode::Accurate,
    EcnMode::RequestAcceptAccurate,
    EcnMode::AcceptAccurate,
];

/// Any settings that a connection may have, small windows and segments more often than not.
fn varied_config(r: &mut FaultRng) -> TcpConfig {
    let one_in = |r: &mut FaultRng, n: u64| r.below(n) == 0;
    let mut tcp = TcpConfig {
        window_scaling: one_in(r, 2),
        timestamps: one_in(r, 2),
        sack: !one_in(r, 3),
        dsack: !one_in(r, 3),
        ecn: ECN_MODES[r.below(ECN_MODES.len() as u64) as usize],
        reordering: 1 + r.below(8) as u8,
        tail_loss_probe: !one_in(r, 3),
        frto: !one_in(r, 3),
        super_frame_divisor: 1 + r.below(8) as u32,
        nagle: !one_in(r, 3),
        // Urgent data of such programs is read in line.
        oob_inline: true,
        delayed_ack: Duration::from_millis([1, 10, 40, 200][r.below(4) as usize]),
        quick_acks: r.below(20) as u8,
        congestion: match one_in(r, 2) {
            true => CongestionKind::NewReno,
            false => CongestionKind::Cubic,
        },
        initial_cwnd: 1 + r.below(20) as u32,
        slow_start_after_idle: one_in(r, 2),
        rto_min: Duration::from_millis(20 + r.below(200)),
        min_super_segments: 1 + r.below(4) as u8,
        ..TcpConfig::default()
    };
    if one_in(r, 2) {
        tcp.recv_buffer = 500 + r.below(10_000) as u32;
        tcp.recv_buffer_initial = tcp.recv_buffer;
    } else if one_in(r, 2) {
        tcp.recv_buffer_initial = 2_000 + r.below(100_000) as u32;
    }
    if one_in(r, 2) {
        tcp.send_buffer = 500 + r.below(10_000) as u32;
        tcp.send_buffer_initial = tcp.send_buffer;
    }
    if one_in(r, 3) {
        tcp.max_mss = Some(88 + r.below(1_400) as u16);
    }
    if one_in(r, 4) {
        tcp.window_clamp = Some(500 + r.below(20_000) as u32);
    }
    if one_in(r, 4) {
        tcp.notsent_lowat = 1 + r.below(20_000) as u32;
    }
    if one_in(r, 4) {
        tcp.recv_lowat = 1 + r.below(3_000) as u32;
    }
    if one_in(r, 4) {
        let second = Duration::from_secs(1);
        tcp.keepalive = Some(KeepAlive { idle: second, interval: second, probes: 20 });
    }
    tcp
}

fn stalled(sim: &Sim<Station<Peer>>, ends: [NodeId; 2]) -> SimError {
    stalled_at(&format_args!("no progress for {MAX_STALL:?}"), sim, ends)
}

fn stalled_at(what: &dyn fmt::Display, sim: &Sim<Station<Peer>>, ends: [NodeId; 2]) -> SimError {
    let [client, server] = ends.map(|id| {
        let station = sim.node(id);
        let info = station.app.socket.map(|socket| station.stack.info(socket));
        format!("{:?}, {info:?}", station.app)
    });
    SimError::Oracle(format!(
        "{what} at {:?}\n  client: {client}\n  server: {server}\n  in flight: {}",
        sim.now(),
        sim.in_flight()
    ))
}

/// A program at one end.
struct Peer {
    role: Role,
    socket: Option<TcpId>,
    settings: Settings,
    outgoing: Flow,
    incoming: Flow,
    /// Chunks that the program has received and still holds.
    held: VecDeque<Frag>,
    think_until: Option<Instant>,
    finished: bool,
    random: FaultRng,
    /// An oracle's finding.
    wrong: Option<String>,
}

enum Role {
    Client { to: SocketAddr },
    Server { on: SocketAddr, listener: Option<ListenerId> },
}

#[derive(Clone, Copy)]
struct Settings {
    by_reference: bool,
    think: Duration,
    piece: usize,
    no_delay: bool,
    whims: bool,
}

/// One direction's stream, as one end of the connection has it.
struct Flow {
    stream: Stream,
    total: u64,
    done: u64,
    /// The end of the stream was sent, or received.
    ended: bool,
}

impl Flow {
    fn new(stream: Stream, total: u64) -> Self {
        Self { stream, total, done: 0, ended: false }
    }
}

/// Most chunks that a program holds.
const MOST_HELD: usize = 8;

impl App for Peer {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        if self.finished || self.wrong.is_some() {
            return;
        }
        if events.iter().any(|event| event.readiness.is_empty()) {
            self.wrong = Some(format!("an event without readiness: {events:?}"));
            return;
        }
        if let Some(until) = self.think_until {
            if now < until {
                return;
            }
            self.think_until = None;
        } else if !self.settings.think.is_zero() && self.socket.is_some() {
            let span = self.settings.think.as_nanos() as u64;
            self.think_until = Some(now + Duration::from_nanos(1 + self.random.below(span)));
            return;
        }
        if let Err(what) = self.work(now, stack) {
            self.wrong = Some(what);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.think_until
    }
}

impl Peer {
    /// Whether both streams have ended.
    fn is_done(&self) -> bool {
        self.outgoing.ended && self.incoming.ended
    }

    /// Grows with every event.
    fn moved(&self) -> u64 {
        let ends = u64::from(self.outgoing.ended) + u64::from(self.incoming.ended);
        self.outgoing.done + self.incoming.done + ends + u64::from(self.socket.is_some())
    }

    /// Closes everything, drops everything.
    fn let_go(&mut self, now: Instant, stack: &mut Stack) {
        self.finished = true;
        self.think_until = None;
        self.held.clear();
        if let Role::Server { listener: Some(id), .. } = self.role {
            stack.close(now, id);
        }
        if let Some(id) = self.socket.take() {
            stack.close(now, id);
        }
    }

    /// Continues as far as the socket allows.
    fn work(&mut self, now: Instant, stack: &mut Stack) -> Result<(), String> {
        let Some(id) = self.open(now, stack)? else { return Ok(()) };
        if let Some(error) = stack.take_error(id) {
            return Err(format!("the connection failed: {error}"));
        }
        // The program chooses the order; either must work.
        if self.random.below(2) == 0 {
            self.send(now, stack, id)?;
            self.receive(now, stack, id)
        } else {
            self.receive(now, stack, id)?;
            self.send(now, stack, id)
        }
    }

    fn open(&mut self, now: Instant, stack: &mut Stack) -> Result<Option<TcpId>, String> {
        if self.socket.is_some() {
            return Ok(self.socket);
        }
        let opened = match &mut self.role {
            Role::Client { to } => {
                Some(stack.connect(now, *to, None).map_err(|e| format!("connect: {e}"))?)
            }
            Role::Server { on, listener } => {
                let id = match *listener {
                    Some(id) => id,
                    None => {
                        let id = stack.listen(*on, 4).map_err(|e| format!("listen: {e}"))?;
                        *listener.insert(id)
                    }
                };
                match stack.accept(id) {
                    Ok((socket, _)) => Some(socket),
                    Err(Error::WouldBlock) => None,
                    Err(error) => return Err(format!("accept: {error}")),
                }
            }
        };
        if let Some(id) = opened {
            let option = SocketOption::NoDelay(self.settings.no_delay);
            stack
                .tcp(id)
                .and_then(|mut tcp| tcp.set_option(now, option))
                .map_err(|e| format!("set_option: {e}"))?;
        }
        self.socket = opened;
        Ok(opened)
    }

    fn send(&mut self, now: Instant, stack: &mut Stack, id: TcpId) -> Result<(), String> {
        while self.outgoing.done < self.outgoing.total {
            let flow = &self.outgoing;
            let piece = 1 + self.random.below(self.settings.piece as u64);
            let n = piece.min(flow.total - flow.done) as usize;
            let bytes = flow.stream.bytes(flow.done, n);
            let flags = self.whim(now, stack, id)?;
            let sent = if self.settings.by_reference {
                // Bytes that are not taken are dropped: the stream can be made again from any offset.
                let mut frags = FragVec::new();
                frags.push(Frag::from_bytes(Bytes::from(bytes)));
                stack.tcp(id).and_then(|mut tcp| tcp.send(now, &mut frags, flags))
            } else {
                stack.tcp(id).and_then(|mut tcp| tcp.send(now, &bytes, flags))
            };
            match sent {
                Ok(0) => {
                    return Err(format!("{n} bytes were offered and none taken, without a word"));
                }
                Ok(taken) if taken > n => return Err(format!("{taken} of {n} bytes taken")),
                Ok(taken) => self.outgoing.done += taken as u64,
                Err(Error::WouldBlock) => return Ok(()),
                Err(error) => return Err(format!("send at {}: {error}", self.outgoing.done)),
            }
        }
        // RFC 9293 section 3.10.4: before the handshake is over there is no direction to end.
        let connected = stack.readiness(id).is_ok_and(|r| r.contains(Readiness::CONNECTED));
        if !self.outgoing.ended && connected {
            stack.shutdown(now, id, Shutdown::Write).map_err(|e| format!("shutdown: {e}"))?;
            self.outgoing.ended = true;
        }
        Ok(())
    }

    /// How the next piece is sent, and sometimes a change of the socket's options before it.
    fn whim(&mut self, now: Instant, stack: &mut Stack, id: TcpId) -> Result<SendFlags, String> {
        let mut flags = SendFlags::empty();
        if !self.settings.whims {
            return Ok(flags);
        }
        let random = &mut self.random;
        flags.set(SendFlags::MORE, random.below(8) == 0);
        flags.set(SendFlags::END_OF_RECORD, random.below(8) == 0);
        flags.set(SendFlags::URGENT, random.below(16) == 0);
        let option = match random.below(64) {
            0 => SocketOption::Cork(random.below(2) == 0),
            1 => SocketOption::NoDelay(random.below(2) == 0),
            2 => SocketOption::QuickAck(random.below(2) == 0),
            3 => SocketOption::NotSentLowat(1 + random.below(50_000) as u32),
            4 => SocketOption::RcvLowat(1 + random.below(2_000) as u32),
            _ => return Ok(flags),
        };
        stack
            .tcp(id)
            .and_then(|mut tcp| tcp.set_option(now, option))
            .map_err(|e| format!("{option:?}: {e}"))?;
        Ok(flags)
    }

    /// Peeks at the next bytes, and checks them.
    fn peek(&mut self, now: Instant, stack: &mut Stack, id: TcpId) -> Result<(), String> {
        if !self.settings.whims || self.random.below(8) != 0 {
            return Ok(());
        }
        let mut buffer = [0; 300];
        let at = self.incoming.done;
        match stack.tcp(id).and_then(|mut tcp| tcp.recv(now, &mut buffer[..], RecvFlags::PEEK)) {
            Ok(n) => self.incoming.stream.check(at, buffer.get(..n).unwrap_or_default()),
            Err(_) => Ok(()),
        }
        .map_err(|mismatch| format!("peeked at something else: {mismatch:?}"))
    }

    fn receive(&mut self, now: Instant, stack: &mut Stack, id: TcpId) -> Result<(), String> {
        while !self.incoming.ended {
            self.peek(now, stack, id)?;
            let most = 1 + self.random.below(self.settings.piece as u64) as usize;
            let at = self.incoming.done;
            let mut wrong = None;
            let mut check = |offset: u64, bytes: &[u8]| {
                if let Err(mismatch) = self.incoming.stream.check(offset, bytes) {
                    wrong.get_or_insert(mismatch);
                }
            };
            let got = if self.settings.by_reference {
                let mut chunks = Vec::new();
                let got =
                    stack.recv(now, id, pagewire_stack::Chunks { max: most, into: &mut chunks });
                let mut offset = at;
                for chunk in &chunks {
                    // The oracle's reading is not counted.
                    chunk.for_each_piece(&mut CopyLedger::new(), |piece| {
                        check(offset, piece);
                        offset += piece.len() as u64;
                    });
                }
                if let Ok(n) = got
                    && offset - at != n as u64
                {
                    return Err(format!("{n} bytes were promised, chunks have {}", offset - at));
                }
                self.held.extend(chunks);
                let keep = self.random.below(MOST_HELD as u64 + 1) as usize;
                while self.held.len() > keep {
                    self.held.pop_front();
                }
                got
            } else {
                let mut buffer = vec![0; most];
                let got = stack.recv(now, id, &mut buffer[..]);
                if let Ok(n) = got {
                    check(at, &buffer[..n]);
                }
                got
            };
            if let Some(mismatch) = wrong {
                return Err(format!("the stream is damaged: {mismatch:?}"));
            }
            match got {
                Ok(0) if at < self.incoming.total => {
                    return Err(format!("the stream ended at {at} of {}", self.incoming.total));
                }
                Ok(0) => self.incoming.ended = true,
                Ok(n) if n > most => return Err(format!("{n} bytes, {most} were asked for")),
                Ok(n) if at + n as u64 > self.incoming.total => {
                    return Err(format!("{n} bytes at {at}: more than {}", self.incoming.total));
                }
                Ok(n) => self.incoming.done += n as u64,
                Err(Error::WouldBlock) => return Ok(()),
                Err(error) => return Err(format!("receive at {at}: {error}")),
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow = |flow: &Flow| {
            format!("{}/{}{}", flow.done, flow.total, if flow.ended { " ended" } else { "" })
        };
        f.debug_struct("Peer")
            .field("out", &flow(&self.outgoing))
            .field("in", &flow(&self.incoming))
            .field("held", &self.held.len())
            .field("think_until", &self.think_until)
            .finish_non_exhaustive()
    }
}
