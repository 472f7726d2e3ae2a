//! setsockopt.

use std::time::Duration;

use pagewire_stack::limits::UDP_RECEIVE_BYTES;
use pagewire_stack::{
    CongestionKind, FastOpenKeys, FastOpenMode, KeepAlive, PacketMarks, SocketId, SocketOption,
    Stack, TcpOption, defer_accept_time, defer_accept_timeouts,
};

use crate::address::Domain;
use crate::backend::Backend;
use crate::descriptors::Descriptors;
use crate::limits::{BUFFER_MAX, MIN_RECEIVE_BUFFER, MIN_SEND_BUFFER};
use crate::options::{
    Options, SO_BINDTOIFINDEX, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE,
    TCP_INQ, TCP_NOTSENT_LOWAT, UDP_GRO, UDP_SEGMENT, set_zerocopy,
};
use crate::socket::{Kind, Socket, Stage, State};
use crate::{Errno, Fd, errno};

pub(super) type Done = Result<(), Errno>;

/// Range of `TCP_MAXSEG` (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MAX_SEG: core::ops::RangeInclusive<i32> = 88..=32_767;
/// Largest `TCP_KEEPIDLE` and `TCP_KEEPINTVL` in seconds, `TCP_KEEPCNT` and `TCP_SYNCNT`.
const MAX_KEEPALIVE_SECONDS: i32 = 32_767;
const MAX_PROBES: i32 = 127;
/// Largest `TCP_LINGER2` in seconds.
const MAX_LINGER2: i32 = 120;

impl<B: Backend> Descriptors<B> {
    /// Sets an option; `value` is as C lays it out, and may be longer than that.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for options that sockets here do not have, `EINVAL` for a value that is too
    /// short or out of range, and what single options say.
    pub fn setsockopt(&self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let held = self.file(fd)?;
        let socket = held.socket()?;
        match (level, socket.kind) {
            (libc::SOL_SOCKET, _) => self.set_socket(socket, name, value),
            (libc::IPPROTO_TCP, Kind::Stream) => self.set_tcp(socket, name, value),
            (libc::IPPROTO_UDP, Kind::Datagram) => self.set_udp(socket, name, value),
            (libc::IPPROTO_IP, _) => self.set_ip(socket, name, value),
            (libc::IPPROTO_IPV6, _) if socket.domain == Domain::Inet6 => {
                self.set_ipv6(socket, name, value)
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set_socket(&self, socket: &Socket, name: i32, value: &[u8]) -> Done {
        match name {
            // Those that are no `int`.
            libc::SO_LINGER => {
                let (on, seconds) = (int(value)?, int(value.get(4..).unwrap_or_default())?);
                // Linux compares without sign: a negative time is a long one.
                let time = Duration::from_secs(u64::from(seconds as u32));
                let linger = (on != 0).then_some(time);
                return self.set_both(socket, TcpOption::Linger(linger), |o| o.linger = linger);
            }
            libc::SO_RCVTIMEO => {
                return remember(socket, timeout(value)?, |o, limit| o.receive_timeout = limit);
            }
            libc::SO_SNDTIMEO => {
                return remember(socket, timeout(value)?, |o, limit| o.send_timeout = limit);
            }
            libc::SO_BINDTODEVICE => return self.bind_to_name(socket, value),
            _ => {}
        }
        let value = int(value)?;
        let on = value != 0;
        match name {
            SO_BINDTOIFINDEX => self.bind_to_number(socket, value),
            libc::SO_REUSEADDR => remember(socket, on, |o, on| o.reuse_address = on),
            libc::SO_REUSEPORT => remember(socket, on, |o, on| o.reuse_port = on),
            libc::SO_SNDBUF => {
                // > Linux doubles the value; the least is two small packets. It compares without sign.
                let bytes = ((value as u32).min(BUFFER_MAX) * 2).max(MIN_SEND_BUFFER);
                let set = |o: &mut Options| o.send_buffer = Some(bytes);
                self.set_both(socket, TcpOption::SendBuffer(bytes), set)
            }
            libc::SO_RCVBUF => {
                let bytes = ((value as u32).min(BUFFER_MAX) * 2).max(MIN_RECEIVE_BUFFER);
                if socket.kind == Kind::Datagram {
                    return self.set_datagram_buffer(socket, bytes);
                }
                let set = |o: &mut Options| o.receive_buffer = Some(bytes);
                self.set_both(socket, TcpOption::RecvBuffer(bytes / 2), set)
            }
            libc::SO_RCVLOWAT => {
                let bytes = if value < 0 { i32::MAX as u32 } else { (value as u32).max(1) };
                // No more than the buffer can bring together.
                let fixed = socket.lock().options.receive_buffer.map(|bytes| bytes / 2);
                let window = || self.backend.with(|stack, _| stack.default_config().recv_buffer);
                let bytes = match socket.kind {
                    Kind::Stream => bytes.min(fixed.unwrap_or_else(window)),
                    Kind::Datagram => bytes,
                };
                let set = |o: &mut Options| o.receive_lowat = Some(bytes);
                self.set_both(socket, TcpOption::RcvLowat(bytes), set)
            }
            libc::SO_KEEPALIVE => {
                let times = socket.lock().options.keepalive_times.unwrap_or_default();
                let keepalive = TcpOption::KeepAlive(on.then_some(times));
                self.set_both(socket, keepalive, |o| o.keepalive = on)
            }
            libc::SO_OOBINLINE => {
                self.set_both(socket, TcpOption::OobInline(on), |o| o.oob_inline = on)
            }
            libc::SO_TIMESTAMPING => self.set_timestamping(socket, value),
            libc::SO_MARK => remember(socket, value as u32, |o, mark| o.mark = mark),
            libc::SO_ZEROCOPY => {
                let on = within(value, 0..=1)? == 1;
                let mut state = socket.lock();
                state.options.zero_copy = on;
                match state.stage.id() {
                    Some(id) => {
                        self.backend.with(|stack, _| set_zerocopy(stack, id, on)).map_err(errno)
                    }
                    None => Ok(()),
                }
            }
            libc::SO_BROADCAST => {
                let mut state = socket.lock();
                state.options.broadcast = on;
                self.tell_datagram(&state, |stack, id| {
                    stack.as_udp(id).map(|mut udp| udp.set_broadcast(on))
                })
            }
            // Read only.
            libc::SO_TYPE
            | libc::SO_PROTOCOL
            | libc::SO_DOMAIN
            | libc::SO_ERROR
            | libc::SO_ACCEPTCONN => Err(Errno::NOPROTOOPT),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set_ip(&self, socket: &Socket, name: i32, value: &[u8]) -> Done {
        if let Some(done) = self.set_ip_multicast(socket, name, value) {
            return done;
        }
        // > An `int`, or a `char` where there is no more; nothing is 0, but for these.
        let value = match value {
            [] if matches!(name, libc::IP_TTL | libc::IP_FREEBIND) => return Err(Errno::INVAL),
            [] => 0,
            [one] | [one, _] | [one, _, _] => i32::from(*one),
            _ => int(value)?,
        };
        match name {
            libc::IP_FREEBIND => remember(socket, value != 0, |o, on| o.free_bind = on),
            libc::IP_TOS => self.set_marks(socket, |marks| marks.traffic_class = value as u8),
            libc::IP_TTL => {
                let limit = match value {
                    -1 => None,
                    limit => Some(within(limit, 1..=255)? as u8),
                };
                self.set_marks(socket, |marks| marks.hop_limit = limit)
            }
            libc::IP_PKTINFO => remember(socket, value != 0, |o, on| o.packet_info[0] = on),
            libc::IP_RECVERR => self.set_receive_errors(socket, value != 0),
            libc::IP_MTU_DISCOVER => self.set_mtu_discover(socket, value),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set_ipv6(&self, socket: &Socket, name: i32, value: &[u8]) -> Done {
        if let Some(done) = self.set_ipv6_multicast(socket, name, value) {
            return done;
        }
        let value = int(value)?;
        match name {
            libc::IPV6_V6ONLY => {
                let mut state = socket.lock();
                if state.bound.is_some() || state.stage != Stage::Closed {
                    return Err(Errno::INVAL);
                }
                state.options.v6_only = value != 0;
                Ok(())
            }
            libc::IPV6_TCLASS => {
                let class = within(value, -1..=255)?.max(0) as u8;
                self.set_marks(socket, |marks| marks.traffic_class = class)
            }
            libc::IPV6_UNICAST_HOPS => {
                let limit = u8::try_from(within(value, -1..=255)?).ok();
                self.set_marks(socket, |marks| marks.hop_limit = limit)
            }
            libc::IPV6_RECVPKTINFO => remember(socket, value != 0, |o, on| o.packet_info[1] = on),
            libc::IPV6_RECVERR => self.set_receive_errors(socket, value != 0),
            libc::IPV6_MTU_DISCOVER => self.set_mtu_discover(socket, value),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set_receive_errors(&self, socket: &Socket, on: bool) -> Done {
        let mut state = socket.lock();
        state.options.receive_errors = on;
        match state.stage {
            Stage::Datagram(id) => self
                .backend
                .with(|stack, _| stack.udp(id).map(|mut udp| udp.queue_errors(on)))
                .map_err(errno),
            Stage::Connecting(_) | Stage::Connected(_) => {
                self.tell(&state, TcpOption::QueueErrors(on))
            }
            Stage::Closed | Stage::Listening(_) => Ok(()),
        }
    }

    /// What a datagram socket may queue has a limit of the stack's, which is what is read back then.
    fn set_datagram_buffer(&self, socket: &Socket, bytes: u32) -> Done {
        let bytes = bytes.min(UDP_RECEIVE_BYTES as u32);
        let mut state = socket.lock();
        state.options.receive_buffer = Some(bytes);
        match state.stage {
            Stage::Datagram(id) => self
                .backend
                .with(|stack, _| {
                    stack.udp(id).map(|mut udp| udp.set_receive_buffer(bytes as usize))
                })
                .map_err(errno),
            _ => Ok(()),
        }
    }

    /// The two bits of congestion notification are the stream's own.
    fn set_marks(&self, socket: &Socket, set: impl FnOnce(&mut PacketMarks)) -> Done {
        let mut state = socket.lock();
        let mut marks = state.options.marks;
        set(&mut marks);
        if socket.kind == Kind::Stream {
            marks.traffic_class &= !0b11;
        }
        state.options.marks = marks;
        match (state.stage, state.stage.id()) {
            (Stage::Listening(_), _) | (_, None) => Ok(()),
            (_, Some(id)) => self
                .backend
                .with(|stack, _| stack.set_option(id, SocketOption::Marks(marks)))
                .map_err(errno),
        }
    }

    fn set_mtu_discover(&self, socket: &Socket, value: i32) -> Done {
        let how = crate::options::mtu_discover(value).ok_or(Errno::INVAL)?;
        let mut state = socket.lock();
        state.options.mtu_discover = Some(value);
        let option = TcpOption::MtuDiscover(how);
        self.backend
            .with(|stack, now| match (state.stage, state.stage.connection()) {
                (Stage::Datagram(id), _) => stack.udp(id).map(|mut udp| udp.set_mtu_discover(how)),
                (_, Some(id)) => stack.tcp(id).and_then(|mut tcp| tcp.set_option(now, option)),
                (_, None) => Ok(()),
            })
            .map_err(errno)
    }

    fn set_udp(&self, socket: &Socket, name: i32, value: &[u8]) -> Done {
        let value = int(value)?;
        match name {
            UDP_SEGMENT => {
                let bytes = u16::try_from(value).map_err(|_| Errno::INVAL)?;
                let mut state = socket.lock();
                state.options.segment = bytes;
                let Some(id) = state.stage.id() else { return Ok(()) };
                self.backend
                    .with(|stack, _| stack.as_udp(id).map(|mut udp| udp.set_segment(bytes)))
                    .map_err(errno)
            }
            UDP_GRO => {
                let mut state = socket.lock();
                state.options.udp_join = value != 0;
                self.tell_datagram(&state, |stack, id| {
                    stack.as_udp(id).map(|mut udp| udp.set_join(value != 0))
                })
            }
            libc::UDP_CORK => {
                let mut state = socket.lock();
                state.options.udp_cork = value != 0;
                // As Linux, which does not tell whether that could be sent.
                if let (false, Some(id)) = (state.options.udp_cork, state.stage.id()) {
                    let _ = self
                        .backend
                        .with(|stack, now| stack.as_udp(id).and_then(|mut udp| udp.push(now)));
                }
                Ok(())
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set_tcp(&self, socket: &Socket, name: i32, value: &[u8]) -> Done {
        if name == libc::TCP_CONGESTION {
            return self.set_congestion(socket, value);
        }
        if name == TCP_FASTOPEN_KEY {
            return self.set_fast_open_key(socket, value);
        }
        let value = int(value)?;
        let on = value != 0;
        match name {
            TCP_FASTOPEN_CONNECT => {
                let on = within(value, 0..=1)? == 1;
                let mode = self.backend.with(|stack, _| stack.fast_open().mode());
                if !mode.contains(FastOpenMode::CLIENT) {
                    return Err(Errno::OPNOTSUPP);
                }
                let mut state = socket.lock();
                if state.stage != Stage::Closed {
                    return Err(Errno::INVAL);
                }
                state.options.fast_open_connect = on;
                Ok(())
            }
            libc::TCP_FASTOPEN => {
                let limit = u32::try_from(value).map_err(|_| Errno::INVAL)?;
                let set = |o: &mut Options| o.fast_open_queue = Some(limit);
                self.set_unconnected(socket, TcpOption::FastOpen(limit), set)
            }
            TCP_FASTOPEN_NO_COOKIE => {
                let on = within(value, 0..=1)? == 1;
                let set = |o: &mut Options| o.fast_open_no_cookie = on;
                self.set_unconnected(socket, TcpOption::FastOpenNoCookie(on), set)
            }
            libc::TCP_NODELAY => self.set_both(socket, TcpOption::NoDelay(on), |o| o.no_delay = on),
            libc::TCP_CORK => self.set_both(socket, TcpOption::Cork(on), |o| o.cork = on),
            libc::TCP_MAXSEG => {
                if value != 0 && !MAX_SEG.contains(&value) {
                    return Err(Errno::INVAL);
                }
                let mss = (value != 0).then_some(value as u16);
                self.set_both(socket, TcpOption::MaxSeg(mss), |o| o.max_seg = mss)
            }
            libc::TCP_KEEPIDLE => {
                let idle = seconds(value, MAX_KEEPALIVE_SECONDS)?;
                self.set_keepalive(socket, |times| times.idle = idle)
            }
            libc::TCP_KEEPINTVL => {
                let interval = seconds(value, MAX_KEEPALIVE_SECONDS)?;
                self.set_keepalive(socket, |times| times.interval = interval)
            }
            libc::TCP_KEEPCNT => {
                let probes = within(value, 1..=MAX_PROBES)? as u8;
                self.set_keepalive(socket, |times| times.probes = probes)
            }
            libc::TCP_SYNCNT => {
                let count = within(value, 1..=MAX_PROBES)? as u8;
                self.set_both(socket, TcpOption::SynCount(count), |o| o.syn_count = Some(count))
            }
            libc::TCP_DEFER_ACCEPT => {
                let time = Duration::from_secs(u64::try_from(value).unwrap_or(0));
                let time = defer_accept_time(defer_accept_timeouts(time));
                self.set_both(socket, TcpOption::DeferAccept(time), |o| o.defer_accept = time)
            }
            libc::TCP_LINGER2 => {
                // > A negative time: no waiting in FIN-WAIT-2 at all; 0: the system's.
                let limit = u64::try_from(value.min(MAX_LINGER2)).ok().map(Duration::from_secs);
                let default = self.backend.with(|stack, _| stack.default_config().fin_wait2);
                let effective = match limit {
                    Some(limit) if limit.is_zero() => default,
                    limit => limit.unwrap_or_default(),
                };
                let kept = (limit != Some(Duration::ZERO)).then_some(limit);
                self.set_both(socket, TcpOption::Linger2(effective), |o| o.linger2 = kept)
            }
            libc::TCP_USER_TIMEOUT => {
                let ms = u64::try_from(value).map_err(|_| Errno::INVAL)?;
                let limit = (ms > 0).then_some(Duration::from_millis(ms));
                self.set_both(socket, TcpOption::UserTimeout(limit), |o| o.user_timeout = limit)
            }
            TCP_NOTSENT_LOWAT => {
                let bytes = value as u32;
                // > 0: the system's.
                let default = |stack: &mut Stack, _| stack.default_config().notsent_lowat;
                let effective = if on { bytes } else { self.backend.with(default) };
                let set = |o: &mut Options| o.notsent_lowat = bytes;
                self.set_both(socket, TcpOption::NotSentLowat(effective), set)
            }
            libc::TCP_WINDOW_CLAMP => {
                let least = MIN_RECEIVE_BUFFER / 2;
                let clamp = match value {
                    0 if socket.stage() == Stage::Closed => None,
                    0 => return Err(Errno::INVAL),
                    bytes => Some((bytes as u32).max(least)),
                };
                self.set_both(socket, TcpOption::WindowClamp(clamp), |o| o.window_clamp = clamp)
            }
            libc::TCP_QUICKACK => self.tell(&socket.lock(), TcpOption::QuickAck(on)),
            TCP_INQ => match value {
                on @ 0..=1 => remember(socket, on == 1, |o, on| o.inq = on),
                _ => Err(Errno::INVAL),
            },
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    /// One key, or the present one and the one before.
    fn set_fast_open_key(&self, socket: &Socket, value: &[u8]) -> Done {
        let key = |at: usize| value.get(at..at + 16).and_then(|key| key.try_into().ok());
        let (first, second) = match value.len() {
            16 => (key(0), None),
            32 => (key(0), key(16)),
            _ => return Err(Errno::INVAL),
        };
        let keys = FastOpenKeys::new(first.ok_or(Errno::INVAL)?, second);
        let mut state = socket.lock();
        self.tell(&state, TcpOption::FastOpenKeys(Some(keys)))?;
        state.options.fast_open_keys = Some(keys);
        Ok(())
    }

    /// What makes sense before there is a connection only.
    fn set_unconnected(
        &self,
        socket: &Socket,
        option: TcpOption,
        remember: impl FnOnce(&mut Options),
    ) -> Done {
        match socket.stage() {
            Stage::Closed | Stage::Listening(_) => self.set_both(socket, option, remember),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_keepalive(&self, socket: &Socket, set: impl FnOnce(&mut KeepAlive)) -> Done {
        let mut state = socket.lock();
        let options = &mut state.options;
        let mut times = options.keepalive_times.unwrap_or_default();
        set(&mut times);
        options.keepalive_times = Some(times);
        if options.keepalive {
            self.tell(&state, TcpOption::KeepAlive(Some(times)))
        } else {
            Ok(())
        }
    }

    /// Of a connection too: it goes on with the window that it has.
    fn set_congestion(&self, socket: &Socket, value: &[u8]) -> Done {
        if value.is_empty() {
            return Err(Errno::INVAL);
        }
        let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
        let kind = match name {
            b"cubic" => CongestionKind::Cubic,
            // Linux's name, and the algorithm's.
            b"reno" | b"newreno" => CongestionKind::NewReno,
            _ => return Err(Errno::NOENT),
        };
        self.set_both(socket, TcpOption::Congestion(kind), |o| o.congestion = Some(kind))
    }

    /// Remembers a setting, and tells the listener or the connection, if there is one.
    fn set_both(
        &self,
        socket: &Socket,
        option: TcpOption,
        remember: impl FnOnce(&mut Options),
    ) -> Done {
        let mut state = socket.lock();
        if socket.kind == Kind::Stream {
            self.tell(&state, option)?;
        }
        remember(&mut state.options);
        Ok(())
    }

    /// Tells the stack's socket of a datagram socket, if there is one yet.
    pub(super) fn tell_datagram(
        &self,
        state: &State,
        verb: impl FnOnce(&mut Stack, SocketId) -> Result<(), pagewire_stack::Error>,
    ) -> Done {
        match state.stage {
            Stage::Datagram(id) => {
                self.backend.with(|stack, _| verb(stack, id.into())).map_err(errno)
            }
            _ => Ok(()),
        }
    }

    fn tell(&self, state: &State, option: TcpOption) -> Done {
        let set = |stack: &mut Stack, now| match (state.stage, state.stage.connection()) {
            (Stage::Listening(id), _) => stack.listener(id)?.set_option(option),
            (_, Some(id)) => stack.tcp(id)?.set_option(now, option),
            (_, None) => Ok(()),
        };
        match self.backend.with(set) {
            // Nothing that connections inherit.
            Err(pagewire_stack::Error::NotSupported) => Ok(()),
            done => done.map_err(errno),
        }
    }
}

fn remember<T>(socket: &Socket, value: T, set: impl FnOnce(&mut Options, T)) -> Done {
    set(&mut socket.lock().options, value);
    Ok(())
}

/// An `int` of C.
pub(super) fn int(value: &[u8]) -> Result<i32, Errno> {
    let bytes = value.get(..4).and_then(|v| v.try_into().ok()).ok_or(Errno::INVAL)?;
    Ok(i32::from_ne_bytes(bytes))
}

pub(super) fn within(value: i32, range: core::ops::RangeInclusive<i32>) -> Result<i32, Errno> {
    if range.contains(&value) { Ok(value) } else { Err(Errno::INVAL) }
}

fn seconds(value: i32, most: i32) -> Result<Duration, Errno> {
    Ok(Duration::from_secs(within(value, 1..=most)? as u64))
}

/// A `struct timeval`; all zero is no limit.
fn timeout(value: &[u8]) -> Result<Option<Duration>, Errno> {
    let word = |at: usize| {
        let bytes = value.get(at..at + 8).and_then(|v| v.try_into().ok()).ok_or(Errno::INVAL)?;
        Ok(i64::from_ne_bytes(bytes))
    };
    let (seconds, micros) = (word(0)?, word(8)?);
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::DOM);
    }
    if seconds < 0 {
        // Linux: no waiting at all.
        return Ok(Some(Duration::ZERO));
    }
    let limit = Duration::new(seconds as u64, micros as u32 * 1000);
    Ok((!limit.is_zero()).then_some(limit))
}
