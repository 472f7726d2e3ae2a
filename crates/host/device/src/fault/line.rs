//! A simulated bad line for frames, without I/O: time is an argument, random numbers come from a
//! seed. The fault wrapper has one for each direction, the simulator one for each link.
//!
//! ```text
//!   handle --> lost? --> queue for the rate --> delay --------------> line, by time --> poll
//!                        full? lost        \--> held back: 1 to 4 overtake, or 5 ms --/
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use pagewire_mem::Instant;

use super::config::FaultConfig;
use super::counters::FaultCounters;
use super::queue::{Queue, Verdict};
use crate::limits::{FAULT_HOLD, FAULT_MAX_FRAMES, FAULT_MAX_HELD, FAULT_OVERTAKERS};

/// A direction of a bad line. Frames enter with [`handle`](Self::handle) and leave by
/// [`poll`](Self::poll) when they are due.
#[derive(Clone, Debug)]
pub struct FaultLine<T> {
    config: FaultConfig,
    random: FaultRng,
    /// On the line, the first to arrive in front.
    line: VecDeque<OnTheWay<T>>,
    /// Delayed to be overtaken, in the order of arrival.
    delayed: Vec<Delayed<T>>,
    queue: Queue,
    /// When the last frame that was not delayed arrives: jitter does not reorder.
    last_due: Instant,
    counters: FaultCounters,
}

/// A frame at the end of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed<T> {
    /// The frame.
    pub item: T,
    /// `Some`: one bit is to be flipped; this random number selects it.
    pub damage: Option<u64>,
    /// The frame is to be marked as one that experienced congestion (RFC 3168).
    pub congested: bool,
}

#[derive(Clone, Debug)]
struct OnTheWay<T> {
    due: Instant,
    passed: Passed<T>,
}

#[derive(Clone, Debug)]
struct Delayed<T> {
    /// Continues after this many other frames, or at this time.
    overtakers: u64,
    until: Instant,
    passed: Passed<T>,
}

impl<T: Clone> FaultLine<T> {
    /// A line with nothing on it.
    pub fn new(config: FaultConfig) -> Self {
        Self {
            config,
            random: FaultRng::new(config.seed),
            line: VecDeque::new(),
            delayed: Vec::new(),
            queue: Queue::new(),
            last_due: Instant::ZERO,
            counters: FaultCounters::default(),
        }
    }

    /// Changes the faults for frames that enter from now on. Frames on the line stay, and random
    /// numbers go on: the new seed is ignored.
    pub fn reconfigure(&mut self, config: FaultConfig) {
        self.config = FaultConfig { seed: self.config.seed, ..config };
    }

    /// A frame of `bytes` bytes enters the line. Its receiver does not read marks.
    pub fn handle(&mut self, now: Instant, item: T, bytes: usize) {
        self.handle_capable(now, item, bytes, false);
    }

    /// As [`handle`](Self::handle), for a frame whose receiver reads marks, if `ecn_capable`.
    pub fn handle_capable(&mut self, now: Instant, item: T, bytes: usize, ecn_capable: bool) {
        self.counters.offered += 1;
        // Always the same number of draws, so that one fault's setting does not change the others'.
        let [loss, duplicate, reorder, corrupt, damage, overtakers, jitter] =
            std::array::from_fn(|_| self.random.next_u64());
        let config = self.config;
        if config.loss.happens(loss) {
            self.counters.lost += 1;
            return;
        }
        let copies = 1 + usize::from(config.duplicate.happens(duplicate));
        if self.line.len() + self.delayed.len() + copies > FAULT_MAX_FRAMES {
            self.counters.lost_line_full += 1;
            return;
        }
        let verdict = self.queue.handle(now, bytes, ecn_capable, &config);
        let (left, waited, congested) = match verdict {
            Verdict::Send { left, waited, congested } => (left, waited, congested),
            Verdict::Full => {
                self.counters.lost_queue_full += 1;
                return;
            }
            Verdict::Early => {
                self.counters.lost_early += 1;
                return;
            }
        };
        self.counters.marked += u64::from(congested);
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.counters.waited_ns = self.counters.waited_ns.saturating_add(waited);
        let due = self.last_due.max(left + self.travel_time(jitter));
        self.last_due = due;
        if copies > 1 {
            self.counters.duplicated += 1;
            self.pass(due, Passed { item: item.clone(), damage: None, congested });
        }
        let damage = config.corrupt.happens(corrupt).then_some(damage);
        self.counters.corrupted += u64::from(damage.is_some());
        let passed = Passed { item, damage, congested };
        if config.reorder.happens(reorder) && self.delayed.len() < FAULT_MAX_HELD {
            self.counters.reordered += 1;
            let overtakers = 1 + overtakers % FAULT_OVERTAKERS;
            self.delayed.push(Delayed { overtakers, until: due + FAULT_HOLD, passed });
        } else {
            self.pass(due, passed);
        }
    }

    /// The next frame that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Passed<T>> {
        while let Some(at) = self.delayed.iter().position(|held| held.until <= now) {
            let held = self.delayed.remove(at);
            self.insert(held.until, held.passed);
        }
        if self.line.front()?.due > now {
            return None;
        }
        let OnTheWay { passed, .. } = self.line.pop_front()?;
        self.counters.delivered += 1;
        Some(passed)
    }

    /// When the next frame arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let held = self.delayed.iter().map(|held| held.until);
        held.chain(self.line.front().map(|first| first.due)).min()
    }

    /// Frames on the line, delayed ones included.
    pub fn in_flight(&self) -> usize {
        self.line.len() + self.delayed.len()
    }

    /// The frames on the line, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let line = self.line.iter().map(|on| &on.passed.item);
        line.chain(self.delayed.iter().map(|held| &held.passed.item))
    }

    /// Counts so far.
    pub fn counters(&self) -> FaultCounters {
        self.counters
    }

    fn travel_time(&self, random: u64) -> Duration {
        let jitter = u64::try_from(self.config.jitter.as_nanos()).unwrap_or(u64::MAX / 2);
        let span = u128::from(jitter) * 2 + 1;
        let up = ((u128::from(random) * span) >> 64) as u64;
        let most = self.config.delay + self.config.jitter;
        most.saturating_sub(Duration::from_nanos(up))
    }

    /// Adds a frame, and the delayed frames that it is the last to overtake.
    fn pass(&mut self, due: Instant, passed: Passed<T>) {
        self.insert(due, passed);
        for held in &mut self.delayed {
            held.overtakers = held.overtakers.saturating_sub(1);
        }
        while let Some(at) = self.delayed.iter().position(|held| held.overtakers == 0) {
            let held = self.delayed.remove(at);
            self.insert(due, held.passed);
        }
    }

    /// Adds a frame behind those that arrive at the same time.
    fn insert(&mut self, due: Instant, passed: Passed<T>) {
        let at = match self.line.back() {
            Some(last) if last.due > due => self.line.partition_point(|on| on.due <= due),
            _ => self.line.len(),
        };
        self.line.insert(at, OnTheWay { due, passed });
    }
}

/// Random numbers that depend on the seed alone: SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub struct FaultRng(u64);

impl FaultRng {
    /// The numbers of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }
}
