//! Sequence checks: whether a segment is the next one, a duplicate, or not acceptable.

use pagewire_mem::{FragVec, Instant};

use crate::error::DropReason;
use crate::header::Flags;
use crate::inbound::receive_queue::Inserted;
use crate::inbound::{InFlags, Inbound};
use crate::life::state::State;
use crate::outbound::rtt::RttEstimator;
use crate::path::Path;
use crate::segment::{Disposition, Segment, Step, drop_for};
use crate::seq::Seq;
use crate::shared::Env;

impl Inbound {
    /// Whether `len` bytes from `seq` on are the next, with no gap, FIN or urgent byte.
    #[inline]
    pub(crate) fn is_next(&self, seq: Seq, len: u32) -> bool {
        seq == self.queue.next()
            && !self.queue.has_gaps()
            && self.fin().is_none()
            && !self.flags.contains(InFlags::URGENT_IN)
            && len <= self.edge.saturating_since(seq)
    }

    /// Queues the payload of a segment that was cut to the window, and counts it.
    #[inline]
    pub(crate) fn insert(&mut self, env: &mut Env<'_>, seq: Seq, payload: FragVec) -> Inserted {
        let inserted = self.queue.insert(env, seq, payload);
        self.bytes_received += u64::from(inserted.advanced);
        inserted
    }

    /// Cuts off payload outside the window. Returns whether there was any.
    pub(crate) fn trim(
        &mut self,
        path: &Path,
        segment: &mut Segment<'_>,
    ) -> Result<bool, Disposition> {
        // > RFC 9293 section 3.10.7.4: one could tailor actual segments to fit this assumption by
        // > trimming off any portions that lie outside the window
        let limit = self.fin().map_or(self.edge, |fin| fin.min(self.edge));
        let keep = limit.saturating_since(segment.seq).min(segment.len);
        let cut = keep < segment.len;
        if cut {
            truncate(&mut segment.payload, keep as usize);
        }
        if keep == 0 {
            self.ack.duplicate(path);
            return Err(Disposition::Dropped(if self.fin().is_some() && limit.lt(self.edge) {
                DropReason::AfterFin
            } else {
                DropReason::OutsideWindow
            }));
        }
        Ok(cut)
    }

    /// Queues the text of a segment; `cut`: a part outside the window was cut off.
    pub(crate) fn take_text(
        &mut self,
        path: &Path,
        rtt: &RttEstimator,
        env: &mut Env<'_>,
        segment: &mut Segment<'_>,
        cut: bool,
    ) -> Step {
        let had_gaps = self.queue.has_gaps();
        let payload = core::mem::take(&mut segment.payload);
        let inserted = self.insert(env, segment.seq, payload);
        if let Some((left, right)) = inserted.duplicate {
            self.note_twice(path, left, right);
        }
        if inserted.advanced > 0 {
            self.on_data_arrived(path, rtt, env.now, segment.header, segment.len);
            self.schedule_ack(path, rtt, env.now, segment.len, segment.has(Flags::PSH));
        }
        // > RFC 5681 section 3.2: a TCP receiver SHOULD send an immediate ACK when the incoming
        // > segment fills in all or part of a gap in the sequence space.
        //
        // One for each: a sender without SACK counts them.
        if inserted.advanced == 0 {
            self.ack.duplicate(path);
        } else if had_gaps || cut || inserted.dropped.is_some() {
            self.ack.at_once();
        }
        match inserted.dropped {
            Some(reason) => drop_for(reason),
            None if inserted.advanced == 0 && !inserted.out_of_order => {
                drop_for(DropReason::Duplicate)
            }
            None if cut && inserted.advanced == 0 => drop_for(DropReason::OutsideWindow),
            None => Ok(()),
        }
    }

    /// Processes a segment's FIN; `open`: the peer may still send. Returns whether the stream ends.
    pub(crate) fn take_fin(&mut self, path: &Path, fin: Option<Seq>, open: bool) -> bool {
        if let Some(fin) = fin {
            if self.has_fin() {
                // As Linux: its number is reported like those of data (RFC 2883).
                if fin.lt(self.rcv_nxt()) {
                    self.note_twice(path, fin, fin + 1);
                }
                // > Remain in the CLOSE-WAIT state. [...] Remain in the CLOSING state. [...] Remain
                // > in the LAST-ACK state.
                self.ack.at_once();
            } else if open && fin.le(self.edge) && fin.ge(self.queue.next()) {
                // A FIN beyond a gap is remembered.
                self.note_fin(fin);
                self.ack.at_once();
            }
        }
        let ends = self.fin() == Some(self.queue.next()) && !self.has_fin() && open;
        if ends {
            self.flags.insert(InFlags::FIN_RECEIVED);
            self.ack.at_once();
        }
        ends
    }

    /// Whether the peer repeats its SYN. As in Linux this comes before the other checks.
    pub(crate) fn is_syn_again(&self, path: &Path, segment: &Segment<'_>) -> bool {
        path.state() == State::SynReceived
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
        if !path.timestamps_ok || segment.has(Flags::RST) || !path.timestamps.is_stale(now, value) {
            return Ok(());
        }
        self.answer_unacceptable(path, now, segment);
        drop_for(DropReason::Paws)
    }

    /// > First, check sequence number: [...] There are four cases for the acceptability test for an
    /// > incoming segment [...] If an incoming segment is not acceptable, an acknowledgment should be
    /// > sent in reply (unless the RST bit is set, if so drop the segment and return)
    ///
    /// As Linux, a little wider, so that the acknowledgement counts even if the text does not: the
    /// end may be at our last acknowledgement, the start at the end of the window.
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

    /// Answers an unacceptable segment. Only answers to segments without data are limited in rate.
    fn answer_unacceptable(&mut self, path: &Path, now: Instant, segment: &Segment<'_>) {
        if segment.len > 0 && !segment.has(Flags::SYN) {
            let (seq, nxt) = (segment.seq, self.rcv_nxt());
            if seq.lt(nxt) {
                self.note_twice(path, seq, (seq + segment.len).min(nxt));
            }
            self.ack.duplicate(path);
        } else {
            self.challenge(path, now);
        }
    }
}

fn truncate(frags: &mut FragVec, len: usize) {
    let mut left = len;
    frags.retain(|frag| {
        frag.truncate(left);
        left -= frag.len();
        !frag.is_empty()
    });
}
