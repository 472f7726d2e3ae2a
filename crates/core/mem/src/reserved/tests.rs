//! Reserved addresses on a system that runs out of mappings (`vm.max_map_count`): pages that can be seen
//! there stay held, whatever fails.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use crate::mapping::scarce;
use crate::{CopyLedger, CopyReason, GROUP_PAGES, PagePool, PageWriter};

/// Pages of a pool, filled by a device.
struct Pages {
    pool: PagePool,
    writer: PageWriter,
}

impl Pages {
    fn new() -> Self {
        let pool = PagePool::new("reserved-tests", GROUP_PAGES * PAGE_SIZE).unwrap();
        Self { pool, writer: PageWriter::new() }
    }

    /// A page filled with a byte; not right behind the last.
    fn page(&mut self, byte: u8) -> Frag {
        let (ledger, reason) = (&mut CopyLedger::new(), CopyReason::DeviceRx);
        let bytes = [byte; PAGE_SIZE];
        drop(self.writer.write(&mut self.pool, &[0; PAGE_SIZE], ledger, reason));
        let (mut frags, n) = self.writer.write(&mut self.pool, &bytes, ledger, reason);
        assert_eq!((frags.len(), n), (1, PAGE_SIZE), "one run");
        frags.remove(0)
    }

    /// Pages that are not free.
    fn out(&mut self) -> usize {
        self.writer.abandon();
        self.pool.drain();
        self.pool.audit().out
    }

    /// Fills every page that is free with what nobody may see through old addresses.
    fn reuse_all(&mut self) {
        let free = GROUP_PAGES - self.out();
        let (ledger, reason) = (&mut CopyLedger::new(), CopyReason::DeviceRx);
        let secret = vec![SECRET; free * PAGE_SIZE];
        let (_, n) = self.writer.write(&mut self.pool, &secret, ledger, reason);
        assert_eq!(n, secret.len());
    }
}

const SECRET: u8 = 0xee;

/// The first byte of the page at an address; `None`: nothing is there.
fn seen(addr: usize) -> Option<u8> {
    let (memory, mut byte) = (File::open("/proc/self/mem").unwrap(), [0]);
    memory.read_exact_at(&mut byte, addr as u64).ok().map(|()| byte[0])
}

fn reserved_pages(n: usize) -> (Pages, Reserved) {
    (Pages::new(), Reserved::new(n * PAGE_SIZE).unwrap())
}

fn put(reserved: &mut Reserved, frags: &[Frag]) -> Result<usize, MapFault> {
    reserved.put(0, frags.iter().map(|frag| (frag, frag.len())))
}

#[test]
fn pages_that_can_be_seen_stay_held_when_the_rest_cannot_be_mapped_nor_they_be_taken_away() {
    let (mut pages, mut reserved) = reserved_pages(2);
    let frags = [pages.page(1), pages.page(2)];
    // The first run is mapped; the second is not, and the first cannot be taken away again.
    scarce::answer(&[true, false, false]);
    assert!(matches!(put(&mut reserved, &frags), Err(MapFault::Memory(_))));
    drop(frags);
    assert_eq!((pages.out(), reserved.mapped()), (1, PAGE_SIZE));
    pages.reuse_all();
    assert_eq!(seen(reserved.addr()), Some(1), "no other connection's bytes");
    assert_eq!(seen(reserved.addr() + PAGE_SIZE), None);
    // The system has room again.
    reserved.clear(0..2 * PAGE_SIZE).unwrap();
    assert_eq!((pages.out(), seen(reserved.addr())), (0, None));
}

#[test]
fn a_run_that_cannot_be_mapped_takes_those_before_it_away_if_it_can() {
    let (mut pages, mut reserved) = reserved_pages(2);
    let frags = [pages.page(1), pages.page(2)];
    scarce::answer(&[true, false, true]);
    assert!(matches!(put(&mut reserved, &frags), Err(MapFault::Memory(_))));
    drop(frags);
    assert_eq!((pages.out(), seen(reserved.addr()), reserved.mapped()), (0, None, 0));
}

#[test]
fn what_was_to_be_replaced_and_was_not_stays_held() {
    let (mut pages, mut reserved) = reserved_pages(2);
    put(&mut reserved, &[pages.page(1), pages.page(2)]).unwrap();
    let frags = [pages.page(3), pages.page(4)];
    scarce::answer(&[true, false, false]);
    assert!(put(&mut reserved, &frags).is_err());
    drop(frags);
    assert_eq!(pages.out(), 2, "the new first one and the old second one");
    pages.reuse_all();
    let second = reserved.addr() + PAGE_SIZE;
    assert_eq!((seen(reserved.addr()), seen(second)), (Some(3), Some(2)));
}

#[test]
fn pages_that_cannot_be_cleared_stay_held() {
    let (mut pages, mut reserved) = reserved_pages(1);
    put(&mut reserved, &[pages.page(1)]).unwrap();
    scarce::answer(&[false]);
    assert!(reserved.clear(0..PAGE_SIZE).is_err());
    pages.reuse_all();
    assert_eq!(seen(reserved.addr()), Some(1));
}

#[test]
fn addresses_that_cannot_be_given_up_keep_their_pages_for_ever() {
    let (mut pages, mut reserved) = reserved_pages(1);
    let at = reserved.addr();
    put(&mut reserved, &[pages.page(1)]).unwrap();
    scarce::answer(&[false]);
    drop(reserved);
    assert_eq!(pages.out(), 1);
    pages.reuse_all();
    assert_eq!(seen(at), Some(1));
}
