//! Datagram sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use pagewire_stack::{GroupLink, MtuDiscover, MulticastSettings, RecvFlags, UdpId};

use crate::buf::{Chunks, SendBuf};
use crate::handle::Handle;
use crate::shared::{Interest, io_error};
use crate::tcp::Socket;

/// A UDP socket. Cheap to clone: clones are the same socket.
#[derive(Clone)]
pub struct UdpSocket(pub(crate) Arc<Socket<UdpId>>);

impl UdpSocket {
    pub(crate) fn new(host: Arc<Handle>, id: UdpId) -> Self {
        Self(Socket::new(host, id))
    }

    /// Sends a datagram by copy. Returns its length.
    pub fn send_to(&self, data: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        self.send_copy(data, Some(first(to)?))
    }

    /// Sends a datagram by reference. Returns its length.
    pub fn send_buf_to(
        &self,
        data: impl Into<SendBuf>,
        to: impl ToSocketAddrs,
    ) -> io::Result<usize> {
        self.send_frags(data.into(), Some(first(to)?))
    }

    /// Receives a datagram by copy: its length in `buf` (cut if it does not fit) and its sender.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        self.0.host.wait(id, Interest::Read, patience, |stack, _| {
            stack.udp(id).and_then(|mut udp| udp.recv(&mut *buf, RecvFlags::empty()))
        })
    }

    /// Receives a datagram by reference.
    pub fn recv_buf_from(&self) -> io::Result<(Chunks, SocketAddr)> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        let (frags, from) = self.0.host.wait(id, Interest::Read, patience, |stack, _| {
            stack.udp(id).and_then(|mut udp| udp.recv(pagewire_stack::Datagram, RecvFlags::empty()))
        })?;
        Ok((Chunks::new(frags.into_vec(), pagewire_mem::Held::default()), from))
    }

    /// Sets where `send` goes, and receives from there only.
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<()> {
        let (id, to) = (self.0.id, first(to)?);
        let done =
            self.0.host.shared.with(|stack, _| stack.udp(id).and_then(|mut udp| udp.connect(to)));
        done.map_err(|e| self.0.host.shared.error(e))
    }

    /// Sends a datagram by copy to where the socket is connected.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.send_copy(data, None)
    }

    /// Receives a datagram by copy from where the socket is connected.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).map(|(n, _)| n)
    }

    /// Has calls that send more than `bytes` send datagrams of so many bytes each, the last one
    /// shorter if need be: one call, at most 128 datagrams, and for
    /// [`send_zc_to`](Self::send_zc_to) one completion. 0, the default: one call, one datagram.
    pub fn set_segment_size(&self, bytes: u16) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_segment(bytes))
    }

    /// What the socket does about the MTU of its paths: whether datagrams that are too long are cut or
    /// refused, whether routers may cut them, and what counts as too long. The default is
    /// [`MtuDiscover::Want`]; protocols that look for the MTU themselves (QUIC) want
    /// [`MtuDiscover::Probe`] or [`MtuDiscover::Do`].
    pub fn set_mtu_discover(&self, how: MtuDiscover) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_mtu_discover(how))
    }

    /// The longest IP packet, in bytes, that reaches the peer in one piece, as far as is known. Less 28
    /// bytes of headers, over IPv6 48, that is the longest datagram. The error is `NotConnected` if the
    /// socket is not connected.
    pub fn path_mtu(&self) -> io::Result<usize> {
        self.0.act(|mut udp, _| udp.path_mtu())
    }

    /// Joins a group on the link that has the address `interface`, or with `0.0.0.0` on that of the
    /// route to it. As on Linux, a socket that is bound to the port gets what comes for any group that
    /// the host is in, whoever joined it; one that is bound to a group's address gets only that. The
    /// error is `AddrInUse` for a group that was joined before, and Linux's `ENODEV` if there is no such
    /// link.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.join((*group).into(), by_address(*interface))
    }

    /// The same in IPv6; `interface`: [`LinkId::scope_id`](pagewire_stack::LinkId::scope_id), or 0.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.join((*group).into(), by_number(interface))
    }

    /// Leaves a group that was joined with the same arguments; the error is `AddrNotAvailable` if none
    /// was.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.leave((*group).into(), by_address(*interface))
    }

    /// The same in IPv6.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.leave((*group).into(), by_number(interface))
    }

    /// How many hops datagrams to IPv4 groups go, at most 255; 1 by default, 0: they stay on this host.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        let ttl = u8::try_from(ttl).map_err(|_| io_error(pagewire_stack::Error::InvalidInput))?;
        self.set_multicast(false, |settings| settings.hops = ttl)
    }

    /// See [`set_multicast_ttl_v4`](Self::set_multicast_ttl_v4).
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        self.multicast(false).map(|settings| settings.hops.into())
    }

    /// Whether datagrams to IPv4 groups come back to sockets of this host; they do by default.
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.set_multicast(false, |settings| settings.loops = on)
    }

    /// See [`set_multicast_loop_v4`](Self::set_multicast_loop_v4).
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        self.multicast(false).map(|settings| settings.loops)
    }

    /// Whether datagrams to IPv6 groups come back to sockets of this host; they do by default.
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.set_multicast(true, |settings| settings.loops = on)
    }

    /// See [`set_multicast_loop_v6`](Self::set_multicast_loop_v6).
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        self.multicast(true).map(|settings| settings.loops)
    }

    fn join(&self, group: IpAddr, on: GroupLink) -> io::Result<()> {
        self.0.act(|mut udp, now| udp.join_group(now, group, on))
    }

    fn leave(&self, group: IpAddr, on: GroupLink) -> io::Result<()> {
        self.0.act(|mut udp, now| udp.leave_group(now, group, on))
    }

    fn multicast(&self, v6: bool) -> io::Result<MulticastSettings> {
        self.0.ask(|udp| udp.multicast(v6))
    }

    fn set_multicast(
        &self,
        v6: bool,
        change: impl FnOnce(&mut MulticastSettings),
    ) -> io::Result<()> {
        let (id, mut host) = (self.0.id, self.0.host.shared.lock());
        let mut settings = host.stack.udp(id).map(|udp| udp.multicast(v6)).map_err(io_error)?;
        change(&mut settings);
        host.stack.udp(id).map(|mut udp| udp.set_multicast(v6, settings)).map_err(io_error)
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Whether calls that would wait return `WouldBlock` instead.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking);
        Ok(())
    }

    /// Longest wait for a datagram; `None` for ever. The error is `TimedOut`. Zero is
    /// `InvalidInput`.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_timeout(Interest::Read, limit)
    }

    /// The pending error, once: a port that nobody listens on, an unreachable host.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.0.take_error())
    }

    fn send_copy(&self, data: &[u8], to: Option<SocketAddr>) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Write));
        self.0.host.wait(id, Interest::Write, patience, |stack, now| {
            stack.udp(id).and_then(|mut udp| udp.send(now, data, to))
        })
    }

    fn send_frags(&self, data: SendBuf, to: Option<SocketAddr>) -> io::Result<usize> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Write));
        self.0.host.wait(id, Interest::Write, patience, |stack, now| {
            stack.udp(id).and_then(|mut udp| udp.send(now, data.frags.clone(), to))
        })
    }
}

fn by_address(interface: Ipv4Addr) -> GroupLink {
    match interface.is_unspecified() {
        true => GroupLink::Route,
        false => GroupLink::Address(interface.into()),
    }
}

fn by_number(interface: u32) -> GroupLink {
    if interface == 0 { GroupLink::Route } else { GroupLink::Number(interface) }
}

pub(crate) fn first(to: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "no address to send to");
    to.to_socket_addrs()?.next().ok_or_else(none)
}

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket").field("local", &self.local_addr().ok()).finish()
    }
}
