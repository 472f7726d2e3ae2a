//! Reading, mapping, taking by reference and losing in any order: the bytes are the stream's, and
//! every page comes home.

use std::time::Duration;

use pagewire_mem::{Frag, FragVec, Held, Mapping, PAGE_SIZE, Region};
use pagewire_stack::{MapError, RecvFlags, TcpId};
use proptest::prelude::*;

use crate::common::{B, Pair, Verbs};

#[derive(Clone, Debug)]
enum Op {
    /// By copy, into the sender's pages.
    Write(usize),
    /// By reference, from this byte of a page of the sender's region on.
    Send {
        offset: usize,
        len: usize,
    },
    Read(usize),
    Map(usize),
    /// With a buffer of `tail` bytes for the tail.
    MapAvailable {
        max: usize,
        tail: usize,
    },
    RecvChunks(usize),
    /// Checks memory that was taken by reference once more, and releases it, the oldest first.
    Release(usize),
    Pass(u64),
    /// Loses this number of segments with payload.
    Lose(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let pages = |most: usize| (0..=most).prop_map(|pages| pages * PAGE_SIZE);
    prop_oneof![
        4 => (1_usize..30_000).prop_map(Op::Write),
        3 => pages(20).prop_map(|len| Op::Send { offset: 0, len }),
        2 => (0_usize..PAGE_SIZE, 1_usize..100_000).prop_map(|(offset, len)| Op::Send { offset, len }),
        4 => (1_usize..20_000).prop_map(Op::Read),
        5 => pages(20).prop_map(Op::Map),
        1 => (0_usize..100_000).prop_map(Op::Map),
        5 => (0_usize..200_000, 0_usize..5000).prop_map(|(max, tail)| Op::MapAvailable { max, tail }),
        3 => (1_usize..100_000).prop_map(Op::RecvChunks),
        3 => (1_usize..10).prop_map(Op::Release),
        8 => (1_u64..100).prop_map(Op::Pass),
        1 => (1_usize..4).prop_map(Op::Lose),
    ]
}

/// Something taken by reference.
enum Taken {
    Mapping(Mapping),
    Chunks(Vec<Frag>),
}

struct World {
    p: Pair,
    client: TcpId,
    server: TcpId,
    region: Region,
    /// Everything that was sent, and how much of it was taken.
    stream: Vec<u8>,
    taken: usize,
    kept: Vec<(usize, Taken, Held)>,
}

impl World {
    fn new() -> Self {
        let mut p = Pair::new();
        p.meet();
        let (client, server, _) = p.connect("10.0.0.2:80");
        let region = Region::memfd("sent", 64 * PAGE_SIZE).unwrap();
        Self { p, client, server, region, stream: Vec::new(), taken: 0, kept: Vec::new() }
    }

    /// The next `len` bytes of the stream.
    fn next(&mut self, len: usize) -> std::ops::Range<usize> {
        let range = self.taken..self.taken + len;
        assert!(range.end <= self.stream.len(), "more than was sent");
        self.taken += len;
        range
    }

    fn check(&self, at: usize, taken: &Taken) {
        let mut at = at;
        let mut same = |bytes: &[u8]| {
            assert!(self.stream[at..at + bytes.len()] == *bytes, "bytes {at}+{}", bytes.len());
            at += bytes.len();
        };
        match taken {
            Taken::Mapping(mapping) => same(mapping.as_slice().unwrap()),
            Taken::Chunks(frags) => frags.iter().for_each(|f| same(f.as_slice().unwrap())),
        }
    }

    fn keep(&mut self, len: usize, taken: Taken, held: Held) {
        let at = self.next(len).start;
        self.check(at, &taken);
        self.kept.push((at, taken, held));
    }

    fn queued(&mut self) -> usize {
        self.p.b.tcp(self.server).unwrap().queued()
    }

    fn apply(&mut self, op: &Op) {
        let (now, server) = (self.p.now, self.server);
        match *op {
            Op::Write(len) => {
                let seed = self.stream.len();
                let data: Vec<u8> = (0..len).map(|i| ((seed + i) / 13) as u8).collect();
                if let Ok(n) = self.p.a.send(now, self.client, &data) {
                    self.stream.extend_from_slice(&data[..n]);
                }
            }
            Op::Send { offset, len } => {
                let frag = self.region.frag(offset, len.min(self.region.len() - offset)).unwrap();
                let mut frags = FragVec::from_iter([frag]);
                if let Ok(n) = self.p.a.send(now, self.client, &mut frags) {
                    self.stream.extend(std::iter::repeat_n(0, n));
                }
            }
            Op::Read(len) => {
                let mut buf = vec![0; len];
                if let Ok(n) = self.p.b.recv(now, server, &mut buf[..]) {
                    let range = self.next(n);
                    assert!(self.stream[range] == buf[..n], "what was sent is read");
                }
            }
            Op::Map(len) => {
                let before = self.queued();
                match self
                    .p
                    .b
                    .tcp(server)
                    .map_err(Into::into)
                    .and_then(|mut tcp| tcp.recv(now, pagewire_stack::Map(len), RecvFlags::empty()))
                {
                    Ok(mapping) => {
                        assert_eq!(mapping.len(), len);
                        let pinned = mapping.pinned();
                        let held = self.p.b.tcp(server).unwrap().count_held(now, pinned);
                        self.keep(len, Taken::Mapping(mapping), held);
                    }
                    Err(error) => {
                        assert_eq!(self.queued(), before, "consumed in spite of {error}");
                        let whole = len > 0 && len.is_multiple_of(PAGE_SIZE);
                        assert_eq!(error == MapError::Length, !whole);
                        assert_eq!(error == MapError::WouldBlock, whole && before < len);
                    }
                }
            }
            Op::MapAvailable { max, tail } => {
                let (before, mut buf) = (self.queued(), vec![0; tail]);
                let found = self
                    .p
                    .b
                    .tcp(server)
                    .unwrap()
                    .recv(now, pagewire_stack::MapPages { max, tail: &mut buf }, RecvFlags::empty())
                    .unwrap();
                let mapped = found.mapping.as_ref().map_or(0, Mapping::len);
                assert!(mapped <= max && found.copied <= tail);
                assert_eq!(found.queued, before - mapped - found.copied);
                assert!(found.copy_next <= found.queued);
                // Whoever does what it says gets on.
                let stuck = mapped + found.copied + found.copy_next == 0;
                assert!(!stuck || before == 0 || max == 0, "nothing of {before} up to {max}");
                if let Some(mapping) = found.mapping {
                    let held = self.p.b.tcp(server).unwrap().count_held(now, mapping.pinned());
                    self.keep(mapped, Taken::Mapping(mapping), held);
                }
                let range = self.next(found.copied);
                assert!(self.stream[range] == buf[..found.copied], "the tail is the stream's");
            }
            Op::RecvChunks(max) => {
                let mut frags = Vec::new();
                if let Ok(n) =
                    self.p.b.recv(now, server, pagewire_stack::Chunks { max, into: &mut frags })
                {
                    let pinned = frags.iter().map(Frag::pinned_pages).sum();
                    let held = self.p.b.tcp(server).unwrap().count_held(now, pinned);
                    self.keep(n, Taken::Chunks(frags), held);
                }
            }
            Op::Release(count) => {
                for _ in 0..count.min(self.kept.len()) {
                    let (at, taken, held) = self.kept.remove(0);
                    self.check(at, &taken);
                    drop(held);
                }
            }
            Op::Pass(ms) => self.p.run(Duration::from_millis(ms)),
            Op::Lose(n) => {
                self.p.lose(n);
            }
        }
        self.p.flush();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(debug_assertions) { 96 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn however_it_is_taken_the_stream_is_what_was_sent_and_every_page_comes_home(
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut w = World::new();
        for op in &ops {
            w.apply(op);
        }
        w.p.carry = None;
        for _ in 0..400 {
            w.apply(&Op::Release(usize::MAX));
            w.apply(&Op::Pass(200));
            w.apply(&Op::MapAvailable { max: 1 << 20, tail: 0 });
            w.apply(&Op::Read(PAGE_SIZE - 1));
            if w.taken == w.stream.len() {
                break;
            }
        }
        prop_assert_eq!(w.taken, w.stream.len(), "not all arrived");
        w.apply(&Op::Release(usize::MAX));
        prop_assert_eq!(w.p.b.tcp(w.server).map(|tcp| tcp.held()), Ok(0));
        w.p.b.close(w.p.now, w.server);
        w.p.a.close(w.p.now, w.client);
        w.p.run(Duration::from_secs(600));
        prop_assert_eq!(w.p.b.receive_memory_used(), 0);
        w.p.assert_pages_are_home();
    }
}

#[test]
fn frames_of_a_connection_say_whether_its_application_maps() {
    let mut w = World::new();
    let marks = w.p.watch(|side, frame| (side == B).then_some(frame.maps));
    for (take, maps) in [(Op::Read(100), false), (Op::Map(PAGE_SIZE), true), (Op::Read(100), true)]
    {
        w.apply(&take);
        marks.borrow_mut().clear();
        w.apply(&Op::Write(10_000));
        w.apply(&Op::Pass(200));
        assert!(!marks.borrow().is_empty() && marks.borrow().iter().all(|&mark| mark == maps));
    }
}
