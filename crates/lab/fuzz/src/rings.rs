//! An application that shares the rings' memory with the stack, and writes any value into it.
//!
//! The input is a list of four bytes: a verb and three arguments. Between valid verbs (submissions of
//! every kind, buffers returned, memory registered and unregistered) any word of any ring is
//! overwritten: indices, bells, entries. Nothing may panic, spin or grow without limit; another
//! application's flow on this stack arrives intact; and nothing is left when the application is gone.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pagewire_device::{FaultConfig, Rule, Steering};
use pagewire_mem::{Frag, GROUP_PAGES, Instant, PAGE_SIZE, PacketBuf, PoolAudit, Region};
use pagewire_ring::layout::{BELL_WORD, COPY_GROUP, ENTRY_WORD, HEAD_WORD, NOTICE, TAIL_WORD};
use pagewire_ring::{
    Counters, Ends, Engine, EngineConfig, Entry, Fill, Op, QueueConfig, Registered, Submission,
};
use pagewire_stack::{BindOptions, ListenerId, RecvFlags, SendFlags, Stack, TcpId, UdpId};
use pagewire_testkit::sim::{Node, NodeId, Sim, Stream};

/// Verbs in one input.
const MAX_VERBS: usize = 300;
/// Bytes of memory of a group.
const GROUP: usize = GROUP_PAGES * PAGE_SIZE;
/// Bytes of the flow that is another application's.
const QUIET: u64 = 200_000;
/// The ports of the application on rings, and of the other.
const PORT: u16 = 7000;
const QUIET_PORT: u16 = 7001;
/// The client's datagram socket.
const TALKER_PORT: u16 = 7002;
/// Longer than anything without an owner lasts.
const WIND_UP: Duration = Duration::from_secs(1200);

/// How far an input got.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reach {
    pub counters: Counters,
    /// Handles that the application got.
    pub opened: usize,
    /// Datagrams that came back from it.
    pub answered: usize,
    /// Registrations that were taken back and came home.
    pub unregistered: usize,
}

/// Runs one input; see the head of this file.
pub fn ring_words(data: &[u8]) -> Reach {
    let mut world = World::new();
    for &[verb, a, b, c] in data.as_chunks().0.iter().take(MAX_VERBS) {
        world.verb(verb, [a, b, c]);
        world.turn();
    }
    world.end()
}

struct Host {
    stack: Stack,
    steering: Steering,
}

impl Node for Host {
    fn handle_frame(&mut self, now: Instant, mut frame: PacketBuf) {
        self.steering.drain();
        self.steering.place(&mut frame, self.stack.ledger_mut());
        self.stack.handle_frame(now, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.stack.handle_timeout(now);
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        self.stack.poll_transmit(now, out)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.stack.poll_timeout()
    }

    fn end_turn(&mut self) {
        self.stack.end_turn();
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        Some(self.stack.pool_audit())
    }
}

/// The flow that must not be affected.
struct Quiet {
    listener: ListenerId,
    sender: TcpId,
    receiver: Option<TcpId>,
    sent: u64,
    received: u64,
}

struct World {
    sim: Sim<Host>,
    server: NodeId,
    client: NodeId,
    engine: Engine,
    ends: Ends,
    registered: Vec<Registered>,
    /// Handles that were reported; the first is the listener's.
    handles: Vec<u64>,
    held: VecDeque<Entry>,
    /// Sockets of the client that send to the application.
    peers: Vec<TcpId>,
    /// The client's datagram socket, and those that it was sent.
    talker: UdpId,
    answered: usize,
    quiet: Quiet,
    opened: usize,
    unregistered: usize,
}

fn server(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn memory(bytes: usize) -> Region {
    Region::memfd_shared("fuzz", bytes).expect("memory")
}

/// Polls the events of a stack whose sockets are called without waiting for them. While a socket waits for
/// pages, a stack whose events nobody polls has a timeout every 10 ms.
fn drain_events(stack: &mut Stack) {
    while stack.poll_event().is_some() {}
}

impl World {
    fn new() -> Self {
        let mut sim = Sim::new(1);
        let add = |sim: &mut Sim<Host>, cidr: &str| {
            let mut config = sim.stack_config(cidr.parse().expect("an address"));
            config.memory = 2 << 20;
            config.tcp.recv_buffer = 64 << 10;
            config.tcp.recv_buffer_initial = 16 << 10;
            config.tcp.send_buffer = 64 << 10;
            config.tcp.send_buffer_initial = 16 << 10;
            let stack = Stack::new(sim.now(), config).expect("a stack");
            sim.add(
                Host { stack, steering: Steering::new(4) },
                FaultConfig::delayed(Duration::ZERO),
            )
            .expect("a node")
        };
        let (at, client) = (add(&mut sim, "10.0.0.1/24"), add(&mut sim, "10.0.0.2/24"));
        let copy = QueueConfig { fill_entries: 16, ..QueueConfig::new(memory(GROUP)) };
        let config = EngineConfig {
            submissions: 16,
            completions: 16,
            entries: 32,
            region_bytes: 16 * GROUP,
            ..EngineConfig::new(copy)
        };
        let (mut engine, ends) = Engine::new(config).expect("an engine");
        let now = sim.now();
        let stack = &mut sim.node_mut(at).stack;
        let listener = stack.listen(server(PORT), 16).expect("a listener");
        let listener = engine.adopt(stack, listener).expect("a handle");
        let quiet = stack.listen(server(QUIET_PORT), 1).expect("a listener");
        let sender = sim.node_mut(client).stack.connect(now, server(QUIET_PORT), None);
        let sender = sender.expect("a connection");
        let talker = SocketAddr::from(([10, 0, 0, 2], TALKER_PORT));
        let talker =
            sim.node_mut(client).stack.bind_udp(talker, BindOptions::default()).expect("a socket");
        let quiet = Quiet { listener: quiet, sender, receiver: None, sent: 0, received: 0 };
        Self {
            sim,
            server: at,
            client,
            engine,
            ends,
            registered: Vec::new(),
            handles: vec![listener],
            held: VecDeque::new(),
            peers: Vec::new(),
            talker,
            answered: 0,
            quiet,
            opened: 0,
            unregistered: 0,
        }
    }

    fn verb(&mut self, verb: u8, [a, b, c]: [u8; 3]) {
        let now = self.sim.now();
        match verb % 16 {
            0..=2 => self.submit(a, b, c),
            3 => self.give_back(a, b, c),
            4 | 5 => self.scribble(a, b, c),
            6 => self.pass(Duration::from_millis(u64::from(a))),
            7 => self.pass(Duration::from_secs(u64::from(a))),
            8 => {
                let stack = &mut self.sim.node_mut(self.client).stack;
                if self.peers.len() < 16
                    && let Ok(peer) = stack.connect(now, server(PORT), None)
                {
                    self.peers.push(peer);
                }
            }
            // To a datagram socket of the application's, if it has one.
            9 | 10 if a & 0x80 != 0 => {
                let bytes = vec![b; usize::from(b) * usize::from(c)];
                let to = Some(server(PORT + u16::from(a & 3)));
                let stack = &mut self.sim.node_mut(self.client).stack;
                for _ in 0..=(a >> 2) % 16 {
                    _ = stack.udp(self.talker).and_then(|mut udp| udp.send(now, &bytes, to));
                }
            }
            9 | 10 => {
                let Some(peer) = self.peer(a) else { return };
                let bytes = vec![b; 1 + usize::from(b) * usize::from(c)];
                let _ = self
                    .sim
                    .node_mut(self.client)
                    .stack
                    .tcp(peer)
                    .and_then(|mut tcp| tcp.send(now, &bytes, SendFlags::empty()));
            }
            11 => {
                let Some(peer) = self.peer(a) else { return };
                let stack = &mut self.sim.node_mut(self.client).stack;
                match b % 3 {
                    0 => {
                        _ = stack
                            .tcp(peer)
                            .and_then(|mut tcp| tcp.shutdown(now, std::net::Shutdown::Write))
                    }
                    1 => stack.abort(now, peer),
                    _ => {
                        _ = stack
                            .tcp(peer)
                            .and_then(|mut tcp| tcp.recv(now, &mut [0; 4096], RecvFlags::empty()))
                    }
                }
            }
            12 => self.register(a, b, c),
            13 => self.unregister(a, b),
            // The application reads all or some of its completions.
            _ => self.look(usize::from(a)),
        }
    }

    fn peer(&self, which: u8) -> Option<TcpId> {
        self.peers.get(usize::from(which) % self.peers.len().max(1)).copied()
    }

    fn submit(&mut self, a: u8, b: u8, c: u8) {
        let handle = match self.handles.get(usize::from(b >> 3) % self.handles.len().max(1)) {
            Some(handle) => *handle,
            None => return,
        };
        let (name, group) = (u64::from(b & 7), u16::from(c & 7));
        let talker = SocketAddr::from(([10, 0, 0, 2], TALKER_PORT - u16::from(c >> 7)));
        let submission = match a % 16 {
            0 => Submission::new(Op::Accept, handle, name),
            1 => Submission::new(Op::Accept, handle, name).multishot(),
            2 | 3 => Submission::receive(handle, group, 0, name).multishot(),
            4 => Submission::receive(handle, group, u64::from(c) << 6, name),
            5 => Submission::send(handle, group, u32::from(c) << 8, u32::from(c) << 4, name),
            6 => Submission::new(Op::Shutdown, handle, name),
            7 if b & 4 != 0 => Submission::new(Op::Close, handle, name),
            8 => Submission::cancel(if c & 8 == 0 { handle } else { 0 }, group.into(), name),
            9 => {
                let port = if c & 8 == 0 { PORT } else { u16::from(c) };
                let to = SocketAddr::from(([10, 0, 0, 1 + (c & 1)], port));
                Submission::connect(to, name)
            }
            10 => Submission { op: c, reserved: u32::from(a >> 7), ..Default::default() },
            12 => Submission::bind(server(PORT + u16::from(c & 3)), name),
            13 => Submission::send(handle, group, u32::from(c) << 8, u32::from(c) << 4, name)
                .to(talker),
            14 => match Submission::new(Op::Connect, handle, name) {
                forget if c & 8 != 0 => forget,
                connect => connect.to(talker),
            },
            15 => {
                let mut odd = Submission::bind(server(PORT), name);
                odd.address.family = u16::from(c);
                odd.reserved_word = u64::from(a >> 7);
                odd
            }
            _ => Submission::new(Op::Nop, handle, name),
        };
        let _ = self.ends.submissions.push(submission);
        self.ends.submissions.publish();
    }

    /// Returns buffers that it holds, or others.
    fn give_back(&mut self, a: u8, b: u8, c: u8) {
        let count = usize::from(b).max(1);
        for n in 0..count {
            let fill = match a % 4 {
                0 | 1 => match self.held.pop_front() {
                    Some(entry) => entry.fill(),
                    None => break,
                },
                2 => Fill { buffer: u32::from(c) << (b % 24), group: u16::from(a >> 2) },
                _ => match self.held.get(n) {
                    // A filled entry stays in the list and is filled again.
                    Some(entry) => entry.fill(),
                    None => break,
                },
            };
            let pushed = match self.registered.iter_mut().find(|r| r.group == fill.group) {
                Some(registered) => registered.fill.push(fill),
                None => self.ends.copy.fill.push(fill),
            };
            if pushed.is_err() {
                break;
            }
        }
        self.ends.copy.fill.publish();
        self.registered.iter_mut().for_each(|registered| _ = registered.fill.publish());
    }

    /// Overwrites a word of a ring.
    fn scribble(&mut self, a: u8, b: u8, c: u8) {
        let words = match a % 6 {
            0 => self.ends.submissions.words(),
            1 => self.ends.completions.words(),
            2 => self.ends.entries.words(),
            3 => self.ends.copy.fill.words(),
            _ => match self.registered.get(usize::from(a >> 3) % self.registered.len().max(1)) {
                Some(registered) => registered.fill.words(),
                None => self.ends.copy.fill.words(),
            },
        };
        let at = match b % 8 {
            0 | 1 => TAIL_WORD,
            2 | 3 => HEAD_WORD,
            4 => BELL_WORD,
            5 => 0,
            _ => ENTRY_WORD + usize::from(b >> 3),
        };
        let Some(word) = words.get(at % words.len()) else { return };
        let old = word.load(Ordering::Relaxed);
        let new = match c % 8 {
            0 => old.wrapping_add(u64::from(c >> 3)),
            1 => old.wrapping_sub(u64::from(c >> 3)),
            2 => old ^ 1 << (c >> 2),
            3 => old ^ 1 << (31 + (c >> 3)),
            4 => u64::from(c >> 3),
            5 => u64::MAX - u64::from(c >> 3),
            6 => old.wrapping_add(16),
            _ => u64::from(c) << 32 | u64::from(b),
        };
        word.store(new, Ordering::Relaxed);
    }

    fn register(&mut self, a: u8, b: u8, c: u8) {
        if self.registered.len() >= 8 {
            return;
        }
        let registered = match a % 4 {
            0 => {
                let len = (1 + usize::from(b % 16)) * PAGE_SIZE;
                _ = self.engine.register_send(memory(len));
                return;
            }
            1 => {
                let whole = Frag::from_bytes(vec![b; 1 + usize::from(b) * 100].into());
                self.engine.register_lent(whole, 1 << (c % 8))
            }
            _ => {
                let config = QueueConfig {
                    fill_entries: u32::from(c) + 1,
                    threshold: usize::from(b),
                    notify_every: u32::from(c & 31),
                    ..QueueConfig::new(memory(GROUP))
                };
                let queue = 1 + usize::from(a >> 2) % 3;
                let made = self.engine.register_queue(queue, config);
                made.and_then(|(registered, memory)| {
                    let steering = &mut self.sim.node_mut(self.server).steering;
                    if let Err(why) = steering.bind(queue, memory) {
                        self.engine.unregister(registered.group)?;
                        return Err(why.into());
                    }
                    _ = steering.steer(Rule::tcp_port(PORT), queue);
                    _ = steering.steer(Rule::udp_port(PORT + 1), queue);
                    Ok(registered)
                })
            }
        };
        if let Ok(mut registered) = registered {
            let group = registered.group;
            for buffer in 0..registered.buffers {
                if registered.fill.push(Fill { buffer, group }).is_err() {
                    break;
                }
            }
            registered.fill.publish();
            self.registered.push(registered);
        }
    }

    fn unregister(&mut self, a: u8, b: u8) {
        if b & 1 != 0 {
            _ = self.engine.unregister_send(u16::from(a % 4));
            return;
        }
        let at = usize::from(a) % self.registered.len().max(1);
        let Some(registered) = self.registered.get(at) else { return };
        let queue = self.engine.queue_of(registered.group);
        if self.engine.unregister(registered.group).is_err() {
            return;
        }
        if let Some(queue) = queue {
            drop(self.sim.node_mut(self.server).steering.unbind(queue));
        }
    }

    /// Takes completions and their buffers, and checks the bytes.
    fn look(&mut self, most: usize) {
        for _ in 0..=most {
            let Some(done) = self.ends.completions.pop() else { break };
            if done.user_data == NOTICE {
                let gone = done.has(pagewire_ring::Completion::UNREGISTERED);
                let known = self.registered.iter().position(|r| u64::from(r.group) == done.handle);
                if let Some(at) = known.filter(|_| gone) {
                    self.registered.remove(at);
                    self.unregistered += 1;
                }
                continue;
            }
            if done.result == 0 && done.handle != 0 && !self.handles.contains(&done.handle) {
                self.handles.push(done.handle);
                self.opened += 1;
            }
            for _ in 0..done.entries.min(64) {
                let Some(entry) = self.ends.entries.pop() else { break };
                let mut bytes = vec![0; entry.len.min(1 << 16) as usize];
                let view = match self.registered.iter().find(|r| r.group == entry.group) {
                    Some(registered) => registered.view.as_ref(),
                    None if entry.group == COPY_GROUP => self.ends.copy.view.as_ref(),
                    None => None,
                };
                view.map(|view| view.copy_out(entry.offset as usize, &mut bytes));
                self.held.push_back(entry);
            }
        }
        self.ends.completions.release();
        self.ends.entries.release();
    }

    /// A turn of the stack's side.
    fn turn(&mut self) {
        let now = self.sim.now();
        self.quiet(now);
        for _ in 0..4 {
            let host = self.sim.node_mut(self.server);
            host.steering.drain();
            while let Some(event) = host.stack.poll_event() {
                self.engine.handle_event(event);
            }
            if !self.engine.turn(now, &mut host.stack) {
                break;
            }
            self.engine.publish();
        }
        if self.engine.arm() {
            self.engine.disarm();
        }
    }

    fn quiet(&mut self, now: Instant) {
        let client = &mut self.sim.node_mut(self.client).stack;
        drain_events(client);
        while client
            .udp(self.talker)
            .and_then(|mut udp| udp.recv(pagewire_stack::Datagram, RecvFlags::empty()))
            .is_ok()
        {
            self.answered += 1;
        }
        let Quiet { listener, sender, receiver, sent, received } = &mut self.quiet;
        let client = &mut self.sim.node_mut(self.client).stack;
        let left = QUIET - *sent;
        if left > 0 {
            let bytes = Stream(3).bytes(*sent, left.min(3000) as usize);
            *sent += client
                .tcp(*sender)
                .and_then(|mut tcp| tcp.send(now, &bytes, SendFlags::empty()))
                .unwrap_or(0) as u64;
        }
        let stack = &mut self.sim.node_mut(self.server).stack;
        *receiver = receiver.or_else(|| {
            stack
                .listener(*listener)
                .and_then(|mut listener| listener.accept())
                .ok()
                .map(|(id, _)| id)
        });
        let Some(receiver) = *receiver else { return };
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = stack
            .tcp(receiver)
            .and_then(|mut tcp| tcp.recv(now, &mut buffer[..], RecvFlags::empty()))
        {
            Stream(3).check(*received, &buffer[..n]).expect("another flow's bytes");
            *received += n as u64;
        }
    }

    fn pass(&mut self, time: Duration) {
        let until = self.sim.now() + time;
        // A network of two stations needs fewer steps for a minute of any traffic.
        for _ in 0..20_000 {
            match self.sim.poll_timeout().expect("a network") {
                Some(at) if at <= until => _ = self.sim.step().expect("a step"),
                // Nothing is due: the time passes all the same.
                _ => return self.sim.drive_bounded(until).expect("a quiet time"),
            }
            self.turn();
        }
    }

    fn end(mut self) -> Reach {
        let mut patience = 0;
        while self.quiet.received < QUIET {
            self.turn();
            self.pass(Duration::from_millis(50));
            patience += 1;
            assert!(patience < 4000, "another flow got {} of {QUIET} bytes", self.quiet.received);
        }
        let counters = self.engine.counters();
        let now = self.sim.now();
        let host = self.sim.node_mut(self.server);
        self.engine.close_all(now, &mut host.stack);
        for queue in 0..host.steering.queues() {
            drop(host.steering.unbind(queue));
        }
        host.stack.close(now, self.quiet.listener);
        self.quiet.receiver.into_iter().for_each(|id| host.stack.close(now, id));
        let (opened, answered, unregistered) = (self.opened, self.answered, self.unregistered);
        let Self { mut sim, server, client, peers, talker, quiet, .. } = self;
        let Self { engine, ends, registered, .. } = self;
        drop((engine, ends, registered));
        let stack = &mut sim.node_mut(client).stack;
        peers.into_iter().chain([quiet.sender]).for_each(|id| stack.close(now, id));
        stack.close(now, talker);
        for second in 1..=WIND_UP.as_secs() {
            for node in [server, client] {
                drain_events(&mut sim.node_mut(node).stack);
            }
            sim.drive_bounded(now + Duration::from_secs(second)).expect("an end");
        }
        for node in [server, client] {
            let stack = &mut sim.node_mut(node).stack;
            stack.end_turn();
            assert_eq!(stack.socket_count(), 0, "sockets that nobody has");
            let audit = stack.pool_audit();
            assert!(audit.is_conserved(), "{audit:?}");
        }
        Reach { counters, opened, answered, unregistered }
    }
}
