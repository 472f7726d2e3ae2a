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

/// A receive queue that could not be compacted (no pages) refuses data when it pins more than this
/// many times the bytes that it buffers, beyond [`COMPACT_MIN_PINNED`].
pub const REFUSE_FACTOR: usize = 16;

/// Separate out-of-order ranges in one receive queue. A 6 MiB window of full segments with every
/// tenth lost has about 430; each range costs about 200 bytes of bookkeeping.
pub const MAX_OUT_OF_ORDER_RANGES: usize = 1024;
