//! The receive window and when to acknowledge: what we tell the peer, and when.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::config::Config;
use crate::connection::Connection;
use crate::inbound::{AckDue, AckState, Inbound};
use crate::limits::{MAX_DUPLICATE_ACKS_OWED, MAX_RECV_BUFFER, MAX_WINDOW_SCALE, MIN_RECV_BUFFER};
use crate::outbound::rtt::RttEstimator;
use crate::path::Path;
use crate::seq::Seq;
use crate::shared::Env;

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
    /// Notes how much memory the application took by reference and keeps.
    pub fn set_kept(&mut self, bytes: usize) {
        let kept = u32::try_from(bytes).unwrap_or(u32::MAX);
        if kept != self.inbound.kept() {
            self.inbound.rare().kept = kept;
        }
    }

    /// Whether the window is kept much smaller by what the application holds: it opens when that
    /// comes back, of which [`after_return`](Self::after_return) is to be told.
    pub fn is_held_back(&self) -> bool {
        self.inbound.kept() > 0
            && self.inbound.allowed(&self.path, u32::from(self.inbound.mss))
                < self.inbound.window_limit(&self.path, self.out.transfer.rtt()) / 2
    }

    /// Something of what the application held came back: the window may open.
    pub fn after_return(&mut self, env: &mut Env<'_>) {
        self.inbound.note_allowance(env);
        self.inbound.on_data_taken(&self.path, self.out.transfer.rtt());
    }

    /// Less is held of what was received here and waits to be sent on elsewhere
    /// ([`set_held`](Self::set_held)): a window that was closed for that is offered again. Nothing else
    /// comes of it, because the application has taken nothing.
    pub fn after_release(&mut self, env: &mut Env<'_>) {
        self.inbound.note_allowance(env);
        if self.path.state().is_synchronized() && self.inbound.fin.is_none() {
            self.inbound.offer_window(&self.path, self.out.transfer.rtt());
        }
    }
}

impl Inbound {
    /// Whether the next segment has SACK blocks.
    #[inline]
    pub(crate) fn tells_blocks(&self, path: &Path) -> bool {
        path.has_sack() && (self.queue.has_gaps() || self.twice().is_some())
    }

    /// RCV.WND: bytes that the peer may still send of what we have announced.
    #[inline]
    pub(crate) fn recv_window(&self) -> u32 {
        self.edge.saturating_since(self.rcv_nxt())
    }

    /// What the window may grow to while the buffer is what it is, as far as the header can say it.
    pub(crate) fn window_limit(&self, path: &Path, rtt: &RttEstimator) -> u32 {
        let limit = self.buffer_limit(path);
        match path.forwards() {
            true => limit.min(self.forward_limit(path, rtt)),
            false => limit,
        }
    }

    /// The same for what the buffer has room for, wanted or not.
    #[inline]
    fn buffer_limit(&self, path: &Path) -> u32 {
        // 0 is no small window but none: what is announced already stays, nothing is added.
        if path.config().window_clamp == Some(0) {
            return 0;
        }
        let limit = self.recv_buffer(path).min(largest(path.config()));
        limit.min(u32::from(u16::MAX) << self.scale)
    }

    /// How much of the buffer is used: what is queued, or half of the memory that is pinned for
    /// it, if that is more (an honest peer's full segments in their pages).
    #[inline]
    pub(crate) fn buffer_used(&self) -> u32 {
        let used = self.queue.buffered().max(self.queue.pinned() / 2);
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    /// What memory allows beyond what is pinned already: the host's, and for what the application
    /// holds, the largest receive buffer. As Linux under pressure, a few segments where nothing is:
    /// whoever reads gets on.
    pub(crate) fn allowed(&self, path: &Path, mss: u32) -> u32 {
        let charged = self.queue.charge_with_held() + self.kept() as usize;
        let by_host = match u32::try_from(charged).unwrap_or(u32::MAX) {
            0 => self.allowance.max(4 * mss),
            pinned => self.allowance.saturating_sub(pinned),
        };
        match self.kept() {
            0 => by_host,
            kept => by_host.min(
                largest(path.config()).saturating_sub(kept.saturating_add(self.buffer_used())),
            ),
        }
    }

    #[inline]
    pub(crate) fn kept(&self) -> u32 {
        self.rare.as_ref().map_or(0, |rare| rare.kept)
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
    pub(crate) fn window_to_offer(&self, path: &Path, rtt: &RttEstimator) -> u32 {
        let open = self.recv_window();
        let capacity = self.window_limit(path, rtt);
        let free = capacity.saturating_sub(self.buffer_used());
        let mss = u32::from(self.mss).min(capacity).max(1);
        let small = free < mss || free < capacity >> 4;
        let free = free.min(self.ssthresh);
        // What may be announced may be less than a segment of the peer's as far as we know it: then
        // all of that is a step, or the window would never open again.
        let step = mss.min(self.ssthresh).max(1);
        let worth = if small {
            0
        } else if self.scale > 0 {
            free
        } else if open > free || open + step <= free {
            // Without a scale small steps could be told: in whole segments, and only then.
            free - free % step
        } else {
            open
        };
        let allowed = self.allowed(path, mss);
        let worth = if allowed < mss { 0 } else { worth.min(allowed) };
        worth.max(open)
    }

    /// The window field of a SYN, which may be sent again after the buffer was set to another size:
    /// the largest that was told counts. `first` is the peer's first number, 0 before it is known.
    pub(crate) fn announce_first_window(&mut self, path: &Path, first: Seq) -> u16 {
        let window = initial(path.config());
        self.edge = self.edge.max(first + window);
        window as u16
    }

    /// The window field of the next segment; moves the right edge to where it says.
    pub(crate) fn announce_window(&mut self, path: &Path, rtt: &RttEstimator) -> u16 {
        let scale = self.scale;
        let granule = 1u64 << scale;
        let offer = u64::from(self.window_to_offer(path, rtt));
        // Rounding down would take back a little of what was offered. Rounding up gives a little
        // that is not there: once, not again and again to a peer that sends byte by byte. Where only
        // less is wanted than was offered, it is there.
        let limit = u64::from(self.buffer_limit(path)) + granule - 1;
        // A power of two, which the compiler cannot know: a division is slow.
        let up = (offer + granule - 1) & !(granule - 1);
        let bytes = if up + u64::from(self.buffer_used()) <= limit { up } else { offer };
        let units = (bytes >> scale).min(u64::from(u16::MAX)) as u16;
        let edge = self.rcv_nxt() + (u32::from(units) << scale);
        self.edge = self.edge.max(edge);
        units
    }

    /// Data that was not there before has arrived in order: `advanced` bytes, `pushed` and not
    /// filling a segment or not.
    ///
    /// > RFC 9293 section 3.8.6.3: an ACK should not be excessively delayed; in particular, the
    /// > delay MUST be less than 0.5 seconds (MUST-40). An ACK SHOULD be generated for at least every second
    /// > full-sized segment or 2*RMSS bytes of new data
    pub(crate) fn schedule_ack(
        &mut self,
        path: &Path,
        rtt: &RttEstimator,
        now: Instant,
        payload: u32,
        pushed: bool,
    ) {
        self.note_arrival(path, rtt, now, payload, pushed);
        let unacked = self.rcv_nxt().since(self.acked);
        let quick = self.ack.quick > 0 && !self.ack.interactive;
        if unacked > u32::from(self.mss) || quick {
            self.ack.due = AckDue::Now;
        } else {
            self.ack.delay(path, rtt, now);
        }
    }

    /// Data leaves. If that is an answer to what has just arrived, the acknowledgements of this
    /// application's peer can ride on answers from now on.
    #[inline]
    pub(crate) fn note_answer(&mut self, now: Instant) {
        let soon = Duration::from_millis(u64::from(self.ack.timeout_ms));
        if now.saturating_since(self.data_at) < soon {
            self.ack.interactive = true;
        }
    }

    /// Learns from a segment how the peer sends.
    fn note_arrival(
        &mut self,
        path: &Path,
        rtt: &RttEstimator,
        now: Instant,
        payload: u32,
        pushed: bool,
    ) {
        let full = u32::from(path.announced_mss());
        if payload >= u32::from(self.mss) {
            self.mss = payload.min(full) as u16;
        } else if pushed {
            self.ack.pushed = (self.ack.pushed + 1).min(2);
        }
        let silence = now.saturating_since(self.data_at);
        let least = path.least_ack_timeout();
        let (ms, timeout) = (silence.as_millis(), u128::from(self.ack.timeout_ms));
        // The peer starts, or starts again from a small window: help it to open it.
        if timeout == 0 || silence > rtt.rto() {
            self.ack.quicken(path.config().quick_acks);
        }
        self.ack.timeout_ms = if timeout == 0 {
            least.max(1)
        } else if ms <= u128::from(least / 2) {
            self.ack.timeout_ms / 2 + least / 2
        } else if ms < timeout {
            let rto = rtt.rto().as_millis();
            u16::try_from((timeout / 2 + ms).min(rto)).unwrap_or(u16::MAX)
        } else {
            self.ack.timeout_ms
        };
        self.data_at = now;
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
    pub(crate) fn note_twice(&mut self, path: &Path, left: Seq, right: Seq) {
        if !path.config().dsack || !path.has_sack() || !left.lt(right) {
            return;
        }
        match &mut self.rare().twice {
            Some((_, end)) if *end == left => *end = right,
            Some(_) => {}
            twice => *twice = Some((left, right)),
        }
    }

    /// A segment with an acknowledgement leaves.
    pub(crate) fn on_ack_sent(&mut self) {
        self.acked = self.rcv_nxt();
        self.forget_twice();
        if self.ack.due == AckDue::No {
            return;
        }
        self.ack.quick = self.ack.quick.saturating_sub(1);
        self.ack.pushed = 0;
        self.ack.due = AckDue::No;
        if self.ack.duplicates > 0 {
            self.ack.duplicates -= 1;
            self.ack.due = AckDue::Now;
        }
        self.ack.delayed_ack.stop();
    }

    /// The application has taken data: is it worth a segment of its own to say so?
    ///
    /// As Linux: an acknowledgement that was delayed leaves when more than one segment waits for
    /// it, or when the application has taken all there was of a pushed piece and does not answer;
    /// a new window is told when it is at least twice what the peer knows of.
    pub(crate) fn on_data_taken(&mut self, path: &Path, rtt: &RttEstimator) {
        if !path.state().is_synchronized() || self.fin.is_some() {
            return;
        }
        if self.ack.due == AckDue::Delayed {
            let unacked = self.rcv_nxt().since(self.acked);
            let drained = self.queue.queued() == 0
                && (self.ack.pushed == 2 || (self.ack.pushed == 1 && !self.ack.interactive));
            if unacked > u32::from(self.mss) || drained {
                self.ack.due = AckDue::Now;
                return;
            }
        }
        self.offer_window(path, rtt);
    }

    /// Whether there is a window that is worth a segment of its own.
    pub(crate) fn offer_window(&mut self, path: &Path, rtt: &RttEstimator) {
        let known = self.recv_window();
        if known <= self.window_limit(path, rtt) / 2 {
            let offer = self.window_to_offer(path, rtt);
            if offer > 0 && offer >= known.saturating_mul(2) {
                self.ack.due = AckDue::Now;
            }
        }
    }
}

impl AckState {
    /// How much an acknowledgement is wanted.
    #[inline]
    pub(crate) fn due(&self) -> AckDue {
        self.due
    }

    /// When an acknowledgement that was delayed leaves.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Instant {
        self.delayed_ack.get()
    }

    /// Whether a delayed acknowledgement has waited in vain; then it is due.
    #[inline]
    pub(crate) fn pop(&mut self, path: &Path, rtt: &RttEstimator, now: Instant) -> bool {
        let popped = self.delayed_ack.pop(now);
        if popped && self.due == AckDue::Delayed {
            self.on_ack_waited(path, rtt);
        }
        popped
    }

    #[inline]
    pub(crate) fn stop(&mut self) {
        self.delayed_ack.stop();
    }

    /// A challenge that was due leaves, or not. An acknowledgement that was delayed leaves with it, or
    /// has its timer still.
    pub(crate) fn settle_challenge(&mut self, answers: bool) {
        self.due = match answers {
            true => AckDue::Now,
            false if self.delayed_ack.is_set() => AckDue::Delayed,
            false => AckDue::No,
        };
    }

    pub(crate) fn challenge_after(&self) -> Instant {
        self.challenge_after
    }

    pub(crate) fn set_challenge_after(&mut self, at: Instant) {
        self.challenge_after = at;
    }

    /// The application answers what it gets, or does not.
    pub(crate) fn set_interactive(&mut self, interactive: bool) {
        self.interactive = interactive;
    }

    /// See [`Connection::set_quick_ack`](crate::Connection::set_quick_ack).
    pub(crate) fn set_quick_ack(&mut self, path: &Path, quick: bool) {
        self.interactive = !quick;
        if quick {
            self.quicken(path.config().quick_acks);
            if self.due == AckDue::Delayed {
                self.at_once();
            }
        }
    }

    pub(crate) fn delay(&mut self, path: &Path, rtt: &RttEstimator, now: Instant) {
        if self.due == AckDue::No {
            self.due = AckDue::Delayed;
            self.delayed_ack.set(now + self.ack_timeout(path, rtt));
        }
    }

    /// How long an acknowledgement waits: about as long as the peer takes between two segments, so
    /// that one does for both; not longer than a round trip.
    fn ack_timeout(&self, path: &Path, rtt: &RttEstimator) -> Duration {
        let least = path.config().delayed_ack;
        let timeout = Duration::from_millis(u64::from(self.timeout_ms)).max(least);
        let waits = self.interactive || self.pushed > 0;
        let most = if waits { MAX_DELAYED_ACK } else { 2 * MAX_DELAYED_ACK };
        let round_trip = rtt.srtt().map_or(most, |srtt| srtt.max(least));
        timeout.min(most).min(round_trip.max(least)).min(MAX_DELAYED_ACK.max(least))
    }

    /// An acknowledgement has waited in vain. In an exchange of questions and answers none came: it
    /// is over. Otherwise the peer is slower than was thought.
    pub(crate) fn on_ack_waited(&mut self, path: &Path, rtt: &RttEstimator) {
        let least = path.least_ack_timeout();
        self.timeout_ms = if self.interactive {
            least
        } else {
            let rto = u16::try_from(rtt.rto().as_millis()).unwrap_or(u16::MAX);
            self.timeout_ms.saturating_mul(2).min(rto).max(least)
        };
        self.interactive = false;
        self.due = AckDue::Now;
    }

    /// The next few acknowledgements leave without delay.
    pub(crate) fn quicken(&mut self, acks: u8) {
        self.quick = self.quick.max(acks);
    }

    /// An acknowledgement is due at once.
    #[inline]
    pub(crate) fn at_once(&mut self) {
        self.due = AckDue::Now;
    }

    /// An acknowledgement is due for a segment beyond a gap, or for one that came twice.
    ///
    /// > RFC 5681 section 3.2: A TCP receiver SHOULD send an immediate duplicate ACK when an
    /// > out-of-order segment arrives.
    pub(crate) fn duplicate(&mut self, path: &Path) {
        self.quicken(path.config().quick_acks);
        self.interactive = false;
        if self.due == AckDue::Now && !path.has_sack() {
            self.duplicates = (self.duplicates + 1).min(MAX_DUPLICATE_ACKS_OWED);
        }
        self.due = AckDue::Now;
    }

    /// An answer is due to a segment that makes no sense, unless one has just been sent.
    ///
    /// RFC 5961 section 7 asks for such a throttle.
    pub(crate) fn challenge(&mut self, path: &Path, now: Instant) {
        if now >= self.challenge_after {
            self.challenge_after = now + path.config().challenge_interval;
            self.due = self.due.max(AckDue::Challenge);
        }
    }
}
