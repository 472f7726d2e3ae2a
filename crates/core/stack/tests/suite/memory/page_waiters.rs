//! Writers that wait for the stack's pages: every writer whose peer reads makes progress, and none is woken in
//! vain.

use std::collections::HashSet;
use std::time::Duration;

use pagewire_mem::PAGE_SIZE;
use pagewire_stack::limits::PAGE_WAIT_CHECK;
use pagewire_stack::{Readiness, SocketId, TcpId};

use crate::common::{A, B, Pair, Verbs, capabilities, config, pattern};

const PAGES: usize = 64;

/// A host with few pages, and connections to peers that do not read.
struct Crowd {
    p: Pair,
    writers: Vec<TcpId>,
    ready: HashSet<TcpId>,
    /// Events that said "writable".
    woken: usize,
    written: usize,
}

impl Crowd {
    fn new(writers: u16, pages: usize) -> Self {
        let (mut a, mut b) = (config(capabilities(1), 1), config(capabilities(2), 2));
        a.memory = pages * PAGE_SIZE;
        b.memory = 1 << 30;
        let mut p = Pair::with(a, b);
        p.copies = true;
        p.meet();
        let to = |n: u16| format!("10.0.0.2:{}", 1000 + n);
        let writers: Vec<_> = (0..writers).map(|n| p.connect(&to(n)).0).collect();
        let ready = writers.iter().copied().collect();
        Self { p, writers, ready, woken: 0, written: 0 }
    }

    /// Lets all that were woken so write as much as they can.
    fn write(&mut self, data: &[u8]) {
        let p = &mut self.p;
        for (side, event) in p.events.drain(..) {
            if side == A
                && let Some(id) = self.writers.iter().find(|id| **id == event.socket)
                && event.readiness.contains(Readiness::WRITABLE)
            {
                self.woken += 1;
                self.ready.insert(*id);
            }
        }
        for id in self.ready.drain() {
            while let Ok(n) = p.a.send(p.now, id, data) {
                self.written += n;
            }
        }
    }
}

#[test]
fn a_connection_whose_peer_reads_gets_on_beside_500_whose_peers_do_not() {
    let mut crowd = Crowd::new(500, 256 * PAGES);
    let data = pattern(100_000);
    let round = |crowd: &mut Crowd| {
        crowd.write(&data);
        crowd.p.run(Duration::from_millis(10));
    };
    let mut quiet = 0;
    // Promises of windows end, and those that probes renew become rare.
    while quiet < 1000 {
        let written = crowd.written;
        round(&mut crowd);
        quiet = if crowd.written == written { quiet + 1 } else { 0 };
    }
    assert!(crowd.p.a.pool_audit().free > 0, "data for those who do not read has all pages");
    let woken = crowd.woken;
    (0..1000).for_each(|_| round(&mut crowd));
    // Their own timers and their peers' segments wake them, but not each free page.
    assert!(crowd.woken - woken < 500, "{} were woken for nothing", crowd.woken - woken);
    let (near, far, _) = crowd.p.connect("10.0.0.2:80");
    crowd.p.transfer((A, near), (B, far), &pattern(8 << 20));
}

/// A stack whose pages are all under way to peers that are gone, and writers that wait for pages.
fn short_of_pages() -> (Crowd, Vec<TcpId>) {
    let mut crowd = Crowd::new(40, PAGES);
    crowd.p.carry = Some(Box::new(|_, _| false));
    let (all, mut waiting) = (std::mem::take(&mut crowd.writers), Vec::new());
    for id in all {
        let before = crowd.written;
        crowd.ready = HashSet::from([id]);
        crowd.write(&pattern(100_000));
        let got_some = crowd.written > before;
        if got_some { &mut crowd.writers } else { &mut waiting }.push(id);
    }
    crowd.p.flush();
    assert_eq!(crowd.p.a.pool_audit().free, 0);
    crowd.p.events.clear();
    // The last may wait for more.
    crowd.free_some();
    (crowd, waiting)
}

impl Crowd {
    /// Frees what a connection to a peer that is gone holds.
    fn free_some(&mut self) {
        while self.p.a.pool_audit().free == 0 {
            let id = self.writers.pop().unwrap();
            self.p.a.abort(self.p.now, id);
            self.p.a.close(self.p.now, id);
            self.p.a.end_turn();
        }
    }

    /// Who was woken to write.
    fn woken(&mut self) -> Vec<SocketId> {
        self.p.flush();
        let woken = self
            .p
            .events
            .drain(..)
            .filter(|(side, event)| *side == A && event.gained.contains(Readiness::WRITABLE));
        woken.map(|(_, event)| event.socket).collect()
    }
}

#[test]
fn a_write_that_is_cut_to_its_share_is_followed_by_an_event() {
    let mut crowd = Crowd::new(0, PAGES);
    let (near, ..) = crowd.p.connect("10.0.0.2:80");
    crowd.p.flush();
    crowd.p.events.clear();
    let data = pattern(PAGES * PAGE_SIZE);
    let sent = crowd.p.a.send(crowd.p.now, near, &data).unwrap();
    assert!(sent < PAGES * PAGE_SIZE / 2, "{sent}");
    crowd.p.run(Duration::from_millis(10));
    assert!(crowd.woken().contains(&SocketId::from(near)));
}

#[test]
fn those_who_waited_longest_are_woken_and_no_more_than_there_are_pages_for() {
    let (mut crowd, waiting) = short_of_pages();
    assert!(waiting.len() > 20);
    for id in waiting {
        crowd.free_some();
        assert_eq!(crowd.woken(), [SocketId::from(id)]);
        assert!(crowd.woken().is_empty(), "the pages are spoken for");
        let sent = crowd.p.a.send(crowd.p.now, id, &[7; 100_000]);
        assert!(sent.is_ok());
        crowd.writers.insert(0, id);
    }
}

#[test]
fn a_writer_that_goes_away_when_its_turn_has_come_passes_it_on() {
    let (mut crowd, waiting) = short_of_pages();
    for id in waiting {
        assert_eq!(crowd.woken(), [SocketId::from(id)]);
        crowd.p.a.close(crowd.p.now, id);
    }
}

#[test]
fn a_writer_that_does_not_use_its_turn_passes_it_on() {
    let (mut crowd, waiting) = short_of_pages();
    let all: HashSet<_> = waiting.iter().map(|id| SocketId::from(*id)).collect();
    for id in waiting {
        let woken: Vec<_> = crowd.woken().into_iter().filter(|woken| all.contains(woken)).collect();
        assert_eq!(woken, [SocketId::from(id)]);
        crowd.p.run(PAGE_WAIT_CHECK);
    }
}
