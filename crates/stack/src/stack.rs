//! The stack: signatures for now.

use std::collections::VecDeque;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::time::Duration;

use pagewire_device::Capabilities;
use pagewire_mem::{CopyLedger, Frag, FragVec, Instant, PacketBuf, PoolAudit};

use crate::stub::{Cidr, Counters, Error, StackError, TcpConfig};
use crate::{Event, QueuedError, Readiness};

/// Names a socket of one stack. Never reused: an id whose socket is gone gives
/// [`Error::BadSocket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId {
    index: u32,
    generation: u32,
}

/// Settings of a stack.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StackConfig {
    /// What the device can do.
    pub capabilities: Capabilities,
    /// Our addresses, each with the length of its network's prefix.
    pub addresses: Vec<Cidr>,
    /// Where packets go that are for no network of ours; one for each IP version.
    pub gateways: Vec<IpAddr>,
    /// Keys for sequence numbers, ports and hashes: fresh random bytes.
    pub secret: [u8; 32],
    /// Settings of new connections.
    pub tcp: TcpConfig,
    /// Bytes of memory for payload written by copy; touched only as far as used.
    pub pool_bytes: usize,
}

impl StackConfig {
    /// Settings with the defaults of everything else.
    pub fn new(capabilities: Capabilities, addresses: Vec<Cidr>, secret: [u8; 32]) -> Self {
        Self {
            capabilities,
            addresses,
            gateways: Vec::new(),
            secret,
            tcp: TcpConfig,
            pool_bytes: 64 << 20,
        }
    }
}

/// A setting of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpOption {
    /// Small pieces leave at once, not joined (RFC 896) with what follows.
    NoDelay(bool),
    /// Only full segments leave.
    Cork(bool),
    /// Probe an idle connection after this time; `None`: never.
    KeepAlive(Option<Duration>),
}

/// What is known of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TcpInfo {}

/// A TCP/IP stack on one device.
pub struct Stack {
    ledger: CopyLedger,
    counters: Counters,
}

/// Inputs.
impl Stack {
    /// A stack with no sockets.
    pub fn new(now: Instant, config: StackConfig) -> Result<Self, StackError> {
        let _ = (now, config);
        Ok(Self { ledger: CopyLedger::new(), counters: Counters })
    }

    /// A frame that the device received.
    pub fn handle_frame(&mut self, now: Instant, frame: PacketBuf) {
        let _ = (now, frame);
    }

    /// Time has come to [`poll_timeout`](Self::poll_timeout), or passed it.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// Ends a turn: takes home released pages; in debug builds, checks that none is lost.
    pub fn end_turn(&mut self) {}
}

/// Outputs.
impl Stack {
    /// Appends frames that may be sent now, a bounded number; `true`: there are more.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        let _ = (now, out);
        false
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due although nothing comes in.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The next socket that became ready for something; each at most once between its changes.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// Counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Payload bytes copied, by reason.
    pub fn ledger(&self) -> &CopyLedger {
        &self.ledger
    }

    /// The ledger, for a device that copies.
    pub fn ledger_mut(&mut self) -> &mut CopyLedger {
        &mut self.ledger
    }

    /// Pages of the stack's pool.
    pub fn pool_audit(&self) -> PoolAudit {
        PoolAudit { total: 0, free: 0, returned: 0, out: 0 }
    }

    /// Whether no connection has anything left to send or to have acknowledged.
    pub fn is_quiet(&self) -> bool {
        true
    }
}

/// Verbs for every socket.
impl Stack {
    /// The owner lets go. What TCP has queued is still delivered.
    pub fn close(&mut self, now: Instant, id: SocketId) {
        let _ = (now, id);
    }

    /// The owner lets go and the peer gets a reset.
    pub fn abort(&mut self, now: Instant, id: SocketId) {
        let _ = (now, id);
    }

    /// The address of this side.
    pub fn local_addr(&self, id: SocketId) -> Result<SocketAddr, Error> {
        bad(id)
    }

    /// The address of the other side.
    pub fn remote_addr(&self, id: SocketId) -> Result<SocketAddr, Error> {
        bad(id)
    }

    /// What the socket is ready for.
    pub fn readiness(&self, id: SocketId) -> Result<Readiness, Error> {
        bad(id)
    }

    /// The error that waits, once.
    pub fn take_error(&mut self, id: SocketId) -> Option<Error> {
        let _ = id;
        None
    }

    /// The oldest entry of the error queue.
    pub fn poll_error_queue(&mut self, id: SocketId) -> Option<QueuedError> {
        let _ = id;
        None
    }
}

/// Verbs for TCP.
impl Stack {
    /// Begins to connect; the socket becomes writable, or gets an error.
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SocketId, Error> {
        let _ = (now, remote, local);
        Err(Error::WouldBlock)
    }

    /// Listens; port 0 for a free one.
    pub fn tcp_listen(
        &mut self,
        now: Instant,
        local: SocketAddr,
        backlog: usize,
    ) -> Result<SocketId, Error> {
        let _ = (now, local, backlog);
        Err(Error::WouldBlock)
    }

    /// Takes a connection.
    pub fn tcp_accept(
        &mut self,
        now: Instant,
        id: SocketId,
    ) -> Result<(SocketId, SocketAddr), Error> {
        let _ = now;
        bad(id)
    }

    /// Queues memory by reference; takes what there is room for out of `frags`.
    pub fn tcp_send(
        &mut self,
        now: Instant,
        id: SocketId,
        frags: &mut FragVec,
    ) -> Result<usize, Error> {
        let _ = (now, frags);
        bad(id)
    }

    /// Queues a copy of as much of `data` as there is room for.
    pub fn tcp_write(&mut self, now: Instant, id: SocketId, data: &[u8]) -> Result<usize, Error> {
        let _ = (now, data);
        bad(id)
    }

    /// Takes received bytes by copy; 0 at the end of the stream.
    pub fn tcp_read(
        &mut self,
        now: Instant,
        id: SocketId,
        into: &mut [u8],
    ) -> Result<usize, Error> {
        let _ = (now, into);
        bad(id)
    }

    /// Takes up to `max` received bytes by reference; 0 at the end of the stream.
    pub fn tcp_recv_chunks(
        &mut self,
        now: Instant,
        id: SocketId,
        max: usize,
        into: &mut Vec<Frag>,
    ) -> Result<usize, Error> {
        let _ = (now, max, into);
        bad(id)
    }

    /// Ends one direction, or both.
    pub fn tcp_shutdown(&mut self, now: Instant, id: SocketId, how: Shutdown) -> Result<(), Error> {
        let _ = (now, how);
        bad(id)
    }

    /// What is known of a connection.
    pub fn tcp_info(&self, id: SocketId) -> Result<TcpInfo, Error> {
        bad(id)
    }

    /// Changes a setting of a connection.
    pub fn tcp_set_option(
        &mut self,
        now: Instant,
        id: SocketId,
        option: TcpOption,
    ) -> Result<(), Error> {
        let _ = (now, option);
        bad(id)
    }
}

/// Verbs for UDP.
impl Stack {
    /// A datagram socket; port 0 for a free one.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<SocketId, Error> {
        let _ = local;
        Err(Error::WouldBlock)
    }

    /// Sets where datagrams go by default, and receives from there only.
    pub fn udp_connect(
        &mut self,
        now: Instant,
        id: SocketId,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        let _ = (now, remote);
        bad(id)
    }

    /// Sends a datagram by reference, to `remote` or to where the socket is connected.
    pub fn udp_send_to(
        &mut self,
        now: Instant,
        id: SocketId,
        data: FragVec,
        remote: Option<SocketAddr>,
    ) -> Result<usize, Error> {
        let _ = (now, data, remote);
        bad(id)
    }

    /// Sends a copy of `data` as a datagram, to `remote` or to where the socket is connected.
    pub fn udp_write_to(
        &mut self,
        now: Instant,
        id: SocketId,
        data: &[u8],
        remote: Option<SocketAddr>,
    ) -> Result<usize, Error> {
        let _ = (now, data, remote);
        bad(id)
    }

    /// Takes a datagram by reference.
    pub fn udp_recv_from(
        &mut self,
        now: Instant,
        id: SocketId,
    ) -> Result<(FragVec, SocketAddr), Error> {
        let _ = now;
        bad(id)
    }

    /// Takes a datagram by copy; what does not fit is lost.
    pub fn udp_read_from(
        &mut self,
        now: Instant,
        id: SocketId,
        into: &mut [u8],
    ) -> Result<(usize, SocketAddr), Error> {
        let _ = (now, into);
        bad(id)
    }
}

fn bad<T>(id: SocketId) -> Result<T, Error> {
    let SocketId { index: _, generation: _ } = id;
    Err(Error::BadSocket)
}
