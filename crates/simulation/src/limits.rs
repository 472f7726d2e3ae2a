//! Every limit of this crate, with its unit and its reason.

/// Hosts of one simulation: more than one process can hold, and few enough to number them in 24
/// bits, as the addresses of `10.0.0.0/8`.
pub const MAX_HOSTS: usize = 1 << 20;

/// Bytes of address space of a host's pool by default; touched only as far as used.
pub const POOL_BYTES: usize = 4 << 20;

/// Bytes that a host's sockets may pin for unread data: two windows of a default connection.
pub const RECEIVE_MEMORY: usize = 8 << 20;

/// Connections that wait to be accepted by a listener of `bind`: tokio's number.
pub const LISTEN_BACKLOG: usize = 1024;

/// Bytes that one read into a growing buffer takes at most: the largest datagram.
pub const READ_BUF: usize = 1 << 16;

/// Largest buffer that a socket may ask for, in bytes before doubling (Linux's
/// `net.core.wmem_max`).
pub const MAX_BUFFER: u32 = 4 << 20;

/// Least send buffer, in bytes after doubling: two small packets with Linux's bookkeeping.
pub const MIN_SEND_BUFFER: u32 = 4608;

/// Least receive buffer, in bytes after doubling: one small packet with Linux's bookkeeping.
pub const MIN_RECEIVE_BUFFER: u32 = 2304;
