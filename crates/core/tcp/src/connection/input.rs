//! Byte path, step R5: a segment arrives (RFC 9293 section 3.10.7).
//!
//! The steps are in the order of section 3.10.7.4, one function each. A step checks first and
//! changes state last; `Err(why)` ends the processing. SYN-SENT is in `handshake.rs`, TIME-WAIT in
//! `time_wait.rs`. The next segment of an undisturbed transfer (`predicted`) skips checks.
//!
//! ICMP errors about our segments are trusted as far as RFC 5927 advises.

use pagewire_mem::{Frag, FragVec, Instant};

use crate::config::LinkLimits;
use crate::connection::Connection;
use crate::error::{DropReason, TcpError};
use crate::header::{Flags, TcpHeader};
use crate::inbound::InFlags;
use crate::inbound::ack::AckDue;
use crate::life::state::{Event, State};
use crate::life::{LifeFlags, Reset};
use crate::limits::MIN_PATH_MSS;
use crate::outbound::OutFlags;
use crate::outbound::ecn::EcnFlags;
use crate::segment::{Arrival, Disposition, IcmpKind, IcmpNotice, Segment, Step, drop_for};
use crate::seq::Seq;
use crate::shared::Env;

impl Connection {
    /// Processes a segment: a copy of its header, and the `payload`; its checksum is verified.
    pub fn handle_segment(
        &mut self,
        env: &mut Env<'_>,
        header: &TcpHeader,
        payload: FragVec,
        arrival: impl Into<Arrival>,
    ) -> Disposition {
        let arrival = arrival.into();
        let len = payload.iter().map(Frag::len).sum::<usize>() as u32;
        self.inbound.segments_in = self.inbound.segments_in.wrapping_add(1);
        let data = u32::from(len > 0);
        self.inbound.data_segments_in = self.inbound.data_segments_in.wrapping_add(data);
        if self.predicted(header, len) {
            return self.take_predicted(env, header, payload, len, arrival);
        }
        let mut segment = Segment { header, payload, len, seq: header.seq, arrival };
        let step = match self.path.state() {
            State::Closed | State::Listen => drop_for(DropReason::Closed),
            State::SynSent => self.in_syn_sent(env, &mut segment),
            State::TimeWait => self.in_time_wait(env.now, &segment),
            _ => self.in_order(env, &mut segment),
        };
        match step {
            Ok(()) => Disposition::Accepted,
            Err(disposition) => disposition,
        }
    }

    /// Whether this is the next segment of an undisturbed transfer, in either direction.
    #[inline]
    fn predicted(&self, header: &TcpHeader, len: u32) -> bool {
        const RELEVANT: Flags =
            Flags::SYN.union(Flags::FIN).union(Flags::RST).union(Flags::URG).union(Flags::ACK);
        let fresh = match (self.path.timestamps_ok, header.options.timestamps) {
            (true, Some((value, _))) => !self.path.timestamps.is_older(value),
            (true, None) => false,
            (false, _) => true,
        };
        self.path.state() == State::Established
            && header.flags & RELEVANT == Flags::ACK
            && header.ack.between(self.out.transfer.snd.una, self.out.transfer.snd.nxt)
            && fresh
            && header.options.sack.is_empty()
            && self.inbound.is_next(header.seq, len)
    }

    /// The steps that a predicted segment needs: acknowledgement and payload.
    #[inline]
    fn take_predicted(
        &mut self,
        env: &mut Env<'_>,
        header: &TcpHeader,
        payload: FragVec,
        len: u32,
        arrival: Arrival,
    ) -> Disposition {
        self.on_segment_of_peer(env.now);
        self.remember_timestamp(env.now, header, header.seq);
        if let Err(dropped) = self.process_ack(env.now, header, len) {
            return dropped;
        }
        if !self.out.transfer.loss.ecn.is_empty() {
            if self.out.transfer.loss.ecn.contains(EcnFlags::ACCURATE) {
                self.take_accurate_mark(len, arrival);
            } else {
                self.take_classic_mark(header, len, arrival.ecn);
            }
        }
        if len > 0 {
            let inserted = self.inbound.insert(env, header.seq, payload);
            if inserted.advanced > 0 {
                self.inbound.on_data_arrived(
                    &self.path,
                    &self.out.transfer.rtt,
                    env.now,
                    header,
                    len,
                );
            }
            if let Some(reason) = inserted.dropped {
                self.inbound.ack.at_once();
                return Disposition::Dropped(reason);
            }
        }
        Disposition::Accepted
    }

    fn in_order(&mut self, env: &mut Env<'_>, segment: &mut Segment<'_>) -> Step {
        // As Linux: a repeated SYN of the peer's is answered before the other checks.
        if self.path.state() == State::SynReceived
            && segment.has(Flags::SYN)
            && !segment.header.flags.intersects(Flags::ACK | Flags::RST)
            && segment.seq == self.inbound.irs()
        {
            if self.out.transfer.take_syn_again(&self.path, segment.header, segment.arrival.ecn) {
                self.life.set_reset(Reset { seq: self.out.transfer.snd.nxt, ack: true });
                self.finish(Event::Reset, None);
                return drop_for(DropReason::Flags);
            }
            self.out.transfer.flight.mark_first_lost();
            return drop_for(DropReason::Duplicate);
        }
        if segment.has(Flags::SYN | Flags::ACK) && segment.seq == self.inbound.irs() {
            self.out.transfer.take_syn_ack_again(segment.header, segment.arrival.ecn);
        }
        self.check_timestamp(env.now, segment)?;
        self.first_sequence(env.now, segment)?;
        self.on_segment_of_peer(env.now);
        self.second_reset(env.now, segment)?;
        // Third: security and compartment are not implemented, as everywhere.
        self.fourth_syn(env.now, segment)?;
        self.fifth_ack(env.now, segment)?;
        if self.out.transfer.loss.ecn.contains(EcnFlags::ACCURATE) {
            self.take_accurate_mark(segment.len, segment.arrival);
        }
        self.remember_timestamp(env.now, segment.header, segment.seq);
        self.inbound.sixth_urgent(&self.path, env, segment);
        let text = self.seventh_text(env, segment);
        self.eighth_fin(env.now, segment)?;
        text
    }

    /// A segment with valid numbers arrived: it comes from the peer.
    pub(crate) fn on_segment_of_peer(&mut self, now: Instant) {
        self.path.last_received = now;
        self.life.keepalive_probes = 0;
        self.out.flags.insert(OutFlags::ACKED);
        self.out.flags.remove(OutFlags::MORE | OutFlags::REFUSED);
    }

    /// > RFC 7323 section 5.3: R1) If there is a Timestamps option in the arriving segment, SEG.TSval
    /// > < TS.Recent, TS.Recent is valid (see later discussion), and if the RST bit is not set, then
    /// > treat the arriving segment as not acceptable: Send an acknowledgment in reply [...] and drop
    /// > the segment.
    ///
    /// A segment without the option passes, as in Linux.
    fn check_timestamp(&mut self, now: Instant, segment: &Segment<'_>) -> Step {
        let Some((value, _)) = segment.header.options.timestamps else { return Ok(()) };
        if !self.path.timestamps_ok
            || segment.has(Flags::RST)
            || !self.path.timestamps.is_stale(now, value)
        {
            return Ok(());
        }
        self.answer_unacceptable(now, segment);
        drop_for(DropReason::Paws)
    }

    /// > First, check sequence number: [...] There are four cases for the acceptability test for an
    /// > incoming segment [...] If an incoming segment is not acceptable, an acknowledgment should be
    /// > sent in reply (unless the RST bit is set, if so drop the segment and return)
    ///
    /// As Linux, a little wider, so that the acknowledgement counts even if the text does not: the
    /// end may be at our last acknowledgement, the start at the end of the window.
    fn first_sequence(&mut self, now: Instant, segment: &Segment<'_>) -> Step {
        let (seq, end) = (segment.seq, segment.end());
        if end.ge(self.inbound.acked) && seq.le(self.inbound.edge.max(self.inbound.rcv_nxt())) {
            return Ok(());
        }
        if segment.has(Flags::RST) {
            return drop_for(DropReason::OutsideWindow);
        }
        self.answer_unacceptable(now, segment);
        drop_for(DropReason::OutsideWindow)
    }

    /// Answers an unacceptable segment. Only answers to segments without data are limited in rate.
    fn answer_unacceptable(&mut self, now: Instant, segment: &Segment<'_>) {
        if segment.len > 0 && !segment.has(Flags::SYN) {
            let (seq, nxt) = (segment.seq, self.inbound.rcv_nxt());
            if seq.lt(nxt) {
                self.inbound.note_dsack(&self.path, seq, (seq + segment.len).min(nxt));
            }
            self.inbound.ack.duplicate(&self.path);
        } else {
            self.challenge(now);
        }
    }

    /// A challenge ACK is due, unless one was just sent (RFC 5961 section 7).
    pub(crate) fn challenge(&mut self, now: Instant) {
        if now >= self.inbound.challenge_after() {
            self.inbound.set_challenge_after(now + self.path.config().challenge_interval);
            self.inbound.ack.due = self.inbound.ack.due.max(AckDue::Challenge);
        }
    }

    /// > Second, check the RST bit: [...] 1) If the RST bit is set and the sequence
    /// > number is outside the current receive window, silently drop the segment. 2) If the RST bit
    /// > is set and the sequence number exactly matches the next expected sequence number (RCV.NXT),
    /// > then TCP endpoints MUST reset the connection [...] 3) If the RST bit is set and the sequence
    /// > number does not exactly match the next expected sequence value, yet is within the current
    /// > receive window, TCP endpoints MUST send an acknowledgment (challenge ACK).
    fn second_reset(&mut self, now: Instant, segment: &Segment<'_>) -> Step {
        if !segment.has(Flags::RST) {
            return Ok(());
        }
        if segment.seq != self.inbound.rcv_nxt() {
            self.challenge(now);
            if self.path.state() == State::Established && self.inbound.bytes_received == 0 {
                self.life.suspect_black_hole();
            }
            return drop_for(DropReason::RstNotNext);
        }
        let active = self.path.active;
        let error = match self.path.state() {
            // > If this connection was initiated with a passive OPEN (i.e., came from
            // > the LISTEN state), then return this connection to LISTEN state and return. The user
            // > need not be informed. If this connection was initiated with an active OPEN (i.e.,
            // > came from SYN-SENT state), then the connection was refused; signal the user
            // > "connection refused".
            State::SynReceived if active => Some(TcpError::ConnectionRefused),
            // The application may have it already, or its data.
            State::SynReceived if self.path.fast_open_server => Some(TcpError::ConnectionReset),
            State::SynReceived => None,
            // As Linux: after the end of the stream, the error is a broken pipe.
            State::CloseWait => Some(TcpError::BrokenPipe),
            // > any outstanding RECEIVEs and SEND should receive "reset" responses. All segment
            // > queues should be flushed. Users should also receive an unsolicited general
            // > "connection reset" signal.
            //
            // As Linux, in CLOSING and LAST-ACK too, where the RFC has no user left: our FIN is not
            // acknowledged, and perhaps data before it is not either.
            _ => Some(TcpError::ConnectionReset),
        };
        self.finish(Event::Reset, error);
        Err(Disposition::Accepted)
    }

    /// > Fourth, check the SYN bit: [...] RFC 5961 recommends that in these synchronized states, if the
    /// > SYN bit is set, irrespective of the sequence number, TCP endpoints MUST send a "challenge
    /// > ACK" to the remote peer
    ///
    /// Except the SYN that completes a simultaneous open (RFC 9293 section 3.5, figure 8).
    fn fourth_syn(&mut self, now: Instant, segment: &mut Segment<'_>) -> Step {
        if !segment.has(Flags::SYN) {
            return Ok(());
        }
        let completes = self.path.state() == State::SynReceived
            && segment.has(Flags::ACK)
            && segment.seq == self.inbound.irs()
            && segment.header.ack == self.out.transfer.snd.nxt;
        if completes {
            // As Linux: the peer's repeated SYN is acknowledged as a duplicate.
            self.inbound.note_dsack(&self.path, segment.seq, segment.seq + 1);
            self.inbound.ack.at_once();
            segment.seq += 1;
            return Ok(());
        }
        self.challenge(now);
        drop_for(DropReason::SynUnexpected)
    }

    /// > Fifth, check the ACK field: if the ACK bit is off, drop the segment and return
    fn fifth_ack(&mut self, now: Instant, segment: &Segment<'_>) -> Step {
        if !segment.has(Flags::ACK) {
            return drop_for(DropReason::AckMissing);
        }
        let header = segment.header;
        if self.path.state() == State::SynReceived {
            // > If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state and continue
            // > processing [...] If the segment acknowledgment is not acceptable, form a reset
            // > segment <SEQ=SEG.ACK><CTL=RST> and send it.
            if !(header.ack.gt(self.out.transfer.snd.una)
                && header.ack.le(self.out.transfer.snd.nxt))
            {
                self.life.set_reset(Reset { seq: header.ack, ack: false });
                return drop_for(DropReason::AckUnsent);
            }
            if self.out.transfer.loss.retries < self.deferral()
                && segment.end() == self.inbound.irs() + 1
            {
                // Deferred accept: the connection is complete only with data. The SYN,ACK's timer
                // runs on, and at its last timeout the SYN,ACK leaves again: the answer to that
                // completes the handshake.
                self.remember_timestamp(now, segment.header, segment.seq);
                self.life.flags.insert(LifeFlags::DEFERRED);
                return drop_for(DropReason::Deferred);
            }
        }
        self.process_ack(now, header, segment.space())?;
        if self.path.state() == State::SynReceived {
            self.path.transition(Event::AckOfSyn);
            self.life.forget_fast_open();
            self.on_established(now);
        }

        // Our FIN may be acknowledged now.
        let fin_acked = self.out.is_closed();
        match self.path.state() {
            // > if the FIN segment is now acknowledged, then enter FIN-WAIT-2
            State::FinWait1 if fin_acked => {
                self.path.transition(Event::AckOfFin);
                self.limit_fin_wait2(now);
            }
            // > if the ACK acknowledges our FIN, then enter the TIME-WAIT state
            State::Closing if fin_acked => {
                self.path.transition(Event::AckOfFin);
                self.enter_time_wait(now);
            }
            // > If our FIN is now acknowledged, delete the TCB, enter the CLOSED state, and return.
            State::LastAck if fin_acked => {
                self.finish(Event::AckOfFin, None);
                return Err(Disposition::Accepted);
            }
            _ => {}
        }
        Ok(())
    }

    /// Processes the acknowledgement in a segment that takes up `len` numbers.
    pub(crate) fn process_ack(&mut self, now: Instant, header: &TcpHeader, len: u32) -> Step {
        let result = self.out.take_ack(&self.path, now, header, len);
        let emptied = result.inspect_err(|_| self.challenge(now)).map_err(Disposition::Dropped)?;
        if emptied {
            self.consider_shrinking(now);
        }
        Ok(())
    }

    /// > RFC 7323 section 4.3: If: SEG.TSval >= TS.Recent and SEG.SEQ <= Last.ACK.sent then SEG.TSval
    /// > is copied to TS.Recent; otherwise, it is ignored.
    pub(crate) fn remember_timestamp(&mut self, now: Instant, header: &TcpHeader, seq: Seq) {
        if let (true, Some((value, _))) = (self.path.timestamps_ok, header.options.timestamps)
            && seq.le(self.inbound.acked)
            && !self.path.timestamps.is_stale(now, value)
        {
            self.path.timestamps.set_recent(now, value);
        }
    }

    fn take_accurate_mark(&mut self, len: u32, arrival: Arrival) {
        let waiting = self.inbound.rcv_nxt() != self.inbound.acked;
        if self.out.transfer.take_accurate(len, arrival, waiting) {
            self.inbound.ack.at_once();
        }
    }

    fn take_classic_mark(&mut self, header: &TcpHeader, len: u32, bits: u8) {
        let (due, quick) = self.out.transfer.take_classic(header, len, bits);
        if due {
            self.inbound.ack.at_once();
        }
        if quick > 0 {
            self.inbound.ack.enter_quickack(quick);
        }
    }

    /// > Seventh, process the segment text: [...] Once in the ESTABLISHED state, it is possible to
    /// > deliver segment data to user RECEIVE buffers. [...] When the TCP endpoint takes
    /// > responsibility for delivering the data to the user, it must also acknowledge the receipt of
    /// > the data.
    pub(crate) fn seventh_text(&mut self, env: &mut Env<'_>, segment: &mut Segment<'_>) -> Step {
        if segment.len == 0 {
            return Ok(());
        }
        if !self.path.state().can_receive() {
            // > This should not occur since a FIN has been received from the remote side. Ignore
            // > the segment text.
            let end = (segment.seq + segment.len).min(self.inbound.rcv_nxt());
            self.inbound.note_dsack(&self.path, segment.seq, end);
            self.inbound.ack.duplicate(&self.path);
            return drop_for(if segment.end().gt(self.inbound.rcv_nxt()) {
                DropReason::AfterFin
            } else {
                DropReason::Duplicate
            });
        }
        let fresh = (segment.seq + segment.len).gt(self.inbound.rcv_nxt());
        if fresh
            && self.path.state() != State::Established
            && (self.inbound.flags.contains(InFlags::READ_SHUT) || self.path.orphan)
        {
            // > RFC 9293 section 3.6.1: If such a host issues a CLOSE call while received data is
            // > still pending in the TCP connection, or if new data is received after CLOSE is
            // > called, its TCP implementation SHOULD send a RST to show that data was lost.
            let reset = Reset { seq: segment.header.ack, ack: false };
            self.finish(Event::Reset, None);
            self.life.set_reset(reset);
            return drop_for(DropReason::ReceiveClosed);
        }
        let cut = self.trim(segment)?;
        self.take_classic_mark(segment.header, segment.len, segment.arrival.ecn);
        self.queue_text(env, segment, cut)
    }

    /// Cuts off payload outside the window. Returns whether there was any.
    fn trim(&mut self, segment: &mut Segment<'_>) -> Result<bool, Disposition> {
        // > RFC 9293 section 3.10.7.4: one could tailor actual segments to fit this assumption by
        // > trimming off any portions that lie outside the window
        let limit = self.inbound.fin().map_or(self.inbound.edge, |fin| fin.min(self.inbound.edge));
        let keep = limit.saturating_since(segment.seq).min(segment.len);
        let cut = keep < segment.len;
        if cut {
            truncate(&mut segment.payload, keep as usize);
        }
        if keep == 0 {
            self.inbound.ack.duplicate(&self.path);
            return Err(Disposition::Dropped(
                if self.inbound.fin().is_some() && limit.lt(self.inbound.edge) {
                    DropReason::AfterFin
                } else {
                    DropReason::OutsideWindow
                },
            ));
        }
        Ok(cut)
    }

    /// Queues the text of a segment; `cut`: a part outside the window was cut off.
    fn queue_text(&mut self, env: &mut Env<'_>, segment: &mut Segment<'_>, cut: bool) -> Step {
        let had_gaps = self.inbound.queue.has_gaps();
        let payload = core::mem::take(&mut segment.payload);
        let inserted = self.inbound.insert(env, segment.seq, payload);
        if let Some((left, right)) = inserted.duplicate {
            self.inbound.note_dsack(&self.path, left, right);
        }
        if inserted.advanced > 0 {
            self.inbound.on_data_arrived(
                &self.path,
                &self.out.transfer.rtt,
                env.now,
                segment.header,
                segment.len,
            );
        }
        // > RFC 5681 section 3.2: a TCP receiver SHOULD send an immediate ACK when the incoming
        // > segment fills in all or part of a gap in the sequence space.
        //
        // Each segment gets one: a sender without SACK counts them.
        if inserted.advanced == 0 {
            self.inbound.ack.duplicate(&self.path);
        } else if had_gaps || cut || inserted.dropped.is_some() {
            self.inbound.ack.at_once();
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

    /// > Eighth, check the FIN bit: [...] If the FIN bit is set, signal the user "connection closing"
    /// > and return any pending RECEIVEs with same message, advance RCV.NXT over the FIN, and send an
    /// > acknowledgment for the FIN. Note that FIN implies PUSH for any segment text not yet
    /// > delivered to the user.
    pub(crate) fn eighth_fin(&mut self, now: Instant, segment: &Segment<'_>) -> Step {
        let open = self.path.state().can_receive();
        if segment.has(Flags::FIN) {
            let (fin, inbound) = (segment.seq + segment.len, &mut self.inbound);
            if inbound.has_fin() {
                // As Linux: its number is reported like those of data (RFC 2883).
                if fin.lt(inbound.rcv_nxt()) {
                    inbound.note_dsack(&self.path, fin, fin + 1);
                }
                // > Remain in the CLOSE-WAIT state. [...] Remain in the CLOSING state. [...] Remain
                // > in the LAST-ACK state.
                inbound.ack.at_once();
            } else if open && fin.le(inbound.edge) && fin.ge(inbound.queue.next()) {
                // A FIN beyond a gap is remembered.
                inbound.note_fin(fin);
                inbound.ack.at_once();
            }
        }
        if open && self.inbound.fin() == Some(self.inbound.queue.next()) && !self.inbound.has_fin()
        {
            self.inbound.flags.insert(InFlags::FIN_RECEIVED);
            self.inbound.ack.at_once();
            self.path.transition(Event::Fin);
            if self.path.state() == State::TimeWait {
                self.enter_time_wait(now);
            }
        }
        Ok(())
    }

    /// Processes an ICMP error that quotes a segment of this connection.
    ///
    /// > RFC 5927 section 4.1: TCP SHOULD check that the TCP sequence number contained in the payload
    /// > of the ICMP error message is within the range SND.UNA =< SEG.SEQ < SND.NXT.
    ///
    /// Returns whether it is in that range; if not, it is forged or too late.
    pub fn handle_icmp(&mut self, env: &mut Env<'_>, notice: IcmpNotice) -> bool {
        let _ = env;
        let outstanding =
            notice.seq.since(self.out.transfer.snd.una) < self.out.transfer.in_flight();
        if !outstanding {
            return false;
        }
        match notice.kind {
            IcmpKind::PacketTooBig { mss } => self.on_path_mss(mss),
            IcmpKind::Unreachable { error, .. } => match self.path.state() {
                // As Linux: the application gets the error at once, unless it has already accepted.
                State::SynReceived if self.life.flags.contains(LifeFlags::ACCEPTED_EARLY) => {
                    self.life.soft_error = Some(error);
                }
                State::SynSent | State::SynReceived => self.finish(Event::Expire, Some(error)),
                // RFC 5927 section 5.2: once synchronised, even a hard error is a soft one.
                _ => self.life.soft_error = Some(error),
            },
        }
        true
    }

    /// The limits of the link or path have changed.
    pub fn set_link_limits(&mut self, link: LinkLimits) {
        if link.mss > self.path.link.mss {
            self.out.transfer.on_longer_path(&self.path);
        }
        self.path.link = link;
    }

    /// RFC 1191 section 6.3, RFC 8201 section 5.4: data is sent again in smaller segments.
    fn on_path_mss(&mut self, mss: u16) {
        let (mss, mut link) = (mss.max(MIN_PATH_MSS), self.path.link);
        if mss >= link.mss {
            return;
        }
        if link.max_super_payload <= u32::from(link.mss) {
            // No super-frames before, none now.
            link.max_super_payload = u32::from(mss);
        }
        link.mss = mss;
        self.path.link = link;
        if self.path.state().is_synchronized() {
            self.out.transfer.on_too_big(self.out.transfer.send_mss(&self.path));
        } else if self.path.state() == State::SynSent
            && self.life.fast_open().is_some_and(|f| f.syn_data > 0)
        {
            // A SYN with data was too big. As in Linux it leaves again at once without data, and
            // announces the path's MSS, because the reverse path may have the same limit.
            self.path.link = LinkLimits { recv_mss: mss, ..link };
            self.life.flags.insert(LifeFlags::SYN_RESENT);
            self.out.transfer.flight.mark_first_lost();
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
