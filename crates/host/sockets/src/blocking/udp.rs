//! [`UdpSocket`]: datagram sockets of threads.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::{Frag, FragVec};
use pagewire_stack::{RecvFlags, UdpId, UdpTarget};

use crate::addr::{ToSocketAddrs, destination};
use crate::buf::{Chunks, SendBuf};
use crate::connect::{BindOptions, first, resolve_blocking};
use crate::datagram::Datagram;
use crate::multicast::by_address;
use crate::ops::{receive, send, send_frags, send_frags_zc, take_datagram, take_message};
use crate::options::of_every_udp_socket;
use crate::runtime::{Blocking, Runtime};
use crate::socket::{COMPLETION, READ, Socket, WRITE};
use crate::zerocopy::{Completion, Sent, next_completion};

/// A UDP socket, as that of `std::net`; beyond that, it sends and receives by reference. Clones are the
/// same socket, which closes when the last is dropped.
pub struct UdpSocket<R: Runtime>(pub(crate) Arc<Socket<R, UdpId>>);

of_every_udp_socket!(UdpSocket);
modes!(UdpSocket);

impl<R: Runtime> UdpSocket<R> {
    fn socket(&self) -> &Socket<R, UdpId> {
        &self.0
    }
}

/// Groups of IPv4. As on Linux, a socket bound to the port receives datagrams to any group that any socket
/// of the host has joined; one bound to a group's address receives only that group's.
impl<R: Runtime> UdpSocket<R> {
    /// Joins a group on the link that has the address `interface`, or with `0.0.0.0` on the link of
    /// the route to the group.
    ///
    /// # Errors
    /// `InvalidInput` for an address of no group, `AddrInUse` for a group joined before, `ENODEV`
    /// if there is no such link.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.socket().join(((*group).into(), by_address(*interface)))
    }

    /// Leaves a group that was joined with the same arguments.
    ///
    /// # Errors
    /// `AddrNotAvailable` if it was not joined.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        self.socket().leave(((*group).into(), by_address(*interface)))
    }
}

/// Calls that wait, unless the socket is non-blocking.
impl<R: Blocking> UdpSocket<R> {
    /// Binds a socket to the first address that can be had; port 0 stands for a free one.
    ///
    /// # Errors
    /// `AddrInUse`; `AddrNotAvailable` if the address is not one of this host's; those of the resolver.
    pub fn bind_on(runtime: &R, at: impl ToSocketAddrs, options: &BindOptions) -> io::Result<Self> {
        let found = resolve_blocking(runtime, at)?;
        first(found, |at| options.bind_udp(runtime, at)).map(Self)
    }

    /// Sets the address that `send` sends to; only datagrams from there are received.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route.
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<()> {
        let found = resolve_blocking(self.0.runtime(), to)?;
        first(found, |to| {
            self.0.with(|mut udp, clock| {
                clock.now();
                udp.connect(destination(to))
            })
        })
    }

    fn destination(&self, to: &impl ToSocketAddrs) -> io::Result<Option<SocketAddr>> {
        let found = resolve_blocking(self.0.runtime(), to)?;
        Ok(found.first().copied().map(destination))
    }

    /// Sends a datagram by copy to the address that the socket is connected to. Returns its length.
    ///
    /// # Errors
    /// Linux's `EDESTADDRREQ` if it is not connected, and those of [`send_to`](Self::send_to).
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        let id = self.0.id();
        self.0.block(WRITE, |stack, clock| send((stack, clock), id, data, None))
    }

    /// Sends a datagram by copy. Returns its length.
    ///
    /// # Errors
    /// Linux's `EMSGSIZE` if it is too long, `PermissionDenied` to all hosts of a network without
    /// [`set_broadcast`](Self::set_broadcast), `NetworkUnreachable` without a route, and once, the error
    /// that an earlier datagram met.
    pub fn send_to(&self, data: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let (id, to) = (self.0.id(), self.destination(&to)?);
        self.0.block(WRITE, |stack, clock| send((stack, clock), id, data, to))
    }

    /// Sends a datagram by reference to the address that the socket is connected to.
    pub fn send_chunks(&self, data: impl Into<SendBuf>) -> io::Result<usize> {
        self.send_frags(data.into(), None.into())
    }

    /// Sends a datagram by reference. Returns its length.
    pub fn send_chunks_to(
        &self,
        data: impl Into<SendBuf>,
        to: impl ToSocketAddrs,
    ) -> io::Result<usize> {
        self.send_frags(data.into(), self.destination(&to)?.into())
    }

    /// Sends a datagram by reference from `source`, an address of this host, to `to` or the
    /// connected address (`IP_PKTINFO`). Returns its length.
    ///
    /// # Errors
    /// `InvalidInput` for an address of another host, and as [`send_to`](Self::send_to).
    #[doc(alias = "IP_PKTINFO")]
    pub fn send_from(
        &self,
        source: IpAddr,
        data: impl Into<SendBuf>,
        to: Option<SocketAddr>,
    ) -> io::Result<usize> {
        let source = Some(SocketAddr::new(source, 0));
        self.send_frags(data.into(), UdpTarget { remote: to, source, ..UdpTarget::default() })
    }

    fn send_frags(&self, data: SendBuf, to: UdpTarget) -> io::Result<usize> {
        let id = self.0.id();
        self.0.block(WRITE, |stack, clock| send_frags((stack, clock), id, &data.frags, to))
    }

    /// Sends a datagram by reference to the connected address, and reports when its memory may be used
    /// again: its id is among [`completions`](Self::completions) when no reference to the memory is left. A
    /// datagram in more than 17 pieces is copied.
    ///
    /// # Errors
    /// The errors of [`send_chunks_to`](Self::send_chunks_to), and `ENOBUFS` as for
    /// [`TcpStream::send_zc`](super::TcpStream::send_zc).
    pub fn send_zc(&self, data: impl Into<SendBuf>) -> io::Result<Sent> {
        self.send_frags_zc(&data.into().frags, None)
    }

    /// [`send_zc`](Self::send_zc) to an address.
    pub fn send_zc_to(&self, data: impl Into<SendBuf>, to: impl ToSocketAddrs) -> io::Result<Sent> {
        self.send_frags_zc(&data.into().frags, self.destination(&to)?)
    }

    /// [`send_zc_to`](Self::send_zc_to) of memory that the caller keeps.
    ///
    /// # Safety
    /// As for [`TcpStream::send_zc_raw`](super::TcpStream::send_zc_raw); datagrams that the device has when
    /// the socket is dropped are not copied.
    #[allow(unsafe_code, reason = "the caller keeps memory that nothing here can")]
    pub unsafe fn send_zc_raw_to(
        &self,
        pieces: &[(std::ptr::NonNull<u8>, usize)],
        to: impl ToSocketAddrs,
    ) -> io::Result<Sent> {
        // SAFETY: the caller's promise, word by word.
        let lent = |&(at, len): &_| unsafe { Frag::lent(at, len) };
        self.send_frags_zc(&pieces.iter().map(lent).collect(), self.destination(&to)?)
    }

    fn send_frags_zc(&self, data: &FragVec, to: Option<SocketAddr>) -> io::Result<Sent> {
        let id = self.0.id();
        self.0.block(WRITE, |stack, clock| send_frags_zc((stack, clock), id, data, to))
    }

    /// Waits for a completion, at most as long as for a datagram. `None`: no send is outstanding.
    ///
    /// # Errors
    /// `WouldBlock` on a non-blocking socket, `TimedOut`.
    pub fn wait_completion(&self) -> io::Result<Option<Completion>> {
        let id = self.0.id();
        self.0.block(COMPLETION, |stack, _| next_completion(stack, id))
    }

    /// Receives a datagram by copy: its length in `buf`, cut if it does not fit.
    ///
    /// # Errors
    /// Once, the error that an earlier datagram met: `ConnectionRefused`, `HostUnreachable`; `TimedOut`,
    /// and `WouldBlock` on a non-blocking socket.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_from(buf).map(|(n, _)| n)
    }

    /// Receives a datagram by copy: its length in `buf`, cut if it does not fit, and its sender.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(buf, RecvFlags::empty())
    }

    /// As [`recv`](Self::recv), and leaves the datagram in the queue.
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buf).map(|(n, _)| n)
    }

    /// As [`recv_from`](Self::recv_from), and leaves the datagram in the queue.
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive(buf, RecvFlags::PEEK)
    }

    fn receive(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<(usize, SocketAddr)> {
        let id = self.0.id();
        let (n, from) = self.0.block(READ, |stack, _| receive(stack, id, buf, flags))?;
        Ok((n, self.0.shown(from)))
    }

    /// Receives a datagram by reference from the address that the socket is connected to.
    pub fn recv_chunks(&self) -> io::Result<Chunks> {
        self.recv_chunks_from().map(|(chunks, _)| chunks)
    }

    /// Receives a datagram by reference, and its sender.
    pub fn recv_chunks_from(&self) -> io::Result<(Chunks, SocketAddr)> {
        let id = self.0.id();
        let (chunks, from) = self.0.block(READ, |stack, _| take_datagram(stack, id))?;
        Ok((chunks, self.0.shown(from)))
    }

    /// Receives a datagram by reference, with the addresses of its packet (`IP_PKTINFO`). If the socket
    /// [joins](Self::set_gro) datagrams, the following ones too, if they have the same sender,
    /// destination and length; the last may be shorter.
    #[doc(alias = "IP_PKTINFO")]
    pub fn recv_message(&self) -> io::Result<Datagram> {
        let id = self.0.id();
        let message = self.0.block(READ, |stack, _| take_message(stack, id))?;
        Ok(message.shown_by(&self.0))
    }
}

impl<R: Runtime> Clone for UdpSocket<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Runtime> std::fmt::Debug for UdpSocket<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpSocket").field("local", &self.local_addr().ok()).finish()
    }
}
