//! [`Rate`]: a token bucket, which grants a number of events a second on average, and a burst.

use std::time::Duration;

use pagewire::services::Instant;

/// Grants events at a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    interval: Duration,
    /// The time that an idle rate saves up: a burst of intervals.
    most: Duration,
    /// The time when the full burst is available again, if no further event is granted.
    full_at: Instant,
}

impl Rate {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, most: interval * burst.max(1), full_at: Instant::ZERO }
    }

    /// Grants an event, or returns the time of the next one.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let full_at = self.full_at.max(now) + self.interval;
        if full_at.saturating_since(now) > self.most {
            return Err(now + (full_at.saturating_since(now) - self.most));
        }
        self.full_at = full_at;
        Ok(())
    }

    /// Whether [`take`](Self::take) would grant an event, or the time of the next one.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Instant> {
        { *self }.take(now)
    }

    /// The time when the full burst is available again.
    pub(crate) fn busy_until(&self) -> Instant {
        self.full_at
    }

    /// Counts further events: a granted one was more costly than others.
    pub(crate) fn charge(&mut self, now: Instant, events: u32) {
        self.full_at = self.full_at.max(now) + self.interval * events;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_granted_at_once_and_then_one_event_each_interval() {
        let mut rate = Rate::new(10, 3);
        let start = Instant::from_nanos(7);
        for _ in 0..3 {
            assert_eq!(rate.take(start), Ok(()));
        }
        let next = start + Duration::from_millis(100);
        assert_eq!(rate.take(start), Err(next));
        assert_eq!(rate.take(next), Ok(()));
        assert!(rate.take(next).is_err());
        let idle = next + Duration::from_secs(5);
        assert_eq!((0..9).filter(|_| rate.take(idle).is_ok()).count(), 3);
    }

    #[test]
    fn a_costly_event_delays_the_next_by_what_it_costs() {
        let mut rate = Rate::new(10, 3);
        let start = Instant::from_nanos(7);
        assert_eq!(rate.take(start), Ok(()));
        rate.charge(start, 4);
        let next = start + Duration::from_millis(300);
        assert_eq!(rate.take(start), Err(next));
        assert_eq!(rate.take(next), Ok(()));
    }
}
