//! Timers of the sending side: retransmission, persist, user timeout.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::limits::FLUSH_AFTER_MS;
use crate::outbound::{Outbound, Transfer};
use crate::path::Path;

impl Outbound {
    /// > RFC 5482 section 3: the user timeout [...] specifies how long transmitted data may remain
    /// > unacknowledged before a connection is forcefully closed.
    ///
    /// As in Linux, it starts when a timer first fires (`first`), and replaces the retries.
    pub(crate) fn has_waited_too_long(&mut self, path: &Path, now: Instant, first: bool) -> bool {
        let Some(limit) = path.config().user_timeout else { return false };
        let rare = self.transfer.rare();
        let since = match rare.unanswered_since.filter(|_| !first) {
            Some(since) => since,
            None => *rare.unanswered_since.insert(now),
        };
        !first && now.saturating_since(since) >= limit
    }

    /// Shortens `wait` so that the timer fires no later than the user timeout.
    pub(crate) fn within_user_timeout(
        &self,
        path: &Path,
        now: Instant,
        wait: Duration,
    ) -> Duration {
        let since = self.transfer.rare.as_ref().and_then(|r| r.unanswered_since);
        match (path.config().user_timeout, since) {
            (Some(limit), Some(since)) => {
                wait.min(limit.saturating_sub(now.saturating_since(since)))
            }
            _ => wait,
        }
    }

    /// The time to the next probe.
    ///
    /// > RFC 9293 section 3.8.6.1: The transmitting host SHOULD send the first zero-window probe when
    /// > a zero window has existed for the retransmission timeout period (SHLD-29) (Section 3.8.1), and SHOULD increase
    /// > exponentially the interval between successive probes.
    pub(crate) fn persist_interval(&self, path: &Path) -> Duration {
        let base = self.transfer.rtt.rto().max(Duration::from_millis(FLUSH_AFTER_MS));
        let doublings = u32::from(self.persist_backoff.min(16));
        base.saturating_mul(1 << doublings).min(path.config().rto_max)
    }
}

impl Transfer {
    /// How many timeouts the handshake waits for data. Neither a connection from a SYN cookie
    /// waits, nor one that the application has already (active, or with Fast Open).
    pub(crate) fn deferral(&self, path: &Path) -> u8 {
        let never = path.active || path.fast_open_server;
        if never || self.flight.is_empty() { 0 } else { path.config().defer_accept }
    }

    /// Whether the peer has acknowledged nothing for the time of the configured number of
    /// doublings. As in Linux, doublings start at the shortest timeout, whatever the round trip.
    ///
    /// > RFC 9293 section 3.8.3: (e) [...] When the number of transmissions of the same segment
    /// > reaches a threshold R2 greater than R1, close the connection.
    pub(crate) fn has_timed_out(&self, path: &Path, now: Instant) -> bool {
        if path.config().user_timeout.is_some() {
            return false;
        }
        let Some(recovery) = self.recovery.as_deref().filter(|_| self.loss.retries > 0) else {
            return false;
        };
        let retries = path.allowed_retries();
        now.saturating_since(recovery.since) >= path.backed_off_for(retries)
    }
}
