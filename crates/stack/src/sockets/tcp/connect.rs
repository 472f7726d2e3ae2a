//! Opens connections, and their verbs but for sending and receiving.

use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant};
use pagewire_tcp::{Connection, FastOpenMode, RecvFlags};

use super::output::{iss_above, tcp_link};
use super::socket::{Extra, Lists, Owner, TcpSocket};
use super::time_wait::reusable;
use super::timestamping::{Timestamps, TxTimestamping};
use crate::error::Error;
use crate::net::LinkId;
use crate::sockets::handles::Tcp;
use crate::sockets::ids::{SocketId, TcpId};
use crate::sockets::tuple::{Tuple, canonical, scope_of};
use crate::stack::{Core, Stack};
use crate::{TcpConfig, TcpInfo};

/// How a connection is opened.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The local address, which may be unspecified, and port, which may be 0.
    pub local: Option<SocketAddr>,
    /// Settings of its own; `None`: the stack's.
    pub config: Option<Arc<TcpConfig>>,
    /// With Fast Open (RFC 7413). With a cookie, or if none is needed, the SYN waits for the first
    /// write and carries its data: [`Tcp::is_deferred`] says so, and the write returns how much the
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

impl Stack {
    /// Begins to open a connection to `remote`; it becomes writable, or gets an error. The options
    /// (or an address in their place) may give the local address.
    ///
    /// # Errors
    /// `InvalidInput` for port 0, `AddressFamily` if the addresses are of two versions,
    /// `NetworkUnreachable` without a route or to a broadcast address, `NetworkDown` if the device
    /// that leads there is gone for good, `AddressNotAvailable` if the local address is not ours
    /// (and no [transparent](crate::LinkConfig::transparent) link leads there), the connection exists already, or no ephemeral port is free, `NotSupported` for Fast Open if
    /// the host's [settings](Self::fast_open) exclude it.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        options: impl Into<ConnectOptions>,
    ) -> Result<TcpId, Error> {
        let ConnectOptions { local, config, fast_open, link: bound } = options.into();
        let config = config.unwrap_or_else(|| self.default_config());
        if fast_open.is_some() && !self.core.sockets.fast_open.mode.contains(FastOpenMode::CLIENT) {
            return Err(Error::NotSupported);
        }
        let by = self.core.net.bound_link(bound)?;
        let (remote, scope) = (canonical(remote), scope_of(remote));
        if remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(Error::InvalidInput);
        }
        if self.core.net.is_broadcast(remote.ip()) {
            return Err(Error::NetworkUnreachable);
        }
        let (wanted, port) = local.map(canonical).map_or((None, 0), |l| (Some(l.ip()), l.port()));
        let local = match wanted.filter(|ip| !ip.is_unspecified()) {
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() => return Err(Error::AddressFamily),
            Some(ip) if !self.core.net.may_send_from((ip, remote.ip()), by) => {
                return Err(Error::AddressNotAvailable);
            }
            Some(ip) => ip,
            None => self.core.net.source_by(remote.ip(), scope, by)?,
        };
        self.core.refuse_if_down()?;
        if self.core.net.is_lost(now, (local, remote.ip()), by) {
            return Err(Error::NetworkDown);
        }
        let to_self = self.core.net.is_local(remote.ip());
        let sockets = &mut self.core.sockets;
        let tuple = |port| Tuple::new(SocketAddr::new(local, port), remote);
        // The connection in TIME-WAIT to replace, and its last sequence number.
        let mut reused = None;
        let (demux, table) = (&mut sockets.demux, &sockets.table);
        let reuse = sockets.defence.time_wait_reuse;
        let mut is_free = |port| {
            let Some(index) = demux.find(table, &tuple(port)) else { return true };
            reused = reusable(table.at(index), reuse, to_self, now).map(|n| (index, n));
            reused.is_some()
        };
        let port = match port {
            0 => {
                let (binds, reservations) = (&sockets.tcp_binds, &sockets.reservations);
                let is_free = |p| !binds.uses(p) && !reservations.uses(p) && is_free(p);
                sockets.ports.choose(local, Some(remote), is_free)
            }
            port => Some(port).filter(|p| is_free(*p)),
        };
        let tuple = tuple(port.ok_or(Error::AddressNotAvailable)?);
        if let Some((index, _)) = reused {
            self.core.remove_connection(index);
            self.core.net.counters.tcp_time_wait_reused += 1;
        }
        let (iss, ts) = self.core.numbers(now, &tuple);
        let iss = reused.map_or(iss, |(_, above)| iss_above(iss, above));
        let link = tcp_link(&self.core.net, &tuple, bound);
        let mut conn = Connection::connect(now, config, link, tuple.ports(), iss, ts);
        if let Some(how) = fast_open.and_then(|plain| self.core.fast_open_to(now, &tuple, plain)) {
            conn.fast_open().begin(how);
        }
        let mut socket = TcpSocket::new(now, conn, tuple, Owner::App);
        if bound.is_some() {
            socket.extra.get_or_insert_default().link = bound;
        }
        let id = self.core.insert_connection(socket).ok_or(Error::TooManySockets)?;
        self.core.net.counters.tcp_active_opens += 1;
        Ok(TcpId(id))
    }

    /// The settings of connections without their own.
    pub fn default_config(&self) -> Arc<TcpConfig> {
        Arc::clone(&self.core.sockets.config)
    }
}

impl Tcp<'_> {
    /// Takes the urgent byte (RFC 9293 section 3.8.5); with [`RecvFlags::PEEK`] it stays.
    ///
    /// # Errors
    /// `InvalidInput` if there is none or it is in line, `WouldBlock` if it is only announced.
    pub fn read_urgent(&mut self, now: Instant, flags: RecvFlags) -> Result<u8, Error> {
        self.with(now, |conn, _| conn.read_urgent(flags))
    }

    /// Whether the next byte to be read is where urgent data ends (`SIOCATMARK`).
    pub fn at_urgent_mark(&self) -> bool {
        self.socket.conn.at_urgent_mark()
    }

    /// Ends one direction or both. After `Write` the end of the stream follows the queued data.
    pub fn shutdown(&mut self, now: Instant, how: Shutdown) -> Result<(), Error> {
        self.with(now, |conn, env| {
            if matches!(how, Shutdown::Read | Shutdown::Both) {
                conn.shutdown_read(env)?;
            }
            if matches!(how, Shutdown::Write | Shutdown::Both) {
                conn.shutdown_write(env)?;
            }
            Ok(())
        })
    }

    /// The state of the connection.
    pub fn info(&self) -> TcpInfo {
        self.socket.conn.info()
    }

    /// As [`info`](Self::info), with times that count up to `now`.
    pub fn info_at(&self, now: Instant) -> TcpInfo {
        self.socket.conn.info_at(now)
    }

    /// The connection's settings.
    pub fn config(&self) -> &TcpConfig {
        self.socket.conn.config()
    }

    /// Whether small segments leave at once (`TCP_NODELAY`), see
    /// [`TcpOption::NoDelay`](crate::TcpOption).
    pub fn nodelay(&self) -> bool {
        self.socket.conn.info().nodelay
    }

    /// Whether acknowledgements leave at once (`TCP_QUICKACK`), see
    /// [`TcpOption::QuickAck`](crate::TcpOption).
    pub fn quick_ack(&self) -> bool {
        self.socket.conn.info().quick_ack
    }

    /// Bytes not acknowledged (`SIOCOUTQ`), and among them bytes never sent (`SIOCOUTQNSD`).
    pub fn queued_send(&self) -> (usize, usize) {
        let conn = &self.socket.conn;
        (conn.queued_send(), conn.queued_unsent())
    }

    /// Bytes that wait to be read, plus one if the end of the stream follows them (`TCP_INQ`).
    pub fn inq(&self) -> usize {
        self.socket.conn.queued_receive() + usize::from(self.socket.conn.has_fin())
    }

    /// Bytes that a copying [`recv`](Self::recv) would return, up to an urgent byte (`SIOCINQ`).
    pub fn queued(&self) -> usize {
        self.socket.conn.queued_to_mark()
    }

    /// Which timestamps are reported from now on, for bytes that [`stamp`](Self::stamp) names.
    /// Bytes are numbered from the first one that is not acknowledged now.
    pub fn set_timestamping(&mut self, kinds: TxTimestamping) {
        let socket = &mut *self.socket;
        let extra = socket.extra.get_or_insert_default();
        match &mut extra.timestamps {
            Some(timestamps) if !kinds.is_empty() => timestamps.kinds = kinds,
            place => {
                let new = || Box::new(Timestamps::new(kinds, &socket.conn));
                *place = (!kinds.is_empty()).then(new);
            }
        }
    }

    /// Requests timestamps of the byte that was written last. Beyond
    /// [`TIMESTAMPS_PENDING`](crate::limits::TIMESTAMPS_PENDING) requests the oldest is dropped.
    pub fn stamp(&mut self, now: Instant) {
        let socket = &mut *self.socket;
        let conn = &socket.conn;
        if conn.queued_send() == 0 {
            return;
        }
        let Some(extra) = &mut socket.extra else { return };
        if let Some(timestamps) = &mut extra.timestamps {
            timestamps.stamp(conn);
        }
        extra.poll_timestamps(now, conn);
        self.touch();
    }

    /// Payload bytes copied for this connection since [`TcpOption::CountCopies`](crate::TcpOption)
    /// was set; `None` if it is not.
    pub fn ledger(&self) -> Option<CopyLedger> {
        self.socket.extra.as_ref().and_then(|e| e.ledger)
    }
}

impl Core {
    pub(crate) fn tcp_abort(&mut self, index: u32) {
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        socket.conn.abort();
        self.sockets.touch(index);
    }

    /// Makes the id stale; the connection delivers what is queued under a new generation.
    pub(crate) fn tcp_close(&mut self, now: Instant, id: SocketId) {
        self.sockets.table.disown(id);
        let Some(socket) = self.sockets.table.tcp_mut(id.index()) else { return };
        socket.owner = Owner::Closed;
        if socket.lists.contains(Lists::TURN) {
            socket.lists.remove(Lists::TURN);
            self.sockets.work.starving.end_turn();
        }
        let lends =
            socket.extra.as_ref().and_then(|e| e.errors.as_ref()).is_some_and(|e| e.lends());
        // It still counts for its listener's limit until the handshake is complete.
        let kept = socket.extra.take().map(|extra| (extra.fast_open_of, extra.link));
        socket.extra = kept
            .filter(|kept| *kept != (None, None))
            .map(|(fast_open_of, link)| Box::new(Extra { fast_open_of, link, ..Extra::default() }));
        // The application may free lent memory as soon as this returns: copies replace it.
        if lends && !socket.work(&mut self.mem, now, |conn, env| conn.keep_lent(env)) {
            socket.conn.abort();
        }
        socket.work(&mut self.mem, now, |conn, env| conn.close(env));
        if socket.conn.is_closed() {
            self.finish(id.index());
        } else {
            self.sockets.touch(id.index());
        }
    }
}
