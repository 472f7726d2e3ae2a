//! TCP's side of connection requests: SYNs to a listener that shows them to the application before they
//! are answered. The table of requests is in `listen/requests/`.

use std::sync::Arc;

use pagewire_mem::{FragVec, Instant};
use pagewire_tcp::{Arrival, Disposition, Flags, Seq, State, TcpHeader, TimeWaitStep};

use super::TcpSockets;
use super::socket::{Owner, TcpSocket};
use crate::counters::DropReason;
use crate::error::Error;
use crate::event::Readiness;
use crate::limits::MAX_SOCKETS;
use crate::sockets::Context;
use crate::sockets::ids::TcpId;
use crate::sockets::listen::requests::table::{Cancel, PendingSyn};
use crate::sockets::listen::{ListenerSegment, OldConnection};
use crate::sockets::table::Socket;

impl TcpSockets {
    /// Processes a segment to a listener that shows SYNs before it answers.
    ///
    /// As Linux, options of congestion notification in a SYN change nothing here: a SYN is what has
    /// SYN, and neither ACK, RST nor FIN. Data in a SYN is left to its repetition.
    pub(crate) fn request_input(
        &mut self,
        cx: &mut Context,
        now: Instant,
        listener: u32,
        segment: ListenerSegment<'_>,
        payload_len: usize,
    ) {
        let ListenerSegment { tuple, header, ecn, hop_limit, .. } = segment;
        let Some(requests) = cx.requests(listener) else { return };
        let known = requests.find(&tuple);
        let flags = header.flags & (Flags::RST | Flags::ACK | Flags::SYN | Flags::FIN);
        if flags != Flags::SYN {
            if let Some(index) = known
                && flags.contains(Flags::RST)
                && requests.at(index).is_some_and(|r| header.seq == r.syn.seq + 1)
            {
                return cx.cancel_request(listener, index, Cancel::Reset);
            }
            cx.net.counters.drop_one(DropReason::TcpListenNotSyn);
            if flags.contains(Flags::ACK) {
                self.send_reset(cx, now, &tuple, header, payload_len);
            }
            return;
        }
        if let Some(index) = known {
            let Some(request) = requests.at_mut(index) else { return };
            if request.syn.seq == header.seq {
                request.repeat(now, header, ecn);
                return cx.net.counters.drop_one(DropReason::TcpRequestRepeated);
            }
            // The sender has used the port for another attempt.
            cx.cancel_request(listener, index, Cancel::Reset);
        }
        let new = PendingSyn::new(now, tuple, header, (ecn, hop_limit));
        let lapses_at = new.lapses_at();
        let Context { net, table, wheel, .. } = &mut *cx;
        let Some(socket) = table.listener_mut(listener) else { return };
        let Some(requests) = socket.requests.as_mut() else { return };
        if !requests.insert(new) {
            return net.counters.drop_one(DropReason::TcpRequestLimit);
        }
        net.counters.tcp_requests += 1;
        if socket.reporting.every_arrival {
            socket.reporting.reported &= !Readiness::READABLE;
        }
        if !wheel.covers(listener, lapses_at) {
            wheel.schedule(listener, lapses_at);
        }
        cx.check_later(listener);
    }

    /// Opens the connection of a request.
    pub(crate) fn accept_request(
        &mut self,
        cx: &mut Context,
        now: Instant,
        listener: u32,
        request: &PendingSyn,
    ) -> Result<TcpId, Error> {
        let PendingSyn { tuple, syn, ecn, hop_limit, .. } = request;
        let old = match self.demux.find(&cx.table, tuple) {
            Some(index) => Some(reopenable(cx, now, index, syn).ok_or(Error::AddressInUse)?),
            None => None,
        };
        if cx.table.len() >= MAX_SOCKETS {
            return Err(Error::TooManySockets);
        }
        let socket = cx.table.listener(listener).ok_or(Error::NoSuchSocket)?;
        let (config, zerocopy) = (Arc::clone(&socket.config), socket.reporting.zerocopy);
        let extra = socket.inherited();
        let (tuple, header, ecn, hop_limit) = (*tuple, syn, *ecn, *hop_limit);
        let segment = ListenerSegment { tuple, header, ecn, hop_limit, old };
        let conn = self.passive(&cx.net, now, config, None, &segment);
        let mut socket = TcpSocket::new(now, conn, tuple, Owner::App);
        (socket.reporting.zerocopy, socket.extra) = (zerocopy, extra);
        if let Some(old) = old {
            self.make_way(cx, old.index);
        }
        let id = self.insert_connection(cx, socket)?;
        cx.net.counters.tcp_passive_opens += 1;
        cx.note_half_open(listener, id);
        Ok(TcpId(id))
    }
}

/// The connection at `index` if it is in TIME-WAIT and this SYN may replace it.
fn reopenable(
    cx: &mut Context,
    now: Instant,
    index: u32,
    syn: &TcpHeader,
) -> Option<OldConnection> {
    let last: Option<Seq> = match cx.table.at_mut(index)? {
        Socket::TimeWait(time_wait) => match time_wait.tcp.handle_segment(now, syn, 0) {
            TimeWaitStep::Reopens { iss_above } => Some(iss_above),
            _ => None,
        },
        Socket::Tcp(socket) if socket.conn.state() == State::TimeWait => {
            let arrival = Arrival { ecn: 0, gso_size: None };
            let step = socket.work(&mut cx.net.mem, now, |conn, env| {
                conn.handle_segment(env, syn, FragVec::new(), arrival)
            });
            match step {
                Disposition::SynInTimeWait { iss_above } => Some(iss_above),
                _ => None,
            }
        }
        _ => None,
    };
    Some(OldConnection { index, last: last? })
}
