//! Every limit of the vhost-user device, with its unit and its reason.

/// Most descriptors in a ring: what QEMU offers a guest (`tx_queue_size=1024`). Also the most
/// descriptors in one chain, and in one indirect table.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Most queue pairs of a device: a ring's number has eight bits (`VHOST_USER_SET_VRING_KICK`), and
/// guests have no more processors here.
pub const MAX_QUEUE_PAIRS: usize = 64;

/// Bytes of guest memory that a port maps at one time, including memory that fragments of former
/// sessions hold: more than most machines have, and so little of the 128 TiB of addresses of a
/// process that a hundred ports find room.
pub const MAPPED_BYTES: usize = 1 << 40;

/// Windows of guest memory that a port has at one time: all regions of a session, all of a table
/// that replaces them, and as many again that fragments of former ones hold. A process may have
/// 65,530 memory maps (`vm.max_map_count`): enough for hundreds of ports.
pub const MAPPINGS: usize = 3 * MAX_MEMORY_REGIONS;

/// Rings that a port has, or of which fragments still hold descriptors, for each pair of queues:
/// the two of a session, and six of former ones. Frames of further ones are copied, so that
/// restarting rings does not raise the number of descriptors that a guest may have held here.
pub const HELD_RINGS: usize = 8;

/// Front ends that may connect to a port one after another at once: enough for a machine that is
/// started and stopped.
pub const SESSIONS: u32 = 32;

/// The interval of further ones. A session takes a few threads' wake-ups, and unmapping its memory
/// stops all threads of the process for a moment.
pub const SESSION_EVERY: core::time::Duration = core::time::Duration::from_millis(250);

/// Most regions of guest memory: RAM below and above the hole of 32-bit devices, and RAM plugged in
/// later. More than one message can carry.
pub const MAX_MEMORY_REGIONS: usize = 64;

/// Bytes of the virtio header in front of a frame in a ring: with `num_buffers`.
pub const GUEST_HEADER: usize = crate::limits::VNET_HEADER + 2;

/// Longest frame that a guest may send, in bytes: an Ethernet header, one VLAN tag and the longest
/// IP packet.
pub const MAX_FRAME: usize = 18 + 65_535;

/// Frames of this many bytes or more become fragments of the guest's memory by default; a copy of a
/// shorter one costs less than a reference that comes back.
pub const BY_REFERENCE: usize = 1024;

/// Fragments may hold one in so many of a ring's descriptors, all of each chain counted; then
/// frames are copied, so that a reader that keeps its data cannot stop the guest's sending.
pub const HELD_SHARE: u16 = 2;

/// How long the device waits before it connects again to a front end that listens.
pub const RECONNECT: core::time::Duration = core::time::Duration::from_millis(500);

/// How long a device that ends waits for its thread: a front end can delay it without limit, by a
/// file whose `close` does not return.
pub const ENDING: core::time::Duration = core::time::Duration::from_millis(250);

/// How often it tries the session's lock meanwhile.
pub const LOOK: core::time::Duration = core::time::Duration::from_millis(1);

/// Flows whose queue pair is remembered, so that a guest's flow is answered on its own pair (Virtio
/// 1.2, section 5.1.6.5.6.1). One byte each; flows that share a slot share a pair.
pub const FLOWS: usize = 256;

/// Requests that the context of asynchronous I/O has room for before old ones are forgotten. The
/// system has 65,536 for all processes (`fs.aio-max-nr`).
pub const NOTICES: u32 = 32;

/// How many of those are forgotten at once. The kernel rounds the room up.
pub const NOTICES_READ: usize = 128;

/// How long until a refused interrupt is sent again.
pub const SIGNAL_RETRY: core::time::Duration = core::time::Duration::from_millis(1);
