//! A timer of a connection: a moment, or never. `connection/timeout.rs` polls all of them.

use pagewire_mem::Instant;

/// When a timer fires; `FAR` means never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer(Instant);

impl Default for Timer {
    /// Off.
    fn default() -> Self {
        Self(Instant::FAR)
    }
}

impl Timer {
    #[inline]
    pub(crate) fn set(&mut self, at: Instant) {
        self.0 = at;
    }

    /// Sets the timer unless it is set already.
    #[inline]
    pub(crate) fn set_once(&mut self, at: Instant) {
        if !self.is_set() {
            self.0 = at;
        }
    }

    /// Lets a timer that is set fire at `at` or earlier.
    pub(crate) fn hasten(&mut self, at: Instant) {
        if self.is_set() {
            self.0 = self.0.min(at);
        }
    }

    #[inline]
    pub(crate) fn stop(&mut self) {
        self.0 = Instant::FAR;
    }

    #[inline]
    pub(crate) fn get(self) -> Instant {
        self.0
    }

    #[inline]
    pub(crate) fn is_set(self) -> bool {
        self.0 != Instant::FAR
    }

    /// Whether the timer fires now. Then it is off.
    #[inline]
    pub(crate) fn pop(&mut self, now: Instant) -> bool {
        let due = self.is_set() && self.0 <= now;
        if due {
            self.stop();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const NOW: Instant = Instant::from_millis(100);

    #[test]
    fn timer_goes_off_at_its_moment_and_once() {
        let mut timer = Timer::default();
        assert!(!timer.is_set() && !timer.pop(NOW));
        timer.set(NOW);
        assert!(!timer.pop(NOW - Duration::from_nanos(1)));
        assert!(timer.pop(NOW));
        assert!(!timer.is_set() && !timer.pop(NOW));
    }

    #[test]
    fn set_once_keeps_the_first_moment() {
        let mut timer = Timer::default();
        timer.set_once(NOW);
        timer.set_once(NOW + Duration::from_secs(1));
        assert_eq!(timer.get(), NOW);
        timer.set(NOW + Duration::from_secs(1));
        assert_eq!(timer.get(), NOW + Duration::from_secs(1));
        timer.stop();
        assert!(!timer.is_set());
    }
}
