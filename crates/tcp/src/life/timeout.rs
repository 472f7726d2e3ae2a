//! What happens when a timer goes off.

use pagewire_mem::Instant;

use crate::config::KeepAlive;
use crate::connection::{Connection, Env};
use crate::error::TcpError;
use crate::life::state::{Event, State};
use crate::life::{Life, LifeFlags, Reset};
use crate::outbound::loss::Due;
use crate::outbound::timeout::Waited;
use crate::path::Path;

impl Connection {
    fn on_retransmit_timer(&mut self, now: Instant) {
        let retries = self.out.transfer.loss().retries;
        if retries == 2 && !self.out.transfer.flight().is_empty() {
            self.life.suspect_black_hole();
        }
        let deferred = self.life.flags.contains(LifeFlags::DEFERRED);
        let waited = self.out.on_retransmit_timer(&self.path, now, deferred);
        self.after_waiting(waited);
    }

    /// What comes of a timer of what was sent.
    fn after_waiting(&mut self, waited: Waited) {
        match waited {
            Waited::InVain => {}
            Waited::ForSyn => self.life.flags.insert(LifeFlags::SYN_RESENT),
            Waited::TooLong => self.time_out(),
            Waited::TooLongForProbes => {
                self.reset_peer();
                self.time_out();
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Without branches: it is asked for after every segment.
        let (sent, life) = (self.out.next_timeout(), &self.life);
        let timers = [life.keepalive, life.linger, life.shrink];
        let delayed = sent.min(self.inbound.ack.next_timeout());
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
            } else if let Some(due) = self.out.pop_retransmit(now) {
                match due {
                    Due::Rto => self.on_retransmit_timer(now),
                    Due::Probe => self.out.transfer.on_probe_timer(now),
                    Due::Reorder => self.out.transfer.on_reordering_timer(now),
                }
            } else if self.out.pop_persist(now) {
                let waited = self.out.on_persist_timer(&self.path, now);
                self.after_waiting(waited);
            } else if self.life.keepalive.pop(now) {
                self.on_keepalive_timer(now);
            } else if self.inbound.ack.pop(&self.path, self.out.transfer.rtt(), now) {
                // It leaves with the next that is polled.
            } else if self.life.shrink.pop(now) {
                self.on_shrink_timer(now);
            } else {
                break;
            }
        }
    }

    /// Nobody answers.
    pub(crate) fn time_out(&mut self) {
        if self.out.transfer.loss().retries < 2 {
            self.life.suspect_black_hole();
        }
        let error = self.life.soft_error.unwrap_or(TcpError::TimedOut);
        self.finish(Event::Expire, Some(error));
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
        let wait = if !self.out.transfer.flight().is_empty() || self.out.unsent(&self.path) > 0 {
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
            self.out.ask_for_probe();
            interval
        };
        self.life.keepalive.set(now + wait);
    }

    // ---- memory ----

    fn on_shrink_timer(&mut self, now: Instant) {
        let quiet = now.saturating_since(self.path.heard_at.max(self.out.transfer.sent_at()));
        if quiet < self.path.config.shrink_after {
            self.life.shrink.set(now + (self.path.config.shrink_after - quiet));
            return;
        }
        self.out.shrink();
        self.inbound.shrink();
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
            let edge = self.out.transfer.send_edge();
            let seq = if edge.lt(self.out.transfer.snd().nxt) {
                edge
            } else {
                self.out.transfer.snd().nxt
            };
            self.life.reset = Some(Reset { seq, ack: true });
        }
    }
}

impl Life {
    pub(crate) fn stop_timers(&mut self) {
        (self.keepalive, self.linger, self.shrink) = Default::default();
    }

    // ---- keep-alive ----

    pub(crate) fn start_keepalive(&mut self, path: &Path, now: Instant) {
        match path.config.keepalive {
            Some(KeepAlive { idle, .. }) => self.keepalive.set(now + idle),
            None => self.keepalive.stop(),
        }
    }
}
