//! Moving payload between pipes and sockets without a copy, and from files.

use std::os::fd::BorrowedFd;

use pagewire_mem::{Frag, FragVec};
use pagewire_stack::option;

use super::{Descriptors, SocketCall};
use crate::backend::Backend;
use crate::events::Events;
use crate::file::Object;
use crate::file::pipe::PipeEnd;
use crate::limits::MAX_RW_BYTES;
use crate::{Errno, Fd};

/// Flags of `splice`: `SPLICE_F_MOVE` and `SPLICE_F_GIFT` mean nothing, here as in Linux.
const SPLICE_F_NONBLOCK: u32 = 2;
const SPLICE_F_MORE: u32 = 4;
const SPLICE_ALL: u32 = 0xf;

/// Bytes of a file that are read at once.
const SENDFILE_PART: usize = 256 << 10;

impl<B: Backend> Descriptors<B> {
    /// A pipe: the ends to read from and to write to. `flags`: `O_NONBLOCK`, `O_CLOEXEC`.
    pub fn pipe2(&self, flags: i32) -> Result<(Fd, Fd), Errno> {
        if flags & !(libc::O_NONBLOCK | libc::O_CLOEXEC) != 0 {
            return Err(Errno::INVAL);
        }
        let close_on_exec = flags & libc::O_CLOEXEC != 0;
        let [read, write] = PipeEnd::pair(flags & libc::O_NONBLOCK != 0);
        let read = self.install(read, close_on_exec)?;
        let write = self.install(write, close_on_exec);
        if write.is_err() {
            self.close(read)?;
        }
        Ok((read, write?))
    }

    /// Moves up to `len` bytes between a socket and a pipe, or two pipes, by reference. Blocks for
    /// bytes and room; `SPLICE_F_NONBLOCK` does not wait for the pipe.
    ///
    /// # Errors
    /// `EINVAL` if neither is a pipe or both are ends of one, `ESPIPE` for an offset, `EBADF` for
    /// an end that goes the other way, `EAGAIN`, `EPIPE`, and those of receiving and sending.
    pub fn splice(&self, from: Fd, to: Fd, len: usize, flags: u32) -> Result<usize, Errno> {
        let (source, target) = (self.file(from)?, self.file(to)?);
        if flags & !SPLICE_ALL != 0 {
            return Err(Errno::INVAL);
        }
        if len == 0 {
            return Ok(0);
        }
        let len = len.min(MAX_RW_BYTES);
        let wait = flags & SPLICE_F_NONBLOCK == 0;
        let runtime = &self.runtime;
        // Again where another thread has used the room, or taken the data.
        match (&source.object, &target.object) {
            (Object::Pipe(source), _) if source.is_writing() => Err(Errno::BADF),
            (_, Object::Pipe(target)) if !target.is_writing() => Err(Errno::BADF),
            (Object::Pipe(read), Object::Pipe(write)) if read.is_same_pipe(write) => {
                Err(Errno::INVAL)
            }
            (Object::Pipe(read), Object::Pipe(write)) => loop {
                write.wait(runtime, &target, wait)?;
                read.wait(runtime, &source, wait)?;
                if let Some(moved) = read.pipe().pour(write.pipe(), len)? {
                    return Ok(moved);
                }
            },
            (Object::Socket(socket), Object::Pipe(write)) => {
                let call = source.socket()?;
                let limit = socket.lock().options.value(option::ReceiveTimeout);
                loop {
                    write.wait(runtime, &target, wait)?;
                    let moved = call.block_on(Events::IN, 0, limit, || {
                        write.pipe().put(|room| call.receive_frags(len.min(room)))
                    })?;
                    if let Some(moved) = moved {
                        return Ok(moved);
                    }
                }
            }
            (Object::Pipe(read), Object::Socket(_)) => {
                let more = if flags & SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
                let call = target.socket()?;
                loop {
                    read.wait(runtime, &source, wait)?;
                    if let Some(moved) = call.drain_pipe(read, len, more)? {
                        return Ok(moved);
                    }
                }
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Sends up to `len` bytes of a file of the kernel's from `offset` on; `offset` is moved on. 0 is the end of the
    /// file. The file is read in parts, not mapped: a map of a file that is cut meanwhile would end the process
    /// (`SIGBUS`).
    ///
    /// # Errors
    /// Those of reading the file at an offset, and those of sending; an error is returned only if nothing was sent.
    pub fn sendfile(
        &self,
        to: Fd,
        file: BorrowedFd<'_>,
        offset: &mut u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let target = self.file(to)?;
        let call = target.socket()?;
        let mut sent = 0;
        while sent < len.min(MAX_RW_BYTES) {
            let mut bytes = vec![0; (len - sent).min(SENDFILE_PART)];
            let mut part = || {
                let n = rustix::io::pread(file, &mut bytes, *offset)?;
                bytes.truncate(n);
                if n == 0 {
                    return Ok(0);
                }
                let mut frags =
                    FragVec::from_iter([Frag::from_bytes(std::mem::take(&mut bytes).into())]);
                call.send_frags(&mut frags, 0)
            };
            match part() {
                Ok(0) => break,
                Ok(n) => {
                    sent += n;
                    *offset += n as u64;
                }
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }
}

impl<B: Backend> SocketCall<'_, B> {
    /// Sends up to `len` bytes of a pipe, waiting for the socket's room, until the pipe is empty.
    /// `None`: there was nothing, and there may be something yet.
    fn drain_pipe(&self, read: &PipeEnd, len: usize, flags: i32) -> Result<Option<usize>, Errno> {
        let limit = self.lock().options.value(option::SendTimeout);
        let (mut moved, mut ended) = (0, false);
        let outcome = self.block_on(Events::OUT, 0, limit, || {
            while moved < len {
                let sent = read.pipe().take(len - moved, |frags| {
                    self.send_frags(frags, flags | libc::MSG_DONTWAIT).map(drop)
                })?;
                ended = sent == Some(0);
                match sent {
                    None | Some(0) => break,
                    Some(n) => moved += n,
                }
            }
            Ok(())
        });
        match outcome {
            Err(error) if moved == 0 => Err(error),
            _ => Ok((moved > 0 || ended).then_some(moved)),
        }
    }
}
