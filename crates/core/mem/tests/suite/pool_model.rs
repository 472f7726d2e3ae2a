//! The pool, its writer and its fragments against a plain oracle: every live fragment beside a
//! `Vec` of the bytes it must show, and the set of pages that they and the writer touch.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use pagewire_mem::{
    Access, CopyLedger, CopyReason, Frag, GROUP_PAGES, MAX_FRAGS, PAGE_SIZE, PagePool, PageWriter,
    Region,
};
use proptest::prelude::*;

const POOL: usize = 2 * GROUP_PAGES * PAGE_SIZE;
const MAX_LIVE: usize = 24;

#[derive(Clone, Debug)]
enum Op {
    /// The writer copies this many bytes in.
    Write(usize),
    /// The writer copies a live fragment into fresh pages.
    WriteFrag(usize),
    /// A device fills this many spare bytes, which are committed.
    Device(usize),
    Refill(usize),
    /// Makes this many bytes spare, in as many runs as needed.
    Reserve(usize),
    /// The writer lends this many bytes.
    Lend(usize),
    /// So many bytes of the oldest loan are filled and committed; the rest of the loan ends.
    FillLent(usize),
    Align,
    Abandon,
    Clone(usize),
    SplitTo(usize, usize),
    Slice(usize, usize, usize),
    Append(usize, usize),
    /// Appends the fragment that continues this one, if one does.
    Join(usize),
    Advance(usize, usize),
    Truncate(usize, usize),
    IntoBytes(usize),
    Drop(usize),
    Drain,
}

/// Lengths at and around the places where something ends.
fn length() -> impl Strategy<Value = usize> {
    let edges = [0, 1, 2, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE, 5 * PAGE_SIZE];
    let group = GROUP_PAGES * PAGE_SIZE;
    prop_oneof![
        4 => prop::sample::select(edges.to_vec()),
        4 => 0..3 * PAGE_SIZE,
        1 => prop::sample::select(vec![group - 1, group, group + 1]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0..MAX_LIVE;
    prop_oneof![
        4 => length().prop_map(Op::Write),
        1 => which.clone().prop_map(Op::WriteFrag),
        4 => length().prop_map(Op::Device),
        2 => (0..GROUP_PAGES + 2).prop_map(Op::Refill),
        2 => length().prop_map(Op::Reserve),
        2 => length().prop_map(Op::Lend),
        2 => length().prop_map(Op::FillLent),
        1 => Just(Op::Align),
        1 => Just(Op::Abandon),
        2 => which.clone().prop_map(Op::Clone),
        3 => (which.clone(), length()).prop_map(|(i, n)| Op::SplitTo(i, n)),
        2 => (which.clone(), length(), length()).prop_map(|(i, a, b)| Op::Slice(i, a, b)),
        1 => (which.clone(), which.clone()).prop_map(|(i, j)| Op::Append(i, j)),
        3 => which.clone().prop_map(Op::Join),
        2 => (which.clone(), length()).prop_map(|(i, n)| Op::Advance(i, n)),
        2 => (which.clone(), length()).prop_map(|(i, n)| Op::Truncate(i, n)),
        1 => which.clone().prop_map(Op::IntoBytes),
        5 => which.prop_map(Op::Drop),
        3 => Just(Op::Drain),
    ]
}

/// A reference that an application holds.
enum Held {
    Frag(Frag),
    Bytes(Bytes),
}

impl Held {
    fn range(&self) -> (usize, usize) {
        match self {
            Self::Frag(frag) => (frag.addr(), frag.len()),
            Self::Bytes(bytes) => (bytes.as_ptr().addr(), bytes.len()),
        }
    }
}

struct Model {
    access: Access,
    pool: PagePool,
    writer: PageWriter,
    lent: VecDeque<PageWriter>,
    ledger: CopyLedger,
    live: Vec<(Held, Vec<u8>)>,
    /// Makes the bytes of each write different from all others.
    writes: u64,
    copied: u64,
}

impl Model {
    fn new(access: Access) -> Self {
        let pool = match access {
            Access::Private => PagePool::new("model", POOL).unwrap(),
            Access::Shared => PagePool::over(Region::memfd_shared("model", POOL).unwrap()).unwrap(),
        };
        Self {
            access,
            pool,
            writer: PageWriter::new(),
            lent: VecDeque::new(),
            ledger: CopyLedger::new(),
            live: Vec::new(),
            writes: 0,
            copied: 0,
        }
    }

    fn all_spare(&self) -> usize {
        self.writer.spare_runs().map(|(_, len)| len).sum()
    }

    fn fresh_bytes(&mut self, len: usize) -> Vec<u8> {
        self.writes += 1;
        let seed = self.writes.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..len as u64)
            .map(|i| ((seed ^ i).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8)
            .collect()
    }

    /// Adds a fragment that was just filled: it must not touch bytes that another one shows.
    fn hold_new(&mut self, frag: Frag, bytes: Vec<u8>) {
        assert_eq!(frag.len(), bytes.len());
        for (held, _) in &self.live {
            let (at, len) = held.range();
            let apart = at + len <= frag.addr() || frag.addr() + frag.len() <= at;
            assert!(apart || len == 0 || frag.is_empty(), "a page was reused while referenced");
        }
        self.live.push((Held::Frag(frag), bytes));
    }

    fn frag(&mut self, i: usize) -> Option<(&mut Frag, &mut Vec<u8>)> {
        match self.live.get_mut(i) {
            Some((Held::Frag(frag), bytes)) => Some((frag, bytes)),
            _ => None,
        }
    }

    fn apply(&mut self, op: Op) {
        if self.live.len() >= MAX_LIVE {
            self.live.remove(0);
        }
        match op {
            Op::Write(len) => {
                let bytes = self.fresh_bytes(len);
                let (frags, copied) = self.writer.write(
                    &mut self.pool,
                    &bytes,
                    &mut self.ledger,
                    CopyReason::AppWrite,
                );
                self.take_written(frags, bytes, copied);
            }
            Op::WriteFrag(i) => {
                let Some((frag, bytes)) = self.frag(i) else { return };
                let (source, bytes) = (frag.clone(), bytes.clone());
                let (frags, copied) = self.writer.write_frag(
                    &mut self.pool,
                    &source,
                    &mut self.ledger,
                    CopyReason::AppWrite,
                );
                self.take_written(frags, bytes, copied);
            }
            Op::Device(len) => {
                let mut bytes = self.fresh_bytes(len);
                let Some((at, spare)) = self.writer.spare_ptr() else { return };
                bytes.truncate(spare);
                // SAFETY: the first `spare` bytes from `at` are ours to write until `commit`.
                unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
                let seen: Vec<u8> =
                    self.writer.spare_bytes(bytes.len()).flatten().copied().collect();
                let private = self.access == Access::Private;
                assert_eq!(seen, if private { &bytes[..] } else { &[] });
                let frag = self.writer.commit(len);
                self.hold_new(frag, bytes);
            }
            Op::Refill(pages) => {
                let had = self.writer.spare();
                let free = self.pool.audit().free + self.pool.audit().returned;
                let refilled = self.writer.refill(&mut self.pool, pages);
                assert_eq!(refilled, had > 0 || free > 0);
                if had > 0 {
                    assert_eq!(self.writer.spare(), had);
                } else if refilled {
                    assert_eq!(self.writer.misalignment(), 0);
                    assert!(self.writer.spare() <= pages.clamp(1, GROUP_PAGES) * PAGE_SIZE);
                }
            }
            Op::Reserve(bytes) => {
                let (had, free) = (self.all_spare(), self.pool.audit());
                let reserved = self.writer.reserve(&mut self.pool, bytes);
                assert_eq!(reserved, self.all_spare() >= bytes);
                assert!(self.all_spare() >= had);
                assert!(self.writer.spare_runs().count() <= MAX_FRAGS);
                if !reserved && self.writer.spare_runs().count() < MAX_FRAGS {
                    assert_eq!(
                        self.pool.audit().free,
                        0,
                        "{free:?}: it stopped while pages were free"
                    );
                }
            }
            Op::Lend(bytes) => {
                let free = self.pool.audit();
                let lent = self.writer.lend(&mut self.pool, bytes);
                let len: usize = lent.spare_runs().map(|(_, len)| len).sum();
                let runs = lent.spare_runs().count();
                assert!(len <= bytes && runs <= MAX_FRAGS);
                if len < bytes && runs < MAX_FRAGS - 1 {
                    assert_eq!(self.pool.audit().free, 0, "{free:?}: pages were free");
                }
                self.lent.push_back(lent);
            }
            Op::FillLent(len) => {
                let Some(mut lent) = self.lent.pop_front() else { return };
                if len % 3 == 1 {
                    lent.align();
                }
                let bytes = self.fresh_bytes(len);
                let reason = CopyReason::AppWrite;
                let filled = lent.spare_of(len).put(&bytes, &mut self.ledger, reason);
                let frags: Vec<_> = lent.commit_all(filled).collect();
                self.copied += filled as u64;
                let mut rest = &bytes[..filled];
                for frag in frags {
                    let (part, later) = rest.split_at(frag.len());
                    self.hold_new(frag, part.to_vec());
                    rest = later;
                }
                assert!(rest.is_empty());
            }
            Op::Align => {
                let (spare, off) = (self.all_spare(), self.writer.misalignment());
                self.writer.align();
                assert_eq!(self.writer.misalignment(), 0);
                let skipped = if off == 0 { 0 } else { PAGE_SIZE - off };
                assert_eq!(self.all_spare(), spare - skipped);
            }
            Op::Abandon => {
                self.writer.abandon();
                assert_eq!(self.all_spare(), 0);
            }
            Op::Clone(i) => {
                let Some((frag, bytes)) = self.frag(i) else { return };
                let twin = (Held::Frag(frag.clone()), bytes.clone());
                self.live.push(twin);
            }
            Op::SplitTo(i, n) => {
                let Some((frag, bytes)) = self.frag(i) else { return };
                let front = frag.split_to(n);
                let rest = bytes.split_off(n.min(bytes.len()));
                let front_bytes = core::mem::replace(bytes, rest);
                self.live.push((Held::Frag(front), front_bytes));
            }
            Op::Slice(i, a, b) => {
                let Some((frag, bytes)) = self.frag(i) else { return };
                let part = frag.slice(a..b);
                let end = b.min(bytes.len());
                let shown = bytes.get(a.min(end)..end).unwrap_or_default().to_vec();
                self.live.push((Held::Frag(part), shown));
            }
            Op::Append(i, j) => self.append(i, j),
            Op::Join(i) => {
                let Some((held, _)) = self.live.get(i) else { return };
                let (at, len) = held.range();
                if let Some(j) = self.live.iter().position(|(next, _)| {
                    next.range().0 == at + len && matches!(next, Held::Frag(_))
                }) {
                    self.append(i, j);
                }
            }
            Op::Advance(i, n) => {
                let Some((frag, bytes)) = self.frag(i) else { return };
                frag.advance(n);
                bytes.drain(..n.min(bytes.len()));
            }
            Op::Truncate(i, n) => {
                let Some((frag, bytes)) = self.frag(i) else { return };
                frag.truncate(n);
                bytes.truncate(n);
            }
            Op::IntoBytes(i) => {
                if !matches!(self.live.get(i), Some((Held::Frag(_), _))) {
                    return;
                }
                let (Held::Frag(frag), expected) = self.live.swap_remove(i) else { return };
                let (access, range) = (frag.access(), (frag.addr(), frag.len()));
                let held = match frag.into_bytes() {
                    Ok(bytes) => Held::Bytes(bytes),
                    Err(frag) => Held::Frag(frag),
                };
                assert_eq!(access == Access::Private, matches!(held, Held::Bytes(_)));
                assert_eq!(held.range(), range, "the bytes moved");
                self.live.push((held, expected));
            }
            Op::Drop(i) => {
                if i < self.live.len() {
                    self.live.swap_remove(i);
                }
            }
            Op::Drain => {
                let before = self.pool.audit();
                assert_eq!(self.pool.drain(), before.returned);
                assert_eq!(self.pool.stats().free, before.free + before.returned);
            }
        }
    }

    fn take_written(&mut self, frags: pagewire_mem::FragVec, mut bytes: Vec<u8>, copied: usize) {
        self.copied += copied as u64;
        if copied < bytes.len() {
            assert_eq!(self.pool.audit().free, 0, "the writer stopped while pages were free");
            assert_eq!(self.writer.spare(), 0);
        }
        bytes.truncate(copied);
        for frag in frags {
            let rest = bytes.split_off(frag.len());
            self.hold_new(frag, core::mem::replace(&mut bytes, rest));
        }
        assert!(bytes.is_empty(), "fewer bytes in fragments than were copied");
    }

    fn append(&mut self, i: usize, j: usize) {
        if i == j || self.frag(i).is_none() || self.frag(j).is_none() {
            return;
        }
        let (Held::Frag(next), next_bytes) =
            core::mem::replace(&mut self.live[j], (Held::Frag(Frag::empty()), Vec::new()))
        else {
            return;
        };
        let Some((frag, bytes)) = self.frag(i) else { return };
        let joins = next.is_empty() || frag.is_empty() || frag.is_followed_by(&next);
        match frag.try_append(next) {
            Ok(()) => {
                assert!(joins);
                bytes.extend_from_slice(&next_bytes);
            }
            Err(next) => {
                assert!(!joins);
                self.live[j] = (Held::Frag(next), next_bytes);
            }
        }
    }

    /// Checks the invariants after a step.
    fn check(&self, all_bytes: bool) {
        self.pool.debug_assert_conserved();
        let audit = self.pool.audit();
        assert!(audit.is_conserved(), "{audit:?}");
        let mut pages = BTreeSet::new();
        let mut touch = |at: usize, len: usize| {
            if len > 0 {
                pages.extend(at / PAGE_SIZE..=(at + len - 1) / PAGE_SIZE);
            }
        };
        for (held, _) in &self.live {
            let (at, len) = held.range();
            touch(at, len);
        }
        for (at, spare) in self.lent.iter().chain([&self.writer]).flat_map(PageWriter::spare_runs) {
            touch(at.as_ptr().addr(), spare);
        }
        let first = self.writer.spare_runs().next().map(|(at, len)| (at.as_ptr().addr(), len));
        assert_eq!(first, self.writer.spare_ptr().map(|(at, len)| (at.as_ptr().addr(), len)));
        assert_eq!(first.map_or(0, |(_, len)| len), self.writer.spare());
        assert_eq!(audit.out, pages.len(), "pages out are those that somebody touches");
        assert_eq!(self.ledger.get(CopyReason::AppWrite), self.copied);
        let recent = if all_bytes { 0 } else { self.live.len().saturating_sub(2) };
        for (held, expected) in &self.live[recent..] {
            match held {
                Held::Bytes(bytes) => assert_eq!(bytes, expected),
                Held::Frag(frag) => {
                    assert_eq!(frag.len(), expected.len());
                    assert!(frag.pinned() >= frag.len());
                    assert!(frag.pinned() <= frag.len().next_multiple_of(PAGE_SIZE) + PAGE_SIZE);
                    match frag.as_slice() {
                        Some(shown) => assert_eq!(shown, expected),
                        None => {
                            let mut shown = vec![0; frag.len()];
                            let mut uncounted = CopyLedger::new();
                            frag.copy_to(0, &mut shown, &mut uncounted, CopyReason::AppRead);
                            assert_eq!(&shown, expected);
                        }
                    }
                }
            }
        }
    }

    fn run(mut self, ops: Vec<Op>) {
        for (step, op) in ops.into_iter().enumerate() {
            self.apply(op);
            self.check(step % 8 == 0);
        }
        self.check(true);
        self.live.clear();
        self.lent.clear();
        self.writer.abandon();
        self.pool.drain();
        assert_eq!(self.pool.stats().free, self.pool.stats().total, "every page came home");
        self.check(true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn pages_are_conserved_and_bytes_unchanged_in_any_order(
        ops in prop::collection::vec(op(), 1..160),
    ) {
        Model::new(Access::Private).run(ops);
    }

    #[test]
    fn a_shared_pool_keeps_the_same_promises(ops in prop::collection::vec(op(), 1..80)) {
        Model::new(Access::Shared).run(ops);
    }
}

#[test]
fn spare_bytes_end_where_a_shared_pool_begins() {
    let mut private = PagePool::new("private", 1).unwrap();
    let mut shared = PagePool::over(Region::memfd_shared("shared", POOL).unwrap()).unwrap();
    let mut writer = PageWriter::new();
    let group = GROUP_PAGES * PAGE_SIZE;
    assert!(writer.reserve(&mut private, group));
    assert!(writer.reserve(&mut shared, 2 * group));
    assert_eq!(writer.spare_runs().count(), 2);
    let seen: Vec<_> = writer.spare_bytes(usize::MAX).map(<[u8]>::len).collect();
    assert_eq!(seen, [group]);
    drop(writer.commit(group));
    assert_eq!(writer.spare_bytes(usize::MAX).count(), 0);
    assert_eq!(writer.commit(1).access(), Access::Shared);
}
