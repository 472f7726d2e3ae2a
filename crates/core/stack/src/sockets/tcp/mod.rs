//! Connections: [`TcpSockets`] has the state that all of them share, and [`Tcp`] operates on one.
//!
//! A connection is in the table of all sockets, and in the demux until it ends. `insert_connection` adds it
//! to both. `finish` takes it out of the demux, and out of the table unless it has an owner.
//!
//! | file | subject |
//! |---|---|
//! | `socket.rs` | the state of one connection |
//! | `demux.rs`, `input.rs`, `output.rs` | segments (byte path, steps R4, R5, S3) |
//! | `connect.rs`, `time_wait.rs`, `lifecycle.rs` | beginnings and ends |
//! | `send.rs`, `recv.rs`, `map.rs` | the stream (steps S1 and R7) |
//! | `fast_open/`, `requests.rs`, `timestamping.rs` | features that few connections use |

mod connect;
mod demux;
pub(crate) mod fast_open;
mod input;
pub(crate) mod lifecycle;
mod map;
mod output;
mod recv;
mod requests;
mod send;
pub(crate) mod socket;
pub(crate) mod time_wait;
mod timestamping;
mod unlocked;

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant};
use pagewire_tcp::{IsnGenerator, LinkLimits, MAX_HEADER_LEN, RecvFlags, Seq, TcpError};

use super::bind::table::BindAddress;
use super::ids::SocketId;
use super::table::Socket;
use super::tuple::Tuple;
use super::{Context, Tcp};
use crate::config::TimeWaitReuse;
use crate::counters::{Counters, DropReason};
use crate::error::Error;
use crate::limits::{MAX_SOCKETS, MAX_SUPER_PACKET, RESETS_BURST, RESETS_PER_SECOND};
use crate::net::{LinkId, Net};
use crate::random::{Random, derive};
use crate::rate_limit::RateLimit;
use crate::shards::PortKind;
use crate::{TcpConfig, TcpInfo};
pub use connect::ConnectOptions;
use demux::Demux;
pub use fast_open::FastOpen;
pub use lifecycle::{LifecycleEvent, LifecycleKind};
pub use map::{Map, MapAvailable, MapError, MapPages, MapSealed, MapWith};
pub use recv::{Chunks, Discard, Lend, Taker};
pub use send::{Payload, TimeSource};
use socket::{Owner, SocketFlags, TcpSocket};
use timestamping::TimestampRequests;
pub use timestamping::TxTimestamping;
pub use unlocked::{Filled, ToCopy};

/// State that all connections share. The connections themselves are in the table of all sockets.
pub(crate) struct TcpSockets {
    pub(crate) demux: Demux,
    pub(crate) isn: IsnGenerator,
    pub(crate) fast_open: FastOpen,
    /// Settings of new connections.
    pub(crate) config: Arc<TcpConfig>,
    pub(crate) time_wait_reuse: TimeWaitReuse,
    /// Closed connections in TIME-WAIT, oldest first; entries may be stale.
    time_wait: VecDeque<SocketId>,
    /// Resets for segments that belong to no connection.
    resets: RateLimit,
}

/// Why a connection is not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRefusal {
    /// There are too many sockets.
    Limit,
    /// Another shard has become the home of the connection's packets.
    PortTaken,
}

impl ConnectionRefusal {
    /// The reason to drop the packet that was to open the connection.
    pub(crate) fn reason(self) -> DropReason {
        match self {
            Self::Limit => DropReason::TcpConnectionLimit,
            Self::PortTaken => DropReason::PortTaken,
        }
    }
}

impl From<ConnectionRefusal> for Error {
    fn from(refusal: ConnectionRefusal) -> Self {
        match refusal {
            ConnectionRefusal::Limit => Self::TooManySockets,
            ConnectionRefusal::PortTaken => Self::AddressNotAvailable,
        }
    }
}

impl TcpSockets {
    /// No connections.
    pub(crate) fn new(
        now: Instant,
        secret: &[u8; 32],
        config: TcpConfig,
        time_wait_reuse: TimeWaitReuse,
    ) -> Self {
        let draws = Random::new(derive(secret, b"resets"));
        Self {
            demux: Demux::new(derive(secret, b"demux")),
            isn: IsnGenerator::new(derive(secret, b"isn")),
            fast_open: FastOpen::new(secret),
            config: Arc::new(config),
            time_wait_reuse,
            time_wait: VecDeque::new(),
            resets: RateLimit::new(now, (RESETS_PER_SECOND, RESETS_BURST), draws),
        }
    }

    /// The state of the connection between two ends.
    pub(crate) fn info(&self, cx: &Context, tuple: &Tuple) -> Option<TcpInfo> {
        Some(cx.table.tcp(self.demux.peek(&cx.table, tuple)?)?.conn.info())
    }

    /// Ends a connection: takes it out of the demux, and out of the table unless it has an owner.
    pub(crate) fn finish(&mut self, cx: &mut Context, index: u32) {
        cx.wheel.cancel(index);
        let Some(socket) = cx.table.tcp(index) else { return };
        if socket.flags.contains(SocketFlags::DEMUX) {
            count_end(&mut cx.net.counters, socket);
            self.leave_demux(cx, index);
        }
        match cx.table.tcp(index).map(|s| s.owner) {
            Some(Owner::Closed) => self.remove_connection(cx, index),
            Some(Owner::HalfOpen { listener }) => {
                if let Some(listener) = cx.table.listener_mut(listener) {
                    listener.half_open.remove(&index);
                }
                self.remove_connection(cx, index);
            }
            // The application reads from the socket how the connection ended.
            Some(Owner::App | Owner::Queued { .. }) | None => {}
        }
    }

    /// Removes a connection, even one that has left the demux already.
    pub(crate) fn remove_connection(&mut self, cx: &mut Context, index: u32) {
        self.leave_demux(cx, index);
        cx.wheel.cancel(index);
        if let Some(Socket::Tcp(mut socket)) = cx.table.remove(index) {
            socket.release_charges(&mut cx.net.mem);
        }
    }

    /// Adds a connection, which inherits what its listener has.
    pub(crate) fn insert_connection(
        &mut self,
        cx: &mut Context,
        mut socket: TcpSocket,
    ) -> Result<SocketId, ConnectionRefusal> {
        if let Owner::HalfOpen { listener } = socket.owner
            && let Some(listener) = cx.table.listener(listener)
        {
            socket.reporting.zerocopy = listener.reporting.zerocopy;
            socket.extra = listener.inherited();
        }
        let tuple = socket.tuple;
        let Tuple { local, local_port: port, .. } = tuple;
        // The first connection from the address and port claims it, until the last has ended.
        let is_first = cx.net.is_sharded() && !self.demux.uses(BindAddress::of(local), port);
        let claim = is_first.then(|| cx.net.connection_claim(local));
        if claim.is_some_and(|claim| !cx.net.claim_home(PortKind::Tcp, &tuple, claim)) {
            return Err(ConnectionRefusal::PortTaken);
        }
        let Some(id) = cx.table.insert(Socket::Tcp(Box::new(socket)), MAX_SOCKETS) else {
            if let Some(claim) = claim {
                cx.net.release_port(PortKind::Tcp, port, claim);
            }
            return Err(ConnectionRefusal::Limit);
        };
        self.demux.insert(&mut cx.table, id.index(), claim);
        cx.touch(id.index());
        Ok(id)
    }

    /// A new connection's initial sequence number and timestamp offset.
    pub(crate) fn numbers(&self, now: Instant, tuple: &Tuple) -> (Seq, u32) {
        let (local, remote) = (tuple.local_addr(), tuple.remote_addr());
        let isn = &self.isn;
        (isn.generate(now, local, remote), isn.timestamp_offset(local, remote))
    }

    /// Takes the connection at `index` out of the demux: this is its end, if it had none.
    fn leave_demux(&mut self, cx: &mut Context, index: u32) {
        cx.note_lifecycle(index, true);
        if let Some((port, claim)) = self.demux.remove(&mut cx.table, index) {
            cx.net.release_port(PortKind::Tcp, port, claim);
        }
    }
}

/// The limits of a connection's link and path.
pub(crate) fn tcp_link(net: &Net, tuple: &Tuple, bound: Option<LinkId>) -> LinkLimits {
    let by = net.bound_link(bound).unwrap_or(None);
    let (mtu, max_super) = net.link_limits(tuple.local, tuple.remote, by);
    let ip = if tuple.remote.is_ipv4() { 20 } else { 40 };
    let payload = |mtu: usize| mtu.saturating_sub(ip + 20).clamp(1, usize::from(u16::MAX));
    let mss = payload(mtu);
    let recv_mss = payload(net.own_mtu(tuple.local, tuple.remote, by)) as u16;
    let longest = max_super.min(MAX_SUPER_PACKET).saturating_sub(ip + MAX_HEADER_LEN);
    let max_super_payload = if max_super > mtu { longest.max(mss) } else { mss };
    LinkLimits { mss: mss as u16, recv_mss, max_super_payload: max_super_payload as u32 }
}

/// The initial sequence number of a connection that replaces one whose last number was `above`.
pub(crate) fn iss_above(iss: Seq, above: Seq) -> Seq {
    /// More than any segment still under way from the largest unscaled window (as Linux has it).
    const STEP: u32 = 65_535 + 2;
    if iss.gt(above) { iss } else { above + STEP }
}

fn count_end(counters: &mut Counters, socket: &TcpSocket) {
    match socket.conn.error() {
        Some(_) if !socket.was_established() => counters.tcp_attempts_failed += 1,
        // A reset in CLOSE-WAIT is a broken pipe to the application.
        Some(TcpError::ConnectionReset | TcpError::BrokenPipe) => {
            counters.tcp_established_resets += 1;
        }
        // In order, or aborted here.
        None | Some(TcpError::ConnectionAborted) => {}
        Some(_) => counters.tcp_established_lost += 1,
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
    /// [`SocketOption::NoDelay`](crate::SocketOption).
    pub fn nodelay(&self) -> bool {
        self.socket.conn.info().nodelay
    }

    /// Whether acknowledgements leave at once (`TCP_QUICKACK`), see
    /// [`SocketOption::QuickAck`](crate::SocketOption).
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

    /// Sets the timestamps that are reported from now on, for bytes that [`stamp`](Self::stamp) names.
    /// Bytes are numbered from the first one that is not acknowledged now.
    pub fn set_timestamping(&mut self, kinds: TxTimestamping) {
        let socket = &mut *self.socket;
        let extra = socket.extra.get_or_insert_default();
        match &mut extra.timestamps {
            Some(timestamps) if !kinds.is_empty() => timestamps.kinds = kinds,
            place => {
                let new = || Box::new(TimestampRequests::new(kinds, &socket.conn));
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

    /// Payload bytes copied for this connection since [`SocketOption::CountCopies`](crate::SocketOption)
    /// was set; `None` if it is not.
    pub fn ledger(&self) -> Option<CopyLedger> {
        self.socket.extra.as_ref().and_then(|e| e.ledger)
    }

    /// The longest IP packet, in bytes, that the connection sends (`IP_MTU`, `tcpi_pmtu`).
    pub fn path_mtu(&self) -> usize {
        let headers = if self.socket.tuple.remote.is_ipv4() { 40 } else { 60 };
        usize::from(self.socket.conn.info().path_mss) + headers
    }
}
