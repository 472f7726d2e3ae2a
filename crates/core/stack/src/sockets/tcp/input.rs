//! Input of TCP segments: each goes from step R4 to its connection (step R5), to a listener, or is reset.

use std::sync::Arc;

use pagewire_mem::{Frag, FragVec, Instant, PacketBuf};
use pagewire_tcp::{Arrival, Connection, Disposition, Flags, Seq, TcpHeader};

use super::socket::Owner;
use super::{TcpSockets, iss_above, tcp_link};
use crate::TcpConfig;
use crate::counters::DropReason;
use crate::event::Readiness;
use crate::net::{LinkId, Net, Received};
use crate::shards::PortKind;
use crate::sockets::Context;
use crate::sockets::listen::cookie::CookieOutcome;
use crate::sockets::listen::{ListenerSegment, Listeners, OldConnection};
use crate::sockets::tuple::Tuple;

/// A segment without its payload.
#[derive(Clone, Copy)]
pub(super) struct Segment<'a> {
    pub(super) header: &'a TcpHeader,
    pub(super) received: &'a Received,
    pub(super) arrival: Arrival,
}

/// Marks of IP and of the device that concern a segment.
fn arrival(received: &Received, packet: &PacketBuf) -> Arrival {
    Arrival { ecn: received.ecn, gso_size: packet.gso.map(|gso| gso.size) }
}

impl TcpSockets {
    /// Finds the socket of a TCP segment, whose checksum is verified; returns whether it is a connection.
    #[inline(always)]
    pub(crate) fn input(
        &mut self,
        cx: &mut Context,
        listeners: &Listeners,
        now: Instant,
        received: Received,
        packet: &mut PacketBuf,
    ) -> bool {
        let header = match TcpHeader::parse(packet.head()) {
            Ok((header, _)) => header,
            Err(error) => {
                cx.net.counters.drop_tcp(error.reason());
                return false;
            }
        };
        let tuple = Tuple {
            local: received.dst,
            remote: received.src,
            local_port: header.dst_port,
            remote_port: header.src_port,
        };
        let received = &{ received };
        if let Some(index) = self.demux.find(&cx.table, &tuple) {
            let segment = Segment { header: &header, received, arrival: arrival(received, packet) };
            self.connection_input(cx, listeners, now, index, &segment, packet.take_frags());
            return true;
        }
        self.input_to_listener(cx, listeners, now, tuple, (header, received), packet);
        false
    }

    /// Handles a segment of no connection.
    #[inline(never)]
    fn input_to_listener(
        &mut self,
        cx: &mut Context,
        listeners: &Listeners,
        now: Instant,
        tuple: Tuple,
        (header, received): (TcpHeader, &Received),
        packet: &mut PacketBuf,
    ) {
        if cx.net.pass_home(PortKind::Tcp, &tuple, received, packet) {
            return;
        }
        let came_by = cx.net.came_by(received);
        let segment = ListenerSegment::new(tuple, &header, received);
        if let Some(index) = listeners.binds.find(&tuple, came_by) {
            match listeners.take_cookie(self, cx, now, index, &segment) {
                CookieOutcome::None => {
                    listeners.input(self, cx, now, index, segment, packet);
                }
                CookieOutcome::Dropped => {}
                CookieOutcome::Connection(index) => {
                    let arrival = arrival(received, packet);
                    let payload = packet.take_frags();
                    // The echo carries options in place of the time.
                    let mut header = header;
                    if let Some((_, echo)) = &mut header.options.timestamps {
                        *echo = 0;
                    }
                    let segment = Segment { header: &header, received, arrival };
                    self.connection_input(cx, listeners, now, index, &segment, payload);
                }
            }
        } else if let Some(listener) = listeners.binds.wildcards.find(came_by) {
            self.request_input(cx, now, listener, segment, packet.frag_len());
        } else {
            cx.net.counters.drop_one(DropReason::TcpNoSocket);
            self.send_reset(cx, now, &tuple, &header, packet.frag_len());
        }
    }

    /// Hands a segment to the connection at `index`.
    fn connection_input(
        &mut self,
        cx: &mut Context,
        listeners: &Listeners,
        now: Instant,
        index: u32,
        segment: &Segment<'_>,
        payload: FragVec,
    ) {
        let Segment { header, received, arrival } = *segment;
        let Some(socket) = cx.table.tcp_mut(index) else {
            let len = payload.iter().map(Frag::len).sum();
            return self.time_wait_input(cx, listeners, now, index, segment, len);
        };
        let owner = socket.owner;
        if let Some(link) = socket.bound()
            && cx.net.came_by(received) != Some(link)
        {
            cx.net.counters.drop_one(DropReason::SocketOtherLink);
            return;
        }
        if let Owner::HalfOpen { listener } = owner
            && !header.flags.contains(Flags::RST)
            && header.flags.contains(Flags::ACK)
            && cx.table.listener_mut(listener).is_some_and(|l| l.is_full())
        {
            // As Linux, ignores the last acknowledgement: the SYN,ACK is sent again.
            cx.net.counters.drop_one(DropReason::TcpBacklogFull);
            return;
        }
        cx.note_unsent(now, index);
        let Some(socket) = cx.table.tcp_mut(index) else { return };
        // Data that arrives while the socket is readable is a new event if each arrival is one.
        let before = socket.reporting.every_arrival.then(|| socket.conn.queued_receive());
        let has_borrowed = cx.borrowed.concerns(&payload);
        let disposition = socket.work(&mut cx.net.mem, now, |conn, env| {
            conn.handle_segment(env, header, payload, arrival)
        });
        if before.is_some_and(|before| socket.conn.queued_receive() > before) {
            socket.reporting.reported &= !Readiness::READABLE;
        }
        match disposition {
            Disposition::Accepted => {
                let second = (now.as_millis() / 1000) as u16;
                if socket.reachable_at != second && socket.bound().is_none() {
                    socket.reachable_at = second;
                    let Tuple { local, remote, .. } = socket.tuple;
                    cx.net.handle_reachable(now, (local, remote));
                }
            }
            Disposition::Dropped(reason) => cx.net.counters.drop_tcp(reason),
            Disposition::SynInTimeWait { iss_above } => {
                self.reopen(cx, listeners, now, index, segment, iss_above);
                return;
            }
        }
        let opens = socket.conn.fast_open().is_opening();
        let has_extra = socket.extra.is_some();
        if has_borrowed {
            cx.watch_borrowed(now, index);
        }
        if let Owner::HalfOpen { listener } = owner {
            cx.promote(index, listener);
        }
        if opens {
            self.fast_open.learn(cx, now, index);
        }
        if has_extra {
            cx.uncount_fast_open(now, index, header.flags);
        }
        cx.touch_by_segment(now, index);
    }

    /// A SYN for a connection in TIME-WAIT opens a new one in its place, if there is a listener.
    fn reopen(
        &mut self,
        cx: &mut Context,
        listeners: &Listeners,
        now: Instant,
        index: u32,
        segment: &Segment<'_>,
        iss_above: Seq,
    ) {
        let Some(socket) = cx.table.tcp(index) else { return };
        let (tuple, old) = (socket.tuple, OldConnection { index, last: iss_above });
        if !self.reopen_by(cx, listeners, now, tuple, segment, old) {
            cx.net.counters.drop_one(DropReason::TcpNoSocket);
        }
    }

    /// Hands a SYN in place of a connection in TIME-WAIT to a listener; `false` if there is none.
    pub(super) fn reopen_by(
        &mut self,
        cx: &mut Context,
        listeners: &Listeners,
        now: Instant,
        tuple: Tuple,
        &Segment { header, received, .. }: &Segment<'_>,
        old: OldConnection,
    ) -> bool {
        let came_by = cx.net.came_by(received);
        let segment = ListenerSegment::new(tuple, header, received);
        if let Some(listener) = listeners.binds.find(&tuple, came_by) {
            let segment = ListenerSegment { old: Some(old), ..segment };
            listeners.input(self, cx, now, listener, segment, &mut PacketBuf::for_rx());
        } else if let Some(listener) = listeners.binds.wildcards.find(came_by) {
            // The answer searches for the old connection again.
            self.request_input(cx, now, listener, segment, 0);
        } else {
            return false;
        }
        true
    }

    /// Takes the connection at `index`, in TIME-WAIT, out of the demux for a new one.
    pub(crate) fn make_way(&mut self, cx: &mut Context, index: u32) {
        match cx.table.tcp(index) {
            // The application still has the old connection.
            Some(socket) if socket.owner != Owner::Closed => {
                self.leave_demux(cx, index);
            }
            _ => self.remove_connection(cx, index),
        }
    }

    /// The connection that a SYN opens, in SYN-RECEIVED.
    pub(crate) fn passive(
        &self,
        net: &Net,
        now: Instant,
        config: Arc<TcpConfig>,
        bound: Option<LinkId>,
        segment: &ListenerSegment<'_>,
    ) -> Connection {
        let ListenerSegment { tuple, header, ecn, old, .. } = *segment;
        let (iss, ts) = self.numbers(now, &tuple);
        let iss = old.map_or(iss, |old| iss_above(iss, old.last));
        let link = tcp_link(net, &tuple, bound);
        let mut conn = Connection::accept(now, config, link, tuple.ports(), iss, ts, header);
        conn.note_syn_mark(ecn);
        conn
    }
}
