//! The queue against an oracle that keeps one byte at a time.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    /// A segment at an offset from the next byte, in memory of some kind.
    Insert {
        offset: i32,
        len: usize,
        memory: Memory,
    },
    Read(usize),
    Take(usize),
    /// The application lets go of what it took.
    Release,
    Shrink,
    /// The device moves on to a new page.
    Align,
}

#[derive(Clone, Copy, Debug)]
enum Memory {
    /// Behind the last frame, in the same pages.
    Pages,
    /// In pages of its own.
    OwnPages,
    /// An application's buffer, by reference.
    Kept,
    /// Pieces of all kinds.
    Mixed,
}

fn op() -> impl Strategy<Value = Op> {
    let memory = prop_oneof![
        Just(Memory::Pages),
        Just(Memory::OwnPages),
        Just(Memory::Kept),
        Just(Memory::Mixed)
    ];
    let len = prop_oneof![4 => 0usize..40, 2 => 400usize..1500, 1 => 4000usize..9000];
    let offset = prop_oneof![3 => Just(0i32), 3 => -60i32..200, 1 => -2000i32..12_000];
    prop_oneof![
        12 => (offset, len, memory)
            .prop_map(|(offset, len, memory)| Op::Insert { offset, len, memory }),
        1 => (0usize..3000).prop_map(Op::Read),
        1 => (0usize..3000).prop_map(Op::Take),
        1 => Just(Op::Release),
        1 => Just(Op::Shrink),
        1 => Just(Op::Align),
    ]
}

/// Bytes by their offset from the start of the stream; the first to arrive stay.
#[derive(Default)]
struct Oracle {
    held: BTreeMap<u64, u8>,
    /// Number of bytes that the application has taken.
    taken: u64,
    next: u64,
}

impl Oracle {
    fn insert(&mut self, at: u64, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            let i = at + i as u64;
            if i >= self.next {
                self.held.entry(i).or_insert(byte);
            }
        }
        while self.held.contains_key(&self.next) {
            self.next += 1;
        }
    }

    fn pop(&mut self, n: usize) -> Vec<u8> {
        let n = n.min((self.next - self.taken) as usize);
        let out = (self.taken..).take(n).map(|i| self.held.remove(&i).unwrap()).collect();
        self.taken += n as u64;
        out
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut out: Vec<(u64, u64)> = Vec::new();
        for (&i, _) in self.held.range(self.next..) {
            match out.last_mut() {
                Some((_, end)) if *end == i => *end += 1,
                _ => out.push((i, i + 1)),
            }
        }
        out
    }
}

fn frags(host: &mut Host, bytes: &[u8], memory: Memory) -> FragVec {
    match memory {
        Memory::Pages => host.received(bytes),
        Memory::OwnPages => host.received_alone(bytes),
        Memory::Kept => FragVec::from_iter([Frag::from_bytes(Bytes::copy_from_slice(bytes))]),
        Memory::Mixed => {
            let (a, rest) = bytes.split_at(bytes.len() / 3);
            let (b, c) = rest.split_at(rest.len() / 2);
            let mut out = host.received(a);
            out.extend(frags(host, b, Memory::Kept));
            out.push(Frag::empty());
            out.extend(host.received_alone(c));
            out
        }
    }
}

fn bytes_of(frags: &[Frag]) -> Vec<u8> {
    frags.iter().flat_map(|f| f.as_slice().unwrap().to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_equals_an_oracle_that_keeps_single_bytes(
        start in prop_oneof![any::<u32>(), (u32::MAX - 5000)..=u32::MAX],
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut host = Host::with_groups(12);
        let mut queue = ReceiveQueue::new(Seq(start));
        let mut oracle = Oracle::default();
        let mut out = Vec::new();
        for (i, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert { offset, len, memory } => {
                    let at = oracle.next.saturating_add_signed(i64::from(offset));
                    // Every segment has bytes of its own, so that it shows which copy was kept.
                    let bytes: Vec<u8> = (0..len).map(|j| (i * 31 + j) as u8).collect();
                    let before = (oracle.next, oracle.held.len());
                    let is_known = |i: &u64| *i < oracle.next || oracle.held.contains_key(i);
                    let end = at + len as u64;
                    // The first run of bytes that had come before.
                    let known = (at..end).find(is_known).map(|left| {
                        (left, (left..end).find(|i| !is_known(i)).unwrap_or(end))
                    });
                    oracle.insert(at, &bytes);
                    let frags = frags(&mut host, &bytes, memory);
                    let seq = Seq(start) + at as u32;
                    let inserted = queue.insert(&mut host.env(), seq, frags);
                    prop_assert_eq!(u64::from(inserted.advanced), oracle.next - before.0);
                    prop_assert_eq!(inserted.out_of_order, len > 0 && at > before.0);
                    let at = |i: u64| Seq(start) + i as u32;
                    let duplicate = known.map(|(left, right)| (at(left), at(right)));
                    prop_assert_eq!(inserted.duplicate, duplicate);
                    prop_assert_eq!(inserted.dropped, None);
                }
                Op::Read(n) => {
                    let mut to = vec![0; n];
                    let n = queue.read(&mut host.env(), &mut to);
                    prop_assert_eq!(&to[..n], oracle.pop(to.len()));
                }
                Op::Take(n) => {
                    let first = out.len();
                    let n = queue.take(n, &mut out);
                    prop_assert_eq!(bytes_of(&out[first..]), oracle.pop(n));
                }
                Op::Release => out.clear(),
                Op::Shrink => queue.shrink(),
                Op::Align => host.device.align(),
            }
            queue.check();
            prop_assert_eq!(queue.next(), Seq(start) + oracle.next as u32);
            prop_assert_eq!(queue.queued() as u64, oracle.next - oracle.taken);
            prop_assert_eq!(queue.buffered(), oracle.held.len());
            let ranges = oracle.ranges();
            prop_assert_eq!(queue.has_gaps(), !ranges.is_empty());
            let mut reported = sack(&queue);
            prop_assert_eq!(reported.len(), ranges.len().min(SackBlocks::MAX));
            let number = |offset: u64| (Seq(start) + offset as u32).get();
            let all: Vec<_> = ranges.iter().map(|&(l, r)| (number(l), number(r))).collect();
            prop_assert!(reported.iter().all(|block| all.contains(block)));
            reported.sort_unstable();
            reported.dedup();
            prop_assert_eq!(reported.len(), ranges.len().min(SackBlocks::MAX));
            prop_assert!(host.pool.audit().is_conserved());
        }
        let rest = oracle.pop(usize::MAX);
        prop_assert_eq!(queue.read_all(&mut host), rest);

        // Pages are conserved: with everything released, all are home.
        drop((queue, out));
        host.device.abandon();
        host.writer.abandon();
        host.pool.drain();
        let audit = host.pool.audit();
        prop_assert_eq!(audit.free, audit.total);
    }
}
