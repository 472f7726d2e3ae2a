//! Limits of this crate, each with its unit and its reason.
//!
//! Programs meet most of them as errors of calls. A limit with a Linux name keeps Linux's value. The others
//! (`MAX_DESCRIPTORS`, `MAX_DROPPED`, `MAX_OPTION`) bound memory, and may change.

/// Descriptors of one table. As a large server's `RLIMIT_NOFILE`.
pub const MAX_DESCRIPTORS: usize = 1 << 20;

/// Bytes in a pipe, Linux's default.
pub const PIPE_BYTES: usize = 65_536;

/// Pieces in a pipe, Linux's default: one for each page of [`PIPE_BYTES`].
pub const PIPE_PIECES: usize = 16;

/// Elements of an I/O vector (`UIO_MAXIOV`).
pub const MAX_IOV: usize = 1024;

/// Bytes that one call moves at most: `MAX_RW_COUNT`, the largest `int` less a page.
pub const MAX_RW_BYTES: usize = 0x7fff_f000;

/// Most bytes that one `recv` with `MSG_TRUNC` drops: more than a receive buffer has.
pub const MAX_DROPPED: usize = 64 << 20;

/// Longest backlog that `listen` asks the stack for: Linux's `net.core.somaxconn`.
pub const SOMAXCONN: usize = 4096;

/// Bytes of ancillary data that one call takes or gives: Linux's `net.core.optmem_max`.
pub const MAX_CONTROL: usize = 131_072;

/// Bytes of an option's value that are read: the longest has 280 (`tcp_info`).
pub const MAX_OPTION: usize = 4096;

/// Paths of one wake-up through epoll instances: the sum of Linux's limits (500, 100, 50, 10).
pub const MAX_EPOLL_PATHS: usize = 660;

/// Depth of epoll instances that watch one another (`EP_MAX_NESTS`).
pub const MAX_EPOLL_DEPTH: usize = 4;

/// The buffer sizes of a datagram socket as they are read back: Linux's `net.core.wmem_default`.
pub const DATAGRAM_BUFFER: u32 = 212_992;
