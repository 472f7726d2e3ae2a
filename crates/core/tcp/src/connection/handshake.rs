//! Opening a connection: constructors, SYNs, SYN-SENT, and the transition to ESTABLISHED.

use std::sync::Arc;

use pagewire_mem::Instant;

use crate::config::{Config, LinkLimits};
use crate::connection::Connection;
use crate::error::{DropReason, TcpError};
use crate::header::{Flags, TcpHeader};
use crate::inbound::Inbound;
use crate::life::state::Event;
use crate::life::{Life, LifeFlags, Reset};
use crate::outbound::Outbound;
use crate::path::{Path, Ports};
use crate::segment::{Segment, Step, drop_for};
use crate::seq::Seq;
use crate::shared::Env;
use crate::syn_cookie::Cookie;

impl Connection {
    /// Opens actively (RFC 9293 section 3.10.1): [`poll_transmit`](Self::poll_transmit) returns the
    /// SYN. `iss` and `ts_offset` come from an [`IsnGenerator`](crate::IsnGenerator).
    pub fn connect(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
    ) -> Self {
        let mut conn = Self::new(now, config, link, ports, iss, ts_offset);
        conn.path.active = true;
        conn.path.transition(Event::OpenActive);
        conn
    }

    /// Opens passively from a listener's `syn`, in SYN-RECEIVED:
    /// [`poll_transmit`](Self::poll_transmit) returns the SYN,ACK.
    pub fn accept(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
        syn: &TcpHeader,
    ) -> Self {
        let mut conn = Self::new(now, config, link, ports, iss, ts_offset);
        conn.path.transition(Event::OpenPassive);
        conn.take_syn(now, syn, 0);
        conn.path.transition(Event::Syn);
        conn
    }

    /// Opens passively from a cookie, in SYN-RECEIVED, with the SYN,ACK sent. Pass the segment that
    /// returned the cookie to it next.
    pub fn from_cookie(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        ts_offset: u32,
        cookie: &Cookie,
    ) -> Self {
        let mut conn = Self::accept(now, config, link, ports, cookie.iss, ts_offset, &cookie.syn);
        conn.out.transfer.snd.nxt = cookie.iss + 1;
        conn.inbound.announce_first_window(&conn.path, conn.inbound.rcv_nxt());
        conn
    }

    /// Sets the ECN bits of the IP header of the SYN of an [accepted](Self::accept) connection.
    pub fn note_syn_mark(&mut self, bits: u8) {
        if let Some(accurate) = self.out.transfer.accurate_mut() {
            (accurate.syn, accurate.last) = (bits, bits);
        }
    }

    fn new(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
    ) -> Self {
        let out = Outbound::new(now, &config, iss);
        let inbound = Inbound::new(now, &config, link);
        let path = Path::new(now, config, link, ports, ts_offset);
        Self { path, life: Life::default(), out, inbound }
    }

    /// Reads the peer's SYN; an option counts if both offer it. `ecn`: the bits of its IP header.
    pub(crate) fn take_syn(&mut self, now: Instant, syn: &TcpHeader, ecn: u8) {
        self.path.take_syn(now, syn);
        self.out.transfer.take_syn(&self.path, syn, ecn);
        self.inbound.take_syn(&self.path, syn);
    }

    /// Section 3.10.7.3: a segment arrives in SYN-SENT.
    pub(crate) fn in_syn_sent(&mut self, env: &mut Env<'_>, segment: &mut Segment<'_>) -> Step {
        let header = segment.header;
        // > First, check the ACK bit: [...] If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset
        // > (unless the RST bit is set, if so drop the segment and return) <SEQ=SEG.ACK><CTL=RST>
        // > [...] and discard the segment.
        let acks_syn = segment.has(Flags::ACK);
        if acks_syn
            && !(header.ack.gt(self.out.transfer.snd.iss)
                && header.ack.le(self.out.transfer.snd.nxt))
        {
            if segment.has(Flags::RST) {
                return drop_for(DropReason::RstInvalid);
            }
            self.life.set_reset(Reset { seq: header.ack, ack: false });
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
        // As Linux: a SYN,ACK that echoes a timestamp of no SYN of ours answers another connection.
        let (stamps, began) = (&self.path.timestamps, self.path.last_received);
        let age = stamps.value(env.now).wrapping_sub(stamps.value(began));
        if let (true, Some((_, echo))) = (self.path.timestamps_ok, header.options.timestamps)
            && acks_syn
            && segment.has(Flags::SYN)
            && echo != 0
            && echo.wrapping_sub(stamps.value(began)) > age
        {
            self.life.set_reset(Reset { seq: header.ack, ack: false });
            return drop_for(DropReason::Paws);
        }
        // > Fourth, check the SYN bit: [...] Fifth, if neither of the SYN or RST bits is set, then
        // > drop the segment and return.
        if !segment.has(Flags::SYN) {
            return drop_for(DropReason::Flags);
        }
        // > RCV.NXT is set to SEG.SEQ+1, IRS is set to SEG.SEQ.
        self.on_segment_of_peer(env.now);
        self.take_syn(env.now, header, segment.arrival.ecn);
        if !acks_syn {
            // > Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment
            // > <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK> and send it.
            //
            // Text in the SYN is dropped: the peer will send it again.
            self.path.transition(Event::Syn);
            self.out.transfer.flight.mark_first_lost();
            return Ok(());
        }
        // > SND.UNA should be advanced to equal SEG.ACK (if there is an ACK), and any segments on
        // > the retransmission queue that are thereby acknowledged should be removed. If SND.UNA >
        // > ISS (our SYN has been ACKed), change the connection state to ESTABLISHED, form an ACK
        // > segment <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK> and send it.
        self.process_ack(env.now, header, 0)?;
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
        // As Linux: idle time counts from here on.
        self.inbound.data_at = now;
        let transfer = &mut self.out.transfer;
        transfer.flight.small_end = transfer.flight.small_end.max(transfer.snd.una);
        self.out.grow_send_buffer(&self.path);
        let transfer = &mut self.out.transfer;
        transfer.sent_at = now;
        // Frees the record of the SYN: many accepted connections stay idle.
        transfer.flight.shrink();
        if self.life.flags.contains(LifeFlags::SYN_RESENT) {
            // > RFC 6298 section 5.7: if the timer expires awaiting the ACK of a SYN segment [...]
            // > the RTO MUST be re-initialized to 3 seconds when data transmission begins
            if transfer.rtt.srtt().is_none() {
                transfer.rtt.on_syn_timed_out();
            }
            // Linux tolerates one, because the one second of RFC 6298 may have been too short.
            if transfer.losses().retransmits > 1 {
                transfer.congestion.on_syn_lost();
            }
        }
        transfer.start_mtu_search(&self.path, now);
        self.life.start_keepalive(&self.path, now);
        // The application closed during the handshake.
        if self.out.is_closing() {
            self.path.transition(Event::Close);
        }
    }
}
