//! Every limit of this crate, with its unit and its reason.

// Receive queue.

/// Payload bytes of a segment below which it is copied out of memory that it pins in excess:
/// copying this much costs about as much as handling one more pointer for the life of the bytes.
pub const SMALL_SEGMENT: usize = 512;

/// A small segment is copied when the memory it pins is more than this many times its length.
pub const SMALL_SEGMENT_PINNED_FACTOR: usize = 4;

/// Bytes of memory that a receive queue may pin, whatever they carry, before it thinks of
/// compacting: the pages of one super-frame as on a wire, too little to be worth an attack.
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

/// The part of the free receive memory of a host that one connection may pin: one in so many. With
/// four, a connection alone may have a fifth of everything, and of N each has one in N + 4.
pub const RECEIVE_SHARE: usize = 4;

/// The part of a host's receive memory, one in so many, that is kept for connections which hold
/// little: data of others is refused there even if it was invited.
pub const RECEIVE_RESERVE: usize = 8;

/// The part of a host's receive memory, one in so many, that datagrams may take: nobody can be asked
/// to send them more slowly, so they must not take from streams what these were promised.
pub const DATAGRAM_PART: usize = 2;

/// Payload bytes that a segment may take of that last part: a super-frame as on a wire. One that
/// stays in memory is up to 32 times as long, and three of those would leave nothing to anybody else.
pub const RESERVE_SEGMENT: usize = 64 * 1024;

// Congestion control.

/// Largest congestion window, in wire segments: the largest window that the header can express
/// (65535 << 14, RFC 7323 section 2.3) in the smallest segments that we send, so a larger one could
/// never be used.
pub const MAX_CONGESTION_WINDOW: u32 = (65_535 << 14) / 8;

/// Window, in segments, below which HyStart does not look (Linux's): so few samples say nothing.
pub const HYSTART_LOW_WINDOW: u32 = 16;

/// Round trips measured in a round before their minimum is judged (RFC 9406: N_RTT_SAMPLE).
pub const HYSTART_SAMPLES: u8 = 8;

/// Bounds of a rise of the round trip that ends slow start, in microseconds (RFC 9406 and Linux:
/// MIN_RTT_THRESH and MAX_RTT_THRESH, 4 and 16 ms).
pub const HYSTART_MIN_RISE_US: u32 = 4_000;
/// See [`HYSTART_MIN_RISE_US`].
pub const HYSTART_MAX_RISE_US: u32 = 16_000;

/// Growth in conservative slow start is divided by this (RFC 9406).
pub const CSS_GROWTH_DIVISOR: u32 = 4;

/// Rounds of conservative slow start before congestion avoidance (RFC 9406).
pub const CSS_ROUNDS: u8 = 5;

// Loss recovery.

/// Loss recoveries for which a reordering window that duplicates have widened stays (RFC 8985
/// section 6.2, step 4).
pub const RACK_PERSIST_RECOVERIES: u8 = 16;

/// Highest degree of reordering believed, in segments (Linux's `tcp_max_reordering`): beyond, a loss
/// would be noticed later than by the timer.
pub const MAX_REORDERING: u16 = 300;

/// Milliseconds added to the times of RACK and of probes: Linux's two ticks of a millisecond.
pub const TIMER_SLACK_MS: u64 = 2;

/// Acknowledgements sent at once after a congestion mark (Linux's): the window of the sender may be
/// very small.
pub const QUICK_ACKS_AFTER_MARK: u8 = 2;

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
pub const SUPER_FRAME_SEGMENTS: u32 = 128;

/// Largest send buffer, in bytes: the largest window that the header can express (65535 << 14), so
/// no more could ever be under way; and less than half of the sequence numbers, beyond which they
/// cannot be compared.
pub const MAX_SEND_BUFFER: u32 = 65_535 << 14;

/// Pieces that continue each other in memory become one fragment up to this many bytes, or up to the
/// link's super-frame if that is longer. A fragment is released as a whole, so it must not grow with
/// the stream.
pub const MAX_MERGED_FRAG: usize = 64 * 1024;

/// Payload bytes of the largest piece that the send buffer is charged for at once: 64 KiB less the
/// headers that Linux sets aside, so that limits are met at the same byte. Where super-frames are
/// longer than that, one of those.
pub const MAX_SUPER_SEGMENT: u32 = 65_215;

/// Bytes that a piece in the send queue is charged beside its payload: what Linux's bookkeeping for
/// one takes, so that send buffers mean the same.
pub const SUPER_SEGMENT_OVERHEAD: u32 = 1280;

/// Bytes that Linux's bookkeeping for one received or sent frame takes, from which the growth of the
/// send buffer is derived.
pub const SEGMENT_OVERHEAD: u32 = 640;

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

/// Congestion window, in segments, below which no probe for a longer path MTU leaves: its loss
/// would not be told from congestion (Linux's 11).
pub const MIN_MTU_PROBE_CWND: u32 = 11;

/// Shortest Fast Open cookie, in bytes (RFC 7413 section 4.1.1).
pub const MIN_FAST_OPEN_COOKIE: usize = 4;

/// Longest Fast Open cookie, in bytes (RFC 7413 section 4.1.1): what the option field leaves.
pub const MAX_FAST_OPEN_COOKIE: usize = 16;

/// Bytes of the cookies that we make: a 64-bit hash (Linux's length too).
pub const FAST_OPEN_COOKIE_LEN: usize = 8;

/// Bytes of a full segment that data in a SYN leaves free: the whole option field, because
/// middleboxes may add options of their own (Linux's `MAX_TCP_OPTION_SPACE`).
pub const FAST_OPEN_OPTION_ROOM: u16 = 40;

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

/// Acknowledgements owed one by one to a peer without SACK, at most. It counts duplicates up to
/// three; more only inflate its window.
pub const MAX_DUPLICATE_ACKS_OWED: u8 = 16;

/// How long a segment held back by cork or by a small window waits before it leaves all the same.
/// Linux's 200 ms.
pub const FLUSH_AFTER_MS: u64 = 200;

/// How long a segment waits, at most, that a device has refused, in milliseconds: Linux's
/// `TCP_RESOURCE_PROBE_INTERVAL`. What others send meanwhile decides, not the network.
pub const REFUSED_RETRY_MS: u64 = 500;

/// Bytes of a segment that timestamps take (RFC 7323 appendix A).
pub const TIMESTAMPS_LEN: u16 = 12;

/// Most whole pages in one segment: what an IP packet of 64 KiB has room for.
pub const MAX_PAYLOAD_PAGES: u8 = 15;

/// The first timeout of a SYN,ACK as the time of a deferred accept is counted, in seconds: Linux's
/// `TCP_TIMEOUT_INIT`.
pub const DEFER_FIRST_SECONDS: u64 = 1;

/// The longest timeout of a SYN,ACK as the time of a deferred accept is counted, in seconds: Linux's
/// `TCP_RTO_MAX`.
pub const DEFER_LONGEST_SECONDS: u64 = 120;
