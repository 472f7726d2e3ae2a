//! Socket options that a socket remembers. `call.rs` has the calls.

mod call;
mod get;
mod info;
mod link;
mod multicast;
mod set;
pub(crate) mod timestamping;

use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::Instant;
use pagewire_stack::{
    BindOptions, Coalescing, CongestionKind, FastOpenKeys, GroupLink, KeepAlive, LinkId,
    Memberships, MtuDiscover, MulticastSettings, PacketMarks, SocketId, SocketOption, Stack,
    TcpConfig, TcpOption,
};

/// Numbers that `libc` does not name.
pub(crate) const TCP_INQ: i32 = 36;
pub(crate) const TCP_CC_INFO: i32 = 26;
pub(crate) const TCP_NOTSENT_LOWAT: i32 = 25;
pub(crate) const SO_BINDTOIFINDEX: i32 = 62;
pub(crate) const SO_MEMINFO: i32 = 55;
pub(crate) const TCP_FASTOPEN_CONNECT: i32 = 30;
pub(crate) const TCP_FASTOPEN_KEY: i32 = 33;
pub(crate) const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
pub(crate) const UDP_SEGMENT: i32 = 103;
pub(crate) const UDP_GRO: i32 = 104;

/// `IP_PMTUDISC_*` and `IPV6_PMTUDISC_*`, whose numbers are equal.
pub(crate) fn mtu_discover(value: i32) -> Option<MtuDiscover> {
    Some(match value {
        0 => MtuDiscover::Dont,
        1 => MtuDiscover::Want,
        2 => MtuDiscover::Do,
        3 => MtuDiscover::Probe,
        4 => MtuDiscover::Interface,
        5 => MtuDiscover::Omit,
        _ => return None,
    })
}

/// Opts a socket in to zero-copy sends, whose notifications are merged by their numbers, as on Linux.
pub(crate) fn set_zerocopy(
    stack: &mut Stack,
    id: SocketId,
    on: bool,
) -> Result<(), pagewire_stack::Error> {
    stack.set_zerocopy(id, on)?;
    match stack.set_option(id, SocketOption::Coalescing(Some(Coalescing::Linux))) {
        // A listener's connections get it when they are accepted.
        Err(pagewire_stack::Error::NotSupported) => Ok(()),
        done => done,
    }
}

/// What was set on a socket, and the stack's own socket does not keep.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) reuse_address: bool,
    pub(crate) reuse_port: bool,
    pub(crate) free_bind: bool,
    pub(crate) v6_only: bool,
    /// `SO_LINGER`; `None`: off.
    pub(crate) linger: Option<Duration>,
    /// `SO_RCVTIMEO` and `SO_SNDTIMEO`; `None`: for ever.
    pub(crate) receive_timeout: Option<Duration>,
    pub(crate) send_timeout: Option<Duration>,
    /// `SO_SNDBUF` and `SO_RCVBUF` as they are read back: twice what was set.
    pub(crate) send_buffer: Option<u32>,
    pub(crate) receive_buffer: Option<u32>,
    pub(crate) receive_lowat: Option<u32>,
    /// Errors that the network reports are queued: `IP_RECVERR`, `IPV6_RECVERR`.
    pub(crate) receive_errors: bool,
    /// `IP_TOS`, `IPV6_TCLASS`, `IP_TTL`, `IPV6_UNICAST_HOPS`.
    pub(crate) marks: PacketMarks,
    /// `SO_MARK`: a number that can be read back, as on a Linux without rules that look at it.
    pub(crate) mark: u32,
    pub(crate) timestamping: u32,
    pub(crate) zero_copy: bool,
    /// `SO_BINDTODEVICE`, `SO_BINDTOIFINDEX`.
    pub(crate) link: Option<LinkId>,
    pub(crate) broadcast: bool,
    /// `IP_PKTINFO` and `IPV6_RECVPKTINFO`.
    pub(crate) packet_info: [bool; 2],
    /// Groups joined before there was a socket of the stack's.
    pub(crate) groups: Memberships,
    pub(crate) multicast: [MulticastSettings; 2],
    /// `UDP_GRO`.
    pub(crate) udp_join: bool,
    /// `UDP_SEGMENT` and `UDP_CORK`.
    pub(crate) segment: u16,
    pub(crate) udp_cork: bool,
    pub(crate) inq: bool,
    pub(crate) no_delay: bool,
    pub(crate) cork: bool,
    pub(crate) oob_inline: bool,
    pub(crate) keepalive: bool,
    /// `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT`.
    pub(crate) keepalive_times: Option<KeepAlive>,
    pub(crate) max_seg: Option<u16>,
    pub(crate) syn_count: Option<u8>,
    /// `TCP_DEFER_ACCEPT`, as it is rounded.
    pub(crate) defer_accept: Duration,
    /// `TCP_LINGER2`; `Some(None)`: no waiting at all.
    pub(crate) linger2: Option<Option<Duration>>,
    pub(crate) notsent_lowat: u32,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) window_clamp: Option<u32>,
    /// `TCP_CONGESTION`; `None`: the stack's.
    pub(crate) congestion: Option<CongestionKind>,
    pub(crate) fast_open_connect: bool,
    /// `TCP_FASTOPEN`, `TCP_FASTOPEN_KEY` and `TCP_FASTOPEN_NO_COOKIE` of a listener.
    pub(crate) fast_open_queue: Option<u32>,
    pub(crate) fast_open_keys: Option<FastOpenKeys>,
    pub(crate) fast_open_no_cookie: bool,
    pub(crate) mtu_discover: Option<i32>,
    /// An epoll instance watches.
    pub(crate) edges: bool,
}

impl Options {
    /// What an accepted connection inherits from its listener.
    pub(crate) fn inherited(&self) -> Self {
        Self { inq: false, edges: false, ..self.clone() }
    }

    /// How an address is bound.
    pub(crate) fn bind_options(&self) -> BindOptions {
        BindOptions {
            reuse: self.reuse_address,
            reuse_port: self.reuse_port,
            v6_only: self.v6_only,
            free: self.free_bind,
            link: self.link,
        }
    }

    /// Bytes that end a wait to read.
    pub(crate) fn lowat(&self) -> usize {
        self.receive_lowat.unwrap_or(1).max(1) as usize
    }

    /// All options of a connection, as the stack has them.
    fn tcp_options(&self) -> impl Iterator<Item = TcpOption> {
        let keepalive = self.keepalive.then(|| self.keepalive_times.unwrap_or_default());
        [
            self.no_delay.then_some(TcpOption::NoDelay(true)),
            self.cork.then_some(TcpOption::Cork(true)),
            self.oob_inline.then_some(TcpOption::OobInline(true)),
            keepalive.map(|keepalive| TcpOption::KeepAlive(Some(keepalive))),
            self.user_timeout.map(|limit| TcpOption::UserTimeout(Some(limit))),
            self.max_seg.map(|mss| TcpOption::MaxSeg(Some(mss))),
            self.syn_count.map(TcpOption::SynCount),
            (!self.defer_accept.is_zero()).then_some(TcpOption::DeferAccept(self.defer_accept)),
            self.linger2.map(|limit| TcpOption::Linger2(limit.unwrap_or_default())),
            self.linger.map(|linger| TcpOption::Linger(Some(linger))),
            (self.notsent_lowat != 0).then_some(TcpOption::NotSentLowat(self.notsent_lowat)),
            self.receive_lowat.map(TcpOption::RcvLowat),
            self.send_buffer.map(TcpOption::SendBuffer),
            self.receive_buffer.map(|bytes| TcpOption::RecvBuffer(bytes / 2)),
            self.window_clamp.map(|bytes| TcpOption::WindowClamp(Some(bytes))),
            self.congestion.map(TcpOption::Congestion),
        ]
        .into_iter()
        .flatten()
    }

    pub(crate) fn config(&self, stack: &Stack) -> Arc<TcpConfig> {
        let mut config = stack.default_config();
        for option in self.tcp_options() {
            option.apply(Arc::make_mut(&mut config));
        }
        config
    }

    /// Applies what is no setting to a new listener, connection or datagram socket.
    pub(crate) fn apply(&self, stack: &mut Stack, now: Instant, id: SocketId) {
        // A connection that is over needs no options.
        let how = self.mtu_discover.and_then(mtu_discover);
        let queue_errors = self.receive_errors.then_some(TcpOption::QueueErrors(true));
        for option in queue_errors.into_iter().chain(how.map(TcpOption::MtuDiscover)) {
            let _ = stack.as_tcp(id).and_then(|mut tcp| tcp.set_option(now, option));
        }
        if self.zero_copy {
            let _ = set_zerocopy(stack, id, true);
        }
        if let Ok(mut udp) = stack.as_udp(id) {
            if self.receive_errors {
                udp.queue_errors(true);
            }
            if let Some(bytes) = self.receive_buffer {
                udp.set_receive_buffer(bytes as usize);
            }
            udp.set_broadcast(self.broadcast);
            udp.set_join(self.udp_join);
            for (settings, v6) in self.multicast.into_iter().zip([false, true]) {
                if settings != MulticastSettings::default() {
                    udp.set_multicast(v6, settings);
                }
            }
            for (group, link) in self.groups.iter() {
                let _ = udp.join_group(now, group, GroupLink::Number(link.scope_id()));
            }
            udp.set_segment(self.segment);
            if let Some(how) = how {
                udp.set_mtu_discover(how);
            }
        }
        if self.marks != PacketMarks::default() {
            let _ = stack.set_option(id, SocketOption::Marks(self.marks));
        }
        if self.edges {
            let _ = stack.set_option(id, SocketOption::EveryArrival(true));
        }
    }

    /// Applies all options to a new listener: its connections inherit them.
    pub(crate) fn apply_to_listener(&self, stack: &mut Stack, now: Instant, id: SocketId) {
        let fast_open = [
            self.fast_open_queue.map(TcpOption::FastOpen),
            self.fast_open_keys.map(|keys| TcpOption::FastOpenKeys(Some(keys))),
            self.fast_open_no_cookie.then_some(TcpOption::FastOpenNoCookie(true)),
        ];
        for option in self.tcp_options().chain(fast_open.into_iter().flatten()) {
            let _ = stack.as_listener(id).and_then(|mut listener| listener.set_option(option));
        }
        self.apply(stack, now, id);
    }
}
