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
pub(crate) mod every;
pub(crate) mod requests;
pub(crate) mod socket;

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_tcp::{Connection, Flags, Seq, State, TcpHeader};

use super::bind::{BindOptions, Kind, PortReservation};
use super::handles::Listener;
use super::ids::{ListenerId, TcpId};
use super::table::Socket;
use super::tuple::{Tuple, canonical};
use crate::TcpConfig;
use crate::config::SynCookies;
use crate::counters::DropReason;
use crate::error::Error;
use crate::event::{Readiness, Reporting};
use crate::limits::{MAX_BACKLOG, MAX_SOCKETS};
use crate::net::{LinkId, Received};
use crate::sockets::bind::table::{Sharing, Wanted};
use crate::sockets::tcp::fast_open::FastOpenSyn;
use crate::sockets::tcp::output::{iss_above, tcp_link};
use crate::sockets::tcp::socket::{Owner, TcpSocket};
use crate::stack::{Core, Stack};
use socket::ListenerSocket;

/// A connection in TIME-WAIT that a SYN may reopen.
#[derive(Clone, Copy)]
pub(crate) struct Old {
    pub(super) index: u32,
    /// The largest sequence number that we used.
    pub(super) last: Seq,
}

#[derive(Clone, Copy)]
pub(crate) struct ToListener<'a> {
    pub(super) tuple: Tuple,
    pub(super) header: &'a TcpHeader,
    /// The ECN bits of its IP header.
    pub(super) ecn: u8,
    pub(super) hop_limit: u8,
}

impl<'a> ToListener<'a> {
    pub(super) fn new(tuple: Tuple, header: &'a TcpHeader, received: &Received) -> Self {
        let Received { ecn, hop_limit, .. } = *received;
        Self { tuple, header, ecn, hop_limit }
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

impl Stack {
    /// Listens for connections to `local`; port 0 stands for a free one, an unspecified address for
    /// all of ours, `::` for those of both IP versions.
    ///
    /// # Errors
    /// `AddressInUse`, also if another listener's wildcard covers the address, or another socket
    /// listens at the reserved address; `AddressNotAvailable` if it is not ours, or no ephemeral
    /// port is free.
    pub fn listen(
        &mut self,
        local: SocketAddr,
        options: impl Into<ListenOptions>,
    ) -> Result<ListenerId, Error> {
        let ListenOptions { backlog, reservation, v6_only } = options.into();
        let Some(reservation) = reservation else {
            let local = self.core.bindable(canonical(local), Kind::Tcp, BindOptions::default())?;
            let at = Wanted::of(local.ip());
            return self.core.insert_listener(local, at, Sharing::default(), backlog);
        };
        let local = canonical(local);
        let sockets = &self.core.sockets;
        let own = sockets.reservations.get(reservation);
        let link = own.and_then(|own| own.at.link);
        let sharing = own.map_or(Sharing::default(), |own| own.sharing.listening());
        let at = Wanted { addr: local.ip(), v6_only, link };
        // The others that have reserved the port share it until one of them listens.
        if sockets.tcp_binds.conflicts(at, local.port(), sharing)
            || sockets.reservations.conflicts(at, local.port(), Sharing::ANY, Some(reservation))
        {
            return Err(Error::AddressInUse);
        }
        self.core.insert_listener(local, at, sharing, backlog)
    }
}

impl Listener<'_> {
    /// The listener's id.
    pub fn id(&self) -> ListenerId {
        ListenerId(self.id)
    }

    pub(super) fn socket(&self) -> Result<&ListenerSocket, Error> {
        self.core.sockets.table.listener(self.id.index()).ok_or(Error::NoSuchSocket)
    }

    pub(super) fn socket_mut(&mut self) -> Result<&mut ListenerSocket, Error> {
        self.core.sockets.table.listener_mut(self.id.index()).ok_or(Error::NoSuchSocket)
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
        let table = &mut self.core.sockets.table;
        let socket = table.tcp_mut(index).ok_or(Error::WouldBlock)?;
        socket.owner = Owner::App;
        socket.conn.fast_open().on_accepted();
        // The owner looks at a new connection first: no event for its present readiness.
        socket.reporting.reported = socket.readiness();
        let remote = socket.tuple.remote_addr();
        let id = table.id_of(index).ok_or(Error::WouldBlock)?;
        Ok((TcpId(id), remote))
    }
}

impl Core {
    fn insert_listener(
        &mut self,
        local: SocketAddr,
        at: Wanted,
        sharing: Sharing,
        backlog: usize,
    ) -> Result<ListenerId, Error> {
        self.refuse_if_down()?;
        let listener = ListenerSocket {
            local,
            config: Arc::clone(&self.sockets.config),
            backlog: backlog.min(MAX_BACKLOG),
            half_open: BTreeSet::new(),
            queue: VecDeque::new(),
            fast_open: self.initial_fast_open(backlog),
            cookie_at: None,
            link: at.link,
            requests: None,
            down: false,
            reporting: Reporting::default(),
        };
        let socket = Socket::Listener(Box::new(listener));
        let id = self.sockets.table.insert(socket, MAX_SOCKETS).ok_or(Error::TooManySockets)?;
        self.sockets.tcp_binds.insert(at, local.port(), id.index(), sharing);
        Ok(ListenerId(id))
    }

    /// Processes a segment to a listener (RFC 9293 section 3.10.7.2). `packet` has its payload, and
    /// may carry the answer. `old`: a connection in TIME-WAIT between the same ends.
    pub(crate) fn listener_input(
        &mut self,
        now: Instant,
        index: u32,
        segment: ToListener<'_>,
        packet: &mut PacketBuf,
        old: Option<Old>,
    ) {
        let ToListener { tuple, header, .. } = segment;
        let payload_len = packet.frag_len();
        // > First, check for a RST: An incoming RST segment could not be valid since it could not
        // > have been sent in response to anything sent by this incarnation of the connection. An
        // > incoming RST should be ignored. Second, check for an ACK: Any acknowledgment is bad if
        // > it arrives on a connection still in the LISTEN state. An acceptable reset segment
        // > should be formed for any arriving ACK-bearing segment. Third, check for a SYN.
        let flags = header.flags & (Flags::RST | Flags::ACK | Flags::SYN | Flags::FIN);
        if flags != Flags::SYN {
            self.net.counters.drop_one(DropReason::TcpListenNotSyn);
            if header.flags.contains(Flags::ACK) {
                self.send_reset(now, &tuple, header, payload_len);
            }
            return;
        }
        let Some(listener) = self.sockets.table.listener_mut(index) else { return };
        if listener.is_full() {
            self.net.counters.drop_one(DropReason::TcpBacklogFull);
            return;
        }
        let (config, bound) = (Arc::clone(&listener.config), listener.link);
        // A SYN that reopens a connection is from a known peer.
        if old.is_none() {
            let full = listener.half_open.len() > listener.backlog;
            match self.sockets.defence.syn_cookies {
                SynCookies::Off if full => {
                    self.net.counters.drop_one(DropReason::TcpHalfOpenLimit);
                    return;
                }
                SynCookies::WhenFull if full => {
                    return self.send_cookie(now, index, &tuple, header, packet);
                }
                SynCookies::Always => {
                    return self.send_cookie(now, index, &tuple, header, packet);
                }
                SynCookies::Off | SynCookies::WhenFull => {}
            }
        }
        let fast_open = self.judge_syn(now, index, &tuple, header, payload_len > 0);
        let mut conn = passive(self, now, config, bound, segment, old);
        if let FastOpenSyn::Offer(cookie) | FastOpenSyn::Open(Some(cookie)) = fast_open {
            conn.fast_open().offer_cookie(cookie);
        }
        let socket = TcpSocket::new(now, conn, tuple, Owner::HalfOpen { listener: index });
        if self.sockets.table.len() >= MAX_SOCKETS {
            self.net.counters.drop_one(DropReason::TcpConnectionLimit);
            return;
        }
        if let Some(old) = old {
            self.make_way(old.index);
        }
        let Some(id) = self.insert_connection(socket) else {
            self.net.counters.drop_one(DropReason::TcpConnectionLimit);
            return;
        };
        if let FastOpenSyn::Open(_) = fast_open {
            self.net.counters.tcp_passive_opens += 1;
            self.open_fast(now, id.index(), index, packet.take_frags());
            return;
        }
        if let Some(listener) = self.sockets.table.listener_mut(index) {
            listener.half_open.insert(id.index());
        }
        self.net.counters.tcp_passive_opens += 1;
    }

    /// Takes the connection at `index`, in TIME-WAIT, out of the demux for a new one.
    pub(super) fn make_way(&mut self, index: u32) {
        match self.sockets.table.tcp(index) {
            // Its owner still has it.
            Some(socket) if socket.owner != Owner::Closed => {
                self.sockets.leave_demux(&self.net, index);
            }
            _ => self.remove_connection(index),
        }
    }

    /// Queues a half-open connection for `accept`, if a segment has completed its handshake.
    pub(crate) fn promote(&mut self, index: u32, listener_index: u32) {
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        if matches!(socket.conn.state(), State::SynReceived | State::SynSent | State::Closed) {
            return;
        }
        socket.owner = Owner::Queued { listener: listener_index };
        self.sockets.note_lifecycle(&self.net, index, false);
        if let Some(listener) = self.sockets.table.listener_mut(listener_index) {
            listener.half_open.remove(&index);
            listener.queue.push_back(index);
            if listener.reporting.every_arrival {
                listener.reporting.reported &= !Readiness::READABLE;
            }
        }
        self.sockets.check_later(listener_index);
    }

    /// Closes a listener: resets the connections that were not accepted.
    pub(crate) fn close_listener(&mut self, index: u32) {
        let Some(listener) = self.sockets.table.listener_mut(index) else { return };
        let port = listener.local.port();
        let mut orphans = core::mem::take(&mut listener.half_open);
        orphans.extend(listener.queue.drain(..));
        self.sockets.tcp_binds.remove(port, index);
        self.sockets.tcp_binds.every.remove(index);
        self.sockets.wheel.cancel(index);
        self.sockets.table.remove(index);
        for orphan in orphans {
            let Some(socket) = self.sockets.table.tcp_mut(orphan) else { continue };
            debug_assert!(matches!(socket.owner,
                Owner::HalfOpen { listener } | Owner::Queued { listener } if listener == index));
            socket.owner = Owner::Closed;
            self.tcp_abort(orphan);
        }
    }
}

/// The connection that a SYN opens, in SYN-RECEIVED.
pub(super) fn passive(
    core: &Core,
    now: Instant,
    config: Arc<TcpConfig>,
    bound: Option<LinkId>,
    segment: ToListener<'_>,
    old: Option<Old>,
) -> Connection {
    let ToListener { tuple, header, ecn, .. } = segment;
    let (iss, ts) = core.numbers(now, &tuple);
    let iss = old.map_or(iss, |old| iss_above(iss, old.last));
    let link = tcp_link(&core.net, &tuple, bound);
    let mut conn = Connection::accept(now, config, link, tuple.ports(), iss, ts, header);
    conn.note_syn_mark(ecn);
    conn
}
