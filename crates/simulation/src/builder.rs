//! The settings of a simulation.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use pagewire_stack::TcpConfig;

use crate::SimTime;
use crate::fabric::Unreachable;
use crate::limits::{DEFAULT_LIMIT, POOL_BYTES};
use crate::link::Link;
use crate::names::IpVersion;
use crate::report::TestName;
use crate::tape::Tape;
use crate::watch::Patience;

/// 2026-01-01T00:00Z, in seconds of Unix time.
const EPOCH: u64 = 1_767_225_600;

/// What happens when a task panics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Panics {
    /// The run fails, whichever task it was.
    #[default]
    Fail,
    /// Only the end of a program by a panic counts.
    Ignore,
}

/// What happens with tasks that still run when their program ends. Sockets that nobody holds are closed;
/// they are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaks {
    /// They are in the report.
    #[default]
    Report,
    /// The run fails.
    Fail,
    /// Nothing.
    Ignore,
}

/// What happens when a thread that is not the simulation's wakes a task: of `std::thread`, of a pool, of
/// another runtime. The host then runs at a time that no seed determines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignThreads {
    /// The run fails, as soon as it is noticed: if no host ran in between.
    #[default]
    Fail,
    /// It is in the report.
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
    pub(crate) patience: Patience,
    /// Whether seeds that pass are run twice; by default the environment says.
    pub(crate) twice: Option<bool>,
    pub(crate) tape: Option<Tape>,
    /// Panics are not printed.
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
            memory: POOL_BYTES,
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
            patience: Patience::default(),
            twice: None,
            tape: None,
            quiet: false,
            test: TestName::current(),
        }
    }

    /// The seed of everything random. By default that of `PAGEWIRE_SEED` in the environment, else 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Simulated time after which the run fails; 10 minutes by default.
    pub fn limit(mut self, simulated: Duration) -> Self {
        self.limit = simulated;
        self
    }

    /// The wall clock's time at the start; 2026-01-01T00:00Z by default.
    pub fn epoch(mut self, at: SystemTime) -> Self {
        self.epoch = at;
        self
    }

    /// The versions of IP that hosts speak; IPv4 by default.
    pub fn ip(mut self, version: IpVersion) -> Self {
        self.ip = version;
        self
    }

    /// The link of every pair of hosts, each direction, that has none of its own. Its MTU is that of
    /// the hosts' devices.
    pub fn link(mut self, link: Link) -> Self {
        self.link = link;
        self
    }

    /// Settings of the hosts' connections: as Linux's by default.
    pub fn tcp(mut self, config: TcpConfig) -> Self {
        self.tcp = config;
        self
    }

    /// What a host hears that sends to an address that no host has.
    pub fn unreachable(mut self, how: Unreachable) -> Self {
        self.unreachable = how;
        self
    }

    /// Bytes of memory that each host has for payload that it sends: 4 MiB by default, touched only
    /// as far as used.
    pub fn memory(mut self, bytes_per_host: usize) -> Self {
        self.memory = bytes_per_host;
        self
    }

    /// What happens with tasks that still run when their program ends.
    pub fn leaks(mut self, what: Leaks) -> Self {
        self.leaks = what;
        self
    }

    /// What happens when a task panics.
    pub fn panics(mut self, what: Panics) -> Self {
        self.panics = what;
        self
    }

    /// What happens when a thread that is not the simulation's wakes a task.
    pub fn foreign_threads(mut self, what: ForeignThreads) -> Self {
        self.foreign_threads = what;
        self
    }

    /// Whether the payload of packets counts for the digest. Without it, programs that send real
    /// random bytes (the handshake of TLS) have the same digest as long as lengths and times agree.
    pub fn digest_payload(mut self, on: bool) -> Self {
        self.digest_payload = on;
        self
    }

    /// Real time for which a task, or work of `spawn_blocking`, may let its thread sleep; 60 seconds by
    /// default. A thread that waits for a lock, a channel or a real socket for ever can be ended by
    /// nobody, so the process is aborted then, with a message that names the host, what it waits for
    /// and the seed. `Duration::MAX` waits for ever.
    pub fn patience(mut self, real: Duration) -> Self {
        self.patience.sleep = real;
        self
    }

    /// Real time for which a task may let its thread sleep; 200 milliseconds by default. More is a
    /// failure of kind [`Blocked`](crate::FailureKind::Blocked) or
    /// [`RealSocket`](crate::FailureKind::RealSocket), once the sleep ends.
    pub fn block_limit(mut self, real: Duration) -> Self {
        self.patience.block = real;
        self
    }

    /// Real time after which tasks that have not come to rest are stopped, at one simulated time; 5
    /// seconds by default. That is a failure of kind [`Spinning`](crate::FailureKind::Spinning). A
    /// program that computes for long in one turn, on a slow machine, needs more. Work of
    /// `spawn_blocking` does not count.
    pub fn turn_limit(mut self, real: Duration) -> Self {
        self.patience.turn = real;
        self
    }

    /// Whether [`check`](Self::check) runs every seed that passes a second time, and compares the two
    /// event by event. The second run stops at the first event that differs, and the check fails with
    /// that event ([`NotDeterministic`](crate::FailureKind::NotDeterministic)). By default
    /// `PAGEWIRE_TWICE=1` in the environment says so. Takes twice the time.
    pub fn twice(mut self, on: bool) -> Self {
        self.twice = Some(on);
        self
    }

    /// Lets hosts hand over super-frames, as with segmentation offload: fewer events for bulk data.
    /// They are cut where they enter a link.
    pub fn super_frames(mut self, on: bool) -> Self {
        self.super_frames = on;
        self
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

    /// Whether to look for the next timer of an idle host, or to visit every host each millisecond.
    /// Both give the same run; this is to test that.
    #[cfg(test)]
    pub(crate) fn look_ahead(mut self, on: bool) -> Self {
        self.look_ahead = on;
        self
    }

    /// Where captures and timelines of failures go; cargo's target directory by default. Their names
    /// have the package, the test's program, the test and the seed.
    pub fn artifacts(mut self, dir: impl Into<PathBuf>) -> Self {
        self.artifacts = Some(dir.into());
        self
    }

    /// Writes every packet to a pcapng file, which Wireshark opens: an interface for each host.
    /// [`check`](Self::check) writes one for the seed that fails, with the seed in the file's name.
    pub fn capture(mut self, file: impl Into<PathBuf>) -> Self {
        self.capture = Some(file.into());
        self
    }

    /// Writes a line for everything that happens to a text file. [`check`](Self::check) writes one for
    /// the seed that fails, with the seed in the file's name.
    pub fn timeline(mut self, file: impl Into<PathBuf>) -> Self {
        self.timeline = Some(file.into());
        self
    }
}

impl Builder {
    /// The time at which a run has taken too long.
    pub(crate) fn end(&self) -> SimTime {
        SimTime::ZERO.after(self.limit)
    }
}
