//! Datagrams by reference under any mix of calls, losses and reads: every id is reported exactly once or
//! its owner is gone, and no memory is released while it can still be sent or read.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pagewire_mem::{Frag, PageBudget};
use pagewire_stack::{Error, ErrorEntry, UdpId, UdpTarget};
use proptest::prelude::*;

use crate::common::zerocopy::{Live, Noted, pair, tell};
use crate::common::{Pair, Verbs, zerocopy};

#[derive(Clone, Debug)]
enum Op {
    /// A call with pieces of these lengths, the length of a datagram, and whether more data follows.
    SendZc(Vec<usize>, u16, bool),
    Write(usize, bool),
    Push,
    Read(usize),
    Notifications(usize),
    Pass(u64),
    /// Loses the next frames, this many.
    Lose(usize),
    OptIn(bool),
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    let segment = prop_oneof![3 => Just(0), 1 => 1_u16..1500];
    let lens = prop::collection::vec(0_usize..4000, 0..25);
    prop_oneof![
        8 => (lens, segment, prop::bool::weighted(0.2))
            .prop_map(|(lens, segment, more)| Op::SendZc(lens, segment, more)),
        2 => (0_usize..3000, prop::bool::weighted(0.2)).prop_map(|(n, more)| Op::Write(n, more)),
        1 => Just(Op::Push),
        5 => (1_usize..5).prop_map(Op::Read),
        4 => (1_usize..5).prop_map(Op::Notifications),
        6 => (1_u64..700).prop_map(Op::Pass),
        2 => (1_usize..20).prop_map(Op::Lose),
        1 => any::<bool>().prop_map(Op::OptIn),
        1 => Just(Op::Close),
    ]
}

struct World {
    p: Pair,
    client: UdpId,
    server: UdpId,
    live: Live,
    calls: u64,
    /// Calls that were not reported yet, by id.
    outstanding: BTreeMap<u32, u64>,
    next_id: u32,
    closed: bool,
    opted_in: bool,
}

impl World {
    fn new(linux: bool, looped: bool, budget: &Arc<PageBudget>) -> Self {
        let mut p = pair(linux, looped, budget, 20);
        let (client, server) = p.datagram_sockets("0.0.0.0");
        p.a.set_zerocopy(client, true).unwrap();
        Self {
            p,
            client,
            server,
            live: Arc::default(),
            calls: 0,
            outstanding: BTreeMap::new(),
            next_id: 0,
            closed: false,
            opted_in: true,
        }
    }

    fn send(&mut self, lens: &[usize], segment: u16, more: bool) {
        let call = self.calls;
        self.calls += 1;
        let lens: Vec<usize> = lens.iter().copied().filter(|&len| len > 0).collect();
        if !lens.is_empty() {
            self.live.lock().unwrap().insert(call, lens.len());
        }
        // No byte of a live buffer has the value of released buffers.
        let noted =
            |&len: &usize| Noted(vec![call as u8 & 0x7f; len], call, Arc::clone(&self.live));
        let frags = lens.iter().map(|len| Frag::from_bytes(Bytes::from_owner(noted(len))));
        let target =
            UdpTarget { remote: Some(to()), segment: Some(segment), more, ..Default::default() };
        match zerocopy::send_to(&mut self.p.a, self.p.now, self.client, frags, target) {
            Ok((n, Some(id))) => {
                assert!(self.opted_in && n > 0 && n == lens.iter().sum::<usize>());
                assert_eq!(id, self.next_id, "ids are consecutive");
                self.next_id += 1;
                self.outstanding.insert(id, call);
            }
            Ok((n, None)) => assert!(!self.opted_in || n == 0),
            Err(Error::MessageTooLong | Error::InvalidInput) => {}
            Err(Error::TooManyNotifications | Error::TooManyPagesHeld) => assert!(self.opted_in),
            Err(error) => assert!(self.closed, "{error}"),
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
        for _ in 0..limit {
            let Ok((frags, _)) = self.p.b.recv_from(self.server, pagewire_stack::Datagram) else {
                return;
            };
            for frag in frags {
                assert!(
                    frag.as_slice().unwrap().iter().all(|&byte| byte < 0x80),
                    "let go, and sent"
                );
            }
        }
    }

    fn apply(&mut self, op: &Op) {
        let (now, id) = (self.p.now, self.client);
        match op {
            Op::SendZc(lens, segment, more) => self.send(lens, *segment, *more),
            Op::Write(len, more) => {
                let target = UdpTarget { remote: Some(to()), more: *more, ..Default::default() };
                let _ = self.p.a.send_to(now, id, &vec![1; *len], target);
            }
            Op::Push => drop(self.p.a.udp(id).and_then(|mut udp| udp.push(now))),
            Op::Read(n) => self.read(*n),
            Op::Notifications(n) => self.take_notifications(*n),
            Op::Pass(ms) => self.p.run(Duration::from_millis(*ms)),
            Op::Lose(n) => {
                self.p.lose(*n);
            }
            Op::OptIn(on) => {
                if self.p.a.set_zerocopy(id, *on).is_ok() {
                    self.opted_in = *on;
                }
            }
            Op::Close => {
                self.p.a.close(now, id);
                self.closed = true;
            }
        }
        self.p.flush();
    }
}

fn to() -> SocketAddr {
    "10.0.0.2:53".parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 96 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_id_of_a_datagram_is_told_once_or_its_owner_is_gone_and_all_memory_comes_home(
        ops in prop::collection::vec(op(), 1..60),
        linux in any::<bool>(),
        looped in any::<bool>(),
    ) {
        let budget = Arc::new(PageBudget::new(256));
        let mut w = World::new(linux, looped, &budget);
        ops.iter().for_each(|op| w.apply(op));
        w.p.carry = None;
        // Whatever happened: what waits is sent, and read.
        let _ = w.p.a.udp(w.client).and_then(|mut udp| udp.push(w.p.now));
        for _ in 0..100 {
            w.p.run(Duration::from_millis(500));
            w.read(1000);
            w.take_notifications(1000);
        }
        prop_assert!(w.outstanding.is_empty() || w.closed, "never told: {:?}", w.outstanding);
        w.p.a.close(w.p.now, w.client);
        w.p.b.close(w.p.now, w.server);
        w.p.run(Duration::from_secs(60));
        prop_assert!(w.live.lock().unwrap().is_empty(), "memory is still held");
        prop_assert_eq!(budget.used(), 0);
        w.p.assert_pages_are_home();
    }
}
