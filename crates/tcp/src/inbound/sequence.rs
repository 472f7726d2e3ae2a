//! Byte path, part of step R5: whether a segment is the next, an old one, or somebody else's.

use crate::error::DropReason;
use crate::header::Flags;
use crate::inbound::Inbound;
use crate::input::{Segment, Step, drop_for};
use crate::life::state::State;
use crate::path::Path;
use pagewire_mem::Instant;

impl Inbound {
    /// Whether the peer did not get our SYN,ACK, and says its SYN again. Before the other checks, as
    /// in Linux: with data in it, the SYN may begin before what is acknowledged already.
    pub(crate) fn is_syn_again(&self, path: &Path, segment: &Segment<'_>) -> bool {
        path.state == State::SynReceived
            && segment.has(Flags::SYN)
            && !segment.header.flags.intersects(Flags::ACK | Flags::RST)
            && segment.seq == self.irs
    }

    /// > RFC 7323 section 5.3: R1) If there is a Timestamps option in the arriving segment, SEG.TSval
    /// > < TS.Recent, TS.Recent is valid (see later discussion), and if the RST bit is not set, then
    /// > treat the arriving segment as not acceptable: Send an acknowledgment in reply [...] and drop
    /// > the segment.
    ///
    /// A segment without the option passes, as in Linux.
    pub(crate) fn check_timestamp(
        &mut self,
        path: &Path,
        now: Instant,
        segment: &Segment<'_>,
    ) -> Step {
        let Some((value, _)) = segment.header.options.timestamps else { return Ok(()) };
        if !path.has_timestamps() || segment.has(Flags::RST) || !path.is_stale(now, value) {
            return Ok(());
        }
        self.answer_unacceptable(path, now, segment);
        drop_for(DropReason::Paws)
    }

    /// > First, check sequence number: [...] There are four cases for the acceptability test for an
    /// > incoming segment [...] If an incoming segment is not acceptable, an acknowledgment should be
    /// > sent in reply (unless the RST bit is set, if so drop the segment and return)
    ///
    /// As Linux, a little wider, so that the acknowledgement of a segment counts whose text does
    /// not: the end may be where our last acknowledgement was, the start where the window ends.
    pub(crate) fn first_sequence(
        &mut self,
        path: &Path,
        now: Instant,
        segment: &Segment<'_>,
    ) -> Step {
        let (seq, end) = (segment.seq, segment.end());
        if end.ge(self.acked) && seq.le(self.edge.max(self.rcv_nxt())) {
            return Ok(());
        }
        if segment.has(Flags::RST) {
            return drop_for(DropReason::OutsideWindow);
        }
        self.answer_unacceptable(path, now, segment);
        drop_for(DropReason::OutsideWindow)
    }

    /// Answers a segment that does not fit. An answer to data cannot start an endless exchange of
    /// acknowledgements, so only the others are limited in rate.
    fn answer_unacceptable(&mut self, path: &Path, now: Instant, segment: &Segment<'_>) {
        if segment.len > 0 && !segment.has(Flags::SYN) {
            let (seq, nxt) = (segment.seq, self.rcv_nxt());
            if seq.lt(nxt) {
                self.note_twice(path, seq, (seq + segment.len).min(nxt));
            }
            self.ack_duplicate(path);
        } else {
            self.challenge_ack(path, now);
        }
    }
}
