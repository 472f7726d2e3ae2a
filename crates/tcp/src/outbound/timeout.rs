//! How long what was sent may go unanswered.

use crate::limits::FLUSH_AFTER_MS;
use core::time::Duration;

use crate::outbound::Outbound;
use crate::path::{Path, PathFlags};
use pagewire_mem::Instant;

impl Outbound {
    /// How many timeouts are waited for data; 0 where it is not. A connection from a cookie, which has
    /// no SYN,ACK in flight, would be forgotten with its acknowledgement, and one with Fast Open or
    /// that we opened is its application's already.
    pub(crate) fn deferral(&self, path: &Path) -> u8 {
        let never = path.flags.intersects(PathFlags::ACTIVE | PathFlags::FAST_OPEN_SERVER);
        if never || self.flight.is_empty() { 0 } else { path.config.defer_accept }
    }

    /// Whether the handshake is not completed without data for now.
    pub(crate) fn is_deferring(&self, path: &Path) -> bool {
        self.retries < self.deferral(path)
    }

    /// > RFC 5482 section 3: the user timeout [...] specifies how long transmitted data may remain
    /// > unacknowledged before a connection is forcefully closed.
    ///
    /// As Linux, it is counted from the first time that a timer goes off (`first`), and rules in place
    /// of the number of retransmissions.
    pub(crate) fn has_waited_too_long(&mut self, path: &Path, now: Instant, first: bool) -> bool {
        let Some(limit) = path.config.user_timeout else { return false };
        let rare = self.rare();
        let since = match rare.unanswered_since.filter(|_| !first) {
            Some(since) => since,
            None => *rare.unanswered_since.insert(now),
        };
        !first && now.saturating_since(since) >= limit
    }

    /// A timer does not go off beyond the moment at which the connection is given up.
    pub(crate) fn within_user_timeout(
        &self,
        path: &Path,
        now: Instant,
        wait: Duration,
    ) -> Duration {
        let since = self.rare.as_ref().and_then(|r| r.unanswered_since);
        match (path.config.user_timeout, since) {
            (Some(limit), Some(since)) => {
                wait.min(limit.saturating_sub(now.saturating_since(since)))
            }
            _ => wait,
        }
    }

    /// Whether the peer has not acknowledged anything for as long as the configured number of
    /// doublings takes, counted from the shortest timeout as in Linux, so that a long round trip
    /// does not stretch it.
    ///
    /// > RFC 9293 section 3.8.3: (e) [...] When the number of transmissions of the same segment
    /// > reaches a threshold R2 greater than R1, close the connection.
    pub(crate) fn has_timed_out(&self, path: &Path, now: Instant) -> bool {
        if path.config.user_timeout.is_some() {
            return false;
        }
        let Some(recovery) = self.recovery.as_deref().filter(|_| self.retries > 0) else {
            return false;
        };
        let retries = path.allowed_retries();
        now.saturating_since(recovery.since) >= path.backed_off_for(retries)
    }

    /// How long to wait before the next probe.
    ///
    /// > RFC 9293 section 3.8.6.1: The transmitting host SHOULD send the first zero-window probe when
    /// > a zero window has existed for the retransmission timeout period (SHLD-29) (Section 3.8.1), and SHOULD increase
    /// > exponentially the interval between successive probes.
    pub(crate) fn persist_interval(&self, path: &Path) -> Duration {
        let base = self.rtt.rto().max(Duration::from_millis(FLUSH_AFTER_MS));
        let doublings = u32::from(self.persist_backoff.min(16));
        base.saturating_mul(1 << doublings).min(path.config.rto_max)
    }
}
