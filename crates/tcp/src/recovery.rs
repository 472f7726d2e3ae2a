//! Loss: how it is noticed, and what is sent again (RFC 5681, 6582, 6675).
//!
//! ```text
//!                    duplicates or SACKs           enough of them
//!   (no Recovery) -----------------> Watching -----------------> Fast
//!        ^                              |                         |   \ timer
//!        |  all acknowledged            |                         |    v
//!        +------------------------------+------ point reached ----+-- Timeout
//! ```
//!
//! What became of each byte is in `flight.rs`; this file decides. Without SACK, each duplicate
//! acknowledgement stands for one segment that has arrived, as in RFC 5681's window inflation.

use pagewire_mem::Instant;

use crate::connection::{ConnFlags, Connection};
use crate::flight::{Delivered, Mark, Sent};
use crate::limits::DUPLICATE_THRESHOLD;
use crate::options::SackBlocks;
use crate::seq::Seq;
use crate::timers::Timer;

/// How far a loss has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Something is out of order; it may be reordering.
    Watching,
    /// Fast recovery: a loss was noticed by acknowledgements.
    Fast,
    /// The timer went off: everything is sent again in slow start.
    Timeout,
}

/// What only a connection with a loss needs.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) phase: Phase,
    /// `snd.nxt` when the phase began: acknowledged, it ends the phase (RecoveryPoint, "recover").
    pub(crate) point: Seq,
    /// Duplicate acknowledgements in a row.
    duplicates: u32,
    /// Bytes that duplicate acknowledgements stand for, without SACK.
    emulated: u32,
    /// Nothing before this waits to be sent again.
    next: Seq,
    /// Everything before this has been judged lost or not.
    judged: Seq,
    /// The first retransmission leaves whatever the window says.
    force: bool,
    /// RFC 6675's rescue retransmission has been made.
    rescued: bool,
    /// The SACK blocks of the last acknowledgement: what they said is known.
    known: SackBlocks,
    /// When the first of the timeouts in a row happened.
    pub(crate) since: Instant,
}

impl Recovery {
    fn new(una: Seq) -> Self {
        Self {
            phase: Phase::Watching,
            point: una,
            duplicates: 0,
            emulated: 0,
            next: una,
            judged: una,
            force: false,
            rescued: false,
            known: SackBlocks::new(),
            since: Instant::ZERO,
        }
    }
}

/// What an acknowledgement said, as far as losses are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    /// Sequence numbers acknowledged cumulatively for the first time.
    pub(crate) advanced: u32,
    /// Bytes acknowledged selectively for the first time.
    pub(crate) sacked: u32,
    /// It repeats the last one (RFC 5681 section 2).
    pub(crate) duplicate: bool,
}

impl Connection {
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.recovery.as_ref().map(|r| r.phase)
    }

    /// Whether the congestion window is in the hands of a recovery.
    pub(crate) fn in_fast_recovery(&self) -> bool {
        self.phase() == Some(Phase::Fast)
    }

    /// Bytes that have arrived beyond a gap as far as can be told without SACK.
    pub(crate) fn emulated_sacks(&self) -> u32 {
        self.recovery.as_ref().map_or(0, |r| r.emulated)
    }

    /// Takes in SACK blocks; what is new in them is added to `delivered`.
    ///
    /// > RFC 2018 section 4: the first SACK block [...] MUST specify the contiguous block of data
    /// > containing the segment which triggered this ACK [...] the SACK option SHOULD be filled out
    /// > by repeating the most recently reported SACK blocks
    ///
    /// so most of what the blocks say is known already.
    pub(crate) fn take_sacks(&mut self, blocks: &SackBlocks, delivered: &mut Delivered) {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        let mss = self.send_mss();
        let recovery = self.recovery.get_or_insert_with(|| Box::new(Recovery::new(una)));
        let known = core::mem::replace(&mut recovery.known, *blocks);
        for (left, right) in blocks.iter() {
            // Blocks at or below the acknowledgement report duplicates (RFC 2883); the rest must
            // lie in what was sent.
            if !(left.lt(right) && right.gt(una) && right.le(nxt) && left.ge(una)) {
                continue;
            }
            // A block that has grown at one end: look at the new end only.
            let (mut from, mut to) = (left, right);
            for (l, r) in known.iter() {
                if l.le(from) && from.lt(r) {
                    from = r.min(to);
                }
                if l.lt(to) && to.le(r) {
                    to = l.max(from);
                }
            }
            if from.lt(to) {
                // Units are counted from the start of a record, and the known part may have ended
                // within one.
                self.flight.sack(left.max(from - from.since(left).min(mss)), to, mss, delivered);
            }
        }
    }

    /// Judges what an acknowledgement said, and enters or leaves recovery.
    pub(crate) fn judge(&mut self, now: Instant, heard: Heard) {
        let mss = self.send_mss();
        let sack = self.flags.contains(ConnFlags::SACK);
        if self.recovery.is_none() {
            if !heard.duplicate {
                return;
            }
            self.recovery = Some(Box::new(Recovery::new(self.snd.una)));
        }
        let (una, nxt, in_flight) = (self.snd.una, self.snd.nxt, self.in_flight());
        let Some(recovery) = self.recovery.as_deref_mut() else { return };

        if recovery.phase != Phase::Watching && una.ge(recovery.point) {
            let fast = recovery.phase == Phase::Fast;
            let known = recovery.known;
            *recovery = Recovery { known, ..Recovery::new(una) };
            if fast {
                self.congestion.on_recovery_exit(now);
            }
        }
        let Some(recovery) = self.recovery.as_deref_mut() else { return };
        recovery.next = recovery.next.max(una);
        recovery.judged = recovery.judged.max(una);

        if heard.advanced > 0 {
            recovery.duplicates = 0;
            // > RFC 6582 section 3.2 step 3: Deflate the congestion window by the amount of new
            // > data acknowledged [...] If the partial ACK acknowledges at least one SMSS of new
            // > data, then add back SMSS bytes to the congestion window.
            recovery.emulated = match recovery.phase {
                Phase::Fast => (recovery.emulated + mss).saturating_sub(heard.advanced),
                _ => 0,
            };
            if self.flight.is_empty() {
                // Nothing is under way: nothing to recover. The next loss allocates again.
                self.recovery = None;
                return;
            }
        } else if heard.duplicate || heard.sacked > 0 {
            recovery.duplicates = recovery.duplicates.saturating_add(1);
            if !sack {
                recovery.emulated = (recovery.emulated + mss).min(in_flight.saturating_sub(mss));
            }
        }

        match recovery.phase {
            Phase::Watching => {
                // > RFC 6675 section 5: (1) If DupAcks >= DupThresh, go to step (4). [...] (2) If
                // > DupAcks < DupThresh but IsLost (HighACK + 1) returns true [...] go to step (4).
                let lost_below =
                    self.flight.lost_below((DUPLICATE_THRESHOLD - 1) * mss, DUPLICATE_THRESHOLD);
                if recovery.duplicates >= DUPLICATE_THRESHOLD
                    || lost_below.is_some_and(|s| s.gt(una))
                {
                    // > RFC 6675 section 5: (4.1) RecoveryPoint = HighData
                    recovery.phase = Phase::Fast;
                    recovery.point = nxt;
                    recovery.next = una;
                    recovery.judged = una;
                    recovery.force = true;
                    recovery.rescued = false;
                    recovery.since = now;
                    self.stats.recoveries += 1;
                    // > RFC 6675 section 5: (4.2) ssthresh = cwnd = (FlightSize / 2)
                    self.congestion.on_loss(now, in_flight);
                    self.judge_sacked(mss);
                    self.flight.mark_head_lost(mss);
                } else if heard.advanced > 0 && self.flight.sacked() == 0 && !self.flight.has_lost()
                {
                    // What was too big for the path is lost without a phase of its own: while
                    // some of it waits to be sent again, the recovery stays.
                    self.recovery = None;
                }
            }
            Phase::Fast => {
                if !sack && heard.advanced > 0 {
                    // > RFC 6582 section 3.2 step 3: retransmit the first
                    // > unacknowledged segment.
                    recovery.next = una;
                    recovery.force = true;
                    self.flight.mark_head_lost(mss);
                }
                self.judge_sacked(mss);
            }
            Phase::Timeout => {}
        }
    }

    /// Marks as lost what RFC 6675's IsLost says.
    fn judge_sacked(&mut self, mss: u32) {
        let Some(recovery) = self.recovery.as_deref_mut() else { return };
        let limit = (DUPLICATE_THRESHOLD - 1) * mss;
        if let Some(below) = self.flight.lost_below(limit, DUPLICATE_THRESHOLD)
            && below.gt(recovery.judged)
        {
            self.flight.mark_lost(recovery.judged, below);
            recovery.judged = below;
        }
    }

    /// The retransmission timer has gone off on data: all of it is held for lost.
    ///
    /// > RFC 6298 section 5.4: Retransmit the earliest segment that has not been acknowledged by
    /// > the TCP receiver.
    pub(crate) fn on_data_timeout(&mut self, now: Instant) {
        let (una, nxt, in_flight) = (self.snd.una, self.snd.nxt, self.in_flight());
        // > RFC 2018 section 8: the data receiver is permitted to discard data in its queue that
        // > has not been acknowledged to the data sender, even if the data has already been reported
        // > in a SACK option.
        //
        // The head is sacked and still not acknowledged: the receiver went back on its word.
        if self.flight.first().is_some_and(|r| r.mark.contains(Mark::SACKED)) {
            self.flight.forget_sacks();
        }
        self.flight.mark_all_lost();
        self.congestion.on_rto(now, in_flight);
        let recovery = self.recovery.get_or_insert_with(|| Box::new(Recovery::new(una)));
        let since = if self.retries == 0 { now } else { recovery.since };
        **recovery = Recovery {
            phase: Phase::Timeout,
            point: nxt,
            force: true,
            since,
            ..Recovery::new(una)
        };
    }

    /// Every segment under way that is longer than `mss` was dropped for its length: it is sent
    /// again in shorter ones, and the network is not held for congested.
    pub(crate) fn on_too_big(&mut self, mss: u32) {
        let una = self.snd.una;
        self.flight.mark_long_lost(mss);
        if self.flight.has_lost() {
            let recovery = self.recovery.get_or_insert_with(|| Box::new(Recovery::new(una)));
            recovery.next = una;
            recovery.force = true;
        }
    }

    /// What is to be sent again next: where it begins and how many sequence numbers it is. `mss` is
    /// the payload of a full segment now.
    pub(crate) fn next_retransmission(&self, mss: u32) -> Option<(Seq, u32)> {
        let recovery = self.recovery.as_deref()?;
        let record =
            self.flight.next_lost(recovery.next).or_else(|| self.flight.next_lost(self.snd.una))?;
        self.fit(&record, mss, recovery.force)
    }

    /// What may be sent again although it is not known to be lost, when nothing else can be sent:
    /// it keeps acknowledgements coming.
    ///
    /// > RFC 6675 section 4, NextSeg (3): If the conditions for rules (1) and (2) fail, but there
    /// > exists an unSACKed sequence number 'S3' that meets the criteria for detecting loss given
    /// > in steps (1.a) and (1.b) above (specifically excluding step (1.c)), then one segment of up
    /// > to SMSS octets starting with S3 SHOULD be returned. [...] (4) If the conditions for
    /// > (1), (2), and (3) fail, but there exists outstanding unSACKed data, we provide the
    /// > opportunity for a single "rescue" retransmission per entry into loss recovery. [...] one
    /// > segment of up to SMSS octets that MUST include the highest outstanding unSACKed sequence
    /// > number SHOULD be returned
    pub(crate) fn next_speculative(&mut self, mss: u32) -> Option<(Seq, u32)> {
        if !self.in_fast_recovery() || !self.flags.contains(ConnFlags::SACK) {
            return None;
        }
        let recovery = self.recovery.as_deref()?;
        let high = self.flight.high_sacked()?;
        let from = recovery.next.max(self.snd.una);
        let unknown = self.flight.next_unknown(from).filter(|r| r.start.lt(high));
        let record = match unknown {
            Some(record) => record,
            None if recovery.rescued => return None,
            None => self.flight.last_unknown().filter(|r| r.end.gt(high))?,
        };
        let fit = self.fit(&record, mss, false)?;
        if unknown.is_none()
            && let Some(recovery) = self.recovery.as_deref_mut()
        {
            recovery.rescued = true;
        }
        Some((fit.0, fit.1.min(mss)))
    }

    /// As much of a record as congestion window and peer allow.
    fn fit(&self, record: &Sent, mss: u32, force: bool) -> Option<(Seq, u32)> {
        let pipe = self.pipe();
        let mut room = self.congestion.cwnd().saturating_sub(pipe);
        if force || pipe == 0 {
            room = room.max(mss);
        }
        // A peer that shrinks its window gets the first segment all the same, as a probe.
        let allowed = (self.snd.una + self.snd.window).saturating_since(record.start);
        room = match (allowed, record.start == self.snd.una) {
            (0, false) => return None,
            (0, true) => room.min(mss),
            _ => room.min(allowed.max(mss)),
        };
        let len = record.len().min(self.super_payload(mss));
        if len <= room {
            Some((record.start, len))
        } else {
            let whole = room - room % mss;
            (whole > 0).then_some((record.start, whole))
        }
    }

    /// `start..end` has been sent again.
    pub(crate) fn on_retransmitted(&mut self, now: Instant, start: Seq, end: Seq) {
        self.flight.on_retransmit(start, end, now);
        self.stats.retransmits += 1;
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.next = recovery.next.max(end);
            recovery.force = false;
        }
        let at = now + self.rtt.rto();
        if start == self.snd.una {
            self.timers.set(Timer::Retransmit, at);
        } else {
            self.timers.set_once(Timer::Retransmit, at);
        }
    }
}
