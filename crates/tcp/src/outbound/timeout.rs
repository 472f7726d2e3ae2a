//! Timers of the sending side: retransmission, persist, user timeout.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::life::state::State;
use crate::limits::FLUSH_AFTER_MS;
use crate::outbound::loss::Due;
use crate::outbound::{OutFlags, Outbound, Transfer};
use crate::path::Path;

/// The result of a timer of the sending side.
pub(crate) enum Waited {
    /// The sending side retransmits or probes.
    Retry,
    /// A SYN is sent again.
    RetrySyn,
    /// The peer did not answer in time: the connection ends.
    GiveUp,
    /// The peer did not answer probes: the connection ends with a reset.
    GiveUpWithReset,
}

impl Outbound {
    #[inline]
    pub(crate) fn next_timeout(&self) -> Instant {
        self.transfer.retransmit.get().min(self.persist.get())
    }

    /// The meaning of the retransmission timer, if it fires.
    pub(crate) fn pop_retransmit(&mut self, now: Instant) -> Option<Due> {
        if !self.transfer.retransmit.pop(now) {
            return None;
        }
        self.flags.remove(OutFlags::REFUSED);
        Some(self.transfer.loss.due)
    }

    pub(crate) fn pop_persist(&mut self, now: Instant) -> bool {
        self.persist.pop(now)
    }

    /// > RFC 9293 section 3.10.8: For any state if the retransmission timeout
    /// > expires on a segment in the retransmission queue, send the segment at the front of the
    /// > retransmission queue again, reinitialize the retransmission timer, and return.
    ///
    /// `deferred`: the SYN,ACK was acknowledged, and the listener waits for data (`life/defer.rs`).
    pub(crate) fn on_retransmit_timer(
        &mut self,
        path: &Path,
        now: Instant,
        deferred: bool,
    ) -> Waited {
        if self.transfer.flight.is_empty() {
            return Waited::Retry;
        }
        let (retries, config) = (self.transfer.loss.retries, path.config());
        if self.has_waited_too_long(path, now, retries == 0) {
            return Waited::GiveUp;
        }
        let mut waited = Waited::Retry;
        match path.state() {
            State::SynSent => {
                let linear = config.syn_linear_retries;
                if retries >= config.syn_retries.saturating_add(linear) {
                    return Waited::GiveUp;
                }
                self.transfer.flight.mark_first_lost();
                waited = Waited::RetrySyn;
                if retries >= linear {
                    self.transfer.rtt.on_backoff();
                }
            }
            State::SynReceived => {
                // As Linux: one more with Fast Open, because an application may have it already.
                let extra = u8::from(path.fast_open_server);
                let allowed = config.synack_retries.saturating_add(extra);
                let deferral = if deferred { self.transfer.deferral(path) } else { 0 };
                if retries >= allowed && retries >= deferral {
                    return Waited::GiveUp;
                }
                // After its acknowledgement, the SYN,ACK is sent again only at the last timeout.
                if retries.saturating_add(1) >= deferral {
                    self.transfer.flight.mark_first_lost();
                    waited = Waited::RetrySyn;
                }
                self.transfer.rtt.on_backoff();
            }
            _ => {
                if self.transfer.has_timed_out(path, now) {
                    return Waited::GiveUp;
                }
                self.transfer.suspect_mtu(path, now, retries);
                self.transfer.on_data_timeout(path, now);
                // > RFC 6298 section 5.5: The host MUST set RTO <- RTO * 2 ("back off the timer").
                self.transfer.rtt.on_backoff();
            }
        }
        self.transfer.stats.timeouts += 1;
        self.transfer.loss.retries = retries.saturating_add(1);
        // > RFC 6298 section 5.6: Start the retransmission timer, such that it expires after RTO
        // > seconds
        let wait = self.within_user_timeout(path, now, self.transfer.rtt.rto());
        self.transfer.retransmit.set(now + wait);
        waited
    }

    pub(crate) fn on_persist_timer(&mut self, path: &Path, now: Instant) -> Waited {
        if !self.transfer.flight.is_empty() {
            return Waited::Retry;
        }
        let allowed = self.transfer.send_edge().saturating_since(self.transfer.snd.nxt);
        if allowed > 0 && self.flags.contains(OutFlags::REFUSED) {
            return self.retry_refused(path, now);
        }
        if allowed > 0 {
            // > RFC 9293 section 3.8.6.2.1: (4) or if the override timeout occurs.
            self.flags.insert(OutFlags::FLUSH_DUE);
            return Waited::Retry;
        }
        // > RFC 9293 section 3.8.6.1: As long as the receiving TCP peer continues to send
        // > acknowledgments in response to the probe segments, the sending TCP peer MUST allow the
        // > connection to stay open
        //
        // `retries` counts probes without an answer. A closed connection does not stay for ever.
        let orphan = path.orphan && self.persist_backoff >= path.config().orphan_retries;
        let waited = self.has_waited_too_long(path, now, self.persist_backoff == 0);
        let retries = self.transfer.loss.retries;
        if retries >= path.allowed_retries() || orphan || waited {
            return Waited::GiveUpWithReset;
        }
        self.transfer.loss.retries = retries.saturating_add(1);
        self.persist_backoff = self.persist_backoff.saturating_add(1);
        self.flags.insert(OutFlags::PROBE_DUE);
        let wait = self.within_user_timeout(path, now, self.persist_interval(path));
        self.persist.set(now + wait);
        Waited::Retry
    }

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

    /// Whether the handshake waits for data now.
    pub(crate) fn is_deferring(&self, path: &Path) -> bool {
        self.loss.retries < self.deferral(path)
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
