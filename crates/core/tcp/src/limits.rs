//! Every limit of this crate, with its unit and its reason.

// Receive queue.

/// Payload bytes of a segment below which it is copied out of memory that it pins in excess. Such a
/// copy costs about as much as one more pointer.
pub const SMALL_SEGMENT: usize = 512;

/// A small segment is copied when the memory it pins is more than this many times its length.
pub const SMALL_SEGMENT_PINNED_FACTOR: usize = 4;

/// Bytes of memory that a receive queue may always pin before it compacts: the pages of one
/// super-frame on a wire, too few for an attack.
pub const COMPACT_MIN_PINNED: usize = 64 * 1024;

/// A receive queue compacts when it pins more than this many times its bytes. Full segments stay
/// below 3 (1460 bytes across two pages).
pub const COMPACT_FACTOR: usize = 4;

/// Bytes of memory that a receive queue may pin before it refuses data: 256 pages, enough for as
/// many out-of-order ranges of a byte each.
pub const REFUSE_MIN_PINNED: usize = 1 << 20;

/// A receive queue refuses data when it pins more than this many times its bytes, after compacting
/// did not help (no free pages, or too many small ranges).
pub const REFUSE_FACTOR: usize = 16;

/// Separate out-of-order ranges in one receive queue. A 6 MiB window of full segments with every
/// tenth lost has about 430; each range costs about 220 bytes of bookkeeping.
pub const MAX_OUT_OF_ORDER_RANGES: usize = 1024;

/// The part of a host's free memory that one connection may pin, as a divisor. With 4, a single
/// connection may have a fifth of all memory, and each of N has one in N + 4.
pub const MEMORY_SHARE: usize = 4;

/// The part of a host's memory, as a divisor, that is for copies of what is sent only: promised windows
/// would stop a host that sends much to many.
pub const COPIES_PART: usize = 4;

/// The part of a host's memory for received data, as a divisor, that windows leave free: thousands of
/// connections that begin at once get [`LEAST_WINDOW`] each of it.
pub const PROMISE_RESERVE: usize = 4;

/// Memory that a received byte pins, in sixteenths of a byte, before any was seen: pages are pinned whole.
pub const FIRST_OVERHEAD: u32 = 20;

/// Segments for which a connection that holds nothing always gets a window, as in Linux under pressure.
pub const LEAST_WINDOW: u32 = 4;

/// Unit of time by which promises of silent connections expire: after one to two of these. Longer than
/// the round trip of most paths, in which a peer uses what it was promised.
pub const PROMISE_EPOCH: core::time::Duration = core::time::Duration::from_millis(250);

/// The part of a host's receive memory, as a divisor, reserved for connections that hold little:
/// data of others is refused there even within the window.
pub const RECEIVE_RESERVE: usize = 8;

/// The part of a host's receive memory, as a divisor, that datagrams may take: they have no flow
/// control, so they must not take memory that windows have promised.
pub const DATAGRAM_PART: usize = 2;

/// The part of a host's receive memory, as a divisor, that first datagrams of sockets may take while
/// there is any: some queries get through however much is unread. 256 KiB of 16 MiB.
pub const DATAGRAM_RESERVE: usize = 64;

/// Payload bytes that a segment may take of the reserve: a super-frame on a wire. One in memory is
/// up to 32 times as long, and three of those would exhaust the reserve.
pub const RESERVE_SEGMENT: usize = 64 * 1024;

/// Payload bytes beyond gaps that a connection may hold in the reserve: two segments of the usual MTU,
/// enough for selective acknowledgements that show a loss.
pub const RESERVE_BEYOND_GAP: usize = 3000;

// Congestion control.

/// Largest congestion window, in wire segments: the largest window that the header can express
/// (65535 << 14, RFC 7323 section 2.3) in the smallest segments that we send.
pub const MAX_CONGESTION_WINDOW: u32 = (65_535 << 14) / 8;

/// Window, in segments, below which HyStart is off for lack of samples (Linux's).
pub const HYSTART_LOW_WINDOW: u32 = 16;

/// Round trips measured in a round before their minimum is checked (RFC 9406: N_RTT_SAMPLE).
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

/// Loss recoveries for which a widened reordering window stays (RFC 8985 section 6.2, step 4).
pub const RACK_PERSIST_RECOVERIES: u8 = 16;

/// Highest degree of reordering, in segments (Linux's `tcp_max_reordering`): beyond it, the timer
/// would detect a loss earlier.
pub const MAX_REORDERING: u16 = 300;

/// Milliseconds added to the times of RACK and of probes: Linux's two ticks of a millisecond.
pub const TIMER_SLACK_MS: u64 = 2;

/// Acknowledgements sent at once after a congestion mark (Linux's): the peer's window may be small.
pub const QUICK_ACKS_AFTER_MARK: u8 = 2;

/// Shortest wait for the next look at a silent peer: one of no time would be due again at once, for
/// ever.
pub const MIN_KEEPALIVE_WAIT: core::time::Duration = core::time::Duration::from_millis(1);

// Send queue.

/// Fragments in one send queue. With 4 KiB each they are 64 MiB, more than any send buffer. This
/// limits an application that sends byte by byte by reference, at about a megabyte of bookkeeping.
pub const MAX_SEND_FRAGS: usize = 16_384;

/// Records of the flight up to which a SACK block may cut one: 512 KiB, and 23 MiB in flight in
/// segments of the usual MTU. Beyond it such a block is ignored, because each cut of a window of
/// tiny segments costs more than the last.
pub const MAX_SACKED_RECORDS: usize = 16_384;

/// Wire segments in one super-frame: 64 KiB at the smallest MTU of IPv4 (576 bytes) are 125. A peer
/// with a tiny MSS must not cause thousands of frames.
pub const SUPER_FRAME_SEGMENTS: u32 = 128;

/// Largest send buffer, in bytes: the largest window that the header can express (65535 << 14).
/// Less than half of the sequence numbers, so that they can be compared.
pub const MAX_SEND_BUFFER: u32 = 65_535 << 14;

/// Longest fragment, in bytes, that neighbours in memory are merged to; longer on links with longer
/// super-frames. A fragment is released as a whole, so it must not grow with the stream.
pub const MAX_MERGED_FRAG: usize = 64 * 1024;

/// Payload bytes of the longest super-segment: 64 KiB less the headers that Linux reserves, so that
/// limits apply at the same byte. On links with longer super-frames, one of those.
pub const MAX_SUPER_SEGMENT: u32 = 65_215;

/// Bytes that a super-segment is charged beside its payload, as Linux's bookkeeping.
pub const SUPER_SEGMENT_OVERHEAD: u32 = 1280;

/// Bytes of Linux's bookkeeping for one frame, for the growth of the send buffer.
pub const SEGMENT_OVERHEAD: u32 = 640;

// Handshake.

/// Payload bytes of a wire segment without an MSS option (RFC 9293 section 3.7.1: 536 over IPv4;
/// IPv6 would allow 1220, but all its SYNs have the option).
pub const DEFAULT_MSS: u16 = 536;

/// Smallest MSS that we use, in bytes, whatever the peer or an ICMP message says: up to 40 bytes of
/// options and 8 of payload. Linux's `tcp_min_snd_mss`.
pub const MIN_SEND_MSS: u16 = 48;

/// Smallest MSS accepted from an ICMP message: Linux's `min_pmtu` of 552 less 40, about IPv4's
/// least MTU (RFC 1191 section 3).
pub const MIN_PATH_MSS: u16 = 512;

/// Congestion window, in segments, below which a probe's loss looks like congestion (Linux's 11).
pub const MIN_MTU_PROBE_CWND: u32 = 11;

/// Shortest Fast Open cookie, in bytes (RFC 7413 section 4.1.1).
pub const MIN_FAST_OPEN_COOKIE: usize = 4;

/// Longest Fast Open cookie, in bytes (RFC 7413 section 4.1.1).
pub const MAX_FAST_OPEN_COOKIE: usize = 16;

/// Bytes of the cookies that we make: a 64-bit hash, as in Linux.
pub const FAST_OPEN_COOKIE_LEN: usize = 8;

/// Bytes of a full segment that data in a SYN leaves free: the option field, because middleboxes
/// may add options (Linux's `MAX_TCP_OPTION_SPACE`).
pub const FAST_OPEN_OPTION_ROOM: u16 = 40;

/// Largest shift of the window scale option (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// Largest receive buffer, in bytes: the largest window (65535 << 14).
pub const MAX_RECV_BUFFER: u32 = 65_535 << 14;

/// Smallest receive buffer, in bytes: a full segment of the usual MTU must fit.
pub const MIN_RECV_BUFFER: u32 = 2048;

// Input.

/// Age in seconds up to which TS.Recent is valid: 24 days (RFC 7323 section 5.5).
pub const TIMESTAMP_VALID_SECONDS: u64 = 24 * 24 * 60 * 60;

/// Most duplicate acknowledgements due to a peer without SACK: it needs three.
pub const MAX_DUPLICATE_ACKS_DUE: u8 = 16;

/// How long a segment waits for cork or a small window, in milliseconds (Linux's 200 ms).
pub const FLUSH_AFTER_MS: u64 = 200;

/// How long a segment that the device refused waits at most, in milliseconds: Linux's
/// `TCP_RESOURCE_PROBE_INTERVAL`.
pub const REFUSED_RETRY_MS: u64 = 500;

/// Bytes of a segment that timestamps take (RFC 7323 appendix A).
pub const TIMESTAMPS_LEN: u16 = 12;

/// Most whole pages in one segment: those of an IP packet of 64 KiB.
pub const MAX_PAYLOAD_PAGES: u8 = 15;

/// First timeout of a SYN,ACK for deferred accept, in seconds: Linux's `TCP_TIMEOUT_INIT`.
pub const DEFER_FIRST_SECONDS: u64 = 1;

/// Longest timeout of a SYN,ACK for deferred accept, in seconds: Linux's `TCP_RTO_MAX`.
pub const DEFER_LONGEST_SECONDS: u64 = 120;
