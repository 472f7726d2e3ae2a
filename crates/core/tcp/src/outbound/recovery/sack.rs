//! Selective acknowledgements (RFC 2018, 2883), their emulation without SACK, and reordering.

use crate::header::TcpHeader;
use crate::limits::MAX_REORDERING;
use crate::outbound::Transfer;
use crate::outbound::flight::Delivered;
use crate::outbound::recovery::{AckFlags, AckInfo};
use crate::path::Path;
use crate::seq::Seq;

impl Transfer {
    /// Processes the SACK blocks of a segment, and adds new ranges to `delivered`.
    ///
    /// > RFC 2018 section 4: the first SACK block [...] MUST specify the contiguous block of data
    /// > containing the segment which triggered this ACK [...] the SACK option SHOULD be filled out
    /// > by repeating the most recently reported SACK blocks
    ///
    /// so most of the blocks are known already.
    pub(crate) fn take_sacks(
        &mut self,
        path: &Path,
        header: &TcpHeader,
        ack: &mut AckInfo,
        delivered: &mut Delivered,
    ) {
        let (una, nxt) = (self.snd.una, self.snd.nxt);
        let mss = self.send_mss(path);
        let blocks = &header.options.sack;
        let duplicate = self.check_dsack(path, header, ack);
        let known = core::mem::replace(&mut self.recovery_mut().recv_sack_cache, *blocks);
        for (left, right) in blocks.iter().skip(usize::from(duplicate)) {
            // The rest must lie in the flight.
            if !(left.lt(right) && right.gt(una) && right.le(nxt) && left.ge(una)) {
                continue;
            }
            // If a block has grown at one end, only the new end counts.
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
                // Units are counted from the start of a record, and the known part may end within one.
                self.flight.sack(left.max(from - from.since(left).min(mss)), to, delivered);
            }
        }
    }

    /// A segment arrived late: the path reorders from `late` to `high`, the highest that had arrived.
    pub(crate) fn check_reordering(&mut self, path: &Path, late: Option<Seq>, high: Option<Seq>) {
        let (Some(late), Some(high)) = (late, high) else { return };
        if !late.lt(high) {
            return;
        }
        let mss = self.send_mss(path);
        let distance = high.since(late);
        if distance > u32::from(self.loss.reordering) * mss {
            let degree = distance.div_ceil(mss).min(u32::from(MAX_REORDERING));
            self.loss.reordering = degree as u16;
        }
        let losses = &mut self.rare().losses;
        losses.reord_seen = losses.reord_seen.saturating_add(1);
    }

    /// > RFC 5681 section 3.2: 4. For each additional duplicate ACK received (after the third), cwnd
    /// > MUST be incremented by SMSS. This artificially inflates the congestion window in order to
    /// > reflect the additional segment that has left the network.
    ///
    /// As Linux and RFC 6675: the flight shrinks instead of the window growing.
    pub(crate) fn add_reno_sack(&mut self, path: &Path, ack: &mut AckInfo) {
        if path.sack_ok || ack.duplicates == 0 {
            return;
        }
        let duplicates = ack.duplicates;
        let before = self.recovery_mut().reno_sacked;
        self.recovery_mut().reno_sacked = before + duplicates;
        self.limit_reno_sacked(0);
        ack.delivered += self.recovery_mut().reno_sacked.saturating_sub(before);
    }

    /// `acked` wire segments were acknowledged; returns those for which no duplicate stood.
    pub(crate) fn remove_reno_sacked(&mut self, acked: u32) -> u32 {
        let Some(recovery) = self.recovery.as_deref_mut() else { return acked };
        if acked == 0 {
            return 0;
        }
        let fresh = acked.saturating_sub(recovery.reno_sacked).max(1);
        recovery.reno_sacked = recovery.reno_sacked.saturating_sub(acked - 1);
        if recovery.reno_sacked > 0 {
            self.limit_reno_sacked(acked);
        }
        fresh
    }

    pub(crate) fn reset_reno_sacked(&mut self) {
        if let Some(recovery) = self.recovery.as_deref_mut() {
            recovery.reno_sacked = 0;
        }
    }

    /// Whether the congestion window may grow: by SACK too, on a path that reorders, as in Linux.
    #[inline]
    pub(crate) fn may_grow(&self, path: &Path, flags: AckFlags) -> bool {
        let reorders = self.loss.reordering > u16::from(path.config().reordering);
        flags.contains(AckFlags::DATA_ACKED) || (reorders && flags.contains(AckFlags::DATA_SACKED))
    }

    /// > RFC 2883 section 4: (5) [...] the sender compares the sequence space in the first SACK block to
    /// > the cumulative ACK which is carried in the same packet. If the SACK sequence space is less
    /// > than this cumulative ACK, it is an indication that the segment identified by the SACK block has
    /// > been received more than once by the receiver. [...] otherwise, the sender compares the
    /// > sequence space in the first SACK block to the sequence space in the second SACK block (if
    /// > there is one)
    ///
    /// Returns whether the first block is such a report, believed or not.
    fn check_dsack(&mut self, path: &Path, header: &TcpHeader, ack: &mut AckInfo) -> bool {
        let mut list = header.options.sack.iter();
        let Some((left, right)) = list.next() else { return false };
        let duplicate =
            left.lt(header.ack) || list.next().is_some_and(|(l, r)| left.ge(l) && right.le(r));
        if !duplicate {
            return false;
        }
        // As Linux: a block longer than any window, or more duplicates than sent, is no report.
        let len = right.since(left);
        if !left.lt(right) || len > self.snd.max_window {
            return true;
        }
        let mss = self.send_mss(path);
        let segments = len.div_ceil(mss).max(1);
        let probe_end = self.recovery.as_ref().and_then(|r| r.probe_end);
        if len <= mss && probe_end == Some(right) {
            ack.flags.insert(AckFlags::DSACK_TLP);
        }
        let losses = &mut self.rare().losses;
        losses.dsack_dups = losses.dsack_dups.saturating_add(segments);
        if losses.dsack_dups > losses.retransmits {
            return true;
        }
        ack.flags.insert(AckFlags::DSACK);
        // A spurious retransmission was delivered too.
        ack.delivered += segments;
        let Some(recovery) = self.recovery.as_deref_mut() else { return true };
        let Some(marker) = recovery.undo_marker else { return true };
        let excused = if right.le(ack.prior_una) {
            // No longer in the flight: counted without its records.
            if right.gt(marker) { segments } else { 0 }
        } else {
            self.flight.dsack(left, right, marker)
        };
        recovery.undo_retrans = recovery.undo_retrans.map(|n| n.saturating_sub(excused));
        true
    }

    /// Bounds the duplicates by the flight: more mean that the path reorders or duplicates.
    fn limit_reno_sacked(&mut self, acked: u32) {
        let packets = self.flight.packets;
        let holes = self.flight.lost.max(1).min(packets);
        let Some(recovery) = self.recovery.as_deref_mut() else { return };
        if recovery.reno_sacked + holes <= packets {
            return;
        }
        recovery.reno_sacked = packets - holes;
        let degree = (packets + acked).min(u32::from(MAX_REORDERING));
        self.loss.reordering = degree as u16;
        let losses = &mut self.rare().losses;
        losses.reord_seen = losses.reord_seen.saturating_add(1);
    }
}
