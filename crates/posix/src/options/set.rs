//! Setting options.

use std::time::Duration;

use pagewire_stack::limits::UDP_RECEIVE_BYTES;
use pagewire_stack::{
    CongestionKind, FastOpenKeys, FastOpenMode, KeepAlive, PacketMarks, SocketOption, Stack,
    TcpOption, defer_accept_time, defer_accept_timeouts,
};

use super::call::{Done, SocketOptions};
use crate::backend::Backend;
use crate::file::socket::{Kind, Stage};
use crate::limits::{BUFFER_MAX, MIN_RECEIVE_BUFFER, MIN_SEND_BUFFER};
use crate::options::{
    Options, SO_BINDTOIFINDEX, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE,
    TCP_INQ, TCP_NOTSENT_LOWAT, UDP_GRO, UDP_SEGMENT, mtu_discover, set_zerocopy,
};
use crate::{Errno, errno};

/// Range of `TCP_MAXSEG` (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MAX_SEG: core::ops::RangeInclusive<i32> = 88..=32_767;
/// Largest `TCP_KEEPIDLE` and `TCP_KEEPINTVL` in seconds, `TCP_KEEPCNT` and `TCP_SYNCNT`.
const MAX_KEEPALIVE_SECONDS: i32 = 32_767;
const MAX_PROBES: i32 = 127;
/// Largest `TCP_LINGER2` in seconds.
const MAX_LINGER2: i32 = 120;

impl<B: Backend> SocketOptions<'_, B> {
    pub(super) fn set_socket(&self, name: i32, value: &[u8]) -> Done {
        match name {
            // Those that are no `int`.
            libc::SO_LINGER => {
                let (on, seconds) = (int(value)?, int(value.get(4..).unwrap_or_default())?);
                // Linux compares without sign: a negative time is a long one.
                let time = Duration::from_secs(u64::from(seconds as u32));
                let linger = (on != 0).then_some(time);
                return self.set(TcpOption::Linger(linger), |o| o.linger = linger);
            }
            libc::SO_RCVTIMEO => {
                let limit = timeout(value)?;
                return self.remember(|o| o.receive_timeout = limit);
            }
            libc::SO_SNDTIMEO => {
                let limit = timeout(value)?;
                return self.remember(|o| o.send_timeout = limit);
            }
            libc::SO_BINDTODEVICE => return self.bind_to_name(value),
            _ => {}
        }
        let value = int(value)?;
        let on = value != 0;
        match name {
            SO_BINDTOIFINDEX => self.bind_to_number(value),
            libc::SO_REUSEADDR => self.remember(|o| o.reuse_address = on),
            libc::SO_REUSEPORT => self.remember(|o| o.reuse_port = on),
            libc::SO_SNDBUF => {
                let bytes = buffer(value, MIN_SEND_BUFFER);
                self.set(TcpOption::SendBuffer(bytes), |o| o.send_buffer = Some(bytes))
            }
            libc::SO_RCVBUF => self.set_receive_buffer(buffer(value, MIN_RECEIVE_BUFFER)),
            libc::SO_RCVLOWAT => {
                self.set_lowat(if value < 0 { i32::MAX as u32 } else { (value as u32).max(1) })
            }
            libc::SO_KEEPALIVE => {
                let times = self.lock().options.keepalive_times.unwrap_or_default();
                self.set(TcpOption::KeepAlive(on.then_some(times)), |o| o.keepalive = on)
            }
            libc::SO_OOBINLINE => self.set(TcpOption::OobInline(on), |o| o.oob_inline = on),
            libc::SO_TIMESTAMPING => self.set_timestamping(value),
            libc::SO_MARK => self.remember(|o| o.mark = value as u32),
            libc::SO_ZEROCOPY => {
                let on = flag(value)?;
                let mut state = self.lock();
                state.options.zero_copy = on;
                let Some(id) = state.stage.id() else { return Ok(()) };
                self.runtime.with(|stack, _| set_zerocopy(stack, id, on)).map_err(errno)
            }
            libc::SO_BROADCAST => {
                self.set_datagram(|o| o.broadcast = on, |_, mut udp| udp.set_broadcast(on))
            }
            // Those that are only read are among them, as in Linux.
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set_receive_buffer(&self, bytes: u32) -> Done {
        if self.kind == Kind::Datagram {
            // The stack limits what a datagram socket queues, and that is what is read back.
            let bytes = bytes.min(UDP_RECEIVE_BYTES as u32);
            let remember = |o: &mut Options| o.receive_buffer = Some(bytes);
            return self
                .set_datagram(remember, |_, mut udp| udp.set_receive_buffer(bytes as usize));
        }
        self.set(TcpOption::RecvBuffer(bytes / 2), |o| o.receive_buffer = Some(bytes))
    }

    fn set_lowat(&self, bytes: u32) -> Done {
        // No more than the buffer can bring together.
        let fixed = self.lock().options.receive_buffer.map(|bytes| bytes / 2);
        let window = || self.runtime.with(|stack, _| stack.default_config().recv_buffer);
        let bytes = match self.kind {
            Kind::Stream => bytes.min(fixed.unwrap_or_else(window)),
            Kind::Datagram => bytes,
        };
        self.set(TcpOption::RcvLowat(bytes), |o| o.receive_lowat = Some(bytes))
    }

    pub(super) fn set_ip(&self, name: i32, value: &[u8]) -> Done {
        if let Some(done) = self.set_ip_multicast(name, value) {
            return done;
        }
        // > Nothing is 0, but for these.
        let value = match value {
            [] if !matches!(name, libc::IP_TTL | libc::IP_FREEBIND) => 0,
            value => int_or_char(value)?,
        };
        match name {
            libc::IP_FREEBIND => self.remember(|o| o.free_bind = value != 0),
            libc::IP_TOS => self.set_marks(|marks| marks.traffic_class = value as u8),
            libc::IP_TTL => {
                let limit = match value {
                    -1 => None,
                    limit => Some(within(limit, 1..=255)? as u8),
                };
                self.set_marks(|marks| marks.hop_limit = limit)
            }
            libc::IP_PKTINFO => self.remember(|o| o.packet_info[0] = value != 0),
            libc::IP_RECVERR => self.set_receive_errors(value != 0),
            libc::IP_MTU_DISCOVER => self.set_mtu_discover(value),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    pub(super) fn set_ipv6(&self, name: i32, value: &[u8]) -> Done {
        if let Some(done) = self.set_ipv6_multicast(name, value) {
            return done;
        }
        let value = int(value)?;
        match name {
            libc::IPV6_V6ONLY => {
                let mut state = self.lock();
                if state.bound.is_some() || state.stage != Stage::Closed {
                    return Err(Errno::INVAL);
                }
                state.options.v6_only = value != 0;
                Ok(())
            }
            libc::IPV6_TCLASS => {
                let class = within(value, -1..=255)?.max(0) as u8;
                self.set_marks(|marks| marks.traffic_class = class)
            }
            libc::IPV6_UNICAST_HOPS => {
                let limit = u8::try_from(within(value, -1..=255)?).ok();
                self.set_marks(|marks| marks.hop_limit = limit)
            }
            libc::IPV6_RECVPKTINFO => self.remember(|o| o.packet_info[1] = value != 0),
            libc::IPV6_RECVERR => self.set_receive_errors(value != 0),
            libc::IPV6_MTU_DISCOVER => self.set_mtu_discover(value),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set_receive_errors(&self, on: bool) -> Done {
        let mut state = self.lock();
        state.options.receive_errors = on;
        match state.stage {
            Stage::Datagram(id) => self.runtime.with_udp(id, |mut udp, _| {
                udp.queue_errors(on);
                Ok(())
            }),
            Stage::Connecting(_) | Stage::Connected(_) => {
                self.set_stream(&state, TcpOption::QueueErrors(on))
            }
            Stage::Closed | Stage::Listening(_) => Ok(()),
        }
    }

    /// The two bits of congestion notification are the stream's own.
    fn set_marks(&self, set: impl FnOnce(&mut PacketMarks)) -> Done {
        let mut state = self.lock();
        let mut marks = state.options.marks;
        set(&mut marks);
        if self.kind == Kind::Stream {
            marks.traffic_class &= !0b11;
        }
        state.options.marks = marks;
        match state.stage.id() {
            Some(id) if !matches!(state.stage, Stage::Listening(_)) => self
                .runtime
                .with(|stack, _| stack.set_option(id, SocketOption::Marks(marks)))
                .map_err(errno),
            _ => Ok(()),
        }
    }

    fn set_mtu_discover(&self, value: i32) -> Done {
        let how = mtu_discover(value).ok_or(Errno::INVAL)?;
        let option = TcpOption::MtuDiscover(how);
        let mut state = self.lock();
        state.options.mtu_discover = Some(value);
        let set = |stack: &mut Stack, now| match (state.stage, state.stage.connection()) {
            (Stage::Datagram(id), _) => stack.udp(id).map(|mut udp| udp.set_mtu_discover(how)),
            (_, Some(id)) => stack.tcp(id)?.set_option(now, option),
            (_, None) => Ok(()),
        };
        self.runtime.with(set).map_err(errno)
    }

    pub(super) fn set_udp(&self, name: i32, value: &[u8]) -> Done {
        let value = int(value)?;
        let on = value != 0;
        match name {
            UDP_SEGMENT => {
                let bytes = u16::try_from(value).map_err(|_| Errno::INVAL)?;
                self.set_datagram(|o| o.segment = bytes, |_, mut udp| udp.set_segment(bytes))
            }
            UDP_GRO => self.set_datagram(|o| o.udp_join = on, |_, mut udp| udp.set_join(on)),
            libc::UDP_CORK => {
                let mut state = self.lock();
                state.options.udp_cork = on;
                if let (false, Stage::Datagram(id)) = (on, state.stage) {
                    // As Linux, which does not report whether that could be sent.
                    let _ = self.runtime.with_udp(id, |mut udp, now| udp.push(now));
                }
                Ok(())
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    pub(super) fn set_tcp(&self, name: i32, value: &[u8]) -> Done {
        match name {
            libc::TCP_CONGESTION => return self.set_congestion(value),
            TCP_FASTOPEN_KEY => return self.set_fast_open_key(value),
            _ => {}
        }
        let value = int(value)?;
        let on = value != 0;
        match name {
            libc::TCP_NODELAY => self.set(TcpOption::NoDelay(on), |o| o.no_delay = on),
            libc::TCP_CORK => self.set(TcpOption::Cork(on), |o| o.cork = on),
            libc::TCP_QUICKACK => self.set_stream(&self.lock(), TcpOption::QuickAck(on)),
            TCP_INQ => flag(value).and_then(|on| self.remember(|o| o.inq = on)),
            libc::TCP_MAXSEG => {
                if value != 0 && !MAX_SEG.contains(&value) {
                    return Err(Errno::INVAL);
                }
                let mss = (value != 0).then_some(value as u16);
                self.set(TcpOption::MaxSeg(mss), |o| o.max_seg = mss)
            }
            TCP_NOTSENT_LOWAT => {
                let bytes = value as u32;
                // > 0: the system's.
                let default = || self.runtime.with(|stack, _| stack.default_config().notsent_lowat);
                let effective = if on { bytes } else { default() };
                self.set(TcpOption::NotSentLowat(effective), |o| o.notsent_lowat = bytes)
            }
            libc::TCP_WINDOW_CLAMP => {
                let clamp = match value {
                    0 if self.stage() == Stage::Closed => None,
                    0 => return Err(Errno::INVAL),
                    bytes => Some((bytes as u32).max(MIN_RECEIVE_BUFFER / 2)),
                };
                self.set(TcpOption::WindowClamp(clamp), |o| o.window_clamp = clamp)
            }
            TCP_FASTOPEN_CONNECT | libc::TCP_FASTOPEN | TCP_FASTOPEN_NO_COOKIE => {
                self.set_fast_open(name, value)
            }
            _ => self.set_time(name, value),
        }
    }

    fn set_fast_open(&self, name: i32, value: i32) -> Done {
        if name == libc::TCP_FASTOPEN {
            let limit = u32::try_from(value).map_err(|_| Errno::INVAL)?;
            let remember = |o: &mut Options| o.fast_open_queue = Some(limit);
            return self.set_unconnected(TcpOption::FastOpen(limit), remember);
        }
        let on = flag(value)?;
        if name == TCP_FASTOPEN_NO_COOKIE {
            let remember = |o: &mut Options| o.fast_open_no_cookie = on;
            return self.set_unconnected(TcpOption::FastOpenNoCookie(on), remember);
        }
        let mode = self.runtime.with(|stack, _| stack.fast_open().mode());
        if !mode.contains(FastOpenMode::CLIENT) {
            return Err(Errno::OPNOTSUPP);
        }
        let mut state = self.lock();
        if state.stage != Stage::Closed {
            return Err(Errno::INVAL);
        }
        state.options.fast_open_connect = on;
        Ok(())
    }

    /// Sets times of a connection, and how often it tries.
    fn set_time(&self, name: i32, value: i32) -> Done {
        match name {
            libc::TCP_KEEPIDLE => {
                let idle = seconds(value, MAX_KEEPALIVE_SECONDS)?;
                self.set_keepalive(|times| times.idle = idle)
            }
            libc::TCP_KEEPINTVL => {
                let interval = seconds(value, MAX_KEEPALIVE_SECONDS)?;
                self.set_keepalive(|times| times.interval = interval)
            }
            libc::TCP_KEEPCNT => {
                let probes = within(value, 1..=MAX_PROBES)? as u8;
                self.set_keepalive(|times| times.probes = probes)
            }
            libc::TCP_SYNCNT => {
                let count = within(value, 1..=MAX_PROBES)? as u8;
                self.set(TcpOption::SynCount(count), |o| o.syn_count = Some(count))
            }
            libc::TCP_DEFER_ACCEPT => {
                let time = Duration::from_secs(u64::try_from(value).unwrap_or(0));
                let time = defer_accept_time(defer_accept_timeouts(time));
                self.set(TcpOption::DeferAccept(time), |o| o.defer_accept = time)
            }
            libc::TCP_LINGER2 => {
                // > A negative time: no waiting in FIN-WAIT-2 at all; 0: the system's.
                let limit = u64::try_from(value.min(MAX_LINGER2)).ok().map(Duration::from_secs);
                let default = || self.runtime.with(|stack, _| stack.default_config().fin_wait2);
                let effective = match limit {
                    Some(limit) if limit.is_zero() => default(),
                    limit => limit.unwrap_or_default(),
                };
                let kept = (limit != Some(Duration::ZERO)).then_some(limit);
                self.set(TcpOption::Linger2(effective), |o| o.linger2 = kept)
            }
            libc::TCP_USER_TIMEOUT => {
                let ms = u64::try_from(value).map_err(|_| Errno::INVAL)?;
                let limit = (ms > 0).then_some(Duration::from_millis(ms));
                self.set(TcpOption::UserTimeout(limit), |o| o.user_timeout = limit)
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    /// One key, or the present one and the one before.
    fn set_fast_open_key(&self, value: &[u8]) -> Done {
        let key = |at: usize| value.get(at..at + 16).and_then(|key| key.try_into().ok());
        let (first, second) = match value.len() {
            16 => (key(0), None),
            32 => (key(0), key(16)),
            _ => return Err(Errno::INVAL),
        };
        let keys = FastOpenKeys::new(first.ok_or(Errno::INVAL)?, second);
        let mut state = self.lock();
        self.set_stream(&state, TcpOption::FastOpenKeys(Some(keys)))?;
        state.options.fast_open_keys = Some(keys);
        Ok(())
    }

    /// Sets what only makes sense before there is a connection.
    fn set_unconnected(&self, option: TcpOption, remember: impl FnOnce(&mut Options)) -> Done {
        match self.stage() {
            Stage::Closed | Stage::Listening(_) => self.set(option, remember),
            _ => Err(Errno::INVAL),
        }
    }

    fn set_keepalive(&self, set: impl FnOnce(&mut KeepAlive)) -> Done {
        let mut state = self.lock();
        let options = &mut state.options;
        let mut times = options.keepalive_times.unwrap_or_default();
        set(&mut times);
        options.keepalive_times = Some(times);
        if options.keepalive {
            self.set_stream(&state, TcpOption::KeepAlive(Some(times)))
        } else {
            Ok(())
        }
    }

    /// A connection goes on with the window that it has.
    fn set_congestion(&self, value: &[u8]) -> Done {
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
        self.set(TcpOption::Congestion(kind), |o| o.congestion = Some(kind))
    }
}

/// An `int` of C.
pub(super) fn int(value: &[u8]) -> Result<i32, Errno> {
    let bytes = value.get(..4).and_then(|v| v.try_into().ok()).ok_or(Errno::INVAL)?;
    Ok(i32::from_ne_bytes(bytes))
}

pub(super) fn within(value: i32, range: core::ops::RangeInclusive<i32>) -> Result<i32, Errno> {
    if range.contains(&value) { Ok(value) } else { Err(Errno::INVAL) }
}

/// A value that is 0 or 1.
pub(super) fn flag(value: i32) -> Result<bool, Errno> {
    Ok(within(value, 0..=1)? == 1)
}

fn seconds(value: i32, most: i32) -> Result<Duration, Errno> {
    Ok(Duration::from_secs(within(value, 1..=most)? as u64))
}

/// An `int`, or a `char` where there is no more.
pub(super) fn int_or_char(value: &[u8]) -> Result<i32, Errno> {
    match value {
        [] => Err(Errno::INVAL),
        [one] | [one, _] | [one, _, _] => Ok(i32::from(*one)),
        _ => int(value),
    }
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

/// > Linux doubles the size of a buffer; the least is two small packets. It compares without sign.
fn buffer(value: i32, least: u32) -> u32 {
    ((value as u32).min(BUFFER_MAX) * 2).max(least)
}
