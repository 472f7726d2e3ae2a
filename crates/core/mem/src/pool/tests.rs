//! The allocator: which pages a request gets.

use pagewire_testkit::given;

use super::*;
use crate::{CopyLedger, CopyReason, PageWriter};

const G: usize = GROUP_PAGES;

fn pool(groups: usize) -> PagePool {
    PagePool::new("alloc", groups * G * PAGE_SIZE).unwrap()
}

fn release(pool: &mut PagePool, first: usize, count: usize) {
    pool.shared.release(first * PAGE_SIZE, count * PAGE_SIZE);
    pool.drain();
}

#[test]
fn groups_are_handed_out_from_the_lowest_address() {
    let mut pool = pool(3);
    assert_eq!(pool.alloc_run(G, None), Some((0, G)));
    assert_eq!(pool.alloc_run(G, Some(G)), Some((G, G)));
    assert_eq!(pool.alloc_run(G, None), Some((2 * G, G)));
    assert_eq!(pool.alloc_run(G, None), None);
    assert_eq!(pool.alloc_run(1, Some(3 * G)), None);
    pool.debug_assert_conserved();
}

#[test]
fn a_request_for_none_gets_one_and_for_too_many_a_group() {
    let mut pool = pool(2);
    assert_eq!(pool.alloc_run(0, None), Some((0, 1)));
    assert_eq!(pool.alloc_run(usize::MAX, None), Some((G, G)));
}

#[test]
fn a_run_continues_where_the_last_ended() {
    let mut pool = pool(3);
    assert_eq!(pool.alloc_run(16, None), Some((0, 16)));
    assert_eq!(pool.alloc_run(16, Some(16)), Some((16, 16)));
    release(&mut pool, 0, 16);
    assert_eq!(pool.alloc_run(16, Some(32)), Some((32, 16)), "although lower pages are free");
    assert_eq!(pool.alloc_run(60, Some(48)), Some((48, 16)), "to the end of the group");
    assert_eq!(pool.alloc_run(60, Some(64)), Some((64, 60)), "and into the next");
    assert_eq!(pool.alloc_run(16, Some(124)), Some((124, 4)));
}

#[test]
fn what_follows_the_last_page_of_the_pool_is_some_other_run() {
    let mut pool = pool(1);
    for after in [G, G + 1, usize::MAX / PAGE_SIZE, usize::MAX] {
        assert_eq!(pool.alloc_run(8, Some(after)).map(|(_, n)| n), Some(8));
    }
}

#[test]
fn small_runs_come_from_groups_already_broken() {
    let mut pool = pool(3);
    assert_eq!(pool.alloc_run(5, None), Some((0, 5)));
    assert_eq!(pool.alloc_run(5, None), Some((5, 5)));
    assert_eq!(pool.alloc_run(54, None), Some((10, 54)));
    assert_eq!(pool.alloc_run(1, None), Some((G, 1)), "only now the next is broken");
}

#[test]
fn a_whole_group_is_broken_before_a_run_is_cut_short() {
    let mut pool = pool(2);
    assert_eq!(pool.alloc_run(G, None), Some((0, G)));
    release(&mut pool, 3, 4);
    release(&mut pool, 20, 9);
    assert_eq!(pool.alloc_run(16, None), Some((G, 16)));
    assert_eq!(pool.alloc_run(48, Some(G + 16)), Some((G + 16, 48)));
    assert_eq!(pool.alloc_run(16, None), Some((20, 9)), "the longest that is left");
    assert_eq!(pool.alloc_run(3, None), Some((3, 3)), "the first that is long enough");
    assert_eq!(pool.alloc_run(G, None), Some((6, 1)));
    assert_eq!(pool.alloc_run(1, None), None);
    pool.debug_assert_conserved();
}

#[test]
fn the_group_freed_last_is_used_first() {
    let mut pool = pool(4);
    for _ in 0..4 {
        assert!(pool.alloc_run(G, None).is_some());
    }
    for group in [2, 0, 3] {
        release(&mut pool, group * G, G);
    }
    assert_eq!(pool.alloc_run(G, None), Some((3 * G, G)));
    assert_eq!(pool.alloc_run(G, Some(2 * G)), Some((2 * G, G)), "the one that follows, if asked");
    release(&mut pool, 3 * G, G);
    release(&mut pool, 2 * G, G);
    let mut rest: Vec<_> = (0..3).map(|_| pool.alloc_run(G, None).unwrap().0 / G).collect();
    assert_eq!(rest.len(), 3);
    rest.sort_unstable();
    assert_eq!(rest, [0, 2, 3], "none is forgotten, none handed out twice");
    assert_eq!(pool.alloc_run(G, None), None);
}

#[test]
fn returned_pages_are_taken_home_when_they_are_needed() {
    let mut pool = pool(1);
    assert_eq!(pool.alloc_run(G, None), Some((0, G)));
    pool.shared.release(0, G * PAGE_SIZE);
    assert_eq!((pool.stats().free, pool.audit().returned), (0, G));
    assert_eq!(pool.alloc_run(G, None), Some((0, G)));
    assert_eq!(pool.drain(), 0);
}

#[test]
fn a_whole_group_on_its_way_home_is_fetched_before_a_short_run_is_given() {
    let mut pool = pool(4);
    for _ in 0..4 {
        assert!(pool.alloc_run(G, None).is_some());
    }
    release(&mut pool, 0, 40);
    release(&mut pool, G, 40);
    pool.shared.release(3 * G * PAGE_SIZE, G * PAGE_SIZE);
    assert_eq!(pool.alloc_run(G, None), Some((3 * G, G)));
}

#[test]
fn the_search_finds_free_pages_wherever_they_are() {
    // Three words of the summary, and a search that gives up after some groups.
    let groups = 130;
    let mut pool = pool(groups);
    for _ in 0..groups {
        assert!(pool.alloc_run(G, None).is_some());
    }
    for group in [129, 64, 63, 0, 127] {
        release(&mut pool, group * G + 7, 2);
    }
    let mut found: Vec<_> = (0..5).map(|_| pool.alloc_run(2, None).unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, [0, 63, 64, 127, 129].map(|group| (group * G + 7, 2)));
    assert_eq!(pool.alloc_run(2, None), None);
    for group in 0..groups {
        release(&mut pool, group * G, 1);
    }
    for _ in 0..groups {
        assert_eq!(pool.alloc_run(2, None).map(|(_, n)| n), Some(1));
    }
    assert_eq!(pool.alloc_run(1, None), None);
    pool.debug_assert_conserved();
}

#[test]
fn an_audit_sees_a_page_in_two_places() {
    let mut pool = pool(1);
    assert_eq!(pool.alloc_run(2, None), Some((0, 2)));
    assert!(pool.audit().is_conserved());
    pool.shared.refs[7].store(1, Ordering::Relaxed);
    assert_eq!(pool.audit().twice, 1);
    // A page lost and a page found twice make the sum right; the audit is not fooled.
    pool.shared.refs[0].store(0, Ordering::Relaxed);
    let audit = pool.audit();
    assert_eq!(audit.free + audit.out + audit.returned, audit.total);
    assert!(!audit.is_conserved());
}

#[test]
fn runs_of_bits_are_found_like_one_by_one() {
    let mut word = 0x0123_4567_89ab_cdefu64;
    for _ in 0..2_000 {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        for word in [word, word | word << 5, word & word >> 3, !0 << (word % 64), !0 >> (word % 64)]
        {
            let run_at = |at: usize| (at..64).take_while(|i| word >> i & 1 == 1).count();
            for want in [1, 2, 3, 7, 16, 63, 64] {
                for than in [0, want / 2, want - 1] {
                    let exact = (0..64).find(|&at| run_at(at) >= want).map(|at| (at, want));
                    let longest = (0..64).map(run_at).max().filter(|&len| len > than);
                    let longest =
                        longest.map(|len| ((0..64).position(|at| run_at(at) == len).unwrap(), len));
                    assert_eq!(longest_run(word, want, than), exact.or(longest));
                }
            }
        }
    }
}

given! {
    let mut pool = PagePool::new("trim", 64 * GROUP_PAGES * PAGE_SIZE).expect("a pool");

    memory_that_was_used_goes_back_to_the_system_after_a_while_at_rest {
        let resident = |pool: &PagePool| {
            let file = std::fs::File::from(pool.shared.region.fd().unwrap().try_clone_to_owned().unwrap());
            std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) as usize * 512
        };
        assert_eq!(resident(&pool), 0, "nothing is touched at the start");
        let mut runs = Vec::new();
        let (mut writer, mut ledger) = (PageWriter::new(), CopyLedger::new());
        let data = vec![7; 40 * GROUP_PAGES * PAGE_SIZE];
        runs.push(writer.write(&mut pool, &data, &mut ledger, CopyReason::AppWrite));
        assert!(resident(&pool) >= data.len());
        pool.trim();
        assert!(resident(&pool) >= data.len(), "pages in use stay");
        drop((runs, writer));
        pool.drain();
        pool.trim();
        // A period in which nobody took any.
        pool.trim();
        let left = resident(&pool);
        assert!(left <= (WARM_GROUPS + 1) * GROUP_PAGES * PAGE_SIZE, "{left} bytes");
        assert_eq!(pool.trim(), 0, "once");
        assert!(pool.audit().is_conserved());
        // The memory serves again.
        let (again, n) = PageWriter::new().write(&mut pool, &data, &mut ledger, CopyReason::AppWrite);
        assert_eq!(n, data.len());
        let mut last = [0; 9];
        again.last().unwrap().copy_to(0, &mut last, &mut ledger, CopyReason::AppRead);
        assert_eq!(last, [7; 9]);
    }
}
