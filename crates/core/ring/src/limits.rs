//! Every limit of this crate, with its unit and its reason.

/// Entries of one ring at most, as io_uring's largest.
pub const MAX_RING_ENTRIES: u32 = 32_768;

/// Groups of one engine at most, the copy group included: each piece is looked up in all of them.
pub const MAX_GROUPS: usize = 16;

/// Bytes of a region at most: offsets have 32 bits.
pub const MAX_REGION_BYTES: usize = 1 << 32;

/// Bytes of all regions of one engine together, by default.
pub const DEFAULT_REGION_BYTES: usize = 8 << 30;

/// Sockets of one engine at most.
pub const MAX_SOCKETS: usize = 1 << 20;

/// Sends of one socket that may be outstanding: bounds the engine's records of them.
pub const MAX_SENDS: usize = 1024;

/// Connects under way: a cancel searches them.
pub const MAX_CONNECTS: usize = 4096;

/// Bytes of one send: lengths have 32 bits, and a result must fit a positive number of 32 bits.
pub const MAX_SEND_BYTES: usize = 1 << 30;

/// Bytes that one receive takes at once: four of a tap's largest super-frames, still in the cache.
pub const TAKE_BYTES: usize = 256 << 10;

/// Receives of one connection in a turn.
pub const RUNS_PER_TURN: usize = 16;

/// Datagrams that one socket delivers in a turn: about as many bytes, in full Ethernet frames.
pub const DATAGRAMS_PER_TURN: usize = 192;

/// Fill entries taken at once.
pub const FILL_BATCH: usize = 64;

/// Buffers that the device shall have ready: 64 frames of 15 pages; half of a small region.
pub const CACHE_BUFFERS: usize = 1024;

/// Pieces of lent memory that an application may hold: as many as ids can name.
pub const MAX_LENT: usize = 1 << pagewire_mem::limits::LEASE_PAGE_BITS;

/// The part of a region that its flows may have in flight, as a divisor.
pub const WINDOW_SHARE: usize = 4;

/// Bytes that each flow may have in flight, however many flows there are: a tap's super-frame.
pub const MIN_WINDOW: u32 = 65_536;
