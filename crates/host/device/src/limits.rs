//! Every limit of this crate, with its unit and its reason.

pub use pagewire_mem::link::limits::{
    MAX_MTU, MAX_QUEUES, MAX_RULES, MAX_SUPER_FRAME, MAX_UDP_SEGMENTS, MIN_GSO_SIZE, PLACE_MIN,
};

/// Frames that each direction of a pair holds by default: four windows of 4 MiB in segments of 15
/// pages; a ring of 64 KiB that stays in the second-level cache.
pub const PAIR_QUEUE_FRAMES: usize = 256;

/// Frames that a direction of a pair may hold at most: 16 MiB of slots.
pub const PAIR_MAX_QUEUE_FRAMES: usize = 1 << 16;

/// Largest IP packet of a pair by default, in bytes: 15 whole pages of payload (61,440) behind the
/// longest of the usual headers: IPv6 (40), TCP (20) and its timestamps (12). 16 pages would exceed
/// the 65,535 that IPv4's length field can express.
pub const PAIR_MTU: usize = 15 * pagewire_mem::PAGE_SIZE + 40 + 20 + 12;

/// Smallest MTU of a device, in bytes: every IPv4 host must accept it (RFC 791). IPv6 needs 1,280.
pub const MIN_MTU: usize = 576;

/// Bytes in front of the IP packet that an Ethernet device takes: the header and one VLAN tag.
pub const MAX_LINK_HEADER: usize = 18;

/// Bytes of a frame that a capture keeps by default: all of the largest super-frame.
pub const PCAP_SNAPLEN: u32 = 262_144;

/// Bytes that a capture collects before it writes, so that a burst costs one system call.
pub const PCAP_BUFFER: usize = 256 << 10;

/// Frames that wait for a fault wrapper's rate by default, as in a Linux interface's queue.
pub const FAULT_QUEUE_FRAMES: usize = 1000;

/// Frames that a fault wrapper may queue and delay in each direction; more are lost, and counted.
pub const FAULT_MAX_FRAMES: usize = 1 << 16;

/// Frames delayed at once to be overtaken; with more, a frame keeps its place.
pub const FAULT_MAX_HELD: usize = 64;

/// Frames that overtake a delayed one: one more than three duplicate ACKs (RFC 5681) need.
pub const FAULT_OVERTAKERS: u64 = 4;

/// Longest time for which a frame is delayed when too few follow to overtake it.
pub const FAULT_HOLD: core::time::Duration = core::time::Duration::from_millis(5);

/// Longest delay of a fault wrapper: beyond it no TCP connection is set up.
pub const FAULT_MAX_DELAY: core::time::Duration = core::time::Duration::from_secs(60);

/// How long frames may wait under controlled delay (RFC 8289 section 4.3: 5% to 10% of the next).
pub const CODEL_TARGET: core::time::Duration = core::time::Duration::from_millis(5);

/// For how long they may wait longer than that: about the longest usual round trip.
pub const CODEL_INTERVAL: core::time::Duration = core::time::Duration::from_millis(100);

/// Frames that a super-frame is cut into for a guest that takes no super-frames: 64 KiB in segments
/// of 36 bytes, the smallest MSS with timestamps, are 1,820. The rest of a longer one is lost.
pub const MAX_CUT_FRAMES: usize = 2048;

/// Bytes of the virtio header in front of each frame: the old one without `num_buffers`.
pub const VNET_HEADER: usize = 10;

/// Addresses of a DHCP server at most, and so the clients it remembers: a network of 24 bits.
pub const DHCP_MAX_LEASES: usize = 256;

/// Answers of a DHCP server that wait for room in the device; further requests are not answered.
pub const DHCP_MAX_ANSWERS: usize = 64;

/// Resolvers sent to clients of DHCP; the C library takes three.
pub const DHCP_MAX_RESOLVERS: usize = 3;

/// Bytes of a DHCP request's frame: Ethernet's usual MTU. RFC 2131 has clients stay below 576.
pub const DHCP_MAX_FRAME: usize = 14 + 1500;

/// How long a client has an address by default.
pub const DHCP_LEASE: core::time::Duration = core::time::Duration::from_secs(3600);

/// How long an offered address is kept for the client: clients decide within seconds.
pub const DHCP_OFFER_TIME: core::time::Duration = core::time::Duration::from_secs(30);

/// How long an address that a client found in use is not given.
pub const DHCP_REST_TIME: core::time::Duration = core::time::Duration::from_secs(600);

/// Refused frames that a tap keeps for their senders: those between two calls. Of more, the newest.
pub const TAP_REFUSED_FRAMES: usize = 256;

/// Refused frames that an end of a shared device keeps, as a tap does.
pub const SHARED_REFUSED_FRAMES: usize = 256;

/// How long the turn to send stays with an end of a shared device whose frames found no room: ten times the
/// millisecond after which a host tries again.
pub const SHARED_TURN: core::time::Duration = core::time::Duration::from_millis(10);

/// Bytes of the longest frame of a link over a socket: Ethernet, one VLAN tag, the longest IP packet.
pub const MAX_SOCKET_FRAME: usize = MAX_LINK_HEADER + MAX_MTU;

/// Bytes that one call receives from a stream: 43 frames of Ethernet's usual MTU, whose pages stay
/// in the cache until the stack has seen them.
pub const STREAM_READ: usize = 64 << 10;

/// Frames that one call sends to a stream, and that one turn sends by datagrams.
pub const SOCKET_BURST: usize = 64;

/// Pieces of memory that one call sends: Linux's `IOV_MAX`.
pub const MAX_SEND_VECTORS: usize = 1024;

/// Runs of pages that one call receives into, as many as a packet has fragments.
pub const MAX_RECEIVE_RUNS: usize = pagewire_mem::MAX_FRAGS;

/// Memory to receive into over a socket, in bytes, by default; touched only as far as used.
pub const SOCKET_POOL_BYTES: usize = 16 << 20;

/// The part of that memory, as a divisor, that received frames do not keep: what acknowledgements,
/// queries and new connections come in by while others are not read. Two of the longest frames, and
/// two calls' worth of a stream, at the least.
pub const RECEIVING_PART: usize = 4;

/// The part of the machine's memory, as a divisor, that the sockets of one host may pin by default: as Linux's
/// `tcp_mem` under pressure.
pub const MEMORY_PART: u64 = 16;

/// Bytes that the sockets of a host may pin on the smallest machines.
pub const LEAST_MEMORY: u64 = 32 << 20;

/// Memory of a device that receives for such a host, and the part of it that the host may pin: the rest is
/// [`RECEIVING_PART`].
pub const DEVICE_MEMORY_PARTS: (usize, usize) = (RECEIVING_PART, RECEIVING_PART - 1);

/// Least memory to receive into over a socket, in bytes: many of the longest frames.
pub const SOCKET_MIN_POOL_BYTES: usize = 1 << 20;

/// Bytes that a socket buffers for its guest, as a wish: what gvproxy asks for, some 4,600 frames.
pub const SOCKET_SEND_BUFFER: usize = 7 << 20;

/// How long a link that listens waits for descriptors to take a peer with, when there were none.
pub const ACCEPT_RETRY: core::time::Duration = core::time::Duration::from_millis(500);

/// Time after which a link over a socket checks again for free pages, or for room in a socket
/// whose room is not announced.
pub const SOCKET_RETRY: core::time::Duration = core::time::Duration::from_micros(250);

/// Frames that each direction of [`Frames`](crate::Frames) holds by default: a millisecond of
/// 12 Gbit/s in frames of Ethernet's usual MTU.
pub const FRAMES_QUEUE: usize = 1024;
