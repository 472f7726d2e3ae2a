//! What happens when a timer goes off.

use pagewire_mem::Instant;

use crate::config::KeepAlive;
use crate::connection::{Connection, Env};
use crate::error::TcpError;
use crate::inbound::AckDue;
use crate::life::state::{Event, State};
use crate::life::{Life, LifeFlags, Reset};
use crate::outbound::OutFlags;
use crate::outbound::loss::Due;
use crate::path::{Path, PathFlags};

impl Connection {
    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Without branches: it is asked for after every segment.
        let (out, life) = (&self.out, &self.life);
        let timers = [out.retransmit, out.persist, life.keepalive, life.linger, life.shrink];
        let delayed = self.inbound.delayed_ack.get();
        let first = timers.iter().fold(delayed, |first, timer| first.min(timer.get()));
        (first != Instant::FAR).then_some(first)
    }

    /// Does what is due at `env.now`. Harmless when nothing is.
    pub fn handle_timeout(&mut self, env: &mut Env<'_>) {
        let now = env.now;
        loop {
            if self.life.linger.pop(now) {
                // > RFC 9293 section 3.10.8: If the time-wait timeout expires on
                // > a connection, delete the TCB, enter the CLOSED state, and return.
                self.finish(Event::Expire, None);
            } else if self.out.retransmit.pop(now) {
                self.out.flags.remove(OutFlags::REFUSED);
                match self.out.loss.due {
                    Due::Rto => self.on_retransmit_timer(now),
                    Due::Probe => self.out.on_probe_timer(now),
                    Due::Reorder => self.out.on_reordering_timer(now),
                }
            } else if self.out.persist.pop(now) {
                self.on_persist_timer(now);
            } else if self.life.keepalive.pop(now) {
                self.on_keepalive_timer(now);
            } else if self.inbound.delayed_ack.pop(now) {
                if self.inbound.ack.due == AckDue::Delayed {
                    self.inbound.on_ack_waited(&self.path, &self.out.rtt);
                }
            } else if self.life.shrink.pop(now) {
                self.on_shrink_timer(now);
            } else {
                break;
            }
        }
    }

    /// Turns all timers off.
    pub(crate) fn stop_timers(&mut self) {
        (self.out.retransmit, self.out.persist) = Default::default();
        self.inbound.delayed_ack.stop();
        (self.life.keepalive, self.life.linger, self.life.shrink) = Default::default();
    }

    /// > RFC 9293 section 3.10.8: For any state if the retransmission timeout
    /// > expires on a segment in the retransmission queue, send the segment at the front of the
    /// > retransmission queue again, reinitialize the retransmission timer, and return.
    fn on_retransmit_timer(&mut self, now: Instant) {
        if self.out.flight.is_empty() {
            return;
        }
        if self.out.retries == 2 {
            self.life.suspect_black_hole();
        }
        if self.out.has_waited_too_long(&self.path, now, self.out.retries == 0) {
            return self.time_out();
        }
        match self.path.state {
            State::SynSent => {
                let linear = self.path.config.syn_linear_retries;
                if self.out.retries >= self.path.config.syn_retries.saturating_add(linear) {
                    return self.time_out();
                }
                self.resend_syn(self.out.retries >= linear);
            }
            State::SynReceived => {
                // As Linux: an application may wait for this one already, it gets one more.
                let extra = u8::from(self.path.flags.contains(PathFlags::FAST_OPEN_SERVER));
                let allowed = self.path.config.synack_retries.saturating_add(extra);
                if self.out.retries >= allowed && !self.outlasts_retries() {
                    return self.time_out();
                }
                match self.is_silent() {
                    true => self.out.rtt.on_backoff(),
                    false => self.resend_syn(true),
                }
            }
            _ => {
                if self.out.has_timed_out(&self.path, now) {
                    return self.time_out();
                }
                self.out.suspect_mtu(&self.path, now, self.out.retries);
                self.out.on_data_timeout(&self.path, now);
                // > RFC 6298 section 5.5: The host MUST set RTO <- RTO * 2 ("back off the timer").
                self.out.rtt.on_backoff();
            }
        }
        self.out.stats.timeouts += 1;
        self.out.retries = self.out.retries.saturating_add(1);
        // > RFC 6298 section 5.6: Start the retransmission timer, such that it expires after RTO
        // > seconds
        self.out
            .retransmit
            .set(now + self.out.within_user_timeout(&self.path, now, self.out.rtt.rto()));
    }

    fn resend_syn(&mut self, back_off: bool) {
        self.life.flags.insert(LifeFlags::SYN_RESENT);
        self.out.flight.mark_first_lost();
        if back_off {
            self.out.rtt.on_backoff();
        }
    }

    /// Nobody answers.
    pub(crate) fn time_out(&mut self) {
        if self.out.retries < 2 {
            self.life.suspect_black_hole();
        }
        let error = self.life.soft_error.unwrap_or(TcpError::TimedOut);
        self.finish(Event::Expire, Some(error));
    }

    fn on_persist_timer(&mut self, now: Instant) {
        if !self.out.flight.is_empty() {
            return;
        }
        let allowed = self.out.send_edge().saturating_since(self.out.snd.nxt);
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
        // `retries` counts probes without an answer. A connection that its application has let go
        // does not stay for ever.
        let orphan = self.path.flags.contains(PathFlags::ORPHAN)
            && self.out.persist_backoff >= self.path.config.orphan_retries;
        let waited = self.out.has_waited_too_long(&self.path, now, self.out.persist_backoff == 0);
        if self.out.retries >= self.path.allowed_retries() || orphan || waited {
            self.reset_peer();
            return self.time_out();
        }
        self.out.retries = self.out.retries.saturating_add(1);
        self.out.persist_backoff = self.out.persist_backoff.saturating_add(1);
        self.out.flags.insert(OutFlags::PROBE_DUE);
        let wait =
            self.out.within_user_timeout(&self.path, now, self.out.persist_interval(&self.path));
        self.out.persist.set(now + wait);
    }

    /// > RFC 9293 section 3.8.4: Keep-alive packets MUST only be sent when no sent data is
    /// > outstanding, and no data or acknowledgment packets have been received for the connection
    /// > within an interval [...] if a keep-alive mechanism is implemented it MUST NOT
    /// > interpret failure to respond to any specific probe as a dead connection
    fn on_keepalive_timer(&mut self, now: Instant) {
        let Some(KeepAlive { idle, interval, probes }) = self.path.config.keepalive else { return };
        if !matches!(
            self.path.state,
            State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
        ) {
            return;
        }
        let silence = now.saturating_since(self.path.heard_at);
        let wait = if !self.out.flight.is_empty() || self.out.unsent(&self.path) > 0 {
            idle
        } else if silence < idle {
            idle - silence
        } else if self.life.keepalive_probes > 0
            && self
                .path
                .config
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
        self.life.keepalive.set(now + wait);
    }

    // ---- memory ----

    fn on_shrink_timer(&mut self, now: Instant) {
        let quiet = now.saturating_since(self.path.heard_at.max(self.out.sent_at));
        if quiet < self.path.config.shrink_after {
            self.life.shrink.set(now + (self.path.config.shrink_after - quiet));
            return;
        }
        self.out.queue.shrink();
        self.out.flight.shrink();
        self.inbound.shrink();
        if self.out.flight.is_empty() {
            self.out.recovery = None;
        }
    }

    // ---- resets ----

    /// Has a reset sent to a peer that may think the connection is alive.
    pub(crate) fn reset_peer(&mut self) {
        let knows = matches!(
            self.path.state,
            State::SynReceived
                | State::Established
                | State::FinWait1
                | State::FinWait2
                | State::CloseWait
        );
        if knows {
            // > RFC 9293 section 3.10.5: Send a reset segment: <SEQ=SND.NXT><CTL=RST>
            //
            // As Linux, not beyond the peer's window, where it would not count.
            let edge = self.out.send_edge();
            let seq = if edge.lt(self.out.snd.nxt) { edge } else { self.out.snd.nxt };
            self.life.reset = Some(Reset { seq, ack: true });
        }
    }
}

impl Life {
    // ---- keep-alive ----

    pub(crate) fn start_keepalive(&mut self, path: &Path, now: Instant) {
        match path.config.keepalive {
            Some(KeepAlive { idle, .. }) => self.keepalive.set(now + idle),
            None => self.keepalive.stop(),
        }
    }
}
