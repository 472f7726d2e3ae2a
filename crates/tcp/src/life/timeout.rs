//! Timers: when the next one fires, and what it does.

use pagewire_mem::Instant;

use crate::config::KeepAlive;
use crate::connection::Connection;
use crate::error::TcpError;
use crate::life::state::{Event, State};
use crate::life::{Life, LifeFlags, Reset};
use crate::outbound::loss::Due;
use crate::outbound::recovery::{probe, rack};
use crate::outbound::timeout::Waited;
use crate::path::Path;
use crate::shared::Env;

impl Connection {
    /// When to call [`handle_timeout`](Self::handle_timeout).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // Without branches: it is called after every segment.
        let (sent, life) = (self.out.next_timeout(), &self.life);
        let timers = [life.keepalive, life.linger, life.shrink];
        let delayed = sent.min(self.inbound.ack.next_timeout());
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
                    Due::Rto => on_retransmit_timer(self, now),
                    Due::Probe => probe::on_probe_timer(&mut self.out.transfer, now),
                    Due::Reorder => rack::on_reordering_timer(&mut self.out.transfer, now),
                }
            } else if self.out.pop_persist(now) {
                let waited = self.out.on_persist_timer(&self.path, now);
                after_waiting(self, waited);
            } else if self.life.keepalive.pop(now) {
                on_keepalive_timer(self, now);
            } else if self.inbound.ack.pop(&self.path, self.out.transfer.rtt(), now) {
                // `poll_transmit` sends it.
            } else if self.life.shrink.pop(now) {
                on_shrink_timer(self, now);
            } else {
                break;
            }
        }
    }
}

/// Ends the connection, because the peer does not answer.
pub(crate) fn time_out(conn: &mut Connection) {
    if conn.out.transfer.loss().retries < 2 {
        conn.life.suspect_black_hole();
    }
    let error = conn.life.soft_error.unwrap_or(TcpError::TimedOut);
    conn.finish(Event::Expire, Some(error));
}

/// Has a reset sent, if the peer may consider the connection alive.
pub(crate) fn reset_peer(conn: &mut Connection) {
    let knows = matches!(
        conn.path.state(),
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
        let edge = conn.out.transfer.send_edge();
        let seq =
            if edge.lt(conn.out.transfer.snd().nxt) { edge } else { conn.out.transfer.snd().nxt };
        conn.life.reset = Some(Reset { seq, ack: true });
    }
}

fn on_retransmit_timer(conn: &mut Connection, now: Instant) {
    let retries = conn.out.transfer.loss().retries;
    if retries == 2 && !conn.out.transfer.flight().is_empty() {
        conn.life.suspect_black_hole();
    }
    let deferred = conn.life.flags.contains(LifeFlags::DEFERRED);
    let waited = conn.out.on_retransmit_timer(&conn.path, now, deferred);
    after_waiting(conn, waited);
}

/// Acts on the result of a timer of the sending side.
fn after_waiting(conn: &mut Connection, waited: Waited) {
    match waited {
        Waited::Retry => {}
        Waited::RetrySyn => conn.life.flags.insert(LifeFlags::SYN_RESENT),
        Waited::GiveUp => time_out(conn),
        Waited::GiveUpWithReset => {
            reset_peer(conn);
            time_out(conn);
        }
    }
}

/// > RFC 9293 section 3.8.4: Keep-alive packets MUST only be sent when no sent data is
/// > outstanding, and no data or acknowledgment packets have been received for the connection
/// > within an interval [...] if a keep-alive mechanism is implemented it MUST NOT
/// > interpret failure to respond to any specific probe as a dead connection
fn on_keepalive_timer(conn: &mut Connection, now: Instant) {
    let Some(KeepAlive { idle, interval, probes }) = conn.path.config().keepalive else { return };
    if !matches!(
        conn.path.state(),
        State::Established | State::CloseWait | State::FinWait1 | State::FinWait2
    ) {
        return;
    }
    let silence = now.saturating_since(conn.path.heard_at());
    let wait = if !conn.out.transfer.flight().is_empty() || conn.out.unsent(&conn.path) > 0 {
        idle
    } else if silence < idle {
        idle - silence
    } else if conn.life.keepalive_probes > 0
        && conn
            .path
            .config()
            .user_timeout
            .map_or(conn.life.keepalive_probes >= probes, |t| silence >= t)
    {
        reset_peer(conn);
        return time_out(conn);
    } else {
        conn.life.keepalive_probes += 1;
        conn.out.ask_for_probe();
        interval
    };
    conn.life.keepalive.set(now + wait);
}

fn on_shrink_timer(conn: &mut Connection, now: Instant) {
    let quiet = now.saturating_since(conn.path.heard_at().max(conn.out.transfer.sent_at()));
    if quiet < conn.path.config().shrink_after {
        conn.life.shrink.set(now + (conn.path.config().shrink_after - quiet));
        return;
    }
    conn.out.shrink();
    conn.inbound.shrink();
}

impl Life {
    pub(crate) fn stop_timers(&mut self) {
        (self.keepalive, self.linger, self.shrink) = Default::default();
    }

    pub(crate) fn start_keepalive(&mut self, path: &Path, now: Instant) {
        match path.config().keepalive {
            Some(KeepAlive { idle, .. }) => self.keepalive.set(now + idle),
            None => self.keepalive.stop(),
        }
    }
}
