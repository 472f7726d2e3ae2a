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

// Send queue.

/// Fragments in one send queue. 4 KiB pieces make 64 MiB of it, more than any send buffer; an
/// application that sends byte by byte by reference is held back here, at about a megabyte of
/// bookkeeping.
pub const MAX_SEND_FRAGS: usize = 16_384;

/// Records of what is under way that selective acknowledgements may have us keep: 512 KiB, and
/// 23 MiB under way in segments of the usual MTU, every one acknowledged apart. With more, a block
/// that would cut a record is ignored: a peer that cuts a full window of tiny segments to pieces
/// would make each cut dearer than the last.
pub const MAX_SACKED_RECORDS: usize = 16_384;

/// Wire segments in one super-frame: 64 KiB at the smallest MTU of IPv4 (576 bytes) are 125. A peer
/// that asks for segments of a few bytes must not have us make thousands of frames out of one.
pub const MAX_SUPER_SEGMENTS: u32 = 128;

/// Largest send buffer, in bytes: the largest window that the header can express (65535 << 14), so
/// no more could ever be under way; and less than half of the sequence numbers, beyond which they
/// cannot be compared.
pub const MAX_SEND_BUFFER: u32 = 65_535 << 14;

/// Pieces that continue each other in memory become one fragment up to this many bytes: one
/// super-frame. A fragment is released as a whole, so it must not grow with the stream.
pub const MAX_MERGED_FRAG: usize = 64 * 1024;

// Handshake.

/// Payload bytes of a wire segment when the peer's SYN says nothing (RFC 9293 section 3.7.1: 536
/// over IPv4; IPv6 would allow 1220, nobody's SYN leaves it out).
pub const DEFAULT_MSS: u16 = 536;

/// Smallest MSS that we cut to, in bytes, whatever the peer or an ICMP message says: the options
/// that we may have to send come out of it, up to 40 bytes, and 8 of payload are left. Below this,
/// headers are all that travels. Linux's `tcp_min_snd_mss`.
pub const MIN_SEND_MSS: u16 = 48;

/// Smallest MSS believed in an ICMP message: IPv4's least MTU of 576 bytes (RFC 1191 section 3)
/// less 40, rounded down to Linux's `min_pmtu` of 552 less 40.
pub const MIN_PATH_MSS: u16 = 512;

/// Largest shift of the window scale option (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// Largest receive buffer, in bytes: what the window can express (65535 << 14).
pub const MAX_RECV_BUFFER: u32 = 65_535 << 14;

/// Smallest receive buffer, in bytes: a full segment of the usual MTU must fit.
pub const MIN_RECV_BUFFER: u32 = 2048;

// Input.

/// Age in seconds beyond which a remembered timestamp says nothing about a new one: 24 days
/// (RFC 7323 section 5.5).
pub const TIMESTAMP_VALID_SECONDS: u64 = 24 * 24 * 60 * 60;

/// Duplicate acknowledgements that stand for a loss (RFC 5681 section 3.2, DupThresh).
pub const DUPLICATE_THRESHOLD: u32 = 3;

/// Acknowledgements owed one by one to a peer without SACK, at most. It counts duplicates up to
/// three; more only inflate its window.
pub const MAX_DUPLICATE_ACKS_OWED: u8 = 16;

/// How long a segment held back by cork or by a small window waits before it leaves all the same.
/// Linux's 200 ms.
pub const FLUSH_AFTER_MS: u64 = 200;
