//! The settings of a simulation.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pagewire_stack::TcpConfig;

use crate::SimTime;
use crate::limits::{DEFAULT_LIMIT, MEMORY};
use crate::network::link::Link;
use crate::network::names::IpVersion;
use crate::network::routing::Unreachable;
use crate::record::comparison::RunComparison;
use crate::report::outcome::TestName;
use crate::runtime::watchdog::RealTimeLimits;

/// 2026-01-01T00:00Z, in seconds of Unix time.
const EPOCH: u64 = 1_767_225_600;

/// The treatment of panics of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panics {
    /// The run fails, whichever task it was.
    #[default]
    Fail,
    /// Only the end of a program by a panic counts.
    Ignore,
}

/// The treatment of tasks that still run when their program ends. Sockets that nobody holds are closed;
/// they are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaks {
    /// The report has a warning.
    #[default]
    Report,
    /// The run fails.
    Fail,
    /// Nothing.
    Ignore,
}

/// The treatment of a thread outside of the simulation that wakes a task: a thread of `std::thread`, of a pool, of
/// another runtime. The host then runs at a time that no seed determines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignThreads {
    /// The run fails, as soon as it is noticed: if no host ran in between.
    #[default]
    Fail,
    /// The report has a warning.
    Report,
}

/// Settings of a simulation. Read [`Sim`](crate::Sim) first.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    pub(crate) seed: Option<u64>,
    pub(crate) limit: Duration,
    pub(crate) epoch: SystemTime,
    pub(crate) ip: IpVersion,
    pub(crate) link: Link,
    pub(crate) tcp: TcpConfig,
    pub(crate) unreachable: Unreachable,
    pub(crate) memory: usize,
    pub(crate) leaks: Leaks,
    pub(crate) panics: Panics,
    pub(crate) foreign_threads: ForeignThreads,
    pub(crate) digest_payload: bool,
    pub(crate) super_frames: bool,
    pub(crate) random_order: bool,
    pub(crate) random_wakes: bool,
    pub(crate) look_ahead: bool,
    pub(crate) artifacts: Option<PathBuf>,
    pub(crate) capture: Option<PathBuf>,
    pub(crate) timeline: Option<PathBuf>,
    /// A capture or a timeline that cannot be written is a warning.
    pub(crate) lenient: bool,
    pub(crate) patience: RealTimeLimits,
    /// Whether seeds that pass are run twice; by default the environment says.
    pub(crate) twice: Option<bool>,
    pub(crate) comparison: Option<RunComparison>,
    pub(crate) quiet: bool,
    pub(crate) test: TestName,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// The defaults, for the test that runs on this thread.
    pub fn new() -> Self {
        Self {
            seed: None,
            limit: DEFAULT_LIMIT,
            epoch: SystemTime::UNIX_EPOCH + Duration::from_secs(EPOCH),
            ip: IpVersion::default(),
            link: Link::new(),
            tcp: TcpConfig::default(),
            unreachable: Unreachable::default(),
            memory: MEMORY,
            leaks: Leaks::default(),
            panics: Panics::default(),
            foreign_threads: ForeignThreads::default(),
            digest_payload: true,
            super_frames: false,
            random_order: false,
            random_wakes: false,
            look_ahead: true,
            artifacts: None,
            capture: None,
            timeline: None,
            lenient: false,
            patience: RealTimeLimits::default(),
            twice: None,
            comparison: None,
            quiet: false,
            test: TestName::current(),
        }
    }

    /// Hosts that have something to do at the same time have their turns in an order by the seed,
    /// instead of the order in which they were added. It stays the same in the whole run; another seed
    /// has another one.
    pub fn random_order(mut self) -> Self {
        self.random_order = true;
        self
    }

    /// Tasks of one host whose sockets become ready at the same moment run in an order by the seed,
    /// instead of that of their sockets. Tasks that are woken otherwise, by a channel or a timer, run in
    /// the order in which they were woken, as tokio has it.
    pub fn random_wakes(mut self) -> Self {
        self.random_wakes = true;
        self
    }

    /// Whether to look ahead for the next timer of an idle host, or to visit every host each millisecond.
    /// Both give the same run; this is to test that.
    #[cfg(test)]
    pub(crate) fn look_ahead(mut self, on: bool) -> Self {
        self.look_ahead = on;
        self
    }
}

pagewire_mem::setters! {
    Builder:
    /// The seed of everything random. By default that of `PAGEWIRE_SEED` in the environment, else 0.
    seed(seed: u64): seed = Some(seed);
    /// Simulated time after which the run fails; 10 minutes by default.
    limit(simulated: Duration): limit = simulated;
    /// The wall clock's time at the start; 2026-01-01T00:00Z by default.
    epoch(at: SystemTime): epoch = at;
    /// The versions of IP that hosts speak; IPv4 by default.
    ip(version: IpVersion): ip = version;
    /// The link of every pair of hosts, each direction, that has none of its own. Its MTU is that of
    /// the hosts' devices.
    link(link: Link): link = link;
    /// Settings of the hosts' connections: as Linux's by default.
    tcp(config: TcpConfig): tcp = config;
    /// The answer to a host that sends to an address that no host has.
    unreachable(how: Unreachable): unreachable = how;
    /// Bytes of memory that each host has for payload that it sends: 4 MiB by default, touched only
    /// as far as used.
    memory(bytes_per_host: usize): memory = bytes_per_host;
    /// The treatment of tasks that still run when their program ends: a warning by default.
    leaks(what: Leaks): leaks = what;
    /// The treatment of panics of tasks: a failure by default.
    panics(what: Panics): panics = what;
    /// The treatment of a thread outside of the simulation that wakes a task: a failure by default.
    foreign_threads(what: ForeignThreads): foreign_threads = what;
    /// Whether the payload of packets counts for the digest. Without it, programs that send real
    /// random bytes (the handshake of TLS) have the same digest as long as lengths and times agree.
    digest_payload(on: bool): digest_payload = on;
    /// Real time for which a task, or work of `spawn_blocking`, may let its thread sleep; 60 seconds by
    /// default. A thread that waits for a lock, a channel or a real socket for ever can be ended by
    /// nobody, so the process is aborted then, with a message that names the host, what it waits for
    /// and the seed. `Duration::MAX` waits for ever.
    patience(real: Duration): patience.sleep = real;
    /// Real time for which a task may let its thread sleep; 200 milliseconds by default. More is a
    /// failure of kind [`Blocked`](crate::FailureKind::Blocked) or
    /// [`RealSocket`](crate::FailureKind::RealSocket), once the sleep ends.
    block_limit(real: Duration): patience.block = real;
    /// Real time after which tasks that have not come to rest are stopped, at one simulated time; 5
    /// seconds by default. That is a failure of kind [`Spinning`](crate::FailureKind::Spinning). A
    /// program that computes for long in one turn, on a slow machine, needs more. Work of
    /// `spawn_blocking` does not count.
    turn_limit(real: Duration): patience.turn = real;
    /// Whether [`check`](Self::check) runs every seed that passes a second time, and compares the two
    /// event by event. The second run stops at the first event that differs, and the check fails with
    /// that event ([`NotDeterministic`](crate::FailureKind::NotDeterministic)). By default
    /// `PAGEWIRE_TWICE=1` in the environment says so. Takes twice the time.
    twice(on: bool): twice = Some(on);
    /// Lets hosts hand over super-frames, as with segmentation offload: fewer events for bulk data.
    /// Super-frames are cut into segments where they enter a link.
    super_frames(on: bool): super_frames = on;
    /// Where captures and timelines of failures go; cargo's target directory by default. Their names
    /// have the package, the test's program, the test and the seed.
    artifacts(dir: impl Into<PathBuf>): artifacts = Some(dir.into());
    /// Writes every packet to a pcapng file, which Wireshark opens: an interface for each host.
    /// [`check`](Self::check) writes one for the seed that fails, with the seed in the file's name.
    capture(file: impl Into<PathBuf>): capture = Some(file.into());
    /// Writes a line for everything that happens to a text file. [`check`](Self::check) writes one for
    /// the seed that fails, with the seed in the file's name.
    timeline(file: impl Into<PathBuf>): timeline = Some(file.into());
}

impl Builder {
    /// The time at which a run has taken too long.
    pub(crate) fn end(&self) -> SimTime {
        SimTime::ZERO.after(self.limit)
    }
}
