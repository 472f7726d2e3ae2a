//! Resets for segments that belong to no connection, at a bounded rate.

use pagewire_mem::Instant;

use crate::limits::{RESETS_BURST, RESETS_PER_SECOND};

/// A bucket of permits that fills with time.
pub(crate) struct RateLimit {
    permits: u32,
    filled_at: Instant,
}

impl RateLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self { permits: RESETS_BURST, filled_at: now }
    }

    /// Takes a permit, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let interval = 1_000_000_000 / u64::from(RESETS_PER_SECOND);
        let passed = now.saturating_since(self.filled_at).as_nanos() as u64 / interval;
        if passed > 0 {
            let gained = u32::try_from(passed).unwrap_or(u32::MAX);
            self.permits = self.permits.saturating_add(gained).min(RESETS_BURST);
            self.filled_at += core::time::Duration::from_nanos(passed * interval);
        }
        match self.permits.checked_sub(1) {
            Some(left) => {
                self.permits = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut limit = RateLimit::new(Instant::ZERO);
        let mut taken = |ms| (0..10_000).filter(|_| limit.take(Instant::from_millis(ms))).count();
        assert_eq!(taken(0), RESETS_BURST as usize);
        assert_eq!(taken(0), 0);
        assert_eq!(taken(10), 10 * RESETS_PER_SECOND as usize / 1000);
        assert_eq!(taken(60_000), RESETS_BURST as usize);
    }
}
