//! The next segment of new data: how many bytes, in how long a super-frame, and when they wait (Nagle).
//! `connection/output.rs` asks, and adds the header.

use pagewire_mem::Instant;

use crate::header::Flags;
use crate::limits::{DEFAULT_MSS, MIN_SEND_MSS, SUPER_FRAME_SEGMENTS};
use crate::options::TcpOptions;
use crate::outbound::loss::CaState;
use crate::outbound::rtt::DEFER_WITHIN;
use crate::outbound::{OutFlags, Outbound, Outgoing, Transfer};
use crate::path::Path;
use crate::seq::Seq;

/// Bytes of a super-frame beyond a millisecond's worth; halved per half millisecond of round trip.
const LONGEST_SUPER: u64 = 65_536;

/// Microseconds, as a power of two, of the shortest round trip that halve a super-frame.
const MIN_RTT_SHIFT: u32 = 9;

impl Outbound {
    /// A segment that was sent before.
    pub(crate) fn cut_again(&mut self, start: Seq, len: u32, mss: u32) -> Option<Outgoing> {
        self.transfer.suspect_option(start);
        let data_end = self.queue.end();
        let data = data_end.saturating_since(start).min(len);
        let (payload, taken) = self.queue.slice(start, data);
        let mut flags = Flags::ACK;
        let mut end = start + taken;
        if taken > 0 && self.is_pushed(end, taken, mss) {
            flags |= Flags::PSH;
        }
        if end == data_end && taken < len {
            flags |= Flags::FIN;
            end += 1;
        }
        if taken > 0 {
            self.transfer.rare().bytes_retransmitted += u64::from(taken);
        }
        if start == end {
            debug_assert!(false, "nothing to send again at {start}");
            return None;
        }
        Some(Outgoing { start, end, flags, payload, len: taken, mss })
    }

    /// Slices of the send queue, up to `len` bytes never sent, and the FIN if it follows.
    pub(crate) fn cut_new(&mut self, path: &Path, len: u32, mss: u32) -> Option<Outgoing> {
        let start = self.transfer.snd.nxt;
        let data_end = self.queue.end();
        let fin = self.flags.contains(OutFlags::FIN_QUEUED) && start.le(data_end);
        let (payload, taken) = self.queue.slice(start, len);

        let mut flags = Flags::ACK;
        let mut end = start + taken;
        let allowed = self.transfer.send_edge().saturating_since(start);
        let flush = self.flags.contains(OutFlags::FLUSH_DUE);
        // As in Linux, PSH is set on a segment that runs out of fragments, ends a record or is sent
        // by a timer, and on a super-segment after half of the peer's window without PSH.
        let far = end.saturating_since(self.push_sent) > self.transfer.snd.max_window / 2
            && self.left_of_super_segment(
                data_end.saturating_since(start),
                self.transfer.super_segment_len(path, self.transfer.send_mss(path)),
            ) == taken;
        if taken > 0 && (taken < len || flush || far || self.is_pushed(end, taken, mss)) {
            flags |= Flags::PSH;
            if far || end == self.pushed {
                self.push_sent = end;
            }
        }
        if end == data_end && fin && (taken < allowed || flush) {
            flags |= Flags::FIN;
            end += 1;
        }
        if end == start {
            return None;
        }
        if taken % mss != 0 {
            self.transfer.flight.small_end = end;
        }
        Some(Outgoing { start, end, flags, payload, len: taken, mss })
    }

    pub(crate) fn on_sent(&mut self, path: &Path, now: Instant, start: Seq, end: Seq, mss: u32) {
        let first = self.transfer.flight.is_empty();
        if self.transfer.packets_in_flight() == 0 {
            self.transfer.congestion.on_transmit_start(now, self.transfer.sent_at);
        }
        let before = self.transfer.flight.packets;
        self.transfer.flight.push(start, end, now, mss, end.gt(self.queue.end()));
        self.transfer.snd.nxt = end;
        let packets = self.transfer.flight.packets - before;
        self.transfer.note_reduced_send(packets);
        self.transfer
            .validate_cwnd(self.transfer.packets_in_flight() >= self.transfer.congestion.cwnd());
        self.transfer.start_retransmit_timer(path, now, first);
        self.persist.stop();
        self.persist_backoff = 0;
        self.flags.remove(OutFlags::FLUSH_DUE);
        self.transfer.sent_at = now;
    }

    /// How many of the `unsent` bytes leave in the next segment; `Some(0)` is a FIN alone.
    pub(crate) fn plan(
        &self,
        path: &Path,
        now: Instant,
        unsent: u32,
        fin: bool,
        mss: u32,
        super_len: u32,
    ) -> Option<u32> {
        let flush = self.flags.contains(OutFlags::FLUSH_DUE);
        let allowed = self.transfer.send_edge().saturating_since(self.transfer.snd.nxt);
        if unsent == 0 {
            // As Linux: the last FIN does not wait for the congestion window.
            return (allowed > 0 || flush).then_some(0);
        }
        let usable = self.transfer.cwnd_room(mss).min(allowed);
        let full = self.paced_payload(path, mss);
        let left = self.left_of_super_segment(unsent, super_len);
        let wanted = left.min(full);
        // > RFC 9293 section 3.8.6.2.1: Send data: (1) if a maximum-sized segment can be sent, i.e.,
        // > if: min(D,U) >= Eff.snd.MSS; (2) or if the data is pushed and all queued data can be
        // > sent now [...] (4) or if the override timeout occurs.
        let len = if usable >= wanted {
            wanted
        } else if flush && usable > 0 {
            usable.min(mss)
        } else {
            usable - usable % mss
        };
        if len == 0
            || (left > mss && self.waits_for_more(path, now, left, left < unsent, full, mss))
        {
            return None;
        }
        // > RFC 9293 section 3.7.4: If there is unacknowledged data (i.e., SND.NXT > SND.UNA), then
        // > the sending TCP endpoint buffers all user data (regardless of the PSH bit) until the
        // > outstanding data has been acknowledged or until the TCP endpoint can send a full-sized
        // > segment
        let partial = len % mss;
        let held = len == unsent && partial > 0 && !fin && !flush && self.holds_back_small();
        if held && !(len > partial && self.small_rides_along(path)) {
            return (len > partial).then_some(len - partial);
        }
        Some(len)
    }

    /// Whether a segment that is not full leaves with full ones: in memory all are one frame.
    fn small_rides_along(&self, path: &Path) -> bool {
        path.link.stays_in_memory()
            && self.transfer.rtt.is_near()
            && !self.flags.intersects(OutFlags::CORK | OutFlags::MORE)
            && !self.sends_urgent()
    }

    /// Nagle's algorithm in Minshall's variant, as in Linux: waits for small segments only.
    #[inline]
    pub(crate) fn holds_back_small(&self) -> bool {
        // Equality, because the end never lies before `flush_to`, and 2 GiB later no order holds.
        if self.queue.end() == self.flush_to || self.sends_urgent() {
            return false;
        }
        if self.flags.intersects(OutFlags::CORK | OutFlags::MORE) {
            return true;
        }
        // Both bounds are checked, because a number of long ago may seem to be ahead.
        let small = self.transfer.flight.small_end;
        !self.flags.contains(OutFlags::NODELAY)
            && small.gt(self.transfer.snd.una)
            && small.le(self.transfer.snd.nxt)
    }

    /// Whether PSH is set on a segment: it ends a write, or is a super-frame, as in Linux.
    #[inline]
    fn is_pushed(&self, end: Seq, taken: u32, mss: u32) -> bool {
        let syn_data_end = self.transfer.rare.as_ref().and_then(|r| r.syn_data_end);
        taken > mss
            || end == self.pushed
            || syn_data_end == Some(end)
            || self.queue.begins_segment(end)
    }

    /// Whether more than a segment waits for the next acknowledgement, to become a longer
    /// super-frame. As in Linux: if that is due within half a round trip and a millisecond, data
    /// was sent in the last millisecond, and the windows allow less than a third.
    fn waits_for_more(
        &self,
        path: &Path,
        now: Instant,
        waiting: u32,
        more: bool,
        full: u32,
        mss: u32,
    ) -> bool {
        let Some(head) = self.transfer.flight.first() else { return false };
        if self.transfer.loss.state >= CaState::Recovery
            || now.saturating_since(self.transfer.sent_at) >= DEFER_WITHIN
        {
            return false;
        }
        let allowed = self.transfer.send_edge().saturating_since(self.transfer.snd.nxt);
        let room = self.transfer.window_room(mss);
        let limit = room.min(allowed);
        let part = self.transfer.whole_window(mss).min(self.transfer.snd.window)
            / path.config().super_frame_divisor.max(1);
        if limit >= full || limit >= part || (more && limit >= waiting) {
            return false;
        }
        let srtt = self.transfer.rtt.srtt().unwrap_or_default();
        let expected = (head.at + srtt).saturating_since(now);
        if expected > DEFER_WITHIN.min(srtt / 2) {
            return false;
        }
        // A window limits it, or the application may add to it.
        limit <= waiting
            || !(self.flags.contains(OutFlags::FIN_QUEUED)
                || self.queue.begins_segment(self.queue.end()))
    }

    /// Payload of a super-frame: about a millisecond's, more on short paths (`tcp_tso_autosize`).
    fn paced_payload(&self, path: &Path, mss: u32) -> u32 {
        let longest = self.transfer.super_payload(path, mss);
        if self.sends_urgent() {
            return mss;
        }
        // Without super-frames there is no choice; in memory a burst does no harm.
        if longest <= mss || (path.link.stays_in_memory() && self.transfer.rtt.is_near()) {
            return longest;
        }
        let Some(srtt) = self.transfer.rtt.srtt() else { return longest };
        let nanos = (srtt.as_nanos() as u64).max(1);
        let window = u64::from(self.transfer.whole_window(mss).max(self.transfer.in_flight()));
        // Linux's pacing rate: twice the window each round trip in slow start.
        let slow_start = self.transfer.congestion.in_slow_start();
        let rate = if slow_start { window * 2 } else { window + window / 5 };
        let paced = rate.saturating_mul(1_000_000_000) / nanos / 1024;
        let shift = self.transfer.rtt.min().unwrap_or_default().as_micros() >> MIN_RTT_SHIFT;
        let near = if shift < 32 { LONGEST_SUPER >> shift } else { 0 };
        let bytes = paced.saturating_add(near).min(u64::from(longest)) as u32;
        let least = mss.saturating_mul(u32::from(path.config().min_super_segments.max(1)));
        (bytes - bytes % mss.max(1)).max(least).min(longest)
    }

    /// > RFC 9293 section 3.8.5: the urgent pointer [...] communicates the current value of the
    /// > urgent pointer as a positive offset from the sequence number in this segment
    ///
    /// The urgent pointer of a segment that begins at `seq`, if it fits, as in Linux.
    #[inline]
    pub(crate) fn urgent_pointer(&self, seq: Seq) -> Option<u16> {
        if !self.flags.contains(OutFlags::URGENT_OUT) {
            return None;
        }
        let up = self.transfer.rare.as_ref()?.urgent_out?;
        if !seq.lt(up) {
            return None;
        }
        match u16::try_from(up.since(seq)) {
            Ok(pointer) => Some(pointer),
            Err(_) if (seq + 0xffff).gt(self.transfer.snd.nxt) => Some(u16::MAX),
            Err(_) => None,
        }
    }

    /// Whether urgent data is unacknowledged: it is not held back, nor sent in super-frames.
    #[inline]
    pub(crate) fn sends_urgent(&self) -> bool {
        self.flags.contains(OutFlags::URGENT_OUT)
    }

    /// Forgets the urgent byte once it is acknowledged.
    #[inline]
    pub(crate) fn settle_urgent(&mut self) {
        if !self.flags.contains(OutFlags::URGENT_OUT) {
            return;
        }
        let una = self.transfer.snd.una;
        if self.transfer.rare.as_ref().and_then(|r| r.urgent_out).is_none_or(|up| up.le(una)) {
            self.transfer.rare().urgent_out = None;
            self.flags.remove(OutFlags::URGENT_OUT);
        }
    }
}

impl Transfer {
    /// > RFC 5681 section 4.1: a TCP SHOULD set cwnd to no more than RW before beginning
    /// > transmission if the TCP has not sent data in an interval exceeding the retransmission
    /// > timeout.
    pub(crate) fn restart_after_idle(&mut self, path: &Path, now: Instant) {
        // As Linux: not while the peer's window is closed.
        let shut = self.send_edge().le(self.snd.nxt);
        if !self.flight.is_empty() || shut || !path.config().slow_start_after_idle {
            return;
        }
        let (idle, rto) = (now.saturating_since(self.sent_at), self.rtt.rto());
        if idle > rto {
            self.congestion.on_restart_after_idle(idle, rto);
            self.sent_at = now;
        }
    }

    /// Payload that the congestion window allows now.
    #[inline]
    pub(crate) fn window_room(&self, mss: u32) -> u32 {
        self.congestion.cwnd().saturating_sub(self.packets_in_flight()).saturating_mul(mss)
    }

    /// Bytes of one super-frame that the congestion window allows: as Linux, at most half of it.
    #[inline]
    pub(crate) fn cwnd_room(&self, mss: u32) -> u32 {
        let (cwnd, in_flight) = (self.congestion.cwnd(), self.packets_in_flight());
        cwnd.saturating_sub(in_flight).min((cwnd / 2).max(1)).saturating_mul(mss)
    }

    /// Whether the congestion window holds data back.
    pub(crate) fn is_held_by_cwnd(&self, unsent: u32, mss: u32) -> bool {
        let allowed = self.send_edge().saturating_since(self.snd.nxt);
        unsent > 0
            && (self.packets_in_flight() >= self.congestion.cwnd()
                || self.cwnd_room(mss) < allowed.min(unsent))
    }

    /// Payload of the longest super-frame, in whole segments.
    #[inline]
    pub(crate) fn super_payload(&self, path: &Path, mss: u32) -> u32 {
        let max = path.link.max_super_payload;
        if max <= u32::from(path.link.mss) || self.forbids_super_frames() {
            return mss;
        }
        let max = max.min(mss.saturating_mul(SUPER_FRAME_SEGMENTS));
        (max - max % mss.max(1)).max(mss)
    }

    /// Payload of a full wire segment, with the options that are always there.
    #[inline]
    pub(crate) fn send_mss(&self, path: &Path) -> u32 {
        let options = u32::from(path.option_bytes()) + self.steady_ecn_bytes(path);
        self.base_mss(path).saturating_sub(options).max(1)
    }

    /// Payload of a full wire segment with these options.
    pub(crate) fn mss_beside(&self, path: &Path, options: &TcpOptions) -> u32 {
        self.base_mss(path).saturating_sub(options.len() as u32).max(1)
    }

    /// The congestion window in bytes.
    #[inline]
    fn whole_window(&self, mss: u32) -> u32 {
        self.congestion.cwnd().saturating_mul(mss)
    }

    /// Payload and options of a full wire segment.
    ///
    /// > RFC 9293 section 3.7.1: Eff.snd.MSS = min(SendMSS+20, MMS_S) - TCPhdrsize - IPoptionsize
    #[inline]
    fn base_mss(&self, path: &Path) -> u32 {
        let probed = self.mtu().map_or(u16::MAX, |search| search.cap);
        let mss = u32::from(path.path_mss().min(self.snd.peer_mss).min(probed));
        // As Linux: at most half of the largest window ever offered, so that full segments fill it.
        let window = self.snd.max_window;
        let bound = if window > u32::from(DEFAULT_MSS) { window / 2 } else { window };
        let bound = if window == 0 { mss } else { bound.max(u32::from(MIN_SEND_MSS)) };
        mss.min(bound).max(u32::from(MIN_SEND_MSS))
    }
}
