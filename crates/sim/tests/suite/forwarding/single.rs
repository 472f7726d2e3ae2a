//! One connection, or a few, through the proxy: what it does in each corner.

use std::net::Shutdown;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::FaultConfig;
use pagewire_mem::{CopyLedger, Frag, FragVec, Instant};
use pagewire_sim::{NodeId, Sim, SimError, Station, Stream, Verbs};
use pagewire_stack::{
    Error, ForwardConfig, Forwarder, ListenerId, Readiness, RecvFlags, Refusal, SendFlags, Stack,
    StackConfig, TcpId,
};

use crate::forwarding::peers::Program;

const PORT: u16 = 80;
const UPSTREAM: u16 = 8000;
/// Nobody listens there.
const CLOSED: u16 = 81;
/// Forwarded to where nobody is.
const NOWHERE: u16 = 82;
/// Forwarded to where nothing leads.
const UNROUTED: u16 = 83;

/// A client, a proxy and a server, whose programs are the tests.
pub(crate) struct Line {
    pub(crate) sim: Sim<Station<Program>>,
    pub(crate) client: NodeId,
    pub(crate) proxy: NodeId,
    pub(crate) server: NodeId,
    listener: ListenerId,
}

fn second(n: u64) -> Instant {
    Instant::from_millis(n * 1000)
}

impl Line {
    pub(crate) fn new(forward: ForwardConfig, faults: &str, receive_memory: usize) -> Self {
        Self::over(forward, faults, receive_memory, |_| {})
    }

    /// The same over devices, or between stacks, of other kinds.
    pub(crate) fn over(
        forward: ForwardConfig,
        faults: &str,
        receive_memory: usize,
        other: impl Fn(&mut StackConfig),
    ) -> Self {
        let mut sim = Sim::new(1);
        let mut add = |host: u8, app: Program, faults: &str| {
            let cidr = format!("10.0.0.{host}/24").parse().expect("an address");
            let mut config = sim.stack_config(cidr);
            if host == 2 {
                config.receive_memory = receive_memory;
            }
            other(&mut config);
            let stack = Stack::new(sim.now(), config).expect("a stack");
            let faults = FaultConfig { cut: false, ..faults.parse().expect("faults") };
            sim.add(Station::new(stack, app), faults).expect("a node")
        };
        let client = add(1, Program::Manual, faults);
        let proxy = add(2, Program::Proxy(Box::new(Forwarder::new(forward))), "delay=1us");
        let server = add(3, Program::Manual, faults);
        let now = sim.now();
        let Station { stack, app, .. } = sim.node_mut(proxy);
        let upstreams = [
            (PORT, "10.0.0.3:8000"),
            (CLOSED, "10.0.0.3:9"),
            (NOWHERE, "10.0.0.9:80"),
            (UNROUTED, "10.9.9.9:80"),
        ];
        for (port, upstream) in upstreams {
            let on = format!("10.0.0.2:{port}").parse().expect("an address");
            let listener = stack.listen(on, 1000).expect("a port");
            let upstream = upstream.parse().expect("an address");
            app.proxy_mut().listen(now, stack, listener, upstream).expect("a listener");
        }
        let on = format!("10.0.0.3:{UPSTREAM}").parse().expect("an address");
        let listener = sim.node_mut(server).stack.listen(on, 1000).expect("a port");
        Self { sim, client, proxy, server, listener }
    }

    pub(crate) fn usual() -> Self {
        Self::new(ForwardConfig::default(), "delay=1ms", 48 << 20)
    }

    pub(crate) fn stack(&mut self, node: NodeId) -> (&mut Stack, Instant) {
        let now = self.sim.now();
        (&mut self.sim.node_mut(node).stack, now)
    }

    fn dial(&mut self, port: u16) -> TcpId {
        let to = format!("10.0.0.2:{port}").parse().expect("an address");
        let (stack, now) = self.stack(self.client);
        stack.connect(now, to, None).expect("a connection")
    }

    /// A connection of the client's, and what the server has of it.
    pub(crate) fn connect(&mut self) -> (TcpId, TcpId) {
        let ours = self.dial(PORT);
        let (server, listener) = (self.server, self.listener);
        let mut theirs = None;
        self.until(|sim| {
            theirs = theirs.or_else(|| sim.node_mut(server).stack.accept(listener).ok());
            theirs.is_some()
        });
        (ours, theirs.expect("accepted").0)
    }

    fn until(&mut self, mut done: impl FnMut(&mut Sim<Station<Program>>) -> bool) {
        let limit = self.sim.now() + Duration::from_secs(3600);
        let ended = self.sim.run_until(limit, |sim| Ok(done(sim)));
        ended.unwrap_or_else(|error: SimError| panic!("{error}"));
    }

    /// Until nothing more happens within a second.
    pub(crate) fn settle(&mut self) {
        let until = self.sim.now() + Duration::from_secs(1);
        self.sim.drive_bounded(until).expect("no failure");
    }

    pub(crate) fn write(&mut self, node: NodeId, id: TcpId, bytes: &'static [u8]) {
        let mut frags = FragVec::from_elem(Frag::from_static(bytes), 1);
        let (stack, now) = self.stack(node);
        assert_eq!(stack.send(now, id, &mut frags), Ok(bytes.len()));
    }

    pub(crate) fn shutdown(&mut self, node: NodeId, id: TcpId) {
        let (stack, now) = self.stack(node);
        stack.shutdown(now, id, Shutdown::Write).expect("it stands");
    }

    /// What is there to be read.
    pub(crate) fn read(&mut self, node: NodeId, id: TcpId) -> Result<Vec<u8>, Error> {
        self.settle();
        let mut buffer = vec![0; 1000];
        let (stack, now) = self.stack(node);
        let n = stack.recv(now, id, &mut buffer[..])?;
        buffer.truncate(n);
        Ok(buffer)
    }

    pub(crate) fn abort(&mut self, node: NodeId, id: TcpId) {
        let (stack, now) = self.stack(node);
        stack.abort(now, id);
        stack.close(now, id);
        self.settle();
    }

    pub(crate) fn proxy(&self) -> &Forwarder {
        self.sim.node(self.proxy).app.proxy()
    }

    fn refusals(&mut self) -> Vec<Refusal> {
        let proxy = self.sim.node_mut(self.proxy).app.proxy_mut();
        std::iter::from_fn(|| proxy.poll_refusal()).collect()
    }
}

#[test]
fn each_stream_ends_by_itself() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    line.write(client, ours, b"question");
    line.shutdown(client, ours);
    assert_eq!(line.read(server, theirs), Ok(b"question".to_vec()));
    assert_eq!(line.read(server, theirs), Ok(Vec::new()), "the end");
    // The other way is open for as long as the server likes.
    assert_eq!(line.read(client, ours), Err(Error::WouldBlock));
    line.write(server, theirs, b"answer");
    assert_eq!(line.read(client, ours), Ok(b"answer".to_vec()));
    assert_eq!(line.proxy().len(), 1);
    line.shutdown(server, theirs);
    assert_eq!(line.read(client, ours), Ok(Vec::new()), "the end");
    assert!(line.proxy().is_empty());
    assert_eq!(line.proxy().counters().finished, 1);
}

#[test]
fn a_reset_on_either_side_resets_the_other() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    line.abort(client, ours);
    assert_eq!(line.read(server, theirs), Err(Error::ConnectionReset));
    let (ours, theirs) = line.connect();
    line.abort(server, theirs);
    assert_eq!(line.read(client, ours), Err(Error::ConnectionReset));
    // Half-closed ones too.
    let (ours, theirs) = line.connect();
    line.shutdown(client, ours);
    line.settle();
    line.abort(server, theirs);
    assert_eq!(line.read(client, ours), Err(Error::ConnectionReset));
    assert!(line.proxy().is_empty());
    assert_eq!(line.proxy().counters().broken, 3);
}

#[test]
fn a_reset_is_passed_on_while_the_other_side_takes_nothing() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    fill(&mut line, ours);
    line.abort(client, ours);
    let mut result = Ok(vec![0]);
    for _ in 0..100_000 {
        result = line.read(server, theirs);
        if !result.as_ref().is_ok_and(|bytes| !bytes.is_empty()) {
            break;
        }
    }
    assert_eq!(result, Err(Error::ConnectionReset));
}

#[test]
fn a_client_whose_upstream_cannot_be_had_is_reset_and_told_of() {
    for (port, error, within) in [
        (CLOSED, Error::ConnectionRefused, 1),
        // Nobody answers for the address on the link: three requests, a second apart.
        (NOWHERE, Error::HostUnreachable, 5),
        (UNROUTED, Error::NetworkUnreachable, 1),
    ] {
        let mut line = Line::usual();
        let (ours, node) = (line.dial(port), line.client);
        line.sim.drive_bounded(second(within)).expect("no failure");
        assert_eq!(line.read(node, ours), Err(Error::ConnectionReset), "{port}");
        let refusals = line.refusals();
        assert_eq!(refusals.len(), 1);
        assert_eq!(refusals[0].error, error);
        let (stack, _) = line.stack(node);
        assert_eq!(stack.local_addr(ours), Ok(refusals[0].client));
        assert!(line.proxy().is_empty());
    }
}

#[test]
fn an_upstream_has_only_so_long_to_answer() {
    let limit = Duration::from_millis(1500);
    let config = ForwardConfig { connect_timeout: limit, ..ForwardConfig::default() };
    let mut line = Line::new(config, "delay=1ms", 48 << 20);
    let (ours, node) = (line.dial(NOWHERE), line.client);
    line.sim.drive_bounded(Instant::from_millis(1400)).expect("no failure");
    assert_eq!(line.proxy().len(), 1);
    assert_eq!(line.read(node, ours), Err(Error::ConnectionReset));
    assert_eq!(line.refusals()[0].error, Error::TimedOut);
}

#[test]
fn silence_ends_a_connection_and_a_byte_either_way_keeps_it() {
    let limit = Some(Duration::from_secs(30));
    let config = ForwardConfig { idle_timeout: limit, ..ForwardConfig::default() };
    let mut line = Line::new(config, "delay=1ms", 48 << 20);
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    line.sim.drive_bounded(second(25)).expect("no failure");
    line.write(server, theirs, b".");
    line.sim.drive_bounded(second(50)).expect("no failure");
    line.write(client, ours, b".");
    line.sim.drive_bounded(second(78)).expect("no failure");
    assert_eq!(line.proxy().len(), 1);
    line.sim.drive_bounded(second(82)).expect("no failure");
    assert_eq!(line.proxy().counters().idle, 1);
    assert_eq!(line.read(client, ours), Ok(b".".to_vec()));
    assert_eq!(line.read(client, ours), Err(Error::ConnectionReset));
    assert_eq!(line.read(server, theirs), Ok(b".".to_vec()));
    assert_eq!(line.read(server, theirs), Err(Error::ConnectionReset));
}

#[test]
fn a_connection_that_has_ended_is_forgotten_within_a_minute() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    for _ in 0..3 {
        let (ours, theirs) = line.connect();
        // Longer than an upstream may take to answer: from then on only silence would end it.
        line.sim.drive_bounded(line.sim.now() + Duration::from_secs(10)).expect("no failure");
        line.abort(client, ours);
        line.abort(server, theirs);
    }
    assert_eq!((line.proxy().len(), line.proxy().counters().broken), (0, 3));
    line.sim.drive_bounded(line.sim.now() + Duration::from_secs(61)).expect("no failure");
    assert_eq!(line.proxy().poll_timeout(), None);
}

/// Sends as much as there is room for, for as long as there is ever more.
fn fill(line: &mut Line, ours: TcpId) -> u64 {
    let (mut sent, mut before) = (0, u64::MAX);
    while sent != before {
        before = sent;
        let (stack, now) = line.stack(line.client);
        loop {
            let piece = Bytes::from(Stream(7).bytes(sent, 60_000));
            let mut frags = FragVec::from_elem(Frag::from_bytes(piece), 1);
            match stack.send(now, ours, &mut frags) {
                Ok(n) => sent += n as u64,
                Err(error) => break assert_eq!(error, Error::WouldBlock),
            }
        }
        line.settle();
    }
    sent
}

#[test]
fn a_reader_that_stops_stops_the_sender_and_what_is_held_is_bounded_by_the_windows() {
    let mut line = Line::usual();
    let (ours, theirs) = line.connect();
    let sent = fill(&mut line, ours);
    let tcp = pagewire_stack::TcpConfig::default();
    // The proxy has at most a receive buffer and a send buffer of it.
    let held = line.sim.node(line.proxy).stack.receive_memory_used() as u64;
    let most = u64::from(tcp.recv_buffer + tcp.send_buffer);
    assert!(held > 100_000 && held <= most, "{held} bytes are held, at most {most}");
    // And one more of each is with the client and the server.
    assert!(sent <= 2 * most, "{sent} bytes were sent");
    // When the reader goes on, so does everything, and nothing is missing.
    let mut got = 0;
    let server = line.server;
    line.until(|sim| {
        let (now, mut chunks) = (sim.now(), Vec::new());
        let _ = sim.node_mut(server).stack.recv(
            now,
            theirs,
            pagewire_stack::Chunks { max: 50_000, into: &mut chunks },
        );
        for chunk in chunks {
            let check = |piece: &[u8]| {
                Stream(7).check(got, piece).expect("as sent");
                got += piece.len() as u64;
            };
            chunk.for_each_piece(&mut CopyLedger::new(), check);
        }
        got == sent
    });
    line.settle();
    assert_eq!(line.sim.node(line.proxy).stack.receive_memory_used(), 0);
    assert_eq!(line.sim.node(line.proxy).stack.ledger().ours(), 0);
}

#[test]
fn hundreds_that_do_not_read_make_place_for_one_that_does_when_memory_is_short() {
    let mut line = Line::new(ForwardConfig::default(), "delay=1ms", 4 << 20);
    for _ in 0..200 {
        let (ours, _) = line.connect();
        let (stack, now) = line.stack(line.client);
        let mut frags = FragVec::from_elem(Frag::from_bytes(vec![0; 300_000].into()), 1);
        let _ = stack.send(now, ours, &mut frags);
    }
    line.settle();
    let used = line.sim.node(line.proxy).stack.receive_memory_used();
    assert!((1 << 20..=4 << 20).contains(&used), "{used} bytes are held");
    let (ours, theirs) = line.connect();
    let (mut got, server, client) = (0, line.server, line.client);
    let mut frags = FragVec::from_elem(Frag::from_bytes(vec![0; 1_000_000].into()), 1);
    line.until(|sim| {
        let (now, mut chunks) = (sim.now(), Vec::new());
        let _ = sim.node_mut(client).stack.send(now, ours, &mut frags);
        let taken = sim.node_mut(server).stack.recv(
            now,
            theirs,
            pagewire_stack::Chunks { max: 1 << 20, into: &mut chunks },
        );
        got += taken.unwrap_or(0);
        got == 1_000_000
    });
    let stalled = line.proxy().counters().stalled;
    assert!(stalled > 0 && stalled < 200, "{stalled} were reset");
    assert!(line.sim.now() < second(120), "{:?}", line.sim.now());
}

#[test]
fn an_urgent_byte_keeps_its_place_and_loses_its_mark() {
    let mut line = Line::usual();
    let (client, server) = (line.client, line.server);
    let (ours, theirs) = line.connect();
    line.write(client, ours, b"ab");
    let mut urgent = FragVec::from_elem(Frag::from_static(b"!"), 1);
    let (stack, now) = line.stack(client);
    assert_eq!(
        stack.tcp(ours).and_then(|mut tcp| tcp.send(now, &mut urgent, SendFlags::URGENT)),
        Ok(1)
    );
    line.write(client, ours, b"cd");
    assert_eq!(line.read(server, theirs), Ok(b"ab!cd".to_vec()));
    let (stack, now) = line.stack(server);
    assert!(!stack.readiness(theirs).expect("it stands").contains(Readiness::URGENT));
    let read = stack.tcp(theirs).and_then(|mut tcp| tcp.read_urgent(now, RecvFlags::empty()));
    assert_eq!(read, Err(Error::InvalidInput));
}

#[test]
fn two_connections_that_stand_already_can_be_joined() {
    let mut line = Line::usual();
    let (client, server, proxy) = (line.client, line.server, line.proxy);
    let now = line.sim.now();
    let on = "10.0.0.2:7".parse().expect("an address");
    let stack = &mut line.sim.node_mut(proxy).stack;
    let listener = stack.listen(on, 10).expect("a port");
    let [one, two] = [client, server].map(|node| {
        let (stack, now) = line.stack(node);
        stack.connect(now, on, None).expect("a connection")
    });
    line.write_when_open(client, one, b"one");
    line.write_when_open(server, two, b"two");
    let Station { stack, app, .. } = line.sim.node_mut(proxy);
    let mut accept = || stack.listener(listener).expect("it waits").accept().expect("it waits").0;
    let (a, b) = (accept(), accept());
    assert_eq!(app.proxy_mut().join(now, stack, a, a), Err(Error::InvalidInput));
    app.proxy_mut().join(now, stack, a, b).expect("both stand");
    assert_eq!(line.read(client, one), Ok(b"two".to_vec()));
    assert_eq!(line.read(server, two), Ok(b"one".to_vec()));
}

impl Line {
    fn write_when_open(&mut self, node: NodeId, id: TcpId, bytes: &'static [u8]) {
        self.settle();
        self.write(node, id, bytes);
    }
}

/// How long ten megabytes take from the client, to the proxy's address or to the server's.
fn time_of(port: u16, host: u8, faults: &str) -> Duration {
    let mut line = Line::new(ForwardConfig::default(), faults, 48 << 20);
    let (client, server, listener) = (line.client, line.server, line.listener);
    let to = format!("10.0.0.{host}:{port}").parse().expect("an address");
    let (stack, now) = line.stack(client);
    let ours = stack.connect(now, to, None).expect("a connection");
    let (mut sent, mut got, mut theirs) = (0, 0, None);
    const ALL: usize = 10_000_000;
    let content = Frag::from_bytes(vec![7; ALL].into());
    line.until(|sim| {
        let now = sim.now();
        let stack = &mut sim.node_mut(client).stack;
        while sent < ALL {
            let mut frags = FragVec::from_elem(content.slice(sent..ALL.min(sent + 60_000)), 1);
            let Ok(n) = stack.send(now, ours, &mut frags) else {
                break;
            };
            sent += n;
        }
        let stack = &mut sim.node_mut(server).stack;
        theirs = theirs.or_else(|| stack.accept(listener).ok());
        if let Some((id, _)) = theirs {
            got += stack
                .recv(now, id, pagewire_stack::Chunks { max: ALL, into: &mut Vec::new() })
                .unwrap_or(0);
        }
        got == ALL
    });
    line.sim.now().saturating_since(Instant::ZERO)
}

#[test]
fn a_forwarded_stream_is_at_least_eight_tenths_as_fast_as_a_direct_one() {
    for faults in ["rate=100mbit,delay=1ms", "rate=100mbit,delay=20ms", "loss=0.5%,delay=5ms"] {
        let direct = time_of(UPSTREAM, 3, faults);
        let forwarded = time_of(PORT, 2, faults);
        let ratio = direct.as_secs_f64() / forwarded.as_secs_f64();
        eprintln!("{faults}: {direct:?} directly, {forwarded:?} forwarded, {ratio:.2} times");
        assert!(ratio >= 0.8, "{faults}: {ratio:.2} times the rate of the direct one");
    }
}
