//! Views: each borrows one socket and what its verbs work with.

use core::net::SocketAddr;

use super::Sockets;
use super::ids::{ListenerId, SocketId, TcpId, UdpId};
use super::table::Socket;
use super::tuple::Tuple;
use super::work::Work;
use crate::TcpInfo;
use crate::error::Error;
use crate::net::{Mem, Net};
use crate::sockets::tcp::socket::TcpSocket;
use crate::sockets::udp::socket::UdpSocket;
use crate::stack::{Core, Stack};
use crate::timer_wheel::TimerWheel;

/// A connection, and what its verbs work with.
pub struct Tcp<'a> {
    pub(super) id: SocketId,
    pub(super) socket: &'a mut TcpSocket,
    pub(super) mem: &'a mut Mem,
    pub(super) work: &'a mut Work,
    pub(super) wheel: &'a mut TimerWheel,
}

/// A datagram socket, and what its verbs work with.
pub struct Udp<'a> {
    pub(super) id: SocketId,
    pub(super) socket: &'a mut UdpSocket,
    pub(super) net: &'a mut Net,
    pub(super) mem: &'a mut Mem,
    pub(super) work: &'a mut Work,
}

/// A listener, and what its verbs work with.
pub struct Listener<'a> {
    pub(super) id: SocketId,
    pub(super) core: &'a mut Core,
}

impl Stack {
    /// The connection that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    #[inline]
    pub fn tcp(&mut self, id: TcpId) -> Result<Tcp<'_>, Error> {
        self.core.drain_completions();
        self.core.tcp(id.0)
    }

    /// The state of a connection, from a shared reference.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    pub fn info(&self, id: TcpId) -> Result<TcpInfo, Error> {
        match self.core.sockets.table.get(id.0)? {
            Socket::Tcp(socket) => Ok(socket.conn.info()),
            _ => Err(Error::NoSuchSocket),
        }
    }

    /// The state of the connection between two addresses, ours first; `None`: there is none. For
    /// tools that see packets and not sockets.
    pub fn connection(&self, local: SocketAddr, remote: SocketAddr) -> Option<TcpInfo> {
        let sockets = &self.core.sockets;
        let index = sockets.demux.peek(&sockets.table, &Tuple::new(local, remote))?;
        Some(sockets.table.tcp(index)?.conn.info())
    }

    /// The datagram socket that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    #[inline]
    pub fn udp(&mut self, id: UdpId) -> Result<Udp<'_>, Error> {
        self.core.drain_completions();
        self.core.udp(id.0)
    }

    /// The listener that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    pub fn listener(&mut self, id: ListenerId) -> Result<Listener<'_>, Error> {
        match self.core.sockets.table.get(id.0)? {
            Socket::Listener(_) => Ok(Listener { id: id.0, core: &mut self.core }),
            _ => Err(Error::InvalidInput),
        }
    }

    /// As [`tcp`](Self::tcp), for owners of sockets of any kind.
    ///
    /// # Errors
    /// `NotConnected` for a listener, `NotSupported` for a datagram socket, `NoSuchSocket`.
    #[inline]
    pub fn as_tcp(&mut self, id: SocketId) -> Result<Tcp<'_>, Error> {
        self.tcp(TcpId(id))
    }

    /// As [`udp`](Self::udp), for owners of sockets of any kind.
    ///
    /// # Errors
    /// `NotSupported` for a socket of another kind, `NoSuchSocket`.
    #[inline]
    pub fn as_udp(&mut self, id: SocketId) -> Result<Udp<'_>, Error> {
        self.udp(UdpId(id))
    }

    /// As [`listener`](Self::listener), for owners of sockets of any kind.
    ///
    /// # Errors
    /// `InvalidInput` for a socket of another kind, `NoSuchSocket`.
    pub fn as_listener(&mut self, id: SocketId) -> Result<Listener<'_>, Error> {
        self.listener(ListenerId(id))
    }
}

impl Core {
    #[inline]
    pub(crate) fn tcp(&mut self, id: SocketId) -> Result<Tcp<'_>, Error> {
        let Self { mem, sockets: Sockets { table, work, wheel, .. }, .. } = self;
        match table.get_mut(id)? {
            Socket::Tcp(socket) => Ok(Tcp { id, socket, mem, work, wheel }),
            Socket::Listener(_) => Err(Error::NotConnected),
            Socket::Udp(_) => Err(Error::NotSupported),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }

    #[inline]
    fn udp(&mut self, id: SocketId) -> Result<Udp<'_>, Error> {
        let Self { net, mem, sockets: Sockets { table, work, .. } } = self;
        match table.get_mut(id)? {
            Socket::Udp(socket) => Ok(Udp { id, socket, net, mem, work }),
            _ => Err(Error::NotSupported),
        }
    }
}

impl Tcp<'_> {
    /// The connection's id.
    pub fn id(&self) -> TcpId {
        TcpId(self.id)
    }

    /// Marks it: it may send, and its readiness may have grown.
    #[inline]
    pub(super) fn touch(&mut self) {
        let index = self.id.index();
        self.work.queue_send(index, self.socket);
        self.work.queue_report(index, &mut self.socket.reporting);
    }
}

impl Udp<'_> {
    /// The socket's id.
    pub fn id(&self) -> UdpId {
        UdpId(self.id)
    }

    /// Marks it: its readiness may have grown.
    pub(super) fn check_later(&mut self) {
        self.work.queue_report(self.id.index(), &mut self.socket.reporting);
    }
}
