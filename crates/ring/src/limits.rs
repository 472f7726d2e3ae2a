//! Every limit of this crate, with its unit and its reason.

/// Entries that one ring may have: as io_uring's largest.
pub const MAX_RING_ENTRIES: u32 = 32_768;

/// Groups that one engine may have, the copy group included: a piece is looked up in each.
pub const MAX_GROUPS: usize = 16;

/// Bytes of a region at most: offsets have 32 bits.
pub const MAX_REGION_BYTES: usize = 1 << 32;

/// Bytes that all regions of one engine may have together, unless it is told otherwise.
pub const DEFAULT_REGION_BYTES: usize = 8 << 30;

/// Sockets that one engine may have.
pub const MAX_SOCKETS: usize = 1 << 20;

/// Sends of one socket that may wait: what they hold is the application's own memory, this
/// bounds our notes of it.
pub const MAX_SENDS: usize = 1024;

/// Connects under way: a cancel looks at each.
pub const MAX_CONNECTS: usize = 4096;

/// Bytes of one send: lengths have 32 bits, and a result must be able to tell them.
pub const MAX_SEND_BYTES: usize = 1 << 30;

/// Bytes that one receive takes from its connection before others have their turn: four of a wire's
/// largest super-frames, and few enough that a completion tells of data that is still in the cache.
pub const TAKE_BYTES: usize = 256 << 10;

/// Runs of one connection in a turn.
pub const RUNS_PER_TURN: usize = 16;

/// Datagrams that one socket is given in a turn: about as many bytes of full Ethernet frames as one
/// take of a connection.
pub const DATAGRAMS_PER_TURN: usize = 192;

/// Fill entries that are taken at once.
pub const FILL_BATCH: usize = 64;

/// Buffers of a region that the device shall have ready: a burst of 64 frames of 15 pages.
/// Of a small region, half.
pub const CACHE_BUFFERS: usize = 1024;

/// Pieces of lent memory that an application may hold: what an id can name.
pub const MAX_LENT: usize = 1 << pagewire_mem::limits::LEASE_PAGE_BITS;

/// Of a region, the flows that receive into it may have one part in so many on the way: the rest is
/// with the application or on its way back.
pub const WINDOW_SHARE: usize = 4;

/// Bytes that each flow may have on the way however many there are: a wire's super-frame.
pub const MIN_WINDOW: u32 = 65_536;
