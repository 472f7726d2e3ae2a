//! Fragments one by one: what they lend, what they keep, what they count.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use pagewire_mem::limits::{MAX_FRAG_LEN, SNAPSHOT_LEN};
use pagewire_mem::{
    Access, CopyLedger, CopyReason, Deferral, Frag, GROUP_PAGES, HEAD_CAPACITY, MAX_FRAGS, Owner,
    PAGE_SIZE, PacketBuf, PagePool, PageWriter, Panicked, Region,
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// An address range that can be neither read nor written, unmapped and counted on drop.
struct NoAccess {
    addr: usize,
    len: usize,
    dropped: Arc<AtomicUsize>,
}

impl Drop for NoAccess {
    fn drop(&mut self) {
        let at = std::ptr::with_exposed_provenance_mut(self.addr);
        // SAFETY: made by `no_access` with this address and length; the region that kept us is
        // gone, and with it every fragment.
        unsafe { munmap(at, self.len) }.unwrap();
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A region of `len` bytes of `PROT_NONE`, and the count of its releases.
fn no_access(len: usize) -> (Region, Arc<AtomicUsize>) {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a null hint lets the kernel choose a free range, so no existing mapping changes.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) };
    let base = NonNull::new(at.unwrap().cast::<u8>()).unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    let addr = base.as_ptr().expose_provenance();
    let keep = Box::new(NoAccess { addr, len, dropped: Arc::clone(&dropped) });
    // SAFETY: the mapping stays until `keep` is dropped; it is shared, so it need not be readable.
    let region = unsafe { Region::adopt(base, len, Access::Shared, false, keep) };
    (region, dropped)
}

fn pool_frag(bytes: &[u8]) -> (PagePool, Frag) {
    let mut pool = PagePool::new("frag", bytes.len()).unwrap();
    let mut ledger = CopyLedger::new();
    let (mut frags, copied) =
        PageWriter::new().write(&mut pool, bytes, &mut ledger, CopyReason::AppWrite);
    assert_eq!((frags.len(), copied), (1, bytes.len()));
    (pool, frags.remove(0))
}

#[test]
fn memory_without_access_passes_through_untouched() {
    let (region, dropped) = no_access(16 * PAGE_SIZE);
    let mut ledger = CopyLedger::new();
    let mut whole = region.frag(0, 16 * PAGE_SIZE).unwrap();
    drop(region);
    assert!(whole.as_slice().is_none());
    let twin = whole.clone();
    let front = whole.split_to(PAGE_SIZE + 7);
    let mut part = twin.slice(5..3 * PAGE_SIZE);
    part.truncate(PAGE_SIZE);
    part.advance(1);
    let mut joined = front.clone();
    joined.try_append(whole.clone()).unwrap();
    assert_eq!((joined.addr(), joined.len()), (twin.addr(), twin.len()));
    assert_eq!(joined.pinned(), twin.len());
    let mut packet = PacketBuf::for_tx();
    packet.push(54).unwrap().fill(1);
    packet.push_frag(front).unwrap();
    packet.push_frag(whole).unwrap();
    assert_eq!(packet.frags().len(), 1, "parts that meet again are one");
    let copy = packet.clone();
    packet.truncate(60);
    assert_eq!(packet.frag_len(), 6);
    // Asking for no more than the head has must not read the payload.
    let mut headers = copy.clone();
    assert!(headers.linearize(54) && !headers.linearize(HEAD_CAPACITY + 1));
    drop(headers);
    let moved = std::thread::spawn(move || (copy.len(), drop(copy))).join().unwrap();
    assert_eq!(moved.0, 54 + 16 * PAGE_SIZE);
    assert!(twin.clone().into_bytes().is_err());
    assert_eq!(ledger.ours(), 0);
    ledger.note(CopyReason::DeviceTx, 1);
    drop((twin, part, joined));
    assert_eq!(dropped.load(Ordering::Relaxed), 0, "the packet still refers to it");
    drop(packet);
    assert_eq!(dropped.load(Ordering::Relaxed), 1, "the last fragment releases it, once");
}

#[test]
fn lengths_end_at_32_bits_and_never_wrap() {
    let (region, _) = no_access(2 * (MAX_FRAG_LEN + 1));
    assert!(region.frag(0, MAX_FRAG_LEN + 1).is_err());
    let mut longest = region.frag(0, MAX_FRAG_LEN).unwrap();
    let next = region.frag(MAX_FRAG_LEN, 1).unwrap();
    assert!(longest.is_followed_by(&next));
    let next = longest.try_append(next).unwrap_err();
    let mut packet = PacketBuf::for_tx();
    packet.push_frag(longest.clone()).unwrap();
    let next = packet.push_frag(next).unwrap_err();
    assert_eq!((packet.frag_len(), packet.frags().len()), (MAX_FRAG_LEN, 1));
    assert_eq!(next.len(), 1);
    let tail = longest.slice(MAX_FRAG_LEN - 1..usize::MAX);
    assert_eq!((tail.addr(), tail.len()), (longest.addr() + MAX_FRAG_LEN - 1, 1));
    longest.advance(usize::MAX);
    assert!(longest.is_empty());
}

#[test]
fn empty_fragments_hold_no_page() {
    let (mut pool, frag) = pool_frag(b"abc");
    assert!(frag.slice(1..1).is_empty());
    assert!(frag.slice(7..9).is_empty());
    let reversed = core::ops::Range { start: 2, end: 1 };
    assert!(frag.slice(reversed).is_empty());
    let mut left = frag.clone();
    let nothing = left.split_to(0);
    let all = left.split_to(9);
    assert!(nothing.is_empty() && left.is_empty() && all.len() == 3);
    left.try_append(all).unwrap();
    left.try_append(Frag::empty()).unwrap();
    assert_eq!(left.as_slice(), Some(&b"abc"[..]));
    left.truncate(0);
    drop(frag);
    pool.drain();
    assert_eq!(pool.audit().out, 0, "empty fragments keep nothing");
    assert_eq!((left.pinned(), nothing.pinned()), (0, 0));
    assert_eq!(Frag::empty().as_slice(), Some(&[][..]));
}

#[test]
fn advance_sends_whole_pages_home_at_once() {
    let (mut pool, mut frag) = pool_frag(&[7; 3 * PAGE_SIZE + 1]);
    assert_eq!((pool.audit().out, frag.pinned()), (4, 4 * PAGE_SIZE));
    frag.advance(PAGE_SIZE - 1);
    assert_eq!(pool.audit().out, 4, "one byte of the first page is left");
    frag.advance(1);
    assert_eq!((pool.audit().out, frag.pinned()), (3, 3 * PAGE_SIZE));
    frag.truncate(2 * PAGE_SIZE);
    assert_eq!((pool.audit().out, frag.pinned()), (2, 2 * PAGE_SIZE));
    drop(frag);
    pool.drain();
    assert_eq!(pool.stats().free, pool.stats().total);
}

#[test]
fn memory_outlives_the_pool_that_made_it() {
    let (pool, mut frag) = pool_frag(&[9; PAGE_SIZE + 3]);
    drop(pool);
    let front = frag.split_to(5);
    let bytes = frag.into_bytes().unwrap();
    drop(front);
    assert!(bytes.iter().all(|&b| b == 9) && bytes.len() == PAGE_SIZE - 2);
}

#[test]
fn into_bytes_keeps_pages_until_the_last_clone_goes() {
    let (mut pool, mut frag) = pool_frag(&[1; 2 * PAGE_SIZE]);
    let addr = frag.addr();
    let bytes = frag.split_to(PAGE_SIZE).into_bytes().unwrap();
    let part = bytes.slice(100..200);
    assert_eq!(bytes.as_ptr().addr(), addr, "not a copy");
    drop((bytes, frag));
    pool.drain();
    assert_eq!(pool.audit().out, 1);
    drop(part);
    pool.drain();
    assert_eq!(pool.audit().out, 0);
}

#[test]
fn bytes_come_back_as_the_same_bytes() {
    let bytes = Bytes::from(vec![3; 1000]);
    let mut frag = Frag::from(bytes.clone());
    frag.advance(10);
    frag.truncate(100);
    let back = frag.into_bytes().unwrap();
    assert_eq!(back.as_ptr(), bytes[10..].as_ptr());
    assert_eq!(back, bytes[10..110]);
    assert!(Frag::from_bytes(Bytes::new()).is_empty());
    let fixed = Frag::from_static(b"static").slice(1..4);
    assert_eq!(fixed.into_bytes().unwrap(), &b"tat"[..]);
}

#[test]
fn only_neighbours_under_one_hold_are_joined() {
    let whole = Frag::from_bytes(Bytes::from(vec![5; 100]));
    let mut front = whole.slice(0..40);
    assert!(front.try_append(whole.slice(41..100)).is_err(), "a gap");
    assert!(front.try_append(whole.slice(39..100)).is_err(), "an overlap");
    assert!(front.try_append(whole.slice(0..40)).is_err(), "not a continuation");
    front.try_append(whole.slice(40..100)).unwrap();
    assert_eq!(front.as_slice(), whole.as_slice());
    // Two holds over neighbouring bytes: one slice over both could outlive either.
    let bytes = Bytes::from(vec![5; 100]);
    let (a, b) = (Frag::from_bytes(bytes.slice(..50)), Frag::from_bytes(bytes.slice(50..)));
    assert!(a.is_followed_by(&b));
    let mut a = a;
    assert!(a.try_append(b).is_err());
}

#[test]
fn shared_memory_is_copied_and_snapshotted_but_never_lent() {
    let mut pool = PagePool::over(Region::memfd_shared("shared", 1 << 18).unwrap()).unwrap();
    let mut ledger = CopyLedger::new();
    let text: Vec<u8> = (0..3 * SNAPSHOT_LEN + 1).map(|i| i as u8).collect();
    let (frags, _) =
        PageWriter::new().write(&mut pool, &text, &mut ledger, CopyReason::SmallSegment);
    let frag = &frags[0];
    assert_eq!(frag.access(), Access::Shared);
    for part in [frag.clone(), frag.slice(1..9), frag.clone().split_to(3)] {
        assert!(part.as_slice().is_none());
        assert!(part.into_bytes().is_err());
    }
    let mut seen = Vec::new();
    frag.for_each_piece(&mut ledger, |piece| seen.extend_from_slice(piece));
    assert_eq!(seen, text);
    assert_eq!(ledger.get(CopyReason::Snapshot), text.len() as u64);
    assert_eq!(ledger.get(CopyReason::SmallSegment), text.len() as u64);
    assert_eq!(ledger.ours(), 2 * text.len() as u64);
}

#[test]
fn copies_are_cut_at_the_end_and_counted_exactly() {
    let frag = Frag::from_static(b"0123456789");
    let mut ledger = CopyLedger::new();
    let mut dst = [0; 4];
    assert_eq!(frag.copy_to(2, &mut dst, &mut ledger, CopyReason::AppRead), 4);
    assert_eq!(&dst, b"2345");
    assert_eq!(frag.copy_to(9, &mut dst, &mut ledger, CopyReason::AppRead), 1);
    assert_eq!(&dst, b"9345");
    assert_eq!(frag.copy_to(10, &mut dst, &mut ledger, CopyReason::AppRead), 0);
    assert_eq!(frag.copy_to(usize::MAX, &mut dst, &mut ledger, CopyReason::AppRead), 0);
    assert_eq!(frag.copy_to(0, &mut [], &mut ledger, CopyReason::AppRead), 0);
    assert_eq!(ledger.get(CopyReason::AppRead), 5);
    let mut raw = [0u8; 8];
    for to in [Access::Private, Access::Shared] {
        let at = NonNull::from(&mut raw).cast::<u8>();
        // SAFETY: `raw` has eight bytes, and nobody else reaches them.
        let n = unsafe { frag.copy_to_raw(4, at, 8, to, &mut ledger, CopyReason::DeviceTx) };
        assert_eq!((n, &raw), (6, b"456789\0\0"));
    }
    assert_eq!((ledger.get(CopyReason::DeviceTx), ledger.ours()), (12, 5));
    let mut sum = CopyLedger::new();
    sum.add(&ledger);
    sum.add(&ledger);
    assert_eq!(sum.iter().map(|(_, n)| n).sum::<u64>(), 34);
}

#[test]
fn reasons_are_listed_in_the_order_of_the_ledger() {
    for (i, reason) in CopyReason::ALL.iter().copied().enumerate() {
        assert_eq!(reason as usize, i);
        let mut ledger = CopyLedger::new();
        ledger.note(reason, 3);
        let counted: Vec<_> = ledger.iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(counted, [(reason, 3)]);
        assert_eq!(ledger.ours(), if reason.is_ours() { 3 } else { 0 });
    }
    let names: std::collections::BTreeSet<_> =
        CopyReason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), CopyReason::COUNT);
}

#[test]
fn a_64_kib_payload_in_mid_page_fits_one_packet_even_page_by_page() {
    let mut pool = PagePool::new("packet", GROUP_PAGES * PAGE_SIZE).unwrap();
    let mut writer = PageWriter::new();
    writer.refill(&mut pool, GROUP_PAGES);
    drop(writer.commit(100));
    let mut whole = writer.commit(16 * PAGE_SIZE);
    let mut pages = vec![whole.split_to(PAGE_SIZE - 100)];
    while !whole.is_empty() {
        pages.push(whole.split_to(PAGE_SIZE));
    }
    assert_eq!(pages.len(), MAX_FRAGS);
    // Backwards nothing joins, so each is its own fragment.
    let mut packet = PacketBuf::for_tx();
    for page in pages.into_iter().rev() {
        packet.push_frag(page).unwrap();
    }
    assert_eq!((packet.frags().len(), packet.frag_len()), (MAX_FRAGS, 16 * PAGE_SIZE));
    let refused = packet.push_frag(Frag::from_static(b"x")).unwrap_err();
    assert_eq!(refused.len(), 1);
    packet.push_frag(Frag::empty()).unwrap();
    assert_eq!(packet.len(), 16 * PAGE_SIZE);
}

/// The copy is made in different ways, by length and by where the two sides lie in their pages.
#[test]
fn a_copy_is_the_same_wherever_the_two_sides_lie() {
    const MOST: usize = 3 * PAGE_SIZE;
    let pattern: Vec<u8> = (0..MOST).map(|i| (i * 7 + i / 251) as u8).collect();
    let private = Frag::from_bytes(pattern.clone().into());
    let at = std::ptr::NonNull::from(&pattern[..]).cast::<u8>();
    // SAFETY: the vector outlives the fragment, and nobody writes to it.
    let shared = unsafe { Frag::from_raw(at, MOST, Access::Shared, Owner::new(())) };
    let mut room = vec![0; MOST + 2 * PAGE_SIZE];
    for frag in [private, shared] {
        for behind in [0, 1, 2, 7, 8, 15, 16, 31, 32, 63, 64, 65, 100, 4000, 4095] {
            let start = (frag.addr() + behind).wrapping_sub(room.as_ptr().addr()) % PAGE_SIZE;
            for len in [0, 1, 15, 16, 63, 64, 100, 2047, 2048, 2049, 2112, 4096, 4097, 10_000, MOST]
            {
                room.fill(0xee);
                let mut ledger = CopyLedger::new();
                let into = &mut room[start..start + len];
                assert_eq!(frag.copy_to(0, into, &mut ledger, CopyReason::AppRead), len);
                assert_eq!(into, &pattern[..len], "{behind} behind, {len} bytes");
                assert_eq!(ledger.get(CopyReason::AppRead), len as u64);
                assert!(room[..start].iter().chain(&room[start + len..]).all(|&b| b == 0xee));
            }
        }
    }
}

/// An application's owner may call the host under whose lock the last reference goes.
#[test]
fn an_owner_of_an_application_s_is_dropped_after_the_deferral_and_a_prompt_one_at_once() {
    struct CountsDrops(Arc<AtomicUsize>);
    impl Drop for CountsDrops {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    static BYTES: [u8; 100] = [7; 100];
    let drops = Arc::new(AtomicUsize::new(0));
    let frag = |owner| {
        // SAFETY: static memory, which nobody writes.
        unsafe { Frag::from_raw(NonNull::from(&BYTES).cast(), 100, Access::Private, owner) }
    };
    let counted = || CountsDrops(Arc::clone(&drops));
    let (theirs, ours) = (frag(Owner::new(counted())), frag(Owner::prompt(counted())));
    let (theirs_too, ours_too) = (theirs.slice(5..9), ours.slice(5..9));
    let deferral = Deferral::begin();
    drop((ours, ours_too));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    drop((theirs, theirs_too));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert_eq!(deferral.end(), Panicked::default());
    assert_eq!(drops.load(Ordering::SeqCst), 2);
    drop(frag(Owner::new(counted())));
    assert_eq!(drops.load(Ordering::SeqCst), 3, "without a deferral, at once");
}
