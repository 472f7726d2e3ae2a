//! Path MTU discovery seen from the sockets (RFC 1191, RFC 8201): what a connection makes of it,
//! and whether it takes part.
//!
//! A report is believed if it quotes what is under way (RFC 5927); then the network layer remembers
//! the path, and every connection over it looks again before it sends next. Probing without reports
//! is each connection's own (RFC 4821, `pagewire_tcp`).

use std::net::IpAddr;

use pagewire_mem::Instant;

use super::handles::{Tcp, Udp};
use super::marks::MtuDiscover;
use super::tcp::TcpSocket;
use super::tuple::Tuple;
use super::udp::UdpSocket;
use crate::error::Error;
use crate::net::IcmpKind;
use crate::net::wire::{ipv4, ipv6, udp};
use crate::stack::{Core, Stack};

impl TcpSocket {
    fn mtu_discover(&self) -> MtuDiscover {
        self.extra.as_ref().map_or(MtuDiscover::Want, |e| e.mtu_discover)
    }

    /// Whether routers may not cut its packets.
    pub(super) fn dont_fragment(&self) -> bool {
        self.mtu_discover().dont_fragment()
    }

    /// Whether reports about the path count.
    pub(super) fn heeds_path(&self) -> bool {
        match self.mtu_discover() {
            MtuDiscover::Dont => self.tuple.remote.is_ipv6(),
            how => !how.ignores_reports(),
        }
    }
}

impl UdpSocket {
    /// Whether a datagram of ours may have met with what an ICMP error says.
    ///
    /// A datagram has no sequence number that a forger would have to guess (RFC 5927), but a path can
    /// find too long only what is longer than what it takes. So nobody shortens the paths of who sends
    /// short datagrams, resolvers for one.
    pub(super) fn may_have_met(&self, kind: IcmpKind, remote: IpAddr) -> bool {
        let IcmpKind::PacketTooBig { mtu } = kind else { return true };
        let ip = if remote.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        ip + udp::LEN + usize::from(self.longest) > mtu
    }
}

impl Stack {
    /// The longest IP packet that reaches `remote` in one piece, as far as is known, in bytes.
    pub fn path_mtu(&self, remote: IpAddr) -> usize {
        self.core.net.mtu_for(remote)
    }

    /// Sets the MTU of the path to `remote`, in bytes of IP packet, whatever is reported about it;
    /// `None`: as it is found. At least the smallest that IP promises, at most the link's.
    pub fn set_path_mtu(&mut self, remote: IpAddr, mtu: Option<usize>) {
        self.core.net.set_path_mtu(remote, mtu);
    }
}

impl Tcp<'_> {
    /// The longest IP packet, in bytes, that the peer of a connection is sent (`IP_MTU`,
    /// `tcpi_pmtu`).
    pub fn path_mtu(&self) -> usize {
        let headers = if self.socket.tuple.remote.is_ipv4() { 40 } else { 60 };
        usize::from(self.socket.conn.info().path_mss) + headers
    }
}

impl Core {
    /// Before the connection at `index` sends: has the MTU of some path changed since it did last?
    pub(super) fn refresh_path(&mut self, index: u32) {
        let generation = self.net.path_generation();
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        if core::mem::replace(&mut socket.path_generation, generation) == generation
            || !socket.heeds_path()
        {
            return;
        }
        let (tuple, before): (Tuple, _) = (socket.tuple, socket.conn.info().path_mss);
        let bound = socket.bound();
        let link = self.tcp_link(&tuple, bound);
        if link.mss != before
            && let Some(socket) = self.sockets.table.tcp_mut(index)
        {
            socket.conn.set_link_limits(link);
        }
    }

    /// A report that the connection at `index` found sound.
    pub(super) fn learn_path(&mut self, now: Instant, index: u32, mtu: usize) {
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        let remote = socket.tuple.remote;
        self.net.handle_path_mtu(now, remote, mtu);
        // It knows already.
        let generation = self.net.path_generation();
        if let Some(socket) = self.sockets.table.tcp_mut(index) {
            socket.path_generation = generation;
        }
    }
}

impl Udp<'_> {
    /// The longest IP packet, in bytes, that reaches the socket's peer in one piece, as far as is known
    /// (`IP_MTU`). Less 28 bytes of headers, over IPv6 48, that is the longest datagram.
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
