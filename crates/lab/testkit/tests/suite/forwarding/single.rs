//! One connection, or a few, through the proxy: each corner case has a test.

use std::net::Shutdown;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::FaultConfig;
use pagewire_mem::{CopyLedger, Frag, FragVec, Instant};
use pagewire_stack::{
    Chunks, Error, ForwardConfig, Forwarder, ListenerId, Readiness, RecvFlags, Refusal, SendFlags,
    Stack, StackConfig, TcpId,
};
use pagewire_testkit::sim::{NodeId, Sim, SimError, Station, Stream, Verbs};

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

/// One end of a connection: the node, and the node's socket.
pub(crate) type End = (NodeId, TcpId);

/// The data that the ends send each other.
pub(crate) const STREAM: Stream = Stream(7);

/// Takes what has come of the stream behind `at`, and checks it: how much that was, 0 at the end.
fn take(
    stack: &mut Stack,
    now: Instant,
    id: TcpId,
    max: usize,
    at: &mut u64,
) -> Result<usize, Error> {
    let mut chunks = Vec::new();
    let taken = stack.recv(now, id, Chunks { max, into: &mut chunks })?;
    for chunk in chunks {
        chunk.for_each_piece(&mut CopyLedger::new(), |piece: &[u8]| {
            STREAM.check(*at, piece).expect("as sent");
            *at += piece.len() as u64;
        });
    }
    Ok(taken)
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
                config.memory = receive_memory;
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

    fn dial(&mut self, port: u16) -> End {
        let to = format!("10.0.0.2:{port}").parse().expect("an address");
        let node = self.client;
        let (stack, now) = self.stack(node);
        (node, stack.connect(now, to, None).expect("a connection"))
    }

    /// A connection of the client's, and what the server has of it.
    pub(crate) fn connect(&mut self) -> [End; 2] {
        let ours = self.dial(PORT);
        let (server, listener) = (self.server, self.listener);
        let mut theirs = None;
        self.until(|sim| {
            theirs = theirs.or_else(|| sim.node_mut(server).stack.accept(listener).ok());
            theirs.is_some()
        });
        [ours, (server, theirs.expect("accepted").0)]
    }

    fn until(&mut self, mut done: impl FnMut(&mut Sim<Station<Program>>) -> bool) {
        let limit = self.sim.now() + Duration::from_secs(3600);
        let ended = self.sim.run_until(limit, |sim| Ok(done(sim)));
        ended.unwrap_or_else(|error: SimError| panic!("{error}"));
    }

    /// Until nothing more happens within a second.
    pub(crate) fn settle(&mut self) {
        self.drive(Duration::from_secs(1));
    }

    /// Lets time pass.
    pub(crate) fn drive(&mut self, time: Duration) {
        self.drive_until(self.sim.now() + time);
    }

    fn drive_until(&mut self, moment: Instant) {
        self.sim.drive_bounded(moment).expect("no failure");
    }

    pub(crate) fn write(&mut self, (node, id): End, bytes: &'static [u8]) {
        let mut frags = FragVec::from_elem(Frag::from_static(bytes), 1);
        let (stack, now) = self.stack(node);
        assert_eq!(stack.send(now, id, &mut frags), Ok(bytes.len()));
    }

    pub(crate) fn shutdown(&mut self, (node, id): End) {
        let (stack, now) = self.stack(node);
        stack.shutdown(now, id, Shutdown::Write).expect("it stands");
    }

    /// Reads all that the socket has, up to 1,000 bytes.
    pub(crate) fn read(&mut self, (node, id): End) -> Result<Vec<u8>, Error> {
        self.settle();
        let mut buffer = vec![0; 1000];
        let (stack, now) = self.stack(node);
        let n = stack.recv(now, id, &mut buffer[..])?;
        buffer.truncate(n);
        Ok(buffer)
    }

    pub(crate) fn abort(&mut self, (node, id): End) {
        let (stack, now) = self.stack(node);
        stack.abort(now, id);
        stack.close(now, id);
        self.settle();
    }

    /// Sends what there is room for of `len` bytes of the stream, from `at` on: how much that was.
    pub(crate) fn send(&mut self, (node, id): End, at: u64, len: usize) -> u64 {
        let (stack, now) = self.stack(node);
        let piece = Frag::from_bytes(Bytes::from(STREAM.bytes(at, len)));
        match stack.send(now, id, &mut FragVec::from_elem(piece, 1)) {
            Ok(n) => n as u64,
            Err(Error::WouldBlock) => 0,
            Err(error) => panic!("{error}"),
        }
    }

    /// An urgent byte.
    pub(crate) fn send_urgent(&mut self, (node, id): End) {
        let mut byte = FragVec::from_elem(Frag::from_static(b"!"), 1);
        let (stack, now) = self.stack(node);
        let sent = stack.tcp(id).and_then(|mut tcp| tcp.send(now, &mut byte, SendFlags::URGENT));
        assert_eq!(sent, Ok(1));
    }

    /// Takes what has come of the stream behind `at`, and checks it: how much that was, 0 at the end.
    pub(crate) fn take(
        &mut self,
        (node, id): End,
        max: usize,
        at: &mut u64,
    ) -> Result<usize, Error> {
        let (stack, now) = self.stack(node);
        take(stack, now, id, max, at)
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
    let [ours, theirs] = line.connect();
    line.write(ours, b"question");
    line.shutdown(ours);
    assert_eq!(line.read(theirs), Ok(b"question".to_vec()));
    assert_eq!(line.read(theirs), Ok(Vec::new()), "the end");
    // The other way is open for as long as the server likes.
    assert_eq!(line.read(ours), Err(Error::WouldBlock));
    line.write(theirs, b"answer");
    assert_eq!(line.read(ours), Ok(b"answer".to_vec()));
    assert_eq!(line.proxy().len(), 1);
    line.shutdown(theirs);
    assert_eq!(line.read(ours), Ok(Vec::new()), "the end");
    assert!(line.proxy().is_empty());
    assert_eq!(line.proxy().counters().finished, 1);
}

#[test]
fn a_reset_on_either_side_resets_the_other() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
    line.abort(ours);
    assert_eq!(line.read(theirs), Err(Error::ConnectionReset));
    let [ours, theirs] = line.connect();
    line.abort(theirs);
    assert_eq!(line.read(ours), Err(Error::ConnectionReset));
    // Half-closed ones too.
    let [ours, theirs] = line.connect();
    line.shutdown(ours);
    line.settle();
    line.abort(theirs);
    assert_eq!(line.read(ours), Err(Error::ConnectionReset));
    assert!(line.proxy().is_empty());
    assert_eq!(line.proxy().counters().broken, 3);
}

#[test]
fn a_reset_is_passed_on_while_the_other_side_takes_nothing() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
    fill(&mut line, ours);
    line.abort(ours);
    let mut result = Ok(vec![0]);
    for _ in 0..100_000 {
        result = line.read(theirs);
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
        let ours = line.dial(port);
        line.drive_until(second(within));
        assert_eq!(line.read(ours), Err(Error::ConnectionReset), "{port}");
        let refusals = line.refusals();
        assert_eq!(refusals.len(), 1);
        assert_eq!(refusals[0].error, error);
        let (stack, _) = line.stack(ours.0);
        assert_eq!(stack.local_addr(ours.1), Ok(refusals[0].client));
        assert!(line.proxy().is_empty());
    }
}

#[test]
fn an_upstream_has_only_so_long_to_answer() {
    let limit = Duration::from_millis(1500);
    let config = ForwardConfig { connect_timeout: limit, ..ForwardConfig::default() };
    let mut line = Line::new(config, "delay=1ms", 48 << 20);
    let ours = line.dial(NOWHERE);
    line.drive_until(Instant::from_millis(1400));
    assert_eq!(line.proxy().len(), 1);
    assert_eq!(line.read(ours), Err(Error::ConnectionReset));
    assert_eq!(line.refusals()[0].error, Error::TimedOut);
}

#[test]
fn silence_ends_a_connection_and_a_byte_either_way_keeps_it() {
    let limit = Some(Duration::from_secs(30));
    let config = ForwardConfig { idle_timeout: limit, ..ForwardConfig::default() };
    let mut line = Line::new(config, "delay=1ms", 48 << 20);
    let [ours, theirs] = line.connect();
    line.drive_until(second(25));
    line.write(theirs, b".");
    line.drive_until(second(50));
    line.write(ours, b".");
    line.drive_until(second(78));
    assert_eq!(line.proxy().len(), 1);
    line.drive_until(second(82));
    assert_eq!(line.proxy().counters().idle, 1);
    assert_eq!(line.read(ours), Ok(b".".to_vec()));
    assert_eq!(line.read(ours), Err(Error::ConnectionReset));
    assert_eq!(line.read(theirs), Ok(b".".to_vec()));
    assert_eq!(line.read(theirs), Err(Error::ConnectionReset));
}

#[test]
fn a_connection_that_has_ended_is_forgotten_within_a_minute() {
    let mut line = Line::usual();
    for _ in 0..3 {
        let [ours, theirs] = line.connect();
        // Longer than an upstream may take to answer: from then on only silence would end it.
        line.drive(Duration::from_secs(10));
        line.abort(ours);
        line.abort(theirs);
    }
    assert_eq!((line.proxy().len(), line.proxy().counters().broken), (0, 3));
    line.drive(Duration::from_secs(61));
    assert_eq!(line.proxy().poll_timeout(), None);
}

/// Sends as much as there is room for, for as long as there is ever more.
pub(crate) fn fill(line: &mut Line, end: End) -> u64 {
    let (mut sent, mut before) = (0, u64::MAX);
    while sent != before {
        before = sent;
        loop {
            match line.send(end, sent, 60_000) {
                0 => break,
                n => sent += n,
            }
        }
        line.settle();
    }
    sent
}

#[test]
fn a_reader_that_stops_stops_the_sender_and_what_is_held_is_bounded_by_the_windows() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
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
    line.until(|sim| {
        let now = sim.now();
        let _ = take(&mut sim.node_mut(theirs.0).stack, now, theirs.1, 50_000, &mut got);
        got == sent
    });
    line.settle();
    assert_eq!(line.sim.node(line.proxy).stack.receive_memory_used(), 0);
    assert_eq!(line.sim.node(line.proxy).stack.ledger().ours(), 0);
}

#[test]
fn hundreds_that_do_not_read_make_place_for_one_that_does_when_memory_is_short() {
    // A few segments of each are more than the memory for received data, three quarters of all.
    let mut line = Line::new(ForwardConfig::default(), "delay=1ms", 2 << 20);
    for _ in 0..400 {
        let [ours, _] = line.connect();
        line.send(ours, 0, 300_000);
    }
    line.settle();
    let used = line.sim.node(line.proxy).stack.receive_memory_used();
    assert!((1 << 20..=3 << 19).contains(&used), "{used} bytes are held");
    let [ours, theirs] = line.connect();
    let mut got = 0;
    let content = Frag::from_bytes(Bytes::from(STREAM.bytes(0, 1_000_000)));
    let mut frags = FragVec::from_elem(content, 1);
    line.until(|sim| {
        let now = sim.now();
        let _ = sim.node_mut(ours.0).stack.send(now, ours.1, &mut frags);
        let _ = take(&mut sim.node_mut(theirs.0).stack, now, theirs.1, 1 << 20, &mut got);
        got == 1_000_000
    });
    let stalled = line.proxy().counters().stalled;
    assert!(stalled > 0 && stalled < 400, "{stalled} were reset");
    assert!(line.sim.now() < second(120), "{:?}", line.sim.now());
}

#[test]
fn an_urgent_byte_keeps_its_place_and_loses_its_mark() {
    let mut line = Line::usual();
    let [ours, theirs] = line.connect();
    line.write(ours, b"ab");
    line.send_urgent(ours);
    line.write(ours, b"cd");
    assert_eq!(line.read(theirs), Ok(b"ab!cd".to_vec()));
    let (stack, now) = line.stack(theirs.0);
    assert!(!stack.readiness(theirs.1).expect("it stands").contains(Readiness::URGENT));
    let read = stack.tcp(theirs.1).and_then(|mut tcp| tcp.read_urgent(now, RecvFlags::empty()));
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
        (node, stack.connect(now, on, None).expect("a connection"))
    });
    line.write_when_open(one, b"one");
    line.write_when_open(two, b"two");
    let Station { stack, app, .. } = line.sim.node_mut(proxy);
    let mut accept = || stack.listener(listener).expect("it waits").accept().expect("it waits").0;
    let (a, b) = (accept(), accept());
    assert_eq!(app.proxy_mut().join(now, stack, a, a), Err(Error::InvalidInput));
    app.proxy_mut().join(now, stack, a, b).expect("both stand");
    assert_eq!(line.read(one), Ok(b"two".to_vec()));
    assert_eq!(line.read(two), Ok(b"one".to_vec()));
}

impl Line {
    fn write_when_open(&mut self, end: End, bytes: &'static [u8]) {
        self.settle();
        self.write(end, bytes);
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
            got += stack.recv(now, id, Chunks { max: ALL, into: &mut Vec::new() }).unwrap_or(0);
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
