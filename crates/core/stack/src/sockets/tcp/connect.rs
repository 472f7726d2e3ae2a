//! Opening and closing of connections: `connect`, `shutdown`, `close`, `abort`.

use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::Instant;
use pagewire_tcp::{Connection, FastOpenMode};

use super::socket::{Owner, RareState, SocketFlags, TcpSocket};
use super::time_wait::reusable;
use super::{TcpSockets, iss_above, tcp_link};
use crate::TcpConfig;
use crate::error::Error;
use crate::net::LinkId;
use crate::shards::{PortClaim, PortKind};
use crate::sockets::Context;
use crate::sockets::ids::{SocketId, TcpId};
use crate::sockets::listen::Listeners;
use crate::sockets::tuple::{Tuple, canonical, scope_of};

/// How a connection is opened.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The local address, which may be unspecified, and port, which may be 0.
    pub local: Option<SocketAddr>,
    /// Settings of its own; `None`: the stack's.
    pub config: Option<Arc<TcpConfig>>,
    /// With Fast Open (RFC 7413). With a cookie, or if none is needed, the SYN waits for the first
    /// write and carries its data: [`Tcp::is_deferred`](crate::Tcp::is_deferred) says so, and the write returns how much the
    /// SYN takes. Else it requests a cookie. `true`: none is needed, whatever the settings say.
    pub fast_open: Option<bool>,
    /// The link that the connection is bound to.
    pub link: Option<LinkId>,
}

impl From<Option<SocketAddr>> for ConnectOptions {
    fn from(local: Option<SocketAddr>) -> Self {
        Self { local, ..Self::default() }
    }
}

impl TcpSockets {
    /// See [`Stack::connect`](crate::Stack::connect).
    pub(crate) fn connect(
        &mut self,
        cx: &mut Context,
        listeners: &Listeners,
        now: Instant,
        remote: SocketAddr,
        options: ConnectOptions,
    ) -> Result<TcpId, Error> {
        let ConnectOptions { local, config, fast_open, link: bound } = options;
        let config = config.unwrap_or_else(|| Arc::clone(&self.config));
        if fast_open.is_some() && !self.fast_open.mode.contains(FastOpenMode::CLIENT) {
            return Err(Error::NotSupported);
        }
        let by = cx.net.bound_link(bound)?;
        let (remote, scope) = (canonical(remote), scope_of(remote));
        if remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(Error::InvalidInput);
        }
        if cx.net.is_broadcast(remote.ip()) {
            return Err(Error::NetworkUnreachable);
        }
        let (wanted, port) = local.map(canonical).map_or((None, 0), |l| (Some(l.ip()), l.port()));
        let local = match wanted.filter(|ip| !ip.is_unspecified()) {
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() => return Err(Error::AddressFamily),
            Some(ip) if !cx.net.may_send_from((ip, remote.ip()), by) => {
                return Err(Error::AddressNotAvailable);
            }
            Some(ip) => ip,
            None => cx.net.source_by(remote.ip(), scope, by)?,
        };
        cx.refuse_if_down()?;
        if cx.net.is_lost(now, (local, remote.ip()), by) {
            return Err(Error::NetworkDown);
        }
        let to_self = cx.net.is_local(remote.ip());
        let tuple = |port| Tuple::new(SocketAddr::new(local, port), remote);
        // The connection in TIME-WAIT to replace, and its last sequence number.
        let mut reused = None;
        let (demux, reuse) = (&mut self.demux, self.time_wait_reuse);
        let Context { ports, net, table, .. } = &mut *cx;
        let mut is_free = |port| {
            let found = demux.find(table, &tuple(port));
            reused = found.and_then(|index| {
                reusable(table.at(index), reuse, to_self, now).map(|n| (index, n))
            });
            found.is_none() || reused.is_some()
        };
        let mut claim = net.connection_claim(local);
        let port = match port {
            0 => {
                let is_free = |p| {
                    net.foreign_home(PortKind::Tcp, &tuple(p)).is_none()
                        && !listeners.uses(p)
                        && is_free(p)
                        && net.claim_home(PortKind::Tcp, &tuple(p), claim)
                };
                ports.choose(local, Some(remote), is_free)
            }
            port if is_free(port) => {
                let is_elsewhere = net.foreign_home(PortKind::Tcp, &tuple(port)).is_some();
                if is_elsewhere && claim == PortClaim::Connection {
                    // The port becomes this shard's.
                    claim = PortClaim::Alone { every_address: false };
                }
                Some(port).filter(|p| net.claim_home(PortKind::Tcp, &tuple(*p), claim))
            }
            _ => None,
        };
        let tuple = tuple(port.ok_or(Error::AddressNotAvailable)?);
        if let Some((index, _)) = reused {
            self.remove_connection(cx, index);
            cx.net.counters.tcp_time_wait_reused += 1;
        }
        let (iss, ts) = self.numbers(now, &tuple);
        let iss = reused.map_or(iss, |(_, above)| iss_above(iss, above));
        let link = tcp_link(&cx.net, &tuple, bound);
        let mut conn = Connection::connect(now, config, link, tuple.ports(), iss, ts);
        if let Some(how) = fast_open.and_then(|plain| self.fast_open.connect_to(now, &tuple, plain))
        {
            conn.fast_open().begin(how);
        }
        let mut socket = TcpSocket::new(now, conn, tuple, Owner::App);
        if bound.is_some() {
            socket.extra.get_or_insert_default().link = bound;
        }
        let id = self.insert_connection(cx, socket);
        cx.net.release_port(PortKind::Tcp, tuple.local_port, claim);
        let id = id?;
        cx.net.counters.tcp_active_opens += 1;
        Ok(TcpId(id))
    }

    /// Makes the id stale; the connection delivers what is queued under a new generation.
    pub(crate) fn close(&mut self, cx: &mut Context, now: Instant, id: SocketId) {
        cx.table.disown(id);
        let Some(socket) = cx.table.tcp_mut(id.index()) else { return };
        socket.owner = Owner::Closed;
        if socket.flags.contains(SocketFlags::PAGE_TURN) {
            socket.flags.remove(SocketFlags::PAGE_TURN);
            cx.work.page_waiters.end_turn();
        }
        let lends =
            socket.extra.as_ref().and_then(|e| e.errors.as_ref()).is_some_and(|e| e.lends());
        // The connection still counts for its listener's limit until the handshake is complete.
        let kept = socket.extra.take().map(|extra| (extra.fast_open_of, extra.link));
        socket.extra = kept.filter(|kept| *kept != (None, None)).map(|(fast_open_of, link)| {
            Box::new(RareState { fast_open_of, link, ..RareState::default() })
        });
        // The application may free borrowed memory as soon as this returns: copies replace it.
        if lends && !socket.work(&mut cx.net.mem, now, |conn, env| conn.keep_lent(env)) {
            socket.conn.abort();
        }
        socket.work(&mut cx.net.mem, now, |conn, env| conn.close(env));
        if socket.conn.is_closed() {
            self.finish(cx, id.index());
        } else {
            cx.touch(id.index());
        }
    }
}

impl Context {
    /// Resets the connection at `index`.
    pub(crate) fn abort(&mut self, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        socket.conn.abort();
        self.touch(index);
    }
}
