//! Byte path, step S3: which segment leaves next, and with what in it.
//!
//! `poll_transmit` asks in this order: a reset, the handshake, what is lost, what is new, what
//! may be lost, a probe, a bare acknowledgement. Every segment that leaves carries the latest
//! acknowledgement, so the later questions are often answered by the earlier ones.

use core::time::Duration;

use pagewire_mem::{FragVec, Instant};

use crate::connection::{Connection, Env};
use crate::header::{Flags, TcpHeader};
use crate::inbound::{AckDue, window};
use crate::life::Reset;
use crate::life::state::State;
use crate::limits::{MAX_SUPER_SEGMENTS, MIN_SEND_MSS};
use crate::options::{SackBlocks, TcpOptions};
use crate::outbound::OutFlags;
use crate::outbound::loss::CaState;
use crate::outbound::mtu_probe::ProbeStep;
use crate::path::PathFlags;
use crate::segment::SegmentOut;
use crate::seq::Seq;

/// A super-frame waits for company only if it comes this soon, and only this soon after the last.
pub(crate) const DEFER_WITHIN: Duration = Duration::from_millis(1);

/// Bytes that a super-frame may have beside those that leave in a millisecond; halved for each half
/// millisecond of the shortest round trip.
const LONGEST_SUPER: u64 = 65_536;

/// Microseconds, as a power of two, of the shortest round trip that halve a super-frame.
const MIN_RTT_SHIFT: u32 = 9;

/// Bytes that the timestamps option takes with its fill.
const TIMESTAMPS_LEN: u32 = 12;

impl Connection {
    /// The next segment to be sent, until `None`; then look at
    /// [`poll_timeout`](Self::poll_timeout).
    pub fn poll_transmit(&mut self, env: &mut Env<'_>) -> Option<SegmentOut> {
        let segment = self.next_segment(env);
        match &segment {
            Some(segment) => self.count_out(segment),
            None => {
                self.check_room();
                self.note_limit(env.now);
            }
        }
        segment
    }

    /// After a segment has left: whether [`poll_transmit`](Self::poll_transmit) would be in vain, for
    /// nothing is left or the rest waits to become a full segment. It need not be asked then.
    pub fn ends_burst(&mut self, now: Instant) -> bool {
        let quiet = self.inbound.ack.due == AckDue::No && self.out.recovery.is_none();
        if !quiet {
            return false;
        }
        let unsent = self.unsent();
        let ends = if unsent == 0 { self.has_sent_all() } else { self.is_collecting() };
        if !ends {
            return false;
        }
        if unsent > 0 && self.is_held_by_cwnd(unsent, self.send_mss()) {
            self.validate_cwnd(true);
        }
        self.check_room();
        self.note_limit(now);
        true
    }

    fn next_segment(&mut self, env: &mut Env<'_>) -> Option<SegmentOut> {
        let now = env.now;
        self.note_allowance(env);
        if let Some(reset) = self.life.reset.take() {
            return Some(self.build_reset(now, reset));
        }
        if matches!(self.path.state, State::SynSent | State::SynReceived)
            && let Some(syn) = self.poll_handshake(now)
        {
            return Some(syn);
        }
        if self.sends_before_handshake()
            && let Some(segment) = self.poll_new(now)
        {
            return Some(segment);
        }
        if self.tells_syn_first() && self.may_acknowledge() {
            return Some(self.build_segment(now, self.out.snd.nxt, Flags::ACK, FragVec::new()));
        }
        if self.path.state.may_transmit() && !self.out.flags.contains(OutFlags::REFUSED) {
            if self.take_probe_due()
                && let Some(probe) = self.poll_tail_probe(now)
            {
                return Some(probe);
            }
            if self.sends_new_first() {
                if let Some(segment) = self.poll_new(now) {
                    return Some(segment);
                }
                self.new_data_tried();
            }
            let segment = match self.poll_lost(now) {
                Some(again) => Some(again),
                None => match self.probe_mtu(now) {
                    ProbeStep::No => self.poll_new(now),
                    ProbeStep::Wait => None,
                    ProbeStep::Send(probe) => Some(probe),
                },
            };
            if segment.is_some() {
                return segment;
            }
            self.consider_probing(now);
        }
        if self.out.flags.contains(OutFlags::PROBE_DUE) {
            self.out.flags.remove(OutFlags::PROBE_DUE);
            return Some(self.build_probe(now));
        }
        if self.inbound.ack.due == AckDue::Challenge {
            // An acknowledgement that was delayed leaves with it, or has its timer still.
            self.inbound.ack.due = match env.shared.challenges.take(now) {
                true => AckDue::Now,
                false if self.inbound.delayed_ack.is_set() => AckDue::Delayed,
                false => AckDue::No,
            };
        }
        if self.inbound.ack.due == AckDue::Now && self.may_acknowledge() {
            return Some(self.build_segment(now, self.out.snd.nxt, Flags::ACK, FragVec::new()));
        }
        None
    }

    fn may_acknowledge(&self) -> bool {
        self.path.state.is_synchronized() || self.path.state == State::SynReceived
    }

    // ---- what leaves ----

    /// The SYN, or the SYN that also acknowledges.
    fn poll_handshake(&mut self, now: Instant) -> Option<SegmentOut> {
        let (iss, first) = (self.out.snd.iss, self.out.snd.iss + 1);
        let (mut option, mut payload) = (None, FragVec::new());
        if self.out.snd.nxt == iss {
            if self.is_deferred() && self.out.queue.len() == 0 {
                return None;
            }
            self.out.flight.push(iss, first, now, 1, false);
            self.out.snd.nxt = first;
            (option, payload) = self.begin_fast_open(now);
        } else {
            let again = self.out.flight.next_lost(iss).filter(|again| again.start == iss)?;
            self.out.flight.on_retransmit(again.start, again.end, now, 1);
            self.out.stats.retransmits += 1;
        }
        self.out.retransmit.set_once(now + self.out.rtt.rto());
        let sent = self.out.stats.retransmits;
        let flags = match self.path.state {
            State::SynSent => Flags::SYN | self.ecn_of_syn(false, sent),
            _ => Flags::SYN | Flags::ACK | self.ecn_of_syn(true, sent),
        };
        let mut syn = self.build_segment(now, iss, flags, payload);
        syn.header.options.fast_open = option;
        Some(syn)
    }

    /// What was lost and is to be sent again.
    fn poll_lost(&mut self, now: Instant) -> Option<SegmentOut> {
        if !self.out.flight.has_lost() {
            return None;
        }
        let mss = self.mss_now(now);
        let (start, len) = self.next_retransmission(mss)?;
        self.send_again(now, start, len, mss)
    }

    /// One segment, new or the last again, whatever the congestion window says: somebody must
    /// answer (RFC 8985 section 7.3).
    fn poll_tail_probe(&mut self, now: Instant) -> Option<SegmentOut> {
        let mss = self.mss_now(now);
        let allowed = self.send_edge().saturating_since(self.out.snd.nxt);
        let fresh = self.unsent().min(mss);
        let probe = if fresh > 0 && allowed >= fresh {
            self.send_new(now, fresh, mss).map(|segment| (segment, None))
        } else {
            self.probe_again().and_then(|(start, len)| {
                let (segment, end) = self.build_again(now, start, len, mss)?;
                Some((segment, Some((start, end))))
            })
        };
        let Some((segment, again)) = probe else {
            self.rearm_timeout(now);
            return None;
        };
        self.on_probe_sent(now, again);
        Some(segment)
    }

    fn send_again(&mut self, now: Instant, start: Seq, len: u32, mss: u32) -> Option<SegmentOut> {
        let (segment, end) = self.build_again(now, start, len, mss)?;
        self.on_retransmitted(now, start, end, mss);
        Some(segment)
    }

    /// A segment that was sent before, and its end.
    fn build_again(
        &mut self,
        now: Instant,
        start: Seq,
        len: u32,
        mss: u32,
    ) -> Option<(SegmentOut, Seq)> {
        self.suspect_option(start);
        let data_end = self.out.queue.end();
        let data = data_end.saturating_since(start).min(len);
        let (payload, taken) = self.out.queue.slice(start, data);
        let mut flags = Flags::ACK;
        let mut end = start + taken;
        if taken > 0 && self.is_pushed(end, taken, mss) {
            flags |= Flags::PSH;
        }
        if end == data_end && taken < len {
            flags |= Flags::FIN;
            end += 1;
        }
        self.note_sent_again(taken);
        if start == end {
            debug_assert!(false, "nothing to send again at {start}");
            return None;
        }
        Some((self.build_payload(now, start, flags, payload, taken, mss), end))
    }

    /// What was never sent: data, and the FIN behind it.
    fn poll_new(&mut self, now: Instant) -> Option<SegmentOut> {
        let start = self.out.snd.nxt;
        let data_end = self.out.queue.end();
        let unsent = data_end.saturating_since(start);
        let fin = self.out.flags.contains(OutFlags::FIN_QUEUED) && start.le(data_end);
        if unsent == 0 && !fin {
            return None;
        }
        self.restart_after_idle(now);
        let most = self.send_mss();
        let piece = self.piece(most);
        if self.gathers(unsent, most, piece) {
            return None;
        }
        let mss = if self.has_more_options() { self.mss_now(now) } else { most };
        let Some(len) = self.plan(now, unsent, fin, mss, piece) else {
            if self.is_held_by_cwnd(unsent, mss) {
                self.validate_cwnd(true);
            }
            return None;
        };
        self.send_new(now, len, mss)
    }

    /// Sends `len` bytes that were never sent, and the FIN if it follows.
    fn send_new(&mut self, now: Instant, len: u32, mss: u32) -> Option<SegmentOut> {
        let start = self.out.snd.nxt;
        let data_end = self.out.queue.end();
        let fin = self.out.flags.contains(OutFlags::FIN_QUEUED) && start.le(data_end);
        let (payload, taken) = self.out.queue.slice(start, len);

        let mut flags = Flags::ACK;
        let mut end = start + taken;
        let allowed = self.send_edge().saturating_since(start);
        let flush = self.out.flags.contains(OutFlags::FLUSH_DUE);
        // What is out of fragments before it is full is pushed, as in Linux, and what ends a record,
        // what a timer sends, and a piece once more than half of the peer's window was sent without.
        let far = end.saturating_since(self.out.snd.push_sent) > self.out.snd.max_window / 2
            && self.left_of_piece(data_end.saturating_since(start), self.piece(self.send_mss()))
                == taken;
        if taken > 0 && (taken < len || flush || far || self.is_pushed(end, taken, mss)) {
            flags |= Flags::PSH;
            if far || end == self.out.snd.pushed {
                self.out.snd.push_sent = end;
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
            self.out.snd.small_end = end;
        }
        let segment = self.build_payload(now, start, flags, payload, taken, mss);
        self.on_sent(now, start, end, mss);
        Some(segment)
    }

    pub(crate) fn on_sent(&mut self, now: Instant, start: Seq, end: Seq, mss: u32) {
        let first = self.out.flight.is_empty();
        if self.packets_in_flight() == 0 {
            self.out.congestion.on_transmit_start(now, self.out.sent_at);
        }
        let before = self.out.flight.packets();
        self.out.flight.push(start, end, now, mss, end.gt(self.out.queue.end()));
        self.out.snd.nxt = end;
        self.note_reduced_send(self.out.flight.packets() - before);
        self.validate_cwnd(self.packets_in_flight() >= self.out.congestion.cwnd());
        self.start_retransmit_timer(now, first);
        self.out.persist.stop();
        self.out.persist_backoff = 0;
        self.out.flags.remove(OutFlags::FLUSH_DUE);
        self.out.sent_at = now;
        // An answer to what has just arrived: the acknowledgements of this application's peer can
        // ride on answers from now on.
        let soon = Duration::from_millis(u64::from(self.inbound.ack.timeout_ms));
        if now.saturating_since(self.inbound.data_at) < soon {
            self.inbound.ack.interactive = true;
        }
    }

    /// > RFC 5681 section 4.1: a TCP SHOULD set cwnd to no more than RW before beginning
    /// > transmission if the TCP has not sent data in an interval exceeding the retransmission
    /// > timeout.
    fn restart_after_idle(&mut self, now: Instant) {
        // As Linux: not while the peer's window is what nothing can be sent for.
        let shut = self.send_edge().le(self.out.snd.nxt);
        if !self.out.flight.is_empty() || shut || !self.path.config.slow_start_after_idle {
            return;
        }
        let (idle, rto) = (now.saturating_since(self.out.sent_at), self.out.rtt.rto());
        if idle > rto {
            self.out.congestion.on_restart_after_idle(idle, rto);
            self.out.sent_at = now;
        }
    }

    // ---- how much of it ----

    /// How many of the `unsent` bytes leave in the next segment; `Some(0)` is a FIN alone.
    fn plan(&self, now: Instant, unsent: u32, fin: bool, mss: u32, piece: u32) -> Option<u32> {
        let flush = self.out.flags.contains(OutFlags::FLUSH_DUE);
        let allowed = self.send_edge().saturating_since(self.out.snd.nxt);
        if unsent == 0 {
            // As Linux: the last FIN does not wait for the congestion window.
            return (allowed > 0 || flush).then_some(0);
        }
        let usable = self.cwnd_room(mss).min(allowed);
        let full = self.paced_payload(mss);
        let piece = self.left_of_piece(unsent, piece);
        let wanted = piece.min(full);
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
        if len == 0 || (piece > mss && self.waits_for_more(now, piece, piece < unsent, full, mss)) {
            return None;
        }
        // > RFC 9293 section 3.7.4: If there is unacknowledged data (i.e., SND.NXT > SND.UNA), then
        // > the sending TCP endpoint buffers all user data (regardless of the PSH bit) until the
        // > outstanding data has been acknowledged or until the TCP endpoint can send a full-sized
        // > segment
        let partial = len % mss;
        let held = len == unsent && partial > 0 && !fin && !flush && self.holds_back_small();
        if held && !(len > partial && self.small_rides_along()) {
            return (len > partial).then_some(len - partial);
        }
        Some(len)
    }

    /// Whether a segment that is not full leaves with the full ones before it. To a peer in the same
    /// machine they are one frame, which costs the same with it: Nagle's algorithm has nothing to save,
    /// and would make it a frame of its own later. Who corks means it.
    fn small_rides_along(&self) -> bool {
        self.path.link.stays_in_memory()
            && self.is_near()
            && !self.out.flags.intersects(OutFlags::CORK | OutFlags::MORE)
            && !self.sends_urgent()
    }

    /// Whether a segment that is not full waits. Nagle's algorithm in Minshall's variant, as in
    /// Linux: it waits for small segments only, not for full ones.
    pub(crate) fn holds_back_small(&self) -> bool {
        // The queue never ends before what is to be flushed; and 2 GiB later "before" means nothing.
        if self.out.queue.end() == self.out.snd.flush_to || self.sends_urgent() {
            return false;
        }
        if self.out.flags.intersects(OutFlags::CORK | OutFlags::MORE) {
            return true;
        }
        // One that is under way ends in `una..=nxt`: one of long ago may seem to be still to come.
        let small = self.out.snd.small_end;
        !self.out.flags.contains(OutFlags::NODELAY)
            && small.gt(self.out.snd.una)
            && small.le(self.out.snd.nxt)
    }

    /// Whether a segment that ends at `end` and has `taken` bytes is pushed: it ends a write, or is a
    /// super-frame, which Linux pushes so that receivers put its segments together again at once.
    fn is_pushed(&self, end: Seq, taken: u32, mss: u32) -> bool {
        let syn_data_end = self.out.rare.as_ref().and_then(|r| r.syn_data_end);
        taken > mss
            || end == self.out.snd.pushed
            || syn_data_end == Some(end)
            || self.out.queue.begins_segment(end)
    }

    /// Whether more than a segment waits for the next acknowledgement to become a longer super-frame,
    /// as in Linux: if one is expected within half a round trip and a millisecond, if data was sent in
    /// the last millisecond, and if the windows let less go than a third of them.
    fn waits_for_more(&self, now: Instant, waiting: u32, more: bool, full: u32, mss: u32) -> bool {
        let Some(head) = self.out.flight.first() else { return false };
        if self.out.loss.state >= CaState::Recovery
            || now.saturating_since(self.out.sent_at) >= DEFER_WITHIN
        {
            return false;
        }
        let allowed = self.send_edge().saturating_since(self.out.snd.nxt);
        let room = self.window_room(mss);
        let limit = room.min(allowed);
        let part = self.whole_window(mss).min(self.out.snd.window)
            / self.path.config.super_frame_divisor.max(1);
        if limit >= full || limit >= part || (more && limit >= waiting) {
            return false;
        }
        let srtt = self.out.rtt.srtt().unwrap_or_default();
        let expected = (head.at + srtt).saturating_since(now);
        if expected > DEFER_WITHIN.min(srtt / 2) {
            return false;
        }
        // Held back by a window, or by the application that may add to it.
        limit <= waiting
            || !(self.out.flags.contains(OutFlags::FIN_QUEUED)
                || self.out.queue.begins_segment(self.out.queue.end()))
    }

    /// Payload that the congestion window lets go.
    pub(crate) fn window_room(&self, mss: u32) -> u32 {
        self.out.congestion.cwnd().saturating_sub(self.packets_in_flight()).saturating_mul(mss)
    }

    /// The congestion window in bytes.
    fn whole_window(&self, mss: u32) -> u32 {
        self.out.congestion.cwnd().saturating_mul(mss)
    }

    /// Payload of a super-frame: about as much as leaves in a millisecond, and more on short paths,
    /// so that a slow path is not sent bursts (Linux's `tcp_tso_autosize`).
    fn paced_payload(&self, mss: u32) -> u32 {
        let longest = self.super_payload(mss);
        if self.sends_urgent() {
            return mss;
        }
        if longest <= mss {
            // No super-frames: nothing to choose.
            return longest;
        }
        if self.path.link.stays_in_memory() && self.is_near() {
            // Nothing between the two can be sent a burst too many.
            return longest;
        }
        let Some(srtt) = self.out.rtt.srtt() else { return longest };
        let nanos = (srtt.as_nanos() as u64).max(1);
        let window = u64::from(self.whole_window(mss).max(self.in_flight()));
        // Twice the window each round trip while it grows, as much as Linux paces.
        let slow_start = self.out.congestion.in_slow_start();
        let rate = if slow_start { window * 2 } else { window + window / 5 };
        let paced = rate.saturating_mul(1_000_000_000) / nanos / 1024;
        let shift = self.out.rtt.min().unwrap_or_default().as_micros() >> MIN_RTT_SHIFT;
        let near = if shift < 32 { LONGEST_SUPER >> shift } else { 0 };
        let bytes = paced.saturating_add(near).min(u64::from(longest)) as u32;
        let least = mss.saturating_mul(u32::from(self.path.config.min_super_segments.max(1)));
        (bytes - bytes % mss.max(1)).max(least).min(longest)
    }

    /// Bytes that the congestion window has room for in one super-frame. As Linux: at most half of
    /// the window, so that there are two on the way.
    pub(crate) fn cwnd_room(&self, mss: u32) -> u32 {
        let (cwnd, in_flight) = (self.out.congestion.cwnd(), self.packets_in_flight());
        cwnd.saturating_sub(in_flight).min((cwnd / 2).max(1)).saturating_mul(mss)
    }

    /// Whether it is the congestion window for which data waits.
    fn is_held_by_cwnd(&self, unsent: u32, mss: u32) -> bool {
        let allowed = self.send_edge().saturating_since(self.out.snd.nxt);
        unsent > 0
            && (self.packets_in_flight() >= self.out.congestion.cwnd()
                || self.cwnd_room(mss) < allowed.min(unsent))
    }

    /// Nothing is under way and something cannot leave: only a timer can get things going again.
    fn consider_probing(&mut self, now: Instant) {
        let waiting = self.out.flight.is_empty()
            && (self.unsent() > 0
                || self.out.flags.contains(OutFlags::FIN_QUEUED)
                    && self.out.snd.nxt.le(self.out.queue.end()));
        if waiting {
            self.out.persist.set_once(now + self.persist_interval());
        } else {
            self.out.persist.stop();
        }
    }

    /// Payload of the longest super-frame, in whole segments.
    pub(crate) fn super_payload(&self, mss: u32) -> u32 {
        let max = self.path.link.max_super_payload;
        if max <= u32::from(self.path.link.mss) || self.forbids_super_frames() {
            return mss;
        }
        let max = max.min(mss.saturating_mul(MAX_SUPER_SEGMENTS));
        (max - max % mss.max(1)).max(mss)
    }

    /// Payload and options of a full wire segment.
    ///
    /// > RFC 9293 section 3.7.1: Eff.snd.MSS = min(SendMSS+20, MMS_S) - TCPhdrsize - IPoptionsize
    fn base_mss(&self) -> u32 {
        let mss = u32::from(self.path_mss().min(self.out.snd.peer_mss).min(self.probed_mss()));
        // As Linux: at most half of the largest window that the peer ever offered, or the window
        // could never be filled with full segments.
        let window = self.out.snd.max_window;
        let bound =
            if window > u32::from(crate::limits::DEFAULT_MSS) { window / 2 } else { window };
        let bound = if window == 0 { mss } else { bound.max(u32::from(MIN_SEND_MSS)) };
        mss.min(bound).max(u32::from(MIN_SEND_MSS))
    }

    /// Payload of a full wire segment, with the options that are always there.
    pub(crate) fn send_mss(&self) -> u32 {
        let options = if self.has_timestamps() { TIMESTAMPS_LEN } else { 0 };
        self.base_mss().saturating_sub(options).max(1)
    }

    /// Payload of a full wire segment that left now.
    fn mss_now(&self, now: Instant) -> u32 {
        if self.has_more_options() {
            return self.mss_beside(&self.options(now, Flags::ACK, true));
        }
        self.send_mss()
    }

    /// Payload of a full wire segment with these options.
    fn mss_beside(&self, options: &TcpOptions) -> u32 {
        self.base_mss().saturating_sub(options.len() as u32).max(1)
    }

    // ---- headers ----

    pub(crate) fn build_payload(
        &mut self,
        now: Instant,
        seq: Seq,
        flags: Flags,
        payload: FragVec,
        len: u32,
        mss: u32,
    ) -> SegmentOut {
        let mut segment = self.build_segment(now, seq, flags, payload);
        if len > mss {
            segment.gso_size = Some(mss as u16);
        }
        segment
    }

    /// A segment with the latest acknowledgement and window.
    fn build_segment(
        &mut self,
        now: Instant,
        seq: Seq,
        flags: Flags,
        payload: FragVec,
    ) -> SegmentOut {
        let options = self.options(now, flags, !payload.is_empty());
        let urgent = self.urgent_pointer(seq);
        let mut flags = if urgent.is_some() { flags | Flags::URG } else { flags };
        let mut ecn = 0;
        if flags.contains(Flags::SYN) {
            self.note_told(&options);
        } else {
            let fresh = !payload.is_empty() && seq.ge(self.out.snd.nxt);
            let pure = payload.is_empty() && !flags.contains(Flags::FIN);
            let (more, bits) = self.ecn_of_segment(fresh, pure, &options);
            flags |= more;
            ecn = bits;
        }
        let (ack, window) = if flags.contains(Flags::ACK) {
            let window = if flags.contains(Flags::SYN) {
                self.announce_first_window(self.rcv_nxt())
            } else {
                self.announce_window()
            };
            self.on_ack_sent();
            (self.rcv_nxt(), window)
        } else if flags.contains(Flags::SYN) {
            (Seq(0), self.announce_first_window(Seq(0)))
        } else {
            (Seq(0), window::initial(&self.path.config) as u16)
        };
        let header = TcpHeader {
            src_port: self.path.ports.local,
            dst_port: self.path.ports.remote,
            seq,
            ack,
            flags,
            window,
            urgent: urgent.unwrap_or(0),
            options,
        };
        SegmentOut { header, payload, gso_size: None, ecn }
    }

    /// The options of a segment; `data`: it carries some.
    fn options(&self, now: Instant, flags: Flags, data: bool) -> TcpOptions {
        let mut options = TcpOptions::default();
        if self.has_timestamps() {
            // > RFC 7323 section 3.2: If the ACK bit is not set in the outgoing TCP header, the sender
            // > of that segment SHOULD set the TSecr field to zero.
            let echo = if flags.contains(Flags::ACK) { self.path.ts.recent } else { 0 };
            options.timestamps = Some((self.path.ts.value(now), echo));
        }
        if flags.contains(Flags::SYN) {
            options.mss = Some(self.announced_mss());
            options.sack_permitted = self.path.flags.contains(PathFlags::SACK);
            options.window_scale = self.offers_scale().then_some(self.inbound.scale);
        } else if self.tells_blocks() {
            let mut blocks = SackBlocks::new();
            // > RFC 2883 section 4: (2) [...] the D-SACK block [...] is in the first SACK block
            if let Some((left, right)) = self.inbound.twice() {
                blocks.push(left, right);
            }
            self.inbound.queue.sack_blocks(&mut blocks);
            // Beside timestamps there is room for three.
            let room = if options.timestamps.is_some() { 3 } else { SackBlocks::MAX };
            options.sack = blocks.iter().take(room).collect();
        }
        if self.tells_bytes(data) {
            self.add_accurate_option(&mut options);
        }
        options
    }

    /// Whether the next data segment has options that others have not.
    fn has_more_options(&self) -> bool {
        self.tells_blocks() || self.tells_bytes(true)
    }

    /// Whether the next segment has SACK blocks.
    pub(crate) fn tells_blocks(&self) -> bool {
        self.path.flags.contains(PathFlags::SACK)
            && (self.inbound.queue.has_gaps() || self.inbound.twice().is_some())
    }

    /// > RFC 7323 section 2.2: If a Window Scale option was received in the initial <SYN> segment,
    /// > then this option MAY be sent in the <SYN,ACK> segment.
    fn offers_scale(&self) -> bool {
        self.path.config.window_scaling
            && (self.path.state == State::SynSent || self.path.flags.contains(PathFlags::SCALING))
    }

    /// An old sequence number and no data: it is not acceptable, so the peer answers with an
    /// acknowledgement (RFC 9293 section 3.8.4: SEG.SEQ = SND.NXT-1). As in Linux it asks about the
    /// window too.
    fn build_probe(&mut self, now: Instant) -> SegmentOut {
        self.build_segment(now, self.out.snd.una - 1, Flags::ACK, FragVec::new())
    }

    fn build_reset(&mut self, now: Instant, reset: Reset) -> SegmentOut {
        let flags = if reset.ack { Flags::RST | Flags::ACK } else { Flags::RST };
        let mut options = TcpOptions::default();
        if reset.ack {
            options = self.options(now, Flags::ACK, false);
            options.sack = SackBlocks::new();
            options.accurate_ecn = None;
        }
        let header = TcpHeader {
            src_port: self.path.ports.local,
            dst_port: self.path.ports.remote,
            seq: reset.seq,
            ack: if reset.ack { self.rcv_nxt() } else { Seq(0) },
            flags,
            window: 0,
            urgent: 0,
            options,
        };
        SegmentOut { header, payload: FragVec::new(), gso_size: None, ecn: 0 }
    }
}
