//! Simulated time.

use std::fmt;
use std::time::Duration;

use pagewire_mem::Instant;

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
