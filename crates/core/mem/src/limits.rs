//! Every limit of this crate, with its unit and its reason.

/// Bytes in a page. Linux's base page on every machine that Pagewire runs on.
pub const PAGE_SIZE: usize = 4096;

/// Bytes in a huge page, as x86-64 and most others have it.
pub const HUGE_PAGE_SIZE: usize = 2 << 20;

/// Pages in a group, the unit in which bulk receivers take memory: one word of the free map. 64
/// pages are 256 KiB, four of a tap's largest super-frames.
#[cfg(not(loom))]
pub const GROUP_PAGES: usize = 64;

/// Pages in a group under the model checker: few enough that every schedule can be tried.
#[cfg(loom)]
pub const GROUP_PAGES: usize = 4;

/// Pages that a [`PageWriter`](crate::PageWriter) takes at least for copies: one 64 KiB
/// super-frame, so that small writes share a run and stay adjacent.
pub const WRITE_RUN_PAGES: usize = if GROUP_PAGES < 16 { GROUP_PAGES } else { 16 };

/// Pages that a device's writer reuses while they come back in time: a window at a multiple of 8
/// groups (2 MiB), so that a stream lies in long runs that are still in the cache.
pub const HOT_PAGES: usize = 8 * GROUP_PAGES;

/// Partly used groups that one allocation checks before it breaks a whole group, or takes a shorter
/// run: bounds the search in a big, fragmented pool to about a microsecond.
pub const SCAN_GROUPS: usize = 32;

/// Groups, freed last, whose memory a pool at rest keeps: 4 MiB, so that the next burst finds memory in place.
pub const WARM_GROUPS: usize = 16;

/// Bytes that one [`PagePool::trim`](crate::PagePool::trim) gives back at most: a few milliseconds of work
/// of the kernel, for which all calls wait.
pub const TRIM_BYTES: usize = 16 << 20;

/// Bytes in a cache line of every machine that Pagewire runs on: the alignment of frames.
pub const CACHE_LINE: usize = 64;

/// Longest copy, in bytes, of shared memory that uses a loop. The string instruction begins late
/// and waits for each line that is not in the cache: copying a frame of 512 bytes out of a guest's
/// ring took 64 ns with it and 45 in a loop, one of 1500 74 and 66.
pub const SHORT_COPY: usize = 2048;

/// Distance in bytes of a destination behind its source, modulo pages, at which some processors
/// copy byte by byte: within a vector of 32 bytes the string instruction was eight to nine times as
/// slow, from 64 on as fast as ever.
pub const TRAILING: usize = 64;

/// Pages in a block for small buffers: 32 KiB, as Linux's page fragments have, and what a
/// first-level cache holds.
pub const BLOCK_PAGES: usize = if GROUP_PAGES < 8 { GROUP_PAGES } else { 8 };

/// Full pages that a carver keeps for reuse: with the current block 256 KiB, which a burst of 64
/// frames of 1500 bytes fills twice, and less than a second-level cache.
pub const KEPT_PAGES: usize = 56;

/// Fragments of one packet at most. Linux's default (`MAX_SKB_FRAGS`): a 64 KiB payload in 4 KiB
/// pages that begins in the middle of one.
pub const MAX_FRAGS: usize = 17;

/// Bytes in a packet's linear head: Ethernet with one VLAN tag (18), IPv6 (40) and the longest
/// TCP header (60) are 118; the rest rounds up to two cache lines.
pub const HEAD_CAPACITY: usize = 128;

/// Longest fragment, and most fragment bytes in one packet: lengths have 32 bits.
pub const MAX_FRAG_LEN: usize = u32::MAX as usize;

/// Most pages in one pool (64 GiB): page numbers have 32 bits and one value ends the return list.
pub const MAX_POOL_PAGES: usize = 1 << 24;

/// Bits of a [`BufferId`](crate::BufferId) for the page's number: regions of up to 4 GiB can be
/// handed to an application. The other 12 bits tell 4,095 generations of a page apart.
pub const LEASE_PAGE_BITS: u32 = 20;

/// References to one page at which the process aborts, as `Arc` does at its limit: only a program
/// that leaks clones without end reaches it, and a wrapped count would free a page in use. Half the
/// counter's range, so that concurrent threads cannot wrap it before they abort.
pub const MAX_PAGE_REFS: u32 = 1 << 31;

/// Bytes of a snapshot, on the stack: half a page costs no stack probe and spreads the start-up
/// cost of a string copy.
pub const SNAPSHOT_LEN: usize = 2048;

/// Deferred owners that a thread keeps room for: 40 KiB, for the release of one full window.
pub const LATER_KEPT: usize = 1024;

// Lengths up to `MAX_FRAG_LEN` must be valid for slices, and byte offsets must fit `usize`.
const _: () = assert!(usize::BITS == 64, "Pagewire needs a 64-bit machine");
const _: () = assert!(GROUP_PAGES <= 64, "a group is one word of the free map");
