//! A moment that a connection waits for. What happens when it has come is the owner's to know.

use pagewire_mem::Instant;

/// When a timer goes off; `FAR` means never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer(Instant);

impl Default for Timer {
    /// Off.
    fn default() -> Self {
        Self(Instant::FAR)
    }
}

impl Timer {
    /// Sets the timer, whether or not it was set before.
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

    /// Has a timer that is set go off at `at` or earlier.
    pub(crate) fn hasten(&mut self, at: Instant) {
        if self.is_set() {
            self.0 = self.0.min(at);
        }
    }

    /// Turns the timer off.
    #[inline]
    pub(crate) fn stop(&mut self) {
        self.0 = Instant::FAR;
    }

    /// When it goes off.
    #[inline]
    pub(crate) fn get(self) -> Instant {
        self.0
    }

    /// Whether it is on.
    #[inline]
    pub(crate) fn is_set(self) -> bool {
        self.0 != Instant::FAR
    }

    /// Turns the timer off if its moment has come; whether it has.
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
