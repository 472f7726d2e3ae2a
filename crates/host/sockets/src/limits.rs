//! Every limit of this crate, with its unit and its reason.

/// Bytes that one read into a growing buffer takes at most: room that is zeroed each time, because the
/// buffer's own memory may be uninitialised.
pub(crate) const READ_BUF: usize = 64 << 10;

/// Bytes of a read or write from which on the copy is made without the runtime's lock: a shorter copy takes
/// hardly longer than the second call that this costs.
pub(crate) const COPY_UNLOCKED: usize = 8 << 10;

/// Bytes that one such read takes: while they are copied, no account charges their memory.
pub(crate) const MAX_COPY_UNLOCKED: usize = 256 << 10;

/// Largest buffer that a [`TcpSocket`](crate::net::TcpSocket) may ask for, in bytes before doubling
/// (Linux's `net.core.wmem_max`).
pub(crate) const MAX_BUFFER: u32 = 4 << 20;

/// Least send buffer, in bytes after doubling: two small packets with Linux's bookkeeping.
pub(crate) const MIN_SEND_BUFFER: u32 = 4608;

/// Least receive buffer, in bytes after doubling: one small packet with Linux's bookkeeping.
pub(crate) const MIN_RECEIVE_BUFFER: u32 = 2304;
