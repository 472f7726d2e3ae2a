//! Path MTU discovery of sockets (RFC 1191, RFC 8201); see [`MtuDiscover`].
//!
//! A connection believes a report that quotes a segment in flight (RFC 5927); then the network
//! layer remembers the path, and every connection over it looks its MTU up before it sends next.
//! Probes without reports are each connection's own (RFC 4821, `pagewire_tcp`).

use std::net::IpAddr;

use pagewire_mem::Instant;

use super::handles::{Tcp, Udp};
use super::marks::MtuDiscover;
use crate::error::Error;
use crate::net::IcmpKind;
use crate::net::wire::{ipv4, ipv6, udp};
use crate::sockets::tcp::output::tcp_link;
use crate::sockets::tcp::socket::TcpSocket;
use crate::sockets::udp::socket::UdpSocket;
use crate::stack::{Core, Stack};

impl TcpSocket {
    fn mtu_discover(&self) -> MtuDiscover {
        self.extra.as_ref().map_or(MtuDiscover::Want, |e| e.mtu_discover)
    }

    /// Whether routers may not fragment its packets.
    pub(super) fn dont_fragment(&self) -> bool {
        self.mtu_discover().dont_fragment()
    }

    pub(super) fn heeds_path(&self) -> bool {
        match self.mtu_discover() {
            MtuDiscover::Dont => self.tuple.remote.is_ipv6(),
            how => !how.ignores_reports(),
        }
    }
}

impl UdpSocket {
    /// Whether an ICMP error can be about a datagram of this socket.
    ///
    /// A datagram has no sequence number that a forger would have to guess (RFC 5927), but it has
    /// to be longer than the reported MTU: short datagrams are safe.
    pub(super) fn may_have_met(&self, kind: IcmpKind, remote: IpAddr) -> bool {
        let IcmpKind::PacketTooBig { mtu } = kind else { return true };
        let ip = if remote.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        ip + udp::LEN + usize::from(self.longest) > mtu
    }
}

impl Stack {
    /// The known MTU of the path to `remote`, in bytes of IP packet.
    pub fn path_mtu(&self, remote: IpAddr) -> usize {
        self.core.net.mtu_for(remote)
    }

    /// Fixes the MTU of the path to `remote`, in bytes of IP packet: at least IP's minimum, at most
    /// the link's. `None`: discovers it again.
    pub fn set_path_mtu(&mut self, remote: IpAddr, mtu: Option<usize>) {
        self.core.net.set_path_mtu(remote, mtu);
    }
}

impl Tcp<'_> {
    /// The longest IP packet, in bytes, that the connection sends (`IP_MTU`, `tcpi_pmtu`).
    pub fn path_mtu(&self) -> usize {
        let headers = if self.socket.tuple.remote.is_ipv4() { 40 } else { 60 };
        usize::from(self.socket.conn.info().path_mss) + headers
    }
}

impl Core {
    /// Updates the connection's MTU before it sends, if that of any path has changed.
    pub(super) fn refresh_path(&mut self, index: u32) {
        let generation = self.net.path_generation();
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        if core::mem::replace(&mut socket.path_generation, generation) == generation
            || !socket.heeds_path()
        {
            return;
        }
        let link = tcp_link(&self.net, &socket.tuple, socket.bound());
        if link.mss != socket.conn.info().path_mss {
            socket.conn.set_link_limits(link);
        }
    }

    /// Remembers a report that the connection at `index` believes.
    pub(super) fn learn_path(&mut self, now: Instant, index: u32, mtu: usize) {
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        self.net.handle_path_mtu(now, socket.tuple.remote, mtu);
        // This connection knows it already.
        socket.path_generation = self.net.path_generation();
    }
}

impl Udp<'_> {
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
