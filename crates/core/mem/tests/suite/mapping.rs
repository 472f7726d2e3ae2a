//! Mappings: pages as contiguous memory that can only be read, and that they go home.

use std::sync::Arc;

use bytes::Bytes;
use pagewire_mem::{
    Access, Completion, CompletionQueue, CopyLedger, CopyReason, Frag, FragVec, GROUP_PAGES,
    MapFault, Mapping, PAGE_SIZE, PagePool, PageWriter, Place, Region, Reserved,
};
use pagewire_testkit::given;

const GROUP: usize = GROUP_PAGES * PAGE_SIZE;

/// Pages of a pool, filled by a device.
struct Pages {
    pool: PagePool,
    writer: PageWriter,
    next: u8,
}

impl Pages {
    fn new() -> Self {
        let pool = PagePool::new("test", 4 * GROUP).unwrap();
        Self { pool, writer: PageWriter::new(), next: 0 }
    }

    /// This many pages side by side, each filled with a byte of its own.
    fn run(&mut self, pages: usize) -> Frag {
        let mut bytes = Vec::new();
        for _ in 0..pages {
            self.next = self.next.wrapping_add(1);
            bytes.extend([self.next; PAGE_SIZE]);
        }
        let (ledger, reason) = (&mut CopyLedger::new(), CopyReason::DeviceRx);
        let (mut frags, n) = self.writer.write(&mut self.pool, &bytes, ledger, reason);
        assert_eq!((frags.len(), n), (1, bytes.len()), "one run");
        frags.remove(0)
    }

    /// A run that is not right behind the last.
    fn run_apart(&mut self, pages: usize) -> Frag {
        drop(self.run(1));
        self.run(pages)
    }
}

/// Maps all of the fragments.
fn map(frags: FragVec) -> Result<Mapping, MapFault> {
    let place = Place::find(frags.iter().map(|frag| (frag, frag.len())))?;
    Ok(place.fill(frags).expect("they are the same"))
}

fn map_one(frag: Frag) -> Result<Mapping, MapFault> {
    map(FragVec::from_iter([frag]))
}

fn firsts(mapping: &Mapping) -> Vec<u8> {
    mapping.as_slice().unwrap().chunks(PAGE_SIZE).map(|page| page[0]).collect()
}

given! {
    let mut pages = Pages::new();

    adjacent_pages_are_lent_as_they_lie_and_only_the_first_mapping_takes_a_system_call {
        let mut calls = Vec::new();
        for round in 0..100 {
            let mapping = map_one(pages.run(4)).unwrap();
            assert_eq!(mapping.len(), 4 * PAGE_SIZE);
            assert_eq!(firsts(&mapping)[0], (4 * round + 1) as u8);
            calls.push(mapping.system_calls());
            drop(mapping);
            pages.pool.drain();
        }
        assert_eq!(calls[0], 1, "the alias of the region");
        assert_eq!(calls[1..].iter().sum::<u32>(), 0);
    }
    pages_that_lie_apart_are_mapped_run_by_run {
        let frags = FragVec::from_iter([pages.run(2), pages.run_apart(1), pages.run_apart(3)]);
        let expected: Vec<u8> = frags
            .iter()
            .flat_map(|frag| frag.as_slice().unwrap().chunks(PAGE_SIZE).map(|page| page[0]))
            .collect();
        let _alias = map_one(pages.run(1)).unwrap();
        let mapping = map(frags).unwrap();
        assert_eq!(firsts(&mapping), expected);
        assert_eq!(mapping.system_calls(), 1 + 3, "a range, and three runs");
    }
    fragments_that_are_not_joined_but_adjacent_are_lent {
        let run = pages.run(4);
        let frags = FragVec::from_iter([run.slice(0..PAGE_SIZE), run.slice(PAGE_SIZE..run.len())]);
        let mapping = map(frags).unwrap();
        assert_eq!((firsts(&mapping), mapping.system_calls()), (vec![1, 2, 3, 4], 1));
    }
    a_part_of_a_page_is_not_mapped {
        let run = pages.run(3);
        for (from, to) in [(1, PAGE_SIZE + 1), (0, PAGE_SIZE - 1), (0, PAGE_SIZE + 1), (0, 0)] {
            let part = run.slice(from..to);
            assert!(matches!(map_one(part), Err(MapFault::NotPages)), "{from}..{to}");
        }
        let beyond = Place::find([(&run, 4 * PAGE_SIZE)].into_iter());
        assert!(matches!(beyond, Err(MapFault::NotPages)));
        assert!(matches!(map(FragVec::new()), Err(MapFault::NotPages)));
    }
    a_place_is_filled_by_adjacent_fragments_only {
        let (run, other) = (pages.run(1), pages.run_apart(1));
        let place = Place::find([(&run, PAGE_SIZE)].into_iter()).unwrap();
        assert!(place.fill(FragVec::from_iter([run, other])).is_none());
    }
    pages_go_home_when_the_mapping_is_dropped_on_any_thread {
        let frags = FragVec::from_iter([pages.run(2), pages.run_apart(2)]);
        pages.writer.abandon();
        let (lent, window) = (map_one(pages.run(3)).unwrap(), map(frags).unwrap());
        pages.writer.abandon();
        pages.pool.drain();
        assert_eq!(pages.pool.audit().out, 7);
        std::thread::spawn(move || drop((lent, window))).join().unwrap();
        pages.pool.drain();
        assert_eq!(pages.pool.audit().out, 0);
        pages.pool.debug_assert_conserved();
    }
    a_mapping_outlives_its_pool {
        let frags = FragVec::from_iter([pages.run(2), pages.run_apart(2)]);
        let (lent, window) = (map_one(pages.run(3)).unwrap(), map(frags).unwrap());
        drop(pages);
        assert_eq!((firsts(&lent), firsts(&window)), (vec![6, 7, 8], vec![1, 2, 4, 5]));
    }
    pages_are_not_reused_while_they_are_mapped {
        let mapping = map_one(pages.run(8)).unwrap();
        let mut held = Vec::new();
        for _ in 0..15 {
            held.push(pages.run(8));
            drop(held.pop());
            pages.pool.drain();
        }
        assert_eq!(firsts(&mapping), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
    what_a_mapping_was_made_of_can_be_sent_on {
        let mapping = map_one(pages.run(2)).unwrap();
        assert_eq!(mapping.pinned(), 2 * PAGE_SIZE);
        let frags = mapping.into_frags();
        assert_eq!(frags[0].as_slice().unwrap()[0], 1);
        drop(frags);
        pages.writer.abandon();
        pages.pool.drain();
        assert_eq!(pages.pool.audit().out, 0);
    }
    writing_to_a_mapping_faults_and_it_cannot_be_made_writable {
        let frags = FragVec::from_iter([pages.run(2), pages.run_apart(2)]);
        for mapping in [map_one(pages.run(3)).unwrap(), map(frags).unwrap()] {
            let before = firsts(&mapping);
            let at = mapping.as_ptr().expose_provenance();
            assert_eq!(touches_in_a_child(at, false), 0);
            assert_eq!(touches_in_a_child(at, true), libc::SIGSEGV);
            assert_eq!(make_writable_at(at), Err(libc::EACCES));
            assert_eq!(firsts(&mapping), before);
        }
    }
}

#[test]
fn a_senders_region_is_lent_from_its_alias() {
    let region = Region::memfd("test", 4 * PAGE_SIZE).unwrap();
    let frag = region.frag(PAGE_SIZE, 2 * PAGE_SIZE).unwrap();
    let at = frag.as_ptr();
    let mapping = map_one(frag.clone()).unwrap();
    assert_ne!(mapping.as_ptr(), at);
    // The same under a completion.
    let completion = Completion::new(&CompletionQueue::new(), 0, 0);
    let attached = completion.attach(frag);
    assert_eq!(map_one(attached).unwrap().as_ptr(), mapping.as_ptr());
}

#[test]
fn private_memory_without_a_file_is_lent_as_it_is_but_not_put_together() {
    let bytes = Bytes::from(vec![7; 4 * PAGE_SIZE]);
    let early = bytes.as_ptr().align_offset(PAGE_SIZE);
    let page = Frag::from_bytes(bytes.slice(early..early + PAGE_SIZE));
    let mapping = map_one(page.clone()).unwrap();
    assert_eq!((mapping.as_ptr(), mapping.system_calls()), (page.as_ptr(), 0));
    assert_eq!(mapping.as_slice().unwrap(), [7; PAGE_SIZE]);
    let two = FragVec::from_iter([page.clone(), page]);
    assert!(matches!(map(two), Err(MapFault::NotPages)));
}

#[test]
fn memory_that_somebody_may_change_is_mapped_but_never_a_slice() {
    let region = Region::memfd_shared("test", 4 * PAGE_SIZE).unwrap();
    let mapping = map_one(region.frag(0, PAGE_SIZE).unwrap()).unwrap();
    assert_eq!((mapping.access(), mapping.as_slice()), (Access::Shared, None));
    let (mut copy, ledger) = (vec![1; 100], &mut CopyLedger::new());
    assert_eq!(mapping.copy_to(PAGE_SIZE - 10, &mut copy, ledger), 10);
    assert_eq!((&copy[..10], ledger.get(CopyReason::AppRead)), (&[0; 10][..], 10));
    assert_eq!(mapping.copy_to(PAGE_SIZE, &mut copy, ledger), 0);
}

#[test]
fn mappings_may_be_made_by_many_threads_at_once() {
    let region = Region::memfd("test", 64 * PAGE_SIZE).unwrap();
    let barrier = Arc::new(std::sync::Barrier::new(4));
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let (region, barrier) = (region.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                let frag = region.frag(i * PAGE_SIZE, PAGE_SIZE).unwrap();
                barrier.wait();
                map_one(frag).unwrap().as_ptr().addr() - i * PAGE_SIZE
            })
        })
        .collect();
    let aliases: Vec<usize> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(aliases.windows(2).all(|two| two[0] == two[1]), "one alias: {aliases:x?}");
}

/// The signal that ends a child which reads, or writes, the byte at an address; 0: none.
fn touches_in_a_child(at: usize, write: bool) -> i32 {
    let at = core::ptr::with_exposed_provenance_mut::<u8>(at);
    // SAFETY: the child does nothing that is not allowed between `fork` and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        if write {
            // SAFETY: a write that is expected to fault; the process ends with it, or right after.
            unsafe { at.write_volatile(0xee) };
        } else {
            // SAFETY: the same for a read.
            unsafe { at.read_volatile() };
        }
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` is live; the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }
}

/// Whether `mprotect` makes the page at an address writable; the error number, if not.
fn make_writable_at(at: usize) -> Result<(), i32> {
    let at = core::ptr::with_exposed_provenance_mut(at);
    // SAFETY: asks for rights on mapped memory; refused, or the page stays what it is.
    match unsafe { libc::mprotect(at, PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

// ---- addresses reserved for pages that come and go ----

given! {
    let mut pages = Pages::new();

    pages_are_mapped_into_reserved_addresses_and_replaced {
        let mut reserved = Reserved::new(8 * PAGE_SIZE).unwrap();
        let (first, second) = (pages.run(3), pages.run_apart(2));
        let parts = [(&first, first.len()), (&second, second.len())];
        assert_eq!(reserved.put(0, parts.into_iter()).unwrap(), 5 * PAGE_SIZE);
        drop((first, second));
        assert_eq!(shown(&reserved), [1, 2, 3, 5, 6]);
        let third = pages.run_apart(2);
        assert_eq!(
            reserved.put(PAGE_SIZE, [(&third, third.len())].into_iter()).unwrap(),
            2 * PAGE_SIZE
        );
        drop(third);
        assert_eq!(shown(&reserved), [1, 8, 9, 5, 6]);
        assert_eq!(reserved.mapped(), 5 * PAGE_SIZE);
        pages.writer.abandon();
        pages.pool.drain();
        assert_eq!(pages.pool.audit().out, 5, "what was replaced has gone home");
        reserved.clear(PAGE_SIZE..3 * PAGE_SIZE).unwrap();
        pages.pool.drain();
        assert_eq!(pages.pool.audit().out, 3);
        drop(reserved);
        pages.pool.drain();
        assert_eq!(pages.pool.audit().out, 0);
    }
    pages_are_put_as_far_as_there_are_addresses_and_a_file {
        let mut reserved = Reserved::new(2 * PAGE_SIZE).unwrap();
        let run = pages.run(3);
        assert_eq!(reserved.put(PAGE_SIZE, [(&run, run.len())].into_iter()).unwrap(), PAGE_SIZE);
        let bytes = Frag::from_bytes(Bytes::from(vec![7; 3 * PAGE_SIZE]));
        let refused = reserved.put(0, [(&bytes, 2 * PAGE_SIZE)].into_iter());
        assert!(matches!(refused, Err(MapFault::NotPages)), "nobody can map it again");
        assert!(matches!(reserved.put(1, [(&run, run.len())].into_iter()), Err(MapFault::NotPages)));
    }
    an_address_without_a_page_is_a_bus_error_and_none_can_be_made_writable {
        let mut reserved = Reserved::new(2 * PAGE_SIZE).unwrap();
        let run = pages.run(1);
        reserved.put(0, [(&run, run.len())].into_iter()).unwrap();
        let (page, none) = (reserved.addr(), reserved.addr() + PAGE_SIZE);
        assert_eq!(touches_in_a_child(page, true), libc::SIGSEGV);
        assert_eq!(touches_in_a_child(none, false), libc::SIGBUS);
        for at in [page, none] {
            assert_eq!(make_writable_at(at), Err(libc::EACCES));
        }
        reserved.clear(0..PAGE_SIZE).unwrap();
        assert_eq!(touches_in_a_child(page, false), libc::SIGBUS);
    }
}

/// The first bytes of the pages that are mapped from the first on.
fn shown(reserved: &Reserved) -> Vec<u8> {
    let pages = reserved.mapped() / PAGE_SIZE;
    let at = core::ptr::with_exposed_provenance::<u8>(reserved.addr());
    // SAFETY: `pages` pages are mapped from the first on; nobody writes them.
    (0..pages).map(|i| unsafe { at.wrapping_add(i * PAGE_SIZE).read_volatile() }).collect()
}
