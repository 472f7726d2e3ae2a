//! TIME-WAIT (RFC 9293 section 3.6.1) in a small record, and the limit of FIN-WAIT-2.

use std::sync::Arc;

use pagewire_mem::Instant;

use crate::config::Config;
use crate::connection::Connection;
use crate::error::DropReason;
use crate::header::{Flags, TcpHeader};
use crate::life::state::{Event, State};
use crate::options::TcpOptions;
use crate::path::{Ports, Timestamps};
use crate::segment::{Disposition, Segment, Step, drop_for};
use crate::seq::Seq;

/// A connection in TIME-WAIT that its application has closed: enough to answer late segments, and
/// to tell an old duplicate from a new connection.
#[derive(Clone, Debug)]
pub struct TimeWait {
    config: Arc<Config>,
    until: Instant,
    challenge_after: Instant,
    snd_nxt: Seq,
    rcv_nxt: Seq,
    timestamps: Option<Timestamps>,
    ports: Ports,
    window: u16,
    /// The count of congestion marks in its segments (RFC 9768).
    ecn: Flags,
}

/// The result of a segment to a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TimeWaitStep {
    /// The segment was dropped.
    Ignored(DropReason),
    /// The segment was accepted.
    Noted,
    /// Send this answer. The segment was dropped for the reason, unless it repeats the peer's FIN.
    Answered(TcpHeader, Option<DropReason>),
    /// A reset ended TIME-WAIT.
    Over,
    /// The segment may open a new connection in place of this one; see [`Disposition::SynInTimeWait`].
    Reopens {
        /// The largest sequence number of ours that the old connection used.
        iss_above: Seq,
    },
}

impl TimeWait {
    /// When TIME-WAIT ends.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// If a new active connection may begin now, the number that its initial one must exceed.
    ///
    /// RFC 6191 section 2 is about the passive side. The active side may do the same, because its
    /// timestamps grow: PAWS drops segments of the old connection. As Linux: more than a second
    /// after the last timestamp, so that ours have grown.
    pub fn reusable(&self, now: Instant) -> Option<Seq> {
        self.timestamps?.is_past(now).then_some(self.snd_nxt)
    }

    /// > RFC 9293 section 3.10.7.4: The only thing that can arrive in this state is a
    /// > retransmission of the remote FIN. Acknowledge it, and restart the 2 MSL timeout.
    ///
    /// Other segments are treated as in Linux. `len` is the length of the payload.
    pub fn handle_segment(&mut self, now: Instant, header: &TcpHeader, len: u32) -> TimeWaitStep {
        let has = |flags| header.flags.contains(flags);
        let space = len + u32::from(has(Flags::SYN)) + u32::from(has(Flags::FIN));
        let value = self.timestamps.and(header.options.timestamps).map(|(value, _)| value);
        let (stale, newer) = match (self.timestamps, value) {
            (Some(stamps), Some(value)) => {
                (stamps.is_stale(now, value), (stamps.recent.wrapping_sub(value) as i32) < 0)
            }
            _ => (false, false),
        };
        if has(Flags::RST) {
            // > RFC 1337 section 3: (F1) Ignore RST segments in TIME-WAIT state.
            //
            // Linux does so only by setting.
            if stale || header.seq != self.rcv_nxt || self.config.rfc1337 {
                return TimeWaitStep::Ignored(DropReason::RstNotNext);
            }
            return TimeWaitStep::Over;
        }
        // > RFC 6191 section 2: if the timestamp of the incoming SYN segment is greater than the
        // > last timestamp seen on the previous incarnation of the connection [...] honor the
        // > connection request; [without timestamps] if the Sequence Number of the incoming SYN
        // > segment is greater than the last sequence number seen [...] honor it.
        //
        // A SYN with FIN opens no connection.
        let reopens = has(Flags::SYN) && !header.flags.intersects(Flags::ACK | Flags::FIN);
        let reopens = reopens && !stale;
        if reopens && (newer || header.seq.gt(self.rcv_nxt)) {
            return TimeWaitStep::Reopens { iss_above: self.snd_nxt };
        }
        let edge = self.rcv_nxt + u32::from(self.window);
        let fits = (header.seq + space).ge(self.rcv_nxt) && header.seq.le(edge);
        if !header.flags.intersects(Flags::ACK | Flags::SYN) && fits && !stale {
            // > RFC 9293 section 3.10.7.4: if the ACK bit is off, drop the segment and return
            return TimeWaitStep::Ignored(DropReason::AckMissing);
        }
        if space == 0 && header.seq == self.rcv_nxt && !stale {
            // A pure acknowledgement.
            self.restart(now);
            if let (Some(stamps), Some(value)) = (&mut self.timestamps, value) {
                stamps.set_recent(now, value);
            }
            return TimeWaitStep::Noted;
        }
        if has(Flags::ACK) || stale {
            self.restart(now);
        }
        let reason = match stale {
            true => DropReason::Paws,
            false if has(Flags::SYN) && header.seq.ge(self.rcv_nxt) => DropReason::SynUnexpected,
            false => DropReason::OutsideWindow,
        };
        if has(Flags::FIN) && !has(Flags::SYN) && header.seq + space == self.rcv_nxt {
            return TimeWaitStep::Answered(self.acknowledgement(now), None);
        }
        // Only answers to segments without data and FIN are limited: others soon end.
        if space > 0 && !has(Flags::SYN) {
            return TimeWaitStep::Answered(self.acknowledgement(now), Some(reason));
        }
        if now < self.challenge_after {
            return TimeWaitStep::Ignored(reason);
        }
        self.challenge_after = now + self.config.challenge_interval;
        TimeWaitStep::Answered(self.acknowledgement(now), Some(reason))
    }

    fn restart(&mut self, now: Instant) {
        self.until = now + self.config.time_wait;
    }

    /// The answer to a late segment.
    pub fn acknowledgement(&self, now: Instant) -> TcpHeader {
        let stamp = |t: Timestamps| (t.value(now), t.recent);
        let options =
            TcpOptions { timestamps: self.timestamps.map(stamp), ..TcpOptions::default() };
        TcpHeader {
            src_port: self.ports.local,
            dst_port: self.ports.remote,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags: Flags::ACK | self.ecn,
            window: self.window,
            urgent: 0,
            options,
        }
    }
}

impl Connection {
    /// The record that can replace this connection, if it is in TIME-WAIT.
    pub fn time_wait(&self) -> Option<TimeWait> {
        if self.path.state() != State::TimeWait {
            return None;
        }
        let window =
            (self.inbound.recv_window() >> self.inbound.scale).min(u32::from(u16::MAX)) as u16;
        Some(TimeWait {
            config: Arc::clone(&self.path.config),
            until: self.life.silence.get(),
            challenge_after: self.inbound.challenge_after(),
            snd_nxt: self.out.transfer.snd.nxt,
            rcv_nxt: self.inbound.rcv_nxt(),
            timestamps: self.path.timestamps_ok.then_some(self.path.timestamps),
            ports: self.path.ports,
            window,
            ecn: self.out.transfer.ace_flags(),
        })
    }

    /// Processes a segment in TIME-WAIT while the application still holds the connection.
    pub(crate) fn in_time_wait(&mut self, now: Instant, segment: &Segment<'_>) -> Step {
        let Some(mut left) = self.time_wait() else { return drop_for(DropReason::Closed) };
        let step = left.handle_segment(now, segment.header, segment.len);
        self.life.silence.set(left.until);
        self.inbound.set_challenge_after(left.challenge_after);
        if let Some(timestamps) = left.timestamps {
            self.path.timestamps = timestamps;
        }
        match step {
            TimeWaitStep::Noted => Ok(()),
            TimeWaitStep::Ignored(reason) => drop_for(reason),
            TimeWaitStep::Answered(_, dropped) => {
                self.inbound.ack.at_once();
                dropped.map_or(Ok(()), drop_for)
            }
            TimeWaitStep::Over => {
                self.finish(Event::Reset, None);
                Ok(())
            }
            TimeWaitStep::Reopens { iss_above } => Err(Disposition::SynInTimeWait { iss_above }),
        }
    }

    /// > RFC 9293 section 3.10.7.4: Enter the TIME-WAIT state. Start the time-wait timer, turn off
    /// > the other timers.
    pub(crate) fn enter_time_wait(&mut self, now: Instant) {
        self.out.end();
        self.inbound.ack.delayed_ack.stop();
        self.life.stop_timers();
        self.life.silence.set(now + self.path.config().time_wait);
    }

    /// A closed connection does not wait for the peer's FIN for ever.
    pub(super) fn limit_fin_wait2(&mut self, now: Instant) {
        if self.path.state() == State::FinWait2 && self.path.lingers() {
            self.life.silence.set(now + self.path.config().fin_wait2);
        }
    }
}
