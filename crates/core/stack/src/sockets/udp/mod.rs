//! Datagram sockets: opening them, and their operations except sending, receiving and groups.

pub(crate) mod groups;
mod input;
pub(crate) mod memberships;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod socket;
pub(crate) mod target;

use std::net::{IpAddr, SocketAddr};

use pagewire_mem::Instant;

use super::bind::table::{ANY, Binds, WildcardSockets};
use super::bind::{BindOptions, EveryPort};
use super::ids::UdpId;
use super::table::Socket;
use super::tuple::{canonical, scope_of};
use super::{Context, Udp};
use crate::error::Error;
use crate::limits::{DATAGRAM_EVERY_BYTES, MAX_SOCKETS};
use crate::net::{LinkId, is_link_local};
use crate::random::derive;
use crate::shards::{BOUND, PortKind};
pub use memberships::{GroupLink, Memberships};
pub use recv::{Datagram, DatagramTaker, Message, UdpMessage};
pub use send::DatagramPayload;
pub use socket::DatagramKind;
use socket::UdpSocket;
pub use target::UdpTarget;

/// State that all datagram sockets share. The sockets themselves are in the table of all sockets.
pub(crate) struct UdpSockets {
    /// Datagram sockets by port.
    pub(crate) binds: Binds,
    /// Sockets for echo requests to every address of a link.
    pub(crate) echoes: WildcardSockets,
}

impl UdpSockets {
    /// No sockets.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        let key = derive(secret, b"datagram sockets that share a port");
        Self { binds: Binds::new(key), echoes: WildcardSockets::default() }
    }

    /// See [`Stack::bind_udp`](crate::Stack::bind_udp).
    pub(crate) fn bind(
        &mut self,
        cx: &mut Context,
        local: SocketAddr,
        options: BindOptions,
    ) -> Result<UdpId, Error> {
        cx.refuse_if_down()?;
        let local = canonical(local);
        let at = options.bind_address(local.ip());
        // As on Linux, a datagram socket may be bound to a group, and receives nothing else.
        let free = options.free || local.ip().is_multicast();
        let is_taken = |port, sharing| self.binds.conflicts(at, port, sharing);
        let options = BindOptions { free, ..options };
        let local = cx.bindable(PortKind::Udp, local, options, is_taken)?;
        let socket = Socket::Udp(Box::new(UdpSocket::new(local, options.link)));
        let Some(id) = cx.table.insert(socket, MAX_SOCKETS) else {
            cx.net.release_port(PortKind::Udp, local.port(), options.port_claim(local.ip()));
            return Err(Error::TooManySockets);
        };
        self.binds.insert(at, local.port(), id.index(), options.sharing());
        Ok(UdpId(id))
    }

    /// See [`Stack::bind_every`](crate::Stack::bind_every).
    pub(crate) fn bind_every(
        &mut self,
        cx: &mut Context,
        on: EveryPort,
        kind: DatagramKind,
    ) -> Result<UdpId, Error> {
        let (link, claim) = (on.link, on.port_claim());
        cx.check_transparent(link)?;
        let mut socket = UdpSocket::new(SocketAddr::new(ANY, 0), Some(link));
        (socket.wildcard, socket.receive_bytes) = (Some(kind), DATAGRAM_EVERY_BYTES);
        let every = match kind {
            DatagramKind::Udp => &mut self.binds.wildcards,
            DatagramKind::Echo => &mut self.echoes,
        };
        if every.find(Some(link)).is_some() || !cx.net.claim_port(kind.port_kind(), 0, claim) {
            return Err(Error::AddressInUse);
        }
        let socket = Socket::Udp(Box::new(socket));
        let Some(id) = cx.table.insert(socket, MAX_SOCKETS) else {
            cx.net.release_port(kind.port_kind(), 0, claim);
            return Err(Error::TooManySockets);
        };
        every.insert(link, id.index());
        Ok(UdpId(id))
    }

    /// A link is gone: the sockets for every address of it are over.
    pub(crate) fn close_wildcards(&mut self, cx: &mut Context, link: LinkId) {
        let gone = [self.binds.wildcards.remove_link(link), self.echoes.remove_link(link)];
        for index in gone.into_iter().flatten() {
            if let Some(socket) = cx.table.udp_mut(index) {
                socket.down = true;
            }
            cx.check_later(index);
        }
    }

    /// Closes the socket at `index`.
    pub(crate) fn close(&mut self, cx: &mut Context, now: Instant, index: u32) {
        let Some(socket) = cx.table.udp_mut(index) else { return };
        let port = socket.local.port();
        let kind = socket.wildcard.map_or(PortKind::Udp, DatagramKind::port_kind);
        let groups = socket.groups.take();
        cx.net.mem.shared.memory.charge_datagrams(socket.queued_bytes, 0);
        self.binds.remove(port, index);
        cx.net.release_port(kind, port, BOUND);
        self.binds.wildcards.remove(index);
        self.echoes.remove(index);
        cx.table.remove(index);
        if let Some(groups) = groups {
            cx.leave_groups(now, &groups);
        }
    }
}

impl Udp<'_> {
    /// Sets the peer: the default destination, and the only source of datagrams from now on. The
    /// socket fails with errors that the network reports about the peer. `InvalidInput` for a
    /// socket of [`Stack::bind_every`](crate::Stack::bind_every).
    pub fn connect(&mut self, remote: SocketAddr) -> Result<(), Error> {
        let (remote, scope) = (canonical(remote), scope_of(remote));
        if remote.port() == 0 || self.socket.wildcard.is_some() {
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

    /// Removes the peer: each send names its destination, and datagrams come from any source.
    pub fn disconnect(&mut self) {
        let socket = &mut *self.socket;
        (socket.remote, socket.scope, socket.error) = (None, 0, None);
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
        self.socket.queue.front().map_or(0, |datagram| datagram.next_len())
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

    /// Whether [`Message`](crate::Message) takes several datagrams as one (`UDP_GRO`); off by
    /// default.
    pub fn set_join(&mut self, on: bool) {
        self.socket.joins = on;
    }

    /// The known MTU of the path to the socket's peer, in bytes of IP packet (`IP_MTU`). Less 28
    /// bytes of headers, over IPv6 48, it is the longest datagram.
    ///
    /// # Errors
    /// `NotConnected`, `NoSuchSocket`.
    pub fn path_mtu(&mut self) -> Result<usize, Error> {
        let socket = &mut *self.socket;
        let (local, scope) = (socket.local.ip(), socket.scope);
        let remote = socket.remote.ok_or(Error::NotConnected)?.ip();
        let by = self.net.bound_link(socket.link)?;
        let local = match local.is_unspecified() {
            true => self.net.source_by(remote, scope, by)?,
            false => local,
        };
        Ok(self.net.link_limits(local, remote, by).0)
    }
}
