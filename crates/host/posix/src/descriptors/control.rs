//! The calls `fcntl` and `ioctl`.

use std::sync::atomic::Ordering;

use pagewire_stack::{Readiness, Stack, TcpId, UdpId};

use super::Descriptors;
use crate::backend::Backend;
use crate::file::Object;
use crate::file::socket::{Kind, Stage};
use crate::limits::MAX_DESCRIPTORS;
use crate::{Errno, Fd, errno};

/// `SIOCINQ`, which is `FIONREAD`.
const SIOCINQ: u64 = 0x541b;
/// `SIOCOUTQ`, which is `TIOCOUTQ`.
const SIOCOUTQ: u64 = 0x5411;
const SIOCOUTQNSD: u64 = 0x894b;
const FIONBIO: u64 = 0x5421;
const SIOCATMARK: u64 = 0x8905;

impl<B: Backend> Descriptors<B> {
    /// Flags of a file (`F_GETFL`, `F_SETFL`: `O_NONBLOCK` can be changed) and of a descriptor
    /// (`F_GETFD`, `F_SETFD`), and further descriptors (`F_DUPFD`, `F_DUPFD_CLOEXEC`).
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` for other commands, `EMFILE`.
    pub fn fcntl(&self, fd: Fd, command: i32, argument: i32) -> Result<i32, Errno> {
        let file = self.file(fd)?;
        match command {
            libc::F_GETFL => {
                let access = match &file.object {
                    Object::Pipe(end) if end.is_writing() => libc::O_WRONLY,
                    Object::Pipe(_) => libc::O_RDONLY,
                    _ => libc::O_RDWR,
                };
                Ok(access | if file.is_nonblocking() { libc::O_NONBLOCK } else { 0 })
            }
            libc::F_SETFL => {
                file.nonblocking.store(argument & libc::O_NONBLOCK != 0, Ordering::Relaxed);
                Ok(0)
            }
            libc::F_GETFD => Ok(i32::from(self.close_on_exec(fd)?)),
            libc::F_SETFD => {
                self.set_close_on_exec(fd, argument & libc::FD_CLOEXEC != 0)?;
                Ok(0)
            }
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                if argument < 0 || argument as usize >= MAX_DESCRIPTORS {
                    return Err(Errno::INVAL);
                }
                self.duplicate(fd, argument, command == libc::F_DUPFD_CLOEXEC)
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// `FIONREAD`, `SIOCOUTQ`, `SIOCOUTQNSD`, `SIOCATMARK` write `argument`; `FIONBIO` reads it.
    ///
    /// # Errors
    /// `ENOTTY` for other requests, `EINVAL` for what a listening socket does not have.
    pub fn ioctl(&self, fd: Fd, request: u64, argument: &mut i32) -> Result<(), Errno> {
        let file = self.file(fd)?;
        if request == FIONBIO {
            file.nonblocking.store(*argument != 0, Ordering::Relaxed);
            return Ok(());
        }
        let value = match &file.object {
            Object::Socket(socket) => match (socket.kind, socket.stage()) {
                (_, Stage::Listening(_)) if request == SIOCATMARK => 0,
                (_, Stage::Listening(_)) if is_count(request) => return Err(Errno::INVAL),
                (Kind::Stream, stage) => {
                    let id = stage.connection();
                    self.runtime.with(|stack, _| stream_count(stack, id, request))?
                }
                (Kind::Datagram, stage) => self
                    .runtime
                    .with(|stack, _| datagram_count(stack, stage.datagram(), request))?,
            },
            Object::Pipe(end) if request == SIOCINQ => end.queued(),
            Object::Pipe(_) | Object::Epoll(_) => return Err(Errno::NOTTY),
        };
        *argument = i32::try_from(value).unwrap_or(i32::MAX);
        Ok(())
    }
}

fn is_count(request: u64) -> bool {
    matches!(request, SIOCINQ | SIOCOUTQ | SIOCOUTQNSD)
}

fn stream_count(stack: &mut Stack, id: Option<TcpId>, request: u64) -> Result<usize, Errno> {
    let is_mark = request == SIOCATMARK;
    let id = match id {
        _ if !is_mark && !is_count(request) => return Err(Errno::NOTTY),
        None => return Ok(0),
        Some(id) => id,
    };
    let connected = stack.readiness(id).map_err(errno)?.contains(Readiness::CONNECTED);
    let tcp = stack.tcp(id).map_err(errno)?;
    let (unacknowledged, unsent) = tcp.queued_send();
    Ok(match request {
        SIOCATMARK => tcp.at_urgent_mark().into(),
        _ if !connected => 0,
        SIOCINQ => tcp.queued(),
        SIOCOUTQ => unacknowledged,
        _ => unsent,
    })
}

fn datagram_count(stack: &mut Stack, id: Option<UdpId>, request: u64) -> Result<usize, Errno> {
    match (request, id) {
        (SIOCINQ, Some(id)) => stack.udp(id).map(|udp| udp.next_len()).map_err(errno),
        // Datagrams leave at once.
        (SIOCINQ, None) | (SIOCOUTQ, _) => Ok(0),
        _ => Err(Errno::NOTTY),
    }
}
