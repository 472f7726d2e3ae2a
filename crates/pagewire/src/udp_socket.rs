//! Datagram sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{Error, GroupLink, MtuDiscover, MulticastSettings, RecvFlags, Udp, UdpId};

use crate::addr::{ToSocketAddrs, first};
use crate::buf::{Chunks, SendBuf};
use crate::error::io_error;
use crate::handle::Handle;
use crate::socket::Socket;
use crate::waiters::Interest;

/// A UDP socket. Cheap to clone: clones are the same socket.
#[derive(Clone)]
pub struct UdpSocket(pub(crate) Arc<Socket<UdpId>>);

impl UdpSocket {
    pub(crate) fn new(host: Arc<Handle>, id: UdpId) -> Self {
        Self(Socket::new(host, id))
    }

    /// Sends a datagram by copy. Returns its length.
    pub fn send_to(&self, data: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        self.0.wait(Interest::Write, send(data, Some(first(&to)?)))
    }

    /// Sends a datagram by reference. Returns its length.
    pub fn send_chunks_to(
        &self,
        data: impl Into<SendBuf>,
        to: impl ToSocketAddrs,
    ) -> io::Result<usize> {
        self.0.wait(Interest::Write, send_frags(data.into(), Some(first(&to)?)))
    }

    /// Sends a datagram by reference to the address that the socket is connected to.
    pub fn send_chunks(&self, data: impl Into<SendBuf>) -> io::Result<usize> {
        self.0.wait(Interest::Write, send_frags(data.into(), None))
    }

    /// Receives a datagram by copy: its length in `buf` (cut if it does not fit) and its sender.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.wait(Interest::Read, receive(buf, RecvFlags::empty()))
    }

    /// Receives a datagram by reference, and its sender.
    pub fn recv_chunks_from(&self) -> io::Result<(Chunks, SocketAddr)> {
        self.0.wait(Interest::Read, take_datagram)
    }

    /// Receives a datagram by reference from the address that the socket is connected to.
    pub fn recv_chunks(&self) -> io::Result<Chunks> {
        self.recv_chunks_from().map(|(chunks, _)| chunks)
    }

    /// As [`recv_from`](Self::recv_from), and leaves the datagram in the queue.
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.wait(Interest::Read, receive(buf, RecvFlags::PEEK))
    }

    /// As [`recv`](Self::recv), and leaves the datagram in the queue.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buf).map(|(n, _)| n)
    }

    /// Sets the address that `send` sends to; only datagrams from there are received.
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<()> {
        let to = first(&to)?;
        self.0.act(|mut udp, _| udp.connect(to))
    }

    /// Sends a datagram by copy to the address that the socket is connected to.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        self.0.wait(Interest::Write, send(data, None))
    }

    /// Receives a datagram by copy from the address that the socket is connected to.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).map(|(n, _)| n)
    }

    /// A call that sends more than `bytes` sends datagrams of `bytes` bytes each, at most 128; the
    /// last may be shorter. 0, the default: one call, one datagram.
    pub fn set_segment_size(&self, bytes: u16) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_segment(bytes))
    }

    /// Whether datagrams that are too long are fragmented or refused, and what counts as too long.
    /// The default is [`MtuDiscover::Want`]; protocols that discover the MTU themselves (QUIC) use
    /// [`MtuDiscover::Probe`] or [`MtuDiscover::Do`].
    pub fn set_mtu_discover(&self, how: MtuDiscover) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_mtu_discover(how))
    }

    /// The longest IP packet, in bytes, known to reach the peer unfragmented: 28 bytes more than
    /// the longest datagram, over IPv6 48. The error is `NotConnected` if there is no peer.
    pub fn path_mtu(&self) -> io::Result<usize> {
        self.0.act(|mut udp, _| udp.path_mtu())
    }

    /// Joins a group on the link that has the address `interface`, or with `0.0.0.0` on the link of the
    /// route to it. As on Linux, a socket bound to the port receives datagrams to any group that any
    /// socket of the host has joined; one bound to a group's address receives only that group's. The
    /// error is `AddrInUse` for a group joined before, and Linux's `ENODEV` if there is no such link.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.join((*group).into(), by_address(*interface))
    }

    /// Joins an IPv6 group; `interface`: [`LinkId::scope_id`](pagewire_stack::LinkId::scope_id), or 0.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.join((*group).into(), by_number(interface))
    }

    /// Leaves a group that was joined with the same arguments, or fails with `AddrNotAvailable`.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.leave((*group).into(), by_address(*interface))
    }

    /// Leaves an IPv6 group.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.leave((*group).into(), by_number(interface))
    }

    /// The hop limit of datagrams to IPv4 groups, at most 255; 1 by default, 0: they stay on this host.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.set_multicast_hops(false, ttl)
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

    /// The hop limit of datagrams to IPv6 groups, at most 255; 1 by default, 0: they stay on this host.
    pub fn set_multicast_hops_v6(&self, hops: u32) -> io::Result<()> {
        self.set_multicast_hops(true, hops)
    }

    /// See [`set_multicast_hops_v6`](Self::set_multicast_hops_v6).
    pub fn multicast_hops_v6(&self) -> io::Result<u32> {
        self.multicast(true).map(|settings| settings.hops.into())
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

    fn set_multicast_hops(&self, v6: bool, hops: u32) -> io::Result<()> {
        let hops = u8::try_from(hops).map_err(|_| io_error(Error::InvalidInput))?;
        self.set_multicast(v6, |settings| settings.hops = hops)
    }

    fn set_multicast(
        &self,
        v6: bool,
        change: impl FnOnce(&mut MulticastSettings),
    ) -> io::Result<()> {
        self.0.ask(|mut udp| {
            let mut settings = udp.multicast(v6);
            change(&mut settings);
            udp.set_multicast(v6, settings);
        })
    }

    /// The address that the socket is connected to.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.0.peer_addr()
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Whether calls that would wait return `WouldBlock` instead.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }

    /// Longest wait for a datagram; `None` for ever. The error is `TimedOut`. Zero is `InvalidInput`.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_timeout(Interest::Read, limit)
    }

    /// Longest wait of a send; `None` for ever. The error is `TimedOut`. Zero is `InvalidInput`.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.0.set_timeout(Interest::Write, limit)
    }

    /// See [`set_read_timeout`](Self::set_read_timeout).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.0.timeout_of(Interest::Read))
    }

    /// See [`set_write_timeout`](Self::set_write_timeout).
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.0.timeout_of(Interest::Write))
    }

    /// The pending error, once: a closed port, an unreachable host.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }
}

/// The verb of all sends by copy, to the address that the socket is connected to if there is no other.
pub(crate) fn send(
    data: &[u8],
    to: Option<SocketAddr>,
) -> impl FnMut(Udp<'_>, Instant) -> Result<usize, Error> {
    move |mut udp, now| udp.send(now, data, to)
}

/// [`send`] by reference.
pub(crate) fn send_frags(
    data: SendBuf,
    to: Option<SocketAddr>,
) -> impl FnMut(Udp<'_>, Instant) -> Result<usize, Error> {
    move |mut udp, now| udp.send(now, data.frags.clone(), to)
}

/// The verb of all receives by copy.
pub(crate) fn receive(
    buf: &mut [u8],
    flags: RecvFlags,
) -> impl FnMut(Udp<'_>, Instant) -> Result<(usize, SocketAddr), Error> {
    move |mut udp, _| udp.recv(&mut *buf, flags)
}

/// The verb of all receives by reference.
pub(crate) fn take_datagram(mut udp: Udp<'_>, _: Instant) -> Result<(Chunks, SocketAddr), Error> {
    let (frags, from) = udp.recv(pagewire_stack::Datagram, RecvFlags::empty())?;
    Ok((Chunks::new(frags.into_vec(), pagewire_mem::Held::default()), from))
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

impl std::fmt::Debug for UdpSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket").field("local", &self.local_addr().ok()).finish()
    }
}
