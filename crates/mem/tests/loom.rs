//! Reference counts and the return list under every schedule that loom can find.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p pagewire-mem --test loom --release`
//!
//! A group has four pages here. The bytes of a page are outside of what loom sees, so each page
//! has a cell beside it: whoever reads the page reads the cell, whoever fills the page writes it,
//! and loom fails where one does not happen before the other.

#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use pagewire_mem::{Frag, GROUP_PAGES, PAGE_SIZE, PagePool, PageWriter};
use std::sync::Arc;

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
        let readers: Vec<_> = [one.clone(), one]
            .into_iter()
            .map(|frag| {
                let cells = Arc::clone(&cells);
                thread::spawn(move || {
                    cells.read(&frag);
                    drop(frag);
                })
            })
            .collect();
        // The owner reuses the page as soon as it can have it.
        let reused = cells.fill(&mut writer, &mut pool);
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
        let halves = [all.split_to(2 * PAGE_SIZE), all];
        let readers: Vec<_> = halves
            .into_iter()
            .map(|frag| {
                let cells = Arc::clone(&cells);
                thread::spawn(move || {
                    cells.read(&frag);
                    drop(frag);
                })
            })
            .collect();
        // Drain in the middle, and fill what came.
        let mut filled = Vec::new();
        for _ in 0..2 {
            filled.extend(cells.fill(&mut writer, &mut pool));
        }
        let audit = pool.audit();
        assert_eq!(audit.twice, 0, "{audit:?}");
        for reader in readers {
            reader.join().unwrap();
        }
        drop(filled);
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
        // The three other pages, and the shared one where all have let go of it.
        let filled: Vec<_> = core::iter::from_fn(|| cells.fill(&mut writer, &mut pool)).collect();
        assert!((3..=4).contains(&filled.len()));
        other.join().unwrap();
        third.join().unwrap();
        drop(filled);
        all_home(pool);
    });
}
