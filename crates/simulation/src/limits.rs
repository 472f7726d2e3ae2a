//! Every limit of this crate, with its unit and its reason.

/// Hosts of one simulation: more than one process can hold, and few enough to number them in 24
/// bits, as the addresses of `10.0.0.0/8`.
pub const MAX_HOSTS: usize = 1 << 20;

/// Bytes of address space of a host's pool by default; touched only as far as used.
pub const POOL_BYTES: usize = 4 << 20;

/// Bytes that a host's sockets may pin for unread data: two windows of a default connection.
pub const RECEIVE_MEMORY: usize = 8 << 20;
