//! Byte path, steps S1 and R7 seen from the stack: what the application does with connections.

use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Frag, FragVec, Instant};
use pagewire_tcp::{Connection, Env, TcpError};

use super::Socket;
use super::demux::Tuple;
use super::errors::error_from;
use super::table::SocketId;
use super::tcp::{Owner, TcpSocket, canonical, ports};
use crate::TcpInfo;
use crate::error::Error;
use crate::event::Readiness;
use crate::limits::STARVED_CHECK;
use crate::stack::{Stack, TcpOption};

/// Verbs of the application.
impl Stack {
    /// Begins to open a connection to `remote`; it becomes writable, or gets an error. The local
    /// end is chosen unless given; its address may be unspecified and its port 0.
    ///
    /// # Errors
    /// `InvalidInput` for port 0, `AddressFamily` if the addresses are of two versions,
    /// `NetworkUnreachable` without a route or to a broadcast address, `AddressNotAvailable` if the local address is not
    /// ours, the very connection exists, or no ephemeral port is free.
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, Error> {
        let remote = canonical(remote);
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
            None => self.net.source_for(remote.ip())?,
        };
        let sockets = &mut self.sockets;
        let tuple = |port| Tuple::new(SocketAddr::new(local, port), remote);
        let port = match port {
            0 => {
                let (demux, table, binds) =
                    (&mut sockets.demux, &sockets.table, &sockets.tcp_binds);
                let is_free = |p| !binds.uses(p) && demux.find(table, &tuple(p)).is_none();
                sockets.ports.choose(local, Some(remote), is_free)
            }
            port => {
                let taken = sockets.demux.find(&sockets.table, &tuple(port)).is_some();
                Some(port).filter(|_| !taken)
            }
        };
        let tuple = tuple(port.ok_or(Error::AddressNotAvailable)?);
        let conn = {
            let (iss, ts) = self.numbers(now, &tuple);
            let config = Arc::clone(&self.sockets.config);
            let link = self.tcp_link(&tuple);
            Connection::connect(now, config, link, ports(&tuple), iss, ts)
        };
        let socket = TcpSocket::new(conn, tuple, Owner::App);
        let id = self.insert_connection(socket).ok_or(Error::TooManySockets)?;
        self.net.counters.tcp_active_opens += 1;
        Ok(id)
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
        self.with_connection(now, id, |conn, env| conn.send(env, frags))
    }

    /// Queues a copy of as much from the front of `data` as there is room for; returns how much.
    /// Errors as for [`tcp_send`](Self::tcp_send).
    ///
    /// Where the send buffer has room but the stack has no page left to copy into, the answer is
    /// `WouldBlock` too, and the socket becomes writable when pages come home.
    pub fn tcp_write(&mut self, now: Instant, id: SocketId, data: &[u8]) -> Result<usize, Error> {
        match self.with_connection(now, id, |conn, env| conn.write(env, data)) {
            Err(Error::NoBuffers) => {
                self.starve(now, id.index());
                Err(Error::WouldBlock)
            }
            done => done,
        }
    }

    /// The connection at `index` waits for pages.
    fn starve(&mut self, now: Instant, index: u32) {
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
        self.with_connection(now, id, |conn, env| conn.read(env, into))
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
        self.with_connection(now, id, |conn, env| conn.recv_chunks(env, max, into))
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

    /// Bytes that [`tcp_read`](Self::tcp_read) would give now.
    pub fn tcp_queued(&self, id: SocketId) -> Result<usize, Error> {
        Ok(self.connection(id)?.conn.queued_receive())
    }

    /// Payload bytes copied for this connection since [`TcpOption::CountCopies`] was set; `None`
    /// if it is not.
    pub fn tcp_ledger(&self, id: SocketId) -> Result<Option<CopyLedger>, Error> {
        Ok(self.connection(id)?.extra.as_ref().and_then(|e| e.ledger))
    }

    /// Changes a setting of a connection.
    pub fn tcp_set_option(
        &mut self,
        now: Instant,
        id: SocketId,
        option: TcpOption,
    ) -> Result<(), Error> {
        let socket = connection_mut(self.sockets.table.get_mut(id)?)?;
        match option {
            TcpOption::NoDelay(on) => socket.conn.set_nodelay(on),
            TcpOption::Cork(on) => socket.conn.set_cork(on),
            TcpOption::KeepAlive(keepalive) => socket.conn.set_keepalive(now, keepalive),
            TcpOption::CountCopies(on) => {
                let extra = socket.extra.get_or_insert_default();
                extra.ledger = on.then(|| extra.ledger.unwrap_or_default());
            }
            TcpOption::QueueErrors(on) => {
                let extra = socket.extra.get_or_insert_default();
                extra.errors = on.then(|| extra.errors.take().unwrap_or_default());
            }
        }
        self.sockets.touch(id.index());
        Ok(())
    }

    /// The id goes stale, the connection lingers under a new generation.
    pub(crate) fn tcp_close(&mut self, now: Instant, id: SocketId) {
        self.sockets.table.disown(id);
        let Some(socket) = self.sockets.table.tcp_mut(id.index()) else { return };
        socket.owner = Owner::Nobody;
        socket.extra = None;
        // Known by its old id, if it is in TIME-WAIT already.
        socket.in_time_wait = false;
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
    fn with_connection<T>(
        &mut self,
        now: Instant,
        id: SocketId,
        verb: impl FnOnce(&mut Connection, &mut Env<'_>) -> Result<T, TcpError>,
    ) -> Result<T, Error> {
        let socket = connection_mut(self.sockets.table.get_mut(id)?)?;
        let result = socket.work(&mut self.mem, now, verb);
        socket.reported &= socket.readiness();
        match result {
            Err(TcpError::WouldBlock) => Err(Error::WouldBlock),
            Err(error) => {
                self.sockets.touch(id.index());
                Err(error_from(error))
            }
            Ok(done) => {
                self.sockets.touch(id.index());
                Ok(done)
            }
        }
    }

    fn connection(&self, id: SocketId) -> Result<&TcpSocket, Error> {
        match self.sockets.table.get(id)? {
            Socket::Tcp(socket) => Ok(socket),
            Socket::Listener(_) => Err(Error::NotConnected),
            Socket::Udp(_) => Err(Error::NotSupported),
        }
    }
}

fn connection_mut(socket: &mut Socket) -> Result<&mut TcpSocket, Error> {
    match socket {
        Socket::Tcp(socket) => Ok(socket),
        Socket::Listener(_) => Err(Error::NotConnected),
        Socket::Udp(_) => Err(Error::NotSupported),
    }
}
