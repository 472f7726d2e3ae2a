//! Pages that an application holds: what it may give back, and what is refused.

use pagewire_mem::{
    BufferId, CopyLedger, CopyReason, GROUP_PAGES, Handed, Lease, MemError, PAGE_SIZE, PagePool,
    PageWriter, Refused, Region,
};
use pagewire_testkit::given;

fn pool() -> PagePool {
    PagePool::over(Region::memfd_shared("lease", GROUP_PAGES * PAGE_SIZE).unwrap()).unwrap()
}

/// Gives the first `n` pages of a region that is the application's.
fn post(lease: &mut Lease, n: u32) {
    for page in 0..n {
        assert_eq!(lease.take_back(BufferId::first(page)), Ok(true));
    }
}

fn receive(pool: &mut PagePool, lease: &mut Lease, data: &[u8]) -> Vec<Handed> {
    pool.drain();
    let (frags, n) =
        PageWriter::new().write(pool, data, &mut CopyLedger::new(), CopyReason::DeviceRx);
    assert_eq!(n, data.len());
    let mut handed = Vec::new();
    for frag in frags {
        lease.hand_out(frag, |part| handed.push(part)).unwrap();
    }
    handed
}

given! {
    let mut pool = pool();

    a_region_is_the_applications_until_it_gives_its_pages {
        let mut lease = Lease::all(&mut pool).unwrap();
        assert_eq!(pool.stats().free, 0);
        post(&mut lease, 3);
        assert_eq!((pool.drain(), lease.unposted()), (3, GROUP_PAGES - 3));
        assert_eq!(lease.take_back(BufferId::first(0)), Err(Refused::NotHeld), "given twice");
        assert!(pool.audit().is_conserved());
        assert!(matches!(Lease::all(&mut pool), Err(MemError::Claimed(_))), "pages are in use");
    }
    bytes_are_handed_out_page_by_page_and_each_part_is_a_reference {
        let mut lease = Lease::all(&mut pool).unwrap();
        post(&mut lease, GROUP_PAGES as u32);
        let data: Vec<u8> = (0..PAGE_SIZE + 10).map(|i| i as u8).collect();
        let parts = receive(&mut pool, &mut lease, &data);
        let lens: Vec<_> = parts.iter().map(|part| part.len as usize).collect();
        assert_eq!((lens, lease.delivered()), (vec![PAGE_SIZE, 10], 2));
        let view = lease.view();
        let mut seen = vec![0; data.len()];
        let (first, second) = seen.split_at_mut(PAGE_SIZE);
        assert_eq!(view.copy_out(parts[0].offset as usize, first), PAGE_SIZE);
        assert_eq!(view.copy_out(parts[1].offset as usize, second), 10);
        assert_eq!(seen, data);
        for part in parts {
            assert_eq!(lease.take_back(part.id), Ok(true));
        }
        pool.drain();
        assert_eq!((lease.delivered(), pool.stats().free), (0, GROUP_PAGES));
        assert!(pool.audit().is_conserved());
    }
    a_page_in_two_parts_is_home_when_both_are {
        let mut lease = Lease::all(&mut pool).unwrap();
        post(&mut lease, 2);
        pool.drain();
        let mut writer = PageWriter::new();
        let mut write = |pool: &mut PagePool, data: &[u8]| {
            let mut ledger = CopyLedger::new();
            writer.write(pool, data, &mut ledger, CopyReason::DeviceRx).0.pop().unwrap()
        };
        let (a, b) = (write(&mut pool, &[1; 100]), write(&mut pool, &[2; 50]));
        let mut ids = Vec::new();
        lease.hand_out(a, |part| ids.push(part.id)).unwrap();
        lease.hand_out(b, |part| ids.push(part.id)).unwrap();
        assert_eq!(ids[0], ids[1], "one page, one turn");
        assert_eq!(lease.take_back(ids[0]), Ok(false));
        assert_eq!(lease.take_back(ids[1]), Ok(true));
        assert_eq!(lease.take_back(ids[1]), Err(Refused::NotHeld));
    }
    foreign_stale_doubled_and_impossible_ids_change_nothing {
        let mut lease = Lease::all(&mut pool).unwrap();
        post(&mut lease, 1);
        let first = receive(&mut pool, &mut lease, b"first turn")[0];
        assert_eq!(lease.take_back(BufferId::first(0)), Err(Refused::Stale), "an earlier turn");
        assert_eq!(lease.take_back(BufferId(u32::MAX)), Err(Refused::OutOfRange));
        assert_eq!(lease.take_back(BufferId::first(GROUP_PAGES as u32)), Err(Refused::OutOfRange));
        assert_eq!(lease.take_back(first.id), Ok(true));
        assert_eq!(lease.take_back(first.id), Err(Refused::NotHeld), "doubled");
        let second = receive(&mut pool, &mut lease, b"second turn")[0];
        assert_eq!(second.offset, first.offset, "the same page");
        assert_eq!(lease.take_back(first.id), Err(Refused::Stale), "doubled, after the next turn");
        assert_eq!(lease.delivered(), 1);
        assert_eq!(lease.take_back(second.id), Ok(true));
        assert!(pool.audit().is_conserved());
    }
    an_application_that_vanishes_lets_go_of_everything {
        let mut lease = Lease::all(&mut pool).unwrap();
        post(&mut lease, 10);
        receive(&mut pool, &mut lease, &[7; 3 * PAGE_SIZE]);
        assert!(!lease.is_home());
        drop(lease);
        pool.drain();
        assert_eq!(pool.stats().free, GROUP_PAGES);
    }
}

#[test]
fn a_fragment_of_other_memory_is_given_back() {
    let mut lease = Lease::all(&mut pool()).unwrap();
    let frag = pagewire_mem::Frag::from_static(b"elsewhere");
    assert!(!lease.owns(&frag));
    let back = lease.hand_out(frag, |_| panic!("handed out")).unwrap_err();
    assert_eq!(back.len(), 9);
}

#[test]
fn a_memfd_of_somebody_else_must_not_shrink() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let file = || {
        let fd = memfd_create("theirs", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, PAGE_SIZE as u64).unwrap();
        fd
    };
    assert!(matches!(Region::from_memfd(file(), PAGE_SIZE), Err(MemError::NotSealed)));
    let sealed = file();
    fcntl_add_seals(&sealed, SealFlags::SHRINK).unwrap();
    let clone = sealed.try_clone().unwrap();
    assert!(matches!(Region::from_memfd(clone, 2 * PAGE_SIZE), Err(MemError::Range { .. })));
    assert_eq!(Region::from_memfd(sealed, PAGE_SIZE).unwrap().len(), PAGE_SIZE);
    assert!(matches!(Region::huge("huge", PAGE_SIZE), Err(MemError::Length(_))));
}
