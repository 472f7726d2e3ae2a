//! The timer wheel, for benchmarks. Not part of the interface.

use pagewire_mem::Instant;

use crate::timer_wheel::TimerWheel;

/// The timer wheel of a stack.
pub struct Timers(TimerWheel);

impl Timers {
    /// None set.
    pub fn new(now: Instant) -> Self {
        Self(TimerWheel::new(now))
    }

    /// Sets the timer of socket `index`, which may have been set to another time.
    pub fn set(&mut self, index: u32, at: Instant) {
        self.0.schedule(index, at);
    }

    /// Clears it.
    pub fn clear(&mut self, index: u32) {
        self.0.cancel(index);
    }

    /// When the next is due, or earlier.
    #[allow(clippy::should_implement_trait, reason = "it takes nothing")]
    pub fn next(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    /// Clears and returns one that is due.
    pub fn expire(&mut self, now: Instant) -> Option<u32> {
        self.0.pop_expired(now)
    }
}
