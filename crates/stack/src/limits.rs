//! Every limit of this crate, with its unit and its reason.

use core::time::Duration;

// Configuration.

/// Links of one stack: each is a device that one thread polls in turn, and its addresses and routes
/// make every lookup behind the caches longer.
pub const MAX_LINKS: usize = 32;

/// Addresses of one link: the receive path compares with each.
pub const MAX_ADDRESSES: usize = 16;

/// Static routes of one link, gateways included: lookups behind the cache walk them all.
pub const MAX_ROUTES: usize = 64;

/// Smallest MTU for IPv4, in bytes (RFC 791: every host takes 576).
pub const MIN_MTU_V4: usize = 576;

/// Smallest MTU for IPv6, in bytes (RFC 8200 section 5).
pub const MIN_MTU_V6: usize = 1280;

/// Hop limit and time to live of what we send (RFC 1700, Linux).
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// Longest IP packet, in bytes, as a length field of 16 bits counts it: with its header in IPv4,
/// without it in IPv6.
pub const MAX_IP_PACKET: usize = 65_535;

/// Longest super-frame, as an IP packet, in bytes: as the length fields cannot say it, they are 0 in
/// what is longer than [`MAX_IP_PACKET`], and the frame's own length counts. Linux's convention and
/// limit (`GSO_MAX_SIZE`); only links that stay in memory take such frames.
pub const MAX_SUPER_PACKET: usize = pagewire_device::limits::MAX_SUPER_FRAME;

// Queues.

/// Frames that wait for the device: 4,096 of the largest are far more than any device takes at
/// once, and header buffers of about 300 bytes each make 1.2 MiB.
pub const OUT_QUEUE_FRAMES: usize = 4096;

/// Frames that wait for a link's device from which on connections wait too, where there are several
/// links: a few turns' worth, so that a device that takes nothing costs no connection a segment.
pub const CONGESTED_FRAMES: usize = 256;

/// Frames that wait for a device while packets of others are still added: as many as a Linux device
/// queues. The rest of the queue is for our own.
pub const FORWARD_OUT_FRAMES: usize = 1024;

/// Packets that wait to be looped back: one turn's worth of a bulk sender.
pub const LOOPBACK_PACKETS: usize = 256;

// Neighbours.

/// Neighbours known at once: a large link's worth (Linux's `gc_thresh3`). 1,024 entries of about 150
/// bytes are 150 KiB.
pub const NEIGHBORS: usize = 1024;

/// Neighbours being asked for at once: a flood of packets from made-up addresses fills these, and
/// never pushes out one that answered.
pub const NEIGHBORS_INCOMPLETE: usize = 256;

/// Neighbours that asked for us, and that nobody has sent to: who floods us with requests fills these.
/// One that is pushed out is asked for at need.
pub const NEIGHBORS_HEARD: usize = 256;

/// Neighbours that made room for others while packets waited for them, whose senders are told until the
/// next turn: at most [`NEIGHBOR_QUEUE_PACKETS`] packets each. Beyond that, packets are only counted.
pub const NEIGHBORS_EVICTED_TOLD: usize = 16;

/// Neighbours in use that are passed over in the search for one that may go: bounds the work for a
/// newcomer, who is refused if there are more in a row.
pub const NEIGHBOR_EVICTION_STEPS: usize = 16;

/// Packets that wait for one neighbour's address; the oldest goes first (RFC 4861 section 7.2.2).
/// The fragments of one datagram of the largest size fit, at the usual MTU.
pub const NEIGHBOR_QUEUE_PACKETS: usize = 64;

/// Packets that wait for any neighbour's address, together.
pub const NEIGHBOR_QUEUE_TOTAL: usize = 512;

/// Time between two requests for an address (RFC 4861 RETRANS_TIMER; RFC 1122 section 2.3.2.1
/// asks for at most one a second).
pub const NEIGHBOR_RETRANSMIT: Duration = Duration::from_secs(1);

/// Requests before a neighbour is given up (RFC 4861 MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT).
pub const NEIGHBOR_REQUESTS: u8 = 3;

/// Time for which an answer counts as proof (RFC 4861 REACHABLE_TIME).
pub const NEIGHBOR_REACHABLE: Duration = Duration::from_secs(30);

/// Time that higher layers have to prove a stale neighbour alive before it is asked (RFC 4861
/// DELAY_FIRST_PROBE_TIME).
pub const NEIGHBOR_DELAY: Duration = Duration::from_secs(5);

/// Time after which an entry that nobody uses is forgotten (RFC 1122 section 2.3.2.1: of the
/// order of a minute; longer here, since a stale entry is asked again before it is trusted).
pub const NEIGHBOR_UNUSED: Duration = Duration::from_secs(600);

/// Between two announcements of an address (RFC 5227 ANNOUNCE_INTERVAL).
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// Announcements when an address comes up (RFC 5227 ANNOUNCE_NUM).
pub const ANNOUNCEMENTS: u8 = 2;

/// Between two defences of an address (RFC 5227 DEFEND_INTERVAL).
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Time for which a gateway that did not answer is passed over where there is another.
pub const GATEWAY_DEAD: Duration = Duration::from_secs(60);

/// Notices of unreachable hosts that wait for the sockets: one for each packet that can wait for
/// a neighbour.
pub const NOTICES: usize = NEIGHBOR_QUEUE_TOTAL;

// Paths.

/// Destinations whose path MTU is remembered.
pub const PATH_MTUS: usize = 256;

/// Time for which a path MTU is believed (RFC 1191 section 6.3, RFC 8201 section 4: 10 minutes).
pub const PATH_MTU_AGE: Duration = Duration::from_secs(600);

/// Smallest IPv4 path MTU believed, in bytes: below it a forged message could make us send
/// nothing but headers (Linux's `min_pmtu`).
pub const MIN_PATH_MTU_V4: usize = 552;

/// Slots of the destination cache: a power of two; sized for a server's busiest peers.
pub const ROUTE_CACHE: usize = 64;

// Reassembly.

/// Datagrams in reassembly at once.
pub const REASSEMBLY_DATAGRAMS: usize = 64;

/// Bytes of memory held for reassembly, counted as what fragments keep from reuse (Linux's
/// `ipfrag_high_thresh`).
pub const REASSEMBLY_BYTES: usize = 4 << 20;

/// Fragments of one datagram: the largest at the smallest IPv4 MTU is 119.
pub const REASSEMBLY_FRAGMENTS: usize = 128;

/// Time for the rest of an IPv4 datagram to come (Linux's `ipfrag_time`).
pub const REASSEMBLY_TIME_V4: Duration = Duration::from_secs(30);

/// Time for the rest of an IPv6 datagram to come (RFC 8200 section 4.5: 60 seconds).
pub const REASSEMBLY_TIME_V6: Duration = Duration::from_secs(60);

// IPv6 extension headers.

/// Extension headers of one packet (RFC 8504 section 5.3 allows a limit; Linux's is 8 per kind).
pub const EXTENSION_HEADERS: usize = 8;

/// Bytes of extension headers of one packet.
pub const EXTENSION_BYTES: usize = 512;

/// Options in one extension header (Linux's `max_dst_opts_cnt`).
pub const EXTENSION_OPTIONS: usize = 8;

// ICMP.

/// ICMP errors per second of one link, on average and once the burst is spent (Linux's
/// `icmp_msgs_per_sec`).
pub const ICMP_ERRORS_PER_SECOND: u32 = 1000;

/// ICMP errors in one burst, on average (Linux's `icmp_msgs_burst`).
pub const ICMP_ERRORS_BURST: u32 = 50;

/// ICMP errors to one destination in one burst (Linux's factor of `icmp_ratelimit`).
pub const ICMP_DESTINATION_BURST: u32 = 6;

/// Between two ICMP errors to one destination, once its burst is spent (Linux's `icmp_ratelimit`).
pub const ICMP_DESTINATION_INTERVAL: Duration = Duration::from_secs(1);

/// Destinations of one link that have had an error so recently that they may not have a whole burst:
/// more than [`ICMP_ERRORS_PER_SECOND`] in the 6 s that a bucket takes to fill, so that none is
/// turned away for want of room. About 40 bytes each.
pub const ICMP_DESTINATIONS: usize = 8192;

/// Longest IPv4 ICMP error, in bytes (RFC 1812 section 4.3.2.3).
pub const ICMP_ERROR_LEN_V4: usize = 576;

/// Longest IPv6 ICMP error, in bytes (RFC 4443 section 2.4(c)).
pub const ICMP_ERROR_LEN_V6: usize = 1280;

// Sockets.

/// Sockets of one stack, of all kinds and states: a million established connections, with their
/// queues empty, take about a gigabyte.
pub const MAX_SOCKETS: usize = 1 << 20;

/// First ephemeral port (Linux's `ip_local_port_range`).
pub const EPHEMERAL_FIRST: u16 = 32_768;

/// Last ephemeral port.
pub const EPHEMERAL_LAST: u16 = 60_999;

/// Ports that are drawn for a socket without a peer before all are looked at in turn.
pub const EPHEMERAL_DRAWS: u32 = 8;

/// Largest backlog of a listener, in connections (Linux's `somaxconn`).
pub const MAX_BACKLOG: usize = 4096;

/// Connections of one listener that are open before their handshakes are complete (Fast Open), at
/// most: as many as may wait to be accepted.
pub const MAX_FAST_OPEN_QUEUE: u32 = MAX_BACKLOG as u32;

/// Time for which a Fast Open connection that was reset before its handshake was complete counts
/// for its listener's limit (Linux's 60 s).
pub const FAST_OPEN_RESET_PENALTY: Duration = Duration::from_secs(60);

/// How often the rest from Fast Open after a black hole doubles (Linux: 2^6 times the first).
pub const FAST_OPEN_BLACK_HOLE_DOUBLINGS: u32 = 6;

/// Time for which a server that did not take the data of a SYN is sent none: a minute, as Linux had
/// it first.
pub const FAST_OPEN_REFUSAL_REST: Duration = Duration::from_secs(60);

/// How often that time doubles when it happens again: to about an hour.
pub const FAST_OPEN_REFUSAL_DOUBLINGS: u32 = 6;

/// Sets of the cache of Fast Open cookies, a power of two; with `FAST_OPEN_CACHE_WAYS` servers each
/// that is 1,024 servers in some 80 KiB. As many refusals are remembered, in as much.
pub const FAST_OPEN_CACHE_SETS: usize = 256;

/// Servers in one set of the cache.
pub const FAST_OPEN_CACHE_WAYS: usize = 4;

/// Connections in TIME-WAIT that nobody owns; the oldest goes first. At about 200 bytes each they
/// take at most 13 MiB.
pub const TIME_WAIT_CONNECTIONS: usize = 65_536;

/// Resets per second in answer to segments that belong to no connection, on average and once the
/// burst is spent: as many as ICMP errors, and for the same reason.
pub const RESETS_PER_SECOND: u32 = 1000;

/// Resets in one burst, on average.
pub const RESETS_BURST: u32 = 200;

/// Segments that one connection may send before others have their turn: a megabyte in
/// super-frames.
pub const SEGMENTS_PER_CONNECTION: usize = 16;

/// Segments of one `poll_transmit`: what a device takes at once.
pub const SEGMENTS_PER_POLL: usize = 64;

/// Looped-back packets and notices handled in one `poll_transmit`.
pub const LOOPBACKS_PER_POLL: usize = 64;

/// How often a stack whose pool is used up looks whether other threads have let go of pages; what
/// happens in the stack itself is noticed at once.
pub const STARVED_CHECK: Duration = Duration::from_millis(10);

/// Bytes that a datagram socket queues, each datagram charged with the memory that it keeps from
/// reuse: five times Linux's `rmem_default`, because pages are charged whole.
pub const UDP_RECEIVE_BYTES: usize = 1 << 20;

/// Datagrams that a socket queues.
pub const UDP_RECEIVE_DATAGRAMS: usize = 4096;

/// Bytes charged for a queued datagram beside its payload: its entry in the queue.
pub const UDP_OVERHEAD: usize = 128;

/// Payload bytes of a datagram below which it is copied out of a page that it would keep from
/// reuse, as for TCP.
pub const UDP_SMALL: usize = 512;

/// The part of a socket's buffer, one in so many, that small datagrams from a port's pages wait in by
/// reference: at a page each, a burst of 64 in a buffer of the default length.
pub const UDP_CARVED_SHARE: usize = 4;

/// Longest payload of a datagram over IPv4, in bytes: 65,535 less 20 and 8 of headers.
pub const UDP_MAX_PAYLOAD_V4: usize = 65_507;

/// Longest payload of a datagram over IPv6, in bytes: 65,535 less 8 of header, because the length in an
/// IPv6 header does not count that header.
pub const UDP_MAX_PAYLOAD_V6: usize = 65_527;

/// Writes of one connection whose timestamps are waited for: with three entries each they fill the
/// error queue several times over.
pub const TIMESTAMPS_PENDING: usize = 64;

/// Entries of a socket's error queue; further ones are dropped.
pub const ERROR_QUEUE: usize = 64;

/// Datagrams that one call may send (Linux's `UDP_MAX_SEGMENTS`).
pub const UDP_MAX_SEGMENTS: usize = 128;

// Forwarding.

/// Connections that a forwarder takes at once, unless told otherwise; more wait in the listener's
/// backlog. Two sockets each, about 2 KiB, and memory for what is under way from one budget.
pub const FORWARD_CONNECTIONS: usize = 10_000;

/// Time that an upstream has to answer, unless told otherwise: three SYNs at Linux's intervals of
/// 1, 2 and 4 s.
pub const FORWARD_CONNECT_TIME: Duration = Duration::from_secs(7);

/// Time without a byte either way after which a forwarded connection is given up, unless told
/// otherwise (RFC 5382 section 5, REQ-5: not less than 2 hours 4 minutes).
pub const FORWARD_IDLE_TIME: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// Longest time until a forwarder looks at a connection's clocks again. A connection that has ended is
/// remembered for so long, in 16 bytes: with those of hours, whoever opens and closes a thousand in a
/// second would fill a hundred megabytes.
pub const FORWARD_LOOK: Duration = Duration::from_secs(60);

/// Silence after which a forwarded connection's peers are asked whether they are still there, unless
/// told otherwise: their resets may have been lost, and a connection is held for them.
pub const FORWARD_KEEPALIVE: Duration = Duration::from_secs(300);

/// Bytes that may always be under way in one direction, whatever the budget for all says: what
/// moves from one connection to another takes no more memory than before. Beside the few segments
/// that a window always has room for, a connection whose peer does not read holds no more than that
/// when memory is short.
pub const FORWARD_LEAST: usize = 4 << 10;

/// Time without a byte after which a connection that holds something may be reset when memory is
/// short, unless told otherwise: whoever does not read must not keep others from being served.
pub const FORWARD_STALL_TIME: Duration = Duration::from_secs(10);

/// The part of the receive memory, one in so many, that is left when it counts as short. Twice as
/// much is made free then.
pub const FORWARD_RESERVE: usize = 8;

/// How often connections that stall are looked for while memory is short.
pub const FORWARD_RELIEF: Duration = Duration::from_secs(1);

/// How often connections that had no share of the memory look whether there is some.
pub const FORWARD_RETRY: Duration = Duration::from_millis(10);

/// Connections that look in one turn; the others have the next.
pub const FORWARD_RETRIES_PER_TURN: usize = 256;

/// Refusals that wait to be reported; further ones are only counted.
pub const FORWARD_REFUSALS: usize = 256;

// Zero-copy sends.

/// Bytes charged for a zero-copy send that is not complete, and for a notification that is not
/// read: what Linux charges to `optmem_max`, as far as it can be observed.
pub const NOTIFICATION_CHARGE: usize = 704;

/// Bytes of such charges on one socket, unless told otherwise: what Linux's authors advise for
/// sockets whose notifications do not become one. 1,489 sends: more than a send buffer of 4 MiB
/// holds in pieces of 4 KiB.
pub const DEFAULT_NOTIFICATION_BYTES: usize = 1 << 20;

/// Bytes of the sends that complete together, where they do (Linux: 512 KiB). A cap on how long the
/// first may wait for the last.
pub const MAX_SHARED_BYTES: usize = 1 << 19;

/// Sends that complete together, at most (Linux: `USHRT_MAX - 1`).
pub const MAX_SHARED_SENDS: u32 = 65_534;

/// How long memory of a sender waits in a local receive queue, unless told otherwise: a program that
/// does not read for a second will not mind a copy.
pub const RECEIVED_DEADLINE: Duration = Duration::from_secs(1);

/// Longest name of a link, in bytes: Linux's `IFNAMSIZ`, less the zero at its end.
pub const LINK_NAME_BYTES: usize = 15;

// Groups.

/// IPv4 groups that a socket may be in: Linux's `igmp_max_memberships`.
pub const SOCKET_GROUPS_V4: usize = 20;

/// IPv6 groups that a socket may be in. Linux bounds their memory, which is more than anybody uses.
pub const SOCKET_GROUPS_V6: usize = 64;

/// Groups of one version of IP that a link may be in or be leaving, whose reports take some ten packets
/// at once. Every packet to a group is compared with them.
pub const LINK_GROUPS: usize = 256;

/// Sources of one query that are answered for one by one; a query about more, or one that does not fit a
/// packet's head, is answered as one about the whole group (RFC 3376 section 5.2 lets the answer say
/// more than was asked).
pub const GROUP_QUERY_SOURCES: usize = 16;

/// How often a change of membership is said, unless a router says otherwise (RFC 3376 section 8.1, RFC
/// 3810 section 9.1).
pub const GROUP_ROBUSTNESS: u8 = 2;

/// How often routers ask, unless they say otherwise (RFC 3376 section 8.2, RFC 3810 section 9.2).
pub const GROUP_QUERY_INTERVAL: Duration = Duration::from_secs(125);

/// How long answers may take, where a router is only remembered (RFC 3376 section 8.3, RFC 3810 section
/// 9.3).
pub const GROUP_QUERY_RESPONSE: Duration = Duration::from_secs(10);

/// Longest time until a change of membership is said again (RFC 3376 section 8.11, RFC 3810 section
/// 9.11).
pub const GROUP_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The same while an older router is there (RFC 2236 section 8.10, RFC 2710 section 7.10).
pub const GROUP_OLD_REPORT_INTERVAL: Duration = Duration::from_secs(10);
