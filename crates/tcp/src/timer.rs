//! A timer: a moment that its owner polls for.

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
#[path = "tests/timer.rs"]
mod tests;
