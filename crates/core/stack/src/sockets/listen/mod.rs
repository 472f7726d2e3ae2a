//! Listening: half-open connections, and connections that wait to be accepted.
//!
//! ```text
//!   SYN --> half-open (at most backlog + 1) --ACK--> queued (at most backlog + 1) --accept--> App
//!             | reset, timeout: removed                 | reset: still accepted; reading returns
//!             v                                         v the error
//! ```
//!
//! The limits are Linux's: a backlog of N admits N + 1. When the queue of accepted connections is
//! full, a segment that would add to it is dropped, and the peer retransmits. When the queue of
//! half-open connections is full, SYNs are answered with cookies (`cookie.rs`).

pub(crate) mod cookie;
pub(crate) mod requests;
pub(crate) mod socket;

use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_tcp::{CookieJar, Flags, Seq, State, TcpHeader};

use super::bind::table::{ANY, BindAddress, Binds, Sharing};
use super::bind::{BindOptions, EveryPort, PortReservation, Reservations};
use super::ids::{ListenerId, TcpId};
use super::table::Socket;
use super::tcp::TcpSockets;
use super::tcp::fast_open::FastOpenSyn;
use super::tcp::socket::{Owner, TcpSocket};
use super::tuple::{Tuple, canonical};
use super::{Context, Listener};
use crate::TcpConfig;
use crate::config::SynCookies;
use crate::counters::DropReason;
use crate::error::Error;
use crate::event::Readiness;
use crate::limits::{MAX_BACKLOG, MAX_SOCKETS};
use crate::net::Received;
use crate::random::derive;
use crate::shards::{BOUND, PortClaim, PortKind};
use requests::table::Requests;
use socket::ListenerSocket;

/// State that all listeners share. The listeners themselves are in the table of all sockets.
pub(crate) struct Listeners {
    /// Listeners by port.
    pub(crate) binds: Binds,
    /// Ports that are bound, whether or not a listener is there.
    pub(crate) reservations: Reservations,
    cookies: CookieJar,
    pub(crate) syn_cookies: SynCookies,
}

/// A connection in TIME-WAIT that a SYN may reopen.
#[derive(Clone, Copy)]
pub(crate) struct OldConnection {
    pub(crate) index: u32,
    /// The largest sequence number that we used.
    pub(crate) last: Seq,
}

/// A segment to a listener, without its payload.
#[derive(Clone, Copy)]
pub(crate) struct ListenerSegment<'a> {
    pub(crate) tuple: Tuple,
    pub(crate) header: &'a TcpHeader,
    /// The ECN bits of its IP header.
    pub(crate) ecn: u8,
    pub(crate) hop_limit: u8,
    /// A connection in TIME-WAIT between the same ends.
    pub(crate) old: Option<OldConnection>,
}

impl<'a> ListenerSegment<'a> {
    pub(crate) fn new(tuple: Tuple, header: &'a TcpHeader, received: &Received) -> Self {
        let Received { ecn, hop_limit, .. } = *received;
        Self { tuple, header, ecn, hop_limit, old: None }
    }
}

/// How to listen.
#[derive(Debug, Default)]
pub struct ListenOptions {
    /// How many connections may wait to be accepted.
    pub backlog: usize,
    /// The address was [reserved](crate::PortReservations::reserve) before.
    pub reservation: Option<PortReservation>,
    /// With `reservation`: `::` stands for IPv6 addresses only.
    pub v6_only: bool,
}

impl From<usize> for ListenOptions {
    fn from(backlog: usize) -> Self {
        Self { backlog, ..Self::default() }
    }
}

impl Listeners {
    /// No listeners.
    pub(crate) fn new(secret: &[u8; 32], syn_cookies: SynCookies) -> Self {
        Self {
            binds: Binds::new(derive(secret, b"listeners that share a port")),
            reservations: Reservations::default(),
            cookies: CookieJar::new(derive(secret, b"syn cookies")),
            syn_cookies,
        }
    }

    /// Whether a port is bound, by a listener or by a reservation.
    pub(crate) fn uses(&self, port: u16) -> bool {
        self.binds.uses(port) || self.reservations.uses(port)
    }

    /// See [`PortReservations::reserve`](crate::PortReservations::reserve).
    pub(crate) fn reserve(
        &mut self,
        tcp: &TcpSockets,
        cx: &mut Context,
        local: SocketAddr,
        options: BindOptions,
    ) -> Result<(PortReservation, SocketAddr), Error> {
        let local = canonical(local);
        let ip = local.ip();
        let Self { binds, reservations, .. } = self;
        if !options.free && !ip.is_unspecified() && !cx.net.is_local(ip) {
            return Err(Error::AddressNotAvailable);
        }
        let at = options.bind_address(ip);
        let sharing = options.sharing();
        let (claim, Context { ports, net, .. }) = (options.port_claim(ip), cx);
        let port = match local.port() {
            0 => {
                let is_free = |port| {
                    !binds.uses(port)
                        && !reservations.uses(port)
                        && net.claim_port(PortKind::Tcp, port, claim)
                };
                ports.choose(ip, None, is_free).ok_or(Error::AddressInUse)?
            }
            port => {
                let taken = binds.conflicts(at, port, sharing.listening())
                    || reservations.conflicts(at, port, sharing, None)
                    || (sharing == Sharing::default() && tcp.demux.uses(at, port));
                if taken || !net.claim_port(PortKind::Tcp, port, claim) {
                    return Err(Error::AddressInUse);
                }
                port
            }
        };
        Ok((reservations.insert(at, port, sharing, claim), SocketAddr::new(ip, port)))
    }

    /// See [`Stack::listen`](crate::Stack::listen).
    pub(crate) fn listen(
        &mut self,
        tcp: &TcpSockets,
        cx: &mut Context,
        local: SocketAddr,
        options: ListenOptions,
    ) -> Result<ListenerId, Error> {
        let ListenOptions { backlog, reservation, v6_only } = options;
        let local = canonical(local);
        let (at, local, sharing) = match reservation {
            Some(reservation) => self.claim_reserved(cx, local, v6_only, reservation)?,
            None => {
                let at = BindAddress::of(local.ip());
                let is_taken = |port, sharing| {
                    self.binds.conflicts(at, port, sharing)
                        || self.reservations.conflicts(at, port, Sharing::ANY, None)
                };
                let local = cx.bindable(PortKind::Tcp, local, BindOptions::default(), is_taken)?;
                (at, local, Sharing::default())
            }
        };
        let inserted = self.insert(tcp, cx, local, at, sharing, backlog);
        if inserted.is_err() {
            cx.net.release_port(PortKind::Tcp, local.port(), BOUND);
        }
        inserted
    }

    /// Claims the port of a reservation for a listener.
    fn claim_reserved(
        &self,
        cx: &mut Context,
        local: SocketAddr,
        v6_only: bool,
        reservation: PortReservation,
    ) -> Result<(BindAddress, SocketAddr, Sharing), Error> {
        let own = self.reservations.get(reservation);
        let link = own.and_then(|own| own.at.link);
        let sharing = own.map_or(Sharing::default(), |own| own.sharing.listening());
        let at = BindAddress { addr: local.ip(), v6_only, link };
        // The reservation of a connection is for its ends only.
        let claim = own.map(|own| own.claim).filter(|claim| *claim == PortClaim::WithAll);
        let claim = claim.unwrap_or_else(|| BindOptions::default().port_claim(local.ip()));
        // The others that have reserved the port share it until one of them listens.
        if self.binds.conflicts(at, local.port(), sharing)
            || self.reservations.conflicts(at, local.port(), Sharing::ANY, Some(reservation))
            || !cx.net.claim_port(PortKind::Tcp, local.port(), claim)
        {
            return Err(Error::AddressInUse);
        }
        Ok((at, local, sharing))
    }

    /// See [`Stack::listen_every`](crate::Stack::listen_every).
    pub(crate) fn listen_every(
        &mut self,
        tcp: &TcpSockets,
        cx: &mut Context,
        on: EveryPort,
    ) -> Result<ListenerId, Error> {
        let (link, claim) = (on.link, on.port_claim());
        cx.check_transparent(link)?;
        if self.binds.wildcards.find(Some(link)).is_some() {
            return Err(Error::AddressInUse);
        }
        let listener = ListenerSocket {
            requests: Some(Box::new(Requests::new(link, tcp.demux.hasher()))),
            ..ListenerSocket::new(SocketAddr::new(ANY, 0), &tcp.config)
        };
        let socket = Socket::Listener(Box::new(listener));
        if !cx.net.claim_port(PortKind::Tcp, 0, claim) {
            return Err(Error::AddressInUse);
        }
        let Some(id) = cx.table.insert(socket, MAX_SOCKETS) else {
            cx.net.release_port(PortKind::Tcp, 0, claim);
            return Err(Error::TooManySockets);
        };
        self.binds.wildcards.insert(link, id.index());
        Ok(ListenerId(id))
    }

    fn insert(
        &mut self,
        tcp: &TcpSockets,
        cx: &mut Context,
        local: SocketAddr,
        at: BindAddress,
        sharing: Sharing,
        backlog: usize,
    ) -> Result<ListenerId, Error> {
        cx.refuse_if_down()?;
        let listener = ListenerSocket {
            backlog: backlog.min(MAX_BACKLOG),
            fast_open: tcp.fast_open.initial(backlog),
            link: at.link,
            ..ListenerSocket::new(local, &tcp.config)
        };
        let socket = Socket::Listener(Box::new(listener));
        let id = cx.table.insert(socket, MAX_SOCKETS).ok_or(Error::TooManySockets)?;
        self.binds.insert(at, local.port(), id.index(), sharing);
        Ok(ListenerId(id))
    }

    /// Processes a segment to a listener (RFC 9293 section 3.10.7.2). `packet` has its payload, and
    /// may carry the answer.
    pub(crate) fn input(
        &self,
        tcp: &mut TcpSockets,
        cx: &mut Context,
        now: Instant,
        index: u32,
        segment: ListenerSegment<'_>,
        packet: &mut PacketBuf,
    ) {
        let ListenerSegment { tuple, header, old, .. } = segment;
        let payload_len = packet.frag_len();
        // > First, check for a RST: An incoming RST segment could not be valid since it could not
        // > have been sent in response to anything sent by this incarnation of the connection. An
        // > incoming RST should be ignored. Second, check for an ACK: Any acknowledgment is bad if
        // > it arrives on a connection still in the LISTEN state. An acceptable reset segment
        // > should be formed for any arriving ACK-bearing segment. Third, check for a SYN.
        let flags = header.flags & (Flags::RST | Flags::ACK | Flags::SYN | Flags::FIN);
        if flags != Flags::SYN {
            cx.net.counters.drop_one(DropReason::TcpListenNotSyn);
            if header.flags.contains(Flags::ACK) {
                tcp.send_reset(cx, now, &tuple, header, payload_len);
            }
            return;
        }
        let Some(listener) = cx.table.listener_mut(index) else { return };
        if listener.is_full() {
            cx.net.counters.drop_one(DropReason::TcpBacklogFull);
            return;
        }
        let (config, bound) = (Arc::clone(&listener.config), listener.link);
        // A SYN that reopens a connection is from a known peer.
        if old.is_none() {
            let full = listener.half_open.len() > listener.backlog;
            match self.syn_cookies {
                SynCookies::Off if full => {
                    cx.net.counters.drop_one(DropReason::TcpHalfOpenLimit);
                    return;
                }
                SynCookies::WhenFull if full => {
                    return self.send_cookie(tcp, cx, now, index, &segment, packet);
                }
                SynCookies::Always => {
                    return self.send_cookie(tcp, cx, now, index, &segment, packet);
                }
                SynCookies::Off | SynCookies::WhenFull => {}
            }
        }
        let fast_open =
            tcp.fast_open.answer_to_syn(cx, now, index, &tuple, header, payload_len > 0);
        let mut conn = tcp.passive(&cx.net, now, config, bound, &segment);
        if let FastOpenSyn::Offer(cookie) | FastOpenSyn::Open(Some(cookie)) = fast_open {
            conn.fast_open().offer_cookie(cookie);
        }
        let socket = TcpSocket::new(now, conn, tuple, Owner::HalfOpen { listener: index });
        if cx.table.len() >= MAX_SOCKETS {
            cx.net.counters.drop_one(DropReason::TcpConnectionLimit);
            return;
        }
        if let Some(old) = old {
            tcp.make_way(cx, old.index);
        }
        let id = match tcp.insert_connection(cx, socket) {
            Ok(id) => id,
            Err(refusal) => return cx.net.counters.drop_one(refusal.reason()),
        };
        if let FastOpenSyn::Open(_) = fast_open {
            cx.net.counters.tcp_passive_opens += 1;
            cx.open_fast(now, id.index(), index, packet.take_frags());
            return;
        }
        if let Some(listener) = cx.table.listener_mut(index) {
            listener.half_open.insert(id.index());
        }
        cx.net.counters.tcp_passive_opens += 1;
    }

    /// Closes a listener: resets the connections that were not accepted.
    pub(crate) fn close(&mut self, cx: &mut Context, index: u32) {
        let Some(listener) = cx.table.listener_mut(index) else { return };
        let port = listener.local.port();
        let mut orphans = core::mem::take(&mut listener.half_open);
        orphans.extend(listener.queue.drain(..));
        self.binds.remove(port, index);
        cx.net.release_port(PortKind::Tcp, port, BOUND);
        self.binds.wildcards.remove(index);
        cx.wheel.cancel(index);
        cx.table.remove(index);
        for orphan in orphans {
            let Some(socket) = cx.table.tcp_mut(orphan) else { continue };
            debug_assert!(matches!(socket.owner,
                Owner::HalfOpen { listener } | Owner::Queued { listener } if listener == index));
            socket.owner = Owner::Closed;
            cx.abort(orphan);
        }
    }
}

impl Context {
    /// Queues a half-open connection for `accept`, if a segment has completed its handshake.
    pub(crate) fn promote(&mut self, index: u32, listener_index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        if matches!(socket.conn.state(), State::SynReceived | State::SynSent | State::Closed) {
            return;
        }
        socket.owner = Owner::Queued { listener: listener_index };
        self.note_lifecycle(index, false);
        if let Some(listener) = self.table.listener_mut(listener_index) {
            listener.half_open.remove(&index);
            listener.queue.push_back(index);
            if listener.reporting.every_arrival {
                listener.reporting.reported &= !Readiness::READABLE;
            }
        }
        self.check_later(listener_index);
    }
}

impl Listener<'_> {
    /// The listener's id.
    pub fn id(&self) -> ListenerId {
        ListenerId(self.id)
    }

    pub(crate) fn socket(&self) -> Result<&ListenerSocket, Error> {
        self.cx.table.listener(self.id.index()).ok_or(Error::NoSuchSocket)
    }

    pub(crate) fn socket_mut(&mut self) -> Result<&mut ListenerSocket, Error> {
        self.cx.table.listener_mut(self.id.index()).ok_or(Error::NoSuchSocket)
    }

    /// Sets how many connections may wait to be accepted.
    pub fn set_backlog(&mut self, backlog: usize) -> Result<(), Error> {
        self.socket_mut()?.backlog = backlog.min(MAX_BACKLOG);
        Ok(())
    }

    /// The settings that its connections inherit.
    pub fn config(&self) -> Result<&TcpConfig, Error> {
        Ok(&self.socket()?.config)
    }

    /// Takes the oldest connection in the queue, and its peer's address.
    ///
    /// # Errors
    /// `WouldBlock` if the queue is empty, `NetworkDown` if no connection can come any more.
    pub fn accept(&mut self) -> Result<(TcpId, SocketAddr), Error> {
        let listener = self.socket_mut()?;
        let taken = listener.queue.pop_front();
        listener.reporting.reported &= listener.readiness();
        let none = if listener.down { Error::NetworkDown } else { Error::WouldBlock };
        let index = taken.ok_or(none)?;
        let table = &mut self.cx.table;
        let socket = table.tcp_mut(index).ok_or(Error::WouldBlock)?;
        socket.owner = Owner::App;
        socket.conn.fast_open().on_accepted();
        // The owner tries a new connection first: no event for its present readiness.
        socket.reporting.reported = socket.readiness();
        let remote = socket.tuple.remote_addr();
        let id = table.id_of(index).ok_or(Error::WouldBlock)?;
        Ok((TcpId(id), remote))
    }
}
