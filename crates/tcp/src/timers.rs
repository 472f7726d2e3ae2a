//! Every timer of a connection, in one flat table.
//!
//! The table knows moments only. What happens when one has come is in `timeout.rs`.

use pagewire_mem::Instant;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Timer {
    /// Something sent is not acknowledged: SYN, data or FIN (RFC 6298).
    Retransmit,
    /// Something queued cannot leave, and nothing is under way that could bring news: zero-window
    /// probes (RFC 9293 section 3.8.6.1), and segments held back that must leave some time.
    Persist,
    /// An acknowledgement waits for company (RFC 9293 section 3.8.6.3).
    DelayedAck,
    /// Nothing was heard of the peer for long (RFC 9293 section 3.8.4).
    KeepAlive,
    /// TIME-WAIT's 2 MSL, or FIN-WAIT-2 when the application is gone.
    Linger,
    /// Queues that have fallen empty give back their memory.
    Shrink,
}

impl Timer {
    /// All timers, in the order in which they are served when several have come.
    pub(crate) const ALL: [Self; 6] = [
        Self::Linger,
        Self::Retransmit,
        Self::Persist,
        Self::KeepAlive,
        Self::DelayedAck,
        Self::Shrink,
    ];
}

/// When each timer goes off; `FAR` means never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers([Instant; Timer::ALL.len()]);

impl Timers {
    /// All off.
    pub(crate) const fn new() -> Self {
        Self([Instant::FAR; Timer::ALL.len()])
    }

    /// Sets a timer, whether or not it was set before.
    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        if let Some(slot) = self.0.get_mut(timer as usize) {
            *slot = at;
        }
    }

    /// Sets a timer unless it is set already.
    pub(crate) fn set_once(&mut self, timer: Timer, at: Instant) {
        if !self.is_set(timer) {
            self.set(timer, at);
        }
    }

    /// Turns a timer off.
    pub(crate) fn stop(&mut self, timer: Timer) {
        self.set(timer, Instant::FAR);
    }

    /// Turns all timers off.
    pub(crate) fn stop_all(&mut self) {
        *self = Self::new();
    }

    /// When a timer goes off.
    pub(crate) fn get(&self, timer: Timer) -> Instant {
        self.0.get(timer as usize).copied().unwrap_or(Instant::FAR)
    }

    /// Whether a timer is on.
    pub(crate) fn is_set(&self, timer: Timer) -> bool {
        self.get(timer) != Instant::FAR
    }

    /// Turns off and returns a timer whose moment has come.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let timer = Timer::ALL.into_iter().find(|&t| self.is_set(t) && self.get(t) <= now)?;
        self.stop(timer);
        Some(timer)
    }

    /// The earliest moment.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        // Without branches: it is asked for after every segment.
        let first = self.0.iter().fold(Instant::FAR, |first, &at| first.min(at));
        (first != Instant::FAR).then_some(first)
    }
}

#[cfg(test)]
#[path = "tests/timers.rs"]
mod tests;
