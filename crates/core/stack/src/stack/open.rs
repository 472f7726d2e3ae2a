//! Opening of sockets, and views of sockets by id.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use pagewire_mem::Instant;

use super::Stack;
use crate::net::{Flow, Unreachable};
use crate::sockets::tuple::Tuple;
use crate::sockets::{Listener, Socket, Tcp, Udp};
use crate::{
    BindOptions, ConnectOptions, DatagramKind, Error, EveryPort, FastOpen, ListenOptions,
    ListenerId, PortReservations, SocketId, TcpConfig, TcpId, TcpInfo, UdpId,
};

impl Stack {
    /// Begins to open a connection to `remote`; it becomes writable, or gets an error. The options
    /// (or an address in their place) may give the local address.
    ///
    /// # Errors
    /// `InvalidInput` for port 0, `AddressFamily` if the addresses are of two versions,
    /// `NetworkUnreachable` without a route or to a broadcast address, `NetworkDown` if the device
    /// that leads there is gone for good, `AddressNotAvailable` if the local address is not ours
    /// (and no [transparent](crate::LinkConfig::transparent) link leads there), the connection
    /// exists already, or no ephemeral port is free, `NotSupported` for Fast Open if
    /// the host's [settings](Self::fast_open) exclude it.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        options: impl Into<ConnectOptions>,
    ) -> Result<TcpId, Error> {
        self.tcp.connect(&mut self.cx, &self.listeners, now, remote, options.into())
    }

    /// The settings of connections without their own.
    pub fn default_config(&self) -> Arc<TcpConfig> {
        Arc::clone(&self.tcp.config)
    }

    /// Fast Open of this host.
    pub fn fast_open(&mut self) -> &mut FastOpen {
        &mut self.tcp.fast_open
    }

    /// Listens for connections to `local`; port 0 stands for a free one, an unspecified address for
    /// all of ours, `::` for those of both IP versions.
    ///
    /// # Errors
    /// `AddressInUse`, also if another listener's wildcard covers the address, or another socket
    /// listens at the reserved address; `AddressNotAvailable` if it is not ours, or no ephemeral
    /// port is free.
    pub fn listen(
        &mut self,
        local: SocketAddr,
        options: impl Into<ListenOptions>,
    ) -> Result<ListenerId, Error> {
        self.listeners.listen(&self.tcp, &mut self.cx, local, options.into())
    }

    /// Listens at every address and port of a transparent link. SYNs that no other listener takes are
    /// shown before they are answered: [`Listener::poll_request`](crate::Listener::poll_request).
    ///
    /// # Errors
    /// `InvalidInput` if the link is not transparent or is gone, `AddressInUse` if it has such a
    /// listener or another shard excludes it, `TooManySockets`.
    pub fn listen_every(&mut self, on: impl Into<EveryPort>) -> Result<ListenerId, Error> {
        self.listeners.listen_every(&self.tcp, &mut self.cx, on.into())
    }

    /// Port reservations.
    pub fn reservations(&mut self) -> PortReservations<'_> {
        PortReservations::new(self)
    }

    /// Opens a datagram socket bound to `local`; port 0 stands for a free one, an unspecified
    /// address for all of ours, `::` for those of both IP versions. The options may allow an
    /// address that is shared, or that is not ours: a socket cannot send from such a one
    /// (`InvalidInput`).
    ///
    /// # Errors
    /// `AddressInUse` if a socket with this address does not share it, `AddressNotAvailable` if the
    /// address is not ours or no port is free.
    pub fn bind_udp(&mut self, local: SocketAddr, options: BindOptions) -> Result<UdpId, Error> {
        self.udp.bind(&mut self.cx, local, options)
    }

    /// A socket for datagrams, or echo requests, to every address and port of a transparent link that
    /// no other socket takes. [`Message`](crate::Message) takes them with both addresses; each send
    /// names its [source](crate::UdpTarget::source), which may be any. What it sends leaves by the
    /// link. With [`Udp::queue_errors`](crate::Udp::queue_errors) the errors that the network reports
    /// say which datagram they are [about](crate::QueuedError::about). Its queue is for all flows
    /// together, [`DATAGRAM_EVERY_BYTES`](crate::limits::DATAGRAM_EVERY_BYTES): empty it in each turn.
    ///
    /// # Errors
    /// As [`listen_every`](Self::listen_every), for each kind of socket.
    pub fn bind_every(
        &mut self,
        on: impl Into<EveryPort>,
        kind: DatagramKind,
    ) -> Result<UdpId, Error> {
        self.udp.bind_every(&mut self.cx, on.into(), kind)
    }

    /// Tells the sender of a packet to another host that it could not be delivered: an ICMP error
    /// that quotes the flow's addresses, ports and sequence number. `from`: the address of the
    /// router that found out; `None`: the destination's own for `Port` and `Protocol`, else ours.
    ///
    /// Such errors do not count for the limits of ICMP errors that the stack sends by itself.
    ///
    /// # Errors
    /// `AddressFamily` if the addresses are of two versions, `AddressNotAvailable` if `from` is not
    /// ours and the sender is not behind a transparent link, `NetworkUnreachable` without a route,
    /// `WouldBlock` beyond [`REQUEST_ANSWERS_PER_SECOND`](crate::limits::REQUEST_ANSWERS_PER_SECOND).
    pub fn send_unreachable(
        &mut self,
        now: Instant,
        about: &Flow,
        why: Unreachable,
        from: Option<IpAddr>,
    ) -> Result<(), Error> {
        self.cx.send_unreachable(now, about, why, from)
    }

    /// The connection that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    #[inline]
    pub fn tcp(&mut self, id: TcpId) -> Result<Tcp<'_>, Error> {
        self.cx.drain_completions();
        self.cx.tcp(id)
    }

    /// The state of a connection, from a shared reference.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    pub fn info(&self, id: TcpId) -> Result<TcpInfo, Error> {
        match self.cx.table.get(id.0)? {
            Socket::Tcp(socket) => Ok(socket.conn.info()),
            _ => Err(Error::NoSuchSocket),
        }
    }

    /// The state of the connection between two addresses, ours first; `None`: there is none. For
    /// tools that see packets and not sockets.
    pub fn connection(&self, local: SocketAddr, remote: SocketAddr) -> Option<TcpInfo> {
        self.tcp.info(&self.cx, &Tuple::new(local, remote))
    }

    /// The datagram socket that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    #[inline]
    pub fn udp(&mut self, id: UdpId) -> Result<Udp<'_>, Error> {
        self.cx.drain_completions();
        self.cx.udp(id)
    }

    /// The listener that `id` names.
    ///
    /// # Errors
    /// `NoSuchSocket` if it is closed.
    pub fn listener(&mut self, id: ListenerId) -> Result<Listener<'_>, Error> {
        match self.cx.table.get(id.0)? {
            Socket::Listener(_) => Ok(Listener::new(id, &mut self.tcp, &mut self.cx)),
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
