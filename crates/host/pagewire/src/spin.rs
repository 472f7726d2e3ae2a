//! The spin limit: how long a thread polls before it sleeps, which is as long as that pays.
//!
//! To wake a thread costs both sides: the one that sleeps some 5 to 100 µs of time, the one that wakes
//! it a system call and, where a processor was halted, an interrupt. To poll costs a core. The length follows
//! the rule of the kernel's haltpoll governor: a wait that was a little too long for the limit lets the limit
//! grow, one that no polling would have covered lets it shrink.
//!
//! Whoever polls may take the core from those who would answer. So polling has an account: a polled wait pays in
//! what it saved against the average of waits that slept, or pays what it took longer. When the account is
//! overdrawn, no wait polls for forty times the overdraft.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use pagewire_mem::Instant;

/// Longest poll by default; that of the kernel's governor (`guest_halt_poll_ns`).
pub(crate) const DEFAULT_SPIN: Duration = Duration::from_micros(200);

/// First limit after none (`guest_halt_poll_grow_start`).
const FIRST: Duration = Duration::from_micros(50);

/// The longest time between two polls of a spinning thread, which take microseconds. After more than this,
/// another thread had the core.
const PREEMPTED: Duration = Duration::from_micros(100);

/// How many times longer than it lost by polling no thread polls: polls cost a fortieth of its time at most.
const REST: u32 = 40;

/// The longest of these times: then the machine may have changed.
const LONGEST_REST: Duration = Duration::from_millis(200);

/// The most that polls may have saved before they lose: some slices of the kernel's scheduler.
const MOST_SAVED: Duration = Duration::from_millis(5);

/// The longest wait that counts, and how often one sleeps at once, to learn how long waits take then.
const LONGEST_WAIT: Duration = Duration::from_micros(400);
const SAMPLE: Duration = Duration::from_millis(5);

/// The limit of one kind of wait, for all threads that wait so.
#[derive(Debug)]
pub(crate) struct Spin {
    most: Duration,
    /// Nanoseconds; at most `most`.
    limit: AtomicU64,
    /// No spinning before this time, in microseconds of the host's clock.
    rest_until: AtomicU64,
    /// How long waits take that sleep at once, in nanoseconds: an average. 0: unknown.
    slept: AtomicU64,
    /// When the last such wait ended, in microseconds.
    slept_at: AtomicU64,
    /// The next wait is to sleep at once.
    is_sample: AtomicBool,
    /// What polling has saved, in nanoseconds.
    saved: AtomicI64,
    /// The time between two polls after which the core counts as lost.
    preempted: Duration,
}

impl Spin {
    pub(crate) fn new(most: Duration) -> Self {
        let limit = AtomicU64::new(nanos(FIRST.min(most)));
        Self {
            most,
            limit,
            rest_until: AtomicU64::new(0),
            slept: AtomicU64::new(0),
            slept_at: AtomicU64::new(0),
            is_sample: AtomicBool::new(false),
            saved: AtomicI64::new(0),
            preempted: PREEMPTED,
        }
    }

    /// A limit that no wait reaches: every wait polls until it is over.
    #[cfg(test)]
    pub(crate) fn endless() -> Self {
        Self {
            limit: AtomicU64::new(u64::MAX),
            preempted: Duration::MAX,
            ..Self::new(Duration::MAX)
        }
    }

    /// How long a wait that begins now polls; zero: it sleeps at once.
    pub(crate) fn limit(&self, now: Instant) -> Duration {
        let rests = now.as_micros() < self.rest_until.load(Ordering::Relaxed);
        if rests || self.is_sample.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.limit.load(Ordering::Relaxed))
    }

    /// Adjusts the limit to a wait that has ended `now` after this time, of which the thread polled at first for
    /// another.
    pub(crate) fn ended(&self, now: Instant, waited: Duration, polled: Duration) {
        self.adjust(waited);
        let slept = self.slept.load(Ordering::Relaxed);
        if polled.is_zero() {
            let waited = nanos(waited.min(LONGEST_WAIT));
            // One long wait among short ones was another's poll.
            let average = match slept {
                0 => waited,
                _ => slept - slept / 8 + waited.min(slept * 2) / 8,
            };
            self.slept.store(average, Ordering::Relaxed);
            self.slept_at.store(now.as_micros(), Ordering::Relaxed);
            self.is_sample.store(false, Ordering::Relaxed);
            return;
        }
        let is_old = now.as_micros() >= self.slept_at.load(Ordering::Relaxed) + micros(SAMPLE);
        if slept == 0 || is_old {
            self.is_sample.store(self.preempted != Duration::MAX, Ordering::Relaxed);
        }
        let signed = |nanos: u64| i64::try_from(nanos).unwrap_or(i64::MAX);
        // A poll cannot have cost more than its own time.
        let lost = signed(nanos(waited)).saturating_sub(signed(slept)).min(signed(nanos(polled)));
        let saved =
            self.saved.load(Ordering::Relaxed).saturating_sub(if slept == 0 { 0 } else { lost });
        if saved < 0 {
            let rest = (Duration::from_nanos(saved.unsigned_abs()) * REST).min(LONGEST_REST);
            self.rest_until.store((now + rest).as_micros(), Ordering::Relaxed);
        }
        self.saved.store(saved.clamp(0, signed(nanos(MOST_SAVED))), Ordering::Relaxed);
    }

    fn adjust(&self, waited: Duration) {
        let limit = Duration::from_nanos(self.limit.load(Ordering::Relaxed));
        let next = match () {
            () if waited <= limit => return,
            () if waited <= self.most => (limit * 2).max(FIRST).min(self.most),
            () if limit >= FIRST * 2 => limit / 2,
            () => Duration::ZERO,
        };
        self.limit.store(nanos(next), Ordering::Relaxed);
    }

    /// Returns whether another thread had the core between two polls of a thread that did nothing else: the
    /// spinning is over then.
    pub(crate) fn lost_core(&self, before: Instant, now: Instant) -> bool {
        now.saturating_since(before) > self.preempted
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "spin_tests.rs"]
mod tests;
