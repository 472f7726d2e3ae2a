//! Errors for applications ([`TcpError`]), and reasons for counters ([`DropReason`]).

/// Why an operation on a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// The operation would block; wait for readiness.
    #[error("operation would block")]
    WouldBlock,
    /// The peer answered the attempt to connect with a reset.
    #[error("connection refused")]
    ConnectionRefused,
    /// The peer reset the connection.
    #[error("connection reset by peer")]
    ConnectionReset,
    /// The connection was aborted on this side.
    #[error("connection aborted")]
    ConnectionAborted,
    /// The peer did not answer in time.
    #[error("connection timed out")]
    TimedOut,
    /// The device that leads to the peer is gone for good.
    #[error("network is down")]
    NetworkDown,
    /// The network reported that the peer's host is unreachable.
    #[error("no route to host")]
    HostUnreachable,
    /// The network reported that the peer's network is unreachable.
    #[error("network is unreachable")]
    NetworkUnreachable,
    /// The peer's host does not speak TCP.
    #[error("protocol not available at the peer")]
    ProtocolUnreachable,
    /// The connection is not established.
    #[error("not connected")]
    NotConnected,
    /// The sending direction is closed on this side, or the connection is gone.
    #[error("broken pipe: sending is closed")]
    BrokenPipe,
    /// The socket is already connected.
    #[error("already connected")]
    AlreadyConnected,
    /// An argument is invalid.
    #[error("invalid argument")]
    InvalidInput,
    /// A limit on memory was reached.
    #[error("out of buffer memory")]
    NoBuffers,
}

impl TcpError {
    /// Linux's number for this error (`errno(3)`), from the generic table.
    pub const fn errno(self) -> i32 {
        match self {
            Self::WouldBlock => 11,          // EAGAIN
            Self::InvalidInput => 22,        // EINVAL
            Self::BrokenPipe => 32,          // EPIPE
            Self::ProtocolUnreachable => 92, // ENOPROTOOPT
            Self::NetworkDown => 100,        // ENETDOWN
            Self::NetworkUnreachable => 101, // ENETUNREACH
            Self::ConnectionAborted => 103,  // ECONNABORTED
            Self::ConnectionReset => 104,    // ECONNRESET
            Self::NoBuffers => 105,          // ENOBUFS
            Self::AlreadyConnected => 106,   // EISCONN
            Self::NotConnected => 107,       // ENOTCONN
            Self::TimedOut => 110,           // ETIMEDOUT
            Self::ConnectionRefused => 111,  // ECONNREFUSED
            Self::HostUnreachable => 113,    // EHOSTUNREACH
        }
    }
}

pagewire_mem::reasons! {
    DropReason: "Why TCP dropped a segment, or a part of it.";

    /// The segment is shorter than a header of 20 bytes.
    HeaderTruncated = "tcp_header_truncated",
    /// The data offset is less than 20 bytes.
    HeaderOffsetSmall = "tcp_header_offset_small",
    /// The data offset points beyond the segment.
    HeaderOffsetBeyond = "tcp_header_offset_beyond",
    /// No bit among SYN, ACK and RST is set, or no state accepts the combination.
    Flags = "tcp_flags",
    /// The connection is closed.
    Closed = "tcp_closed",
    /// The timestamp is older than one seen before (RFC 7323 section 5, PAWS).
    Paws = "tcp_paws",
    /// Nothing of the segment lies in the receive window (RFC 9293 section 3.10.7.4, first check).
    OutsideWindow = "tcp_outside_window",
    /// The data had arrived before.
    Duplicate = "tcp_duplicate",
    /// A reset whose sequence number is not exactly the next one (RFC 5961 section 3).
    RstNotNext = "tcp_rst_not_next",
    /// A reset outside the window, or without the acknowledgement that SYN-SENT asks for.
    RstInvalid = "tcp_rst_invalid",
    /// A SYN on a connection that is synchronised (RFC 5961 section 4).
    SynUnexpected = "tcp_syn_unexpected",
    /// A segment of a synchronised connection without the ACK bit.
    AckMissing = "tcp_ack_missing",
    /// An acknowledgement of numbers that were never sent.
    AckUnsent = "tcp_ack_unsent",
    /// An acknowledgement of the SYN,ACK without data, with deferred accept.
    Deferred = "tcp_deferred",
    /// An acknowledgement of numbers more than a window behind (RFC 5961 section 5).
    AckTooOld = "tcp_ack_too_old",
    /// Data for an application that has closed.
    ReceiveClosed = "tcp_receive_closed",
    /// Data after the peer's FIN.
    AfterFin = "tcp_after_fin",
    /// Too many separate ranges wait for the gaps before them.
    OutOfOrderLimit = "tcp_out_of_order_limit",
    /// The receive queue pins too much memory for its data, and no pages are free to compact it.
    ReceiveMemory = "tcp_receive_memory",
    /// The connections together hold as much unread data as the host has memory for.
    HostMemory = "tcp_host_memory",
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
