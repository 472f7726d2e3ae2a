//! Many connections at once whose programs are rude: they abort, close early, stop reading. Those
//! that are polite must get all they were promised, and in the end nothing may be left: no socket,
//! no frame, no page.

use std::collections::{HashMap, VecDeque};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::time::Duration;

use pagewire_device::{Chance, FaultConfig, FaultRng};
use pagewire_mem::{CopyLedger, Frag, FragVec, GROUP_PAGES, Instant};
use pagewire_stack::{
    BindOptions, Error, Event, ListenerId, Readiness, SocketId, Stack, TcpId, UdpId,
};
use pagewire_testkit::sim::{
    App, NodeId, Sim, SimError, Station, Stream, Verbs, run_seed, seed_from_env,
};

const COMMAND: &str = "cargo test -p pagewire-testkit crowd_seed_from_env";

#[test]
fn crowd_seed_from_env_runs_alone() {
    if let Some(seed) = seed_from_env() {
        run_seed(seed, COMMAND, crowd).unwrap_or_else(|failure| panic!("{failure}"));
        eprintln!("seed {seed} holds");
    }
}

#[test]
fn rude_programs_on_bad_networks_leave_nothing_behind() {
    let failures: Vec<_> =
        (0..150).filter_map(|seed| run_seed(seed, COMMAND, crowd).err()).take(3).collect();
    let text: Vec<_> = failures.iter().map(ToString::to_string).collect();
    assert!(text.is_empty(), "{}", text.join("\n"));
}

/// The request in the first byte of a connection. A number of four bytes follows.
const ECHO: u8 = 0;
const ABORT_AFTER: u8 = 1;
const CLOSE_AFTER: u8 = 2;
const SLEEP_MS: u8 = 3;

fn crowd(seed: u64, capture: Option<&Path>) -> Result<(), SimError> {
    let mut sim = Sim::new(seed);
    if let Some(file) = capture {
        sim.capture(file)?;
    }
    let mut random = FaultRng::new(seed ^ 0x0063_726f_7764);
    let faults = FaultConfig {
        loss: Chance::per_million(random.below(50_000) as u32),
        duplicate: Chance::per_million(random.below(20_000) as u32),
        reorder: Chance::per_million(random.below(30_000) as u32),
        delay: Duration::from_micros(random.below(20_000)),
        cut: false,
        ..FaultConfig::default()
    };
    let v6 = random.below(2) == 0;
    let (mtu, offload) = ([1280, 1500, 9000][random.below(3) as usize], random.below(2) == 0);
    let [one, two] = if v6 { ["fd77::1/64", "fd77::2/64"] } else { ["10.0.0.1/24", "10.0.0.2/24"] };
    let host = if v6 { "[fd77::1]" } else { "10.0.0.1" };
    let port = |port: u16| -> SocketAddr { format!("{host}:{port}").parse().expect("an address") };
    let add = |sim: &mut Sim<Station<Program>>, cidr: &str, app: Program, faults| {
        let mut config = sim.stack_config(cidr.parse().expect("an address"));
        let device = &mut config.capabilities;
        device.mtu = mtu;
        if !offload {
            device.max_super_frame = mtu;
            (device.rx_checksum, device.tx_checksum) = (false, false);
            (device.tso_v4, device.tso_v6) = (false, false);
        }
        let stack = Stack::new(sim.now(), config).expect("a stack");
        sim.add(Station::new(stack, app), faults)
    };
    let server = Program::Server(Server::new(port(7000), port(9000)));
    let server = add(&mut sim, one, server, faults)?;
    let plans = (0..1 + random.below(30)).map(|n| Plan::random(&mut random, seed * 100 + n));
    let client = Program::Client(Client {
        to: port(7000),
        udp_to: port(9000),
        plans: plans.collect(),
        talks: HashMap::new(),
        udp: None,
        datagrams: (0..random.below(40)).map(|_| 8 + random.below(5000) as usize).collect(),
        stream: Stream(seed),
        wrong: None,
    });
    let client = add(&mut sim, two, client, FaultConfig::delayed(Duration::ZERO))?;
    let ends = [server, client];

    let limit = Instant::from_millis(3_600_000);
    let finished = sim.run_until(limit, |sim| {
        check(sim, ends)?;
        let Program::Client(client) = &sim.node(client).app else { return Ok(false) };
        Ok(client.is_done())
    });
    finished.map_err(|error| {
        let Program::Client(client) = &sim.node(client).app else { return error };
        SimError::Oracle(format!("{error}: {:?}", client.talks.values().collect::<Vec<_>>()))
    })?;

    for id in ends {
        let now = sim.now();
        let station = sim.node_mut(id);
        station.app.let_go(now, &mut station.stack);
    }
    let limit = sim.now() + Duration::from_secs(3600);
    let ended = sim.run_until(limit, |sim| {
        Ok(sim.in_flight() == 0 && ends.iter().all(|&id| sim.node(id).stack.socket_count() == 0))
    });
    ended.map_err(|error| {
        let left = ends.map(|id| sim.node(id).stack.socket_count());
        SimError::Oracle(format!("after all had closed: {error}; sockets left: {left:?}"))
    })?;
    for id in ends {
        sim.node_mut(id).stack.end_turn();
        let audit = sim.node(id).stack.pool_audit();
        if !audit.is_conserved() || audit.out > GROUP_PAGES {
            return Err(SimError::Pages { node: id, audit });
        }
    }
    Ok(())
}

fn check(sim: &Sim<Station<Program>>, ends: [NodeId; 2]) -> Result<(), SimError> {
    let wrong = ends.iter().find_map(|&id| match &sim.node(id).app {
        Program::Server(server) => server.wrong.clone(),
        Program::Client(client) => client.wrong.clone(),
    });
    wrong.map_or(Ok(()), |what| Err(SimError::Oracle(what)))
}

enum Program {
    Server(Server),
    Client(Client),
}

impl App for Program {
    fn turn(&mut self, now: Instant, stack: &mut Stack, _events: &[Event]) {
        let done = match self {
            Self::Server(server) => server.turn(now, stack).map_err(|e| (e, &mut server.wrong)),
            Self::Client(client) => client.turn(now, stack).map_err(|e| (e, &mut client.wrong)),
        };
        if let Err((what, wrong)) = done {
            wrong.get_or_insert(what);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Server(server) => server.talks.values().filter_map(|talk| talk.asleep).min(),
            Self::Client(client) => client.plans.iter().map(|plan| plan.start).min(),
        }
    }
}

impl Program {
    fn let_go(&mut self, now: Instant, stack: &mut Stack) {
        let ids: Vec<SocketId> = match self {
            Self::Server(Server { listener, udp, talks, gone, .. }) => {
                *gone = true;
                let talks = std::mem::take(talks);
                let sockets = listener.take().map(SocketId::from).into_iter();
                let sockets = sockets.chain(udp.take().map(SocketId::from));
                sockets.chain(talks.into_keys().map(SocketId::from)).collect()
            }
            Self::Client(client) => client.udp.take().map(SocketId::from).into_iter().collect(),
        };
        for id in ids {
            stack.close(now, id);
        }
    }
}

/// Does what it is asked.
struct Server {
    on: SocketAddr,
    udp_on: SocketAddr,
    listener: Option<ListenerId>,
    udp: Option<UdpId>,
    talks: HashMap<TcpId, Answering>,
    gone: bool,
    wrong: Option<String>,
}

#[derive(Default)]
struct Answering {
    /// The first five bytes, as far as they are here.
    request: Vec<u8>,
    echoed: u64,
    /// Read, but not sent back yet.
    pending: FragVec,
    ended: bool,
    asleep: Option<Instant>,
    slept: bool,
}

impl Server {
    fn new(on: SocketAddr, udp_on: SocketAddr) -> Self {
        let talks = HashMap::new();
        Self { on, udp_on, listener: None, udp: None, talks, gone: false, wrong: None }
    }

    fn turn(&mut self, now: Instant, stack: &mut Stack) -> Result<(), String> {
        if self.gone {
            return Ok(());
        }
        let listener = match self.listener {
            Some(id) => id,
            None => {
                *self.listener.insert(stack.listen(self.on, 8).map_err(|e| format!("listen: {e}"))?)
            }
        };
        let udp = match self.udp {
            Some(id) => id,
            None => *self.udp.insert(
                stack
                    .bind_udp(self.udp_on, BindOptions::default())
                    .map_err(|e| format!("bind: {e}"))?,
            ),
        };
        while let Ok((payload, from)) = stack.recv_from(udp, pagewire_stack::Datagram) {
            // Back by reference. A full queue somewhere is a loss, as UDP has it.
            let _ = stack.send_to(now, udp, payload, Some(from));
        }
        while let Ok((id, _)) = stack.accept(listener) {
            self.talks.insert(id, Answering::default());
        }
        go_on(&mut self.talks, now, stack, |talk, stack, id| Ok(talk.go_on(now, stack, id)))
    }
}

enum End {
    NotYet,
    Close,
    Abort,
}

/// Goes on with each talk, and forgets those that ended.
fn go_on<T>(
    talks: &mut HashMap<TcpId, T>,
    now: Instant,
    stack: &mut Stack,
    mut on: impl FnMut(&mut T, &mut Stack, TcpId) -> Result<End, String>,
) -> Result<(), String> {
    // In a fixed order: a map's is not.
    let mut ids: Vec<TcpId> = talks.keys().copied().collect();
    ids.sort_by_key(|id| format!("{id:?}"));
    for id in ids {
        let Some(talk) = talks.get_mut(&id) else { continue };
        match on(talk, stack, id)? {
            End::NotYet => continue,
            End::Close => stack.close(now, id),
            // The id stays until it is closed.
            End::Abort => {
                stack.abort(now, id);
                stack.close(now, id);
            }
        }
        talks.remove(&id);
    }
    Ok(())
}

impl Answering {
    fn go_on(&mut self, now: Instant, stack: &mut Stack, id: TcpId) -> End {
        if self.asleep.is_some_and(|until| now < until) {
            return End::NotYet;
        }
        self.asleep = None;
        loop {
            if !self.pending.is_empty() {
                match stack.send(now, id, &mut self.pending) {
                    Ok(n) => self.echoed += n as u64,
                    Err(Error::WouldBlock) => return End::NotYet,
                    // The client went away; nothing to say to it.
                    Err(_) => return End::Close,
                }
                continue;
            }
            if self.ended {
                return End::Close;
            }
            if self.request.len() == 5 {
                let n = u64::from(u32::from_be_bytes(self.request[1..].try_into().expect("four")));
                match self.request[0] {
                    ABORT_AFTER if self.echoed >= n => return End::Abort,
                    CLOSE_AFTER if self.echoed >= n => return End::Close,
                    SLEEP_MS if !self.slept => {
                        self.slept = true;
                        self.asleep = Some(now + Duration::from_millis(n));
                        return End::NotYet;
                    }
                    _ => {}
                }
            }
            if self.request.len() < 5 {
                let mut buffer = [0; 5];
                let room = 5 - self.request.len();
                match stack.recv(now, id, &mut buffer[..room]) {
                    Ok(0) => self.ended = true,
                    Ok(n) => self.request.extend_from_slice(&buffer[..n]),
                    Err(Error::WouldBlock) => return End::NotYet,
                    Err(_) => return End::Close,
                }
                continue;
            }
            let mut chunks: Vec<Frag> = Vec::new();
            match stack.recv(now, id, pagewire_stack::Chunks { max: 30_000, into: &mut chunks }) {
                Ok(0) => self.ended = true,
                Ok(_) => self.pending = chunks.into_iter().collect(),
                Err(Error::WouldBlock) => return End::NotYet,
                Err(_) => return End::Close,
            }
        }
    }
}

/// A connection that the client will make.
#[derive(Clone, Debug)]
struct Plan {
    start: Instant,
    request: u8,
    number: u32,
    bytes: u64,
    stream: Stream,
    rude: Option<Rude>,
}

/// A client's misbehaviour, and the number of echoed bytes after which it happens.
#[derive(Clone, Copy, Debug)]
enum Rude {
    Abort(u64),
    Close(u64),
}

impl Plan {
    fn random(random: &mut FaultRng, stream: u64) -> Self {
        let bytes = match random.below(4) {
            0 => random.below(20),
            1 => random.below(200_000),
            _ => random.below(20_000),
        };
        Self {
            start: Instant::from_micros(random.below(2_000_000)),
            request: [ECHO, ECHO, ECHO, ABORT_AFTER, CLOSE_AFTER, SLEEP_MS]
                [random.below(6) as usize],
            number: random.below(5000) as u32,
            bytes,
            stream: Stream(stream),
            rude: match random.below(8) {
                0 => Some(Rude::Abort(random.below(bytes + 1))),
                1 => Some(Rude::Close(random.below(bytes + 1))),
                _ => None,
            },
        }
    }

    /// Whether everything must come back.
    fn is_polite(&self) -> bool {
        self.rude.is_none() && matches!(self.request, ECHO | SLEEP_MS)
    }

    /// Bytes that the client sends from offset `at` on: the request, then the stream.
    fn bytes_from(&self, at: u64, most: usize) -> Vec<u8> {
        let mut head = vec![self.request];
        head.extend(self.number.to_be_bytes());
        if at < 5 {
            return head[at as usize..].to_vec();
        }
        let left = self.bytes + 5 - at;
        self.stream.bytes(at - 5, left.min(most as u64) as usize)
    }
}

struct Client {
    to: SocketAddr,
    udp_to: SocketAddr,
    plans: Vec<Plan>,
    talks: HashMap<TcpId, Asking>,
    udp: Option<UdpId>,
    /// Lengths of the datagrams still to be sent.
    datagrams: VecDeque<usize>,
    stream: Stream,
    wrong: Option<String>,
}

#[derive(Debug)]
struct Asking {
    plan: Plan,
    sent: u64,
    back: u64,
    said_end: bool,
}

impl Client {
    fn is_done(&self) -> bool {
        self.plans.is_empty() && self.talks.is_empty() && self.datagrams.is_empty()
    }

    fn turn(&mut self, now: Instant, stack: &mut Stack) -> Result<(), String> {
        self.datagrams(now, stack)?;
        while let Some(at) = self.plans.iter().position(|plan| plan.start <= now) {
            let plan = self.plans.remove(at);
            let id = stack.connect(now, self.to, None).map_err(|e| format!("connect: {e}"))?;
            self.talks.insert(id, Asking { plan, sent: 0, back: 0, said_end: false });
        }
        go_on(&mut self.talks, now, stack, |talk, stack, id| talk.go_on(now, stack, id))
    }

    fn datagrams(&mut self, now: Instant, stack: &mut Stack) -> Result<(), String> {
        let udp = match self.udp {
            Some(id) => id,
            None => {
                let any = SocketAddr::new(stack_ip(self.udp_to), 9001);
                *self.udp.insert(
                    stack
                        .bind_udp(any, BindOptions::default())
                        .map_err(|e| format!("bind: {e}"))?,
                )
            }
        };
        while let Some(len) = self.datagrams.pop_front() {
            let mut bytes = (self.datagrams.len() as u64).to_be_bytes().to_vec();
            bytes.extend(self.stream.bytes(self.datagrams.len() as u64 * 10_000, len - 8));
            // A full queue, or a neighbour who does not answer, is a loss.
            let _ = stack.send_to(now, udp, &bytes, Some(self.udp_to));
        }
        while let Ok((payload, from)) = stack.recv_from(udp, pagewire_stack::Datagram) {
            let mut bytes = Vec::new();
            for frag in &payload {
                frag.for_each_piece(&mut CopyLedger::new(), |piece| bytes.extend_from_slice(piece));
            }
            let Some((number, rest)) = bytes.split_first_chunk() else {
                return Err(format!("a datagram of {} bytes from {from}", bytes.len()));
            };
            let place = u64::from_be_bytes(*number) * 10_000;
            self.stream.check(place, rest).map_err(|m| format!("a datagram is damaged: {m:?}"))?;
        }
        Ok(())
    }
}

/// Ours, on the same network: the server is 1, we are 2.
fn stack_ip(server: SocketAddr) -> std::net::IpAddr {
    if server.is_ipv6() { [0xfd77, 0, 0, 0, 0, 0, 0, 2].into() } else { [10, 0, 0, 2].into() }
}

impl Asking {
    fn go_on(&mut self, now: Instant, stack: &mut Stack, id: TcpId) -> Result<End, String> {
        let plan = &self.plan;
        let failed = |what: &str, error: Error, talk: &Self| match talk.plan.is_polite() {
            // The peer is polite and the network is not that bad.
            true => Err(format!("{what}: {error}: {talk:?}")),
            false => Ok(End::Close),
        };
        match plan.rude {
            Some(Rude::Abort(n)) if self.back >= n && self.sent > 0 => return Ok(End::Abort),
            Some(Rude::Close(n)) if self.back >= n && self.sent > 0 => return Ok(End::Close),
            _ => {}
        }
        while self.sent < plan.bytes + 5 {
            let bytes = plan.bytes_from(self.sent, 7000);
            match stack.send(now, id, &bytes) {
                Ok(n) => self.sent += n as u64,
                Err(Error::WouldBlock) => break,
                Err(error) => return failed("write", error, self),
            }
        }
        let connected = stack.readiness(id).is_ok_and(|r| r.contains(Readiness::CONNECTED));
        if self.sent == plan.bytes + 5 && !self.said_end && connected {
            match stack.shutdown(now, id, Shutdown::Write) {
                Ok(()) => self.said_end = true,
                Err(error) => return failed("shutdown", error, self),
            }
        }
        let mut buffer = [0; 5000];
        loop {
            match stack.recv(now, id, &mut buffer[..]) {
                Ok(0) if plan.is_polite() && self.back < plan.bytes => {
                    return Err(format!("the end came early: {self:?}"));
                }
                Ok(0) => return Ok(End::Close),
                Ok(n) => {
                    let check = plan.stream.check(self.back, &buffer[..n]);
                    check.map_err(|m| format!("the echo is damaged: {m:?}: {self:?}"))?;
                    self.back += n as u64;
                    if self.back > plan.bytes {
                        return Err(format!("more came back than was sent: {self:?}"));
                    }
                }
                Err(Error::WouldBlock) => return Ok(End::NotYet),
                Err(error) => return failed("read", error, self),
            }
        }
    }
}
