//! Options and state of sockets: the same methods for threads and for tasks, over the stack's table of
//! options ([`SocketOption`]).

use std::io;
use std::time::Duration;

use pagewire_stack::limits::DEFAULT_HOP_LIMIT;
use pagewire_stack::{Error, LinkId, OptionKey, SocketOption, Stack, option};

use crate::runtime::{Runtime, io_error};
use crate::socket::{Kind, Socket};

/// The bits of congestion notification in a traffic class (RFC 3168), which TCP keeps for itself.
pub(crate) const ECN: u8 = 0b11;

/// Linux's numbers (`errno(3)`).
pub(crate) mod errno {
    pub(crate) const NODEV: i32 = 19;
    pub(crate) const INVAL: i32 = 22;
    pub(crate) const NOPROTOOPT: i32 = 92;
    pub(crate) const OPNOTSUPP: i32 = 95;
    pub(crate) const AFNOSUPPORT: i32 = 97;
    pub(crate) const NETUNREACH: i32 = 101;
}

pub(crate) fn os_error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// `from_std` and `into_std` fail: there is no descriptor.
pub(crate) fn no_descriptor() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "a socket of this stack has no descriptor: open it with bind or connect of its own type",
    )
}

/// A number of an option that has one byte.
pub(crate) fn byte(value: u32) -> io::Result<u8> {
    u8::try_from(value).map_err(|_| os_error(errno::INVAL))
}

/// A time as `struct linger` has it.
pub(crate) fn whole_seconds(linger: Option<Duration>) -> Option<Duration> {
    linger.map(|time| Duration::from_secs(time.as_secs()))
}

/// Settings of IP headers, and of the link.
impl<R: Runtime, Id: Kind> Socket<R, Id> {
    /// The value of an option.
    pub(crate) fn option<K: OptionKey>(&self, key: K) -> io::Result<K::Value> {
        self.enter(|stack, _| stack.option(self.id(), key))
    }

    pub(crate) fn set_option(&self, option: SocketOption) -> io::Result<()> {
        self.enter(|stack, clock| self.id().set_option(stack, clock.now(), option))
    }

    pub(crate) fn ttl(&self) -> io::Result<u32> {
        Ok(self.option(option::HopLimit)?.unwrap_or(DEFAULT_HOP_LIMIT).into())
    }

    pub(crate) fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = u8::try_from(ttl).ok().filter(|&ttl| ttl > 0);
        let ttl = ttl.ok_or_else(|| io_error(Error::InvalidInput))?;
        self.set_option(SocketOption::HopLimit(Some(ttl)))
    }

    pub(crate) fn tos(&self) -> io::Result<u32> {
        Ok(self.option(option::TrafficClass)?.into())
    }

    /// Sets the bits of the type of service that `own` has not reserved for the protocol.
    pub(crate) fn set_tos(&self, tos: u8, own: u8) -> io::Result<()> {
        self.set_option(SocketOption::TrafficClass(tos & !own))
    }

    pub(crate) fn device(&self) -> io::Result<Option<Vec<u8>>> {
        device_name(self.runtime(), self.option(option::Link)?)
    }

    pub(crate) fn bind_device(&self, name: Option<&[u8]>) -> io::Result<()> {
        let link = find_device(self.runtime(), name)?;
        self.set_option(SocketOption::Link(link))
    }

    pub(crate) fn zerocopy(&self) -> io::Result<bool> {
        self.option(option::ZeroCopy)
    }

    pub(crate) fn set_zerocopy(&self, on: bool) -> io::Result<()> {
        self.set_option(SocketOption::ZeroCopy(on))
    }

    /// Fails with `number` unless the socket is one of IPv6. Linux's answers differ for getters and setters.
    pub(crate) fn check_v6(&self, number: i32) -> io::Result<()> {
        if self.is_v6() { Ok(()) } else { Err(os_error(number)) }
    }
}

/// The link of a device's name; none for no name.
///
/// # Errors
/// `ENODEV` if no device has that name.
pub(crate) fn find_device<R: Runtime>(
    runtime: &R,
    name: Option<&[u8]>,
) -> io::Result<Option<LinkId>> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(None) };
    let name = name.strip_suffix(b"\0").unwrap_or(name);
    let named = |stack: &mut Stack| {
        let mut links = stack.links();
        links.find(|link| stack.link_name(*link).is_some_and(|of| of.as_bytes() == name))
    };
    let link = runtime.enter(|stack, _, _| named(stack))?;
    link.map(Some).ok_or_else(|| os_error(errno::NODEV))
}

/// Names of links: of devices that a socket can be bound to.
pub(crate) fn device_name<R: Runtime>(
    runtime: &R,
    link: Option<LinkId>,
) -> io::Result<Option<Vec<u8>>> {
    let Some(link) = link else { return Ok(None) };
    Ok(runtime.enter(|stack, _, _| stack.link_name(link))?.map(String::into_bytes))
}

/// Typed options: a getter and a setter for each row.
macro_rules! accessors {
    ($Form:ident: $(
        $(#[doc = $doc:literal])*
        $(#[doc(alias = $alias:literal)])?
        $get:ident, $set:ident: $Name:ident($value:ty);
    )*) => {
        /// Options with the names of `std`, tokio and the crate `socket2`.
        impl<R: $crate::runtime::Runtime> $Form<R> {$(
            $(#[doc = $doc])*
            $(#[doc(alias = $alias)])?
            pub fn $get(&self) -> std::io::Result<$value> {
                self.socket().option(pagewire_stack::option::$Name)
            }

            #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), "):")]
            $(#[doc = $doc])*
            pub fn $set(&self, value: $value) -> std::io::Result<()> {
                self.socket().set_option(pagewire_stack::SocketOption::$Name(value))
            }
        )*}
    };
}

/// Methods that every form of every socket has.
macro_rules! of_every_socket {
    ($Form:ident, $Id:ty) => {
        impl<R: $crate::runtime::Runtime> $Form<R> {
            /// Names the socket in its stack: for programs that work on the stack itself.
            pub fn id(&self) -> $Id {
                self.socket().id()
            }

            /// Where the socket's stack lives.
            pub fn runtime(&self) -> &R {
                self.socket().runtime()
            }

            /// Gives the socket to an owner that works on the stack itself, and closes it by its id.
            pub fn into_id(self) -> $Id {
                self.socket().release()
            }

            /// This side's address and port.
            pub fn local_addr(&self) -> std::io::Result<std::net::SocketAddr> {
                self.socket().local_addr()
            }

            /// Takes the socket's error (`SO_ERROR`).
            #[doc(alias = "SO_ERROR")]
            pub fn take_error(&self) -> std::io::Result<Option<std::io::Error>> {
                self.socket().take_error()
            }

            /// Changes an option; see [`SocketOption`](pagewire_stack::SocketOption) for units and meanings.
            /// The options of a listener are those of its future connections.
            ///
            /// # Errors
            /// `InvalidInput` or `Unsupported` for an option that this kind of socket lacks.
            pub fn set_option(&self, option: pagewire_stack::SocketOption) -> std::io::Result<()> {
                self.socket().set_option(option)
            }

            /// The value of an option: of [`option`](pagewire_stack::option), with a value of its own type,
            /// or by its [`OptionName`](pagewire_stack::OptionName).
            ///
            /// # Errors
            /// `Unsupported` for an option that this kind of socket lacks.
            pub fn option<K: pagewire_stack::OptionKey>(
                &self,
                key: K,
            ) -> std::io::Result<K::Value> {
                self.socket().option(key)
            }

            /// The time to live of packets, or their hop limit: 1 to 255, 64 by default (`IP_TTL`).
            #[doc(alias = "IP_TTL")]
            pub fn ttl(&self) -> std::io::Result<u32> {
                self.socket().ttl()
            }

            /// Sets the time to live of packets. Connections inherit that of their listener.
            ///
            /// # Errors
            /// `InvalidInput` unless it is 1 to 255.
            pub fn set_ttl(&self, ttl: u32) -> std::io::Result<()> {
                self.socket().set_ttl(ttl)
            }

            /// The device that the socket is bound to (`SO_BINDTODEVICE`).
            #[doc(alias = "SO_BINDTODEVICE")]
            pub fn device(&self) -> std::io::Result<Option<Vec<u8>>> {
                self.socket().device()
            }

            /// Binds the socket to a device, by the name of its link, or to none: only packets of that
            /// link are received, and packets leave only there.
            ///
            /// # Errors
            /// `ENODEV` if no link has that name.
            pub fn bind_device(&self, name: Option<&[u8]>) -> std::io::Result<()> {
                self.socket().bind_device(name)
            }

            /// Whether the socket has opted in to zero-copy sends (`SO_ZEROCOPY`).
            #[doc(alias = "SO_ZEROCOPY")]
            pub fn zerocopy(&self) -> std::io::Result<bool> {
                self.socket().zerocopy()
            }

            /// Opts in to zero-copy sends or out again, in which case they copy. An accepted connection
            /// inherits its listener's setting.
            pub fn set_zerocopy(&self, on: bool) -> std::io::Result<()> {
                self.socket().set_zerocopy(on)
            }
        }
    };
}

/// Methods of both forms of a connection.
macro_rules! of_every_stream {
    ($Form:ident) => {
        $crate::options::of_every_socket!($Form, pagewire_stack::TcpId);

        $crate::options::accessors! {
            $Form:
            /// Whether small segments leave at once (`TCP_NODELAY`), or by Nagle's algorithm (RFC 896; the
            /// default).
            #[doc(alias = "TCP_NODELAY")]
            nodelay, set_nodelay: NoDelay(bool);
            /// Whether acknowledgements leave at once, until the connection decides anew (`TCP_QUICKACK`).
            #[doc(alias = "TCP_QUICKACK")]
            quickack, set_quickack: QuickAck(bool);
            /// When an idle connection is probed, and given up; `None`, the default: never
            /// (`SO_KEEPALIVE`).
            #[doc(alias = "SO_KEEPALIVE")]
            keepalive, set_keepalive: KeepAlive(Option<pagewire_stack::KeepAlive>);
            /// How long data may stay unacknowledged before the connection ends (RFC 5482,
            /// `TCP_USER_TIMEOUT`); `None`, the default: for all retransmissions.
            #[doc(alias = "TCP_USER_TIMEOUT")]
            tcp_user_timeout, set_tcp_user_timeout: UserTimeout(Option<std::time::Duration>);
        }

        /// Options whose values have other types, and state.
        impl<R: $crate::runtime::Runtime> $Form<R> {
            /// The settings of the connection.
            pub fn config(&self) -> std::io::Result<pagewire_stack::TcpConfig> {
                self.socket().with(|tcp, _| Ok(tcp.config().clone()))
            }

            /// How long a close waits for queued data (`SO_LINGER`), in whole seconds.
            #[doc(alias = "SO_LINGER")]
            pub fn linger(&self) -> std::io::Result<Option<std::time::Duration>> {
                self.socket().option(pagewire_stack::option::Linger)
            }

            /// Sets how long a close waits for queued data, cut to whole seconds. With zero, a drop of the
            /// connection resets it, and queued data is lost. With `None` and other times, queued data is
            /// delivered after the drop, which never waits.
            pub fn set_linger(&self, limit: Option<std::time::Duration>) -> std::io::Result<()> {
                let limit = $crate::options::whole_seconds(limit);
                self.set_option(pagewire_stack::SocketOption::Linger(limit))
            }

            /// Has the drop of the connection reset it, and queued data lost.
            pub fn set_zero_linger(&self) -> std::io::Result<()> {
                self.set_linger(Some(std::time::Duration::ZERO))
            }

            /// The largest size of the receive buffer, in bytes.
            pub fn recv_buffer_size(&self) -> std::io::Result<usize> {
                self.config().map(|config| config.recv_buffer as usize)
            }

            /// Fixes the size of the receive buffer, in bytes of window (`SO_RCVBUF`). By default it grows
            /// with what is read.
            #[doc(alias = "SO_RCVBUF")]
            pub fn set_recv_buffer_size(&self, bytes: usize) -> std::io::Result<()> {
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.set_option(pagewire_stack::SocketOption::RecvBuffer(bytes))
            }

            /// The largest size of the send buffer, in bytes.
            pub fn send_buffer_size(&self) -> std::io::Result<usize> {
                self.config().map(|config| config.send_buffer as usize)
            }

            /// Fixes the size of the send buffer, in bytes (`SO_SNDBUF`). By default it grows with the
            /// congestion window.
            #[doc(alias = "SO_SNDBUF")]
            pub fn set_send_buffer_size(&self, bytes: usize) -> std::io::Result<()> {
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.set_option(pagewire_stack::SocketOption::SendBuffer(bytes))
            }

            /// The type of service of packets, or their traffic class (`IP_TOS`, `IPV6_TCLASS`).
            #[doc(alias("IP_TOS", "IPV6_TCLASS"))]
            pub fn tos_v4(&self) -> std::io::Result<u32> {
                self.socket().tos()
            }

            /// Sets the type of service of packets, or their traffic class. As on Linux, TCP keeps the two
            /// lowest bits for itself.
            pub fn set_tos_v4(&self, tos: u32) -> std::io::Result<()> {
                self.socket().set_tos(tos as u8, $crate::options::ECN)
            }

            /// The other side's address and port.
            ///
            /// # Errors
            /// `NotConnected` once the connection is over.
            pub fn peer_addr(&self) -> std::io::Result<std::net::SocketAddr> {
                use pagewire_stack::{Error, Readiness};
                let over = Readiness::WRITE_CLOSED | Readiness::READ_CLOSED;
                let id = self.socket().id();
                let peer = self.socket().enter(|stack, _| {
                    // Both directions also end in order; then the connection lingers, and has a peer.
                    let closed = stack.readiness(id)?.contains(over)
                        && stack.tcp(id)?.info().state.name() == "CLOSED";
                    if closed { Err(Error::NotConnected) } else { stack.remote_addr(id) }
                });
                Ok(self.socket().shown(peer?))
            }

            /// The state and counts of the connection: windows, round-trip times, retransmissions
            /// (`TCP_INFO`).
            #[doc(alias = "TCP_INFO")]
            pub fn info(&self) -> std::io::Result<pagewire_stack::TcpInfo> {
                self.socket().with(|tcp, clock| Ok(tcp.info_at(clock.now())))
            }

            /// Drops the connection at once with a reset: the peer sees `ConnectionReset`.
            pub fn abort(&self) {
                let id = self.socket().id();
                self.socket().runtime().later(move |stack, now| stack.abort(now, id));
            }

            /// Bytes queued that the peer has not acknowledged, and of these, bytes that were never sent
            /// (`SIOCOUTQ`, `SIOCOUTQNSD`).
            #[doc(alias("SIOCOUTQ", "SIOCOUTQNSD"))]
            pub fn queued_send(&self) -> std::io::Result<(usize, usize)> {
                self.socket().with(|tcp, _| Ok(tcp.queued_send()))
            }

            /// Bytes that can be read without waiting, up to an urgent byte (`SIOCINQ`).
            #[doc(alias = "SIOCINQ")]
            pub fn queued_receive(&self) -> std::io::Result<usize> {
                self.socket().with(|tcp, _| Ok(tcp.queued()))
            }

            /// Takes the urgent byte (RFC 9293 section 3.8.5). Never waits.
            ///
            /// # Errors
            /// `InvalidInput` if there is none, or it is in line; `WouldBlock` if it has not arrived yet.
            pub fn read_urgent(&self) -> std::io::Result<u8> {
                let flags = pagewire_stack::RecvFlags::empty();
                self.socket().with(|mut tcp, clock| tcp.read_urgent(clock.now(), flags))
            }

            /// Whether the stream has been read up to its urgent byte (`SIOCATMARK`).
            #[doc(alias = "SIOCATMARK")]
            pub fn at_urgent_mark(&self) -> std::io::Result<bool> {
                self.socket().with(|tcp, _| Ok(tcp.at_urgent_mark()))
            }

            /// The completions of zero-copy sends that are there now, oldest first; never waits. Each is
            /// returned once. Consecutive ones with the same
            /// [`copied`](crate::Completion::copied) are merged.
            pub fn completions(&self) -> crate::Completions<'_, R> {
                crate::Completions::new(self.socket().runtime(), self.socket().id().into())
            }
        }
    };
}

/// Methods of both forms of a listener.
macro_rules! of_every_listener {
    ($Form:ident) => {
        $crate::options::of_every_socket!($Form, pagewire_stack::ListenerId);

        impl<R: $crate::runtime::Runtime> $Form<R> {
            /// Sets how many connections with an incomplete handshake may have data in their SYN (TCP Fast
            /// Open, RFC 7413); 0, the default: none. The stack has to allow it as well. Such data may
            /// arrive twice.
            pub fn set_fast_open(&self, limit: u32) -> std::io::Result<()> {
                self.set_option(pagewire_stack::SocketOption::FastOpen(limit))
            }
        }
    };
}

/// Methods of both forms of a datagram socket.
macro_rules! of_every_udp_socket {
    ($Form:ident) => {
        $crate::options::of_every_socket!($Form, pagewire_stack::UdpId);

        $crate::options::accessors! {
            $Form:
            /// Whether datagrams may be sent to all hosts of a network (`SO_BROADCAST`); off by default:
            /// such a send fails with `PermissionDenied`.
            #[doc(alias = "SO_BROADCAST")]
            broadcast, set_broadcast: Broadcast(bool);
            /// Length in bytes of the datagrams that a longer send becomes: at most 128 of this length each,
            /// the last may be shorter (`UDP_SEGMENT`). 0, the default: one call, one datagram.
            #[doc(alias = "UDP_SEGMENT")]
            segment_size, set_segment_size: Segment(u16);
            /// Whether [`recv_message`](Self::recv_message) hands out several datagrams of one sender and
            /// one length as one (`UDP_GRO`); off by default.
            #[doc(alias = "UDP_GRO")]
            gro, set_gro: Join(bool);
            /// Whether datagrams that are too long are fragmented or refused, and what counts as too long
            /// (`IP_MTU_DISCOVER`). The default is
            /// [`MtuDiscover::Want`](pagewire_stack::MtuDiscover::Want); protocols that discover the MTU
            /// themselves (QUIC) use `Probe` or `Do`.
            #[doc(alias = "IP_MTU_DISCOVER")]
            mtu_discover, set_mtu_discover: MtuDiscover(pagewire_stack::MtuDiscover);
            /// Whether datagrams to IPv4 groups come back to sockets of this host (`IP_MULTICAST_LOOP`); on
            /// by default.
            #[doc(alias = "IP_MULTICAST_LOOP")]
            multicast_loop_v4, set_multicast_loop_v4: MulticastLoopV4(bool);
        }

        /// Options whose values have other types, or that sockets of one version have, and state.
        impl<R: $crate::runtime::Runtime> $Form<R> {
            /// The address that the socket is connected to.
            ///
            /// # Errors
            /// `NotConnected` without one.
            pub fn peer_addr(&self) -> std::io::Result<std::net::SocketAddr> {
                self.socket().peer_addr()
            }

            /// The completions of zero-copy sends that are there now; never waits.
            pub fn completions(&self) -> crate::Completions<'_, R> {
                crate::Completions::new(self.socket().runtime(), self.socket().id().into())
            }

            /// Bytes of the largest receive queue.
            pub const RECEIVE_BYTES: usize = pagewire_stack::limits::UDP_RECEIVE_BYTES;

            /// The size of the receive queue in bytes, overhead included (`SO_RCVBUF`).
            #[doc(alias = "SO_RCVBUF")]
            pub fn recv_buffer_size(&self) -> std::io::Result<usize> {
                self.socket().option(pagewire_stack::option::RecvBuffer).map(|bytes| bytes as usize)
            }

            /// Sets the size of the receive queue: at most [`RECEIVE_BYTES`](Self::RECEIVE_BYTES), the
            /// default. Datagrams that do not fit are dropped and counted. There is no send buffer:
            /// datagrams go to the device's queue.
            pub fn set_recv_buffer_size(&self, bytes: usize) -> std::io::Result<()> {
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                self.set_option(pagewire_stack::SocketOption::RecvBuffer(bytes))
            }

            /// The type of service of datagrams (`IP_TOS`).
            #[doc(alias = "IP_TOS")]
            pub fn tos_v4(&self) -> std::io::Result<u32> {
                self.socket().tos()
            }

            /// Sets the type of service of datagrams: the lowest eight bits count.
            pub fn set_tos_v4(&self, tos: u32) -> std::io::Result<()> {
                self.socket().set_tos(tos as u8, 0)
            }

            /// The traffic class of datagrams (`IPV6_TCLASS`).
            ///
            /// # Errors
            /// `EOPNOTSUPP` for a socket of IPv4.
            #[doc(alias = "IPV6_TCLASS")]
            pub fn tclass_v6(&self) -> std::io::Result<u32> {
                self.socket().check_v6($crate::options::errno::OPNOTSUPP)?;
                self.socket().tos()
            }

            /// Sets the traffic class of datagrams.
            ///
            /// # Errors
            /// `ENOPROTOOPT` for a socket of IPv4, `InvalidInput` for more than 255.
            pub fn set_tclass_v6(&self, tclass: u32) -> std::io::Result<()> {
                self.socket().check_v6($crate::options::errno::NOPROTOOPT)?;
                self.socket().set_tos($crate::options::byte(tclass)?, 0)
            }

            /// The longest IP packet, in bytes, known to reach the peer unfragmented (`IP_MTU`): 28 bytes
            /// more than the longest datagram, over IPv6 48.
            ///
            /// # Errors
            /// `NotConnected` if there is no peer.
            #[doc(alias = "IP_MTU")]
            pub fn path_mtu(&self) -> std::io::Result<usize> {
                self.socket().with(|mut udp, clock| {
                    clock.now();
                    udp.path_mtu()
                })
            }

            /// The hop limit of datagrams to IPv4 groups (`IP_MULTICAST_TTL`).
            #[doc(alias = "IP_MULTICAST_TTL")]
            pub fn multicast_ttl_v4(&self) -> std::io::Result<u32> {
                self.socket().option(pagewire_stack::option::MulticastTtlV4).map(u32::from)
            }

            /// Sets the hop limit of datagrams to IPv4 groups: 1 by default; 0: they stay on this host.
            ///
            /// # Errors
            /// `InvalidInput` for more than 255.
            pub fn set_multicast_ttl_v4(&self, ttl: u32) -> std::io::Result<()> {
                let hops = $crate::options::byte(ttl)?;
                self.set_option(pagewire_stack::SocketOption::MulticastTtlV4(hops))
            }

            /// The hop limit of datagrams to IPv6 groups (`IPV6_MULTICAST_HOPS`).
            ///
            /// # Errors
            /// `EOPNOTSUPP` for a socket of IPv4.
            #[doc(alias = "IPV6_MULTICAST_HOPS")]
            pub fn multicast_hops_v6(&self) -> std::io::Result<u32> {
                self.socket().check_v6($crate::options::errno::OPNOTSUPP)?;
                self.socket().option(pagewire_stack::option::MulticastHopsV6).map(u32::from)
            }

            /// Sets the hop limit of datagrams to IPv6 groups: 1 by default; 0: they stay on this host.
            ///
            /// # Errors
            /// `ENOPROTOOPT` for a socket of IPv4, `InvalidInput` for more than 255.
            pub fn set_multicast_hops_v6(&self, hops: u32) -> std::io::Result<()> {
                self.socket().check_v6($crate::options::errno::NOPROTOOPT)?;
                let hops = $crate::options::byte(hops)?;
                self.set_option(pagewire_stack::SocketOption::MulticastHopsV6(hops))
            }

            /// Whether datagrams to IPv6 groups come back to sockets of this host
            /// (`IPV6_MULTICAST_LOOP`).
            ///
            /// # Errors
            /// `EOPNOTSUPP` for a socket of IPv4.
            #[doc(alias = "IPV6_MULTICAST_LOOP")]
            pub fn multicast_loop_v6(&self) -> std::io::Result<bool> {
                self.socket().check_v6($crate::options::errno::OPNOTSUPP)?;
                self.socket().option(pagewire_stack::option::MulticastLoopV6)
            }

            /// Sets whether datagrams to IPv6 groups come back to sockets of this host; on by default.
            ///
            /// # Errors
            /// `ENOPROTOOPT` for a socket of IPv4.
            pub fn set_multicast_loop_v6(&self, on: bool) -> std::io::Result<()> {
                self.socket().check_v6($crate::options::errno::NOPROTOOPT)?;
                self.set_option(pagewire_stack::SocketOption::MulticastLoopV6(on))
            }

            /// Joins an IPv6 group on the link with the number `interface`
            /// ([`LinkId::scope_id`](pagewire_stack::LinkId::scope_id)), or with 0 on that of the route.
            ///
            /// # Errors
            /// `InvalidInput` for an address of no group, `AddrInUse` for a group joined before, `ENODEV`
            /// if there is no such link; `ENOPROTOOPT` for a socket of IPv4.
            pub fn join_multicast_v6(
                &self,
                group: &std::net::Ipv6Addr,
                interface: u32,
            ) -> std::io::Result<()> {
                self.socket().check_v6($crate::options::errno::NOPROTOOPT)?;
                self.socket().join(((*group).into(), $crate::multicast::by_number(interface)))
            }

            /// Leaves an IPv6 group.
            ///
            /// # Errors
            /// `AddrNotAvailable` if it was not joined; `ENOPROTOOPT` for a socket of IPv4.
            pub fn leave_multicast_v6(
                &self,
                group: &std::net::Ipv6Addr,
                interface: u32,
            ) -> std::io::Result<()> {
                self.socket().check_v6($crate::options::errno::NOPROTOOPT)?;
                self.socket().leave(((*group).into(), $crate::multicast::by_number(interface)))
            }
        }
    };
}

pub(crate) use {
    accessors, of_every_listener, of_every_socket, of_every_stream, of_every_udp_socket,
};
