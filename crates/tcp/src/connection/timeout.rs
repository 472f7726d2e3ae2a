//! Timers: when the next one fires, and what it does.

use pagewire_mem::Instant;

use crate::config::KeepAlive;
use crate::connection::Connection;
use crate::error::TcpError;
use crate::life::state::{Event, State};
use crate::life::{LifeFlags, Reset};
use crate::outbound::OutFlags;
use crate::outbound::loss::Due;
use crate::outbound::timeout::Waited;
use crate::shared::Env;

impl Connection {
    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Without branches: it is called after every segment.
        let (sent, life) = (self.out.next_timeout(), &self.life);
        let timers = [life.keepalive, life.linger, life.shrink];
        let delayed = sent.min(self.inbound.ack.delayed_ack.get());
        let first = timers.iter().fold(delayed, |first, timer| first.min(timer.get()));
        (first != Instant::FAR).then_some(first)
    }

    /// Fires the timers due at `env.now`, if any.
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
            } else if self.inbound.ack.pop(&self.path, &self.out.transfer.rtt, now) {
                // `poll_transmit` sends it.
            } else if self.life.shrink.pop(now) {
                self.on_shrink_timer(now);
            } else {
                break;
            }
        }
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
            self.life.reset = Some(Reset { seq, ack: true });
        }
    }

    fn on_retransmit_timer(&mut self, now: Instant) {
        let retries = self.out.transfer.loss.retries;
        if retries == 2 && !self.out.transfer.flight.is_empty() {
            self.life.suspect_black_hole();
        }
        let deferred = self.life.flags.contains(LifeFlags::DEFERRED);
        let waited = self.out.on_retransmit_timer(&self.path, now, deferred);
        self.after_waiting(waited);
    }

    /// Acts on the result of a timer of the sending side.
    fn after_waiting(&mut self, waited: Waited) {
        match waited {
            Waited::Retry => {}
            Waited::RetrySyn => self.life.flags.insert(LifeFlags::SYN_RESENT),
            Waited::GiveUp => self.time_out(),
            Waited::GiveUpWithReset => {
                self.reset_peer();
                self.time_out();
            }
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
        self.life.keepalive.set(now + wait);
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
}
