//! Byte path, step R5: a segment arrives (RFC 9293 section 3.10.7).
//!
//! The steps are in the order of section 3.10.7.4, one function each. A step checks first and
//! changes state last; `Err(why)` ends the processing. SYN-SENT and TIME-WAIT are in `life/`. The
//! next segment of an undisturbed transfer (`predicted`) skips checks.

use pagewire_mem::{Frag, FragVec, Instant};

use crate::connection::Connection;
use crate::error::{DropReason, TcpError};
use crate::header::{Flags, TcpHeader};
use crate::life::state::{Event, State};
use crate::life::{Reset, defer, handshake, time_wait};
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
        if predicted(self, header, len) {
            return take_predicted(self, env, header, payload, len, arrival);
        }
        let mut segment = Segment { header, payload, len, seq: header.seq, arrival };
        let step = match self.path.state() {
            State::Closed | State::Listen => drop_for(DropReason::Closed),
            State::SynSent => handshake::in_syn_sent(self, env, &mut segment),
            State::TimeWait => time_wait::in_time_wait(self, env.now, &segment),
            _ => in_order(self, env, &mut segment),
        };
        match step {
            Ok(()) => Disposition::Accepted,
            Err(disposition) => disposition,
        }
    }

    /// A segment with valid numbers arrived: it comes from the peer.
    pub(crate) fn on_heard(&mut self, now: Instant) {
        self.path.on_heard(now);
        self.life.on_heard();
        self.out.on_heard();
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
        if let (true, Some((value, _))) = (self.path.has_timestamps(), header.options.timestamps)
            && seq.le(self.inbound.acked())
            && !self.path.timestamps().is_stale(now, value)
        {
            self.path.timestamps_mut().set_recent(now, value);
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
            && (self.inbound.is_shut() || self.path.is_orphan())
        {
            // > RFC 9293 section 3.6.1: If such a host issues a CLOSE call while received data is
            // > still pending in the TCP connection, or if new data is received after CLOSE is
            // > called, its TCP implementation SHOULD send a RST to show that data was lost.
            let reset = Reset { seq: segment.header.ack, ack: false };
            self.finish(Event::Reset, None);
            self.life.send_reset(reset);
            return drop_for(DropReason::ReceiveClosed);
        }
        let cut = self.inbound.trim(&self.path, segment)?;
        take_classic_mark(self, segment.header, segment.len, segment.arrival.ecn);
        self.inbound.take_text(&self.path, self.out.transfer.rtt(), env, segment, cut)
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
                time_wait::enter_time_wait(self, now);
            }
        }
        Ok(())
    }
}

/// Whether this is the next segment of an undisturbed transfer, in either direction.
#[inline]
fn predicted(conn: &Connection, header: &TcpHeader, len: u32) -> bool {
    const RELEVANT: Flags =
        Flags::SYN.union(Flags::FIN).union(Flags::RST).union(Flags::URG).union(Flags::ACK);
    let fresh = match (conn.path.has_timestamps(), header.options.timestamps) {
        (true, Some((value, _))) => !conn.path.timestamps().is_older(value),
        (true, None) => false,
        (false, _) => true,
    };
    conn.path.state() == State::Established
        && header.flags & RELEVANT == Flags::ACK
        && header.ack.between(conn.out.transfer.snd().una, conn.out.transfer.snd().nxt)
        && fresh
        && header.options.sack.is_empty()
        && conn.inbound.is_next(header.seq, len)
}

/// The steps that a predicted segment needs: acknowledgement and payload.
#[inline]
fn take_predicted(
    conn: &mut Connection,
    env: &mut Env<'_>,
    header: &TcpHeader,
    payload: FragVec,
    len: u32,
    arrival: Arrival,
) -> Disposition {
    conn.on_heard(env.now);
    conn.remember_timestamp(env.now, header, header.seq);
    if let Err(reason) = conn.hear_ack(env.now, header, len) {
        return Disposition::Dropped(reason);
    }
    if !conn.out.transfer.loss().ecn.is_empty() {
        if conn.out.transfer.loss().ecn.contains(EcnFlags::ACCURATE) {
            take_accurate_mark(conn, len, arrival);
        } else {
            take_classic_mark(conn, header, len, arrival.ecn);
        }
    }
    if len > 0 {
        let inserted = conn.inbound.insert(env, header.seq, payload);
        if inserted.advanced > 0 {
            conn.inbound.on_data_arrived(&conn.path, conn.out.transfer.rtt(), env.now, header, len);
            conn.inbound.schedule_ack(
                &conn.path,
                conn.out.transfer.rtt(),
                env.now,
                len,
                header.flags.contains(Flags::PSH),
            );
        }
        if let Some(reason) = inserted.dropped {
            conn.inbound.ack.at_once();
            return Disposition::Dropped(reason);
        }
    }
    Disposition::Accepted
}

fn take_accurate_mark(conn: &mut Connection, len: u32, arrival: Arrival) {
    let waiting = conn.inbound.rcv_nxt() != conn.inbound.acked();
    if conn.out.transfer.take_accurate(len, arrival, waiting) {
        conn.inbound.ack.at_once();
    }
}

fn take_classic_mark(conn: &mut Connection, header: &TcpHeader, len: u32, bits: u8) {
    let (due, quick) = conn.out.transfer.take_classic(header, len, bits);
    if due {
        conn.inbound.ack.at_once();
    }
    if quick > 0 {
        conn.inbound.ack.quicken(quick);
    }
}

fn in_order(conn: &mut Connection, env: &mut Env<'_>, segment: &mut Segment<'_>) -> Step {
    if conn.inbound.is_syn_again(&conn.path, segment) {
        if conn.out.transfer.take_syn_again(&conn.path, segment.header, segment.arrival.ecn) {
            conn.life.send_reset(Reset { seq: conn.out.transfer.snd().nxt, ack: true });
            conn.finish(Event::Reset, None);
            return drop_for(DropReason::Flags);
        }
        conn.out.transfer.resend_syn();
        return drop_for(DropReason::Duplicate);
    }
    if segment.has(Flags::SYN | Flags::ACK) && segment.seq == conn.inbound.irs() {
        conn.out.transfer.take_syn_ack_again(segment.header, segment.arrival.ecn);
    }
    conn.inbound.check_timestamp(&conn.path, env.now, segment)?;
    conn.inbound.first_sequence(&conn.path, env.now, segment)?;
    conn.on_heard(env.now);
    second_reset(conn, env.now, segment)?;
    // Third: security and compartment are not implemented, as everywhere.
    fourth_syn(conn, env.now, segment)?;
    fifth_ack(conn, env.now, segment)?;
    if conn.out.transfer.loss().ecn.contains(EcnFlags::ACCURATE) {
        take_accurate_mark(conn, segment.len, segment.arrival);
    }
    conn.remember_timestamp(env.now, segment.header, segment.seq);
    conn.inbound.sixth_urgent(&conn.path, env, segment);
    let text = conn.seventh_text(env, segment);
    conn.eighth_fin(env.now, segment)?;
    text
}

/// > Second, check the RST bit: [...] 1) If the RST bit is set and the sequence
/// > number is outside the current receive window, silently drop the segment. 2) If the RST bit
/// > is set and the sequence number exactly matches the next expected sequence number (RCV.NXT),
/// > then TCP endpoints MUST reset the connection [...] 3) If the RST bit is set and the sequence
/// > number does not exactly match the next expected sequence value, yet is within the current
/// > receive window, TCP endpoints MUST send an acknowledgment (challenge ACK).
fn second_reset(conn: &mut Connection, now: Instant, segment: &Segment<'_>) -> Step {
    if !segment.has(Flags::RST) {
        return Ok(());
    }
    if segment.seq != conn.inbound.rcv_nxt() {
        conn.inbound.challenge(&conn.path, now);
        if conn.path.state() == State::Established && conn.inbound.bytes_received() == 0 {
            conn.life.suspect_black_hole();
        }
        return drop_for(DropReason::RstNotNext);
    }
    let active = conn.path.is_active();
    let error = match conn.path.state() {
        // > If this connection was initiated with a passive OPEN (i.e., came from
        // > the LISTEN state), then return this connection to LISTEN state and return. The user
        // > need not be informed. If this connection was initiated with an active OPEN (i.e.,
        // > came from SYN-SENT state), then the connection was refused; signal the user
        // > "connection refused".
        State::SynReceived if active => Some(TcpError::ConnectionRefused),
        // The application may have it already, or its data.
        State::SynReceived if conn.path.is_fast_open_server() => Some(TcpError::ConnectionReset),
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
    conn.finish(Event::Reset, error);
    Err(Disposition::Accepted)
}

/// > Fourth, check the SYN bit: [...] RFC 5961 recommends that in these synchronized states, if the
/// > SYN bit is set, irrespective of the sequence number, TCP endpoints MUST send a "challenge
/// > ACK" to the remote peer
///
/// Except the SYN that completes a simultaneous open (RFC 9293 section 3.5, figure 8).
fn fourth_syn(conn: &mut Connection, now: Instant, segment: &mut Segment<'_>) -> Step {
    if !segment.has(Flags::SYN) {
        return Ok(());
    }
    let completes = conn.path.state() == State::SynReceived
        && segment.has(Flags::ACK)
        && segment.seq == conn.inbound.irs()
        && segment.header.ack == conn.out.transfer.snd().nxt;
    if completes {
        // As Linux: the peer's repeated SYN is acknowledged as a duplicate.
        conn.inbound.note_twice(&conn.path, segment.seq, segment.seq + 1);
        conn.inbound.ack.at_once();
        segment.seq += 1;
        return Ok(());
    }
    conn.inbound.challenge(&conn.path, now);
    drop_for(DropReason::SynUnexpected)
}

/// > Fifth, check the ACK field: if the ACK bit is off, drop the segment and return
fn fifth_ack(conn: &mut Connection, now: Instant, segment: &Segment<'_>) -> Step {
    if !segment.has(Flags::ACK) {
        return drop_for(DropReason::AckMissing);
    }
    let header = segment.header;
    if conn.path.state() == State::SynReceived {
        // > If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED state and continue
        // > processing [...] If the segment acknowledgment is not acceptable, form a reset
        // > segment <SEQ=SEG.ACK><CTL=RST> and send it.
        if !(header.ack.gt(conn.out.transfer.snd().una)
            && header.ack.le(conn.out.transfer.snd().nxt))
        {
            conn.life.send_reset(Reset { seq: header.ack, ack: false });
            return drop_for(DropReason::AckUnsent);
        }
        if conn.out.transfer.is_deferring(&conn.path) && segment.end() == conn.inbound.irs() + 1 {
            return defer::defer(conn, now, segment);
        }
    }
    conn.hear_ack(now, header, segment.space()).map_err(Disposition::Dropped)?;
    if conn.path.state() == State::SynReceived {
        conn.path.transition(Event::AckOfSyn);
        conn.life.forget_fast_open();
        handshake::on_established(conn, now);
    }

    // What is new once our FIN is acknowledged.
    let fin_acked = conn.out.is_closed();
    match conn.path.state() {
        // > if the FIN segment is now acknowledged, then enter FIN-WAIT-2
        State::FinWait1 if fin_acked => {
            conn.path.transition(Event::AckOfFin);
            conn.life.limit_fin_wait2(&conn.path, now);
        }
        // > if the ACK acknowledges our FIN, then enter the TIME-WAIT state
        State::Closing if fin_acked => {
            conn.path.transition(Event::AckOfFin);
            time_wait::enter_time_wait(conn, now);
        }
        // > If our FIN is now acknowledged, delete the TCB, enter the CLOSED state, and return.
        State::LastAck if fin_acked => {
            conn.finish(Event::AckOfFin, None);
            return Err(Disposition::Accepted);
        }
        _ => {}
    }
    Ok(())
}
