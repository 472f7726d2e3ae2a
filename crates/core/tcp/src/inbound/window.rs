//! The receive window, and when acknowledgements leave.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::config::Config;
use crate::inbound::ack::AckDue;
use crate::inbound::{InFlags, Inbound};
use crate::limits::{
    LEAST_WINDOW, MAX_RECV_BUFFER, MAX_WINDOW_SCALE, MIN_RECV_BUFFER, TIMESTAMPS_LEN,
};
use crate::outbound::rtt::RttEstimator;
use crate::path::Path;
use crate::seq::Seq;

/// The largest receive buffer within its limits.
fn largest(config: &Config) -> u32 {
    let max = config.recv_buffer.clamp(MIN_RECV_BUFFER, MAX_RECV_BUFFER);
    max.min(config.window_clamp.unwrap_or(max).max(MIN_RECV_BUFFER))
}

/// The least shift with which the largest buffer fits the window field.
pub(crate) fn scale_for(config: &Config) -> u8 {
    (largest(config).ilog2().saturating_sub(15) as u8).min(MAX_WINDOW_SCALE)
}

/// The window of a SYN, which is not scaled. As Linux: whole segments with `mss` bytes of payload.
pub(crate) fn initial(config: &Config, mss: u16) -> u32 {
    let space = largest(config).min(config.recv_buffer_initial.max(MIN_RECV_BUFFER));
    let mss = u32::from(mss.max(1));
    let whole = if space > mss { space - space % mss } else { space };
    whole.min(u32::from(u16::MAX))
}

/// The least window of a connection that holds nothing.
pub(crate) const fn least(mss: u32) -> u32 {
    LEAST_WINDOW * mss
}

impl Inbound {
    /// Whether the next segment has SACK blocks.
    #[inline]
    pub(crate) fn has_sack_blocks(&self, path: &Path) -> bool {
        path.sack_ok && (self.queue.has_gaps() || self.dsack().is_some())
    }

    /// RCV.WND: bytes of the announced window that the peer may still send.
    #[inline]
    pub(crate) fn recv_window(&self) -> u32 {
        self.edge.saturating_since(self.rcv_nxt())
    }

    /// Bytes of the window in the last segment, which may be smaller: see `RareInbound::shrunk`.
    #[inline]
    fn offered(&self) -> u32 {
        let edge = self.rare.as_ref().and_then(|rare| rare.shrunk).unwrap_or(self.edge);
        edge.saturating_since(self.rcv_nxt())
    }

    /// The window of our SYN, if memory allows. As in Linux, that of an answer leaves room for timestamps.
    pub(crate) fn first_window(&self, path: &Path) -> u32 {
        let stamps = !path.active && path.timestamps_ok;
        let options = if stamps { TIMESTAMPS_LEN } else { 0 };
        let mss = path.announced_mss().saturating_sub(options);
        initial(path.config(), mss).min(self.allowance.max(least(mss.into())))
    }

    /// The largest window with the present buffer, as far as the header can express it.
    pub(crate) fn window_limit(&self, path: &Path, rtt: &RttEstimator) -> u32 {
        let limit = self.buffer_limit(path);
        match path.forwards {
            true => limit.min(self.forward_limit(path, rtt)),
            false => limit,
        }
    }

    /// The largest window with the present buffer, without the limit of a forwarder.
    #[inline]
    fn buffer_limit(&self, path: &Path) -> u32 {
        // 0 closes the window: nothing is added to the announced one.
        if path.config().window_clamp == Some(0) {
            return 0;
        }
        let limit = self.recv_buffer(path).min(largest(path.config()));
        limit.min(u32::from(u16::MAX) << self.scale)
    }

    /// The used part of the buffer: queued bytes, or half of the memory that they pin, if more.
    #[inline]
    pub(crate) fn buffer_used(&self) -> u32 {
        let used = self.queue.buffered().max(self.queue.pinned() / 2);
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    /// The window that memory allows: the host's free memory, and the largest receive buffer less
    /// kept memory. As Linux under pressure, a connection that holds nothing gets a few segments.
    pub(crate) fn allowed(&self, path: &Path, mss: u32) -> u32 {
        let charged = self.queue.charge_with_held() + self.kept() as usize;
        let by_host = match u32::try_from(charged).unwrap_or(u32::MAX) {
            0 => self.allowance.max(least(mss)),
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
    /// As Linux: less than a segment, or than a sixteenth of the buffer, counts as 0.
    pub(crate) fn window_to_offer(&self, path: &Path, rtt: &RttEstimator) -> u32 {
        let open = self.recv_window();
        let capacity = self.window_limit(path, rtt);
        let free = capacity.saturating_sub(self.buffer_used());
        let mss = u32::from(self.mss).min(capacity).max(1);
        if path.config().shrink_window && self.scale > 0 {
            return self.shrinking_window(path, capacity, free, mss);
        }
        let small = free < mss || free < capacity >> 4;
        let free = free.min(self.ssthresh);
        // If less than a segment may be announced, all of it is one step: the window must open.
        let step = mss.min(self.ssthresh).max(1);
        let worth = if small {
            0
        } else if self.scale > 0 {
            free
        } else if open > free || open + step <= free {
            // Without a scale the header could express small steps: only whole segments.
            free - free % step
        } else {
            open
        };
        let allowed = self.allowed(path, mss);
        let worth = if allowed < mss { 0 } else { worth.min(allowed) };
        worth.max(open)
    }

    /// The window to announce where it may shrink: as in Linux a multiple of the scale's step, and 0 if
    /// less than a segment, than that step, or than a sixteenth of the buffer is free.
    #[cold]
    fn shrinking_window(&self, path: &Path, capacity: u32, free: u32, mss: u32) -> u32 {
        let step = 1u32 << self.scale;
        let free = free & !(step - 1);
        if free < capacity / 2 && (free < capacity >> 4 || free < mss || free < step) {
            return 0;
        }
        let allowed = self.allowed(path, mss);
        let free = free.min(self.ssthresh.next_multiple_of(step));
        if allowed < mss { 0 } else { free.min(allowed & !(step - 1)) }
    }

    /// The window field of a SYN, also sent again. `first`: the peer's first number, or 0.
    pub(crate) fn announce_first_window(&mut self, path: &Path, first: Seq) -> u16 {
        let window = self.first_window(path);
        self.edge = self.edge.max(first + window);
        window as u16
    }

    /// The window field of the next segment; moves the right edge accordingly.
    pub(crate) fn announce_window(&mut self, path: &Path, rtt: &RttEstimator) -> u16 {
        let scale = self.scale;
        if self.flags.contains(InFlags::OUT_OF_MEMORY) {
            return self.announce_nothing();
        }
        let granule = 1u64 << scale;
        let offer = u64::from(self.window_to_offer(path, rtt));
        // Rounding down would shrink the offered window. Rounding up exceeds the buffer a little:
        // allowed once, but not repeatedly to a peer that sends byte by byte.
        let limit = u64::from(self.buffer_limit(path)) + granule - 1;
        // A power of two: avoids the division.
        let up = (offer + granule - 1) & !(granule - 1);
        let bytes = if up + u64::from(self.buffer_used()) <= limit { up } else { offer };
        let units = (bytes >> scale).min(u64::from(u16::MAX)) as u16;
        let edge = self.rcv_nxt() + (u32::from(units) << scale);
        if path.config().shrink_window || self.rare.as_ref().is_some_and(|r| r.shrunk.is_some()) {
            self.note_shrunk(edge);
        }
        self.edge = self.edge.max(edge);
        units
    }

    /// The window of 0 that tells the peer to wait: data was refused. As in Linux the next segment
    /// announces what it may, and the edge stays.
    #[cold]
    fn announce_nothing(&mut self) -> u16 {
        self.flags.remove(InFlags::OUT_OF_MEMORY);
        self.note_shrunk(self.rcv_nxt());
        0
    }

    /// New data has arrived in order: `payload` bytes, `pushed` if with PSH.
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
        let quick = self.ack.quick > 0 && !self.ack.pingpong;
        if unacked > u32::from(self.mss) || quick {
            self.ack.due = AckDue::Now;
        } else {
            self.ack.delay(path, rtt, now);
        }
    }

    /// Data leaves. If it answers data just received, acknowledgements leave with answers.
    #[inline]
    pub(crate) fn note_answer(&mut self, now: Instant) {
        let soon = Duration::from_millis(u64::from(self.ack.ato_ms));
        if now.saturating_since(self.data_at) < soon {
            self.ack.pingpong = true;
        }
    }

    /// Adapts the estimates to a segment: full payload, and the delay of acknowledgements.
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
        let (ms, timeout) = (silence.as_millis(), u128::from(self.ack.ato_ms));
        // The peer starts, or restarts, with a small window: quick acknowledgements open it.
        if timeout == 0 || silence > rtt.rto() {
            self.ack.enter_quickack(path.config().quick_acks);
        }
        self.ack.ato_ms = if timeout == 0 {
            least.max(1)
        } else if ms <= u128::from(least / 2) {
            self.ack.ato_ms / 2 + least / 2
        } else if ms < timeout {
            let rto = rtt.rto().as_millis();
            u16::try_from((timeout / 2 + ms).min(rto)).unwrap_or(u16::MAX)
        } else {
            self.ack.ato_ms
        };
        self.data_at = now;
    }

    /// `left..right` arrived twice: the next acknowledgement reports it.
    ///
    /// > RFC 2883 section 4: (1) A D-SACK block is only used to report a duplicate contiguous
    /// > sequence of data received by the receiver in the most recent packet. [...] (3) The left edge
    /// > of the D-SACK block specifies the first sequence number of the duplicate contiguous sequence,
    /// > and the right edge of the D-SACK block specifies the sequence number immediately following the
    /// > last sequence in the duplicate contiguous sequence.
    ///
    /// A range that continues a waiting one extends it; otherwise the first counts, as in Linux.
    pub(crate) fn note_dsack(&mut self, path: &Path, left: Seq, right: Seq) {
        if !path.config().dsack || !path.sack_ok || !left.lt(right) {
            return;
        }
        match &mut self.rare().dsack {
            Some((_, end)) if *end == left => *end = right,
            Some(_) => {}
            dsack => *dsack = Some((left, right)),
        }
    }

    pub(crate) fn on_ack_sent(&mut self) {
        self.acked = self.rcv_nxt();
        self.forget_dsack();
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

    /// The application has read data: decides whether an acknowledgement leaves now.
    ///
    /// As Linux: a delayed acknowledgement leaves if it is for more than one segment, or if the
    /// application has read all of a short segment with PSH and does not answer. A window update
    /// leaves if the window has at least doubled.
    pub(crate) fn on_data_taken(&mut self, path: &Path, rtt: &RttEstimator) {
        if !path.state().is_synchronized() || self.fin().is_some() {
            return;
        }
        if self.ack.due == AckDue::Delayed {
            let unacked = self.rcv_nxt().since(self.acked);
            let drained = self.queue.queued() == 0
                && (self.ack.pushed == 2 || (self.ack.pushed == 1 && !self.ack.pingpong));
            if unacked > u32::from(self.mss) || drained {
                self.ack.due = AckDue::Now;
                return;
            }
        }
        self.offer_window(path, rtt);
    }

    /// Has a window update sent if the window has at least doubled.
    pub(crate) fn offer_window(&mut self, path: &Path, rtt: &RttEstimator) {
        let known = self.offered();
        if known <= self.window_limit(path, rtt) / 2 {
            let offer = self.window_to_offer(path, rtt);
            if offer > 0 && offer >= known.saturating_mul(2) {
                self.ack.due = AckDue::Now;
            }
        }
    }

    pub(crate) fn challenge_after(&self) -> Instant {
        self.rare.as_ref().map_or(Instant::default(), |rare| rare.challenge_after)
    }

    pub(crate) fn set_challenge_after(&mut self, at: Instant) {
        if at != self.challenge_after() {
            self.rare().challenge_after = at;
        }
    }

    /// The largest window of a forwarding connection whose sender is in the same machine.
    ///
    /// More than the next send buffer would only wait here. It is a segment less than that buffer:
    /// a sender that the window limits, not its own buffer, coalesces its data to longer segments.
    /// The limit is at least two segments: a sender that knows of larger windows waits until a segment
    /// fits (RFC 9293 section 3.8.6.2.1), which would take its timer.
    pub(crate) fn forward_limit(&self, path: &Path, rtt: &RttEstimator) -> u32 {
        if !path.link.stays_in_memory() || !rtt.is_near() {
            return u32::MAX;
        }
        let (buffer, segment) = (path.config().send_buffer, u32::from(path.announced_mss()));
        buffer.saturating_sub(segment).max(2 * segment).max(MIN_RECV_BUFFER)
    }

    /// `edge` is announced: remembers it if it lies before what was announced once.
    #[cold]
    fn note_shrunk(&mut self, edge: Seq) {
        let shrunk = edge.lt(self.edge).then_some(edge);
        if shrunk.is_some() || self.rare.is_some() {
            self.rare().shrunk = shrunk;
        }
    }
}
