//! Every limit of this crate, with its unit and its reason.

use std::time::Duration;

/// Shortest time that a link takes each way: light in 200 m of fibre. Never none, so that time
/// moves as soon as nodes talk, and a simulation in which it does not is stuck.
pub const MIN_DELAY: Duration = Duration::from_micros(1);

/// Turns at one moment after which a simulation counts as livelocked. Since links take time, a
/// node has that many turns only to send what it had queued: 16 bursts in each.
pub const MAX_TURNS_AT_ONE_MOMENT: u64 = 1_000;

/// Turns after which any simulation has failed: hours of virtual time, or a livelock that creeps.
pub const MAX_TURNS: u64 = 50_000_000;

/// Bursts that one node may send in one turn before the others have theirs.
pub const MAX_BURSTS_PER_TURN: usize = 16;

/// Stations of which a switch remembers where they are; then it floods.
pub const MAX_STATIONS: usize = 1024;

/// Longest time without progress: ten retransmissions in a row lost, with a timeout that began at
/// 200 ms and doubled each time up to where it stays.
pub const MAX_STALL: Duration = Duration::from_secs(240);

/// Longest virtual time for one transfer, and again for its connections to end.
pub const MAX_TRANSFER: Duration = Duration::from_secs(3600);

/// Bytes of a stack's pool unless told otherwise: ten times what one connection may hold, and few
/// enough pages to count them after every step.
pub const POOL_BYTES: usize = 16 << 20;

/// Bytes of the pools of stacks that share a bottleneck: payload is passed by reference, so nearly
/// nothing is in them, and their pages are counted after every step.
pub const BOTTLENECK_POOL_BYTES: usize = 1 << 20;

/// Time within which the flows of one group begin, so that they do not move in step.
pub const BOTTLENECK_STARTS: Duration = Duration::from_secs(1);
