//! Every limit of the tap driver, with its unit and its reason.

use std::time::Duration;

/// Longest frame a tap passes, in bytes: Ethernet and the longest IP packet.
pub const MAX_FRAME: usize = 14 + 65_535;

pub use crate::limits::VNET_HEADER;

/// Least MTU, in bytes: what IPv6 needs (RFC 8200, section 5).
pub const MIN_MTU: usize = 1280;

/// Largest MTU, in bytes: the kernel's `MAX_MTU` less an Ethernet header.
pub const MAX_MTU: usize = 65_535 - 14;

/// Longest name of a network device, in bytes: the kernel's `IFNAMSIZ` less the final zero.
pub const MAX_NAME: usize = 15;

/// Most queues of one tap: the kernel's `MAX_TAP_QUEUES`.
pub const MAX_QUEUES: usize = 256;

/// Least memory to receive into, in bytes: a frame must always fit beside those that are held.
pub const MIN_POOL_BYTES: usize = 1 << 20;

/// Frames that wait in each queue of a new tap. The kernel's 1000 are fewer than ten thousand
/// connections send at once, and a lost reset is not sent again. A place in the queue is 8 bytes.
pub const QUEUE_FRAMES: u32 = 16_384;

/// Longest payload, in bytes, that is moved out of the way of bulk data instead of pinning a page
/// (and the alignment of the next): below this a copy costs less than a reference.
pub const SMALL_PAYLOAD: usize = 512;

/// Frames of a flow in a row, after another flow came between, until the next is expected to follow
/// in memory too.
pub const TRUST: u8 = 4;

/// Frames without bulk payload after which a flow no longer counts as running.
pub const IDLE_FRAMES: u8 = 16;

/// Flows that get a queue, beside the first: each takes up to half a MiB.
pub const SPARE_QUEUES: usize = 15;

/// Bytes of the pool for each: a run of adjacent pages (`mem`'s `HOT_PAGES`), and as much in use.
pub const QUEUE_BYTES: usize = 4 << 20;

/// Bulk frames after which a flow no longer counts as running beside another.
pub const RECENT_FRAMES: u8 = 64;

/// How long a flow sends nothing, acknowledgements included, before its queue may be given away and
/// detached. With a queue beside the first the kernel classifies each frame, also the small ones.
pub const QUEUE_IDLE: Duration = Duration::from_secs(1);

/// Frames read from one queue before the others have their turn, if there are several.
pub const QUEUE_BURST: usize = 8;

/// Frames of the first queue, where that is never empty, that are read before those of a flow that got
/// another queue: more than the largest window in super-frames. Frames that stay behind arrive out of order.
pub const MOVE_FRAMES: usize = 1024;

/// How often, and how far apart, the driver checks whether a new address is in use.
pub const SETTLE_TRIES: usize = 200;
/// The pause between two tries.
pub const SETTLE_PAUSE: Duration = Duration::from_millis(1);
