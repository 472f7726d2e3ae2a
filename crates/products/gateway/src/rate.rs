//! Token buckets: [`Rate`], which grants a number of events a second on average, and a burst, [`SharedRate`], which does so
//! for several threads, and [`ByteRate`], which grants bytes.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pagewire::services::Instant;

use crate::limits::{BROKEN_RETRY, RULE_BURST, RULE_BURSTS_PER_SECOND};

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

/// A [`Rate`] that the threads of a guest share. One that a panic has broken grants nothing.
#[derive(Clone, Debug)]
pub(crate) struct SharedRate(Arc<Mutex<Rate>>);

impl SharedRate {
    pub(crate) fn new(per_second: u32, burst: u32) -> Self {
        Self(Arc::new(Mutex::new(Rate::new(per_second, burst))))
    }

    fn lock(&self, now: Instant) -> Result<MutexGuard<'_, Rate>, Instant> {
        self.0.lock().map_err(|_| now + BROKEN_RETRY)
    }

    /// Grants an event, or returns the time of the next one.
    pub(crate) fn take(&self, now: Instant) -> Result<(), Instant> {
        self.lock(now)?.take(now)
    }

    /// Whether [`take`](Self::take) would grant an event, or the time of the next one.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Instant> {
        self.lock(now)?.check(now)
    }

    /// Counts further events.
    pub(crate) fn charge(&self, now: Instant, events: u32) {
        if let Ok(mut rate) = self.lock(now) {
            rate.charge(now, events);
        }
    }
}

/// Grants bytes at a speed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteRate {
    bits: u64,
    /// The bytes that an idle rate saves up.
    burst: u64,
    /// The time when the full burst is available again, if nothing further is granted.
    full_at: Instant,
}

impl ByteRate {
    /// Grants this number of bits a second.
    pub(crate) fn new(bits: u64) -> Self {
        let bits = bits.max(1);
        let burst = (bits / 8 / RULE_BURSTS_PER_SECOND).max(RULE_BURST);
        Self { bits, burst, full_at: Instant::ZERO }
    }

    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8_000_000_000 / u128::from(self.bits);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The bytes that may pass now; or the time when half a burst may.
    pub(crate) fn room(&self, now: Instant) -> Result<usize, Instant> {
        let busy = self.full_at.saturating_since(now);
        let saved = self.time_of(self.burst).saturating_sub(busy);
        let bytes = saved.as_nanos() * u128::from(self.bits) / 8_000_000_000;
        match bytes >= u128::from(self.burst / 2) {
            true => Ok(usize::try_from(bytes).unwrap_or(usize::MAX)),
            // Rounded up: there is room at that time.
            false => {
                let wait = busy.saturating_sub(self.time_of(self.burst / 2));
                Err(now + wait + Duration::from_nanos(1 + 8_000_000_000 / self.bits))
            }
        }
    }

    /// Counts bytes that have passed, be they more than were granted.
    pub(crate) fn charge(&mut self, now: Instant, bytes: usize) {
        self.full_at = self.full_at.max(now) + self.time_of(bytes as u64);
    }

    /// Grants a datagram, or returns `false`: it is dropped.
    pub(crate) fn admit(&mut self, now: Instant, bytes: usize) -> bool {
        let admits = self.full_at.saturating_since(now) < self.time_of(self.burst);
        if admits {
            self.charge(now, bytes);
        }
        admits
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

    #[test]
    fn a_shared_rate_that_a_panic_has_broken_grants_nothing() {
        let (rate, now) = (SharedRate::new(10, 3), Instant::from_millis(5));
        assert!(rate.take(now).is_ok() && rate.clone().check(now).is_ok());
        let broken = rate.clone();
        let panics = move || {
            let _lock = broken.0.lock();
            panic!("with the lock");
        };
        assert!(std::thread::spawn(panics).join().is_err());
        assert!(rate.take(now).is_err() && rate.check(now).is_err());
    }

    #[test]
    fn bytes_pass_at_their_speed_after_a_burst() {
        let mut rate = ByteRate::new(80_000_000);
        let start = Instant::from_millis(5);
        let burst = rate.room(start).unwrap();
        assert_eq!(burst as u64, 10_000_000 / RULE_BURSTS_PER_SECOND);
        rate.charge(start, burst);
        let mut now = rate.room(start).unwrap_err();
        let mut moved = burst;
        while now < start + Duration::from_secs(1) {
            let room = rate.room(now).unwrap();
            rate.charge(now, room);
            moved += room;
            now = rate.room(now).unwrap_err();
        }
        assert!((9_800_000..=10_000_000 + burst).contains(&moved), "{moved}");
        // A debt is paid before anything passes again.
        rate.charge(now, 10_000_000);
        assert!(rate.room(now + Duration::from_millis(990)).is_err());
        assert!(!rate.admit(now + Duration::from_millis(900), 1));
        assert!(rate.admit(now + Duration::from_millis(1100), 1));
    }
}
