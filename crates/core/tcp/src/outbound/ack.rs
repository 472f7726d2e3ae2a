//! The acknowledgement field of a segment (RFC 9293 section 3.10.7.4, fifth step, from ESTABLISHED
//! on) and its effect on the sending side: acknowledged data leaves the send queue.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::error::DropReason;
use crate::header::{Flags, TcpHeader};
use crate::life::state::State;
use crate::outbound::ecn::EcnFlags;
use crate::outbound::flight::{Delivered, Mark};
use crate::outbound::loss::CaState;
use crate::outbound::recovery::{AckFlags, AckInfo, RexmitMode};
use crate::outbound::{Outbound, Transfer};
use crate::path::Path;
use crate::seq::Seq;

impl Outbound {
    /// Processes the acknowledgement, window and SACK blocks of a segment that passed the checks
    /// before, and releases what is acknowledged (`SendQueue::ack_to`, step S7). `len` counts the
    /// segment's sequence numbers. Returns whether it emptied the flight.
    pub(crate) fn take_ack(
        &mut self,
        path: &Path,
        now: Instant,
        header: &TcpHeader,
        len: u32,
    ) -> Result<bool, DropReason> {
        let snd = &self.transfer.snd;
        // > RFC 9293 section 3.10.7.4: If the ACK acks something not yet sent (SEG.ACK >
        // > SND.NXT), then send an ACK, drop the segment, and return.
        if header.ack.gt(snd.nxt) {
            return Err(DropReason::AckUnsent);
        }
        if header.ack.ge(snd.una) {
            return Ok(self.take_acceptable(path, now, header, len));
        }
        // > RFC 5961 section 5.2: The ACK value is considered acceptable only if it is in the
        // > range of ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT). All incoming segments
        // > whose ACK value doesn't satisfy the above condition MUST be discarded and an ACK
        // > sent back.
        if snd.una.since(header.ack) > snd.max_window {
            return Err(DropReason::AckTooOld);
        }
        // > RFC 9293 section 3.10.7.4: If the ACK is a duplicate (SEG.ACK =< SND.UNA), it can
        // > be ignored.
        //
        // The SACK blocks may still be new.
        if path.sack_ok && !header.options.sack.is_empty() {
            self.transfer.take_old_sacks(path, now, header, self.queue.end());
        }
        Ok(false)
    }

    /// Processes an acknowledgement in `una..=nxt`.
    #[inline]
    fn take_acceptable(&mut self, path: &Path, now: Instant, header: &TcpHeader, len: u32) -> bool {
        // > RFC 9293 section 3.8.6.1: As long as the receiving TCP peer continues to send
        // > acknowledgments in response to the probe segments, the sending TCP peer MUST allow the
        // > connection to stay open
        //
        // Any answer shows that the peer is there. If it closed its window with data in flight,
        // retransmissions of that data are the probes.
        let probing = self.transfer.snd.window == 0 && !path.orphan;
        if self.transfer.flight.is_empty() || probing {
            self.transfer.loss.retries = 0;
        }
        let advanced = header.ack.since(self.transfer.snd.una);
        let mut ack = self.transfer.ack_info(path, now, header, self.queue.end());
        ack.flags.set(AckFlags::UNA_ADVANCED, advanced > 0);
        ack.flags.set(AckFlags::DATA, len > 0);
        ack.flags.set(AckFlags::WIN_UPDATE, self.transfer.take_window(header, advanced));
        ack.flags.set(AckFlags::ECE, self.transfer.echoes_mark(header));
        if advanced > 0 {
            self.transfer.loss.retries = 0;
            self.transfer.snd.una = header.ack;
            self.transfer.take_mtu_answer(path);
            self.settle_urgent();
        }
        if self.transfer.flight.is_empty() {
            self.transfer.note_accurate_option(header);
            // Nothing is in flight; a duplicate may still be reported.
            self.transfer.take_late_dsack(path, header, &mut ack);
            return false;
        }
        let mut delivered = self.transfer.delivered(&ack);
        let prior_high = self.transfer.flight.high_sacked();
        if path.sack_ok && !header.options.sack.is_empty() {
            self.transfer.take_sacks(path, header, &mut ack, &mut delivered);
            self.transfer.learn_reordering(path, &mut delivered);
        }
        let acked_bytes = self.queue.ack_to(header.ack);
        self.transfer.bytes_acked += u64::from(acked_bytes);
        self.transfer.take_cumulative(path, header.ack, prior_high, &mut ack, &mut delivered);
        if self.transfer.loss.ecn.contains(EcnFlags::ACCURATE) {
            self.transfer.take_ace_feedback(path, header, &mut ack);
        }
        self.transfer.react(path, &mut ack);
        self.transfer.flight.is_empty()
    }
}

impl Transfer {
    /// Notes whether the congestion window limits sending (`limited`), for a round trip.
    #[inline]
    pub(crate) fn validate_cwnd(&mut self, limited: bool) {
        let packets = self.flight.packets;
        let more = !self.loss.cwnd_limited && packets > self.loss.max_packets;
        if self.snd.una.ge(self.loss.usage_end) || limited || more {
            self.loss.cwnd_limited = limited;
            self.loss.max_packets = packets;
            self.loss.usage_end = self.snd.nxt;
        }
    }

    #[inline]
    fn ack_info(&self, path: &Path, now: Instant, header: &TcpHeader, queue_end: Seq) -> AckInfo {
        let echo = header.options.timestamps.map(|(_, echo)| echo).filter(|&echo| echo != 0);
        let echo_ms = echo.filter(|_| path.timestamps_ok);
        AckInfo {
            now,
            prior_una: self.snd.una,
            queue_end,
            echo_ms: echo_ms.map(|echo| echo.wrapping_sub(path.timestamps.offset)),
            ..AckInfo::default()
        }
    }

    #[inline]
    fn delivered(&self, ack: &AckInfo) -> Delivered {
        let min_rtt = self.rtt.min().unwrap_or_default();
        Delivered { echo_ms: ack.echo_ms, ..Delivered::new(ack.now, min_rtt, self.loss.high_seq) }
    }

    /// Learns about reordering from SACK blocks.
    fn learn_reordering(&mut self, path: &Path, delivered: &mut Delivered) {
        let late = delivered.late.take();
        if self.loss.state != CaState::Loss || self.has_undo_marker() {
            let high = self.flight.high_sacked();
            self.check_reordering(path, late, high);
        }
    }

    /// Removes segments before `una` from the flight, and measures the round trip. `prior_high`: the
    /// highest number that was acknowledged selectively before.
    fn take_cumulative(
        &mut self,
        path: &Path,
        una: Seq,
        prior_high: Option<Seq>,
        ack: &mut AckInfo,
        delivered: &mut Delivered,
    ) {
        let of_syn = ack.prior_una == self.snd.iss;
        let (newest, rack_rtt) = (delivered.newest, delivered.rack_rtt);
        self.flight.ack_to(una, delivered);
        if of_syn {
            // A SYN measures the handshake, not the data that left with it.
            (delivered.newest, delivered.rack_rtt) = (newest, rack_rtt);
        }
        if delivered.ignored > 0 {
            let losses = &mut self.rare().losses;
            losses.sacks_ignored = losses.sacks_ignored.saturating_add(delivered.ignored);
        }
        let acked = delivered.acked > 0;
        if acked && !path.sack_ok {
            // Without SACK it is unknown which transmission arrived.
            delivered.original &= !delivered.ambiguous;
            delivered.packets = self.remove_reno_sacked(delivered.acked);
        }
        ack.delivered += delivered.packets;
        ack.flags.set(AckFlags::DATA_ACKED, acked);
        ack.flags.set(AckFlags::DATA_SACKED, delivered.sacked);
        ack.flags.set(AckFlags::ORIG_SACK_ACKED, delivered.original);
        let first = self.flight.first();
        ack.flags
            .set(AckFlags::SACK_RENEGING, first.is_some_and(|r| r.mark.contains(Mark::SACKED)));
        let head_at = first.map(|r| r.at);
        self.rack_advance(path, delivered);
        let measured = self.measure(ack, delivered, of_syn);
        if acked {
            ack.flags.insert(AckFlags::SET_XMIT_TIMER);
            if path.sack_ok {
                // A hole was filled without a retransmission: that is reordering.
                self.check_reordering(path, delivered.late, prior_high);
            }
        } else if let (true, Some((first, _)), Some(head)) =
            (measured, delivered.sacked_at, head_at)
            && first < head
        {
            // As Linux: measured on a segment older than the head's last transmission.
            ack.flags.insert(AckFlags::SET_XMIT_TIMER);
        }
    }

    /// Updates loss recovery, the timer and the congestion window.
    fn react(&mut self, path: &Path, ack: &mut AckInfo) {
        let echo = ack.flags.contains(AckFlags::ECE);
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.resend = RexmitMode::No;
            self.adapt_reordering_window(ack);
            self.take_probe_answer(ack);
        }
        // Whether or not data in a SYN was accepted, the transfer begins with the initial window. Other
        // data of the SYN is sent again without a congestion response (`fast_open/`).
        let opening = path.state() == State::SynSent;
        if !opening && self.is_dubious(ack.flags) {
            let plain = AckFlags::UNA_ADVANCED | AckFlags::NOT_DUP | AckFlags::DSACK;
            ack.duplicates = u32::from(!ack.flags.intersects(plain));
            self.on_dubious_ack(path, ack);
        }
        if ack.flags.contains(AckFlags::SET_XMIT_TIMER)
            && !self.schedule_loss_probe(path, ack.now, true)
        {
            self.rearm_rto(ack.now);
        }
        let marked = match (echo, ack.marked) {
            (false, _) => 0,
            // A classic echo stands for all that arrived under it.
            (true, 0) => ack.delivered,
            (true, marked) => marked,
        };
        self.count_delivered(ack.delivered, marked);
        if opening {
            return;
        }
        if self.loss.is_reducing() {
            self.reduce_cwnd(ack);
        } else if ack.prior_una != self.snd.iss && self.may_grow(path, ack.flags) {
            if self.is_cwnd_limited() {
                self.congestion.on_ack(ack.now, ack.delivered);
            } else {
                self.congestion.on_application_limited(ack.now);
            }
        }
    }

    /// Processes the SACK blocks of an acknowledgement older than `una`. `end`: of the send queue.
    #[cold]
    fn take_old_sacks(&mut self, path: &Path, now: Instant, header: &TcpHeader, end: Seq) {
        let mut ack = self.ack_info(path, now, header, end);
        let mut delivered = self.delivered(&ack);
        self.take_sacks(path, header, &mut ack, &mut delivered);
        self.learn_reordering(path, &mut delivered);
        ack.delivered += delivered.packets;
        ack.flags.set(AckFlags::DATA_SACKED, delivered.sacked);
        ack.flags.set(AckFlags::ORIG_SACK_ACKED, delivered.original);
        self.rack_advance(path, &delivered);
        self.on_dubious_ack(path, &mut ack);
        self.count_delivered(ack.delivered, 0);
    }

    /// Processes a duplicate reported when nothing is in flight: a reduction may be undone.
    fn take_late_dsack(&mut self, path: &Path, header: &TcpHeader, ack: &mut AckInfo) {
        if self.recovery.is_none() {
            return;
        }
        if path.sack_ok && !header.options.sack.is_empty() {
            let mut delivered = self.delivered(ack);
            self.take_sacks(path, header, ack, &mut delivered);
        }
        if ack.flags.contains(AckFlags::DSACK) {
            self.adapt_reordering_window(ack);
            self.on_dubious_ack(path, ack);
            self.count_delivered(ack.delivered, 0);
        }
        self.take_probe_answer(ack);
    }

    /// > RFC 7661, RFC 9438 section 5.8: CUBIC does not increase its congestion window if a flow is
    /// > application limited.
    ///
    /// As Linux: in slow start the window may lead to twice what was in flight.
    #[inline]
    fn is_cwnd_limited(&self) -> bool {
        self.loss.cwnd_limited
            || (self.congestion.in_slow_start()
                && self.congestion.cwnd() < 2 * self.loss.max_packets)
    }

    /// Measures the round trip. Returns whether there was a sample.
    ///
    /// > RFC 6298 section 3: RTT samples MUST NOT be made using segments that were retransmitted
    ///
    /// > RFC 7323 section 4.1: a TSecr value received in a segment MAY be used to update the
    /// > averaged RTT measurement only if the segment advances the left edge of the send window
    ///
    /// Our own records are finer than timestamps, but only timestamps tell transmissions apart.
    fn measure(&mut self, ack: &AckInfo, delivered: &Delivered, of_syn: bool) -> bool {
        let now = ack.now;
        let own = delivered.acked_at.filter(|_| !delivered.ambiguous).or(delivered.sacked_at);
        let (oldest, newest) = match (own, ack.echo_ms) {
            (Some((oldest, newest)), _) => {
                (now.saturating_since(oldest), now.saturating_since(newest))
            }
            (None, Some(echo)) if delivered.acked > 0 => {
                let ms = (now.as_millis() as u32).wrapping_sub(echo);
                if ms >= 1 << 22 {
                    return false;
                }
                let rtt = Duration::from_millis(u64::from(ms.max(1)));
                (rtt, rtt)
            }
            _ => return false,
        };
        self.rtt.on_sample(oldest, newest);
        if !of_syn {
            self.congestion.on_rtt(now, newest, self.snd.una, self.snd.nxt);
        }
        true
    }

    /// Processes the window. Returns whether it changed.
    ///
    /// > RFC 9293 section 3.10.7.4: If SND.UNA =< SEG.ACK =< SND.NXT, the send window should be
    /// > updated. If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND
    /// > <- SEG.WND, set SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK.
    ///
    /// As Linux: a new acknowledgement counts whatever its sequence number.
    fn take_window(&mut self, header: &TcpHeader, advanced: u32) -> bool {
        let (seq, snd) = (header.seq, &mut self.snd);
        let fresh = snd.wl1.lt(seq) || (snd.wl1 == seq && snd.wl2.le(header.ack)) || advanced > 0;
        if !fresh {
            return false;
        }
        (snd.wl1, snd.wl2) = (seq, header.ack);
        // > RFC 7323 section 2.2: The window field in a segment where the SYN bit is set (i.e., a
        // > <SYN> or <SYN,ACK>) MUST NOT be scaled.
        let scale = if header.flags.contains(Flags::SYN) { 0 } else { snd.scale };
        let window = u32::from(header.window) << scale;
        if window == snd.window {
            return false;
        }
        snd.window = window;
        if window > snd.max_window {
            snd.max_window = window;
        }
        true
    }
}
