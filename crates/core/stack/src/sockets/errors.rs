//! Errors of connections and of ICMP as errors of the stack.

use pagewire_tcp::TcpError;

use crate::error::Error;
use crate::net::IcmpKind;

pub(super) fn tcp_kind(kind: IcmpKind, v6: bool) -> pagewire_tcp::IcmpKind {
    use pagewire_tcp::IcmpKind as Tcp;
    let unreachable = |hard, error| Tcp::Unreachable { hard, error };
    match kind {
        IcmpKind::PacketTooBig { mtu } => {
            let mss = mtu.saturating_sub(if v6 { 60 } else { 40 });
            Tcp::PacketTooBig { mss: u16::try_from(mss).unwrap_or(u16::MAX) }
        }
        IcmpKind::NetUnreachable => unreachable(false, TcpError::NetworkUnreachable),
        IcmpKind::HostUnreachable
        | IcmpKind::Prohibited
        | IcmpKind::TimeExceeded
        | IcmpKind::ParameterProblem => unreachable(false, TcpError::HostUnreachable),
        IcmpKind::ProtocolUnreachable => unreachable(true, TcpError::ProtocolUnreachable),
        IcmpKind::PortUnreachable => unreachable(true, TcpError::ConnectionRefused),
    }
}

/// Linux's error for the application (`icmp_err_convert`).
pub(super) fn error_of_icmp(kind: IcmpKind) -> Error {
    match kind {
        IcmpKind::PacketTooBig { .. } => Error::MessageTooLong,
        IcmpKind::NetUnreachable => Error::NetworkUnreachable,
        IcmpKind::HostUnreachable | IcmpKind::TimeExceeded | IcmpKind::Prohibited => {
            Error::HostUnreachable
        }
        IcmpKind::ProtocolUnreachable => Error::ProtocolUnreachable,
        IcmpKind::PortUnreachable => Error::ConnectionRefused,
        IcmpKind::ParameterProblem => Error::Protocol,
    }
}

pub(super) fn error_from(error: TcpError) -> Error {
    match error {
        TcpError::WouldBlock => Error::WouldBlock,
        TcpError::ConnectionRefused => Error::ConnectionRefused,
        TcpError::ConnectionReset => Error::ConnectionReset,
        TcpError::ConnectionAborted => Error::ConnectionAborted,
        TcpError::TimedOut => Error::TimedOut,
        TcpError::HostUnreachable => Error::HostUnreachable,
        TcpError::NetworkDown => Error::NetworkDown,
        TcpError::NetworkUnreachable => Error::NetworkUnreachable,
        TcpError::ProtocolUnreachable => Error::ProtocolUnreachable,
        TcpError::NotConnected => Error::NotConnected,
        TcpError::BrokenPipe => Error::BrokenPipe,
        TcpError::AlreadyConnected => Error::AlreadyConnected,
        TcpError::NoBuffers => Error::NoBuffers,
        _ => Error::InvalidInput,
    }
}
