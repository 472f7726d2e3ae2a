//! Opening a connection: constructors, SYNs, SYN-SENT, and the transition to ESTABLISHED.

use std::sync::Arc;

use pagewire_mem::Instant;

use crate::config::{Config, LinkLimits};
use crate::connection::Connection;
use crate::error::{DropReason, TcpError};
use crate::header::{Flags, TcpHeader};
use crate::inbound::Inbound;
use crate::life::fast_open::client;
use crate::life::state::Event;
use crate::life::{Life, LifeFlags, Reset};
use crate::outbound::Outbound;
use crate::path::{Path, Ports};
use crate::segment::{Disposition, Segment, Step, drop_for};
use crate::seq::Seq;
use crate::shared::Env;

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
        let mut conn = new(now, config, link, ports, iss, ts_offset);
        conn.path.set_active();
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
        let mut conn = new(now, config, link, ports, iss, ts_offset);
        conn.path.transition(Event::OpenPassive);
        take_syn(&mut conn, now, syn, 0);
        conn.path.transition(Event::Syn);
        conn
    }
}

fn new(
    now: Instant,
    config: Arc<Config>,
    link: LinkLimits,
    ports: Ports,
    iss: Seq,
    ts_offset: u32,
) -> Connection {
    let out = Outbound::new(now, &config, iss);
    let inbound = Inbound::new(now, &config, link);
    let path = Path::new(now, config, link, ports, ts_offset);
    Connection { path, life: Life::default(), out, inbound }
}

pub(crate) fn on_established(conn: &mut Connection, now: Instant) {
    conn.life.flags.insert(LifeFlags::CONNECTED);
    // As Linux: idle time counts from here on.
    conn.inbound.note_beginning(now);
    conn.out.on_established(&conn.path, now, conn.life.flags.contains(LifeFlags::SYN_RESENT));
    conn.life.start_keepalive(&conn.path, now);
    // The application closed during the handshake.
    if conn.out.is_closing() {
        conn.path.transition(Event::Close);
    }
}

/// Reads the peer's SYN; an option counts if both offer it. `ecn`: the bits of its IP header.
pub(crate) fn take_syn(conn: &mut Connection, now: Instant, syn: &TcpHeader, ecn: u8) {
    conn.path.take_syn(now, syn);
    conn.out.transfer.take_syn(&conn.path, syn, ecn);
    conn.inbound.take_syn(&conn.path, syn);
}

/// Section 3.10.7.3: a segment arrives in SYN-SENT.
pub(crate) fn in_syn_sent(
    conn: &mut Connection,
    env: &mut Env<'_>,
    segment: &mut Segment<'_>,
) -> Step {
    let header = segment.header;
    // > First, check the ACK bit: [...] If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset
    // > (unless the RST bit is set, if so drop the segment and return) <SEQ=SEG.ACK><CTL=RST>
    // > [...] and discard the segment.
    let acks_syn = segment.has(Flags::ACK);
    if acks_syn
        && !(header.ack.gt(conn.out.transfer.snd().iss)
            && header.ack.le(conn.out.transfer.snd().nxt))
    {
        if segment.has(Flags::RST) {
            return drop_for(DropReason::RstInvalid);
        }
        conn.life.reset = Some(Reset { seq: header.ack, ack: false });
        return drop_for(DropReason::AckUnsent);
    }
    // > Second, check the RST bit: [...] If the ACK was acceptable, then signal to the user "error:
    // > connection reset", drop the segment, enter CLOSED state, delete TCB, and return.
    // > Otherwise (no ACK), drop the segment and return.
    if segment.has(Flags::RST) {
        if !acks_syn {
            return drop_for(DropReason::RstInvalid);
        }
        conn.finish(Event::Reset, Some(TcpError::ConnectionRefused));
        return Ok(());
    }
    // As Linux: a SYN,ACK that echoes a timestamp of no SYN of ours answers another connection.
    if let (true, Some((_, echo))) = (conn.path.has_timestamps(), header.options.timestamps)
        && acks_syn
        && segment.has(Flags::SYN)
        && echo != 0
        && !conn.path.sent_timestamp(env.now, echo)
    {
        conn.life.reset = Some(Reset { seq: header.ack, ack: false });
        return drop_for(DropReason::Paws);
    }
    // > Fourth, check the SYN bit: [...] Fifth, if neither of the SYN or RST bits is set, then
    // > drop the segment and return.
    if !segment.has(Flags::SYN) {
        return drop_for(DropReason::Flags);
    }
    // > RCV.NXT is set to SEG.SEQ+1, IRS is set to SEG.SEQ.
    conn.on_heard(env.now);
    take_syn(conn, env.now, header, segment.arrival.ecn);
    if !acks_syn {
        // > Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment
        // > <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK> and send it.
        //
        // Text in the SYN is dropped: the peer will send it again.
        conn.path.transition(Event::Syn);
        conn.out.transfer.resend_syn();
        return Ok(());
    }
    // > SND.UNA should be advanced to equal SEG.ACK (if there is an ACK), and any segments on
    // > the retransmission queue that are thereby acknowledged should be removed. If SND.UNA >
    // > ISS (our SYN has been ACKed), change the connection state to ESTABLISHED, form an ACK
    // > segment <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK> and send it.
    conn.hear_ack(env.now, header, 0).map_err(Disposition::Dropped)?;
    client::end_fast_open(conn, header);
    conn.path.transition(Event::SynAck);
    on_established(conn, env.now);
    client::acknowledge_syn(conn, env.now);
    // > If there are other controls or text in the segment, then continue processing at the
    // > sixth step under Section 3.10.7.4 where the URG bit is checked; otherwise, return.
    segment.seq = header.seq + 1;
    conn.inbound.sixth_urgent(&conn.path, env, segment);
    let text = conn.seventh_text(env, segment);
    conn.eighth_fin(env.now, segment)?;
    text
}
