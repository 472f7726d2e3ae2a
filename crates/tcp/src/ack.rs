//! Byte path, step S7: the acknowledgement field of a segment (RFC 9293 section 3.10.7.4, fifth
//! step, from ESTABLISHED on), and everything that follows from it on the sending side.

use core::time::Duration;

use pagewire_mem::Instant;

use crate::connection::{ConnFlags, Connection};
use crate::error::DropReason;
use crate::flight::Delivered;
use crate::header::{Flags, TcpHeader};
use crate::recovery::Heard;
use crate::timers::Timer;

/// Where an acknowledgement number lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckRange {
    /// Older than anything that could still be under way.
    TooOld,
    /// Before `una`: overtaken by a later one.
    Old,
    /// In `una..=nxt`.
    Acceptable,
    /// Beyond `nxt`.
    Unsent,
}

impl Connection {
    /// Takes in the acknowledgement, window and SACK blocks of a segment that passed the checks
    /// before. `len` is how many sequence numbers the segment itself takes up.
    pub(crate) fn take_ack(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        len: u32,
    ) -> Result<(), DropReason> {
        match self.ack_range(header) {
            // > RFC 9293 section 3.10.7.4: If the ACK acks something not yet sent (SEG.ACK >
            // > SND.NXT), then send an ACK, drop the segment, and return.
            AckRange::Unsent => {
                self.challenge_ack(now);
                return Err(DropReason::AckUnsent);
            }
            // > RFC 5961 section 5.2: The ACK value is considered acceptable only if it is in the
            // > range of ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT). All incoming segments
            // > whose ACK value doesn't satisfy the above condition MUST be discarded and an ACK
            // > sent back.
            AckRange::TooOld => {
                self.challenge_ack(now);
                return Err(DropReason::AckTooOld);
            }
            // > RFC 9293 section 3.10.7.4: If the ACK is a duplicate (SEG.ACK =< SND.UNA), it can
            // > be ignored.
            //
            // Its SACK blocks may still be news.
            AckRange::Old => {
                if !header.options.sack.is_empty() {
                    self.take_selective(now, header, 0, false);
                }
                return Ok(());
            }
            AckRange::Acceptable => {}
        }
        // > RFC 9293 section 3.8.6.1: As long as the receiving TCP peer continues to send
        // > acknowledgments in response to the probe segments, the sending TCP peer MUST allow the
        // > connection to stay open
        //
        // Whatever the peer says, it is there. If it took its window back with data under way,
        // that data is what it is probed with.
        let probing = self.snd.window == 0 && !self.flags.contains(ConnFlags::ORPHAN);
        if self.flight.is_empty() || probing {
            self.retries = 0;
        }
        let advanced = header.ack.since(self.snd.una);
        let window_changed = self.take_window(header, advanced);
        if advanced == 0 {
            // > RFC 5681 section 2: An acknowledgment is considered a "duplicate" [...] when (a)
            // > the receiver of the ACK has outstanding data, (b) the incoming acknowledgment
            // > carries no data, (c) the SYN and FIN bits are both off, (d) the acknowledgment
            // > number is equal to the greatest acknowledgment received on the given connection
            // > [...] and (e) the advertised window in the incoming acknowledgment equals the
            // > advertised window in the last incoming acknowledgment.
            let duplicate = !self.flight.is_empty() && len == 0 && !window_changed;
            if duplicate || !header.options.sack.is_empty() {
                self.take_selective(now, header, 0, duplicate);
            }
            return Ok(());
        }
        let prior_flight = self.in_flight();
        let prior_fast = self.in_fast_recovery();
        let delivered = self.flight.ack_to(header.ack);
        let acked = self.queue.ack_to(header.ack);
        self.stats.bytes_acked += u64::from(acked);
        self.snd.una = header.ack;
        self.retries = 0;
        self.measure(now, header, &delivered);

        if self.recovery.is_some() || !header.options.sack.is_empty() {
            self.take_selective(now, header, advanced, false);
        }
        if !prior_fast && !self.in_fast_recovery() && acked > 0 {
            let limited = self.congestion.is_limiting(self.snd.max_flight);
            self.congestion.on_ack(now, acked, prior_flight, &self.rtt, limited);
        }
        if header.ack.ge(self.snd.round_end) {
            self.snd.round_end = self.snd.nxt;
            self.snd.max_flight = prior_flight;
        }
        // > RFC 6298 section 5.2: When all outstanding data has been acknowledged, turn off the
        // > retransmission timer. 5.3: When an ACK is received that acknowledges new data, restart
        // > the retransmission timer so that it will expire after RTO seconds
        if self.flight.is_empty() {
            self.timers.stop(Timer::Retransmit);
            self.consider_shrinking(now);
        } else {
            self.timers.set(Timer::Retransmit, now + self.rtt.rto());
        }
        Ok(())
    }

    fn ack_range(&self, header: &TcpHeader) -> AckRange {
        let (ack, una) = (header.ack, self.snd.una);
        if ack.gt(self.snd.nxt) {
            AckRange::Unsent
        } else if ack.ge(una) {
            AckRange::Acceptable
        } else if una.since(ack) <= self.snd.max_window {
            AckRange::Old
        } else {
            AckRange::TooOld
        }
    }

    /// The part that only matters when something is, or was, out of order.
    #[cold]
    fn take_selective(&mut self, now: Instant, header: &TcpHeader, advanced: u32, duplicate: bool) {
        let mut delivered = Delivered::default();
        if self.flags.contains(ConnFlags::SACK) && !header.options.sack.is_empty() {
            self.take_sacks(&header.options.sack, &mut delivered);
            self.stats.sacks_ignored = self.stats.sacks_ignored.saturating_add(delivered.ignored);
            // A cumulative acknowledgement has been measured already.
            if advanced == 0 {
                self.measure_at(now, &delivered);
            }
        }
        self.judge(now, Heard { advanced, sacked: delivered.bytes, duplicate });
    }

    /// Measures the round trip (RFC 6298 section 3, RFC 7323 section 4).
    fn measure(&mut self, now: Instant, header: &TcpHeader, delivered: &Delivered) {
        if self.measure_at(now, delivered) {
            return;
        }
        // > RFC 7323 section 4.1: a TSecr value received in a segment MAY be used to update the
        // > averaged RTT measurement only if the segment advances the left edge of the send window
        //
        // Coarser than our own records, but it tells apart the transmissions of one segment.
        if let (true, Some((_, echo))) = (self.has_timestamps(), header.options.timestamps)
            && echo != 0
        {
            let ms = self.ts.value(now).wrapping_sub(echo);
            if ms < 1 << 22 {
                self.rtt.on_sample(Duration::from_millis(u64::from(ms.max(1))));
            }
        }
    }

    /// > RFC 6298 section 3: RTT samples MUST NOT be made using segments that were retransmitted
    fn measure_at(&mut self, now: Instant, delivered: &Delivered) -> bool {
        match delivered.sent_at {
            Some(at) if !delivered.ambiguous => {
                self.rtt.on_sample(now.saturating_since(at));
                true
            }
            _ => false,
        }
    }

    /// Takes in the window; whether it changed.
    ///
    /// > RFC 9293 section 3.10.7.4: If SND.UNA =< SEG.ACK =< SND.NXT, the send window should be
    /// > updated. If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)), set SND.WND
    /// > <- SEG.WND, set SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK.
    ///
    /// As Linux: an acknowledgement of something new counts whatever its sequence number.
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
            let mss = self.send_mss();
            self.congestion.set_mss(mss);
        }
        true
    }
}
