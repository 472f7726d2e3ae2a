//! Path MTU discovery seen from the sockets (RFC 1191, RFC 8201): what a connection makes of it,
//! and whether it takes part.
//!
//! A report is believed if it quotes what is under way (RFC 5927); then the network layer remembers
//! the path, and every connection over it looks again before it sends next. Probing without reports
//! is each connection's own (RFC 4821, `pagewire_tcp`).

use std::net::IpAddr;

use pagewire_mem::Instant;

use super::demux::Tuple;
use super::table::SocketId;
use super::tcp::TcpSocket;
use crate::error::Error;
use crate::stack::Stack;

/// What a connection does about the MTU of its path (`IP_MTU_DISCOVER`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MtuDiscover {
    /// Routers may cut packets (IPv4); reports are ignored.
    Dont,
    /// Routers may not; reports are heeded.
    #[default]
    Want,
    /// As [`Want`](Self::Want): a stream has no datagrams to be refused.
    Do,
    /// As [`Want`](Self::Want), for who sends probes.
    Probe,
}

impl TcpSocket {
    fn mtu_discover(&self) -> MtuDiscover {
        self.extra.as_ref().map_or(MtuDiscover::Want, |e| e.mtu_discover)
    }

    /// > RFC 1191 section 3: the basic idea is that a source host initially assumes that the PMTU of
    /// > a path is the (known) MTU of its first hop, and sends all datagrams on that path with the DF
    /// > bit set.
    pub(super) fn dont_fragment(&self) -> bool {
        self.mtu_discover() != MtuDiscover::Dont
    }

    /// Whether reports about the path count.
    pub(super) fn heeds_path(&self) -> bool {
        self.mtu_discover() != MtuDiscover::Dont || self.tuple.remote.is_ipv6()
    }
}

impl Stack {
    /// The longest IP packet that reaches `remote` in one piece, as far as is known, in bytes.
    pub fn path_mtu(&self, remote: IpAddr) -> usize {
        self.net.mtu_for(remote)
    }

    /// The longest IP packet, in bytes, that the peer of a connection is sent (`IP_MTU`,
    /// `tcpi_pmtu`).
    ///
    /// # Errors
    /// `NotConnected`, `NoSuchSocket`.
    pub fn tcp_path_mtu(&self, id: SocketId) -> Result<usize, Error> {
        let socket = self.connection(id)?;
        let headers = if socket.tuple.remote.is_ipv4() { 40 } else { 60 };
        Ok(usize::from(socket.conn.info().path_mss) + headers)
    }

    /// Sets the MTU of the path to `remote`, in bytes of IP packet, whatever is reported about it;
    /// `None`: as it is found. At least the smallest that IP promises, at most the link's.
    pub fn set_path_mtu(&mut self, remote: IpAddr, mtu: Option<usize>) {
        self.net.set_path_mtu(remote, mtu);
    }

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
        let link = self.tcp_link(&tuple);
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
