//! Path MTU discovery seen from the sockets (RFC 1191, RFC 8201): what a connection makes of it,
//! and whether it takes part.
//!
//! A report is believed if it quotes what is under way (RFC 5927); then the network layer remembers
//! the path, and every connection over it looks again before it sends next. Probing without reports
//! is each connection's own (RFC 4821, `pagewire_tcp`).

use std::net::IpAddr;

use pagewire_mem::Instant;

use super::demux::Tuple;
use super::handles::Tcp;
use super::tcp::TcpSocket;
use crate::net::TooLong;
use crate::stack::{Core, Stack};

/// What a socket does about the MTU of its paths (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
///
/// | | routers may cut (IPv4) | a datagram that is too long is | too long is | reports |
/// |---|---|---|---|---|
/// | `Dont` | yes | cut | by the path's MTU | tell the path's MTU, no error |
/// | `Want` | no | cut | by the path's MTU | heeded |
/// | `Do` | no | refused | by the path's MTU | heeded |
/// | `Probe` | no | refused | by the link's MTU | heeded |
/// | `Interface` | yes | refused | by the link's MTU | ignored |
/// | `Omit` | yes | cut | by the link's MTU | ignored |
///
/// What is cut may be cut again by IPv4's routers. A stream's segments are always as long as the path
/// takes, as far as reports are heeded; with `Dont` they are over IPv6, whose routers cut nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MtuDiscover {
    /// Routers may cut packets.
    Dont,
    /// Routers may not; reports are heeded.
    #[default]
    Want,
    /// As [`Want`](Self::Want), and datagrams that the path does not take whole are refused.
    Do,
    /// As [`Do`](Self::Do), for who sends probes: whatever is known of the path, only the link bounds
    /// what is sent.
    Probe,
    /// Nothing is believed of the path, and datagrams that the link does not take whole are refused.
    Interface,
    /// As [`Interface`](Self::Interface), and they are cut instead.
    Omit,
}

impl MtuDiscover {
    /// Whether routers may not cut what leaves in one piece.
    ///
    /// > RFC 1191 section 3: the basic idea is that a source host initially assumes that the PMTU of
    /// > a path is the (known) MTU of its first hop, and sends all datagrams on that path with the DF
    /// > bit set.
    pub(super) const fn dont_fragment(self) -> bool {
        matches!(self, Self::Want | Self::Do | Self::Probe)
    }

    /// Whether reports about the path are ignored.
    pub(super) const fn ignores_reports(self) -> bool {
        matches!(self, Self::Interface | Self::Omit)
    }

    /// What becomes of a datagram that is too long.
    pub(super) const fn too_long(self) -> TooLong {
        match self {
            Self::Dont | Self::Want => TooLong::CutToPath,
            Self::Do => TooLong::RefusedByPath,
            Self::Probe | Self::Interface => TooLong::RefusedByLink,
            Self::Omit => TooLong::CutToLink,
        }
    }
}

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
