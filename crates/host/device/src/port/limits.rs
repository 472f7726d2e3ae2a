//! Every limit of a port, with its unit and its reason.

use pagewire_mem::{CACHE_LINE, PAGE_SIZE};

/// Bytes in front of a frame that is built in place, for a hook's headers (Linux's `NET_SKB_PAD`).
pub const HEADROOM: usize = CACHE_LINE;

/// Shortest frame on Ethernet, in bytes: its header.
pub const MIN_ETHERNET: usize = 14;

/// Longest frame, in bytes: Ethernet, one VLAN tag, the longest IP packet without a jumbo payload.
pub const MAX_FRAME: usize = 18 + 65_535;

/// Memory for copied frames, in bytes per port, by default; touched only as far as used.
pub const POOL_BYTES: usize = 16 << 20;

/// Least memory for frames, in bytes: the longest frame must fit beside those that are held.
pub const MIN_POOL_BYTES: usize = 1 << 20;

/// Frames that wait for a port's guest after a hook sent them back, and as many redirected ones.
pub const QUEUED_FRAMES: usize = 1024;

/// Ports that can redirect to each other.
pub const MAX_PORTS: usize = 256;

/// Length in bytes from which a guest's memory is passed by reference by default: frames that do
/// not fit a page with their headroom and record.
pub const ZEROCOPY_FROM: usize = largest_built() + 1;

/// Longest frame that is built in place, in bytes.
pub const fn largest_built() -> usize {
    PAGE_SIZE - HEADROOM - METADATA
}

/// Bytes of a packet's record, in whole cache lines.
pub const METADATA: usize =
    core::mem::size_of::<pagewire_mem::PacketBuf>().next_multiple_of(CACHE_LINE);

/// Whether headroom, frame and record, each in whole cache lines, fit one page.
pub const fn fits_page(len: usize) -> bool {
    match len.checked_next_multiple_of(CACHE_LINE) {
        Some(lines) => HEADROOM + lines + METADATA <= PAGE_SIZE,
        None => false,
    }
}

const _: () = assert!(HEADROOM.is_multiple_of(CACHE_LINE));
const _: () = assert!(fits_page(largest_built()) && !fits_page(largest_built() + 1));
