//! Every limit of this crate, with its unit and its reason.

/// Bytes in a page. Linux's base page on every machine that Pagewire runs on.
pub const PAGE_SIZE: usize = 4096;

/// Pages in a group, the unit in which bulk receivers take memory: one word of the free map.
/// 64 pages are 256 KiB, four of the largest super-frames side by side.
pub const GROUP_PAGES: usize = 64;

/// Fragments a packet may carry. Linux's default for one packet (`MAX_SKB_FRAGS`): a 64 KiB
/// payload in 4 KiB pages that begins in the middle of one.
pub const MAX_FRAGS: usize = 17;

/// Bytes in a packet's linear head: Ethernet with one VLAN tag (18), IPv6 (40) and the longest
/// TCP header (60) are 118; the rest rounds up to two cache lines.
pub const HEAD_CAPACITY: usize = 128;

/// Longest single fragment, in bytes: its length is kept in 32 bits.
pub const MAX_FRAG_LEN: usize = u32::MAX as usize;

/// Most pages in one pool: page numbers are 32-bit and one value ends the return list.
pub const MAX_POOL_PAGES: usize = 1 << 24;
