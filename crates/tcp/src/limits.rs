//! Every limit of this crate, with its unit and its reason.

// Receive queue.

/// Payload bytes of a segment below which it is copied out of memory that it pins in excess:
/// copying this much costs about as much as handling one more pointer for the life of the bytes.
pub const SMALL_SEGMENT: usize = 512;

/// A small segment is copied when the memory it pins is more than this many times its length.
pub const SMALL_SEGMENT_PINNED_FACTOR: usize = 4;

/// Bytes of memory that a receive queue may pin, whatever they carry, before it thinks of
/// compacting: one super-frame's worth of pages, too little to be worth an attack.
pub const COMPACT_MIN_PINNED: usize = 64 * 1024;

/// A receive queue compacts when it pins more than this many times the bytes that it buffers. An
/// honest sender of full segments stays below 3 (1460 bytes across two pages).
pub const COMPACT_FACTOR: usize = 4;

/// Bytes of memory that a receive queue may pin before it may refuse data: 256 pages, enough for
/// as many out-of-order ranges of a byte each.
pub const REFUSE_MIN_PINNED: usize = 1 << 20;

/// A receive queue that compacting did not help (no free pages, or ranges too small and too many)
/// refuses data when it pins more than this many times the bytes that it buffers.
pub const REFUSE_FACTOR: usize = 16;

/// Separate out-of-order ranges in one receive queue. A 6 MiB window of full segments with every
/// tenth lost has about 430; each range costs about 220 bytes of bookkeeping.
pub const MAX_OUT_OF_ORDER_RANGES: usize = 1024;

// Congestion control.

/// Largest congestion window, in bytes: the largest window that the header can express
/// (65535 << 14, RFC 7323 section 2.3), so a larger one could never be used.
pub const MAX_CONGESTION_WINDOW: u32 = 65_535 << 14;

/// Largest segment on the wire, in bytes of payload: the MSS option has 16 bits (RFC 9293
/// section 3.2).
pub const MAX_MSS: u32 = 65_535;

// Handshake.

/// Largest shift of the window scale option (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;
