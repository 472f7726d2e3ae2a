//! A socket of any kind.

use pagewire_tcp::TimeWait;

use super::error_queue::ErrorQueue;
use super::listener::ListenerSocket;
use super::tcp::TcpSocket;
use super::tuple::Tuple;
use super::udp::UdpSocket;
use crate::event::Readiness;

/// A socket of any kind; boxed, so that a slot of the table is small.
pub(crate) enum Socket {
    Tcp(Box<TcpSocket>),
    Listener(Box<ListenerSocket>),
    Udp(Box<UdpSocket>),
    TimeWait(Box<Remains>),
}

/// A connection in TIME-WAIT without an owner, in its place in the table.
pub(crate) struct Remains {
    pub(crate) tuple: Tuple,
    pub(crate) tcp: TimeWait,
}

impl Socket {
    pub(crate) fn readiness(&self) -> Readiness {
        match self {
            Self::Tcp(socket) => socket.readiness(),
            Self::Listener(socket) => socket.readiness(),
            Self::Udp(socket) => socket.readiness(),
            Self::TimeWait(_) => Readiness::NONE,
        }
    }

    /// Whether it has no unsent or unacknowledged data.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.is_quiet(),
            Self::Listener(_) | Self::Udp(_) | Self::TimeWait(_) => true,
        }
    }

    /// The error queue, if there is one.
    pub(crate) fn errors(&self) -> Option<&ErrorQueue> {
        match self {
            Self::Tcp(socket) => socket.errors(),
            Self::Udp(socket) => socket.errors.as_deref(),
            Self::Listener(_) | Self::TimeWait(_) => None,
        }
    }

    /// The error queue, if there is one.
    pub(crate) fn errors_mut(&mut self) -> Option<&mut ErrorQueue> {
        match self {
            Self::Tcp(socket) => socket.extra.as_mut()?.errors.as_mut(),
            Self::Udp(socket) => socket.errors.as_deref_mut(),
            Self::Listener(_) | Self::TimeWait(_) => None,
        }
    }

    /// Whether it is on the list `unchecked`, and the readiness that its owner knows.
    pub(crate) fn report_state(&mut self) -> Option<(&mut bool, &mut Readiness)> {
        match self {
            Self::Tcp(socket) => Some((&mut socket.unchecked, &mut socket.reported)),
            Self::Listener(socket) => Some((&mut socket.unchecked, &mut socket.reported)),
            Self::Udp(socket) => Some((&mut socket.unchecked, &mut socket.reported)),
            Self::TimeWait(_) => None,
        }
    }
}
