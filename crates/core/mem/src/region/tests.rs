//! Mappings of huge pages. The tests need no free huge page: memory that is never touched takes none
//! (`MAP_NORESERVE`), and the kernel's arithmetic is the same.

use std::path::PathBuf;

use super::*;

const WHOLE: MapFlags = MapFlags::SHARED.union(MapFlags::NORESERVE);

/// A memfd of two huge pages; `None`: this kernel has none at all.
fn huge_file(name: &str) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let Ok(fd) = memfd_create(name, flags | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) else {
        pagewire_testkit::skip("this kernel has no huge pages of 2 MiB");
        return None;
    };
    ftruncate(&fd, 2 * HUGE_PAGE_SIZE as u64).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    Some(fd)
}

/// How many mappings of this process have `name` in the path of their file.
fn mappings_of(name: &str) -> usize {
    let maps = std::fs::read_to_string(PathBuf::from("/proc/self/maps")).unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn a_region_of_a_part_of_a_huge_page_is_unmapped_whole() {
    for len in [PAGE_SIZE, HUGE_PAGE_SIZE - PAGE_SIZE, HUGE_PAGE_SIZE + PAGE_SIZE] {
        let Some(fd) = huge_file("pagewire-huge-part") else { return };
        let memory = map(fd.as_fd(), len, ProtFlags::READ, WHOLE, 0).unwrap();
        assert_eq!(memory.1, len.next_multiple_of(HUGE_PAGE_SIZE));
        let region = Region::mapped(memory, len, Access::Shared, false, None);
        assert_eq!((region.len(), mappings_of("pagewire-huge-part")), (len, 1));
        drop(region);
        assert_eq!(mappings_of("pagewire-huge-part"), 0, "{len}");
    }
}

#[test]
fn a_mapping_is_as_long_as_whole_pages_of_its_file() {
    let small = memfd_create("pagewire-small", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&small, 100).unwrap();
    assert_eq!(page_of(small.as_fd()).unwrap(), PAGE_SIZE);
    let (base, mapped) = map(small.as_fd(), 100, ProtFlags::READ, WHOLE, 0).unwrap();
    assert_eq!(mapped, PAGE_SIZE);
    unmap(base, mapped);
    if let Some(huge) = huge_file("pagewire-huge") {
        assert_eq!(page_of(huge.as_fd()).unwrap(), HUGE_PAGE_SIZE);
    }
}

/// A hole in the file, with no huge page left, is a `SIGBUS` for whoever touches it, and no seal
/// under which a guest can write forbids it.
#[test]
fn huge_pages_that_somebody_else_has_are_mapped_for_those_who_trust_him_only() {
    let Some(fd) = huge_file("pagewire-huge-theirs") else { return };
    let theirs = fd.try_clone().unwrap();
    assert!(matches!(Region::from_memfd(theirs, PAGE_SIZE), Err(MemError::HugePages)));
    match Region::from_trusted_memfd(fd, PAGE_SIZE) {
        Ok(region) => {
            drop(region);
            assert_eq!(mappings_of("pagewire-huge-theirs"), 0);
        }
        // Refused by the kernel: no huge page is free.
        Err(error) => assert!(matches!(error, MemError::System("mmap", _)), "{error}"),
    }
}

/// A descriptor for each region of each guest would be a way to use up the process's.
#[test]
fn a_memfd_of_somebody_else_is_closed_once_it_is_mapped() {
    let fd = memfd_create("pagewire-closed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let fd = fd.unwrap();
    ftruncate(&fd, PAGE_SIZE as u64).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let region = Region::from_memfd(fd, PAGE_SIZE).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let named = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let left = named.filter(|link| link.to_string_lossy().contains("pagewire-closed")).count();
    assert_eq!((left, region.fd().is_none()), (0, true));
    assert_eq!(mappings_of("pagewire-closed"), 1, "and still mapped");
}
