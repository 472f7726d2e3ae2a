//! Byte path, step R5: a segment arrives (RFC 9293 section 3.10.7).
//!
//! The steps are in the order of section 3.10.7.4, one function each. A step checks first and
//! changes state last; `Err(why)` ends the processing. SYN-SENT and TIME-WAIT are in `life/`. The
//! next segment of an undisturbed transfer (`predicted`) skips checks.

use pagewire_mem::{Frag, FragVec, Instant};

use crate::connection::Connection;
use crate::error::{DropReason, TcpError};
use crate::header::{Flags, TcpHeader};
use crate::inbound::InFlags;
use crate::life::state::{Event, State};
use crate::life::{LifeFlags, Reset};
use crate::outbound::OutFlags;
use crate::outbound::ecn::EcnFlags;
use crate::segment::{Arrival, Disposition, Segment, Step, drop_for};
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
        self.inbound.count_in(len);
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

    /// A segment with valid numbers arrived: it comes from the peer.
    pub(crate) fn on_heard(&mut self, now: Instant) {
        self.path.last_received = now;
        self.life.keepalive_probes = 0;
        self.out.flags.insert(OutFlags::ACKED);
        self.out.flags.remove(OutFlags::MORE | OutFlags::REFUSED);
    }

    /// Processes the acknowledgement in a segment; see `Outbound::take_ack`.
    pub(crate) fn hear_ack(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        len: u32,
    ) -> Result<(), DropReason> {
        match self.out.take_ack(&self.path, now, header, len) {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.consider_shrinking(now);
                Ok(())
            }
            Err(reason) => {
                self.inbound.challenge(&self.path, now);
                Err(reason)
            }
        }
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
            self.inbound.note_twice(&self.path, segment.seq, end);
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
            self.life.reset = Some(reset);
            return drop_for(DropReason::ReceiveClosed);
        }
        let cut = self.inbound.trim(&self.path, segment)?;
        self.take_classic_mark(segment.header, segment.len, segment.arrival.ecn);
        self.inbound.take_text(&self.path, &self.out.transfer.rtt, env, segment, cut)
    }

    /// > Eighth, check the FIN bit: [...] If the FIN bit is set, signal the user "connection closing"
    /// > and return any pending RECEIVEs with same message, advance RCV.NXT over the FIN, and send an
    /// > acknowledgment for the FIN. Note that FIN implies PUSH for any segment text not yet
    /// > delivered to the user.
    pub(crate) fn eighth_fin(&mut self, now: Instant, segment: &Segment<'_>) -> Step {
        let fin = segment.has(Flags::FIN).then_some(segment.seq + segment.len);
        if self.inbound.take_fin(&self.path, fin, self.path.state().can_receive()) {
            self.path.transition(Event::Fin);
            if self.path.state() == State::TimeWait {
                self.enter_time_wait(now);
            }
        }
        Ok(())
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
        self.on_heard(env.now);
        self.remember_timestamp(env.now, header, header.seq);
        if let Err(reason) = self.hear_ack(env.now, header, len) {
            return Disposition::Dropped(reason);
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
                self.inbound.schedule_ack(
                    &self.path,
                    &self.out.transfer.rtt,
                    env.now,
                    len,
                    header.flags.contains(Flags::PSH),
                );
            }
            if let Some(reason) = inserted.dropped {
                self.inbound.ack.at_once();
                return Disposition::Dropped(reason);
            }
        }
        Disposition::Accepted
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
            self.inbound.ack.quicken(quick);
        }
    }

    fn in_order(&mut self, env: &mut Env<'_>, segment: &mut Segment<'_>) -> Step {
        if self.inbound.is_syn_again(&self.path, segment) {
            if self.out.transfer.take_syn_again(&self.path, segment.header, segment.arrival.ecn) {
                self.life.reset = Some(Reset { seq: self.out.transfer.snd.nxt, ack: true });
                self.finish(Event::Reset, None);
                return drop_for(DropReason::Flags);
            }
            self.out.transfer.resend_syn();
            return drop_for(DropReason::Duplicate);
        }
        if segment.has(Flags::SYN | Flags::ACK) && segment.seq == self.inbound.irs {
            self.out.transfer.take_syn_ack_again(segment.header, segment.arrival.ecn);
        }
        self.inbound.check_timestamp(&self.path, env.now, segment)?;
        self.inbound.first_sequence(&self.path, env.now, segment)?;
        self.on_heard(env.now);
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
            self.inbound.challenge(&self.path, now);
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
            && segment.seq == self.inbound.irs
            && segment.header.ack == self.out.transfer.snd.nxt;
        if completes {
            // As Linux: the peer's repeated SYN is acknowledged as a duplicate.
            self.inbound.note_twice(&self.path, segment.seq, segment.seq + 1);
            self.inbound.ack.at_once();
            segment.seq += 1;
            return Ok(());
        }
        self.inbound.challenge(&self.path, now);
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
                self.life.reset = Some(Reset { seq: header.ack, ack: false });
                return drop_for(DropReason::AckUnsent);
            }
            if self.out.transfer.is_deferring(&self.path) && segment.end() == self.inbound.irs + 1 {
                // Deferred accept: the connection is complete only with data. The SYN,ACK's timer runs
                // on, and at its last timeout the SYN,ACK leaves again: its answer completes the handshake.
                self.remember_timestamp(now, segment.header, segment.seq);
                self.life.flags.insert(LifeFlags::DEFERRED);
                return drop_for(DropReason::Deferred);
            }
        }
        self.hear_ack(now, header, segment.space()).map_err(Disposition::Dropped)?;
        if self.path.state() == State::SynReceived {
            self.path.transition(Event::AckOfSyn);
            self.life.fast_open = None;
            self.on_established(now);
        }

        // What is new once our FIN is acknowledged.
        let fin_acked = self.out.is_closed();
        match self.path.state() {
            // > if the FIN segment is now acknowledged, then enter FIN-WAIT-2
            State::FinWait1 if fin_acked => {
                self.path.transition(Event::AckOfFin);
                self.life.limit_fin_wait2(&self.path, now);
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
}
