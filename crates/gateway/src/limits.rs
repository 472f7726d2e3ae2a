//! Every limit of this crate, with its unit and its reason.

use std::time::Duration;

// Connections.

/// Connections of one guest at once, those that are being dialled included. Each has a descriptor
/// of this process and under 2 KiB of memory.
pub const CONNECTIONS: usize = 16_384;

/// Dials of one guest that have not been answered. Silent destinations hold a place until
/// [`DIAL_FAIR`], so a guest that connects to 256 of them waits no longer than that.
pub const DIALS: usize = 256;

/// The part of [`DIALS`] that one destination address may have: a client with many connections to
/// one silent host leaves room for those to others.
pub const DIALS_PER_DESTINATION: usize = 32;

/// How long a dial has its place to itself when others wait for one: TCP's first retransmission
/// (RFC 6298: 1 s) and the second (2 s) are sent by then. It is given up for the next.
pub const DIAL_FAIR: Duration = Duration::from_secs(3);

/// Dials of one guest a second, on average once the burst is spent: more than the kernel's own
/// virtual links carry on two cores, and a quarter of a core's time.
pub const CONNECTS_PER_SECOND: u32 = 25_000;

/// Dials in one burst.
pub const CONNECTS_BURST: u32 = 5_000;

/// How long a dial waits that found no descriptor, no port or no memory, unless a connection ends
/// before.
pub const DIAL_RETRY: Duration = Duration::from_millis(100);

/// Destinations that one verdict may lead to by [`Verdict::To`](crate::Verdict), each of which is
/// judged: bounds rules that lead to each other.
pub const REDIRECTIONS: usize = 4;

/// Bytes that one connection moves in each direction in its turn: four of the longest frames, which
/// stay in a core's cache between the two system calls.
pub const RELAY_BURST: usize = 256 << 10;

/// Bytes that all connections of a guest move in one turn, which holds the host's lock: about a
/// millisecond's worth.
pub const TURN_BYTES: usize = 4 << 20;

/// Pieces of one gathering write: more than [`RELAY_BURST`] has in pages.
pub(crate) const GATHER: usize = 128;

/// Events that one look at the kernel's sockets takes; the rest is for the next turn.
pub(crate) const POLL_EVENTS: usize = 256;

/// Time without a byte in either direction after which a connection is reset (RFC 5382 section 5,
/// REQ-5: not less than 2 hours 4 minutes).
pub const IDLE_TIME: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// Silence after which both sides of a connection are probed: their resets may have been lost.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);

/// Between two probes, as Linux.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);

/// Unanswered probes before a side is given up, as Linux.
pub const KEEPALIVE_PROBES: u8 = 9;

/// Age at which a connection gets its keep-alive settings: most are over by then, and save the
/// system calls.
pub const SETTLED: Duration = Duration::from_secs(60);

/// How often all connections are looked at for their age: 16,384 take about a tenth of a
/// millisecond.
pub const SWEEP: Duration = Duration::from_secs(15);

/// How long data that was received before a reset may take to reach the other side before that is
/// reset, too.
pub const DELIVERY: Duration = Duration::from_secs(10);

/// How often a delivery is looked at: a guest learns of a reset this much later at most.
pub const DELIVERY_LOOK: Duration = Duration::from_millis(1);

// Published ports.

/// Clients that wait in a published port's backlog: Linux's own limit (`somaxconn`).
pub const PUBLISHED_BACKLOG: i32 = 4096;

/// Clients that one port accepts in one turn.
pub const ACCEPT_BURST: usize = 64;

// Memory of one guest's stack.

/// Bytes of memory that a guest's connections pin for data that the network has not taken.
pub const RECEIVE_MEMORY: usize = 16 << 20;

/// Bytes of memory for data from the network that a guest has not acknowledged.
pub const POOL_BYTES: usize = 16 << 20;

/// Guests of one gateway: each has a stack and a thread.
pub const GUESTS: usize = 256;

// Datagrams.

/// Addresses and ports of one guest that send datagrams at once, each with a descriptor of this
/// process and less than a KiB of memory.
pub const UDP_ENDPOINTS: usize = 4096;

/// Destinations of one endpoint; the one that was silent longest makes room for a new one.
pub const UDP_PEERS: usize = 1024;

/// Silence after which an endpoint is closed: what RFC 4787 recommends (section 4.3, REQ-5).
pub const UDP_IDLE: Duration = Duration::from_secs(300);

/// Silence after which an endpoint may be closed for a new one, when there are [`UDP_ENDPOINTS`]:
/// no shorter is allowed (RFC 4787 section 4.3, REQ-5).
pub const UDP_LEAST: Duration = Duration::from_secs(120);

/// The same for endpoints that have talked to port 53 only, and have their answer.
pub const UDP_DNS: Duration = Duration::from_secs(10);

/// How often endpoints are looked at for their age.
pub const UDP_SWEEP: Duration = Duration::from_secs(2);

/// Messages that one turn takes from the guest, and from each socket of the kernel: one of them may
/// be 64 datagrams.
pub const UDP_BURST: usize = 128;

/// Datagrams in one message to the kernel (its own limit, in older kernels).
pub const UDP_SEGMENTS: usize = 64;

/// Longest message to or from a socket, in bytes.
pub(crate) const UDP_LONGEST: usize = 65_535;

/// How long the kernel's sockets wait that found no page for their datagrams.
pub const UDP_RETRY: Duration = Duration::from_millis(5);

/// Echo requests of one guest at once, by identifier: each has a descriptor of this process.
pub const ECHOES: usize = 64;

/// Destinations of one identifier; the oldest makes room for a new one. Programs that scan use one
/// identifier for all.
pub const ECHO_PEERS: usize = 64;

/// Silence after which an identifier's socket is closed.
pub const ECHO_IDLE: Duration = Duration::from_secs(30);
