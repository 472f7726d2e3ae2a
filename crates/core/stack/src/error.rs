//! Errors: [`Error`] of operations on sockets, [`StackError`] of building a stack.

use std::net::IpAddr;

use crate::cidr::Cidr;

/// Why an operation on a socket failed. One variant, one number in `errno(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not now; an event reports when.
    #[error("operation would block")]
    WouldBlock,
    /// There is no such socket (any more).
    #[error("no such socket")]
    NoSuchSocket,
    /// There is no such link, or it does not speak this version of IP.
    #[error("no such link")]
    NoSuchLink,
    /// An argument is invalid.
    #[error("invalid argument")]
    InvalidInput,
    /// The socket's kind does not have this operation.
    #[error("operation not supported by this kind of socket")]
    NotSupported,
    /// The remote address is of the other family than the local one, or of none we have.
    #[error("address family not supported")]
    AddressFamily,
    /// The local address and port are taken.
    #[error("address in use")]
    AddressInUse,
    /// The local address is not one of ours, or no ephemeral port is free.
    #[error("address not available")]
    AddressNotAvailable,
    /// A datagram without a destination on a socket that is not connected.
    #[error("destination address required")]
    DestinationRequired,
    /// The datagram, or the segment, is longer than the protocol or the link can carry.
    #[error("message too long")]
    MessageTooLong,
    /// The socket may not broadcast, or an administrative rule forbids it.
    #[error("permission denied")]
    PermissionDenied,
    /// A limit on buffers or packets was reached.
    #[error("out of buffer space")]
    NoBuffers,
    /// The socket has too many unread or outstanding notifications of zero-copy sends.
    #[error("too many notifications of zero-copy sends unread or to come")]
    TooManyNotifications,
    /// Zero-copy sends hold too many pages.
    #[error("zero-copy sends hold too many pages")]
    TooManyPagesHeld,
    /// Out of memory.
    #[error("out of memory")]
    NoMemory,
    /// A limit on sockets was reached.
    #[error("too many sockets")]
    TooManySockets,
    /// The link's device is gone for good, or the stack was shut down.
    #[error("network is down")]
    NetworkDown,
    /// No route leads there.
    #[error("network is unreachable")]
    NetworkUnreachable,
    /// The next hop of the route does not answer.
    #[error("no route to host")]
    HostUnreachable,
    /// The peer's host does not speak the protocol.
    #[error("protocol not available at the peer")]
    ProtocolUnreachable,
    /// The peer's host found our header faulty.
    #[error("protocol error")]
    Protocol,
    /// The peer answered with a reset or "port unreachable".
    #[error("connection refused")]
    ConnectionRefused,
    /// The peer reset the connection.
    #[error("connection reset by peer")]
    ConnectionReset,
    /// This side aborted the connection.
    #[error("connection aborted")]
    ConnectionAborted,
    /// The peer did not answer in time.
    #[error("connection timed out")]
    TimedOut,
    /// The socket is not connected.
    #[error("not connected")]
    NotConnected,
    /// The socket is connected already.
    #[error("already connected")]
    AlreadyConnected,
    /// The connection is being set up.
    #[error("connection in progress")]
    InProgress,
    /// This side has closed its sending direction, or the connection is gone.
    #[error("broken pipe: sending is closed")]
    BrokenPipe,
}

impl Error {
    /// Linux's number for this error (`errno(3)`), from the generic table.
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoSuchSocket => 9,         // EBADF
            Self::WouldBlock => 11,          // EAGAIN
            Self::NoMemory => 12,            // ENOMEM
            Self::PermissionDenied => 13,    // EACCES
            Self::NoSuchLink => 19,          // ENODEV
            Self::InvalidInput => 22,        // EINVAL
            Self::TooManySockets => 24,      // EMFILE
            Self::BrokenPipe => 32,          // EPIPE
            Self::Protocol => 71,            // EPROTO
            Self::DestinationRequired => 89, // EDESTADDRREQ
            Self::MessageTooLong => 90,      // EMSGSIZE
            Self::ProtocolUnreachable => 92, // ENOPROTOOPT
            Self::NotSupported => 95,        // EOPNOTSUPP
            Self::AddressFamily => 97,       // EAFNOSUPPORT
            Self::AddressInUse => 98,        // EADDRINUSE
            Self::AddressNotAvailable => 99, // EADDRNOTAVAIL
            Self::NetworkDown => 100,        // ENETDOWN
            Self::NetworkUnreachable => 101, // ENETUNREACH
            Self::ConnectionAborted => 103,  // ECONNABORTED
            Self::ConnectionReset => 104,    // ECONNRESET
            // ENOBUFS
            Self::NoBuffers | Self::TooManyNotifications | Self::TooManyPagesHeld => 105,
            Self::AlreadyConnected => 106,  // EISCONN
            Self::NotConnected => 107,      // ENOTCONN
            Self::TimedOut => 110,          // ETIMEDOUT
            Self::ConnectionRefused => 111, // ECONNREFUSED
            Self::HostUnreachable => 113,   // EHOSTUNREACH
            Self::InProgress => 115,        // EINPROGRESS
        }
    }
}

/// Why a stack could not be built. The text names the setting to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// No address was given.
    #[error("no address given: add at least one, such as 10.0.0.2/24")]
    NoAddress,
    /// More addresses or routes than a stack takes.
    #[error("{given} {what} given, at most {limit} are supported")]
    TooMany {
        /// Addresses, routes, gateways.
        what: &'static str,
        /// How many were given.
        given: usize,
        /// How many may be.
        limit: usize,
    },
    /// An address that no host can have.
    #[error("{0} cannot be a host's address: {1}")]
    Address(Cidr, &'static str),
    /// The same address twice.
    #[error("address {0} is given twice")]
    DuplicateAddress(IpAddr),
    /// A gateway that is not on any of our links.
    #[error("gateway {0} is in no network of our addresses")]
    Gateway(IpAddr),
    /// The MTU cannot carry IP.
    #[error("MTU {mtu} is too small: {why}")]
    Mtu {
        /// The device's MTU in bytes.
        mtu: usize,
        /// The feature that needs more.
        why: &'static str,
    },
    /// Another stack has this place among the shards of the host.
    #[error("another stack is shard {0} of the host: give each stack a place of its own")]
    ShardTaken(usize),
    /// The secret is not the one that the host's shards have.
    #[error("the secret is not the one that the shards of the host were made with")]
    ShardSecret,
    /// Memory for pages could not be had.
    #[error("cannot set up page memory: {0}")]
    Memory(#[from] pagewire_mem::MemError),
}
