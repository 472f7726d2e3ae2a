//! Byte path, steps S1 and R7 seen from the stack: what the application does with connections.

use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Frag, FragVec, Instant};
use pagewire_tcp::{
    Connection, Env, FastOpenMode, RecvFlags, SendFlags, TcpError, defer_accept_timeouts,
};

use super::Socket;
use super::bound::ConnectBy;
use super::demux::Tuple;
use super::errors::error_from;
use super::fast_open::with_fast_open;
use super::table::SocketId;
use super::tcp::{Extra, Owner, TcpSocket, canonical, iss_above, ports, scope_of};
use super::time_wait;
use crate::error::Error;
use crate::event::Readiness;
use crate::limits::STARVED_CHECK;
use crate::net::Mem;
use crate::stack::{Stack, TcpOption};
use crate::{TcpConfig, TcpInfo};

/// Verbs of the application.
impl Stack {
    /// Begins to open a connection to `remote`; it becomes writable, or gets an error. The local
    /// end is chosen unless given; its address may be unspecified and its port 0.
    ///
    /// # Errors
    /// `InvalidInput` for port 0, `AddressFamily` if the addresses are of two versions,
    /// `NetworkUnreachable` without a route or to a broadcast address, `NetworkDown` if the device that
    /// leads there is gone for good, `AddressNotAvailable` if the local address is not
    /// ours, the very connection exists, or no ephemeral port is free.
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, Error> {
        let config = self.tcp_default_config();
        self.tcp_connect_with(now, remote, local, config)
    }

    /// As [`tcp_connect`](Self::tcp_connect), with settings of its own.
    pub fn tcp_connect_with(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        config: Arc<TcpConfig>,
    ) -> Result<SocketId, Error> {
        self.tcp_connect_by(now, remote, local, config, ConnectBy::default())
    }

    /// As [`tcp_connect_with`](Self::tcp_connect_with), with Fast Open (RFC 7413). With a cookie of
    /// the server's, or where data may be sent without one, nothing leaves until the first write,
    /// whose data goes along with the SYN: [`tcp_is_deferred`](Self::tcp_is_deferred) says so, and
    /// the write says how much the SYN takes. Otherwise the SYN asks for a cookie. `no_cookie`: data
    /// may be sent without one whatever the host's settings say.
    ///
    /// # Errors
    /// Also `NotSupported` if this host does not do Fast Open
    /// ([`set_fast_open`](Self::set_fast_open)).
    pub fn tcp_connect_fast(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        config: Arc<TcpConfig>,
        no_cookie: bool,
    ) -> Result<SocketId, Error> {
        let by = ConnectBy { fast_open: Some(no_cookie), ..ConnectBy::default() };
        self.tcp_connect_by(now, remote, local, config, by)
    }

    /// As [`tcp_connect_with`](Self::tcp_connect_with), with what few connections want.
    ///
    /// # Errors
    /// Also `NotSupported` for Fast Open if this host does not do it, and `NetworkDown` if the link
    /// was removed.
    pub fn tcp_connect_by(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        config: Arc<TcpConfig>,
        by: ConnectBy,
    ) -> Result<SocketId, Error> {
        let ConnectBy { fast_open, link: bound } = by;
        if fast_open.is_some() && !self.fast_open_mode().contains(FastOpenMode::CLIENT) {
            return Err(Error::NotSupported);
        }
        let by = self.net.bound_link(bound)?;
        let (remote, scope) = (canonical(remote), scope_of(remote));
        if remote.port() == 0 || remote.ip().is_unspecified() || remote.ip().is_multicast() {
            return Err(Error::InvalidInput);
        }
        if self.net.is_broadcast(remote.ip()) {
            return Err(Error::NetworkUnreachable);
        }
        let (wanted, port) = local.map(canonical).map_or((None, 0), |l| (Some(l.ip()), l.port()));
        let local = match wanted.filter(|ip| !ip.is_unspecified()) {
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() => return Err(Error::AddressFamily),
            Some(ip) if !self.net.is_local(ip) => return Err(Error::AddressNotAvailable),
            Some(ip) => ip,
            None => self.net.source_by(remote.ip(), scope, by)?,
        };
        self.refuse_if_down()?;
        if self.net.is_lost(now, (local, remote.ip()), by) {
            return Err(Error::NetworkDown);
        }
        let to_self = self.net.is_local(remote.ip());
        let sockets = &mut self.sockets;
        let tuple = |port| Tuple::new(SocketAddr::new(local, port), remote);
        // A connection in TIME-WAIT may make place: which, and what its last number was.
        let mut reused = None;
        let (demux, table) = (&mut sockets.demux, &sockets.table);
        let reuse = sockets.defence.time_wait_reuse;
        let mut is_free = |port| {
            let Some(index) = demux.find(table, &tuple(port)) else { return true };
            reused = time_wait::reusable(table.at(index), reuse, to_self, now).map(|n| (index, n));
            reused.is_some()
        };
        let port = match port {
            0 => {
                let (binds, holds) = (&sockets.tcp_binds, &sockets.holds);
                let is_free = |p| !binds.uses(p) && !holds.uses(p) && is_free(p);
                sockets.ports.choose(local, Some(remote), is_free)
            }
            port => Some(port).filter(|p| is_free(*p)),
        };
        let tuple = tuple(port.ok_or(Error::AddressNotAvailable)?);
        if let Some((index, _)) = reused {
            self.remove_connection(index);
            self.net.counters.tcp_time_wait_reused += 1;
        }
        let conn = {
            let (iss, ts) = self.numbers(now, &tuple);
            let iss = reused.map_or(iss, |(_, above)| iss_above(iss, above));
            let link = self.tcp_link(&tuple, bound);
            let fast_open =
                fast_open.and_then(|no_cookie| self.fast_open_to(now, &tuple, no_cookie));
            let conn = Connection::connect(now, config, link, ports(&tuple), iss, ts);
            with_fast_open(conn, fast_open)
        };
        let mut socket = TcpSocket::new(conn, tuple, Owner::App);
        if bound.is_some() {
            socket.extra.get_or_insert_default().link = bound;
        }
        let id = self.insert_connection(socket).ok_or(Error::TooManySockets)?;
        self.net.counters.tcp_active_opens += 1;
        Ok(id)
    }

    /// The settings of connections that have none of their own.
    pub fn tcp_default_config(&self) -> Arc<TcpConfig> {
        Arc::clone(&self.sockets.config)
    }

    /// Queues memory by reference. Takes as much from the front of `frags` as there is room for
    /// and returns how many bytes that is; the memory is let go when it is acknowledged.
    ///
    /// # Errors
    /// `WouldBlock` without room, `NotConnected`, `BrokenPipe` after a shutdown, and what the
    /// connection ended with.
    pub fn tcp_send(
        &mut self,
        now: Instant,
        id: SocketId,
        frags: &mut FragVec,
    ) -> Result<usize, Error> {
        self.tcp_send_with(now, id, frags, SendFlags::empty())
    }

    /// As [`tcp_send`](Self::tcp_send), with flags.
    pub fn tcp_send_with(
        &mut self,
        now: Instant,
        id: SocketId,
        frags: &mut FragVec,
        flags: SendFlags,
    ) -> Result<usize, Error> {
        self.with_sender(now, id, |conn, env| conn.send_with(env, frags, flags))
    }

    /// Queues a copy of as much from the front of `data` as there is room for; returns how much.
    /// Errors as for [`tcp_send`](Self::tcp_send).
    ///
    /// Where the send buffer has room but the stack has no page left to copy into, the answer is
    /// `WouldBlock` too, and the socket becomes writable when pages come home.
    pub fn tcp_write(&mut self, now: Instant, id: SocketId, data: &[u8]) -> Result<usize, Error> {
        self.tcp_write_with(now, id, data, SendFlags::empty())
    }

    /// [`tcp_write`](Self::tcp_write) of all of `data`, if it only adds to what waits to become a full
    /// segment: nothing follows from it, and no clock is needed. `false`: it has to be written as any
    /// other.
    pub fn tcp_write_behind(&mut self, id: SocketId, data: &[u8]) -> bool {
        let Ok(Socket::Tcp(socket)) = self.sockets.table.get_mut(id) else { return false };
        // Charges and the connection's own ledger are kept by the long way.
        let plain = socket.extra.as_ref().is_none_or(|extra| extra.ledger.is_none());
        let Mem { pool, writer, ledger, .. } = &mut self.mem;
        plain && socket.forwards.is_none() && socket.conn.collect_copy(pool, writer, ledger, data)
    }

    /// As [`tcp_write`](Self::tcp_write), with flags.
    pub fn tcp_write_with(
        &mut self,
        now: Instant,
        id: SocketId,
        data: &[u8],
        flags: SendFlags,
    ) -> Result<usize, Error> {
        match self.with_sender(now, id, |conn, env| conn.write_with(env, data, flags)) {
            Err(Error::NoBuffers) => {
                self.starve(now, id.index());
                Err(Error::WouldBlock)
            }
            done => done,
        }
    }

    /// The connection at `index` waits for pages.
    pub(super) fn starve(&mut self, now: Instant, index: u32) {
        let sockets = &mut self.sockets;
        let Some(socket) = sockets.table.tcp_mut(index) else { return };
        socket.reported &= !Readiness::WRITABLE;
        if !core::mem::replace(&mut socket.starved, true) {
            sockets.starved.push(index);
            sockets.starved_until = now + STARVED_CHECK;
        }
    }

    /// Pages may have come home: those who wait for them look again.
    pub(crate) fn feed_starved(&mut self) {
        self.mem.pool.drain();
        if self.sockets.starved.is_empty() || self.mem.pool.stats().free == 0 {
            return;
        }
        for index in core::mem::take(&mut self.sockets.starved) {
            if let Some(socket) = self.sockets.table.tcp_mut(index) {
                socket.starved = false;
                self.sockets.touch(index);
            }
        }
    }

    /// Takes received bytes by copy; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is queued but more may come, `NotConnected`, and what the
    /// connection ended with.
    pub fn tcp_read(
        &mut self,
        now: Instant,
        id: SocketId,
        into: &mut [u8],
    ) -> Result<usize, Error> {
        self.tcp_read_with(now, id, into, RecvFlags::empty())
    }

    /// As [`tcp_read`](Self::tcp_read), with flags.
    pub fn tcp_read_with(
        &mut self,
        now: Instant,
        id: SocketId,
        into: &mut [u8],
        flags: RecvFlags,
    ) -> Result<usize, Error> {
        self.with_connection(now, id, |conn, env| conn.read_with(env, into, flags))
    }

    /// Throws away up to `max` received bytes; returns how many, 0 at the end of the stream.
    /// Errors as for [`tcp_read`](Self::tcp_read).
    pub fn tcp_discard(&mut self, now: Instant, id: SocketId, max: usize) -> Result<usize, Error> {
        self.with_connection(now, id, |conn, env| conn.discard(env, max))
    }

    /// The urgent byte (RFC 9293 section 3.8.5), once, or as often as asked with
    /// [`RecvFlags::PEEK`].
    ///
    /// # Errors
    /// `InvalidInput` if there is none or it is in line, `WouldBlock` if it has been announced and
    /// is still to come.
    pub fn tcp_read_urgent(
        &mut self,
        now: Instant,
        id: SocketId,
        flags: RecvFlags,
    ) -> Result<u8, Error> {
        self.with_connection(now, id, |conn, _| conn.read_urgent(flags))
    }

    /// Whether the next byte to be read is where urgent data ends (`SIOCATMARK`).
    pub fn tcp_at_urgent_mark(&self, id: SocketId) -> Result<bool, Error> {
        Ok(self.connection(id)?.conn.at_urgent_mark())
    }

    /// Byte path, step R7: takes up to `max` received bytes by reference, appended to `into`;
    /// 0 is the end of the stream. Errors as for [`tcp_read`](Self::tcp_read).
    pub fn tcp_recv_chunks(
        &mut self,
        now: Instant,
        id: SocketId,
        max: usize,
        into: &mut Vec<Frag>,
    ) -> Result<usize, Error> {
        self.tcp_recv_chunks_with(now, id, max, into, RecvFlags::empty())
    }

    /// As [`tcp_recv_chunks`](Self::tcp_recv_chunks), with flags.
    pub fn tcp_recv_chunks_with(
        &mut self,
        now: Instant,
        id: SocketId,
        max: usize,
        into: &mut Vec<Frag>,
        flags: RecvFlags,
    ) -> Result<usize, Error> {
        self.with_connection(now, id, |conn, env| conn.recv_chunks_with(env, max, into, flags))
    }

    /// Ends one direction or both. After `Write` the peer sees the end of the stream once it has
    /// everything.
    pub fn tcp_shutdown(&mut self, now: Instant, id: SocketId, how: Shutdown) -> Result<(), Error> {
        self.with_connection(now, id, |conn, env| {
            if matches!(how, Shutdown::Read | Shutdown::Both) {
                conn.shutdown_read(env)?;
            }
            if matches!(how, Shutdown::Write | Shutdown::Both) {
                conn.shutdown_write(env)?;
            }
            Ok(())
        })
    }

    /// What is known of a connection.
    pub fn tcp_info(&self, id: SocketId) -> Result<TcpInfo, Error> {
        Ok(self.connection(id)?.conn.info())
    }

    /// As [`tcp_info`](Self::tcp_info), with times that count up to `now`.
    pub fn tcp_info_at(&self, now: Instant, id: SocketId) -> Result<TcpInfo, Error> {
        Ok(self.connection(id)?.conn.info_at(now))
    }

    /// The settings of a connection, or those that a listener's connections inherit.
    pub fn tcp_config(&self, id: SocketId) -> Result<&TcpConfig, Error> {
        match self.sockets.table.get(id)? {
            Socket::Listener(listener) => Ok(&listener.config),
            _ => Ok(self.connection(id)?.conn.config()),
        }
    }

    /// Bytes that the peer has not acknowledged (`SIOCOUTQ`), and of these, bytes that were never
    /// sent (`SIOCOUTQNSD`).
    pub fn tcp_queued_send(&self, id: SocketId) -> Result<(usize, usize), Error> {
        let conn = &self.connection(id)?.conn;
        Ok((conn.queued_send(), conn.queued_unsent()))
    }

    /// Bytes that wait to be read, and one more if the end of the stream waits behind them: what
    /// Linux tells beside received data (`TCP_INQ`).
    pub fn tcp_inq(&self, id: SocketId) -> Result<usize, Error> {
        Ok(self.connection(id)?.conn.queued_receive_and_end())
    }

    /// Bytes that [`tcp_read`](Self::tcp_read) would give now, up to an urgent byte (`SIOCINQ`).
    pub fn tcp_queued(&self, id: SocketId) -> Result<usize, Error> {
        Ok(self.connection(id)?.conn.queued_to_mark())
    }

    /// Payload bytes copied for this connection since [`TcpOption::CountCopies`] was set; `None`
    /// if it is not.
    pub fn tcp_ledger(&self, id: SocketId) -> Result<Option<CopyLedger>, Error> {
        Ok(self.connection(id)?.extra.as_ref().and_then(|e| e.ledger))
    }

    /// Changes a setting of a connection; of a listener, for the connections that it is still to
    /// get.
    ///
    /// # Errors
    /// `NotSupported` for a listener if connections cannot inherit it.
    pub fn tcp_set_option(
        &mut self,
        now: Instant,
        id: SocketId,
        option: TcpOption,
    ) -> Result<(), Error> {
        if let TcpOption::FastOpen(_)
        | TcpOption::FastOpenKeys(_)
        | TcpOption::FastOpenNoCookie(_) = option
        {
            return self.set_listener_option(id, option);
        }
        let socket = match self.sockets.table.get_mut(id)? {
            Socket::Listener(listener) => {
                let set = option.apply(Arc::make_mut(&mut listener.config));
                return if set { Ok(()) } else { Err(Error::NotSupported) };
            }
            socket => connection_mut(socket)?,
        };
        match option {
            TcpOption::NoDelay(on) => socket.conn.set_nodelay(on),
            TcpOption::Cork(on) => socket.conn.set_cork(on),
            TcpOption::KeepAlive(keepalive) => socket.conn.set_keepalive(now, keepalive),
            TcpOption::UserTimeout(limit) => socket.conn.set_user_timeout(limit),
            TcpOption::MaxSeg(mss) => socket.conn.set_max_mss(mss),
            TcpOption::SynCount(retries) => socket.conn.set_syn_retries(retries),
            TcpOption::DeferAccept(time) => {
                socket.conn.set_defer_accept(defer_accept_timeouts(time));
            }
            TcpOption::Linger2(limit) => socket.conn.set_fin_wait2(limit),
            TcpOption::Linger(linger) => socket.conn.set_linger(linger),
            TcpOption::NotSentLowat(bytes) => socket.conn.set_notsent_lowat(bytes),
            TcpOption::RcvLowat(bytes) => socket.conn.set_recv_lowat(bytes),
            TcpOption::SendBuffer(bytes) => socket.conn.set_send_buffer(bytes),
            TcpOption::RecvBuffer(bytes) => socket.conn.set_recv_buffer(bytes),
            TcpOption::WindowClamp(bytes) => socket.conn.set_window_clamp(bytes),
            TcpOption::Congestion(kind) => socket.conn.set_congestion(kind),
            TcpOption::QuickAck(on) => socket.conn.set_quick_ack(on),
            TcpOption::OobInline(on) => socket.conn.set_oob_inline(on),
            TcpOption::CountCopies(on) => {
                let extra = socket.extra.get_or_insert_default();
                extra.ledger = on.then(|| extra.ledger.unwrap_or_default());
            }
            TcpOption::QueueErrors(on) => {
                let extra = socket.extra.get_or_insert_default();
                extra.errors.get_or_insert_default().keep_errors(on);
            }
            TcpOption::MtuDiscover(how) => {
                socket.extra.get_or_insert_default().mtu_discover = how;
            }
            TcpOption::FastOpen(_)
            | TcpOption::FastOpenKeys(_)
            | TcpOption::FastOpenNoCookie(_) => {}
        }
        self.sockets.touch(id.index());
        Ok(())
    }

    /// The id goes stale, the connection lingers under a new generation.
    pub(crate) fn tcp_close(&mut self, now: Instant, id: SocketId) {
        self.sockets.table.disown(id);
        let Some(socket) = self.sockets.table.tcp_mut(id.index()) else { return };
        socket.owner = Owner::Nobody;
        let lends =
            socket.extra.as_ref().and_then(|e| e.errors.as_ref()).is_some_and(|e| e.lends());
        // But as long as its handshake lasts it counts for its listener's limit.
        // And it keeps to its link.
        let kept = socket.extra.take().map(|extra| (extra.fast_open_of, extra.link));
        socket.extra = kept
            .filter(|kept| *kept != (None, None))
            .map(|(fast_open_of, link)| Box::new(Extra { fast_open_of, link, ..Extra::default() }));
        // The application may free what it lent as soon as this returns: the stack needs its own.
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

    pub(crate) fn tcp_abort(&mut self, index: u32) {
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        socket.conn.abort();
        self.sockets.touch(index);
    }

    /// One verb on a connection: what it makes possible is marked, what it used up is noted, so
    /// that becoming ready again is a change that [`poll_event`](Self::poll_event) reports.
    pub(super) fn with_connection<T>(
        &mut self,
        now: Instant,
        id: SocketId,
        verb: impl FnOnce(&mut Connection, &mut Env<'_>) -> Result<T, TcpError>,
    ) -> Result<T, Error> {
        let done = self.with_sender(now, id, verb)?;
        let socket = connection_mut(self.sockets.table.get_mut(id)?)?;
        socket.reported &= socket.readiness();
        self.sockets.touch(id.index());
        Ok(done)
    }

    /// As [`with_connection`](Self::with_connection), for verbs that do nothing but queue: while
    /// what is queued waits for company, there is nothing to look after.
    pub(super) fn with_sender<T>(
        &mut self,
        now: Instant,
        id: SocketId,
        verb: impl FnOnce(&mut Connection, &mut Env<'_>) -> Result<T, TcpError>,
    ) -> Result<T, Error> {
        let socket = connection_mut(self.sockets.table.get_mut(id)?)?;
        match socket.work(&mut self.mem, now, verb) {
            Ok(done) => {
                self.after_queueing(id)?;
                Ok(done)
            }
            Err(error) => {
                socket.reported &= socket.readiness();
                if error != TcpError::WouldBlock {
                    self.sockets.touch(id.index());
                }
                Err(error_from(error))
            }
        }
    }

    /// Something was queued: it is looked after, unless it waits for company.
    pub(super) fn after_queueing(&mut self, id: SocketId) -> Result<(), Error> {
        let socket = connection_mut(self.sockets.table.get_mut(id)?)?;
        if !socket.conn.is_collecting() {
            socket.reported &= socket.readiness();
            self.sockets.touch(id.index());
        }
        Ok(())
    }

    pub(super) fn connection_mut(&mut self, id: SocketId) -> Result<&mut TcpSocket, Error> {
        connection_mut(self.sockets.table.get_mut(id)?)
    }

    pub(super) fn connection(&self, id: SocketId) -> Result<&TcpSocket, Error> {
        match self.sockets.table.get(id)? {
            Socket::Tcp(socket) => Ok(socket),
            Socket::Listener(_) => Err(Error::NotConnected),
            Socket::Udp(_) => Err(Error::NotSupported),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }
}

pub(super) fn connection_mut(socket: &mut Socket) -> Result<&mut TcpSocket, Error> {
    match socket {
        Socket::Tcp(socket) => Ok(socket),
        Socket::Listener(_) => Err(Error::NotConnected),
        Socket::Udp(_) => Err(Error::NotSupported),
        Socket::TimeWait(_) => Err(Error::NoSuchSocket),
    }
}
