//! A network with a host whose application lives on rings, and hosts that send to it.

pub(crate) use std::collections::{HashMap, VecDeque};
pub(crate) use std::net::SocketAddr;
pub(crate) use std::time::Duration;

pub(crate) use pagewire_device::{BindError, FaultConfig, FaultRng, QueueMemory, Rule, Steering};
pub(crate) use pagewire_mem::{
    Access, CopyReason, Frag, FragVec, Instant, PAGE_SIZE, PacketBuf, PagePool, PoolAudit, Region,
};
pub(crate) use pagewire_ring::layout::{Address, COPY_GROUP, HEAD_WORD, NOTICE, TAIL_WORD, Words};
pub(crate) use pagewire_ring::*;
pub(crate) use pagewire_stack::{BindOptions, Error, ListenerId, Readiness, Stack, TcpId, UdpId};
pub(crate) use pagewire_testkit::given;
pub(crate) use pagewire_testkit::sim::{Node, NodeId, Sim, SimError, Stream, Verbs};

pub(crate) const GROUP: usize = 64 * PAGE_SIZE;
pub(crate) const PORT: u16 = 7000;
pub(crate) const OTHER_PORT: u16 = 7001;

/// Any node: a stack, with queues in front of it where an application has rings.
pub(crate) struct Host {
    pub(crate) stack: Stack,
    pub(crate) steering: Steering,
    /// When it wants a turn although nothing happens.
    pub(crate) wake_at: Option<Instant>,
}

impl Node for Host {
    fn handle_frame(&mut self, now: Instant, mut frame: PacketBuf) {
        self.steering.drain();
        self.steering.place(&mut frame, self.stack.ledger_mut());
        self.stack.handle_frame(now, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
        }
        if self.stack.poll_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        self.stack.poll_transmit(now, out)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.stack.poll_timeout(), self.wake_at].into_iter().flatten().min()
    }

    fn end_turn(&mut self) {
        self.stack.end_turn();
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        Some(self.stack.pool_audit())
    }
}

/// A connection as the application sees it.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) received: u64,
    pub(crate) reference: u64,
    pub(crate) copied: u64,
    /// Results of receives that are over.
    pub(crate) over: Vec<Completion>,
}

/// A datagram as the application sees it.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) completion: Completion,
    pub(crate) from: SocketAddr,
    pub(crate) bytes: Vec<u8>,
    /// Bytes of it that were copied.
    pub(crate) copied: usize,
}

/// The application on rings: checks every byte against the stream of its flow.
pub(crate) struct App {
    pub(crate) ends: Ends,
    pub(crate) groups: HashMap<u16, Registered>,
    pub(crate) flows: HashMap<u64, Flow>,
    pub(crate) datagrams: Vec<Datagram>,
    /// Delivered, not given back.
    pub(crate) held: VecDeque<Entry>,
    /// Buffers that found no room in their fill ring.
    unfilled: VecDeque<(u16, Fill)>,
    /// Whether buffers are given back as soon as they were checked.
    pub(crate) returns: bool,
    pub(crate) notices: Vec<Completion>,
    pub(crate) accepted: Vec<u64>,
    /// Completions of all other operations.
    pub(crate) others: Vec<Completion>,
    pub(crate) mismatch: Option<String>,
}

impl App {
    /// The user data and the result of the newest of `others`.
    pub(crate) fn last_result(&mut self) -> Option<(u64, i32)> {
        self.others.pop().map(|done| (done.user_data, done.result))
    }

    fn new(mut ends: Ends) -> Self {
        let unused = Registered {
            group: COPY_GROUP,
            fill: std::mem::replace(&mut ends.copy.fill, detached()),
            view: ends.copy.view.clone(),
            buffers: ends.copy.buffers,
        };
        Self {
            ends,
            groups: HashMap::from([(COPY_GROUP, unused)]),
            flows: HashMap::new(),
            datagrams: Vec::new(),
            held: VecDeque::new(),
            unfilled: VecDeque::new(),
            returns: true,
            notices: Vec::new(),
            accepted: Vec::new(),
            others: Vec::new(),
            mismatch: None,
        }
    }

    pub(crate) fn submit(&mut self, submission: Submission) {
        self.ends.submissions.push(submission).expect("room for a submission");
        self.ends.submissions.publish();
    }

    /// Gives `n` of the buffers it holds back, the oldest first.
    pub(crate) fn give_back(&mut self, n: usize) {
        for _ in 0..n {
            let Some(entry) = self.held.pop_front() else { break };
            self.fill(entry.group, entry.fill());
        }
    }

    pub(crate) fn give_back_all(&mut self) {
        self.give_back(self.held.len());
    }

    /// Puts anything on a fill ring; where that is full, later.
    pub(crate) fn fill(&mut self, group: u16, fill: Fill) {
        self.unfilled.push_back((group, fill));
        self.fill_later();
    }

    fn fill_later(&mut self) -> bool {
        let before = self.unfilled.len();
        let groups = &mut self.groups;
        self.unfilled.retain(|(id, fill)| {
            let group = groups.get_mut(id).expect("a group");
            group.fill.push(*fill).is_err()
        });
        for group in self.groups.values_mut() {
            group.fill.publish();
        }
        self.unfilled.len() < before
    }

    /// Gives a new region's buffers.
    pub(crate) fn post(&mut self, group: u16, buffers: std::ops::Range<u32>) {
        for buffer in buffers {
            self.fill(group, Fill { buffer, group });
        }
    }

    /// Reads everything that was completed; returns whether there was anything.
    fn look(&mut self) -> bool {
        let mut any = self.fill_later();
        while let Some(completion) = self.ends.completions.pop() {
            any = true;
            self.complete(completion);
        }
        self.ends.completions.release();
        self.ends.entries.release();
        any
    }

    fn complete(&mut self, completion: Completion) {
        if completion.user_data == NOTICE {
            self.notices.push(completion);
            return;
        }
        if completion.user_data == ACCEPT {
            if completion.result == 0 {
                self.accepted.push(completion.handle);
                self.flows.insert(completion.handle, Flow::default());
            } else {
                self.others.push(completion);
            }
            return;
        }
        if completion.has(Completion::DATAGRAM) {
            return self.complete_datagram(completion);
        }
        let Some(mut flow) = (completion.user_data == RECEIVE)
            .then(|| self.flows.remove(&completion.handle))
            .flatten()
        else {
            self.others.push(completion);
            return;
        };
        let mut bytes = 0;
        for _ in 0..completion.entries {
            let entry = self.ends.entries.pop().expect("as many entries as the completion says");
            self.check(&mut flow, entry);
            bytes += entry.len as usize;
            self.held.push_back(entry);
        }
        assert_eq!(bytes, completion.result.max(0) as usize, "{completion:?}");
        if !completion.has(Completion::MORE) {
            flow.over.push(completion);
        }
        self.flows.insert(completion.handle, flow);
        if self.returns {
            self.give_back_all();
        }
    }

    fn complete_datagram(&mut self, completion: Completion) {
        let (mut bytes, mut copied) = (Vec::new(), 0);
        for _ in 0..completion.entries {
            let entry = self.ends.entries.pop().expect("as many entries as the completion says");
            let view = self.groups.get(&entry.group).and_then(|group| group.view.as_ref());
            let mut part = vec![0; entry.len as usize];
            let n = view.map_or(0, |view| view.copy_out(entry.offset as usize, &mut part));
            assert_eq!(n, part.len(), "{entry:?} is in its group");
            copied += if entry.group == COPY_GROUP { n } else { 0 };
            bytes.extend(part);
            self.held.push_back(entry);
        }
        assert_eq!(bytes.len(), completion.result as usize, "{completion:?}");
        assert_eq!(completion.has(Completion::COPIED), copied > 0, "{completion:?}");
        assert_eq!(completion.has(Completion::TRUNCATED), bytes.len() < completion.length as usize);
        let from = completion.address.socket().expect("a sender");
        self.datagrams.push(Datagram { completion, from, bytes, copied });
        if self.returns {
            self.give_back_all();
        }
    }

    /// Checks that every byte of an entry is the one that the peer sent.
    fn check(&mut self, flow: &mut Flow, entry: Entry) {
        let view = self.groups.get(&entry.group).and_then(|group| group.view.as_ref());
        let mut bytes = vec![0; entry.len as usize];
        let n = view.map_or(0, |view| view.copy_out(entry.offset as usize, &mut bytes));
        if n < bytes.len() {
            self.mismatch.get_or_insert(format!("{entry:?} is not in its group"));
            return;
        }
        let stream = Stream(STREAM);
        if let Err(wrong) = stream.check(flow.received, &bytes) {
            self.mismatch.get_or_insert(format!("{entry:?} of {flow:?}: {wrong:?}"));
        }
        flow.received += bytes.len() as u64;
        if entry.group == COPY_GROUP {
            flow.copied += bytes.len() as u64;
        } else {
            flow.reference += bytes.len() as u64;
        }
    }
}

/// The stream that all senders send. A misplaced byte shows, because the stream never repeats.
pub(crate) const STREAM: u64 = 42;

pub(crate) const ACCEPT: u64 = 1;
pub(crate) const RECEIVE: u64 = 2;
const ANSWER: u64 = 4;

/// A fill ring that leads nowhere.
fn detached() -> pagewire_ring::Producer<Fill> {
    let (_, ends) = Engine::new(EngineConfig::new(config(1))).expect("an engine");
    ends.copy.fill
}

/// Memory of `groups` times 64 pages that the application may read.
pub(crate) fn config(groups: usize) -> QueueConfig {
    QueueConfig::new(Region::memfd_shared("test", groups * GROUP).expect("memory"))
}

/// The connection of a sender.
pub(crate) struct Sender {
    pub(crate) node: NodeId,
    pub(crate) socket: TcpId,
    pub(crate) sent: u64,
    pub(crate) total: u64,
    /// Sizes of single writes.
    pub(crate) piece: usize,
    pub(crate) closed: bool,
}

/// A server whose application lives on rings, a client, and the network between them.
pub(crate) struct World {
    pub(crate) sim: Sim<Host>,
    pub(crate) server: NodeId,
    pub(crate) client: NodeId,
    pub(crate) engine: Engine,
    pub(crate) app: App,
    pub(crate) senders: Vec<Sender>,
    pub(crate) listener: u64,
}

/// Super-frames stay whole, unless the text says otherwise.
pub(crate) fn faults(text: &str) -> FaultConfig {
    FaultConfig { cut: text.contains("cut=yes"), ..text.parse().expect("faults") }
}

impl World {
    /// A server with a listener on [`PORT`] that accepts for ever, and a client's host.
    pub(crate) fn new(seed: u64, faults_text: &str) -> Self {
        Self::with(seed, faults_text, EngineConfig::new(config(4)))
    }

    /// A server that is 1 ms away, with memory of this many groups of 64 pages for queue 1.
    pub(crate) fn registered(groups: usize) -> (Self, u16) {
        let mut world = Self::new(1, "delay=1ms");
        let group = world.register(groups);
        (world, group)
    }

    pub(crate) fn with(seed: u64, faults_text: &str, config: EngineConfig) -> Self {
        let mut sim = Sim::new(seed);
        let add = |sim: &mut Sim<Host>, cidr: &str, faults| {
            let config = sim.stack_config(cidr.parse().expect("an address"));
            let stack = Stack::new(sim.now(), config).expect("a stack");
            let host = Host { stack, steering: Steering::new(4), wake_at: None };
            sim.add(host, faults).expect("a node")
        };
        let server = add(&mut sim, "10.0.0.1/24", faults(faults_text));
        let client = add(&mut sim, "10.0.0.2/24", FaultConfig::delayed(Duration::ZERO));
        let (mut engine, ends) = Engine::new(config).expect("an engine");
        let stack = &mut sim.node_mut(server).stack;
        let listener = stack.listen(at(PORT), 128).expect("a listener");
        let listener = engine.adopt(stack, listener).expect("a handle");
        let mut app = App::new(ends);
        app.submit(Submission::new(pagewire_ring::Op::Accept, listener, ACCEPT).multishot());
        Self { sim, server, client, engine, app, senders: Vec::new(), listener }
    }

    pub(crate) fn server(&mut self) -> &mut Stack {
        &mut self.sim.node_mut(self.server).stack
    }

    pub(crate) fn client(&mut self) -> &mut Stack {
        &mut self.sim.node_mut(self.client).stack
    }

    /// Sends over a connection of the client, to `listener` of the server, until more than `bytes`
    /// bytes have come: a flow that is no ring's.
    pub(crate) fn ordinary_flow(&mut self, listener: ListenerId, bytes: u64) {
        let now = self.sim.now();
        let socket = self.client().connect(now, at(OTHER_PORT), None).expect("a connection");
        let (mut accepted, mut got, mut buffer) = (None, 0, vec![7; 100_000]);
        self.run(|world| {
            let now = world.sim.now();
            let _ = world.client().send(now, socket, &buffer);
            let stack = world.server();
            accepted = accepted.or_else(|| stack.accept(listener).ok());
            if let Some((socket, _)) = accepted {
                got += stack.recv(now, socket, &mut buffer[..]).unwrap_or(0) as u64;
            }
            got > bytes
        });
    }

    /// Registers memory of `groups` groups of 64 pages for queue 1, gives all of it, and steers
    /// [`PORT`] there.
    pub(crate) fn register(&mut self, groups: usize) -> u16 {
        let group = self.register_unposted(config(groups));
        let buffers = self.app.groups[&group].buffers;
        self.app.post(group, 0..buffers);
        group
    }

    pub(crate) fn register_unposted(&mut self, config: QueueConfig) -> u16 {
        let (registered, memory) = self.engine.register_queue(1, config).expect("registered");
        let group = registered.group;
        let steering = &mut self.sim.node_mut(self.server).steering;
        steering.bind(1, memory).expect("a free queue");
        steering.steer(Rule::tcp_port(PORT), 1).expect("a rule");
        self.app.groups.insert(group, registered);
        group
    }

    /// Registers memory to send from, which begins with such bytes.
    pub(crate) fn register_send(&mut self, bytes: &[u8]) -> u16 {
        let memory = Region::memfd_shared("send", 2 * GROUP).expect("memory");
        memory.copy_shared_in(0, bytes).expect("room");
        self.engine.register_send(memory).expect("registered")
    }

    pub(crate) fn unregister(&mut self, group: u16) {
        drop(self.sim.node_mut(self.server).steering.unbind(1).expect("bound"));
        self.engine.unregister(group).expect("registered");
    }

    /// Opens a datagram socket on [`PORT`], on the rings alone; its handle.
    pub(crate) fn bind(&mut self) -> u64 {
        let done = self.answer(Submission::bind(at(PORT), 0));
        assert_eq!(done.result, 0, "{done:?}");
        assert_eq!(done.address.socket(), Some(at(PORT)));
        done.handle
    }

    /// [`bind`](Self::bind), with datagrams to [`PORT`] steered to queue 1 and received into `group` again
    /// and again.
    pub(crate) fn receive_datagrams(&mut self, group: u16) -> u64 {
        let handle = self.bind();
        let steering = &mut self.sim.node_mut(self.server).steering;
        steering.steer(Rule::udp_port(PORT), 1).expect("a rule");
        self.app.submit(Submission::receive(handle, group, 0, RECEIVE).multishot());
        self.turn();
        handle
    }

    /// A datagram socket of the client.
    pub(crate) fn datagram_sender(&mut self) -> UdpId {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        self.client().bind_udp(any, BindOptions::default()).expect("a socket")
    }

    /// Sends a datagram to [`PORT`].
    pub(crate) fn send_datagram(&mut self, from: UdpId, bytes: &[u8]) {
        let now = self.sim.now();
        let stack = self.client();
        stack.udp(from).expect("sent").send(now, bytes, Some(at(PORT))).expect("sent");
    }

    /// Runs until `n` datagrams have come.
    pub(crate) fn run_to_datagrams(&mut self, n: usize) {
        self.run(|world| world.app.datagrams.len() >= n);
        assert_eq!(self.app.datagrams.len(), n);
    }

    /// The answer to a submission, at once.
    pub(crate) fn answer(&mut self, submission: Submission) -> Completion {
        let user_data = ANSWER;
        self.app.submit(Submission { user_data, ..submission });
        self.turn();
        let at = self.app.others.iter().position(|done| done.user_data == user_data);
        self.app.others.remove(at.expect("an answer"))
    }

    /// Opens a connection that sends `total` bytes in pieces of `piece`, then closes.
    pub(crate) fn send(&mut self, total: u64, piece: usize) {
        let now = self.sim.now();
        let stack = self.client();
        let socket = stack.connect(now, at(PORT), None).expect("a connection");
        let node = self.client;
        self.senders.push(Sender { node, socket, sent: 0, total, piece, closed: false });
    }

    /// [`send`](Self::send) over the first connection; its handle on the server.
    pub(crate) fn send_accepted(&mut self, total: u64, piece: usize) -> u64 {
        self.send(total, piece);
        self.first_accepted()
    }

    fn first_accepted(&mut self) -> u64 {
        self.run(|world| world.app.accepted.len() == 1);
        self.app.accepted[0]
    }

    /// A connection of the client's that sends what it is [offered](Self::offer): its socket, and its handle on
    /// the server.
    pub(crate) fn connect(&mut self) -> (TcpId, u64) {
        let now = self.sim.now();
        let socket = self.client().connect(now, at(PORT), None).expect("a connection");
        (socket, self.first_accepted())
    }

    /// Registers `bytes` bytes of the stream as lent memory; returns its group, and the memory.
    pub(crate) fn lend(&mut self, bytes: usize, fill_entries: u32) -> (u16, Frag) {
        let whole = Frag::from_static(Stream(STREAM).bytes(0, bytes).leak());
        let registered =
            self.engine.register_lent(whole.clone(), fill_entries).expect("registered");
        let group = registered.group;
        self.app.groups.insert(group, registered);
        (group, whole)
    }

    /// A turn of the engine in which the application reads nothing. Returns whether the engine did
    /// something.
    pub(crate) fn engine_turn(&mut self) -> bool {
        let now = self.sim.now();
        let host = self.sim.node_mut(self.server);
        while let Some(event) = host.stack.poll_event() {
            self.engine.handle_event(event);
        }
        let worked = self.engine.turn(now, &mut host.stack);
        self.engine.publish();
        worked
    }

    /// Lets time pass in which the application reads nothing; `beside` is called at each moment.
    pub(crate) fn pass_unread(&mut self, time: Duration, mut beside: impl FnMut(&mut Self)) {
        let until = self.sim.now() + time;
        while self.sim.now() < until {
            beside(self);
            self.engine_turn();
            if self.sim.poll_timeout().expect("a network").is_none_or(|at| at > until) {
                break;
            }
            self.sim.step().expect("no failure");
        }
    }

    /// A turn of the senders, the engine and the application.
    pub(crate) fn turn(&mut self) {
        let now = self.sim.now();
        for sender in &mut self.senders {
            let stack = &mut self.sim.node_mut(sender.node).stack;
            pump(stack, now, sender);
        }
        for _ in 0..100 {
            self.sim.node_mut(self.server).steering.drain();
            let worked = self.engine_turn();
            if !self.app.look() && !worked {
                break;
            }
        }
        assert_eq!(self.app.mismatch, None);
    }

    /// Has the client send from the front of `frags` what there is room for now.
    pub(crate) fn offer(&mut self, socket: TcpId, frags: &mut FragVec) {
        let now = self.sim.now();
        match self.client().send(now, socket, frags) {
            Ok(_) | Err(Error::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Lets everything happen until `done`, at most an hour of virtual time.
    pub(crate) fn run(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.sim.now() + Duration::from_secs(3600);
        loop {
            self.turn();
            if done(self) {
                return;
            }
            match self.sim.poll_timeout().expect("a network") {
                None => panic!("nothing is due at {:?}: {:?}", self.sim.now(), self.engine),
                Some(at) if at > limit => panic!("not done by {limit:?}: {:?}", self.engine),
                Some(_) => {
                    self.sim.step().unwrap_or_else(|error: SimError| panic!("{error}"));
                }
            }
        }
    }

    /// Lets this much time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.sim.now() + time;
        self.sim.node_mut(self.server).wake_at = Some(until);
        self.run(|world| world.sim.now() >= until);
    }

    /// Receives on every connection that was accepted, again and again.
    pub(crate) fn receive_on_all(&mut self, group: u16, flows: usize) {
        self.run(|world| world.app.accepted.len() == flows);
        for handle in self.app.accepted.clone() {
            self.app.submit(Submission::receive(handle, group, 0, RECEIVE).multishot());
        }
    }

    /// Every sender's bytes have arrived, and the ends of all streams.
    pub(crate) fn run_to_the_end(&mut self) {
        self.run(|world| {
            world.app.flows.len() == world.senders.len()
                && world.app.flows.values().all(|flow| !flow.over.is_empty())
        });
    }

    pub(crate) fn flow(&self) -> &Flow {
        self.app.flows.values().next().expect("a flow")
    }

    /// Ends a registration and waits until everything is home: nothing of the region was lost.
    pub(crate) fn bring_home(&mut self, group: u16) {
        self.app.returns = true;
        self.app.give_back_all();
        self.unregister(group);
        let gone = |world: &mut Self| {
            let mut notices = world.app.notices.iter();
            notices.any(|n| n.has(Completion::UNREGISTERED) && n.handle == u64::from(group))
        };
        self.run(gone);
        // Buffers of the copy group are back too, or on their way in the ring.
        let copies = self.app.groups.get_mut(&COPY_GROUP).expect("the copy group");
        assert_eq!(copies.fill.waiting(), self.engine.delivered(COPY_GROUP));
    }
}

fn pump(stack: &mut Stack, now: Instant, sender: &mut Sender) {
    let writable = stack.readiness(sender.socket).expect("a socket");
    if sender.closed || !writable.contains(Readiness::WRITABLE) && sender.sent < sender.total {
        return;
    }
    let mut bytes = vec![0; sender.piece];
    while sender.sent < sender.total {
        let left = (sender.total - sender.sent).min(sender.piece as u64) as usize;
        Stream(STREAM).fill(sender.sent, &mut bytes[..left]);
        match stack.send(now, sender.socket, &bytes[..left]) {
            Ok(n) => sender.sent += n as u64,
            Err(Error::WouldBlock) => return,
            Err(error) => panic!("sender: {error}"),
        }
    }
    if !sender.closed {
        sender.closed = true;
        stack.shutdown(now, sender.socket, std::net::Shutdown::Write).expect("open");
    }
}

pub(crate) fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}
