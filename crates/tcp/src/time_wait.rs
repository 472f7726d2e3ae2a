//! TIME-WAIT (RFC 9293 section 3.6.1), and how long its neighbour FIN-WAIT-2 may last.

use pagewire_mem::Instant;

use crate::connection::{ConnFlags, Connection};
use crate::error::DropReason;
use crate::header::Flags;
use crate::input::{Segment, Step, drop_for};
use crate::segment::Disposition;
use crate::state::{Event, State};
use crate::timers::Timer;

impl Connection {
    /// > RFC 9293 section 3.10.7.4: The only thing that can arrive in this state is a
    /// > retransmission of the remote FIN. Acknowledge it, and restart the 2 MSL timeout.
    ///
    /// What else arrives is treated as Linux does.
    pub(crate) fn in_time_wait(&mut self, now: Instant, segment: &Segment<'_>) -> Step {
        let header = segment.header;
        let stale = match (self.has_timestamps(), header.options.timestamps) {
            (true, Some((value, _))) => self.is_stale(now, value),
            _ => false,
        };
        let newer = match (self.has_timestamps(), header.options.timestamps) {
            (true, Some((value, _))) => (self.ts.recent.wrapping_sub(value) as i32) < 0,
            _ => false,
        };
        if segment.has(Flags::RST) {
            if stale || segment.seq != self.rcv_nxt() {
                return drop_for(DropReason::RstNotNext);
            }
            self.finish(Event::Reset, None);
            return Ok(());
        }
        // RFC 6191 section 2: a new SYN is let in when its timestamp is greater than the last one
        // seen, or its sequence number is.
        if segment.has(Flags::SYN)
            && !segment.has(Flags::ACK)
            && !stale
            && (newer || segment.seq.gt(self.rcv_nxt()))
        {
            return Err(Disposition::SynInTimeWait { iss_above: self.snd.nxt });
        }
        if segment.space() == 0 && segment.seq == self.rcv_nxt() && !stale {
            // Nothing but an acknowledgement.
            self.timers.set(Timer::Linger, now + self.config.time_wait);
            self.remember_timestamp(now, header, segment.seq);
            return Ok(());
        }
        if segment.has(Flags::ACK) || stale {
            self.timers.set(Timer::Linger, now + self.config.time_wait);
        }
        // A retransmitted FIN is answered each time; whatever else, at a limited rate.
        let fin_again = segment.has(Flags::FIN) && segment.end() == self.rcv_nxt();
        if fin_again {
            self.ack_now();
            return Ok(());
        }
        self.challenge_ack(now);
        drop_for(if stale { DropReason::Paws } else { DropReason::OutsideWindow })
    }

    /// > RFC 9293 section 3.10.7.4: Enter the TIME-WAIT state. Start the time-wait timer, turn off
    /// > the other timers.
    pub(crate) fn enter_time_wait(&mut self, now: Instant) {
        self.timers.stop_all();
        self.flight.clear();
        self.recovery = None;
        self.queue.clear();
        self.timers.set(Timer::Linger, now + self.config.time_wait);
    }

    /// A connection whose application is gone does not wait for the peer's FIN for ever.
    pub(crate) fn limit_fin_wait2(&mut self, now: Instant) {
        if self.state == State::FinWait2 && self.flags.contains(ConnFlags::ORPHAN) {
            self.timers.set(Timer::Linger, now + self.config.fin_wait2);
        }
    }
}
