//! Every limit of this crate, with its unit and its reason.

use std::time::Duration;

/// Hosts of one simulation: their numbers have to fit into 24 bits, those of `10.0.0.0/8`.
pub(crate) const MAX_HOSTS: usize = 1 << 20;

/// Bytes that a host's sockets may pin by default, touched only as far as used: a window of a default
/// connection, and more.
pub(crate) const MEMORY: usize = 8 << 20;

/// Latency of a link by default: hosts in one data centre, with some distance.
pub(crate) const DEFAULT_LATENCY: Duration = Duration::from_millis(1);

/// Shortest time of a packet on a link; never zero, so that time moves when hosts talk.
pub(crate) const MIN_LATENCY: Duration = Duration::from_micros(1);

/// Least time from the begin of one random fault to that of the next: all faults to come are held in
/// memory, however small the ranges are.
pub(crate) const MIN_PERIOD: Duration = Duration::from_millis(1);

/// Longest IP packet by default, in bytes: Ethernet's.
pub(crate) const DEFAULT_MTU: usize = 1500;

/// Least MTU of a link, in bytes (RFC 8200 section 5).
pub(crate) const MIN_MTU: usize = 1280;

/// Simulated time after which a run fails, by default: far beyond what a test means to take.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(600);

/// Turns of hosts at one simulated time after which time counts as standing still.
pub(crate) const MAX_TURNS_AT_ONE_TIME: u64 = 1_000_000;

/// Real time after which tasks that never come to rest are stopped: a thousand times more than a
/// slow machine needs for a turn.
pub(crate) const MAX_TURN: Duration = Duration::from_secs(5);

/// Number of hosts up to which all are asked, after each run, whether another host woke their tasks. With more
/// hosts they are asked once a millisecond.
pub(crate) const WATCHED_HOSTS: usize = 64;

/// Simulated time without a frame, a command or a woken task after which a run that is not done
/// counts as one that makes no progress: longer than TCP's longest retransmission timeout. It may lie
/// behind the limit of the run.
pub(crate) const MAX_IDLE: Duration = Duration::from_secs(130);

/// Real time without an end for which a thread may sleep by default, while the simulation waits for it:
/// nothing but the end of the process ends such a wait, and it is far longer than a disk takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Real time between two checks of a simulation by the watchdog.
pub(crate) const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// Real time that a task may let its thread sleep: a pipe or a disk may be slow.
pub(crate) const MAX_BLOCKED: Duration = Duration::from_millis(200);

/// Real time between two checks of a thread that waits for others to have run their seeds: far less than
/// most seeds take.
pub(crate) const JOB_WAIT: Duration = Duration::from_millis(2);

/// Bytes of a packet's payload that the timeline shows: a request's first line, as far as a line of the
/// timeline has room.
pub(crate) const PAYLOAD_SHOWN: usize = 32;

/// Events of a first run, of 40 bytes each, that are kept for comparison with a second run. Of longer runs
/// the rest is compared as a whole, by the digest.
pub(crate) const MAX_COMPARED_EVENTS: usize = 1 << 20;

/// Real time that a thread waits for the turns of others to end before it installs the panic hook: a
/// turn that lasts longer does not end soon.
pub(crate) const MAX_WAIT_FOR_TURNS: Duration = Duration::from_millis(50);
