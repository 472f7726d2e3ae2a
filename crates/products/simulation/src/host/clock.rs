//! Clocks: simulated time ([`SimTime`]), and the reading of a host's clock, which may be off ([`Skew`]).

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, SystemTime};

use pagewire_mem::Instant;

thread_local! {
    /// The time of the simulation of this thread, and its epoch: for code outside of hosts, and for
    /// log lines, which may be written under the world's lock.
    static SHOWN: Cell<Option<(SimTime, SystemTime)>> = const { Cell::new(None) };
}

/// Shows this time on this thread; `None`: the simulation is over.
pub(crate) fn show(now: Option<(SimTime, SystemTime)>) {
    let _ = SHOWN.try_with(|shown| shown.set(now));
}

/// The time of the simulation of this thread, and its epoch.
pub(crate) fn shown() -> Option<(SimTime, SystemTime)> {
    SHOWN.try_with(Cell::get).ok().flatten()
}

/// How far a host's clocks are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    /// Nanoseconds that its wall clock is ahead of the simulation's; negative: behind.
    pub offset: i64,
    /// Millionths that all its clocks run too fast; negative: too slow. Less than a million.
    pub drift: i32,
}

/// A host's clock: its reading at each simulated time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// When the drift began, and the reading then.
    since: SimTime,
    local: u64,
    skew: Skew,
}

const MILLION: i128 = 1_000_000;

impl Clock {
    pub(crate) fn set(&mut self, now: SimTime, skew: Skew) {
        let most = MILLION as i32 - 1;
        let drift = skew.drift.clamp(-most, most);
        let local = self.local(now);
        *self = Self { since: now, local, skew: Skew { drift, ..skew } };
    }

    /// The reading in nanoseconds, without the offset.
    pub(crate) fn local(&self, at: SimTime) -> u64 {
        let passed = i128::from(at.0) - i128::from(self.since.0);
        let local = i128::from(self.local) + (passed * self.rate()).div_euclid(MILLION);
        u64::try_from(local.max(0)).unwrap_or(u64::MAX)
    }

    /// The first time at which the reading is `local` or more.
    pub(crate) fn global(&self, local: u64) -> SimTime {
        let ahead = i128::from(local) - i128::from(self.local);
        let passed = -(-ahead * MILLION).div_euclid(self.rate());
        let at = i128::from(self.since.0) + passed;
        SimTime(u64::try_from(at.max(0)).unwrap_or(u64::MAX))
    }

    pub(crate) fn drifts(&self) -> bool {
        self.skew.drift != 0
    }

    /// The wall clock's reading, where the simulation's shows `epoch` at the start. A clock that is behind may show
    /// a time before the epoch.
    pub(crate) fn wall(&self, epoch: SystemTime, at: SimTime) -> SystemTime {
        let local = i128::from(self.local(at)) + i128::from(self.skew.offset);
        let distance = u64::try_from(local.unsigned_abs()).unwrap_or(u64::MAX);
        let distance = Duration::from_nanos(distance);
        let there =
            if local < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) };
        there.unwrap_or(epoch)
    }

    fn rate(&self) -> i128 {
        MILLION + i128::from(self.skew.drift)
    }
}

/// A moment of a simulation: nanoseconds since its start, the same for all hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(u64);

impl SimTime {
    /// The start.
    pub const ZERO: Self = Self(0);
    /// Later than every moment that occurs.
    pub const FAR: Self = Self(u64::MAX);

    /// The moment `ns` nanoseconds after the start.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since the start.
    pub const fn elapsed(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time since `earlier`, zero if `earlier` lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `time` later.
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl From<Instant> for SimTime {
    fn from(at: Instant) -> Self {
        Self(at.as_nanos())
    }
}

impl From<SimTime> for Instant {
    fn from(at: SimTime) -> Self {
        Instant::from_nanos(at.0)
    }
}

/// Seconds with six digits: `1.204000 s`.
impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, ns) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        write!(f, "{s}.{:06} s", ns / 1_000)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_clock_that_drifts_shows_more_or_less() {
        let mut clock = Clock::default();
        let s = |s: u64| SimTime(s * 1_000_000_000);
        assert_eq!(clock.local(s(1)), 1_000_000_000);
        clock.set(s(1), Skew { offset: -500, drift: 100 });
        assert_eq!(clock.local(s(2)), 2_000_100_000);
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(clock.wall(epoch, s(2)), epoch + Duration::from_nanos(2_000_099_500));
        clock.set(s(2), Skew { offset: 0, drift: -100 });
        assert_eq!(clock.local(s(3)), 3_000_000_000);
        assert_eq!(clock.local(s(2)), 2_000_100_000, "it never jumps");
    }

    proptest! {
        #[test]
        fn the_time_of_a_reading_is_the_first_that_shows_it(
            since in 0u64..1 << 40, drift in -999_999i32..999_999, ahead in 0u64..1 << 45,
        ) {
            let mut clock = Clock::default();
            clock.set(SimTime(since), Skew { offset: 0, drift });
            let local = clock.local(SimTime(since)) + ahead;
            let at = clock.global(local);
            prop_assert!(clock.local(at) >= local);
            prop_assert!(at.0 == 0 || at.0 <= since || clock.local(SimTime(at.0 - 1)) < local);
        }
    }
}
