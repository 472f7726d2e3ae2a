//! Reading options.

use std::time::Duration;

use pagewire_stack::limits::{DEFAULT_HOP_LIMIT as HOPS, UDP_RECEIVE_BYTES};
use pagewire_stack::{CongestionKind, LinkId, Readiness, TcpConfig, TcpInfo};

use super::call::{SocketOptions, Value, flag, int, number};
use crate::address::Domain;
use crate::backend::Backend;
use crate::file::socket::{Kind, Stage, State};
use crate::limits::DATAGRAM_BUFFER;
use crate::options::info::tcp_info;
use crate::options::multicast::{get_ip_multicast, get_ipv6_multicast};
use crate::options::{
    SO_BINDTOIFINDEX, SO_MEMINFO, TCP_CC_INFO, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY,
    TCP_FASTOPEN_NO_COOKIE, TCP_INQ, TCP_NOTSENT_LOWAT,
};
use crate::{Errno, errno};

/// The MSS of a connection that has none yet (`TCP_MSS_DEFAULT`).
const DEFAULT_MSS: i32 = 536;
/// Bytes of an algorithm's name (`TCP_CA_NAME_MAX`).
const NAME_MAX: usize = 16;

impl<B: Backend> SocketOptions<'_, B> {
    pub(super) fn get_socket(&self, name: i32, room: usize) -> Value {
        if name == libc::SO_ERROR {
            return int(self.take_error().map_or(0, Errno::raw_os_error));
        }
        let state = self.lock();
        let options = &state.options;
        match name {
            libc::SO_REUSEADDR => flag(options.reuse_address),
            libc::SO_REUSEPORT => flag(options.reuse_port),
            libc::SO_LINGER => {
                let seconds = options.linger.unwrap_or_default().as_secs() as i32;
                let on = i32::from(options.linger.is_some());
                Ok([on.to_ne_bytes(), seconds.to_ne_bytes()].concat())
            }
            libc::SO_RCVTIMEO => timeout(options.receive_timeout),
            libc::SO_SNDTIMEO => timeout(options.send_timeout),
            libc::SO_SNDBUF => number(self.send_buffer(&state)),
            libc::SO_RCVBUF => number(self.receive_buffer(&state)),
            libc::SO_RCVLOWAT => number(options.lowat() as u32),
            libc::SO_SNDLOWAT => int(1),
            libc::SO_KEEPALIVE => flag(options.keepalive),
            libc::SO_OOBINLINE => flag(options.oob_inline),
            libc::SO_TIMESTAMPING => number(options.timestamping),
            libc::SO_ZEROCOPY => flag(options.zero_copy),
            libc::SO_MARK => number(options.mark),
            libc::SO_BROADCAST => flag(options.broadcast),
            libc::SO_TYPE => int(match self.kind {
                Kind::Stream => libc::SOCK_STREAM,
                Kind::Datagram => libc::SOCK_DGRAM,
            }),
            libc::SO_PROTOCOL => int(match self.kind {
                Kind::Stream => libc::IPPROTO_TCP,
                Kind::Datagram => libc::IPPROTO_UDP,
            }),
            libc::SO_DOMAIN => int(match self.domain {
                Domain::Inet => libc::AF_INET,
                Domain::Inet6 => libc::AF_INET6,
            }),
            libc::SO_ACCEPTCONN => flag(matches!(state.stage, Stage::Listening(_))),
            libc::SO_BINDTODEVICE => self.link_name(&state, room),
            SO_BINDTOIFINDEX => number(state.options.link.map_or(0, LinkId::scope_id)),
            SO_MEMINFO => Ok(self.memory_info(&state)),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    pub(super) fn get_ip(&self, state: &State, name: i32) -> Value {
        match name {
            libc::IP_FREEBIND => flag(state.options.free_bind),
            libc::IP_PKTINFO => flag(state.options.packet_info[0]),
            libc::IP_RECVERR => flag(state.options.receive_errors),
            libc::IP_TOS => int(i32::from(state.options.marks.traffic_class)),
            libc::IP_TTL => int(i32::from(state.options.marks.hop_limit.unwrap_or(HOPS))),
            libc::IP_MTU_DISCOVER => int(state.options.mtu_discover.unwrap_or(1)),
            libc::IP_MTU => int(self.path_mtu(state)?),
            name => get_ip_multicast(state, name),
        }
    }

    pub(super) fn get_ipv6(&self, state: &State, name: i32) -> Value {
        match name {
            libc::IPV6_V6ONLY => flag(state.options.v6_only),
            libc::IPV6_TCLASS => int(i32::from(state.options.marks.traffic_class)),
            libc::IPV6_UNICAST_HOPS => {
                int(i32::from(state.options.marks.hop_limit.unwrap_or(HOPS)))
            }
            libc::IPV6_RECVPKTINFO => flag(state.options.packet_info[1]),
            libc::IPV6_RECVERR => flag(state.options.receive_errors),
            libc::IPV6_MTU_DISCOVER => int(state.options.mtu_discover.unwrap_or(1)),
            libc::IPV6_MTU => int(self.path_mtu(state)?),
            name => get_ipv6_multicast(state, name),
        }
    }

    fn path_mtu(&self, state: &State) -> Result<i32, Errno> {
        let mtu = match (state.stage, state.stage.connection()) {
            (Stage::Datagram(id), _) => self.runtime.with_udp(id, |mut udp, _| udp.path_mtu()),
            (_, Some(id)) => self.runtime.with_tcp(id, |tcp, _| Ok(tcp.path_mtu())),
            (_, None) => Err(Errno::NOTCONN),
        };
        mtu.map(|mtu| mtu as i32)
    }

    pub(super) fn get_tcp(&self, state: &State, name: i32) -> Value {
        let options = &state.options;
        let keepalive = options.keepalive_times.unwrap_or_default();
        match name {
            libc::TCP_NODELAY => flag(options.no_delay),
            libc::TCP_CORK => flag(options.cork),
            libc::TCP_MAXSEG => int(match (self.info(state), options.max_seg) {
                (Some(info), _) => i32::from(info.send_mss),
                (None, Some(mss)) => i32::from(mss),
                (None, None) => DEFAULT_MSS,
            }),
            libc::TCP_KEEPIDLE => int(keepalive.idle.as_secs() as i32),
            libc::TCP_KEEPINTVL => int(keepalive.interval.as_secs() as i32),
            libc::TCP_KEEPCNT => int(i32::from(keepalive.probes)),
            libc::TCP_SYNCNT => {
                int(i32::from(options.syn_count.unwrap_or_else(|| self.default(|c| c.syn_retries))))
            }
            libc::TCP_DEFER_ACCEPT => int(options.defer_accept.as_secs() as i32),
            libc::TCP_LINGER2 => {
                let limit = options.linger2.unwrap_or_else(|| Some(self.default(|c| c.fin_wait2)));
                int(limit.map_or(-1, |limit| limit.as_secs() as i32))
            }
            libc::TCP_USER_TIMEOUT => {
                int(options.user_timeout.unwrap_or_default().as_millis() as i32)
            }
            TCP_NOTSENT_LOWAT => number(options.notsent_lowat),
            libc::TCP_WINDOW_CLAMP => number(match (options.window_clamp, self.info(state)) {
                (Some(clamp), _) => clamp,
                (None, Some(info)) => info.recv_buffer,
                (None, None) => 0,
            }),
            libc::TCP_QUICKACK => flag(true),
            TCP_INQ => flag(options.inq),
            TCP_FASTOPEN_CONNECT => flag(options.fast_open_connect),
            libc::TCP_FASTOPEN => number(options.fast_open_queue.unwrap_or(0)),
            TCP_FASTOPEN_NO_COOKIE => flag(options.fast_open_no_cookie),
            TCP_FASTOPEN_KEY => {
                let default = || self.runtime.with(|stack, _| stack.fast_open().keys());
                let keys = options.fast_open_keys.unwrap_or_else(default);
                Ok([Some(keys.primary()), keys.backup()].into_iter().flatten().flatten().collect())
            }
            libc::TCP_CONGESTION => {
                let name: &[u8] = match self.congestion(state) {
                    CongestionKind::Cubic => b"cubic",
                    CongestionKind::NewReno => b"reno",
                };
                let mut value = name.to_vec();
                value.resize(NAME_MAX, 0);
                Ok(value)
            }
            libc::TCP_INFO => Ok(match state.stage {
                Stage::Closed => tcp_info(&TcpInfo::default(), false, 0),
                Stage::Listening(_) => tcp_info(&TcpInfo::default(), true, 0),
                _ => {
                    let headers = self.header_bytes(state);
                    tcp_info(&self.info(state).ok_or(Errno::NOTCONN)?, false, headers)
                }
            }),
            // Neither CUBIC nor NewReno has any, as in Linux.
            TCP_CC_INFO => Ok(Vec::new()),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    /// Bytes of the IP and TCP headers of the connection's version.
    fn header_bytes(&self, state: &State) -> u32 {
        let local = state.stage.id().map(|id| self.runtime.with(|stack, _| stack.local_addr(id)));
        match local {
            Some(Ok(addr)) if addr.is_ipv6() => 60,
            _ => 40,
        }
    }

    /// The stack's setting, for sockets without one of their own.
    fn default<T>(&self, setting: impl FnOnce(&TcpConfig) -> T) -> T {
        self.runtime.with(|stack, _| setting(&stack.default_config()))
    }

    fn info(&self, state: &State) -> Option<TcpInfo> {
        let id = state.stage.connection()?;
        self.runtime.with_tcp(id, |tcp, now| Ok(tcp.info_at(now))).ok()
    }

    fn congestion(&self, state: &State) -> CongestionKind {
        let set = || state.options.congestion.unwrap_or_else(|| self.default(|c| c.congestion));
        self.info(state).map_or_else(set, |info| info.congestion)
    }

    fn send_buffer(&self, state: &State) -> u32 {
        let default = || self.default(|c| c.send_buffer_initial);
        let current = || match self.kind {
            Kind::Stream => self.info(state).map_or_else(default, |info| info.send_buffer),
            Kind::Datagram => DATAGRAM_BUFFER,
        };
        state.options.send_buffer.unwrap_or_else(current)
    }

    fn receive_buffer(&self, state: &State) -> u32 {
        let default = || self.default(|c| c.recv_buffer_initial);
        let current = || match self.kind {
            Kind::Stream => self.info(state).map_or_else(default, |info| info.recv_buffer),
            Kind::Datagram => UDP_RECEIVE_BYTES as u32,
        };
        state.options.receive_buffer.unwrap_or_else(current)
    }

    /// `SO_MEMINFO`: nine numbers in the order of Linux.
    fn memory_info(&self, state: &State) -> Vec<u8> {
        let (received, queued) = match state.stage.connection() {
            Some(id) => self
                .runtime
                .with_tcp(id, |tcp, _| Ok((tcp.queued(), tcp.queued_send().0)))
                .unwrap_or_default(),
            None => (0, 0),
        };
        let (received, queued) = (received as u32, queued as u32);
        let buffers = (self.receive_buffer(state), self.send_buffer(state));
        [received, buffers.0, 0, buffers.1, 0, queued, 0, 0, 0]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect()
    }

    /// The error that was not reported yet, once.
    fn take_error(&self) -> Option<Errno> {
        let mut state = self.lock();
        if let Some(error) = state.error.take() {
            return Some(error);
        }
        let id = state.stage.id()?;
        self.runtime
            .with(|stack, _| {
                let failed = stack.readiness(id).is_ok_and(|r| r.contains(Readiness::ERROR));
                failed.then(|| stack.take_error(id)).flatten()
            })
            .map(errno)
    }
}

fn timeout(limit: Option<Duration>) -> Value {
    let limit = limit.unwrap_or_default();
    let words = [limit.as_secs(), u64::from(limit.subsec_micros())];
    Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
}
