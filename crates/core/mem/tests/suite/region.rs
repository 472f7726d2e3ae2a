//! Regions: what may be mapped, what may be lent, and that nothing is both lent and written.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagewire_mem::{
    Access, CopyLedger, CopyReason, GROUP_PAGES, MemError, PAGE_SIZE, PagePool, PageWriter, Region,
};

const GROUP: usize = GROUP_PAGES * PAGE_SIZE;

/// A file with these bytes, removed on drop, opened for reading.
struct TempFile(PathBuf, File);

impl TempFile {
    fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let unique = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("pagewire-mem-{}-{}", unique.0, unique.1));
        File::create_new(&path).unwrap().write_all(bytes).unwrap();
        let mut rights = std::fs::metadata(&path).unwrap().permissions();
        rights.set_readonly(true);
        std::fs::set_permissions(&path, rights).unwrap();
        let file = File::open(&path).unwrap();
        Self(path, file)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_read_only_file_is_lent_as_shared_memory() {
    let bytes: Vec<u8> = (0..3 * PAGE_SIZE + 5).map(|i| (i / 7) as u8).collect();
    let file = TempFile::new(&bytes);
    let region = Region::file(&file.1, 0, bytes.len()).unwrap();
    assert!(!region.is_writable() && region.fd().is_none());
    assert_eq!((region.access(), region.len()), (Access::Shared, bytes.len()));
    let frag = region.frag(1, bytes.len() - 1).unwrap();
    drop((region, file));
    assert!(frag.as_slice().is_none());
    let mut ledger = CopyLedger::new();
    let mut copy = vec![0; frag.len()];
    assert_eq!(frag.copy_to(0, &mut copy, &mut ledger, CopyReason::AppRead), copy.len());
    assert_eq!(copy, bytes[1..]);
    assert!(frag.into_bytes().is_err());
}

#[test]
fn a_view_of_a_file_lies_within_it_and_begins_on_a_page() {
    let file = TempFile::new(&[1; 2 * PAGE_SIZE]);
    let page = PAGE_SIZE as u64;
    assert_eq!(Region::file(&file.1, page, PAGE_SIZE).unwrap().len(), PAGE_SIZE);
    assert_eq!(Region::file(&file.1, page, 1).unwrap().len(), 1);
    assert!(matches!(Region::file(&file.1, 0, 0), Err(MemError::Length(0))));
    assert!(matches!(Region::file(&file.1, 1, 1), Err(MemError::Offset(1))));
    for (offset, len) in [(page, PAGE_SIZE + 1), (2 * page, 1), (u64::MAX - page + 1, PAGE_SIZE)] {
        assert!(matches!(Region::file(&file.1, offset, len), Err(MemError::Range { .. })));
    }
    assert!(matches!(Region::file(&file.1, 0, usize::MAX), Err(MemError::Length(_))));
}

#[test]
fn a_range_of_a_region_is_checked() {
    let region = Region::memfd("ranges", GROUP).unwrap();
    assert_eq!(region.frag(0, GROUP).unwrap().as_slice().map(<[u8]>::len), Some(GROUP));
    assert!(region.frag(GROUP, 0).unwrap().is_empty());
    for (offset, len) in
        [(0, GROUP + 1), (GROUP, 1), (GROUP + 1, 0), (usize::MAX, 1), (1, usize::MAX)]
    {
        assert!(matches!(region.frag(offset, len), Err(MemError::Range { .. })));
    }
}

#[test]
fn a_pool_takes_whole_groups_of_writable_aligned_memory() {
    assert!(matches!(PagePool::new("none", 0), Err(MemError::Length(0))));
    assert!(PagePool::new("huge", usize::MAX).is_err());
    assert_eq!(PagePool::new("round", 1).unwrap().stats().total, GROUP_PAGES);
    assert_eq!(PagePool::new("exact", GROUP).unwrap().stats().total, GROUP_PAGES);
    assert_eq!(PagePool::new("more", GROUP + 1).unwrap().stats().total, 2 * GROUP_PAGES);
    let odd = Region::memfd("odd", GROUP + PAGE_SIZE).unwrap();
    assert!(matches!(PagePool::over(odd), Err(MemError::Length(_))));
    let file = TempFile::new(&vec![0; GROUP]);
    let file = Region::file(&file.1, 0, GROUP).unwrap();
    assert!(matches!(PagePool::over(file), Err(MemError::NotPages)));
    let memory = vec![0u8; GROUP + PAGE_SIZE].leak();
    let skew = memory.as_ptr().align_offset(PAGE_SIZE) + 1;
    let base = NonNull::from(&mut memory[skew..]).cast::<u8>();
    // SAFETY: `GROUP - 1` bytes of leaked memory from `base` on are ours alone; the pool that
    // would write one more is refused.
    let region = unsafe { Region::adopt(base, GROUP, Access::Private, true, Box::new(())) };
    assert!(matches!(PagePool::over(region), Err(MemError::NotPages)));
}

#[test]
fn memory_is_either_written_by_one_pool_or_lent() {
    let region = Region::memfd("claims", GROUP).unwrap();
    let mut pool = PagePool::over(region.clone()).unwrap();
    assert!(matches!(PagePool::over(region.clone()), Err(MemError::Claimed(_))));
    assert!(matches!(region.frag(0, 1), Err(MemError::Claimed(_))));
    let mut writer = PageWriter::new();
    assert!(writer.refill(&mut pool, 1));
    let page = writer.commit(PAGE_SIZE);
    drop(pool);
    drop(writer);
    assert!(region.frag(0, 1).is_err(), "a page of the pool is still out");
    drop(page);
    drop(PagePool::over(region.clone()).unwrap());
    let lent = region.frag(0, 1).unwrap();
    drop((region.frag(1, 1).unwrap(), lent));
    let refused = PagePool::over(region).unwrap_err().to_string();
    assert_eq!(refused, "the region already serves as lent memory; take another region");
}

#[test]
fn a_private_region_can_be_read_but_not_written_through_its_file() {
    let region = Region::memfd("sealed", GROUP).unwrap();
    let Some(fd) = region.fd() else {
        pagewire_testkit::skip("this kernel cannot seal a memfd against future writers");
        return;
    };
    let mut file = File::from(fd.try_clone_to_owned().unwrap());
    assert!(file.write_all(b"x").is_err());
    assert!(file.set_len(0).is_err());
    let view = Region::file(&file, 0, GROUP).unwrap();
    assert_eq!(view.access(), Access::Shared);
    let prot = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::SHARED;
    // SAFETY: a null hint lets the kernel choose a free range, so no existing mapping changes.
    let mapped =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), GROUP, prot, flags, file.as_fd(), 0) };
    assert!(mapped.is_err());
}

#[test]
fn a_shared_region_can_be_written_through_its_file() {
    let region = Region::memfd_shared("open", PAGE_SIZE).unwrap();
    let mut file = File::from(region.fd().unwrap().try_clone_to_owned().unwrap());
    let frag = region.frag(0, 5).unwrap();
    assert!(frag.as_slice().is_none());
    file.write_all(b"hello").unwrap();
    let (mut seen, mut ledger) = (Vec::new(), CopyLedger::new());
    frag.for_each_piece(&mut ledger, |piece| seen.extend_from_slice(piece));
    assert_eq!((&seen[..], ledger.get(CopyReason::Snapshot)), (&b"hello"[..], 5));
    assert!(file.set_len(0).is_err(), "its size is fixed");
}

#[test]
fn adopted_memory_is_kept_until_its_last_fragment_goes() {
    let keep = Arc::new(vec![6u8; 10_000]);
    let base = NonNull::from(&keep[..]).cast::<u8>();
    let boxed = Box::new(Arc::clone(&keep));
    // SAFETY: the vector stays in place and unwritten while `boxed` holds it.
    let region = unsafe { Region::adopt(base, keep.len(), Access::Private, false, boxed) };
    let frag = region.frag(100, 50).unwrap();
    drop(region);
    assert_eq!((frag.as_slice(), Arc::strong_count(&keep)), (Some(&[6; 50][..]), 2));
    let bytes = frag.into_bytes().unwrap();
    assert_eq!(Arc::strong_count(&keep), 2);
    drop(bytes);
    assert_eq!(Arc::strong_count(&keep), 1);
}

#[test]
fn shared_bytes_of_every_length_are_copied_and_no_others() {
    let region = Region::memfd_shared("lengths", 2 * PAGE_SIZE).unwrap();
    let bytes: Vec<u8> = (0..2 * PAGE_SIZE).map(|i| (i * 7 + i / 256) as u8).collect();
    assert_eq!(region.copy_shared_in(0, &bytes).unwrap(), bytes.len());
    for len in (0..600).chain([1500, 2047, 2048, 2049, 4095, 4096, 4097]) {
        for at in [0, 1, 7, 8, 15, 63, 100] {
            let mut into = vec![0xee; at + len + 40];
            assert_eq!(region.copy_shared_out(at + 3, &mut into[at..at + len]), len);
            assert_eq!(into[at..at + len], bytes[at + 3..at + 3 + len], "{len} bytes at {at}");
            let around = into[..at].iter().chain(&into[at + len..]);
            assert!(around.copied().all(|byte| byte == 0xee), "{len} bytes at {at}");
        }
    }
}

#[test]
fn anonymous_memory_is_private_and_has_no_file() {
    let region = Region::anonymous(GROUP).unwrap();
    assert_eq!(
        (region.access(), region.len(), region.is_writable()),
        (Access::Private, GROUP, true)
    );
    assert!(region.fd().is_none());
    assert!(matches!(Region::anonymous(PAGE_SIZE + 1), Err(MemError::Length(_))));
    assert!(matches!(Region::anonymous(0), Err(MemError::Length(0))));
    let mut pool = PagePool::anonymous(1).unwrap();
    assert_eq!(pool.stats().total, GROUP_PAGES, "whole groups");
    let (mut writer, mut ledger) = (PageWriter::new(), CopyLedger::new());
    let (frags, written) = writer.write(&mut pool, b"bytes", &mut ledger, CopyReason::AppWrite);
    assert_eq!((written, frags[0].as_slice()), (5, Some(&b"bytes"[..])));
}

#[test]
fn private_memory_is_filled_again_once_nobody_refers_to_it() {
    let memories: [fn() -> Region; 2] =
        [|| Region::memfd("again", GROUP).unwrap(), || Region::anonymous(GROUP).unwrap()];
    for make in memories {
        let mut region = make();
        for round in 1..4 {
            region.bytes_mut().unwrap().fill(round);
            let mut frag = region.frag(1, GROUP - 1).unwrap();
            let part = frag.split_to(10);
            assert!(matches!(region.bytes_mut(), Err(MemError::InUse)));
            drop(frag);
            assert!(matches!(region.bytes_mut(), Err(MemError::InUse)), "a part is there");
            assert_eq!(part.as_slice(), Some(&[round; 10][..]));
            // On another thread, as by a receiver.
            std::thread::spawn(move || drop(part)).join().unwrap();
        }
        let clone = region.clone();
        assert!(matches!(region.bytes_mut(), Err(MemError::InUse)));
        drop(clone);
        let pool = PagePool::over(region.clone());
        assert!(pool.is_err() || matches!(region.bytes_mut(), Err(MemError::InUse)));
        drop(pool);
        assert!(region.bytes_mut().is_ok());
    }
}

#[test]
fn memory_that_others_write_or_nobody_is_not_borrowed() {
    let mut shared = Region::memfd_shared("shared", GROUP).unwrap();
    assert!(matches!(shared.bytes_mut(), Err(MemError::Shared)));
    let file = TempFile::new(&[1; PAGE_SIZE]);
    let mut file = Region::file(&file.1, 0, PAGE_SIZE).unwrap();
    assert!(matches!(file.bytes_mut(), Err(MemError::ReadOnly)));
    assert!(matches!(file.copy_shared_in(0, &[1]), Err(MemError::ReadOnly)));
    let private = Region::anonymous(GROUP).unwrap();
    assert!(matches!(private.copy_shared_in(0, &[1]), Err(MemError::Private)));
    assert_eq!(private.copy_shared_out(0, &mut [0]), 0);
    assert_eq!(shared.copy_shared_in(GROUP - 1, &[1, 2]).unwrap(), 1, "cut at the end");
    let mut byte = [0];
    assert_eq!((shared.copy_shared_out(GROUP - 1, &mut byte), byte), (1, [1]));
}
