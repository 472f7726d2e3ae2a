//! The timers of a connection: when the next one fires, and what each does.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::config::KeepAlive;
use crate::connection::Connection;
use crate::error::TcpError;
use crate::life::state::{Event, State};
use crate::life::{LifeFlags, Reset};
use crate::limits::{FLUSH_AFTER_MS, MIN_KEEPALIVE_WAIT};
use crate::outbound::OutFlags;
use crate::outbound::loss::PendingTimer;
use crate::shared::Env;

impl Connection {
    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Without branches: it is called after every segment.
        let (out, life) = (&self.out, &self.life);
        let timers = [out.persist, self.inbound.ack.delayed_ack, life.silence, life.shrink];
        let first = out.transfer.retransmit.get();
        let first = timers.iter().fold(first, |first, timer| first.min(timer.get()));
        (first != Instant::FAR).then_some(first)
    }

    /// Fires the timers due at `env.now`, if any.
    pub fn handle_timeout(&mut self, env: &mut Env<'_>) {
        let now = env.now;
        loop {
            if self.out.transfer.retransmit.pop(now) {
                self.out.flags.remove(OutFlags::REFUSED);
                match self.out.transfer.loss.due {
                    PendingTimer::Rto => self.on_retransmit_timer(now),
                    PendingTimer::Probe => self.out.transfer.on_probe_timer(now),
                    PendingTimer::Reorder => self.out.transfer.on_reordering_timer(now),
                }
            } else if self.out.persist.pop(now) {
                self.on_persist_timer(now);
            } else if self.life.silence.pop(now) {
                if self.path.lingers() {
                    // > RFC 9293 section 3.10.8: If the time-wait timeout expires on
                    // > a connection, delete the TCB, enter the CLOSED state, and return.
                    self.finish(Event::Expire, None);
                } else {
                    self.on_keepalive_timer(now);
                }
            } else if self.inbound.ack.pop(&self.path, &self.out.transfer.rtt, now) {
                // `poll_transmit` sends it.
            } else if self.life.shrink.pop(now) {
                self.on_shrink_timer(now);
            } else {
                break;
            }
        }
    }

    /// > RFC 9293 section 3.10.8: For any state if the retransmission timeout
    /// > expires on a segment in the retransmission queue, send the segment at the front of the
    /// > retransmission queue again, reinitialize the retransmission timer, and return.
    fn on_retransmit_timer(&mut self, now: Instant) {
        if self.out.transfer.flight.is_empty() {
            return;
        }
        let retries = self.out.transfer.loss.retries;
        if retries == 2 {
            self.life.suspect_black_hole();
        }
        if self.has_waited_too_long(now, retries == 0) {
            return self.time_out();
        }
        match self.path.state() {
            State::SynSent => {
                let linear = self.path.config().syn_linear_retries;
                if retries >= self.path.config().syn_retries.saturating_add(linear) {
                    return self.time_out();
                }
                self.out.transfer.flight.mark_first_lost();
                self.life.flags.insert(LifeFlags::SYN_RESENT);
                if retries >= linear {
                    self.out.transfer.rtt.on_backoff();
                }
            }
            State::SynReceived => {
                // As Linux: one more with Fast Open, because an application may have it already.
                let extra = u8::from(self.path.fast_open_server);
                let allowed = self.path.config().synack_retries.saturating_add(extra);
                let deferred = self.life.flags.contains(LifeFlags::DEFERRED);
                let deferral = if deferred { self.deferral() } else { 0 };
                if retries >= allowed && retries >= deferral {
                    return self.time_out();
                }
                // After its acknowledgement, the SYN,ACK is sent again only at the last timeout.
                if retries.saturating_add(1) >= deferral {
                    self.out.transfer.flight.mark_first_lost();
                    self.life.flags.insert(LifeFlags::SYN_RESENT);
                }
                self.out.transfer.rtt.on_backoff();
            }
            _ => {
                if self.has_timed_out(now) {
                    return self.time_out();
                }
                self.out.transfer.suspect_mtu(&self.path, now, retries);
                self.out.transfer.on_data_timeout(&self.path, now);
                // > RFC 6298 section 5.5: The host MUST set RTO <- RTO * 2 ("back off the timer").
                self.out.transfer.rtt.on_backoff();
            }
        }
        self.out.transfer.rare().losses.timeouts += 1;
        self.out.transfer.loss.retries = retries.saturating_add(1);
        // > RFC 6298 section 5.6: Start the retransmission timer, such that it expires after RTO
        // > seconds
        let wait = self.within_user_timeout(now, self.out.transfer.rtt.rto());
        self.out.transfer.retransmit.set(now + wait);
    }

    /// How many timeouts the handshake waits for data. Neither a connection from a SYN cookie
    /// waits, nor one that the application has already (active, or with Fast Open).
    pub(super) fn deferral(&self) -> u8 {
        let never = self.path.active || self.path.fast_open_server;
        if never || self.out.transfer.flight.is_empty() {
            0
        } else {
            self.path.config().defer_accept
        }
    }

    /// Whether the peer has acknowledged nothing for the time of the configured number of
    /// doublings. As in Linux, doublings start at the shortest timeout, whatever the round trip.
    ///
    /// > RFC 9293 section 3.8.3: (e) [...] When the number of transmissions of the same segment
    /// > reaches a threshold R2 greater than R1, close the connection.
    fn has_timed_out(&self, now: Instant) -> bool {
        if self.path.config().user_timeout.is_some() {
            return false;
        }
        let Some(recovery) =
            self.out.transfer.recovery.as_deref().filter(|_| self.out.transfer.loss.retries > 0)
        else {
            return false;
        };
        let retries = self.path.allowed_retries();
        now.saturating_since(recovery.since) >= self.path.backed_off_for(retries)
    }

    fn on_persist_timer(&mut self, now: Instant) {
        if !self.out.transfer.flight.is_empty() {
            return;
        }
        let allowed = self.out.transfer.send_edge().saturating_since(self.out.transfer.snd.nxt);
        if allowed > 0 && self.out.flags.contains(OutFlags::REFUSED) {
            return self.retry_refused(now);
        }
        if allowed > 0 {
            // > RFC 9293 section 3.8.6.2.1: (4) or if the override timeout occurs.
            self.out.flags.insert(OutFlags::FLUSH_DUE);
            return;
        }
        // > RFC 9293 section 3.8.6.1: As long as the receiving TCP peer continues to send
        // > acknowledgments in response to the probe segments, the sending TCP peer MUST allow the
        // > connection to stay open
        //
        // `retries` counts probes without an answer. A closed connection does not stay for ever.
        let orphan =
            self.path.orphan && self.out.persist_backoff >= self.path.config().orphan_retries;
        let waited = self.has_waited_too_long(now, self.out.persist_backoff == 0);
        let retries = self.out.transfer.loss.retries;
        if retries >= self.path.allowed_retries() || orphan || waited {
            self.reset_peer();
            return self.time_out();
        }
        self.out.transfer.loss.retries = retries.saturating_add(1);
        self.out.persist_backoff = self.out.persist_backoff.saturating_add(1);
        self.out.flags.insert(OutFlags::PROBE_DUE);
        let wait = self.within_user_timeout(now, self.persist_interval());
        self.out.persist.set(now + wait);
    }

    /// Starts the persist timer if data waits and nothing is in flight.
    pub(super) fn consider_probing(&mut self, now: Instant) {
        let waiting = self.out.transfer.flight.is_empty()
            && (self.out.unsent(&self.path) > 0
                || self.out.flags.contains(OutFlags::FIN_QUEUED)
                    && self.out.transfer.snd.nxt.le(self.out.queue.end()));
        if waiting {
            self.out.persist.set_once(now + self.persist_interval());
        } else {
            self.out.persist.stop();
        }
    }

    /// The time to the next probe.
    ///
    /// > RFC 9293 section 3.8.6.1: The transmitting host SHOULD send the first zero-window probe when
    /// > a zero window has existed for the retransmission timeout period (SHLD-29) (Section 3.8.1), and SHOULD increase
    /// > exponentially the interval between successive probes.
    pub(super) fn persist_interval(&self) -> Duration {
        let base = self.out.transfer.rtt.rto().max(Duration::from_millis(FLUSH_AFTER_MS));
        let doublings = u32::from(self.out.persist_backoff.min(16));
        base.saturating_mul(1 << doublings).min(self.path.config().rto_max)
    }

    /// > RFC 5482 section 3: the user timeout [...] specifies how long transmitted data may remain
    /// > unacknowledged before a connection is forcefully closed.
    ///
    /// As in Linux, it starts when a timer first fires (`first`), and replaces the retries.
    pub(super) fn has_waited_too_long(&mut self, now: Instant, first: bool) -> bool {
        let Some(limit) = self.path.config().user_timeout else { return false };
        let rare = self.out.transfer.rare();
        let since = match rare.unanswered_since.filter(|_| !first) {
            Some(since) => since,
            None => *rare.unanswered_since.insert(now),
        };
        !first && now.saturating_since(since) >= limit
    }

    /// Shortens `wait` so that the timer fires no later than the user timeout.
    pub(super) fn within_user_timeout(&self, now: Instant, wait: Duration) -> Duration {
        let since = self.out.transfer.rare.as_ref().and_then(|r| r.unanswered_since);
        match (self.path.config().user_timeout, since) {
            (Some(limit), Some(since)) => {
                wait.min(limit.saturating_sub(now.saturating_since(since)))
            }
            _ => wait,
        }
    }

    /// > RFC 9293 section 3.8.4: Keep-alive packets MUST only be sent when no sent data is
    /// > outstanding, and no data or acknowledgment packets have been received for the connection
    /// > within an interval [...] if a keep-alive mechanism is implemented it MUST NOT
    /// > interpret failure to respond to any specific probe as a dead connection
    fn on_keepalive_timer(&mut self, now: Instant) {
        let Some(KeepAlive { idle, interval, probes }) = self.path.config().keepalive else {
            return;
        };
        if !matches!(
            self.path.state(),
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        ) {
            return;
        }
        let silence = now.saturating_since(self.path.last_received);
        let wait = if !self.out.transfer.flight.is_empty() || self.out.unsent(&self.path) > 0 {
            idle
        } else if silence < idle {
            idle - silence
        } else if self.life.keepalive_probes > 0
            && self
                .path
                .config()
                .user_timeout
                .map_or(self.life.keepalive_probes >= probes, |t| silence >= t)
        {
            self.reset_peer();
            return self.time_out();
        } else {
            self.life.keepalive_probes += 1;
            self.out.flags.insert(OutFlags::PROBE_DUE);
            interval
        };
        self.life.silence.set(now + wait.max(MIN_KEEPALIVE_WAIT));
    }

    fn on_shrink_timer(&mut self, now: Instant) {
        let quiet = now.saturating_since(self.path.last_received.max(self.out.transfer.sent_at));
        if quiet < self.path.config().shrink_after {
            self.life.shrink.set(now + (self.path.config().shrink_after - quiet));
            return;
        }
        self.out.shrink();
        self.inbound.shrink();
    }

    /// Ends the connection, because the peer does not answer.
    pub(crate) fn time_out(&mut self) {
        if self.out.transfer.loss.retries < 2 {
            self.life.suspect_black_hole();
        }
        let error = self.life.soft_error.unwrap_or(TcpError::TimedOut);
        self.finish(Event::Expire, Some(error));
    }

    /// Has a reset sent, if the peer may consider the connection alive.
    pub(crate) fn reset_peer(&mut self) {
        let knows = matches!(
            self.path.state(),
            State::SynReceived
                | State::Established
                | State::FinWait1
                | State::FinWait2
                | State::CloseWait
        );
        if knows {
            // > RFC 9293 section 3.10.5: Send a reset segment: <SEQ=SND.NXT><CTL=RST>
            //
            // As Linux, not beyond the peer's window, where the peer would ignore it.
            let edge = self.out.transfer.send_edge();
            let seq =
                if edge.lt(self.out.transfer.snd.nxt) { edge } else { self.out.transfer.snd.nxt };
            self.life.set_reset(Reset { seq, ack: true });
        }
    }
}
