//! The receive window and when to acknowledge: what we tell the peer, and when.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::config::Config;
use crate::connection::{Connection, Env};
use crate::inbound::AckDue;
use crate::limits::{MAX_DUPLICATE_ACKS_OWED, MAX_RECV_BUFFER, MAX_WINDOW_SCALE, MIN_RECV_BUFFER};
use crate::path::PathFlags;
use crate::seq::Seq;

/// Longest time that an acknowledgement waits in an exchange of questions and answers, as in Linux.
const MAX_DELAYED_ACK: Duration = Duration::from_millis(200);

/// The largest receive buffer within its limits.
fn largest(config: &Config) -> u32 {
    let max = config.recv_buffer.clamp(MIN_RECV_BUFFER, MAX_RECV_BUFFER);
    max.min(config.window_clamp.unwrap_or(max).max(MIN_RECV_BUFFER))
}

/// The least shift with which the largest buffer fits the window field.
pub(crate) fn scale_for(config: &Config) -> u8 {
    (largest(config).ilog2().saturating_sub(15) as u8).min(MAX_WINDOW_SCALE)
}

/// The window of a SYN, which is not scaled.
pub(crate) fn initial(config: &Config) -> u32 {
    largest(config).min(config.recv_buffer_initial.max(MIN_RECV_BUFFER)).min(u32::from(u16::MAX))
}

impl Connection {
    /// RCV.WND: bytes that the peer may still send of what we have announced.
    pub(crate) fn recv_window(&self) -> u32 {
        self.inbound.edge.saturating_since(self.rcv_nxt())
    }

    /// What the window may grow to while the buffer is what it is, as far as the header can say it.
    pub(crate) fn window_limit(&self) -> u32 {
        let limit = self.buffer_limit();
        match self.path.flags.contains(PathFlags::FORWARDS) {
            true => limit.min(self.forward_limit()),
            false => limit,
        }
    }

    /// The same for what the buffer has room for, wanted or not.
    fn buffer_limit(&self) -> u32 {
        // 0 is no small window but none: what is announced already stays, nothing is added.
        if self.path.config.window_clamp == Some(0) {
            return 0;
        }
        let limit = self.recv_buffer().min(largest(&self.path.config));
        limit.min(u32::from(u16::MAX) << self.inbound.scale)
    }

    /// How much of the buffer is used: what is queued, or half of the memory that is pinned for
    /// it, if that is more (an honest peer's full segments in their pages).
    pub(crate) fn buffer_used(&self) -> u32 {
        let used = self.inbound.queue.buffered().max(self.inbound.queue.pinned() / 2);
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    /// What memory allows beyond what is pinned already: the host's, and for what the application
    /// holds, the largest receive buffer. As Linux under pressure, a few segments where nothing is:
    /// whoever reads gets on.
    fn allowed(&self, mss: u32) -> u32 {
        let charged = self.inbound.queue.charge_with_held() + self.kept() as usize;
        let by_host = match u32::try_from(charged).unwrap_or(u32::MAX) {
            0 => self.inbound.allowance.max(4 * mss),
            pinned => self.inbound.allowance.saturating_sub(pinned),
        };
        match self.kept() {
            0 => by_host,
            kept => by_host.min(
                largest(&self.path.config).saturating_sub(kept.saturating_add(self.buffer_used())),
            ),
        }
    }

    /// Notes how much memory the application took by reference and keeps.
    pub fn set_kept(&mut self, bytes: usize) {
        let kept = u32::try_from(bytes).unwrap_or(u32::MAX);
        if kept != self.kept() {
            self.inbound.rare().kept = kept;
        }
    }

    pub(crate) fn kept(&self) -> u32 {
        self.inbound.rare.as_ref().map_or(0, |rare| rare.kept)
    }

    /// Whether the window is kept much smaller by what the application holds: it opens when that
    /// comes back, of which [`after_return`](Self::after_return) is to be told.
    pub fn is_held_back(&self) -> bool {
        self.kept() > 0 && self.allowed(u32::from(self.inbound.mss)) < self.window_limit() / 2
    }

    /// Something of what the application held came back: the window may open.
    pub fn after_return(&mut self, env: &mut Env<'_>) {
        self.note_allowance(env);
        self.on_data_taken();
    }

    /// Less is held of what was received here and waits to be sent on elsewhere
    /// ([`set_held`](Self::set_held)): a window that was closed for that is offered again. Nothing else
    /// comes of it, because the application has taken nothing.
    pub fn after_release(&mut self, env: &mut Env<'_>) {
        self.note_allowance(env);
        if self.path.state.is_synchronized() && self.inbound.fin.is_none() {
            self.offer_window();
        }
    }

    /// The window that can be announced now, in bytes.
    ///
    /// > RFC 9293 section 3.8.6.2.2: avoid advancing the right window edge RCV.NXT+RCV.WND in small
    /// > increments [...] keep RCV.NXT+RCV.WND fixed until the reduction satisfies: RCV.BUFF -
    /// > RCV.USER - RCV.WND >= min( Fr * RCV.BUFF, Eff.snd.MSS )
    ///
    /// > RFC 9293 section 3.8.6: A TCP receiver SHOULD NOT shrink the window, i.e., move the right
    /// > window edge to the left
    ///
    /// As Linux: less than a segment, or than a sixteenth of the buffer, is nothing.
    pub(crate) fn window_to_offer(&self) -> u32 {
        let open = self.recv_window();
        let capacity = self.window_limit();
        let free = capacity.saturating_sub(self.buffer_used());
        let mss = u32::from(self.inbound.mss).min(capacity).max(1);
        let small = free < mss || free < capacity >> 4;
        let free = free.min(self.inbound.ssthresh);
        // What may be announced may be less than a segment of the peer's as far as we know it: then
        // all of that is a step, or the window would never open again.
        let step = mss.min(self.inbound.ssthresh).max(1);
        let worth = if small {
            0
        } else if self.inbound.scale > 0 {
            free
        } else if open > free || open + step <= free {
            // Without a scale small steps could be told: in whole segments, and only then.
            free - free % step
        } else {
            open
        };
        let allowed = self.allowed(mss);
        let worth = if allowed < mss { 0 } else { worth.min(allowed) };
        worth.max(open)
    }

    /// The window field of a SYN, which may be sent again after the buffer was set to another size:
    /// the largest that was told counts. `first` is the peer's first number, 0 before it is known.
    pub(crate) fn announce_first_window(&mut self, first: Seq) -> u16 {
        let window = initial(&self.path.config);
        self.inbound.edge = self.inbound.edge.max(first + window);
        window as u16
    }

    /// The window field of the next segment; moves the right edge to where it says.
    pub(crate) fn announce_window(&mut self) -> u16 {
        let scale = self.inbound.scale;
        let granule = 1u64 << scale;
        let offer = u64::from(self.window_to_offer());
        // Rounding down would take back a little of what was offered. Rounding up gives a little
        // that is not there: once, not again and again to a peer that sends byte by byte. Where only
        // less is wanted than was offered, it is there.
        let limit = u64::from(self.buffer_limit()) + granule - 1;
        // A power of two, which the compiler cannot know: a division is slow.
        let up = (offer + granule - 1) & !(granule - 1);
        let bytes = if up + u64::from(self.buffer_used()) <= limit { up } else { offer };
        let units = (bytes >> scale).min(u64::from(u16::MAX)) as u16;
        let edge = self.rcv_nxt() + (u32::from(units) << scale);
        self.inbound.edge = self.inbound.edge.max(edge);
        units
    }

    /// Data that was not there before has arrived in order: `advanced` bytes, `pushed` and not
    /// filling a segment or not.
    ///
    /// > RFC 9293 section 3.8.6.3: an ACK should not be excessively delayed; in particular, the
    /// > delay MUST be less than 0.5 seconds (MUST-40). An ACK SHOULD be generated for at least every second
    /// > full-sized segment or 2*RMSS bytes of new data
    pub(crate) fn schedule_ack(&mut self, now: Instant, payload: u32, pushed: bool) {
        self.note_arrival(now, payload, pushed);
        let unacked = self.rcv_nxt().since(self.inbound.acked);
        let quick = self.inbound.ack.quick > 0 && !self.inbound.ack.interactive;
        if unacked > u32::from(self.inbound.mss) || quick {
            self.inbound.ack.due = AckDue::Now;
        } else {
            self.delay_ack(now);
        }
    }

    pub(crate) fn delay_ack(&mut self, now: Instant) {
        if self.inbound.ack.due == AckDue::No {
            self.inbound.ack.due = AckDue::Delayed;
            self.inbound.delayed_ack.set(now + self.ack_timeout());
        }
    }

    /// How long an acknowledgement waits: about as long as the peer takes between two segments, so
    /// that one does for both; not longer than a round trip.
    fn ack_timeout(&self) -> Duration {
        let least = self.path.config.delayed_ack;
        let timeout = Duration::from_millis(u64::from(self.inbound.ack.timeout_ms)).max(least);
        let waits = self.inbound.ack.interactive || self.inbound.ack.pushed > 0;
        let most = if waits { MAX_DELAYED_ACK } else { 2 * MAX_DELAYED_ACK };
        let round_trip = self.out.rtt.srtt().map_or(most, |srtt| srtt.max(least));
        timeout.min(most).min(round_trip.max(least)).min(MAX_DELAYED_ACK.max(least))
    }

    /// An acknowledgement has waited in vain. In an exchange of questions and answers none came: it
    /// is over. Otherwise the peer is slower than was thought.
    pub(crate) fn on_ack_waited(&mut self) {
        let least = self.least_ack_timeout();
        self.inbound.ack.timeout_ms = if self.inbound.ack.interactive {
            least
        } else {
            let rto = u16::try_from(self.out.rtt.rto().as_millis()).unwrap_or(u16::MAX);
            self.inbound.ack.timeout_ms.saturating_mul(2).min(rto).max(least)
        };
        self.inbound.ack.interactive = false;
        self.inbound.ack.due = AckDue::Now;
    }

    fn least_ack_timeout(&self) -> u16 {
        u16::try_from(self.path.config.delayed_ack.as_millis()).unwrap_or(u16::MAX)
    }

    /// Learns from a segment how the peer sends.
    fn note_arrival(&mut self, now: Instant, payload: u32, pushed: bool) {
        let full = u32::from(self.announced_mss());
        if payload >= u32::from(self.inbound.mss) {
            self.inbound.mss = payload.min(full) as u16;
        } else if pushed {
            self.inbound.ack.pushed = (self.inbound.ack.pushed + 1).min(2);
        }
        let silence = now.saturating_since(self.inbound.data_at);
        let least = self.least_ack_timeout();
        let (ms, timeout) = (silence.as_millis(), u128::from(self.inbound.ack.timeout_ms));
        // The peer starts, or starts again from a small window: help it to open it.
        if timeout == 0 || silence > self.out.rtt.rto() {
            self.quicken(self.path.config.quick_acks);
        }
        self.inbound.ack.timeout_ms = if timeout == 0 {
            least.max(1)
        } else if ms <= u128::from(least / 2) {
            self.inbound.ack.timeout_ms / 2 + least / 2
        } else if ms < timeout {
            let rto = self.out.rtt.rto().as_millis();
            u16::try_from((timeout / 2 + ms).min(rto)).unwrap_or(u16::MAX)
        } else {
            self.inbound.ack.timeout_ms
        };
        self.inbound.data_at = now;
    }

    /// The next few acknowledgements leave without delay.
    pub(crate) fn quicken(&mut self, acks: u8) {
        self.inbound.ack.quick = self.inbound.ack.quick.max(acks);
    }

    /// An acknowledgement is due at once.
    pub(crate) fn ack_now(&mut self) {
        self.inbound.ack.due = AckDue::Now;
    }

    /// An acknowledgement is due for a segment beyond a gap, or for one that came twice.
    ///
    /// > RFC 5681 section 3.2: A TCP receiver SHOULD send an immediate duplicate ACK when an
    /// > out-of-order segment arrives.
    pub(crate) fn ack_duplicate(&mut self) {
        self.quicken(self.path.config.quick_acks);
        self.inbound.ack.interactive = false;
        if self.inbound.ack.due == AckDue::Now && !self.path.flags.contains(PathFlags::SACK) {
            self.inbound.ack.duplicates =
                (self.inbound.ack.duplicates + 1).min(MAX_DUPLICATE_ACKS_OWED);
        }
        self.inbound.ack.due = AckDue::Now;
    }

    /// `left..right` has come twice: the next acknowledgement says so.
    ///
    /// > RFC 2883 section 4: (1) A D-SACK block is only used to report a duplicate contiguous
    /// > sequence of data received by the receiver in the most recent packet. [...] (3) The left edge
    /// > of the D-SACK block specifies the first sequence number of the duplicate contiguous sequence,
    /// > and the right edge of the D-SACK block specifies the sequence number immediately following the
    /// > last sequence in the duplicate contiguous sequence.
    ///
    /// What was reported and not sent yet stays if the new one continues it; else the first of an
    /// acknowledgement counts, as in Linux.
    pub(crate) fn note_twice(&mut self, left: Seq, right: Seq) {
        if !self.path.config.dsack || !self.path.flags.contains(PathFlags::SACK) || !left.lt(right)
        {
            return;
        }
        match &mut self.inbound.rare().twice {
            Some((_, end)) if *end == left => *end = right,
            Some(_) => {}
            twice => *twice = Some((left, right)),
        }
    }

    /// An answer is due to a segment that makes no sense, unless one has just been sent.
    ///
    /// RFC 5961 section 7 asks for such a throttle.
    pub(crate) fn challenge_ack(&mut self, now: Instant) {
        if now >= self.inbound.challenge_after {
            self.inbound.challenge_after = now + self.path.config.challenge_interval;
            self.inbound.ack.due = self.inbound.ack.due.max(AckDue::Challenge);
        }
    }

    /// A segment with an acknowledgement leaves.
    pub(crate) fn on_ack_sent(&mut self) {
        self.inbound.acked = self.rcv_nxt();
        self.inbound.forget_twice();
        if self.inbound.ack.due == AckDue::No {
            return;
        }
        self.inbound.ack.quick = self.inbound.ack.quick.saturating_sub(1);
        self.inbound.ack.pushed = 0;
        self.inbound.ack.due = AckDue::No;
        if self.inbound.ack.duplicates > 0 {
            self.inbound.ack.duplicates -= 1;
            self.inbound.ack.due = AckDue::Now;
        }
        self.inbound.delayed_ack.stop();
    }

    /// The application has taken data: is it worth a segment of its own to say so?
    ///
    /// As Linux: an acknowledgement that was delayed leaves when more than one segment waits for
    /// it, or when the application has taken all there was of a pushed piece and does not answer;
    /// a new window is told when it is at least twice what the peer knows of.
    pub(crate) fn on_data_taken(&mut self) {
        if !self.path.state.is_synchronized() || self.inbound.fin.is_some() {
            return;
        }
        if self.inbound.ack.due == AckDue::Delayed {
            let unacked = self.rcv_nxt().since(self.inbound.acked);
            let drained = self.inbound.queue.queued() == 0
                && (self.inbound.ack.pushed == 2
                    || (self.inbound.ack.pushed == 1 && !self.inbound.ack.interactive));
            if unacked > u32::from(self.inbound.mss) || drained {
                self.inbound.ack.due = AckDue::Now;
                return;
            }
        }
        self.offer_window();
    }

    /// Whether there is a window that is worth a segment of its own.
    fn offer_window(&mut self) {
        let known = self.recv_window();
        if known <= self.window_limit() / 2 {
            let offer = self.window_to_offer();
            if offer > 0 && offer >= known.saturating_mul(2) {
                self.inbound.ack.due = AckDue::Now;
            }
        }
    }
}
