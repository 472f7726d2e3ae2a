//! Every limit of this crate, with its unit and its reason.

use core::time::Duration;

// Configuration.

/// Links of one stack: their addresses and routes lengthen every lookup behind the caches.
pub const MAX_LINKS: usize = 32;

/// Addresses of one link: the receive path compares each.
pub const MAX_ADDRESSES: usize = 16;

/// Static routes of one link, gateways included: lookups behind the cache walk them all.
pub const MAX_ROUTES: usize = 64;

/// Smallest MTU for IPv4, in bytes (RFC 791: every host takes 576).
pub const MIN_MTU_V4: usize = 576;

/// Smallest MTU for IPv6, in bytes (RFC 8200 section 5).
pub const MIN_MTU_V6: usize = 1280;

/// Hop limit and time to live of what we send (RFC 1700, Linux).
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// Longest IP packet, in bytes, as its field counts: with the header in IPv4, without it in IPv6.
pub const MAX_IP_PACKET: usize = 65_535;

/// Longest super-frame, as an IP packet, in bytes. The length fields are 0 in packets longer than
/// [`MAX_IP_PACKET`], and the frame's own length counts: Linux's convention and limit
/// (`GSO_MAX_SIZE`). Only links in memory take such frames.
pub const MAX_SUPER_PACKET: usize = pagewire_mem::link::limits::MAX_SUPER_FRAME;

// Queues.

/// Frames that wait for the device: 4,096 of the largest are far more than any device takes at
/// once, and header buffers of about 300 bytes each make 1.2 MiB.
pub const OUT_QUEUE_FRAMES: usize = 4096;

/// With several links: frames in a device's queue from which on its connections wait. A few turns'
/// worth, so that a stopped device costs no connection a segment.
pub const CONGESTED_FRAMES: usize = 256;

/// Frames in a device's queue up to which forwarded packets are added: as many as a Linux device
/// queues. The rest of the queue is for our own packets.
pub const FORWARD_OUT_FRAMES: usize = 1024;

/// Packets that wait to be looped back: one turn's worth of a bulk sender.
pub const LOOPBACK_PACKETS: usize = 256;

// Neighbours.

/// Neighbours known at once: a large link's worth (Linux's `gc_thresh3`), 150 bytes each.
pub const NEIGHBORS: usize = 1024;

/// Unanswered neighbours at once: a flood from forged addresses fills these, and evicts no other.
pub const NEIGHBORS_INCOMPLETE: usize = 256;

/// Passive neighbours: those that resolved us and are not in use. A flood of requests fills these entries.
pub const NEIGHBORS_PASSIVE: usize = 256;

/// Evicted neighbours in one turn whose waiting packets (at most [`NEIGHBOR_QUEUE_PACKETS`] each)
/// are reported to their senders. Beyond that, packets are only counted.
pub const NEIGHBORS_EVICTED_REPORTED: usize = 16;

/// Neighbours in use that a search for one to evict passes over: bounds the work for a new
/// neighbour, which is refused if there are more in a row.
pub const NEIGHBOR_EVICTION_STEPS: usize = 16;

/// Packets that wait for one neighbour's address; the oldest goes first (RFC 4861 section 7.2.2).
/// The fragments of one datagram of the largest size fit, at the usual MTU.
pub const NEIGHBOR_QUEUE_PACKETS: usize = 64;

/// Packets that wait for any neighbour's address, together.
pub const NEIGHBOR_QUEUE_TOTAL: usize = 512;

/// Time between two requests for an address (RFC 4861 RETRANS_TIMER; RFC 1122 section 2.3.2.1
/// asks for at most one a second).
pub const NEIGHBOR_RETRANSMIT: Duration = Duration::from_secs(1);

/// Requests before a neighbour is given up (RFC 4861: MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
pub const NEIGHBOR_REQUESTS: u8 = 3;

/// Time for which an answer proves reachability (RFC 4861 REACHABLE_TIME).
pub const NEIGHBOR_REACHABLE: Duration = Duration::from_secs(30);

/// Time for which a stale neighbour waits for proof before a probe (RFC 4861 DELAY_FIRST_PROBE_TIME).
pub const NEIGHBOR_DELAY: Duration = Duration::from_secs(5);

/// Lifetime of an unused entry (RFC 1122 section 2.3.2.1: of the order of a minute; longer here,
/// since a stale entry is probed before it is trusted).
pub const NEIGHBOR_UNUSED: Duration = Duration::from_secs(600);

/// Between two announcements of an address (RFC 5227 ANNOUNCE_INTERVAL).
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// Announcements when an address comes up (RFC 5227 ANNOUNCE_NUM).
pub const ANNOUNCEMENTS: u8 = 2;

/// Between two defences of an address (RFC 5227 DEFEND_INTERVAL).
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// How long a gateway that did not answer is not used if there is another.
pub const GATEWAY_DEAD: Duration = Duration::from_secs(60);

/// Notices of unreachable hosts for sockets: one for each packet that can wait for a neighbour.
pub const NOTICES: usize = NEIGHBOR_QUEUE_TOTAL;

// Paths.

/// Destinations whose path MTU is remembered.
pub const PATH_MTUS: usize = 256;

/// Lifetime of a path MTU (RFC 1191 section 6.3, RFC 8201 section 4: 10 minutes).
pub const PATH_MTU_AGE: Duration = Duration::from_secs(600);

/// Smallest IPv4 path MTU believed, in bytes (Linux's `min_pmtu`), against forged messages.
pub const MIN_PATH_MTU_V4: usize = 552;

/// Slots of the destination cache: a power of two; sized for a server's busiest peers.
pub const ROUTE_CACHE: usize = 64;

// Reassembly.

/// Datagrams in reassembly at once.
pub const REASSEMBLY_DATAGRAMS: usize = 64;

/// Bytes of memory pinned by fragments in reassembly (Linux's `ipfrag_high_thresh`).
pub const REASSEMBLY_BYTES: usize = 4 << 20;

/// Fragments of one datagram: the largest at the smallest IPv4 MTU is 119.
pub const REASSEMBLY_FRAGMENTS: usize = 128;

/// How long an IPv4 datagram waits for its fragments (Linux's `ipfrag_time`).
pub const REASSEMBLY_TIME_V4: Duration = Duration::from_secs(30);

/// How long an IPv6 datagram waits for its fragments (RFC 8200 section 4.5: 60 seconds).
pub const REASSEMBLY_TIME_V6: Duration = Duration::from_secs(60);

// IPv6 extension headers.

/// Extension headers of one packet (RFC 8504 section 5.3 allows a limit; Linux's is 8 per kind).
pub const EXTENSION_HEADERS: usize = 8;

/// Bytes of extension headers of one packet.
pub const EXTENSION_BYTES: usize = 512;

/// Options in one extension header (Linux's `max_dst_opts_cnt`).
pub const EXTENSION_OPTIONS: usize = 8;

// ICMP.

/// ICMP errors per second of one link, on average after the burst (Linux's `icmp_msgs_per_sec`).
pub const ICMP_ERRORS_PER_SECOND: u32 = 1000;

/// ICMP errors in one burst, on average (Linux's `icmp_msgs_burst`).
pub const ICMP_ERRORS_BURST: u32 = 50;

/// ICMP errors to one destination in one burst (Linux's factor of `icmp_ratelimit`).
pub const ICMP_DESTINATION_BURST: u32 = 6;

/// Between two ICMP errors to one destination, once its burst is spent (Linux's `icmp_ratelimit`).
pub const ICMP_DESTINATION_INTERVAL: Duration = Duration::from_secs(1);

/// Destinations of one link whose buckets are not full: more than [`ICMP_ERRORS_PER_SECOND`] in the
/// 6 s that a bucket takes to fill, so that none is refused for want of room. About 40 bytes each.
pub const ICMP_DESTINATIONS: usize = 8192;

/// Longest IPv4 ICMP error, in bytes (RFC 1812 section 4.3.2.3).
pub const ICMP_ERROR_LEN_V4: usize = 576;

/// Longest IPv6 ICMP error, in bytes (RFC 4443 section 2.4(c)).
pub const ICMP_ERROR_LEN_V6: usize = 1280;

// Sockets.

/// Sockets of one stack, of all kinds and states: a million idle connections take about 750 MB.
pub const MAX_SOCKETS: usize = 1 << 20;

/// First ephemeral port (Linux's `ip_local_port_range`).
pub const EPHEMERAL_FIRST: u16 = 32_768;

/// Last ephemeral port.
pub const EPHEMERAL_LAST: u16 = 60_999;

/// Random ports tried for a socket without a peer, before all are tried in turn.
pub const EPHEMERAL_DRAWS: u32 = 8;

/// Largest backlog of a listener, in connections (Linux's `somaxconn`).
pub const MAX_BACKLOG: usize = 4096;

/// Connections of one listener open with incomplete handshakes (Fast Open).
pub const MAX_FAST_OPEN_QUEUE: u32 = MAX_BACKLOG as u32;

/// How long a Fast Open connection that was reset before its handshake was complete counts for its
/// listener's limit (Linux's 60 s).
pub const FAST_OPEN_RESET_PENALTY: Duration = Duration::from_secs(60);

/// How often the suspension of Fast Open after a black hole doubles (Linux: 2^6 times the first).
pub const FAST_OPEN_BLACK_HOLE_DOUBLINGS: u32 = 6;

/// How long SYNs carry no data after a server has refused some: a minute, as Linux had it first.
pub const FAST_OPEN_REFUSAL_REST: Duration = Duration::from_secs(60);

/// How often that time doubles when it happens again: to about an hour.
pub const FAST_OPEN_REFUSAL_DOUBLINGS: u32 = 6;

/// Sets of the cache of Fast Open cookies, a power of two; with `FAST_OPEN_CACHE_WAYS` servers each
/// that is 1,024 servers in some 80 KiB. As many refusals are remembered, in as much.
pub const FAST_OPEN_CACHE_SETS: usize = 256;

/// Servers in one set of the cache.
pub const FAST_OPEN_CACHE_WAYS: usize = 4;

/// Closed connections in TIME-WAIT, the oldest evicted first: 13 MiB at about 200 bytes each.
pub const TIME_WAIT_CONNECTIONS: usize = 65_536;

/// Resets per second in answer to segments without a connection, on average and once the burst is
/// spent: as many as ICMP errors, and for the same reason.
pub const RESETS_PER_SECOND: u32 = 1000;

/// Resets in one burst, on average.
pub const RESETS_BURST: u32 = 200;

/// SYNs that wait for the application's answer, of one listener: more than any client has attempts
/// under way. About 200 bytes each.
pub const SYN_REQUESTS: usize = 1024;

/// Accepted requests of one listener whose handshakes are incomplete: for each the application has
/// something open, mostly a socket of the kernel. Beyond it the oldest quarter is reset.
pub const REQUEST_HALF_OPEN: usize = 1024;

/// How long a request waits for the second SYN: initial timeouts are 1 s (RFC 6298), and 3 s in older
/// stacks.
pub const REQUEST_FIRST_WAIT: Duration = Duration::from_secs(4);

/// Shortest time between two SYNs that says how long to wait for the next, and what is added to twice
/// the time for delays on the way: the initial timeout (RFC 6298).
pub const REQUEST_LEAST_GAP: Duration = Duration::from_secs(1);

/// Longest time between two SYNs that says how long to wait for the next: Linux's timeout after the
/// default of six retries.
pub const REQUEST_LONGEST_GAP: Duration = Duration::from_secs(64);

/// Shortest time between two searches for requests that have lapsed: each visits all of them, some
/// microseconds, and none has to lapse sooner.
pub const REQUEST_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Resets and ICMP errors that the application sends, per second and on average once the burst is
/// spent: more than a client can open connections, and less than a flood of its SYNs.
pub const REQUEST_ANSWERS_PER_SECOND: u32 = 20_000;

/// Such answers in one burst, on average.
pub const REQUEST_ANSWERS_BURST: u32 = 2_000;

/// Segments that one connection may send in its turn: a megabyte in super-frames.
pub const SEGMENTS_PER_CONNECTION: usize = 16;

/// Segments of one `poll_transmit`: what a device takes at once.
pub const SEGMENTS_PER_POLL: usize = 64;

/// Shards of one host: stacks with the same addresses.
pub const MAX_SHARDS: usize = 32;

/// Packets that wait in one stack for their way to one other shard; further ones are dropped
/// (Linux's `netdev_max_backlog` is 1,000).
pub const STRAY_BACKLOG: usize = 1024;

/// Bytes of memory that the payload of these packets keeps: a page for each.
pub const STRAY_BACKLOG_BYTES: usize = 16 << 20;

/// Subjects of each kind (neighbours, paths) that one stack has news of for other shards, until they leave. Further
/// news are left out: they come again. About 60 bytes each.
pub const STRAY_NEWS: usize = 256;

/// Looped-back packets and notices handled in one `poll_transmit`.
pub const LOOPBACKS_PER_POLL: usize = 64;

/// How often a stack with an empty pool checks for pages: releases by other threads cause no event.
pub const PAGE_WAIT_CHECK: Duration = Duration::from_millis(10);

/// The part of its length by which a table of sockets or timers grows when it is full: 1/8. Doubling would
/// leave up to half of a table unused; the few more moves cost 200 bytes of copying for each socket.
pub(crate) const TABLE_GROWTH_DIVISOR: usize = 8;

/// Least entries by which such a table grows.
pub(crate) const TABLE_GROWTH_LEAST: usize = 16;

/// Timers of the wheel's first slot that are compared for the time of the next wake-up: each send asks
/// for that time. With more, the host may wake at the slot's beginning, and again.
pub const TIMERS_COMPARED: usize = 4;

/// The part of the stack's pages that only data which can leave at once may take: 1/256, four super-frames
/// of the default pool. Without it, data for peers that do not read would hold all pages for ever. A
/// larger part keeps more under way than receivers have memory for.
pub const SEND_RESERVE: usize = 256;

/// Pages of that part at least, as far as they are no more than an eighth of the pool.
pub const SEND_RESERVE_PAGES: usize = 16;

/// Pages that a woken writer is expected to take: a super-frame of 64 KiB.
pub const TURN_PAGES: usize = 16;

/// Bytes that a datagram socket queues, each datagram charged with the memory that it pins: five
/// times Linux's `rmem_default`, because pages are charged whole.
pub const UDP_RECEIVE_BYTES: usize = 1 << 20;

/// The same for a socket of every address and port of a link, which has the datagrams of all flows
/// until its owner's next turn: two hundred of the longest.
pub const DATAGRAM_EVERY_BYTES: usize = 4 << 20;

/// Datagrams that a socket queues.
pub const UDP_RECEIVE_DATAGRAMS: usize = 4096;

/// Bytes charged for a queued datagram beside its payload: its entry in the queue.
pub const UDP_OVERHEAD: usize = 128;

/// Payload bytes below which a datagram is copied out of a page that it would pin, as for TCP.
pub const UDP_SMALL: usize = 512;

/// The part of a socket's buffer, as a divisor, for small datagrams in a port's pages by
/// reference: at a page each, a burst of 64 in the default buffer.
pub const UDP_CARVED_SHARE: usize = 4;

/// Longest payload of a datagram over IPv4, in bytes: 65,535 less 20 and 8 of headers.
pub const UDP_MAX_PAYLOAD_V4: usize = 65_507;

/// Longest payload over IPv6, in bytes: 65,535, which does not count IPv6's header, less 8.
pub const UDP_MAX_PAYLOAD_V6: usize = 65_527;

/// Outstanding requests for timestamps of one connection: with three entries each they fill the
/// error queue several times over.
pub const TIMESTAMPS_PENDING: usize = 64;

/// Entries of a socket's error queue; further ones are dropped.
pub const ERROR_QUEUE: usize = 64;

/// The same for a socket of every address and port of a link: one for each of as many flows as a
/// gateway's guest may have errors about in one turn. About 130 bytes each.
pub const ERROR_QUEUE_EVERY: usize = 1024;

/// Datagrams that one call may send (Linux's `UDP_MAX_SEGMENTS`).
pub const UDP_MAX_SEGMENTS: usize = pagewire_mem::link::limits::MAX_UDP_SEGMENTS;

/// Datagrams of one frame that leaves: Linux's `UDP_MAX_SEGMENTS` before 6.9, which refuses longer ones.
pub const UDP_SEGMENTS_PER_FRAME: usize = 64;

// Forwarding.

/// Default number of pairs of a forwarder; more connections wait in the listener's backlog. Each
/// has two sockets, about 2 KiB, and memory for data from one budget.
pub const FORWARD_CONNECTIONS: usize = 10_000;

/// Default time for an upstream to answer: three SYNs at Linux's intervals of 1, 2 and 4 s.
pub const FORWARD_CONNECT_TIME: Duration = Duration::from_secs(7);

/// Default time without a byte in either direction after which a pair is reset (RFC 5382 section 5,
/// REQ-5: not less than 2 hours 4 minutes).
pub const FORWARD_IDLE_TIME: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// Longest time until a forwarder checks a pair's deadlines again. An ended pair keeps an entry
/// of 16 bytes for this time: with hours, short connections would fill a hundred megabytes.
pub const FORWARD_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Default silence after which a pair's peers are probed: their resets may have been lost.
pub const FORWARD_KEEPALIVE: Duration = Duration::from_secs(300);

/// Bytes that may always be queued in one direction, even beyond the budget: moving data between
/// connections takes no more memory. When memory is short, a connection whose peer does not read
/// holds no more than this, beside the few segments that a window always has room for.
pub const FORWARD_LEAST: usize = 4 << 10;

/// Default time without a byte after which a pair that holds memory may be reset when memory is
/// short: peers that do not read must not block others.
pub const FORWARD_STALL_TIME: Duration = Duration::from_secs(10);

/// The free part of the receive memory, as a divisor, below which it is short; twice that is freed.
pub const FORWARD_RESERVE: usize = 8;

/// How often to check for stalled pairs while memory is short.
pub const FORWARD_RELIEF: Duration = Duration::from_secs(1);

/// How often pairs without a share of the memory try again.
pub const FORWARD_RETRY: Duration = Duration::from_millis(10);

/// Pairs that try again in one turn; the others have the next.
pub const FORWARD_RETRIES_PER_TURN: usize = 256;

/// Refusals not reported yet; further ones are only counted.
pub const FORWARD_REFUSALS: usize = 256;

// Zero-copy sends.

/// Bytes charged for an incomplete zero-copy send, and for an unread notification: what Linux
/// charges to `optmem_max`, as far as it can be observed.
pub const NOTIFICATION_CHARGE: usize = 704;

/// Default limit of such charges on one socket, in bytes, as Linux's authors advise without merged
/// notifications: 1,489 sends, more than a send buffer of 4 MiB holds in pieces of 4 KiB.
pub const DEFAULT_NOTIFICATION_BYTES: usize = 1 << 20;

/// Bytes of sends that complete together (Linux: 512 KiB), which the first has to wait for.
pub const MAX_SHARED_BYTES: usize = 1 << 19;

/// ZeroCopySends that complete together (Linux: `USHRT_MAX - 1`).
pub const MAX_SHARED_SENDS: u32 = 65_534;

/// Default time that borrowed memory waits in a local receive queue: a program that does not read for a
/// second will not mind a copy.
pub const RECEIVED_DEADLINE: Duration = Duration::from_secs(1);

/// Beginnings and ends of connections that nobody has polled: some 25 MB of counts, while a tool reads them.
pub const LIFECYCLE_EVENTS: usize = 65_536;

/// Longest name of a link, in bytes: Linux's `IFNAMSIZ`, less the zero at its end.
pub const LINK_NAME_BYTES: usize = 15;

// Groups.

/// IPv4 groups that a socket may be in: Linux's `igmp_max_memberships`.
pub const SOCKET_GROUPS_V4: usize = 20;

/// IPv6 groups that a socket may be in. Linux bounds their memory instead.
pub const SOCKET_GROUPS_V6: usize = 64;

/// Groups of one version of IP that a link may be in or be leaving. Their reports take some ten
/// packets at once, and every packet to a group is compared with them.
pub const LINK_GROUPS: usize = 256;

/// Sources of one query that are answered one by one; any other query is answered as one about the
/// whole group, as RFC 3376 section 5.2 allows.
pub const GROUP_QUERY_SOURCES: usize = 16;

/// Default number of reports of a change (RFC 3376 section 8.1, RFC 3810 section 9.1).
pub const GROUP_ROBUSTNESS: u8 = 2;

/// Default interval of routers' queries (RFC 3376 section 8.2, RFC 3810 section 9.2).
pub const GROUP_QUERY_INTERVAL: Duration = Duration::from_secs(125);

/// Default time for answers to a query (RFC 3376 section 8.3, RFC 3810 section 9.3).
pub const GROUP_QUERY_RESPONSE: Duration = Duration::from_secs(10);

/// Longest time between reports of a change (RFC 3376 section 8.11, RFC 3810 section 9.11).
pub const GROUP_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The same while an older router is there (RFC 2236 section 8.10, RFC 2710 section 7.10).
pub const GROUP_OLD_REPORT_INTERVAL: Duration = Duration::from_secs(10);

// Options.

/// Largest `SO_SNDBUF` and `SO_RCVBUF`, in bytes before doubling (`net.core.wmem_max`, `rmem_max`).
pub const MAX_SOCKET_BUFFER: u32 = 4 << 20;

/// Least send buffer, in bytes after doubling: two small packets with Linux's bookkeeping.
pub const MIN_SEND_BUFFER: u32 = 4608;

/// Least receive buffer, in bytes after doubling: one small packet with Linux's bookkeeping.
pub const MIN_RECEIVE_BUFFER: u32 = 2304;
