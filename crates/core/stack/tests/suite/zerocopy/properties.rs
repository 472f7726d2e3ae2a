//! Zero-copy sends under any mix of calls, losses, resets and reads: every id is reported exactly once
//! or its owner is gone, and no memory is released while a segment of it can still be sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{Frag, FragVec, PageBudget};
use pagewire_stack::{Error, ErrorEntry, SendFlags, SocketOption, TcpId, ZeroCopyCall};
use proptest::prelude::*;

use crate::common::zerocopy::{Live, Noted, pair, tell};
use crate::common::{A, Pair, Verbs};

#[derive(Clone, Debug)]
enum Op {
    /// A call of pieces of these lengths, with a notification.
    SendZc(Vec<usize>),
    /// Calls that continue each other in memory: their number, and the length of each.
    Walk(usize, usize),
    Write(usize),
    Read(usize),
    Notifications(usize),
    Pass(u64),
    /// Loses the next segments with payload, this many.
    Lose(usize),
    /// Loses the next segments, this many, after the device has taken them: the device keeps their memory.
    Keep(usize),
    /// The device releases the memory that it kept.
    LetGo,
    Linger(Option<u64>),
    OptIn(bool),
    Shutdown,
    AbortPeer,
    Abort,
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => prop::collection::vec(1_usize..5000, 1..25).prop_map(Op::SendZc),
        2 => (100_000_usize..900_000).prop_map(|n| Op::SendZc(vec![n])),
        6 => (1_usize..20, 1_usize..5000).prop_map(|(n, len)| Op::Walk(n, len)),
        2 => (1_usize..20_000).prop_map(Op::Write),
        6 => (1_usize..200_000).prop_map(Op::Read),
        4 => (1_usize..5).prop_map(Op::Notifications),
        8 => (1_u64..300).prop_map(Op::Pass),
        2 => (1_usize..4).prop_map(Op::Lose),
        2 => (1_usize..4).prop_map(Op::Keep),
        2 => Just(Op::LetGo),
        1 => prop_oneof![Just(None), Just(Some(0)), Just(Some(2))].prop_map(Op::Linger),
        1 => any::<bool>().prop_map(Op::OptIn),
        1 => Just(Op::Shutdown),
        1 => Just(Op::AbortPeer),
        1 => Just(Op::Abort),
        1 => Just(Op::Close),
    ]
}

/// The stacks, and the expected state of one connection.
struct World {
    p: Pair,
    client: TcpId,
    server: TcpId,
    /// Buffers of calls that somebody refers to, by call.
    live: Live,
    calls: u64,
    /// The buffer of [`Op::Walk`], the position in it, and the call that began it.
    walk: (Frag, usize, u64),
    /// Calls that were not reported yet, by id.
    outstanding: BTreeMap<u32, u64>,
    /// Bytes that were sent and not read yet, in order.
    stream: VecDeque<u8>,
    next_id: u32,
    closed: bool,
    opted_in: bool,
    /// Memory of lost segments that the device keeps.
    kept: Arc<Mutex<Vec<Frag>>>,
}

impl World {
    fn new(linux: bool, looped: bool, budget: &Arc<PageBudget>) -> Self {
        let mut p = pair(linux, looped, budget, 40);
        let (client, server, _) = p.connect("10.0.0.2:80");
        p.a.set_zerocopy(client, true).unwrap();
        Self {
            p,
            client,
            server,
            live: Arc::default(),
            calls: 0,
            walk: (Frag::empty(), 0, 0),
            outstanding: BTreeMap::new(),
            stream: VecDeque::new(),
            next_id: 0,
            closed: false,
            opted_in: true,
            kept: Arc::default(),
        }
    }

    fn send(&mut self, lens: &[usize]) {
        let call_number = self.calls;
        self.calls += 1;
        let mut all = Vec::new();
        let mut frags = FragVec::new();
        self.live.lock().unwrap().insert(call_number, lens.len());
        for &len in lens {
            let bytes: Vec<u8> = (0..len).map(|i| (call_number as usize * 31 + i) as u8).collect();
            all.extend_from_slice(&bytes);
            let noted = Noted(bytes, call_number, Arc::clone(&self.live));
            frags.push(Frag::from_bytes(Bytes::from_owner(noted)));
        }
        self.call(call_number, frags, &all);
    }

    /// Each call continues the last in memory, which is let go when it was walked through.
    fn walk(&mut self, len: usize) {
        const LEN: usize = 100_000;
        if self.walk.1 + len > self.walk.0.len() {
            let call = self.calls;
            self.calls += 1;
            self.live.lock().unwrap().insert(call, 1);
            let bytes = (0..LEN).map(|i| (call as usize * 31 + i) as u8).collect();
            let noted = Noted(bytes, call, Arc::clone(&self.live));
            self.walk = (Frag::from_bytes(Bytes::from_owner(noted)), 0, call);
        }
        let (memory, at, _) = &mut self.walk;
        let part = memory.slice(*at..*at + len);
        let bytes = part.as_slice().unwrap().to_vec();
        *at += len;
        // A number of its own: that the memory was let go, others tell of.
        self.calls += 1;
        self.call(self.calls - 1, FragVec::from_iter([part]), &bytes);
    }

    /// A send call, as an application's threads make it.
    fn call(&mut self, call_number: u64, mut frags: FragVec, all: &[u8]) {
        let mut call = ZeroCopyCall::new();
        let (now, client) = (self.p.now, self.client);
        let mut asked = false;
        let clock = || {
            asked = true;
            now
        };
        let data = (&mut frags, &mut call);
        let tcp = self.p.a.tcp(client);
        let sent = tcp.and_then(|mut tcp| tcp.send(clock, data, SendFlags::empty()));
        assert!(asked || sent.is_err() || frags.is_empty() && call.id().is_some());
        match (sent, call.id()) {
            (Ok(n), Some(id)) => {
                assert!(n > 0 && self.opted_in);
                assert_eq!(id, self.next_id, "ids are consecutive");
                self.next_id += 1;
                self.outstanding.insert(id, call_number);
                self.stream.extend(&all[..n]);
            }
            (Ok(n), None) => {
                assert!(!self.opted_in || n == 0);
                self.stream.extend(&all[..n]);
            }
            (Err(error), id) => {
                assert_eq!(id, None, "a call that fails takes no id");
                assert!(
                    self.closed
                        || matches!(
                            error,
                            Error::WouldBlock
                                | Error::BrokenPipe
                                | Error::ConnectionReset
                                | Error::ConnectionAborted
                                | Error::TooManyNotifications
                                | Error::TooManyPagesHeld
                        ),
                    "{error}"
                );
            }
        }
    }

    fn take_notifications(&mut self, limit: usize) {
        for _ in 0..limit {
            let Some(entry) = self.p.a.poll_error_queue(self.client) else { return };
            let ErrorEntry::ZeroCopy(done) = entry else { panic!("{entry:?}") };
            assert!(!self.closed, "nobody is told after a close");
            tell(done, &mut self.outstanding, &self.live);
        }
    }

    fn read(&mut self, limit: usize) {
        let mut buf = vec![0; limit];
        if let Ok(n) = self.p.b.recv(self.p.now, self.server, &mut buf[..]) {
            for byte in &buf[..n] {
                assert_eq!(Some(*byte), self.stream.pop_front(), "what was sent arrives");
            }
        }
    }

    /// The device is done; what it kept was as it had been handed over all the while.
    fn let_go(&mut self) {
        for frag in self.kept.lock().unwrap().drain(..) {
            if frag.completion().is_some() {
                // `Noted` overwrites what is released.
                assert!(
                    !frag.as_slice().unwrap().iter().all(|&byte| byte == 0xee) || frag.len() < 8
                );
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        let now = self.p.now;
        match op {
            Op::SendZc(lens) => self.send(lens),
            Op::Walk(n, len) => (0..*n).for_each(|_| self.walk(*len)),
            Op::Write(len) => {
                let data: Vec<u8> = (0..*len).map(|i| i as u8).collect();
                let written = self.p.a.send(now, self.client, &data);
                if let Ok(n) = written {
                    self.stream.extend(&data[..n]);
                }
            }
            Op::Read(len) => self.read(*len),
            Op::Notifications(n) => self.take_notifications(*n),
            Op::Pass(ms) => self.p.run(Duration::from_millis(*ms)),
            Op::Lose(n) => {
                self.p.lose(*n);
            }
            Op::Keep(n) => {
                let (mut left, kept) = (*n, Arc::clone(&self.kept));
                self.p.carry = Some(Box::new(move |side, frame| {
                    let lost = side == A && frame.frag_len() > 0 && left > 0;
                    left -= usize::from(lost);
                    if lost {
                        kept.lock().unwrap().extend(frame.frags().iter().cloned());
                    }
                    !lost
                }));
            }
            Op::LetGo => self.let_go(),
            Op::Linger(seconds) => {
                let linger = SocketOption::Linger(seconds.map(Duration::from_secs));
                let _ = self.p.a.tcp(self.client).and_then(|mut tcp| tcp.set_option(now, linger));
            }
            Op::OptIn(on) => {
                if self.p.a.set_zerocopy(self.client, *on).is_ok() {
                    self.opted_in = *on;
                }
            }
            Op::Shutdown => {
                let _ = self.p.a.shutdown(now, self.client, std::net::Shutdown::Write);
            }
            Op::AbortPeer => self.p.b.abort(now, self.server),
            Op::Abort => self.p.a.abort(now, self.client),
            Op::Close => {
                self.p.a.close(now, self.client);
                self.closed = true;
            }
        }
        self.p.flush();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 96 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_accepted_id_is_told_once_or_its_owner_is_gone_and_all_memory_comes_home(
        ops in prop::collection::vec(op(), 1..60),
        linux in any::<bool>(),
        looped in any::<bool>(),
    ) {
        let budget = Arc::new(PageBudget::new(4096));
        let mut w = World::new(linux, looped, &budget);
        ops.iter().for_each(|op| w.apply(op));
        w.walk.0 = Frag::empty();
        // Whatever happened: the peer reads on, and then everything ends.
        w.p.carry = None;
        w.let_go();
        for _ in 0..400 {
            w.p.run(Duration::from_millis(500));
            w.read(1 << 20);
            w.take_notifications(1000);
        }
        prop_assert!(w.outstanding.is_empty() || w.closed, "never told: {:?}", w.outstanding);
        w.p.b.close(w.p.now, w.server);
        w.p.a.close(w.p.now, w.client);
        w.p.run(Duration::from_secs(600));
        prop_assert!(w.live.lock().unwrap().is_empty(), "memory is still held");
        prop_assert_eq!(budget.used(), 0);
        w.p.assert_pages_are_home();
    }
}
