//! The spin limit: how long a thread polls before it sleeps, which is as long as that pays.
//!
//! To wake a thread costs both sides: the one that sleeps some 5 to 100 µs of time, the one that wakes
//! it a system call and, where a processor was halted, an interrupt. To poll costs a core. The rule is
//! that of the kernel's haltpoll governor: a wait that was a little too long for the limit lets it
//! grow, one that no polling would have covered lets it shrink. Besides, whoever polls must not take
//! the core from those who would answer: between two polls a thread yields the core, and a poll that lost
//! the core for long ends. No thread of the host polls for a while then: for longer each time where the cores
//! stay busy, because a thread that sleeps gets a core at once when it is woken, and one that polls has used
//! up its share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagewire_mem::Instant;

/// Longest poll by default; that of the kernel's governor (`guest_halt_poll_ns`).
pub(crate) const DEFAULT_SPIN: Duration = Duration::from_micros(200);

/// First limit after none (`guest_halt_poll_grow_start`).
const FIRST: Duration = Duration::from_micros(50);

/// The longest time between two polls of a spinning thread, which take microseconds. After more than this,
/// another thread had the core.
const PREEMPTED: Duration = Duration::from_micros(100);

/// No poll for this long after a core was lost: some slices of the kernel's scheduler. Twice as long if a core
/// is lost again soon after.
const REST: Duration = Duration::from_millis(10);

/// The longest rest.
const LONGEST_REST: Duration = Duration::from_millis(1280);

/// The limit of one kind of wait, for all threads that wait so.
#[derive(Debug)]
pub(crate) struct Spin {
    most: Duration,
    /// Nanoseconds; at most `most`.
    limit: AtomicU64,
    rest: Arc<Rest>,
    /// The time between two polls after which the core counts as lost.
    preempted: Duration,
}

/// The rest of all polls of a host after one of them lost its core. Microseconds of the host's clock.
#[derive(Debug, Default)]
struct Rest {
    until: AtomicU64,
    /// The length of the last rest.
    length: AtomicU64,
}

impl Spin {
    pub(crate) fn new(most: Duration) -> Self {
        Self::resting(most, Arc::default())
    }

    /// The limit of another kind of wait on the same host.
    pub(crate) fn beside(other: &Self, most: Duration) -> Self {
        Self::resting(most, Arc::clone(&other.rest))
    }

    fn resting(most: Duration, rest: Arc<Rest>) -> Self {
        let limit = AtomicU64::new(nanos(FIRST.min(most)));
        Self { most, limit, rest, preempted: PREEMPTED }
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
        if now.as_micros() < self.rest.until.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.limit.load(Ordering::Relaxed))
    }

    /// Adjusts the limit to a wait that has ended, polled or slept, after this time.
    pub(crate) fn ended(&self, waited: Duration) {
        let limit = Duration::from_nanos(self.limit.load(Ordering::Relaxed));
        let next = match () {
            () if waited <= limit => return,
            () if waited <= self.most => (limit * 2).max(FIRST).min(self.most),
            () if limit >= FIRST * 2 => limit / 2,
            () => Duration::ZERO,
        };
        self.limit.store(nanos(next), Ordering::Relaxed);
    }

    /// Returns whether another thread had the core, or the lock, for long between the end of a poll and the
    /// beginning of the next: the polls are over then.
    pub(crate) fn lost_core(&self, before: Instant, now: Instant) -> bool {
        let lost = now.saturating_since(before) > self.preempted;
        if lost {
            self.rest.begin(now.as_micros());
        }
        lost
    }
}

impl Rest {
    fn begin(&self, now: u64) {
        let until = self.until.load(Ordering::Relaxed);
        // A poll that began before the rest.
        if now < until {
            return;
        }
        let last = self.length.load(Ordering::Relaxed);
        let again = now < until + last;
        let length = if again { (last * 2).min(micros(LONGEST_REST)) } else { micros(REST) };
        // Of several threads that lose their cores at once, one begins the rest.
        let begun =
            self.until.compare_exchange(until, now + length, Ordering::Relaxed, Ordering::Relaxed);
        if begun.is_ok() {
            self.length.store(length, Ordering::Relaxed);
        }
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    fn spin() -> Spin {
        Spin::new(DEFAULT_SPIN)
    }

    fn limit(spin: &Spin) -> Duration {
        spin.limit(Instant::ZERO)
    }

    #[test]
    fn it_grows_until_it_covers_waits_that_can_be_covered() {
        let spin = spin();
        for _ in 0..3 {
            spin.ended(130 * US);
        }
        assert_eq!(limit(&spin), 200 * US);
        spin.ended(3 * US);
        assert_eq!(limit(&spin), 200 * US, "what it covers changes nothing");
    }

    #[test]
    fn it_shrinks_to_nothing_when_waits_are_long_and_begins_again_when_they_are_not() {
        let spin = spin();
        spin.ended(130 * US);
        spin.ended(130 * US);
        let limits: Vec<_> = std::iter::repeat_with(|| {
            spin.ended(5_000 * US);
            limit(&spin)
        })
        .take(4)
        .collect();
        assert_eq!(limits, [100 * US, 50 * US, Duration::ZERO, Duration::ZERO]);
        spin.ended(130 * US);
        assert_eq!(limit(&spin), FIRST);
    }

    #[test]
    fn the_setting_is_never_exceeded_and_zero_is_never() {
        for most in [Duration::ZERO, 20 * US, 70 * US] {
            let spin = Spin::new(most);
            for waited in [0, 1, 15, 60, 90, 1_000, 15, 15, 15] {
                assert!(limit(&spin) <= most, "{most:?}");
                spin.ended(waited * US);
            }
        }
    }

    #[test]
    fn whoever_loses_the_core_leaves_it_alone_for_a_while() {
        let spin = spin();
        let at = |us: u32| Instant::ZERO + us * US;
        assert!(!spin.lost_core(at(0), at(3)));
        assert_eq!(spin.limit(at(3)), FIRST);
        assert!(spin.lost_core(at(3), at(900)));
        assert_eq!(spin.limit(at(901)), Duration::ZERO);
        assert_eq!(spin.limit(at(901) + REST), FIRST);
    }

    #[test]
    fn rests_grow_while_cores_stay_busy_and_are_shared_by_all_waits_of_a_host() {
        let waits = spin();
        let driver = Spin::beside(&waits, DEFAULT_SPIN);
        let mut now = Instant::ZERO + Duration::from_secs(1);
        for expected in [10, 20, 40, 80, 160, 320, 640, 1280, 1280] {
            assert!(waits.lost_core(now, now + 3_000 * US));
            let until = now + 3_000 * US + Duration::from_millis(expected);
            assert_eq!(driver.limit(until - US), Duration::ZERO, "{expected} ms");
            assert_eq!(driver.limit(until), FIRST, "{expected} ms");
            now = until;
        }
        now += 2 * LONGEST_REST;
        assert!(driver.lost_core(now, now + 3_000 * US));
        assert_eq!(waits.limit(now + 3_000 * US + REST), FIRST, "the first rest again");
    }

    /// Two threads of one core each take a part of a microsecond of work and pass a message on. One
    /// polls; the other one's processor is halted between. A model of one second.
    #[test]
    fn where_cores_are_free_a_ping_pong_pays_for_no_wake_up_of_its_own() {
        let (spin, wake) = (spin(), 40 * US);
        let (mut slept, mut time, answer) = (0, Duration::ZERO, 90 * US);
        while time < Duration::from_secs(1) {
            let polled = answer <= limit(&spin);
            let waited = if polled { answer } else { answer + wake };
            slept += u32::from(!polled);
            spin.ended(waited);
            time += waited;
        }
        assert!(slept <= 2, "{slept} waits slept");
    }

    /// With as many busy threads as cores, whoever polls has the core for a slice, and those who would
    /// answer run after it. A model of one second.
    #[test]
    fn where_cores_are_busy_polls_take_a_small_part_of_the_time() {
        let (spin, slice) = (spin(), Duration::from_millis(3));
        let (mut polled, mut now) = (Duration::ZERO, Instant::ZERO);
        while now < Instant::ZERO + Duration::from_secs(1) {
            let limit = spin.limit(now);
            let answer = 60 * US;
            if limit.is_zero() {
                now += answer;
                spin.ended(answer);
            } else {
                // The core is taken away in the middle of the poll.
                polled += limit / 2;
                let before = now + limit / 2;
                now = before + slice;
                assert!(spin.lost_core(before, now));
            }
        }
        assert!(polled < Duration::from_millis(1), "{polled:?}");
    }
}
