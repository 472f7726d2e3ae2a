//! Byte path, step R5, before anything flows: SYNs, what they say, and becoming established.

use pagewire_mem::Instant;

use crate::connection::{Connection, Env};
use crate::error::{DropReason, TcpError};
use crate::header::{Flags, TcpHeader};
use crate::inbound::assembler::ReceiveQueue;
use crate::inbound::window;
use crate::input::{Segment, Step, drop_for};
use crate::life::state::Event;
use crate::life::{LifeFlags, Reset};
use crate::limits::{DEFAULT_MSS, MAX_WINDOW_SCALE, MIN_SEND_MSS};
use crate::outbound::OutFlags;
use crate::path::{PathFlags, seconds};
use crate::segment::Disposition;

impl Connection {
    /// Section 3.10.7.3: a segment arrives in SYN-SENT.
    pub(crate) fn in_syn_sent(&mut self, env: &mut Env<'_>, segment: &mut Segment<'_>) -> Step {
        let header = segment.header;
        // > First, check the ACK bit: [...] If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset
        // > (unless the RST bit is set, if so drop the segment and return) <SEQ=SEG.ACK><CTL=RST>
        // > [...] and discard the segment.
        let acks_syn = segment.has(Flags::ACK);
        if acks_syn && !(header.ack.gt(self.out.snd.iss) && header.ack.le(self.out.snd.nxt)) {
            if segment.has(Flags::RST) {
                return drop_for(DropReason::RstInvalid);
            }
            self.life.reset = Some(Reset { seq: header.ack, ack: false });
            return drop_for(DropReason::AckUnsent);
        }
        // > Second, check the RST bit: [...] If the ACK was acceptable, then signal to the user "error:
        // > connection reset", drop the segment, enter CLOSED state, delete TCB, and return.
        // > Otherwise (no ACK), drop the segment and return.
        if segment.has(Flags::RST) {
            if !acks_syn {
                return drop_for(DropReason::RstInvalid);
            }
            self.finish(Event::Reset, Some(TcpError::ConnectionRefused));
            return Ok(());
        }
        // As Linux (RFC 7323 names the check for SYN,ACKs in section 3.2 no more than as the use of
        // TSecr): an answer to a SYN that was never sent is one to somebody else's.
        if let (true, Some((_, echo))) = (self.path.has_timestamps(), header.options.timestamps)
            && acks_syn
            && segment.has(Flags::SYN)
            && echo != 0
            && !self.path.sent_timestamp(env.now, echo)
        {
            self.life.reset = Some(Reset { seq: header.ack, ack: false });
            return drop_for(DropReason::Paws);
        }
        // > Fourth, check the SYN bit: [...] Fifth, if neither of the SYN or RST bits is set, then
        // > drop the segment and return.
        if !segment.has(Flags::SYN) {
            return drop_for(DropReason::Flags);
        }
        // > RCV.NXT is set to SEG.SEQ+1, IRS is set to SEG.SEQ.
        self.on_heard(env.now);
        self.take_syn(env.now, header, segment.arrival.ecn);
        if !acks_syn {
            // > Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment
            // > <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK> and send it.
            //
            // Text that came along is not kept: the peer will send it again.
            self.path.transition(Event::Syn);
            self.out.flight.mark_first_lost();
            return Ok(());
        }
        // > SND.UNA should be advanced to equal SEG.ACK (if there is an ACK), and any segments on
        // > the retransmission queue that are thereby acknowledged should be removed. If SND.UNA >
        // > ISS (our SYN has been ACKed), change the connection state to ESTABLISHED, form an ACK
        // > segment <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK> and send it.
        self.hear_ack(env.now, header, 0).map_err(Disposition::Dropped)?;
        self.end_fast_open(header);
        self.path.transition(Event::SynAck);
        self.on_established(env.now);
        self.acknowledge_syn(env.now);
        // > If there are other controls or text in the segment, then continue processing at the
        // > sixth step under Section 3.10.7.4 where the URG bit is checked; otherwise, return.
        segment.seq = header.seq + 1;
        self.inbound.sixth_urgent(&self.path, env, segment);
        let text = self.seventh_text(env, segment);
        self.eighth_fin(env.now, segment)?;
        text
    }

    pub(crate) fn on_established(&mut self, now: Instant) {
        self.life.flags.insert(LifeFlags::CONNECTED);
        self.out.snd.small_end = self.out.snd.small_end.max(self.out.snd.una);
        // As Linux: silence is counted from here on.
        self.inbound.data_at = now;
        self.out.grow_send_buffer(&self.path);
        // Silence is counted from here on.
        (self.inbound.data_at, self.out.sent_at) = (now, now);
        // Connections that come in by the thousand and fall idle: the record of the SYN was all.
        self.out.flight.shrink();
        if self.life.flags.contains(LifeFlags::SYN_RESENT) {
            // > RFC 6298 section 5.7: if the timer expires awaiting the ACK of a SYN segment [...]
            // > the RTO MUST be re-initialized to 3 seconds when data transmission begins
            if self.out.rtt.srtt().is_none() {
                self.out.rtt.on_syn_timed_out();
            }
            // Linux forgives one: it is the one second of RFC 6298 that may have been too short.
            if self.out.stats.retransmits > 1 {
                self.out.congestion.on_syn_lost();
            }
        }
        self.out.start_mtu_search(&self.path, now);
        self.life.start_keepalive(&self.path, now);
        // The application closed before the handshake was done.
        if self.out.flags.contains(OutFlags::FIN_QUEUED) {
            self.path.transition(Event::Close);
        }
    }

    /// Learns what a SYN says: the peer's first number, its window and its options. An option
    /// counts if both sides offer it. `ecn` are the ECN bits of its IP header.
    pub(crate) fn take_syn(&mut self, now: Instant, syn: &TcpHeader, ecn: u8) {
        let first = syn.seq + 1;
        self.inbound.irs = syn.seq;
        self.inbound.queue = ReceiveQueue::new(first);
        self.inbound.acked = first;
        // > RFC 7323 section 2.2: The window field in a segment where the SYN bit is set (i.e., a
        // > <SYN> or <SYN,ACK>) MUST NOT be scaled.
        // Before the peer's numbers are known, the edge counts from 0: what our SYN told.
        self.inbound.edge = first + window::initial(&self.path.config).max(self.inbound.edge.0);
        self.out.snd.window = u32::from(syn.window);
        self.out.snd.max_window = self.out.snd.window;
        self.out.snd.wl1 = syn.seq;
        self.out.snd.wl2 =
            if syn.flags.contains(crate::Flags::ACK) { syn.ack } else { self.out.snd.iss };

        // > RFC 9293 section 3.7.1: If an MSS Option is not received at connection setup, TCP
        // > implementations MUST assume a default send MSS of 536 (576 - 40) for IPv4
        self.out.snd.peer_mss = syn.options.mss.unwrap_or(DEFAULT_MSS).max(MIN_SEND_MSS);
        // > RFC 7323 section 2.2: both sides MUST send Window Scale options in their <SYN>
        // > segments to enable window scaling in either direction.
        match syn.options.window_scale {
            Some(scale) if self.path.config.window_scaling => {
                self.out.snd.scale = scale.min(MAX_WINDOW_SCALE);
                self.path.flags.insert(PathFlags::SCALING);
            }
            _ => (self.out.snd.scale, self.inbound.scale) = (0, 0),
        }
        match syn.options.timestamps {
            Some((value, _)) if self.path.flags.contains(PathFlags::TIMESTAMPS) => {
                self.path.ts.recent = value;
                self.path.ts.recent_at = seconds(now);
            }
            _ => self.path.flags.remove(PathFlags::TIMESTAMPS),
        }
        if !syn.options.sack_permitted {
            self.path.flags.remove(PathFlags::SACK);
        }
        // A first guess at what the peer will send, until it has.
        self.inbound.mss = self.out.snd.peer_mss.min(self.path.announced_mss());
        self.out.negotiate_ecn(&self.path, syn, ecn);
    }
}
