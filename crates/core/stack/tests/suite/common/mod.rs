//! Two stacks joined back to back in virtual time: a wire that carries frames by reference after a
//! fixed delay, and can lose them on demand.
#![allow(dead_code)]

pub(crate) mod forge;
pub(crate) mod gateway;
pub(crate) mod zerocopy;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::Capabilities;
use pagewire_mem::{Frag, FragVec, Instant, PacketBuf, RxChecksum, TxChecksum};
use pagewire_stack::{
    BindOptions, Counters, DatagramPayload, DropReason, Error, Event, ListenerId, Readiness,
    SocketId, Stack, StackConfig, TcpConfig, TcpId, UdpId, UdpTarget,
};
use pagewire_testkit::frames::payload_of;

/// One of the two stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

pub(crate) use Side::{A, B};
pub(crate) use pagewire_testkit::sim::Verbs;

type Filter = Box<dyn FnMut(Side, &PacketBuf) -> bool>;

/// Two stacks and the wire between them.
pub(crate) struct Pair {
    pub(crate) a: Stack,
    pub(crate) b: Stack,
    pub(crate) now: Instant,
    pub(crate) delay: Duration,
    /// Frames under way, with their arrival.
    wire: [VecDeque<(Instant, PacketBuf)>; 2],
    /// Returns whether a frame from that side is carried.
    pub(crate) carry: Option<Filter>,
    /// Events so far, by side.
    pub(crate) events: Vec<(Side, Event)>,
    frames: VecDeque<PacketBuf>,
    pub(crate) carried: usize,
    /// Whether the wire copies, like one between machines: a receiver holds no memory of the sender's.
    pub(crate) copies: bool,
    /// The other shards of each host, which have no sockets of the tests.
    others: [Vec<Stack>; 2],
    /// The state of the draws of the shard that a frame comes to.
    draws: u32,
}

/// Stations of A and B.
pub(crate) const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

pub(crate) fn capabilities(mac: u8) -> Capabilities {
    let mac = [2, 0, 0, 0, 0, mac];
    Capabilities { by_reference: true, ..Capabilities::offloading(mac, 1500) }
}

/// A network card without offloads: every frame is cut and summed in software.
pub(crate) fn plain(mac: u8) -> Capabilities {
    Capabilities {
        max_super_frame: 1500,
        rx_checksum: false,
        tx_checksum: false,
        tso_v4: false,
        tso_v6: false,
        uso: false,
        ..capabilities(mac)
    }
}

pub(crate) fn config(capabilities: Capabilities, host: u8) -> StackConfig {
    let addresses = [format!("10.0.0.{host}/24"), format!("fd00::{host}/64")];
    let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
    let mut config = StackConfig::new(capabilities, addresses, [host; 32]);
    config.memory = 64 << 20;
    config.announce = false;
    config
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(config(capabilities(1), 1), config(capabilities(2), 2))
    }

    /// Two stacks that know each other's link addresses, so that no burst waits for them.
    pub(crate) fn met() -> Self {
        let mut p = Self::new();
        p.meet();
        p
    }

    pub(crate) fn with_tcp(tcp: TcpConfig) -> Self {
        Self::changed(|a, b| (a.tcp, b.tcp) = (tcp.clone(), tcp))
    }

    /// Two stacks with other settings.
    pub(crate) fn changed(change: impl FnOnce(&mut StackConfig, &mut StackConfig)) -> Self {
        let (mut a, mut b) = (config(capabilities(1), 1), config(capabilities(2), 2));
        change(&mut a, &mut b);
        Self::with(a, b)
    }

    pub(crate) fn with(a: StackConfig, b: StackConfig) -> Self {
        let now = Instant::from_millis(1000);
        let [(a, of_a), (b, of_b)] = [a, b].map(|config| shards(now, &config));
        Self {
            a,
            b,
            others: [of_a, of_b],
            draws: 0x9e37_79b9,
            now,
            delay: Duration::from_micros(10),
            wire: Default::default(),
            carry: None,
            events: Vec::new(),
            frames: VecDeque::new(),
            carried: 0,
            copies: false,
        }
    }

    pub(crate) fn stack(&mut self, side: Side) -> &mut Stack {
        match side {
            A => &mut self.a,
            B => &mut self.b,
        }
    }

    /// Sends what both have to send, and notes events. Nothing arrives.
    pub(crate) fn flush(&mut self) {
        for side in [A, B] {
            loop {
                let (now, delay) = (self.now, self.delay);
                let mut frames = std::mem::take(&mut self.frames);
                let mut more = self.stack(side).poll_transmit(now, &mut frames);
                for other in &mut self.others[side as usize] {
                    more |= other.poll_transmit(now, &mut frames);
                }
                for mut frame in frames.drain(..) {
                    if self.carry.as_mut().is_some_and(|carry| !carry(side, &frame)) {
                        continue;
                    }
                    // The frame did not leave the machine.
                    if frame.tx_checksum != TxChecksum::Done {
                        frame.tx_checksum = TxChecksum::Done;
                        frame.rx_checksum = RxChecksum::Valid;
                    }
                    if self.copies {
                        copy(&mut frame);
                    }
                    self.carried += 1;
                    self.wire[side as usize].push_back((now + delay, frame));
                }
                self.frames = frames;
                if !more && !self.pass_strays(side) {
                    break;
                }
            }
            while let Some(event) = self.stack(side).poll_event() {
                self.events.push((side, event));
            }
            self.stack(side).end_turn();
        }
    }

    /// Moves on to the next thing that happens before `limit`; `false`: nothing does.
    pub(crate) fn step(&mut self, limit: Instant) -> bool {
        self.flush();
        let arrivals = self.wire.iter().filter_map(|w| w.front().map(|(at, _)| *at));
        let stacks = [&self.a, &self.b].into_iter().chain(self.others.iter().flatten());
        let next = arrivals.chain(stacks.filter_map(Stack::poll_timeout)).min();
        let Some(next) = next.filter(|&at| at <= limit) else { return false };
        self.now = self.now.max(next);
        let now = self.now;
        for (from, to) in [(A, B), (B, A)] {
            while let Some((_, frame)) = self.wire[from as usize].pop_front_if(|(at, _)| *at <= now)
            {
                self.deliver(to, frame);
            }
            for shard in 0..crate::SHARDS {
                let stack = self.shard(to, shard);
                if stack.poll_timeout().is_some_and(|at| at <= now) {
                    stack.handle_timeout(now);
                }
            }
            self.pass_strays(to);
        }
        true
    }

    /// A count of a host, of all its shards together.
    pub(crate) fn count(&self, side: Side, of: impl Fn(&Counters) -> u64) -> u64 {
        let main = if side == A { &self.a } else { &self.b };
        self.others[side as usize].iter().chain([main]).map(|stack| of(stack.counters())).sum()
    }

    /// Packets that a host dropped for this reason.
    pub(crate) fn drops(&self, side: Side, reason: DropReason) -> u64 {
        self.count(side, |counters| counters.drops(reason))
    }

    /// Hands a frame to any shard of a host.
    fn deliver(&mut self, to: Side, frame: PacketBuf) {
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 17;
        self.draws ^= self.draws << 5;
        let shards = self.others[to as usize].len() + 1;
        let (now, shard) = (self.now, self.draws as usize % shards);
        self.shard(to, shard).handle_frame(now, frame);
        self.pass_strays(to);
    }

    /// Passes strays on until none is left. Returns whether there was one.
    fn pass_strays(&mut self, side: Side) -> bool {
        let (mut rounds, now, mut strays) = (0, self.now, VecDeque::new());
        loop {
            let mut any = false;
            for from in 0..crate::SHARDS {
                while let Some(home) = self.shard(side, from).poll_strays(&mut strays) {
                    assert_ne!(home, from);
                    let home = self.shard(side, home);
                    for mut stray in strays.drain(..) {
                        home.handle_stray(now, &mut stray);
                    }
                    any = true;
                }
            }
            if !any {
                return rounds > 0;
            }
            rounds += 1;
            assert!(rounds < 100, "strays find no home");
        }
    }

    /// A shard of a host. The last is the one with the tests' sockets.
    fn shard(&mut self, side: Side, shard: usize) -> &mut Stack {
        match self.others[side as usize].get_mut(shard) {
            // A second look, because a match keeps the borrow.
            Some(_) => &mut self.others[side as usize][shard],
            None => self.stack(side),
        }
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, for_: Duration) {
        let limit = self.now + for_;
        let mut steps = 0;
        while self.step(limit) {
            steps += 1;
            assert!(steps < 10_000_000, "livelock at {:?}", self.now);
        }
        self.now = limit;
        self.flush();
    }

    /// Lets time pass until `done`, at most a virtual minute.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = self.now + Duration::from_secs(60);
        loop {
            self.flush();
            if done(self) {
                return;
            }
            assert!(self.step(limit), "{what} did not happen");
        }
    }

    /// Has the stacks learn each other's link addresses, so that no burst waits for them.
    pub(crate) fn meet(&mut self) {
        let nobody = "10.0.0.2:1".parse().unwrap();
        let id = self.a.connect(self.now, nobody, None).unwrap();
        self.run(Duration::from_millis(1));
        self.a.close(self.now, id);
        self.flush();
    }

    /// The number of events so far in which a socket gained `gained`.
    pub(crate) fn reported(
        &self,
        side: Side,
        socket: impl Into<SocketId>,
        gained: Readiness,
    ) -> usize {
        let socket = socket.into();
        let of_it = |(s, event): &&(Side, Event)| {
            *s == side && event.socket == socket && event.gained.contains(gained)
        };
        self.events.iter().filter(of_it).count()
    }

    /// Collects the result of `look` for each frame from now on. All frames are carried.
    pub(crate) fn watch<T: 'static>(
        &mut self,
        mut look: impl FnMut(Side, &PacketBuf) -> Option<T> + 'static,
    ) -> Rc<RefCell<Vec<T>>> {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let notes = Rc::clone(&seen);
        self.carry = Some(Box::new(move |side, frame| {
            notes.borrow_mut().extend(look(side, frame));
            true
        }));
        seen
    }

    /// The next `n` segments with payload from A are lost.
    pub(crate) fn lose(&mut self, n: usize) {
        let mut left = n;
        self.carry = Some(Box::new(move |side, frame| {
            let lost = side == A && frame.frag_len() > 0 && left > 0;
            left -= usize::from(lost);
            !lost
        }));
    }

    /// Checks that neither stack holds a page, except the run that the writer has begun.
    pub(crate) fn assert_pages_are_home(&self) {
        for stack in [&self.a, &self.b] {
            let audit = stack.pool_audit();
            let writers = pagewire_mem::limits::WRITE_RUN_PAGES;
            assert!(audit.out <= writers && audit.is_conserved(), "pages leak: {audit:?}");
        }
    }

    /// Frees the memory of the wire and of the events.
    pub(crate) fn shrink(&mut self) {
        self.events = Vec::new();
        self.frames = VecDeque::new();
        self.wire = Default::default();
    }

    /// A listener at B and a connection to it from A: (A's end, B's end, listener).
    pub(crate) fn connect(&mut self, to: &str) -> (TcpId, TcpId, ListenerId) {
        self.connect_by(to, None)
    }

    /// As [`connect`](Self::connect), from an address of A's.
    pub(crate) fn connect_from(&mut self, from: &str, to: &str) -> (TcpId, TcpId, ListenerId) {
        self.connect_by(to, Some(addr(from)))
    }

    fn connect_by(&mut self, to: &str, from: Option<SocketAddr>) -> (TcpId, TcpId, ListenerId) {
        let listener = self.b.listen(addr(to), 16).unwrap();
        let client = self.a.connect(self.now, addr(to), from).unwrap();
        let mut server = None;
        self.until("the handshake", |p| {
            if server.is_none() {
                server = p.b.accept(listener).ok();
            }
            server.is_some()
        });
        (client, server.unwrap().0, listener)
    }

    /// A datagram socket at A, and one at port 53 of B, both bound to this wildcard address.
    pub(crate) fn datagram_sockets(&mut self, any: &str) -> (UdpId, UdpId) {
        let server = self.b.bind_udp(addr(&format!("{any}:53")), BindOptions::default()).unwrap();
        let client = self.a.bind_udp(addr(&format!("{any}:0")), BindOptions::default()).unwrap();
        (client, server)
    }

    /// Sends a datagram from A, and lets it arrive.
    pub(crate) fn send_and_deliver(
        &mut self,
        from: UdpId,
        data: impl DatagramPayload,
        to: impl Into<UdpTarget>,
    ) {
        self.a.send_to(self.now, from, data, to).unwrap();
        self.run(Duration::from_millis(1));
    }

    /// Writes all of `data` on one side and reads it on the other, by copy.
    pub(crate) fn transfer(&mut self, from: (Side, TcpId), to: (Side, TcpId), data: &[u8]) {
        let (mut sent, mut got) = (0, Vec::with_capacity(data.len()));
        let mut buf = vec![0u8; 65_536];
        self.until("the transfer", |p| {
            let now = p.now;
            while sent < data.len()
                && let Some(n) = ready(p.stack(from.0).send(now, from.1, &data[sent..]))
            {
                sent += n;
            }
            while let Some(n) = ready(p.stack(to.0).recv(now, to.1, &mut buf[..])) {
                assert!(n > 0, "end of stream after {} bytes", got.len());
                got.extend_from_slice(&buf[..n]);
            }
            got.len() == data.len()
        });
        assert!(got == data, "the stream is not what was sent");
    }

    /// As [`transfer`](Self::transfer), but by reference, in chunks of `chunk` bytes.
    pub(crate) fn transfer_by_reference(
        &mut self,
        from: (Side, TcpId),
        to: (Side, TcpId),
        data: Bytes,
        chunk: usize,
    ) {
        let mut left: VecDeque<Frag> =
            data.chunks(chunk).map(|c| Frag::from_bytes(data.slice_ref(c))).collect();
        let (mut pending, mut frags, mut got) = (FragVec::new(), Vec::new(), 0);
        self.until("the transfer", |p| {
            let now = p.now;
            loop {
                if pending.is_empty() {
                    let Some(next) = left.pop_front() else { break };
                    pending.push(next);
                }
                if ready(p.stack(from.0).send(now, from.1, &mut pending)).is_none() {
                    break;
                }
            }
            while let Some(n) = ready(p.stack(to.0).recv(
                now,
                to.1,
                pagewire_stack::Chunks { max: 1 << 20, into: &mut frags },
            )) {
                assert!(n > 0, "end of stream after {got} bytes");
                for frag in frags.drain(..) {
                    let bytes = frag.as_slice().unwrap();
                    assert!(bytes == &data[got..got + bytes.len()], "wrong bytes at {got}");
                    got += bytes.len();
                }
            }
            got == data.len()
        });
    }
}

/// Whether a test is left out where hosts have several shards, for this reason.
pub(crate) fn is_left_out(why: &str) -> bool {
    if crate::SHARDS > 1 {
        eprintln!("of one stack only: {why}");
    }
    crate::SHARDS > 1
}

/// The stack of the tests' sockets, and the other shards of its host.
fn shards(now: Instant, config: &StackConfig) -> (Stack, Vec<Stack>) {
    let mut places = pagewire_stack::Shard::all(crate::SHARDS, &config.secret).unwrap();
    let alone = (crate::SHARDS == 1).then(|| places.pop()).flatten();
    let mut stacks = places.into_iter().map(|shard| {
        let mut config = config.clone();
        config.shard = Some(shard);
        Stack::new(now, config).unwrap()
    });
    let others = stacks.by_ref().take(crate::SHARDS - 1).collect();
    let last = match alone {
        Some(_) => Stack::new(now, config.clone()).unwrap(),
        None => stacks.next().unwrap(),
    };
    (last, others)
}

/// Replaces the payload by a private copy.
fn copy(frame: &mut PacketBuf) {
    for frag in frame.take_frags() {
        frame.push_frag(Frag::from_bytes(payload_of(&[frag]).into())).unwrap();
    }
}

/// An address and port.
pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The answer, unless it is "not now".
pub(crate) fn ready<T>(result: Result<T, Error>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(Error::WouldBlock) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_u32;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}
