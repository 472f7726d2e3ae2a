//! Loss detection and recovery (RFC 5681, 6582, 6675, 8985).
//!
//! ```text
//!            segments out of order          a segment is considered lost
//!     Open ------------------------> Disorder --------------------------> Recovery
//!      ^ \__ mark echoed __> Cwr ____/   |                                 |   |
//!      |                      |          |  timer                          |   | timer
//!      |                      |          +----------> Loss <---------------|---+
//!      +--- `high_seq` acknowledged, or the recovery turns out to be spurious ----+
//! ```
//!
//! `flight` has the records of transmissions. This file has the states, as in Linux; its parts are
//! [`sack`] (selective acknowledgements, and their emulation without SACK), [`rack`] (loss by
//! time), [`prr`] (the window during recovery), [`undo`] (spurious recoveries, F-RTO), [`resend`]
//! (retransmissions) and [`timer`] (timeouts and tail loss probes).

mod prr;
mod rack;
mod resend;
mod sack;
mod timer;
mod undo;

use core::time::Duration;

use pagewire_mem::Instant;

use crate::options::SackBlocks;
use crate::outbound::Transfer;
use crate::outbound::flight::{Mark, Resent};
use crate::outbound::loss::CaState;
use crate::path::Path;
use crate::seq::Seq;

bitflags::bitflags! {
    /// Flags of an acknowledgement (Linux's `FLAG_*` of `tcp_input.c`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct AckFlags: u16 {
        /// `snd.una` has moved (FLAG_SND_UNA_ADVANCED).
        const UNA_ADVANCED = 1 << 0;
        /// The segment takes up sequence numbers itself.
        const DATA = 1 << 1;
        /// The segment changed the window.
        const WIN_UPDATE = 1 << 2;
        /// A whole segment, or more, was acknowledged cumulatively.
        const DATA_ACKED = 1 << 3;
        /// Something was acknowledged selectively.
        const DATA_SACKED = 1 << 4;
        /// A congestion mark was echoed.
        const ECE = 1 << 5;
        /// A duplicate of a retransmission was reported (RFC 2883).
        const DSACK = 1 << 6;
        /// The duplicate is the last tail loss probe.
        const DSACK_TLP = 1 << 7;
        /// A segment arrived that was sent once, before this state began.
        const ORIG_SACK_ACKED = 1 << 8;
        /// A retransmission was lost.
        const LOST_RETRANS = 1 << 9;
        /// The retransmission timer starts anew.
        const SET_XMIT_TIMER = 1 << 10;
        /// The first segment not acknowledged was acknowledged selectively before.
        const SACK_RENEGING = 1 << 11;
        /// Any of these: it is no duplicate acknowledgement.
        const NOT_DUP = Self::DATA.bits() | Self::WIN_UPDATE.bits() | Self::DATA_ACKED.bits();
        /// Any of these: loss recovery processes it.
        const CA_ALERT = Self::DATA_SACKED.bits() | Self::ECE.bits() | Self::DSACK.bits();
    }
}

/// The facts about an acknowledgement that loss recovery uses (Linux's `flag` and its like).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckInfo {
    pub(crate) now: Instant,
    /// `snd.una` before the acknowledgement.
    pub(crate) prior_una: Seq,
    /// The end of the send queue.
    pub(crate) queue_end: Seq,
    pub(crate) flags: AckFlags,
    /// Wire segments delivered.
    pub(crate) delivered: u32,
    /// Wire segments newly considered lost.
    pub(crate) lost: u32,
    /// Wire segments reported as marked (RFC 9768).
    pub(crate) marked: u32,
    /// Number of duplicate acknowledgements: 0 or 1.
    pub(crate) duplicates: u32,
    /// The echoed timestamp, in milliseconds of our clock.
    pub(crate) echo_ms: Option<u32>,
}

/// Order of data to send after an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RexmitMode {
    /// New data only.
    #[default]
    No,
    /// Lost data first.
    Lost,
    /// New data; if there is none, lost data (RFC 5682 section 3.1 step 2b).
    NewFirst,
}

/// State that only a connection with a loss needs.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    /// `snd.una` when the window was reduced, while the reduction can be undone.
    undo_marker: Option<Seq>,
    /// Retransmissions that the peer has not reported as duplicates; `None`: none was made.
    undo_retrans: Option<u32>,
    /// The time of the first retransmission since then.
    retrans_stamp: Option<Instant>,
    /// Threshold and window before the reduction; 0: do not restore.
    prior_ssthresh: u32,
    prior_cwnd: u32,
    /// Wire segments delivered and sent during the reduction (RFC 6937).
    prr_delivered: u32,
    prr_out: u32,
    /// The end of the unanswered tail loss probe, and whether it was a retransmission.
    pub(crate) probe_end: Option<Seq>,
    probe_resent: bool,
    pub(crate) probe_due: bool,
    /// F-RTO checks whether the timeout was spurious (RFC 5682).
    frto: bool,
    pub(crate) resend: RexmitMode,
    /// Without SACK: the wire segments that duplicate acknowledgements stand for.
    reno_sacked: u32,
    /// The SACK blocks of the last acknowledgement.
    recv_sack_cache: SackBlocks,
    /// Number before which nothing is to be retransmitted.
    retransmit_hint: Seq,
    /// Number before which RACK has checked every first transmission.
    rack_checked: Seq,
    resent: Resent,
    /// RACK.dsack_round: the reordering window grew in this round trip.
    dsack_round: Option<Seq>,
    /// The time of the first of the timeouts in a row.
    pub(crate) since: Instant,
}

impl Transfer {
    pub(crate) fn recovery_mut(&mut self) -> &mut Recovery {
        let una = self.snd.una;
        let new = || Recovery { retransmit_hint: una, rack_checked: una, ..Recovery::default() };
        self.recovery.get_or_insert_with(|| Box::new(new()))
    }

    /// Wire segments that arrived beyond a gap; without SACK, an estimate from duplicates.
    #[inline]
    pub(crate) fn sacked_packets(&self) -> u32 {
        self.flight.sacked + self.recovery.as_ref().map_or(0, |r| r.reno_sacked)
    }

    /// Wire segments in flight by estimate (RFC 6675 section 4, "pipe").
    #[inline]
    pub(crate) fn packets_in_flight(&self) -> u32 {
        // Congestion control does not count the SYN.
        let syn = u32::from(self.snd.una == self.snd.iss);
        let left = self.sacked_packets() + self.flight.lost + syn;
        (self.flight.packets + self.flight.retransmitted).saturating_sub(left)
    }

    /// Whether loss recovery processes this acknowledgement.
    #[inline]
    pub(crate) fn is_dubious(&self, flags: AckFlags) -> bool {
        !flags.intersects(AckFlags::NOT_DUP)
            || flags.intersects(AckFlags::CA_ALERT)
            || self.loss.state != CaState::Open
    }

    /// Enters, updates and leaves the states, as Linux's `tcp_fastretrans_alert`.
    #[cold]
    pub(crate) fn on_dubious_ack(&mut self, path: &Path, ack: &mut AckInfo) {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        let echo = ack.flags.contains(AckFlags::ECE);
        let recovery = self.recovery_mut();
        // A number outside the flight is an old one, even if it seems to be ahead.
        for at in [&mut recovery.retransmit_hint, &mut recovery.rack_checked] {
            *at = if at.between(una, nxt) { *at } else { una };
        }
        if echo {
            // The network is congested, so the reduction stays.
            recovery.prior_ssthresh = 0;
        }
        if self.flight.is_empty() {
            self.reset_reno_sacked();
        }
        if self.has_reneged(ack) {
            return;
        }
        if self.leave_state(path, ack) {
            return;
        }
        match self.loss.state {
            CaState::Recovery => {
                if !ack.flags.contains(AckFlags::UNA_ADVANCED) {
                    self.add_reno_sack(path, ack);
                } else if self.try_undo_partial(path, ack) {
                    return;
                }
                if self.try_undo_dsack() {
                    self.try_to_open(ack);
                }
                self.identify_losses(path, ack);
                if self.loss.state != CaState::Recovery {
                    // Undone. A segment that is still lost is a new loss.
                    if self.flight.lost == 0 {
                        return;
                    }
                    self.enter_recovery(ack.now, echo);
                }
            }
            CaState::Loss => {
                self.on_ack_in_loss(path, ack);
                self.identify_losses(path, ack);
                let lost_again = ack.flags.contains(AckFlags::LOST_RETRANS);
                match self.loss.state {
                    CaState::Open => {}
                    CaState::Loss if lost_again => {}
                    _ => return,
                }
                if !self.process_disorder(path, ack, false) {
                    return;
                }
            }
            _ => {
                if !self.process_disorder(path, ack, true) {
                    return;
                }
            }
        }
        self.recovery_mut().resend = RexmitMode::Lost;
    }

    pub(crate) fn try_keep_open(&mut self) {
        let left = self.sacked_packets() + self.flight.lost;
        let state = if left > 0 || self.has_resent() { CaState::Disorder } else { CaState::Open };
        if self.loss.state != state {
            self.loss.state = state;
            self.loss.high_seq = self.snd.nxt;
        }
    }

    /// Whether a retransmission may still be in flight.
    pub(crate) fn has_resent(&self) -> bool {
        self.flight.retransmitted > 0
            || self.flight.first().is_some_and(|r| r.mark.contains(Mark::AMBIGUOUS))
    }

    /// > RFC 6675 section 5: (4.1) RecoveryPoint = HighData
    pub(crate) fn enter_recovery(&mut self, now: Instant, echo: bool) {
        self.rare().losses.recoveries += 1;
        self.init_undo();
        let reducing = self.loss.is_reducing();
        let ssthresh = self.current_ssthresh();
        let una = self.snd.una;
        let recovery = self.recovery_mut();
        recovery.prior_ssthresh = 0;
        recovery.retransmit_hint = una;
        recovery.since = now;
        if !reducing {
            if !echo {
                recovery.prior_ssthresh = ssthresh;
            }
            self.init_cwnd_reduction();
        }
        self.loss.state = CaState::Recovery;
    }

    /// The retransmission timer has fired on data.
    ///
    /// > RFC 6298 section 5.4: Retransmit the earliest segment that has not been acknowledged by
    /// > the TCP receiver.
    ///
    /// As Linux: segments sent less than a round trip ago are not considered lost.
    pub(crate) fn on_data_timeout(&mut self, path: &Path, now: Instant) {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        let state = self.loss.state;
        let first = state < CaState::Recovery;
        let many_out_of_order = self.sacked_packets() >= u32::from(path.config().reordering);
        // > RFC 2018 section 8: After a retransmit timeout the data sender SHOULD turn off all of
        // > the SACKed bits
        //
        // only if the head is sacked and not acknowledged: then the receiver has reneged.
        if self.flight.first().is_some_and(|r| r.mark.contains(Mark::SACKED)) {
            self.flight.forget_sacks();
            self.recovery_mut().recv_sack_cache = SackBlocks::default();
        }
        self.reset_reno_sacked();
        let age = Duration::from_micros(u64::from(self.loss.rack.rtt_us));
        self.flight.mark_lost_for_timeout(now, age);
        // > RFC 5681 section 3.1: when a TCP sender detects segment loss using the retransmission
        // > timer and the given segment has already been retransmitted by way of the
        // > retransmission timer at least once, the value of ssthresh is held constant.
        if state <= CaState::Disorder
            || self.loss.high_seq.le(una)
            || (state == CaState::Loss && self.loss.retries == 0)
        {
            let (ssthresh, cwnd) = (self.current_ssthresh(), self.congestion.cwnd());
            let in_flight = self.flight.packets;
            self.congestion.cut(in_flight);
            self.congestion.on_timeout();
            let recovery = self.recovery_mut();
            recovery.prior_ssthresh = ssthresh;
            recovery.prior_cwnd = cwnd;
            self.init_undo();
        }
        // > RFC 5681 section 3.1: upon a timeout [...] cwnd MUST be set to no more than the loss
        // > window, LW, which equals 1 full-sized segment
        //
        // beside the segments that are not considered lost.
        self.congestion.set_cwnd(self.packets_in_flight() + 1);
        if first && many_out_of_order {
            // The degree of reordering was overestimated.
            self.loss.reordering = self.loss.reordering.min(u16::from(path.config().reordering));
        }
        self.loss.state = CaState::Loss;
        self.loss.high_seq = nxt;
        self.queue_cwr();
        // > RFC 5682 section 3.1: 1) When the retransmission timer expires, retransmit the first
        // > unacknowledged segment
        let frto = path.config().frto && (first || self.loss.retries > 0);
        let retries = self.loss.retries;
        let recovery = self.recovery_mut();
        recovery.probe_end = None;
        recovery.frto = frto;
        recovery.resend = RexmitMode::Lost;
        recovery.retransmit_hint = una;
        recovery.rack_checked = una;
        if retries == 0 {
            recovery.since = now;
        }
    }

    /// Every segment longer than `mss` was dropped for its length: sends it again in shorter ones.
    pub(crate) fn on_too_big(&mut self, mss: u32) {
        self.flight.mark_long_lost(mss);
        self.resend_without_blame();
    }

    /// Sends lost segments again without a congestion response.
    pub(crate) fn resend_without_blame(&mut self) {
        if self.flight.lost == 0 {
            return;
        }
        // As Linux: like a timeout, but the window stays.
        if self.loss.state != CaState::Loss {
            self.loss.high_seq = self.snd.nxt;
            let ssthresh = self.current_ssthresh();
            self.congestion.set_ssthresh(ssthresh);
            let recovery = self.recovery_mut();
            recovery.prior_ssthresh = 0;
            recovery.undo_marker = None;
            recovery.frto = false;
            self.loss.state = CaState::Loss;
        }
        let una = self.snd.una;
        let recovery = self.recovery_mut();
        recovery.retransmit_hint = una;
        recovery.resend = RexmitMode::Lost;
    }

    /// Leaves a state if `high_seq` is acknowledged. `true`: the state stays.
    fn leave_state(&mut self, path: &Path, ack: &AckInfo) -> bool {
        let una = self.snd.una;
        if self.loss.state == CaState::Open {
            self.recovery_mut().retrans_stamp = None;
        } else if una.ge(self.loss.high_seq) {
            match self.loss.state {
                CaState::Cwr if una != self.loss.high_seq => {
                    self.end_cwnd_reduction();
                    self.loss.state = CaState::Open;
                }
                CaState::Recovery => {
                    self.reset_reno_sacked();
                    if self.try_undo_recovery(path, ack) {
                        return true;
                    }
                    self.end_cwnd_reduction();
                }
                _ => {}
            }
        }
        false
    }

    /// Updates Open, Disorder and Cwr. `true`: recovery has begun.
    fn process_disorder(&mut self, path: &Path, ack: &mut AckInfo, identify: bool) -> bool {
        if ack.flags.contains(AckFlags::UNA_ADVANCED) {
            self.reset_reno_sacked();
        }
        self.add_reno_sack(path, ack);
        if self.loss.state <= CaState::Disorder {
            self.try_undo_dsack();
        }
        if identify || !path.sack_ok {
            self.identify_losses(path, ack);
        }
        // As Linux: a lost segment begins a recovery; loss detection counts the duplicates.
        if self.flight.lost == 0 {
            self.try_to_open(ack);
            return false;
        }
        if self.is_probe_lost(path) {
            return false;
        }
        self.enter_recovery(ack.now, ack.flags.contains(AckFlags::ECE));
        true
    }

    /// Marks lost segments: with SACK by time, without it the first segment.
    fn identify_losses(&mut self, path: &Path, ack: &mut AckInfo) {
        if self.flight.is_empty() {
            return;
        }
        if !path.sack_ok {
            // > RFC 5681 section 3.2: The TCP sender SHOULD use the "fast retransmit" algorithm to
            // > detect and repair loss, based on incoming duplicate ACKs [...] 3 duplicate ACKs
            //
            // > RFC 6582 section 3.2 step 3 (partial acknowledgement): retransmit the first
            // > unacknowledged segment.
            let state = self.loss.state;
            let enough = self.sacked_packets() >= u32::from(self.loss.reordering);
            let partial = ack.flags.contains(AckFlags::UNA_ADVANCED);
            if (state < CaState::Recovery && enough) || (state == CaState::Recovery && partial) {
                ack.lost += self.flight.mark_head_lost();
                let una = self.snd.una;
                self.recovery_mut().retransmit_hint = una;
            }
            return;
        }
        let aged = self.detect_loss_after_ack(ack.now);
        ack.lost += aged.lost;
        if aged.again {
            ack.flags.insert(AckFlags::LOST_RETRANS);
        }
        if let Some(wait) = aged.wait {
            self.await_reordering(ack.now, wait);
            ack.flags.remove(AckFlags::SET_XMIT_TIMER);
        }
    }

    /// > RFC 2018 section 8: the data receiver is permitted to discard data in its queue that has
    /// > not been acknowledged to the data sender, even if the data has already been reported in a
    /// > SACK option.
    ///
    /// As Linux: a short timeout gives the receiver the chance to acknowledge after all.
    fn has_reneged(&mut self, ack: &mut AckInfo) -> bool {
        if !ack.flags.contains(AckFlags::SACK_RENEGING | AckFlags::UNA_ADVANCED) {
            return false;
        }
        const LEAST: Duration = Duration::from_millis(10);
        let srtt = self.rtt.srtt().unwrap_or_default();
        self.set_retransmit_timer(ack.now, (srtt / 2).max(LEAST));
        ack.flags.remove(AckFlags::SET_XMIT_TIMER);
        true
    }

    /// Nothing is lost: returns to Open, or to Disorder while segments are out of order.
    fn try_to_open(&mut self, ack: &AckInfo) {
        if !self.has_resent() {
            self.recovery_mut().retrans_stamp = None;
        }
        if ack.flags.contains(AckFlags::ECE) {
            self.enter_cwr();
        }
        if self.loss.state != CaState::Cwr {
            self.try_keep_open();
        }
    }
}
