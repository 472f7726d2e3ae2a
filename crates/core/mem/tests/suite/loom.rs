//! Reference counts, the return list and completions under every schedule that loom can find.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p pagewire-mem --test suite --release`
//!
//! A group has four pages here. The bytes of a page are outside of what loom sees, so each page
//! has a cell beside it: whoever reads the page reads the cell, whoever fills the page writes it,
//! and loom fails where one does not happen before the other.

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use pagewire_mem::{
    Completion, CompletionQueue, Frag, GROUP_PAGES, PAGE_SIZE, PageBudget, PagePool, PageWriter,
};
use std::sync::Arc;

/// A cell for each page of a pool.
struct Cells {
    base: usize,
    pages: Vec<UnsafeCell<()>>,
}

// SAFETY: the cells hold nothing; loom checks that they are used as if they did.
unsafe impl Send for Cells {}
// SAFETY: as for `Send`.
unsafe impl Sync for Cells {}

impl Cells {
    fn read(&self, frag: &Frag) {
        let first = (frag.addr() - self.base) / PAGE_SIZE;
        let last = (frag.addr() + frag.len() - 1 - self.base) / PAGE_SIZE;
        for page in first..=last {
            self.pages[page].with(|_| ());
        }
    }

    /// Fills whole pages: as many as the writer can get.
    fn fill(&self, writer: &mut PageWriter, pool: &mut PagePool) -> Option<Frag> {
        writer.refill(pool, 1).then(|| {
            let (at, spare) = writer.spare_ptr().unwrap();
            let first = (at.as_ptr().addr() - self.base) / PAGE_SIZE;
            for page in first..first + spare / PAGE_SIZE {
                self.pages[page].with_mut(|_| ());
            }
            writer.commit(spare)
        })
    }

    /// Fills a page as soon as one can be had. To wait is also what makes loom try the schedules
    /// in which the readers come first: it detects only races with the latest access.
    fn fill_soon(&self, writer: &mut PageWriter, pool: &mut PagePool) -> Frag {
        loop {
            match self.fill(writer, pool) {
                Some(frag) => return frag,
                None => thread::yield_now(),
            }
        }
    }
}

/// A pool of one group, all of it in one fragment.
fn pool_and_all() -> (PagePool, PageWriter, Arc<Cells>, Frag) {
    let mut pool = PagePool::new("loom", 1).unwrap();
    let mut writer = PageWriter::new();
    assert!(writer.refill(&mut pool, GROUP_PAGES));
    let frag = writer.commit(GROUP_PAGES * PAGE_SIZE);
    let pages = (0..GROUP_PAGES).map(|_| UnsafeCell::new(())).collect();
    let cells = Arc::new(Cells { base: frag.addr(), pages });
    (pool, writer, cells, frag)
}

/// A thread that reads a fragment and drops it.
fn reader(cells: &Arc<Cells>, frag: Frag) -> thread::JoinHandle<()> {
    let cells = Arc::clone(cells);
    thread::spawn(move || {
        cells.read(&frag);
        drop(frag);
    })
}

/// A thread that releases the memory of call `id`.
fn releaser(queue: &Arc<CompletionQueue>, id: u32) -> thread::JoinHandle<()> {
    let completion = Completion::new(queue, 0, id);
    thread::spawn(move || drop(completion))
}

fn all_home(mut pool: PagePool) {
    pool.drain();
    let audit = pool.audit();
    assert!(audit.is_conserved(), "{audit:?}");
    assert_eq!(audit.free, audit.total);
}

#[test]
fn a_page_is_reused_only_after_its_last_reader_is_done() {
    loom::model(|| {
        let (mut pool, mut writer, cells, mut all) = pool_and_all();
        let one = all.split_to(PAGE_SIZE);
        let readers = [one.clone(), one].map(|frag| reader(&cells, frag));
        let reused = cells.fill_soon(&mut writer, &mut pool);
        for reader in readers {
            reader.join().unwrap();
        }
        drop((reused, all));
        all_home(pool);
    });
}

#[test]
fn chains_returned_at_once_from_two_threads_all_come_home() {
    loom::model(|| {
        let (mut pool, mut writer, cells, mut all) = pool_and_all();
        let parts = [all.split_to(2 * PAGE_SIZE), all.split_to(PAGE_SIZE)];
        let readers = parts.map(|frag| reader(&cells, frag));
        // From the part that comes first, while the other may be on its way.
        let filled = cells.fill_soon(&mut writer, &mut pool);
        let audit = pool.audit();
        assert_eq!(audit.twice, 0, "{audit:?}");
        for reader in readers {
            reader.join().unwrap();
        }
        drop((filled, all));
        all_home(pool);
    });
}

#[test]
fn two_parts_of_one_page_and_the_writer_let_go_on_three_threads() {
    loom::model(|| {
        let (mut pool, mut writer, cells, all) = pool_and_all();
        drop(all);
        pool.drain();
        assert!(writer.refill(&mut pool, 1));
        let mut back = writer.commit(200);
        let front = back.split_to(100);
        let other = {
            let cells = Arc::clone(&cells);
            thread::spawn(move || {
                cells.read(&back);
                // Clone and drop while the other part and the writer go.
                let twin = back.clone();
                drop(back);
                cells.read(&twin);
            })
        };
        let third = thread::spawn(move || drop(front));
        writer.abandon();
        // The three other pages, and the shared one when all have let go of it.
        let filled: Vec<_> = (0..4).map(|_| cells.fill_soon(&mut writer, &mut pool)).collect();
        other.join().unwrap();
        third.join().unwrap();
        drop(filled);
        all_home(pool);
    });
}

#[test]
fn what_two_threads_let_go_while_the_stack_drains_is_reported_once_each() {
    loom::model(|| {
        let queue = CompletionQueue::new();
        let threads = [0, 1].map(|id| releaser(&queue, id));
        let mut seen = Vec::new();
        queue.drain(&mut seen);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(queue.is_pending(), seen.len() < 2, "what was not drained is pending");
        queue.drain(&mut seen);
        let mut ids: Vec<u32> = seen.iter().map(|done| done.lo).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1]);
    });
}

#[test]
fn a_thread_that_sleeps_until_it_is_woken_gets_every_completion() {
    loom::model(|| {
        let queue = CompletionQueue::new();
        let woken = Arc::new((Mutex::new(false), Condvar::new()));
        let waker = Arc::clone(&woken);
        queue.set_waker(move || {
            *waker.0.lock().unwrap() = true;
            waker.1.notify_one();
        });
        let threads = [0, 1].map(|id| releaser(&queue, id));
        let mut seen = Vec::new();
        // A wake-up that is lost is a deadlock, which loom reports.
        while seen.len() < 2 {
            if queue.is_pending() {
                queue.drain(&mut seen);
                continue;
            }
            let mut awake = woken.0.lock().unwrap();
            while !*awake {
                awake = woken.1.wait(awake).unwrap();
            }
            *awake = false;
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn that_memory_was_copied_is_reported_whoever_lets_go_last() {
    loom::model(|| {
        let queue = CompletionQueue::new();
        // Loom's own count around it, because loom does not see what the other orders.
        let holder = loom::sync::Arc::new(Completion::new(&queue, 0, 7));
        let other = loom::sync::Arc::clone(&holder);
        let copier = thread::spawn(move || {
            other.mark_copied();
            drop(other);
        });
        drop(holder);
        copier.join().unwrap();
        let mut seen = Vec::new();
        queue.drain(&mut seen);
        assert_eq!(seen.iter().map(|done| (done.lo, done.copied)).collect::<Vec<_>>(), [(7, true)]);
    });
}

#[test]
fn a_budget_is_never_exceeded_and_what_is_given_back_can_be_had_again() {
    loom::model(|| {
        // Room for one: a page and one at either end.
        let budget = Arc::new(PageBudget::new(4));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let budget = Arc::clone(&budget);
                thread::spawn(move || match budget.charge(PAGE_SIZE) {
                    Some(charge) => {
                        assert!(budget.used() <= budget.limit());
                        drop(charge);
                        true
                    }
                    None => false,
                })
            })
            .collect();
        let got: Vec<bool> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert!(got.contains(&true), "one of them gets it: {got:?}");
        assert_eq!(budget.used(), 0);
        assert!(budget.charge(PAGE_SIZE).is_some());
    });
}
