//! setsockopt and getsockopt, and steps of all options.

use pagewire_stack::{Error, Stack, TcpOption, Udp};

use super::{Options, UDP_GRO, UDP_SEGMENT};
use crate::address::Domain;
use crate::backend::Backend;
use crate::call::SocketCall;
use crate::descriptors::Descriptors;
use crate::file::socket::{Kind, Stage, State};
use crate::{Errno, Fd, errno};

pub(super) type Done = Result<(), Errno>;
/// An option's value, as C lays it out.
pub(super) type Value = Result<Vec<u8>, Errno>;

impl<B: Backend> Descriptors<B> {
    /// Sets an option; `value` is as C lays it out, and may be longer than that.
    ///
    /// # Errors
    /// `ENOPROTOOPT` for options that sockets here do not have, `EINVAL` for a value that is too
    /// short or out of range, and those of single options.
    pub fn setsockopt(&self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let file = self.file(fd)?;
        let options = SocketOptions(file.socket()?);
        match (level, options.kind) {
            (libc::SOL_SOCKET, _) => options.set_socket(name, value),
            (libc::IPPROTO_TCP, Kind::Stream) => options.set_tcp(name, value),
            (libc::IPPROTO_UDP, Kind::Datagram) => options.set_udp(name, value),
            (libc::IPPROTO_IP, _) => options.set_ip(name, value),
            (libc::IPPROTO_IPV6, _) if options.domain == Domain::Inet6 => {
                options.set_ipv6(name, value)
            }
            _ => Err(Errno::NOPROTOOPT),
        }
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
        let options = SocketOptions(file.socket()?);
        let value = match (level, options.kind) {
            (libc::SOL_SOCKET, _) => options.get_socket(name, out.len()),
            (libc::IPPROTO_TCP, Kind::Stream) => options.get_tcp(&options.lock(), name),
            (libc::IPPROTO_UDP, Kind::Datagram) => {
                let set = &options.lock().options;
                match name {
                    UDP_SEGMENT => int(set.segment.into()),
                    UDP_GRO => flag(set.udp_join),
                    libc::UDP_CORK => flag(set.udp_cork),
                    _ => Err(Errno::NOPROTOOPT),
                }
            }
            (libc::IPPROTO_IP, _) => options.get_ip(&options.lock(), name),
            (libc::IPPROTO_IPV6, _) if options.domain == Domain::Inet6 => {
                options.get_ipv6(&options.lock(), name)
            }
            _ => Err(Errno::NOPROTOOPT),
        }?;
        let n = value.len().min(out.len());
        out[..n].copy_from_slice(&value[..n]);
        Ok(n)
    }
}

/// The options of a socket in use by a call.
pub(super) struct SocketOptions<'c, B: Backend>(SocketCall<'c, B>);

impl<'c, B: Backend> core::ops::Deref for SocketOptions<'c, B> {
    type Target = SocketCall<'c, B>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<B: Backend> SocketOptions<'_, B> {
    pub(super) fn remember(&self, set: impl FnOnce(&mut Options)) -> Done {
        set(&mut self.lock().options);
        Ok(())
    }

    /// Remembers a setting, and sets it on the listener or the connection, if there is one.
    pub(super) fn set(&self, option: TcpOption, remember: impl FnOnce(&mut Options)) -> Done {
        let mut state = self.lock();
        if self.kind == Kind::Stream {
            self.set_stream(&state, option)?;
        }
        remember(&mut state.options);
        Ok(())
    }

    /// Sets an option of the listener or the connection, if there is one.
    pub(super) fn set_stream(&self, state: &State, option: TcpOption) -> Done {
        let set = |stack: &mut Stack, now| match state.stage {
            Stage::Listening(id) => stack.listener(id)?.set_option(option),
            Stage::Connecting(id) | Stage::Connected(id) => stack.tcp(id)?.set_option(now, option),
            Stage::Closed | Stage::Datagram(_) => Ok(()),
        };
        match self.runtime.with(set) {
            // Nothing that connections inherit.
            Err(Error::NotSupported) => Ok(()),
            done => done.map_err(errno),
        }
    }

    /// Remembers a setting, and sets it on the stack's datagram socket, if there is one.
    pub(super) fn set_datagram(
        &self,
        remember: impl FnOnce(&mut Options),
        verb: impl FnOnce(&Options, Udp<'_>),
    ) -> Done {
        let mut state = self.lock();
        remember(&mut state.options);
        let Stage::Datagram(id) = state.stage else { return Ok(()) };
        let set = |udp: Udp<'_>| verb(&state.options, udp);
        self.runtime.with(|stack, _| stack.udp(id).map(set)).map_err(errno)
    }
}

pub(super) fn int(value: i32) -> Value {
    Ok(value.to_ne_bytes().to_vec())
}

pub(super) fn number(value: u32) -> Value {
    Ok(value.to_ne_bytes().to_vec())
}

pub(super) fn flag(on: bool) -> Value {
    int(i32::from(on))
}
