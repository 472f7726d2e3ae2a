//! setsockopt and getsockopt. Most options are rows of the stack's table ([`LinuxOption`]). This folder has
//! what only descriptors do, and names that stand for verbs (groups) and for a socket's state.

mod groups;
mod info;
mod link;
mod timestamping;

use pagewire_stack::limits::UDP_RECEIVE_BYTES;
use pagewire_stack::{
    FastOpenMode, LinuxOption, OptionName, Readiness, SocketOption, TcpInfo, option,
};

use super::{Descriptors, SocketCall};
use crate::address::Domain;
use crate::backend::Backend;
use crate::file::socket::{Kind, Stage, State};
use crate::limits::DATAGRAM_BUFFER;
use crate::{Errno, Fd, errno};
use info::tcp_info;
pub(super) use timestamping::{info_and_data, put_timestamp, returns_payload};

/// Numbers that `libc` does not name.
const TCP_CC_INFO: i32 = 26;
const SO_MEMINFO: i32 = 55;
const SO_BINDTOIFINDEX: i32 = 62;

/// The MSS of a connection that has none yet (`TCP_MSS_DEFAULT`).
const DEFAULT_MSS: u16 = 536;

type Done = Result<(), Errno>;
/// An option's value, as C lays it out.
type Value = Result<Vec<u8>, Errno>;

impl<B: Backend> Descriptors<B> {
    /// Sets an option; `value` is as C lays it out, and may be longer than that.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for options that sockets here do not have, `EINVAL` for a value that is too
    /// short or out of range, and those of single options.
    pub fn setsockopt(&self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        call.check_level(level)?;
        call.set_option(level, name, value)
    }

    /// Writes an option's value to the front of `out`, cut if it is longer; returns how many bytes.
    /// `TCP_ZEROCOPY_RECEIVE` is [`zerocopy_receive`](Self::zerocopy_receive)'s.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for options that sockets here do not have, `ENOTCONN` for what only a
    /// connection has.
    pub fn getsockopt(
        &self,
        fd: Fd,
        level: i32,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let file = self.file(fd)?;
        let call = file.socket()?;
        call.check_level(level)?;
        let value = call.option(level, name, out.len())?;
        let n = value.len().min(out.len());
        out[..n].copy_from_slice(&value[..n]);
        Ok(n)
    }
}

impl<B: Backend> SocketCall<'_, B> {
    fn check_level(&self, level: i32) -> Done {
        match (level, self.kind) {
            (libc::SOL_SOCKET | libc::IPPROTO_IP, _)
            | (libc::IPPROTO_TCP, Kind::Stream)
            | (libc::IPPROTO_UDP, Kind::Datagram) => Ok(()),
            (libc::IPPROTO_IPV6, _) if self.domain == Domain::Inet6 => Ok(()),
            _ => Err(Errno::NOPROTOOPT),
        }
    }

    fn set_option(&self, level: i32, name: i32, value: &[u8]) -> Done {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) => return self.bind_to_name(value),
            (libc::SOL_SOCKET, SO_BINDTOIFINDEX) => return self.bind_to_number(value),
            _ => {}
        }
        if let Some(done) = self.set_group_option(level, name, value) {
            return done;
        }
        // As Linux, which has read an `int` when it finds that there is no such option.
        let is_short = level != libc::IPPROTO_IP && value.len() < size_of::<i32>();
        let unknown = if is_short { Errno::INVAL } else { Errno::NOPROTOOPT };
        let linux = LinuxOption::find(level, name).ok_or(unknown)?;
        let option = (linux.read)(value).map_err(Errno::from_raw_os_error)?;
        let mut state = self.lock();
        // > 0: the system's.
        let has_default = matches!(linux.name, OptionName::Linger2 | OptionName::NotSentLowat);
        if has_default && value.starts_with(&[0; 4]) {
            let default = self.runtime.with(|stack, _| stack.default_option(linux.name));
            self.put(&mut state, default)?;
            state.options.unset(linux.name);
            return Ok(());
        }
        let option = self.adapted(&state, option)?;
        self.put(&mut state, option)?;
        match option {
            SocketOption::ZeroCopy(_) => {
                // Notifications are merged by their numbers, as on Linux.
                let coalescing = SocketOption::Coalescing(Some(pagewire_stack::Coalescing::Linux));
                self.put(&mut state, coalescing)
            }
            SocketOption::KeepIdle(_)
            | SocketOption::KeepInterval(_)
            | SocketOption::KeepCount(_)
                if state.options.value(option::KeepAlive).is_some() =>
            {
                let keepalive = Some(state.options.keepalive());
                self.put(&mut state, SocketOption::KeepAlive(keepalive))
            }
            SocketOption::UdpCork(false) => {
                if let Stage::Datagram(id) = state.stage {
                    // As Linux, which does not report whether that could be sent.
                    let _ = self.runtime.with_udp(id, |mut udp, now| udp.push(now));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The option that a value means to this socket.
    fn adapted(&self, state: &State, option: SocketOption) -> Result<SocketOption, Errno> {
        use SocketOption as O;
        let is_stream = self.kind == Kind::Stream;
        Ok(match option {
            // Half of a stream's buffer is bookkeeping. The stack limits what a datagram socket queues.
            O::RecvBuffer(bytes) if is_stream => O::RecvBuffer(bytes / 2),
            O::RecvBuffer(bytes) => O::RecvBuffer(bytes.min(UDP_RECEIVE_BYTES as u32)),
            // No more than the buffer can bring together.
            O::RcvLowat(bytes) if is_stream => {
                let window = || self.runtime.with(|stack, _| stack.default_config().recv_buffer);
                O::RcvLowat(bytes.min(state.options.get(option::RecvBuffer).unwrap_or_else(window)))
            }
            // The two bits of congestion notification are the stream's own.
            O::TrafficClass(class) if is_stream => O::TrafficClass(class & !0b11),
            O::KeepAlive(Some(_)) => O::KeepAlive(Some(state.options.keepalive())),
            O::WindowClamp(None) if state.stage != Stage::Closed => return Err(Errno::INVAL),
            // Options that make sense only before there is a connection.
            O::FastOpen(_) | O::FastOpenNoCookie(_) if state.stage.connection().is_some() => {
                return Err(Errno::INVAL);
            }
            O::FastOpenConnect(_) => {
                let mode = self.runtime.with(|stack, _| stack.fast_open().mode());
                match state.stage {
                    _ if !mode.contains(FastOpenMode::CLIENT) => return Err(Errno::OPNOTSUPP),
                    Stage::Closed => option,
                    _ => return Err(Errno::INVAL),
                }
            }
            O::V6Only(_) if state.bound.is_some() || state.stage != Stage::Closed => {
                return Err(Errno::INVAL);
            }
            O::Timestamping(bits) => self.set_timestamping(state, bits).map(|()| option)?,
            _ => option,
        })
    }

    /// Sets an option of the stack's socket, if there is one that has it, and remembers it.
    fn put(&self, state: &mut State, option: SocketOption) -> Done {
        if let Some(id) = state.stage.id() {
            let connection = state.stage.connection();
            let done = self.runtime.with(|stack, now| match connection {
                Some(id) => stack.tcp(id)?.set_option(now, option),
                None => stack.set_option(id, option),
            });
            match done {
                Ok(()) | Err(pagewire_stack::Error::NotSupported) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        // A connection decides anew.
        if !matches!(option, SocketOption::QuickAck(_)) {
            state.options.set(option);
        }
        Ok(())
    }

    fn option(&self, level: i32, name: i32, room: usize) -> Value {
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
            return int(self.take_error().map_or(0, Errno::raw_os_error));
        }
        let state = self.lock();
        if level == libc::SOL_SOCKET {
            return match name {
                libc::SO_SNDLOWAT => int(1),
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
                libc::SO_ACCEPTCONN => int(matches!(state.stage, Stage::Listening(_)).into()),
                libc::SO_BINDTODEVICE => self.link_name(&state, room),
                SO_MEMINFO => Ok(self.memory_info(&state)),
                _ => self.value(&state, level, name),
            };
        }
        match (level, name) {
            (libc::IPPROTO_IP, libc::IP_MTU) | (libc::IPPROTO_IPV6, libc::IPV6_MTU) => {
                int(self.path_mtu(&state)?)
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => Ok(match state.stage {
                Stage::Closed => tcp_info(&TcpInfo::default(), false, 0),
                Stage::Listening(_) => tcp_info(&TcpInfo::default(), true, 0),
                _ => {
                    let headers = self.header_bytes(&state);
                    tcp_info(&self.info(&state).ok_or(Errno::NOTCONN)?, false, headers)
                }
            }),
            // Neither CUBIC nor NewReno has any, as in Linux.
            (libc::IPPROTO_TCP, TCP_CC_INFO) => Ok(Vec::new()),
            _ => self.value(&state, level, name),
        }
    }

    fn value(&self, state: &State, level: i32, name: i32) -> Value {
        let linux = LinuxOption::find(level, name).ok_or(Errno::NOPROTOOPT)?;
        Ok((linux.write)(self.current(state, linux.name)))
    }

    /// The value that was set, else the stack's.
    fn current(&self, state: &State, name: OptionName) -> SocketOption {
        use SocketOption as O;
        let is_stream = self.kind == Kind::Stream;
        match (name, state.options.get(name)) {
            (OptionName::MaxSeg, set) => match (self.info(state), set) {
                (Some(info), _) => O::MaxSeg(Some(info.send_mss)),
                (None, Some(set @ O::MaxSeg(Some(_)))) => set,
                (None, _) => O::MaxSeg(Some(DEFAULT_MSS)),
            },
            (OptionName::WindowClamp, None | Some(O::WindowClamp(None))) => {
                O::WindowClamp(self.info(state).map(|info| info.recv_buffer))
            }
            (OptionName::RecvBuffer, Some(O::RecvBuffer(bytes))) if is_stream => {
                O::RecvBuffer(bytes * 2)
            }
            (OptionName::RecvBuffer, None) if !is_stream => O::RecvBuffer(UDP_RECEIVE_BYTES as u32),
            (OptionName::SendBuffer, None) if !is_stream => O::SendBuffer(DATAGRAM_BUFFER),
            (OptionName::NotSentLowat, None) => O::NotSentLowat(0),
            (OptionName::FastOpenKeys, None) => {
                O::FastOpenKeys(Some(self.runtime.with(|stack, _| stack.fast_open().keys())))
            }
            (_, Some(set)) => set,
            (_, None) => self.runtime.with(|stack, _| {
                let own = state.stage.id().and_then(|id| stack.option(id, name).ok());
                own.unwrap_or_else(|| stack.default_option(name))
            }),
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

    /// Bytes of the IP and TCP headers of the connection's version.
    fn header_bytes(&self, state: &State) -> u32 {
        let local = state.stage.id().map(|id| self.runtime.with(|stack, _| stack.local_addr(id)));
        match local {
            Some(Ok(addr)) if addr.is_ipv6() => 60,
            _ => 40,
        }
    }

    fn info(&self, state: &State) -> Option<TcpInfo> {
        let id = state.stage.connection()?;
        self.runtime.with_tcp(id, |tcp, now| Ok(tcp.info_at(now))).ok()
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
        let buffers = [OptionName::RecvBuffer, OptionName::SendBuffer].map(|name| {
            match self.current(state, name) {
                SocketOption::RecvBuffer(bytes) | SocketOption::SendBuffer(bytes) => bytes,
                _ => 0,
            }
        });
        [received, buffers[0], 0, buffers[1], 0, queued, 0, 0, 0]
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

fn int(value: i32) -> Value {
    Ok(value.to_ne_bytes().into())
}
