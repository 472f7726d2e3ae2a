//! Datagram sockets: opening them, and their verbs but for sending, receiving and groups.

pub(crate) mod groups;
pub(crate) mod memberships;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod socket;
pub(crate) mod target;

pub use memberships::{GroupLink, Memberships, MulticastSettings};
pub use recv::{Datagram, DatagramTaker, Message, UdpMessage};
pub use send::DatagramPayload;
pub use socket::DatagramKind;
pub use target::UdpTarget;

use std::net::{IpAddr, SocketAddr};

use pagewire_mem::Instant;

use crate::error::Error;
use crate::limits::{DATAGRAM_EVERY_BYTES, MAX_SOCKETS, UDP_RECEIVE_BYTES};
use crate::net::is_link_local;
use crate::sockets::bind::{BindOptions, Kind};
use crate::sockets::handles::Udp;
use crate::sockets::ids::UdpId;
use crate::sockets::marks::MtuDiscover;
use crate::sockets::table::Socket;
use crate::sockets::tuple::{canonical, scope_of};
use crate::stack::{Core, Stack};
use socket::UdpSocket;

impl Stack {
    /// Opens a datagram socket bound to `local`; port 0 stands for a free one, an unspecified
    /// address for all of ours, `::` for those of both IP versions. The options may allow an
    /// address that is shared, or that is not ours: a socket cannot send from such a one
    /// (`InvalidInput`).
    ///
    /// # Errors
    /// `AddressInUse` if a socket with this address does not share it, `AddressNotAvailable` if the
    /// address is not ours or no port is free.
    pub fn bind_udp(&mut self, local: SocketAddr, options: BindOptions) -> Result<UdpId, Error> {
        self.core.refuse_if_down()?;
        let local = self.core.bindable(canonical(local), Kind::Udp, options)?;
        let socket = UdpSocket::new(local, options.link);
        let socket = Socket::Udp(Box::new(socket));
        let id =
            self.core.sockets.table.insert(socket, MAX_SOCKETS).ok_or(Error::TooManySockets)?;
        let at = options.wanted(local.ip());
        self.core.sockets.udp_binds.insert(at, local.port(), id.index(), options.sharing());
        Ok(UdpId(id))
    }
}

impl Udp<'_> {
    /// Sets the peer: the default destination, and the only source of datagrams from now on. The
    /// socket fails with errors that the network reports about the peer. `InvalidInput` for a
    /// socket of [`Stack::bind_every`].
    pub fn connect(&mut self, remote: SocketAddr) -> Result<(), Error> {
        let (remote, scope) = (canonical(remote), scope_of(remote));
        if remote.port() == 0 || self.socket.every.is_some() {
            return Err(Error::InvalidInput);
        }
        let by = self.net.bound_link(self.socket.link)?;
        self.net.source_by(remote.ip(), scope, by)?;
        let scope = if is_link_local(remote.ip()) { scope } else { 0 };
        let socket = &mut *self.socket;
        if !socket.broadcast && self.net.is_broadcast(remote.ip()) {
            return Err(Error::PermissionDenied);
        }
        if !socket.local.ip().is_unspecified() && socket.local.is_ipv4() != remote.is_ipv4() {
            return Err(Error::AddressFamily);
        }
        (socket.remote, socket.scope) = (Some(remote), scope);
        self.check_later();
        Ok(())
    }

    /// Size of the receive queue in bytes, overhead included; at most
    /// [`UDP_RECEIVE_BYTES`](crate::limits::UDP_RECEIVE_BYTES), the default, or of a socket of
    /// [`Stack::bind_every`] [`DATAGRAM_EVERY_BYTES`](crate::limits::DATAGRAM_EVERY_BYTES).
    pub fn set_receive_buffer(&mut self, bytes: usize) {
        let every = self.socket.every.is_some();
        let most = if every { DATAGRAM_EVERY_BYTES } else { UDP_RECEIVE_BYTES };
        self.socket.receive_bytes = bytes.min(most);
    }

    /// Size of the receive queue in bytes, see [`set_receive_buffer`](Self::set_receive_buffer).
    pub fn receive_buffer(&self) -> usize {
        self.socket.receive_bytes
    }

    /// Removes the peer: each send names its destination, and datagrams come from any source.
    pub fn disconnect(&mut self) {
        (self.socket.remote, self.socket.error) = (None, None);
    }

    /// The address that a datagram to the peer leaves from.
    ///
    /// # Errors
    /// `DestinationRequired` without a peer, `NetworkUnreachable` without a route.
    pub fn source(&self) -> Result<IpAddr, Error> {
        let socket = &*self.socket;
        let remote = socket.remote.ok_or(Error::DestinationRequired)?;
        match socket.local.ip() {
            ip if ip.is_unspecified() || ip.is_multicast() => {
                let by = self.net.bound_link(socket.link)?;
                self.net.source_by(remote.ip(), socket.scope, by)
            }
            ip => Ok(ip),
        }
    }

    /// Length of the oldest datagram, 0 if there is none.
    pub fn next_len(&self) -> usize {
        self.socket.queue.front().map_or(0, |datagram| datagram.len())
    }

    /// Datagrams dropped for want of room in the socket's queue or in the host's memory, modulo
    /// 2^32 (Linux's `SO_RXQ_OVFL`).
    pub fn dropped(&self) -> u32 {
        self.socket.dropped
    }

    /// Keeps errors that the network reports in the error queue; off drops those in the queue.
    pub fn queue_errors(&mut self, on: bool) {
        self.socket.errors.get_or_insert_default().keep_errors(on);
    }

    /// Allows sending to broadcast addresses (`SO_BROADCAST`); off by default.
    pub fn set_broadcast(&mut self, on: bool) {
        self.socket.broadcast = on;
    }

    /// Whether it may send to broadcast addresses.
    pub fn broadcast(&self) -> bool {
        self.socket.broadcast
    }

    /// Whether [`Message`](crate::Message) takes several datagrams as one (`UDP_GRO`); off by
    /// default.
    pub fn set_join(&mut self, on: bool) {
        self.socket.joins = on;
    }

    /// Splits sends of more than `bytes` of payload in datagrams of so many bytes (the last may be
    /// shorter); 0, the default: each call is one datagram.
    pub fn set_segment(&mut self, bytes: u16) {
        self.socket.segment = bytes;
    }

    /// Sets how the socket treats the MTU of its paths.
    pub fn set_mtu_discover(&mut self, how: MtuDiscover) {
        self.socket.mtu_discover = how;
    }
}

impl Core {
    pub(crate) fn close_udp(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.sockets.table.udp_mut(index) else { return };
        let port = socket.local.port();
        let groups = socket.groups.take();
        self.mem.shared.receive.charge_datagrams(socket.queued_bytes, 0);
        self.sockets.udp_binds.remove(port, index);
        self.sockets.udp_binds.every.remove(index);
        self.sockets.echoes.remove(index);
        self.sockets.table.remove(index);
        if let Some(groups) = groups {
            self.quit_groups(now, &groups);
        }
    }
}
