//! The carver against a plain oracle: every live fragment beside the bytes that it must show, under
//! any order of carving, cloning, slicing and dropping, in a pool that others use too.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagewire_mem::{
    Access, BLOCK_PAGES, CACHE_LINE, Carver, CopyLedger, CopyReason, Frag, GROUP_PAGES, Lender,
    Loan, Lone, PAGE_SIZE, PagePool, PageWriter, Region,
};
use pagewire_testkit::given;
use proptest::prelude::*;

const POOL: usize = 2 * GROUP_PAGES * PAGE_SIZE;
const MAX_LIVE: usize = 64;

fn pool() -> PagePool {
    PagePool::new("carve", POOL).unwrap()
}

/// Counts what comes back.
#[derive(Default)]
struct Account(AtomicUsize);

impl Account {
    fn returned(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Lender for Account {
    fn give_back(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn loan() -> Loan {
    Loan::new(Arc::new(Account::default()), 1)
}

/// Fills the whole room with `seed`, so that stale bytes show if they are ever read.
fn carve(carver: &mut Carver, pool: &mut PagePool, len: usize, seed: u8) -> Option<Frag> {
    let mut room = carver.room(pool, len)?;
    let bytes = room.bytes_mut();
    assert_eq!(bytes.len(), len);
    bytes.fill(seed);
    Some(room.commit(0..len))
}

fn shows(frag: &Frag, seed: u8) -> bool {
    frag.access() == Access::Private && frag.as_slice().unwrap().iter().all(|&b| b == seed)
}

#[derive(Clone, Debug)]
enum Op {
    /// Carves this many bytes and commits the part between two marks.
    Carve(usize, usize, usize),
    /// Writes to room and lets go of it.
    Waste(usize),
    /// Pages of a frame's own.
    Lone(usize, usize),
    Abandon,
    Clone(usize),
    Slice(usize, usize, usize),
    Drop(usize),
    /// Somebody else takes pages of the same pool.
    Other(usize),
    DropOthers,
    Drain,
}

fn length() -> impl Strategy<Value = usize> {
    let page = PAGE_SIZE;
    let edges = vec![0, 1, 63, 64, 65, 127, 128, page / 2, page - 1, page, page + 1, 2 * page];
    prop_oneof![
        3 => prop::sample::select(edges),
        6 => 0..600usize,
        3 => 0..page + 100,
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let which = 0..MAX_LIVE;
    prop_oneof![
        12 => (length(), length(), length()).prop_map(|(n, a, b)| Op::Carve(n, a, b)),
        2 => length().prop_map(Op::Waste),
        2 => (length(), length()).prop_map(|(n, a)| Op::Lone(n, a)),
        1 => Just(Op::Abandon),
        2 => which.clone().prop_map(Op::Clone),
        2 => (which.clone(), length(), length()).prop_map(|(i, a, b)| Op::Slice(i, a, b)),
        8 => which.prop_map(Op::Drop),
        1 => (0..20usize).prop_map(Op::Other),
        1 => Just(Op::DropOthers),
        1 => Just(Op::Drain),
    ]
}

proptest! {
    #[test]
    fn fragments_show_what_was_committed_until_the_last_is_gone_and_every_page_comes_home(
        ops in prop::collection::vec(op(), 1..300),
    ) {
        let mut pool = pool();
        let mut carver = Carver::new();
        let mut live: Vec<(Frag, u8)> = Vec::new();
        let mut others = Vec::new();
        let mut writer = PageWriter::new();
        let mut ledger = CopyLedger::new();
        for (turn, op) in ops.into_iter().enumerate() {
            let seed = turn as u8;
            match op {
                Op::Carve(len, a, b) => {
                    let Some(mut room) = carver.room(&mut pool, len) else { continue };
                    room.bytes_mut().fill(seed);
                    let (from, to) = (a.min(b), a.max(b));
                    let frag = room.commit(from..to);
                    let last = (frag.addr() + frag.len()).saturating_sub(1);
                    prop_assert!(
                        frag.is_empty() || frag.addr() / PAGE_SIZE == last / PAGE_SIZE,
                        "a room in two pages"
                    );
                    prop_assert_eq!(frag.len(), to.min(len) - from.min(to.min(len)));
                    live.push((frag, seed));
                }
                Op::Waste(len) => {
                    if let Some(mut room) = carver.room(&mut pool, len) {
                        room.bytes_mut().fill(seed);
                    }
                }
                Op::Lone(len, from) => {
                    if let Some(mut lone) = Lone::new(&mut pool, len, loan()) {
                        lone.bytes_mut().fill(seed);
                        live.push((lone.commit(from..len), seed));
                    }
                }
                Op::Abandon => carver.abandon(),
                Op::Clone(i) if i < live.len() => {
                    let copy = live[i].clone();
                    live.push(copy);
                }
                Op::Slice(i, a, b) if i < live.len() => {
                    let (frag, seed) = &live[i];
                    let part = (frag.slice(a.min(b)..a.max(b)), *seed);
                    live.push(part);
                }
                Op::Drop(i) if i < live.len() => drop(live.swap_remove(i)),
                Op::Other(pages) => {
                    let bytes = vec![0xee; pages * PAGE_SIZE];
                    others.push(writer.write(&mut pool, &bytes, &mut ledger, CopyReason::AppWrite).0);
                }
                Op::DropOthers => others.clear(),
                Op::Drain => { pool.drain(); }
                Op::Clone(_) | Op::Slice(..) | Op::Drop(_) => {}
            }
            live.truncate(MAX_LIVE);
            for (frag, seed) in &live {
                prop_assert!(shows(frag, *seed), "a live fragment was written over");
            }
            prop_assert!(pool.audit().is_conserved());
        }
        drop((live, others, carver, writer));
        pool.drain();
        prop_assert_eq!(pool.stats().free, pool.stats().total);
    }
}

given! {
    let (mut pool, mut carver) = (pool(), Carver::new());

    rooms_begin_on_cache_lines_and_pack_a_block_page_by_page {
        let rooms = BLOCK_PAGES * PAGE_SIZE / 128;
        let frags: Vec<_> =
            (0..rooms).map(|i| carve(&mut carver, &mut pool, 65 + i % 63, i as u8).unwrap())
                .collect();
        assert!(frags.iter().all(|frag| frag.addr().is_multiple_of(CACHE_LINE)));
        assert!(frags.is_sorted_by_key(Frag::addr), "one behind the other");
        assert_eq!(pool.audit().out, BLOCK_PAGES, "one block");
        assert_eq!(carver.turnover(), (1, 0));
        let next = carve(&mut carver, &mut pool, 1, 0).unwrap();
        assert_eq!(carver.turnover(), (2, 0));
        drop((frags, next));
    }
    pages_that_nobody_holds_are_used_again {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            seen.insert(carve(&mut carver, &mut pool, 100, 2).unwrap().addr() / PAGE_SIZE);
        }
        assert_eq!((seen.len(), pool.audit().out), (1, BLOCK_PAGES), "dropped at once");
        let (blocks, reused) = carver.turnover();
        assert!(blocks == 1 && reused > 300, "{blocks} blocks, {reused} times again");
        carver.abandon();
        pool.drain();
        assert_eq!(pool.audit().out, 0);
    }
    a_burst_goes_round_in_a_few_blocks {
        for _ in 0..1000 {
            let burst: Vec<_> =
                (0..40).map(|_| carve(&mut carver, &mut pool, 1500, 3).unwrap()).collect();
            assert!(burst.iter().all(|frag| shows(frag, 3)));
        }
        let (blocks, reused) = carver.turnover();
        assert!(blocks <= 4 && reused > 10_000, "{blocks} blocks, {reused} times again");
    }
    one_small_fragment_keeps_its_page_from_being_used_again_and_no_other {
        let kept = carve(&mut carver, &mut pool, 1, 7).unwrap();
        for _ in 0..10_000 {
            drop(carve(&mut carver, &mut pool, 1000, 8).unwrap());
        }
        assert!(shows(&kept, 7));
        carver.abandon();
        pool.drain();
        assert_eq!(pool.audit().out, 1, "its own page, and no other");
        drop(kept);
        pool.drain();
        assert_eq!(pool.audit().out, 0);
    }
    /// A holder of the smallest part of each page must report whole pages, or no budget counts them.
    fragments_report_the_whole_pages_that_they_keep {
        let mut kept = Vec::new();
        while let Some(frag) = carve(&mut carver, &mut pool, 18, 1) {
            kept.push(frag.slice(3..4));
            for _ in 0..100 {
                let Some(other) = carve(&mut carver, &mut pool, 100, 2) else { break };
                assert_eq!((other.pinned(), other.pinned_pages()), (PAGE_SIZE, PAGE_SIZE));
            }
        }
        carver.abandon();
        pool.drain();
        let out = pool.audit().out;
        assert_eq!(kept.iter().map(Frag::pinned).sum::<usize>(), out * PAGE_SIZE);
        assert_eq!(kept.iter().map(Frag::pinned_pages).sum::<usize>(), out * PAGE_SIZE);
        kept.clear();
        let mut lone = Lone::new(&mut pool, 5000, loan()).unwrap().commit(100..200);
        let part = lone.split_to(1);
        for frag in [&lone, &part, &part.clone(), &lone.slice(5..7)] {
            assert_eq!((frag.pinned(), frag.pinned_pages()), (2 * PAGE_SIZE, 2 * PAGE_SIZE));
        }
        assert_eq!((Frag::empty().pinned(), lone.slice(0..0).pinned()), (0, 0));
    }
    room_that_is_not_committed_costs_nothing {
        let at = carver.room(&mut pool, 500).unwrap().bytes_mut().as_ptr().addr();
        for len in [1, 500, 4096] {
            assert_eq!(carver.room(&mut pool, len).unwrap().bytes_mut().as_ptr().addr(), at);
        }
        assert!(carver.room(&mut pool, 500).unwrap().commit(500..900).is_empty());
        assert_eq!(carve(&mut carver, &mut pool, 500, 1).unwrap().addr(), at);
    }
    nothing_longer_than_a_page_and_nothing_from_an_empty_pool {
        assert!(carver.room(&mut pool, PAGE_SIZE).is_some());
        assert!(carver.room(&mut pool, PAGE_SIZE + 1).is_none());
        assert!(carver.room(&mut pool, usize::MAX).is_none());
        carver.abandon();
        pool.drain();
        let group = GROUP_PAGES * PAGE_SIZE;
        let hogs: Vec<_> = (0..2).map(|_| Lone::new(&mut pool, group, loan()).unwrap()).collect();
        assert!(carver.room(&mut pool, 1).is_none());
        let account = Arc::new(Account::default());
        assert!(Lone::new(&mut pool, 1, Loan::new(account.clone(), 7)).is_none());
        assert_eq!(account.returned(), 7, "what gets no memory is not charged");
        drop(hogs);
        assert!(carver.room(&mut pool, 1).is_some());
        pool.debug_assert_conserved();
    }
    fragments_outlive_the_carver_and_the_pool {
        let frag = carve(&mut carver, &mut pool, 300, 9).unwrap();
        drop((carver, pool));
        std::thread::spawn(move || assert!(shows(&frag, 9))).join().unwrap();
    }
}

#[test]
fn a_page_is_carved_anew_only_after_another_thread_let_go_of_its_frames() {
    let (mut carver, mut pool) = (Carver::new(), pool());
    let (send, frames) = std::sync::mpsc::sync_channel::<(Frag, u8)>(256);
    let reader = std::thread::spawn(move || frames.iter().all(|(frag, seed)| shows(&frag, seed)));
    for seed in (0..20_000u32).map(|n| n as u8) {
        // The pool is larger than what can be on its way.
        let frag = carve(&mut carver, &mut pool, 100, seed).unwrap();
        send.send((frag, seed)).unwrap();
    }
    drop(send);
    assert!(reader.join().unwrap());
    let (_, reused) = carver.turnover();
    drop(carver);
    pool.drain();
    assert_eq!(pool.audit().out, 0, "{reused} pages were carved anew");
    pool.debug_assert_conserved();
}

#[test]
fn a_loan_is_given_back_after_the_last_fragment() {
    let mut pool = pool();
    let account = Arc::new(Account::default());
    let lone = Lone::new(&mut pool, 5000, Loan::new(account.clone(), 8192)).unwrap();
    let frag = lone.commit(10..4990);
    let clone = frag.slice(100..200);
    drop(frag);
    assert_eq!(account.returned(), 0);
    drop(clone);
    assert_eq!(account.returned(), 8192);
    pool.drain();
    assert_eq!(pool.audit().out, 0);
    let unused = Lone::new(&mut pool, 1, Loan::new(account.clone(), 1)).unwrap();
    assert!(unused.commit(0..0).is_empty());
    assert_eq!(account.returned(), 8193);
}

#[test]
fn memory_that_others_may_write_is_not_carved() {
    let region = Region::memfd_shared("carve", POOL).unwrap();
    let mut pool = PagePool::over(region).unwrap();
    assert!(Carver::new().room(&mut pool, 64).is_none());
    assert!(Lone::new(&mut pool, 64, loan()).is_none());
    pool.debug_assert_conserved();
}
