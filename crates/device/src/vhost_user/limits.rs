//! Every limit of the vhost-user device, with its unit and its reason.

/// Most descriptors in a ring: what QEMU offers a guest (`tx_queue_size=1024`). Also the most
/// descriptors in one chain, and in one indirect table that is believed.
pub const MAX_QUEUE_SIZE: u16 = 1024;

/// Most queue pairs of a device: as many as there are bits to name a ring's eventfd by
/// (`VHOST_USER_SET_VRING_KICK` has eight), and more than guests have processors here.
pub const MAX_QUEUE_PAIRS: usize = 64;

/// Bytes of guest memory that a port has mapped at one time, what fragments of former sessions hold
/// included: more than most machines have, and of the 128 TiB of addresses of a process so little that
/// a hundred ports find room.
pub const MAPPED_BYTES: usize = 1 << 40;

/// Mappings of guest memory that a port has at one time: all regions of a session, all of a table that
/// replaces them, and as many again that fragments of former ones hold. A process may have 65,530
/// (`vm.max_map_count`): enough for hundreds of ports.
pub const MAPPINGS: usize = 3 * MAX_MEMORY_REGIONS;

/// Rings that a port has, or of which fragments still hold descriptors, for each pair of queues: the
/// two of a session, and six of former ones. Frames of further ones are copied, so that starting rings
/// anew does not raise what a guest may have held here.
pub const HELD_RINGS: usize = 8;

/// Front ends that may connect to a port one after another at once: more than a machine that is
/// started, stopped and looked for needs.
pub const SESSIONS: u32 = 32;

/// How soon each further one may. A session takes a few threads' wake-ups, and mappings that stop all
/// threads of the process for a moment when they go.
pub const SESSION_EVERY: core::time::Duration = core::time::Duration::from_millis(250);

/// Most regions of guest memory: RAM below and above the hole of 32-bit devices, and what is
/// plugged in later. More than one message can carry.
pub const MAX_MEMORY_REGIONS: usize = 64;

/// Bytes of the virtio header in front of a frame in a ring: with `num_buffers`.
pub const GUEST_HEADER: usize = crate::limits::VNET_HEADER + 2;

/// Longest frame that a guest may send, in bytes: an Ethernet header, one VLAN tag and the longest
/// IP packet.
pub const MAX_FRAME: usize = 18 + 65_535;

/// Frames of this many bytes or more become fragments of the guest's memory, unless the builder says
/// otherwise; shorter ones are copied, which costs less than a reference that comes back.
pub const BY_REFERENCE: usize = 1024;

/// Of a ring's descriptors, one in so many may be held by fragments, all of each chain counted; then
/// frames are copied, so that a reader who keeps what it got cannot stop the guest's sending.
pub const HELD_SHARE: u16 = 2;

/// How long the device waits before it connects again to a front end that listens, whether it was not
/// there or has gone.
pub const RECONNECT: core::time::Duration = core::time::Duration::from_millis(500);

/// How long a device that ends waits for its thread, before it leaves it behind: a front end can make
/// it wait for as long as it likes, by a file whose `close` does not return.
pub const ENDING: core::time::Duration = core::time::Duration::from_millis(250);

/// How often it looks meanwhile whether the session is free.
pub const LOOK: core::time::Duration = core::time::Duration::from_millis(1);

/// Flows whose queue pair is remembered, so that a guest's flow is answered on the pair it came by
/// (Virtio 1.2, section 5.1.6.5.6.1). One byte each; flows that share a slot share a pair.
pub const FLOWS: usize = 256;

/// Notices to guests that asynchronous I/O has room for before what was said is forgotten. The system
/// has 65,536 for all processes (`fs.aio-max-nr`).
pub const NOTICES: u32 = 32;

/// Of those, how many are forgotten at once. The kernel rounds up what was asked for.
pub const NOTICES_READ: usize = 128;

/// How long until an interrupt is sent again that the kernel refused.
pub const SIGNAL_RETRY: core::time::Duration = core::time::Duration::from_millis(1);
