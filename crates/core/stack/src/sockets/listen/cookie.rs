//! SYN cookies at a listener (RFC 4987 section 3.6).
//!
//! As Linux: used when the queue of half-open connections is full, or always, as set; and checked
//! only while one may be in use, so that strangers cannot guess one at a quiet listener.

use std::sync::Arc;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_tcp::{CHECKSUM_OFFSET, Connection, CookieJar, Flags};

use super::{ListenerSegment, Listeners};
use crate::config::SynCookies;
use crate::counters::DropReason;
use crate::sockets::Context;
use crate::sockets::tcp::socket::{Owner, TcpSocket};
use crate::sockets::tcp::{TcpSockets, tcp_link};

/// Whether a segment to a listener returns a cookie.
pub(crate) enum CookieOutcome {
    /// No.
    None,
    /// Yes, but there is no room for the connection.
    Dropped,
    /// Yes, and it opens this connection.
    Connection(u32),
}

impl Listeners {
    /// Answers a SYN in its own packet and keeps nothing: floods must cost connections little.
    pub(crate) fn send_cookie(
        &self,
        tcp: &TcpSockets,
        cx: &mut Context,
        now: Instant,
        index: u32,
        &ListenerSegment { tuple, header: syn, .. }: &ListenerSegment<'_>,
        packet: &mut PacketBuf,
    ) {
        let Some(listener) = cx.table.listener_mut(index) else { return };
        listener.cookie_at = Some(now);
        let (config, bound) = (Arc::clone(&listener.config), listener.link);
        let ends = (tuple.local_addr(), tuple.remote_addr());
        let link = tcp_link(&cx.net, &tuple, bound);
        let offset = match syn.options.timestamps {
            Some(_) => tcp.isn.timestamp_offset(ends.0, ends.1),
            None => 0,
        };
        let mut header = self.cookies.answer(now, &config, link, ends, offset, syn);
        header.window = cx.net.mem.shared.memory.first_window(header.window, link.recv_mss);
        cx.net.counters.tcp_syn_cookies_sent += 1;
        packet.clear_for_tx();
        let Some(room) = packet.push(header.len()) else { return };
        header.emit(room);
        let offset = CHECKSUM_OFFSET as u16;
        // The network layer counts what it cannot send; the peer retransmits.
        let Ok(by) = cx.net.bound_link(bound) else { return };
        let ends = (tuple.local, tuple.remote);
        let _ = cx.net.send_back(now, ends, by, offset, packet);
    }

    /// Checks a segment to the listener at `index` for a cookie.
    pub(crate) fn take_cookie(
        &self,
        tcp: &mut TcpSockets,
        cx: &mut Context,
        now: Instant,
        index: u32,
        &ListenerSegment { tuple, header, .. }: &ListenerSegment<'_>,
    ) -> CookieOutcome {
        let relevant = header.flags & (Flags::RST | Flags::ACK | Flags::SYN);
        if relevant != Flags::ACK || !self.expects_cookie(cx, now, index) {
            return CookieOutcome::None;
        }
        let ends = (tuple.local_addr(), tuple.remote_addr());
        let offset = tcp.isn.timestamp_offset(ends.0, ends.1);
        let Some(cookie) = self.cookies.check(now, ends, offset, header) else {
            cx.net.counters.tcp_syn_cookies_failed += 1;
            return CookieOutcome::None;
        };
        let Some(listener) = cx.table.listener_mut(index).filter(|l| !l.is_full()) else {
            cx.net.counters.drop_one(DropReason::TcpBacklogFull);
            return CookieOutcome::Dropped;
        };
        let (config, bound) = (Arc::clone(&listener.config), listener.link);
        let link = tcp_link(&cx.net, &tuple, bound);
        let conn = Connection::from_cookie(now, config, link, tuple.ports(), offset, &cookie);
        let socket = TcpSocket::new(now, conn, tuple, Owner::HalfOpen { listener: index });
        let id = match tcp.insert_connection(cx, socket) {
            Ok(id) => id,
            Err(refusal) => {
                cx.net.counters.drop_one(refusal.reason());
                return CookieOutcome::Dropped;
            }
        };
        if let Some(listener) = cx.table.listener_mut(index) {
            listener.half_open.insert(id.index());
        }
        cx.net.counters.tcp_syn_cookies_received += 1;
        cx.net.counters.tcp_passive_opens += 1;
        CookieOutcome::Connection(id.index())
    }

    /// Whether a peer may have a valid cookie of the listener at `index`.
    fn expects_cookie(&self, cx: &Context, now: Instant, index: u32) -> bool {
        match self.syn_cookies {
            SynCookies::Off => false,
            SynCookies::Always => true,
            SynCookies::WhenFull => cx
                .table
                .listener(index)
                .and_then(|l| l.cookie_at)
                .is_some_and(|at| now.saturating_since(at) < CookieJar::valid_for()),
        }
    }
}
