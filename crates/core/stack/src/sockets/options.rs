//! Options of sockets: one table gives each option's name, the type of its value, the field that stores it,
//! and its spelling in Linux's `setsockopt`. A new option is a new row; descriptors find it by its number.

mod codec;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_tcp::{
    Config as TcpConfig, CongestionKind, FastOpenKeys, KeepAlive, defer_accept_time,
    defer_accept_timeouts,
};

use super::error_queue::ErrorQueue;
use super::ids::{SocketId, TcpId};
use super::marks::{MtuDiscover, PacketMarks};
use super::table::Socket;
use super::tcp::socket::{RareState, TcpSocket};
use super::udp::socket::UdpSocket;
use super::{BindOptions, Listener, Tcp};
use crate::config::Coalescing;
use crate::error::Error;
use crate::limits::MAX_FAST_OPEN_QUEUE;
use crate::net::LinkId;
use crate::sockets::listen::socket::ListenerSocket;
use crate::stack::Stack;
use codec::*;

/// Where the value of an option may be kept.
///
/// A connection has an option in the first of `Connection`, `RareState` and `Config` that the row has; a
/// listener in the first of `Listener`, `RareState` and `Config`. Its connections inherit the last two.
enum OptionStore<'a> {
    /// The settings of a connection.
    Config(&'a TcpConfig),
    /// The rare state of a connection, which a listener's connections inherit.
    Extra(&'a RareState),
    Connection(&'a TcpSocket),
    Listener(&'a ListenerSocket),
    Datagram(&'a UdpSocket),
}

/// A [`OptionStore`] to write to.
enum OptionStoreMut<'a> {
    Config(&'a mut TcpConfig),
    Extra(&'a mut RareState),
    Connection(&'a mut TcpSocket),
    Listener(&'a mut ListenerSocket),
    Datagram(&'a mut UdpSocket),
}

/// Levels of `setsockopt`.
mod level {
    pub(super) const IP: i32 = 0;
    pub(super) const SOCKET: i32 = 1;
    pub(super) const TCP: i32 = 6;
    pub(super) const UDP: i32 = 17;
    pub(super) const IPV6: i32 = 41;
}

/// A row: `Name(value: type = default) [LINUX_NAME: level number codec, ...] { stores }`.
///
/// A store is `OptionStore.field;` or `OptionStore(it): get => set;`. The default of an option in [`TcpConfig`] is
/// the stack's setting. An option without a store is kept by the socket's owner, in
/// [`SocketOptions`].
macro_rules! options {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident($value:ident: $type:ty = $default:expr)
            [$($label:ident: $level:ident $number:literal $codec:ident),*]
            {$($place:ident $(. $($field:ident).+)? $(($it:ident): $get:expr => $set:expr)?;)*}
    )*) => {
        /// An option of a socket, and its value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum SocketOption {
            $($(#[doc = $doc])* $name($type),)*
        }

        /// The name of an option.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum OptionName {
            $(#[doc = concat!("[`SocketOption::", stringify!($name), "`].")] $name,)*
        }

        /// Names of options that carry the type of the value.
        pub mod option {
            $(
                #[doc = concat!("[`SocketOption::", stringify!($name),
                    "`](super::SocketOption::", stringify!($name), ").")]
                #[derive(Clone, Copy, Debug)]
                pub struct $name;
            )*
        }

        $(
            impl OptionKey for option::$name {
                type Value = $type;
                fn name(self) -> OptionName {
                    OptionName::$name
                }
                fn value(self, option: SocketOption) -> Option<$type> {
                    match option {
                        SocketOption::$name(value) => Some(value),
                        _ => None,
                    }
                }
            }
        )*

        impl SocketOption {
            /// The option's name.
            pub fn name(self) -> OptionName {
                match self {
                    $(Self::$name(_) => OptionName::$name,)*
                }
            }

            /// Writes the value. `false`: it is not kept there.
            #[allow(unreachable_patterns, reason = "not every option has every place")]
            fn set(self, place: OptionStoreMut<'_>) -> bool {
                match (self, place) {
                    $($($((Self::$name($value), OptionStoreMut::$place($it)) => $set,)?)*)*
                    $($($((Self::$name(value), OptionStoreMut::$place(it)) => it.$($field).+ = value,)?)*)*
                    _ => return false,
                }
                true
            }
        }

        impl OptionName {
            /// The value of a new socket, if the stack has no setting for it.
            fn default(self) -> SocketOption {
                match self {
                    $(Self::$name => SocketOption::$name($default),)*
                }
            }

            /// The value; `None`: it is not kept there.
            #[allow(unreachable_patterns, reason = "not every option has every place")]
            fn get(self, place: OptionStore<'_>) -> Option<SocketOption> {
                Some(match (self, place) {
                    $($($((Self::$name, OptionStore::$place($it)) => SocketOption::$name($get),)?)*)*
                    $($($((Self::$name, OptionStore::$place(it)) => SocketOption::$name(it.$($field).+),)?)*)*
                    _ => return None,
                })
            }
        }

        impl LinuxOption {
            /// The options of `setsockopt` and `getsockopt`, except numbers that stand for a state of the socket
            /// or for an operation.
            pub const ALL: &[Self] = &[$($(
                Self {
                    label: stringify!($label),
                    level: level::$level,
                    number: $number,
                    name: OptionName::$name,
                    read: |value| ($codec.read)(value).map(SocketOption::$name),
                    write: |option| match option {
                        SocketOption::$name(value) => ($codec.write)(value),
                        _ => Vec::new(),
                    },
                },
            )*)*];
        }
    };
}

options! {
    /// Small segments leave at once (no Nagle algorithm, RFC 896).
    NoDelay(on: bool = false) [TCP_NODELAY: TCP 1 ANY] {
        Config(c): !c.nagle => c.nagle = !on;
        Connection(s): s.conn.info().nodelay => s.conn.settings().set_nodelay(on);
    }
    /// Only full segments leave (`TCP_CORK`).
    Cork(on: bool = false) [TCP_CORK: TCP 3 ANY] {
        Config.cork;
        Connection(s): s.conn.is_corked() => s.conn.settings().set_cork(on);
    }
    /// Probes of an idle connection; `None`: none.
    KeepAlive(keepalive: Option<KeepAlive> = None) [SO_KEEPALIVE: SOCKET 9 PROBING] { Config.keepalive; }
    /// For owners who keep the times of a keep-alive that is off: the silence before the first probe.
    KeepIdle(time: Duration = KeepAlive::default().idle) [TCP_KEEPIDLE: TCP 4 PERIOD] {}
    /// As [`KeepIdle`](Self::KeepIdle): the time between probes.
    KeepInterval(time: Duration = KeepAlive::default().interval) [TCP_KEEPINTVL: TCP 5 PERIOD] {}
    /// As [`KeepIdle`](Self::KeepIdle): unanswered probes before the connection ends.
    KeepCount(probes: u8 = KeepAlive::default().probes) [TCP_KEEPCNT: TCP 6 TRIES] {}
    /// How long data, a SYN or a probe may stay unanswered (RFC 5482); `None`: all retries.
    UserTimeout(limit: Option<Duration> = None) [TCP_USER_TIMEOUT: TCP 18 MILLISECONDS] {
        Config.user_timeout;
    }
    /// Upper bound of the MSS; `None`: the link's.
    MaxSeg(mss: Option<u16> = None) [TCP_MAXSEG: TCP 2 SEGMENT] { Config.max_mss; }
    /// Retransmissions of a SYN before connecting fails.
    SynCount(retries: u8 = 0) [TCP_SYNCNT: TCP 7 TRIES] {
        Config(c): c.syn_retries => (c.syn_retries, c.syn_linear_retries) = (retries, 0);
    }
    /// How long a listener's connection waits for data before it can be accepted without, rounded up to
    /// timeouts of the SYN,ACK ([`defer_accept_timeouts`]). Zero: connections do not wait. On a connection that is
    /// opened, any other value delays the last acknowledgement of the handshake a little, for data.
    DeferAccept(time: Duration = Duration::ZERO) [TCP_DEFER_ACCEPT: TCP 9 DEFER] {
        Config(c): defer_accept_time(c.defer_accept) => c.defer_accept = defer_accept_timeouts(time);
        Connection(s): defer_accept_time(s.conn.config().defer_accept) =>
            s.conn.settings().set_defer_accept(defer_accept_timeouts(time));
    }
    /// How long a closed connection waits for the peer's FIN.
    Linger2(limit: Duration = Duration::ZERO) [TCP_LINGER2: TCP 8 LINGER2] { Config.fin_wait2; }
    /// `Some` zero: closing resets the peer. To wait for other times is up to the caller.
    Linger(limit: Option<Duration> = None) [SO_LINGER: SOCKET 13 LINGER] { Config.linger; }
    /// Limit on unsent bytes; below half of it the connection is writable. `u32::MAX`: none.
    NotSentLowat(bytes: u32 = u32::MAX) [TCP_NOTSENT_LOWAT: TCP 25 NUMBER] { Config.notsent_lowat; }
    /// Bytes that make the connection readable.
    RcvLowat(bytes: u32 = 1) [SO_RCVLOWAT: SOCKET 18 LOWAT] {
        Config(c): c.recv_lowat => c.recv_lowat = bytes.max(1);
        Connection(s): s.conn.config().recv_lowat => s.conn.settings().set_recv_lowat(bytes);
    }
    /// Fixed size of the send buffer, in bytes as Linux charges them; read: the present size.
    SendBuffer(bytes: u32 = 0) [SO_SNDBUF: SOCKET 7 SEND_BYTES] {
        Config(c): c.send_buffer_initial => (c.send_buffer, c.send_buffer_initial) = (bytes, bytes);
        Connection(s): s.conn.info().send_buffer => s.conn.settings().set_send_buffer(bytes);
    }
    /// Fixed size of the receive buffer, in bytes of window; read: the present size. Of a datagram
    /// socket: bytes of its queue, overhead included, at most the default,
    /// [`UDP_RECEIVE_BYTES`](crate::limits::UDP_RECEIVE_BYTES), or on a socket of
    /// [`Stack::bind_every`](crate::Stack::bind_every)
    /// [`DATAGRAM_EVERY_BYTES`](crate::limits::DATAGRAM_EVERY_BYTES).
    RecvBuffer(bytes: u32 = 0) [SO_RCVBUF: SOCKET 8 RECEIVE_BYTES] {
        Config(c): c.recv_buffer_initial => (c.recv_buffer, c.recv_buffer_initial) = (bytes, bytes);
        Connection(s): s.conn.info().recv_buffer => s.conn.settings().set_recv_buffer(bytes);
        Datagram(d): d.receive_bytes as u32 => d.set_receive_bytes(bytes as usize);
    }
    /// Upper bound of the announced window; `None`: the buffer.
    WindowClamp(bytes: Option<u32> = None) [TCP_WINDOW_CLAMP: TCP 10 CLAMP] { Config.window_clamp; }
    /// The congestion control; the window stays.
    Congestion(kind: CongestionKind = CongestionKind::Cubic) [TCP_CONGESTION: TCP 13 CONGESTION] {
        Config.congestion;
        Connection(s): s.conn.config().congestion => s.conn.settings().set_congestion(kind);
    }
    /// Acknowledge at once, for now.
    QuickAck(on: bool = true) [TCP_QUICKACK: TCP 12 ANY] {
        Connection(s): s.conn.info().quick_ack => s.conn.settings().set_quick_ack(on);
    }
    /// An urgent byte stays in the stream.
    OobInline(on: bool = false) [SO_OOBINLINE: SOCKET 10 ANY] { Config.oob_inline; }
    /// Keeps a copy ledger for this connection; off drops it.
    CountCopies(on: bool = false) [] {
        Connection(s): s.extra.as_ref().is_some_and(|extra| extra.ledger.is_some()) => {
            let extra = s.extra.get_or_insert_default();
            extra.ledger = on.then(|| extra.ledger.unwrap_or_default());
        };
    }
    /// The number of connections that a listener may have with incomplete handshakes (Fast Open, RFC 7413); 0: off.
    FastOpen(limit: u32 = 0) [TCP_FASTOPEN: TCP 23 COUNT] {
        Listener(l): l.fast_open.as_ref().map_or(0, |fast_open| fast_open.limit) =>
            l.fast_open.get_or_insert_default().limit = limit.min(MAX_FAST_OPEN_QUEUE);
    }
    /// A listener's keys for Fast Open cookies; `None`: the stack's.
    FastOpenKeys(keys: Option<FastOpenKeys> = None) [TCP_FASTOPEN_KEY: TCP 33 KEYS] {
        Listener(l): l.fast_open.as_ref().and_then(|fast_open| fast_open.keys) =>
            l.fast_open.get_or_insert_default().keys = keys;
    }
    /// Whether a listener takes data in SYNs without a Fast Open cookie.
    FastOpenNoCookie(on: bool = false) [TCP_FASTOPEN_NO_COOKIE: TCP 34 FLAG] {
        Listener(l): l.fast_open.as_ref().is_some_and(|fast_open| fast_open.no_cookie) =>
            l.fast_open.get_or_insert_default().no_cookie = on;
    }
    /// Whether a connection opens with Fast Open.
    FastOpenConnect(on: bool = false) [TCP_FASTOPEN_CONNECT: TCP 30 FLAG] {}
    /// Whether a receive also returns the number of bytes that are left to be read.
    Inq(on: bool = false) [TCP_INQ: TCP 36 FLAG] {}

    /// The time to live or the hop limit of the socket's packets; `None`: the stack's.
    HopLimit(limit: Option<u8> = None) [IP_TTL: IP 2 TTL, IPV6_UNICAST_HOPS: IPV6 16 HOPS] {
        Extra.marks.hop_limit;
        Datagram.marks.hop_limit;
    }
    /// The type of service or the traffic class of the socket's packets. TCP sets the two lowest bits (ECN)
    /// itself.
    TrafficClass(class: u8 = 0) [IP_TOS: IP 1 TOS, IPV6_TCLASS: IPV6 67 CLASS] {
        Extra.marks.traffic_class;
        Datagram.marks.traffic_class;
    }
    /// [`HopLimit`](Self::HopLimit) and [`TrafficClass`](Self::TrafficClass) together.
    Marks(marks: PacketMarks = PacketMarks::default()) [] { Extra.marks; Datagram.marks; }
    /// A number that can be read back, as on a Linux without rules that use it.
    Mark(mark: u32 = 0) [SO_MARK: SOCKET 36 NUMBER] { Extra.mark; Datagram.mark; }
    /// Whether routers may fragment the socket's packets, and whether to heed reports about the path.
    MtuDiscover(how: MtuDiscover = MtuDiscover::Want)
        [IP_MTU_DISCOVER: IP 10 IP_DISCOVER, IPV6_MTU_DISCOVER: IPV6 23 DISCOVER] {
        Extra.mtu_discover;
        Datagram.mtu_discover;
    }
    /// Keeps errors that the network reports in the error queue; off drops those in the queue.
    QueueErrors(on: bool = false) [IP_RECVERR: IP 11 IP_ANY, IPV6_RECVERR: IPV6 25 ANY] {
        Extra(e): e.errors.as_ref().is_some_and(ErrorQueue::keeps_errors) =>
            e.errors.get_or_insert_default().keep_errors(on);
        Datagram(d): d.errors.as_ref().is_some_and(|errors| errors.keeps_errors()) =>
            d.errors.get_or_insert_default().keep_errors(on);
    }
    /// The rule by which notifications of zero-copy sends are merged; `None`: the stack's.
    Coalescing(which: Option<Coalescing> = None) [] {
        Extra(e): e.errors.as_ref().and_then(|errors| errors.sends.coalescing) =>
            e.errors.get_or_insert_default().sends.coalescing = which;
        Datagram(d): d.errors.as_ref().and_then(|errors| errors.sends.coalescing) =>
            d.errors.get_or_insert_default().sends.coalescing = which;
    }
    /// Opts in to zero-copy sends; see [`Stack::set_zerocopy`].
    ZeroCopy(on: bool = false) [SO_ZEROCOPY: SOCKET 60 FLAG] {
        Connection.reporting.zerocopy;
        Listener.reporting.zerocopy;
        Datagram.reporting.zerocopy;
    }
    /// Every arrival is an [`Event`](crate::Event), for owners that need edges.
    EveryArrival(on: bool = false) [] {
        Connection.reporting.every_arrival;
        Listener.reporting.every_arrival;
        Datagram.reporting.every_arrival;
    }
    /// Binds the socket to a link, or to none (`SO_BINDTODEVICE`): it receives and sends only by
    /// that link, against the routes if need be. A listener's connections inherit it. When the link is
    /// removed, nothing comes or leaves any more. Packets of this host to itself come by no link.
    Link(link: Option<LinkId> = None) [SO_BINDTOIFINDEX: SOCKET 62 LINK] {
        Extra.link;
        Listener.link;
        Datagram.link;
    }

    /// Whether the socket may send to broadcast addresses.
    Broadcast(on: bool = false) [SO_BROADCAST: SOCKET 6 ANY] { Datagram.broadcast; }
    /// The longest datagram of a send, in bytes of payload: longer sends are cut into several. 0: each call is
    /// one datagram.
    Segment(bytes: u16 = 0) [UDP_SEGMENT: UDP 103 LENGTH] { Datagram.segment; }
    /// Whether several datagrams are received as one; see [`Udp::set_join`](crate::Udp::set_join).
    Join(on: bool = false) [UDP_GRO: UDP 104 ANY] { Datagram.joins; }
    /// Whether sends wait to become one datagram, until this is off.
    UdpCork(on: bool = false) [UDP_CORK: UDP 1 ANY] {}
    /// The time to live of datagrams to groups; 0: on this host only.
    MulticastTtlV4(hops: u8 = 1) [IP_MULTICAST_TTL: IP 33 GROUP_TTL] {
        Datagram(d): d.multicast(false).hops => d.multicast_mut(false).hops = hops;
    }
    /// Whether datagrams to groups come back to members on this host.
    MulticastLoopV4(on: bool = true) [IP_MULTICAST_LOOP: IP 34 CHAR_ANY] {
        Datagram(d): d.multicast(false).loops => d.multicast_mut(false).loops = on;
    }
    /// Whether the socket also receives from groups that only other sockets have joined.
    MulticastAllV4(on: bool = true) [IP_MULTICAST_ALL: IP 49 CHAR_FLAG] {
        Datagram(d): d.multicast(false).all => d.multicast_mut(false).all = on;
    }
    /// The link by which datagrams to groups leave; `None`: the route's.
    MulticastLinkV4(link: Option<LinkId> = None) [] {
        Datagram(d): d.multicast(false).link => d.multicast_mut(false).link = link;
    }
    /// The source of datagrams to groups; `None`: the route's.
    MulticastSourceV4(source: Option<IpAddr> = None) [IP_MULTICAST_IF: IP 32 ADDRESS] {
        Datagram(d): d.multicast(false).source => d.multicast_mut(false).source = source;
    }
    /// As [`MulticastTtlV4`](Self::MulticastTtlV4), for groups of IPv6.
    MulticastHopsV6(hops: u8 = 1) [IPV6_MULTICAST_HOPS: IPV6 18 GROUP_HOPS] {
        Datagram(d): d.multicast(true).hops => d.multicast_mut(true).hops = hops;
    }
    /// As [`MulticastLoopV4`](Self::MulticastLoopV4), for groups of IPv6.
    MulticastLoopV6(on: bool = true) [IPV6_MULTICAST_LOOP: IPV6 19 FLAG] {
        Datagram(d): d.multicast(true).loops => d.multicast_mut(true).loops = on;
    }
    /// As [`MulticastAllV4`](Self::MulticastAllV4), for groups of IPv6.
    MulticastAllV6(on: bool = true) [IPV6_MULTICAST_ALL: IPV6 29 FLAG] {
        Datagram(d): d.multicast(true).all => d.multicast_mut(true).all = on;
    }
    /// As [`MulticastLinkV4`](Self::MulticastLinkV4), for groups of IPv6.
    MulticastLinkV6(link: Option<LinkId> = None) [IPV6_MULTICAST_IF: IPV6 17 LINK] {
        Datagram(d): d.multicast(true).link => d.multicast_mut(true).link = link;
    }

    /// See [`BindOptions::reuse`].
    ReuseAddress(on: bool = false) [SO_REUSEADDR: SOCKET 2 ANY] {}
    /// See [`BindOptions::reuse_port`].
    ReusePort(on: bool = false) [SO_REUSEPORT: SOCKET 15 ANY] {}
    /// See [`BindOptions::v6_only`].
    V6Only(on: bool = false) [IPV6_V6ONLY: IPV6 26 ANY] {}
    /// See [`BindOptions::free`].
    FreeBind(on: bool = false) [IP_FREEBIND: IP 15 CHAR_ANY] {}
    /// How long a call waits for data, or a connection to accept; `None`: for ever.
    ReceiveTimeout(limit: Option<Duration> = None) [SO_RCVTIMEO: SOCKET 20 TIMEVAL] {}
    /// How long a call waits for room, or to connect; `None`: for ever.
    SendTimeout(limit: Option<Duration> = None) [SO_SNDTIMEO: SOCKET 21 TIMEVAL] {}
    /// Bits of `SO_TIMESTAMPING`.
    Timestamping(bits: u32 = 0) [SO_TIMESTAMPING: SOCKET 37 NUMBER] {}
    /// Whether a receive also returns the addresses of the datagram's packet.
    PacketInfoV4(on: bool = false) [IP_PKTINFO: IP 8 IP_ANY] {}
    /// As [`PacketInfoV4`](Self::PacketInfoV4), as IPv6 has them.
    PacketInfoV6(on: bool = false) [IPV6_RECVPKTINFO: IPV6 49 ANY] {}
}

/// The name of an option: an [`OptionName`], or one of [`option`] for a value of its own type.
pub trait OptionKey: Copy {
    /// The type of the option's value.
    type Value;
    /// The option's name.
    fn name(self) -> OptionName;
    /// The value of `option`; `None`: `option` has another name.
    fn value(self, option: SocketOption) -> Option<Self::Value>;
}

impl OptionKey for OptionName {
    type Value = SocketOption;
    fn name(self) -> OptionName {
        self
    }
    fn value(self, option: SocketOption) -> Option<SocketOption> {
        (option.name() == self).then_some(option)
    }
}

/// How Linux spells an option: a level and a number, and a value as C lays it out.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LinuxOption {
    /// The option's name in the manual pages.
    pub label: &'static str,
    /// The second argument of `setsockopt`.
    pub level: i32,
    /// The third.
    pub number: i32,
    /// The option.
    pub name: OptionName,
    /// Reads a value, which may be followed by more bytes. An error is its number (`errno(3)`).
    pub read: fn(&[u8]) -> Result<SocketOption, i32>,
    /// The bytes of a value of this option.
    pub write: fn(SocketOption) -> Vec<u8>,
}

impl LinuxOption {
    /// Finds an option by level and number.
    pub fn find(level: i32, number: i32) -> Option<&'static Self> {
        Self::ALL.iter().find(|option| (option.level, option.number) == (level, number))
    }
}

/// Options of a socket that is yet to be made, and what its owner keeps of them: the last value of each
/// that was set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions(Vec<SocketOption>);

impl SocketOptions {
    /// Remembers a value.
    pub fn set(&mut self, option: SocketOption) {
        self.unset(option.name());
        self.0.push(option);
    }

    /// Forgets the value of an option.
    pub fn unset(&mut self, name: OptionName) {
        self.0.retain(|set| set.name() != name);
    }

    /// The value; `None`: it was not set.
    pub fn get<K: OptionKey>(&self, key: K) -> Option<K::Value> {
        self.0.iter().find_map(|&option| key.value(option))
    }

    /// The value; if it was not set, that of a new socket without settings of the stack.
    pub fn value<K: OptionKey<Value: Default>>(&self, key: K) -> K::Value {
        self.get(key).or_else(|| key.value(key.name().default())).unwrap_or_default()
    }

    /// Iterates over the options that were set.
    pub fn iter(&self) -> impl Iterator<Item = SocketOption> {
        self.0.iter().copied()
    }

    /// Settings of a connection with these options, otherwise as `base`.
    pub fn config(&self, mut base: Arc<TcpConfig>) -> Arc<TcpConfig> {
        for option in self.iter() {
            if option.name().is_setting(&base) {
                option.apply(Arc::make_mut(&mut base));
            }
        }
        base
    }

    /// How an address is bound.
    pub fn bind_options(&self) -> BindOptions {
        BindOptions {
            reuse: self.value(option::ReuseAddress),
            reuse_port: self.value(option::ReusePort),
            v6_only: self.value(option::V6Only),
            free: self.value(option::FreeBind),
            link: self.value(option::Link),
            every_shard: false,
        }
    }
}

impl OptionName {
    /// Whether it is kept in the settings of a connection.
    fn is_setting(self, config: &TcpConfig) -> bool {
        self.get(OptionStore::Config(config)).is_some()
    }

    fn of_extra(self, extra: Option<&RareState>) -> Option<SocketOption> {
        match extra {
            Some(extra) => self.get(OptionStore::Extra(extra)),
            None => self.get(OptionStore::Extra(&RareState::default())),
        }
    }

    fn of_connection(self, socket: &TcpSocket) -> Option<SocketOption> {
        self.get(OptionStore::Connection(socket))
            .or_else(|| self.of_extra(socket.extra.as_deref()))
            .or_else(|| self.get(OptionStore::Config(socket.conn.config())))
    }

    fn of_listener(self, socket: &ListenerSocket) -> Option<SocketOption> {
        self.get(OptionStore::Listener(socket))
            .or_else(|| self.of_extra(socket.extra.as_deref()))
            .or_else(|| self.get(OptionStore::Config(&socket.config)))
    }
}

impl SocketOption {
    /// Changes settings of later connections. `false`: they do not have this one.
    pub fn apply(self, config: &mut TcpConfig) -> bool {
        self.set(OptionStoreMut::Config(config))
    }

    /// Changes what a connection has beside its settings, unless it is so. `false`: it is not kept there.
    fn set_in_extra(self, extra: &mut Option<Box<RareState>>) -> bool {
        match self.name().of_extra(extra.as_deref()) {
            None => false,
            Some(present) if present == self => true,
            Some(_) => self.set(OptionStoreMut::Extra(extra.get_or_insert_default())),
        }
    }

    fn set_on_connection(self, socket: &mut TcpSocket) -> bool {
        // Settings are copied only for a change.
        let is_setting = self.name().is_setting(socket.conn.config());
        if self.set(OptionStoreMut::Connection(socket)) || self.set_in_extra(&mut socket.extra) {
            return true;
        }
        if is_setting {
            socket.conn.settings().change(|config| _ = self.apply(config));
        }
        is_setting
    }

    fn set_on_listener(self, socket: &mut ListenerSocket) -> bool {
        let is_setting = self.name().is_setting(&socket.config);
        self.set(OptionStoreMut::Listener(socket))
            || self.set_in_extra(&mut socket.extra)
            || (is_setting && self.apply(Arc::make_mut(&mut socket.config)))
    }
}

/// The outcome of setting an option: whether the socket has it.
fn supported(set: bool) -> Result<(), Error> {
    if set { Ok(()) } else { Err(Error::NotSupported) }
}

impl Tcp<'_> {
    /// Changes an option.
    ///
    /// # Errors
    /// `InvalidInput` for an option of listeners alone, `NotSupported` for those of other sockets;
    /// [`Link`](SocketOption::Link) is the stack's to [set](Stack::set_option).
    pub fn set_option(&mut self, now: Instant, option: SocketOption) -> Result<(), Error> {
        use SocketOption::{FastOpen, FastOpenKeys, FastOpenNoCookie, KeepAlive, Link};
        let socket = &mut *self.socket;
        match option {
            KeepAlive(keepalive) => socket.conn.settings().set_keepalive(now, keepalive),
            FastOpen(_) | FastOpenKeys(_) | FastOpenNoCookie(_) => return Err(Error::InvalidInput),
            Link(_) => return Err(Error::NotSupported),
            option => supported(option.set_on_connection(socket))?,
        }
        self.touch();
        Ok(())
    }
}

impl Listener<'_> {
    /// Changes an option of the listener and of later connections.
    ///
    /// # Errors
    /// `NotSupported` if connections cannot inherit it; [`Link`](SocketOption::Link) is the stack's to
    /// [set](Stack::set_option).
    pub fn set_option(&mut self, option: SocketOption) -> Result<(), Error> {
        match option {
            SocketOption::Link(_) => Err(Error::NotSupported),
            option => supported(option.set_on_listener(self.socket_mut()?)),
        }
    }
}

impl Stack {
    /// The value of an option: [`option::NoDelay`] gives a `bool`, an [`OptionName`] a [`SocketOption`]. A
    /// listener has those that its connections inherit.
    ///
    /// # Errors
    /// `NotSupported` for an option that sockets of this kind do not have.
    pub fn option<K: OptionKey>(&self, id: impl Into<SocketId>, key: K) -> Result<K::Value, Error> {
        let name = key.name();
        let option = match self.cx.table.get(id.into())? {
            Socket::Tcp(socket) => name.of_connection(socket),
            Socket::Listener(socket) => name.of_listener(socket),
            Socket::Udp(socket) => name.get(OptionStore::Datagram(socket)),
            Socket::TimeWait(_) => return Err(Error::NoSuchSocket),
        };
        option.and_then(|option| key.value(option)).ok_or(Error::NotSupported)
    }

    /// The value of an option of a new socket.
    pub fn default_option(&self, name: OptionName) -> SocketOption {
        name.get(OptionStore::Config(&self.tcp.config)).unwrap_or_else(|| name.default())
    }

    /// Changes an option of a socket of any kind. The first probe of a connection's keep-alive counts from
    /// its last segment; with [`Tcp::set_option`], from now.
    ///
    /// # Errors
    /// `InvalidInput` for a link that was removed, the link of a socket for every address of one, and an
    /// option of listeners for a connection; `NotSupported` for what sockets of this kind do not have.
    pub fn set_option(
        &mut self,
        id: impl Into<SocketId>,
        option: SocketOption,
    ) -> Result<(), Error> {
        let id = id.into();
        if let SocketOption::Link(link) = option {
            return self.bind_to_link(id, link);
        }
        match self.cx.table.get_mut(id)? {
            Socket::Tcp(socket) => {
                let last_received = socket.conn.last_received();
                self.cx.tcp(TcpId(id))?.set_option(last_received, option)
            }
            Socket::Listener(socket) => supported(option.set_on_listener(socket)),
            Socket::Udp(socket) => supported(option.set(OptionStoreMut::Datagram(socket))),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }

    /// Sets options of a new socket, but for those that it does not have. A connection has begun with
    /// its [settings](SocketOptions::config).
    pub fn set_options(&mut self, id: impl Into<SocketId>, options: &SocketOptions) {
        let id = id.into();
        let config = self.as_tcp(id).is_ok().then(|| self.default_config());
        let has_begun = |name: OptionName| config.as_ref().is_some_and(|c| name.is_setting(c));
        for option in options.iter().filter(|option| !has_begun(option.name())) {
            // A socket that is over needs none.
            let _ = self.set_option(id, option);
        }
    }

    fn bind_to_link(&mut self, id: SocketId, link: Option<LinkId>) -> Result<(), Error> {
        self.cx.check_link(link)?;
        let (tcp_binds, udp_binds) = (&mut self.listeners.binds, &mut self.udp.binds);
        let option = SocketOption::Link(link);
        match self.cx.table.get_mut(id)? {
            // Sockets of a transparent link, here and below, stay bound to that link.
            Socket::Udp(socket) if socket.wildcard.is_some() => return Err(Error::InvalidInput),
            Socket::Listener(socket) if socket.requests.is_some() => {
                return Err(Error::InvalidInput);
            }
            Socket::Tcp(socket) => {
                option.set_in_extra(&mut socket.extra);
                // The socket looks its path up again.
                socket.path_generation = socket.path_generation.wrapping_sub(1);
            }
            Socket::Udp(socket) => {
                option.set(OptionStoreMut::Datagram(socket));
                udp_binds.set_link(socket.local.port(), id.index(), link);
            }
            Socket::Listener(socket) => {
                option.set(OptionStoreMut::Listener(socket));
                tcp_binds.set_link(socket.local.port(), id.index(), link);
            }
            Socket::TimeWait(_) => return Err(Error::NoSuchSocket),
        }
        Ok(())
    }
}
