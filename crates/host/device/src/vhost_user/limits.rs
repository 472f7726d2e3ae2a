//! Every limit of the vhost-user device, with its unit and its reason.

/// Most descriptors in a ring, a chain or an indirect table: QEMU's largest `tx_queue_size`.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Most queue pairs of a port: a ring's number has eight bits (`VHOST_USER_SET_VRING_KICK`).
pub const MAX_QUEUE_PAIRS: usize = 64;

/// Bytes of guest memory that a port maps at one time, held memory of former sessions included:
/// more than most machines have, and room for a hundred ports in 128 TiB of addresses.
pub const MAPPED_BYTES: usize = 1 << 40;

/// Windows of guest memory that a port has at one time: a session's, those of a table that replaces
/// them, and held ones. A process may have 65,530 memory maps (`vm.max_map_count`).
pub const MAPPINGS: usize = 3 * MAX_MEMORY_REGIONS;

/// Rings for each pair of queues that a port has, or of which fragments hold descriptors: two of a
/// session, six of former ones. Frames of further ones are copied.
pub const HELD_RINGS: usize = 8;

/// Front ends that may connect to a port one after another without a wait.
pub const SESSIONS: u32 = 32;

/// Time between two front ends after those. Unmapping memory stops all threads of the process for a moment.
pub const SESSION_EVERY: core::time::Duration = core::time::Duration::from_millis(250);

/// Most regions of guest memory, RAM plugged in later included. More than one message can carry.
pub const MAX_MEMORY_REGIONS: usize = 64;

/// Bytes of the virtio header in front of a frame in a ring: with `num_buffers`.
pub const GUEST_HEADER: usize = crate::limits::VNET_HEADER + 2;

/// Longest frame that a guest may send, in bytes: Ethernet, one VLAN tag, the longest IP packet.
pub const MAX_FRAME: usize = 18 + 65_535;

/// Frames of this many bytes or more become fragments by default: a shorter one is cheaper to copy.
pub const BY_REFERENCE: usize = 1024;

/// The part of a ring's descriptors that fragments may hold, as a divisor, all of each chain counted; then
/// frames are copied, so that a reader that keeps its data cannot stop the guest's sending.
pub const HELD_SHARE: u16 = 2;

/// How long the device waits before it connects again to a front end that listens.
pub const RECONNECT: core::time::Duration = core::time::Duration::from_millis(500);

/// How long a device that ends waits for its thread, which a front end's file can delay.
pub const ENDING: core::time::Duration = core::time::Duration::from_millis(250);

/// How often it tries the session's lock meanwhile.
pub const LOOK: core::time::Duration = core::time::Duration::from_millis(1);

/// Flows whose queue pair is remembered (Virtio 1.2, section 5.1.6.5.6.1), one byte each.
pub const FLOWS: usize = 256;

/// Frames of devices without a running queue pair that wait for the first device of their port: a burst.
/// As many more may wait there for room.
pub const SPILLED_FRAMES: usize = 64;

/// Requests that a context of asynchronous I/O has room for; the system has 65,536 in all.
pub const NOTICES: u32 = 32;

/// How many of those are forgotten at once. The kernel rounds the room up.
pub const NOTICES_READ: usize = 128;

/// How long until a refused interrupt is sent again.
pub const SIGNAL_RETRY: core::time::Duration = core::time::Duration::from_millis(1);
