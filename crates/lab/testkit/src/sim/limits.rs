//! Every limit of this crate, with its unit and its reason.

use std::time::Duration;

/// Shortest delay of a link each way; never zero, so that time moves when nodes send.
pub const MIN_DELAY: Duration = Duration::from_micros(1);

/// Turns at one moment after which a simulation counts as livelocked.
pub const MAX_TURNS_AT_ONE_MOMENT: u64 = 1_000;

/// Turns after which any simulation has failed: hours of virtual time, or a slow livelock.
pub const MAX_TURNS: u64 = 50_000_000;

/// Bursts that one node may send in one turn before the others have theirs.
pub const MAX_BURSTS_PER_TURN: usize = 16;

/// Stations whose place a switch remembers; beyond, it floods.
pub const MAX_STATIONS: usize = 1024;

/// Longest time without progress: ten retransmissions in a row lost, from 200 ms up.
pub const MAX_STALL: Duration = Duration::from_secs(240);

/// Longest virtual time for one transfer, and again for its connections to end.
pub const MAX_TRANSFER: Duration = Duration::from_secs(3600);

/// Bytes of memory of a stack by default: so many that windows are never short of memory.
pub const MEMORY: usize = 1 << 30;

/// Time within which the flows of one group begin, so that they are not synchronised.
pub const BOTTLENECK_STARTS: Duration = Duration::from_secs(1);
