//! Pipes, and moving payload between pipes, sockets and files without copying it.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewire_mem::{CopyReason, Frag, FragVec, PAGE_SIZE, Region};

use crate::backend::Backend;
use crate::descriptors::Descriptors;
use crate::file::{File, Held, Object};
use crate::limits::{MAX_RW_BYTES, PIPE_BYTES, PIPE_PIECES};
use crate::notice::Watch;
use crate::poll::Events;
use crate::socket::Socket;
use crate::{Errno, Fd};

/// Flags of `splice`: `SPLICE_F_MOVE` and `SPLICE_F_GIFT` mean nothing, here as in Linux.
const SPLICE_F_NONBLOCK: u32 = 2;
const SPLICE_F_MORE: u32 = 4;
const SPLICE_ALL: u32 = 0xf;

/// Bytes of a file that one call maps at most.
const MAX_SENDFILE: usize = 1 << 30;

/// Bytes that are written whole or not at all (`PIPE_BUF`).
const ATOMIC: usize = 4096;

/// One end of a pipe.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    pipe: Arc<Pipe>,
    writing: bool,
}

#[derive(Debug)]
struct Pipe {
    queue: Mutex<Queue>,
    /// Of the end that reads, and of the one that writes.
    read_watch: Arc<Watch>,
    write_watch: Arc<Watch>,
}

#[derive(Debug)]
struct Queue {
    pieces: VecDeque<Frag>,
    bytes: usize,
    readers: bool,
    writers: bool,
}

impl Queue {
    fn room(&self) -> usize {
        if self.pieces.len() < PIPE_PIECES { PIPE_BYTES.saturating_sub(self.bytes) } else { 0 }
    }

    fn append(&mut self, frags: impl IntoIterator<Item = Frag>) -> usize {
        let before = self.bytes;
        for frag in frags.into_iter().filter(|frag| !frag.is_empty()) {
            self.bytes += frag.len();
            self.pieces.push_back(frag);
        }
        self.bytes - before
    }

    fn take(&mut self, max: usize) -> FragVec {
        let (mut out, mut left) = (FragVec::new(), max);
        while left > 0
            && let Some(front) = self.pieces.front_mut()
        {
            let part = front.split_to(left.min(front.len()));
            let emptied = front.is_empty();
            left -= part.len();
            self.bytes -= part.len();
            out.push(part);
            if emptied {
                self.pieces.pop_front();
            }
        }
        out
    }

    /// Puts in front again what was taken and not used.
    fn put_back(&mut self, frags: FragVec) {
        for frag in frags.into_iter().rev().filter(|frag| !frag.is_empty()) {
            self.bytes += frag.len();
            self.pieces.push_front(frag);
        }
    }
}

impl Pipe {
    /// Appends what `fill` finds for the room there is; `None`: there is no room. `EPIPE`: nobody is
    /// there to read. The pipe is locked meanwhile, so that nobody else has the room, and nothing is
    /// fetched for a reader that goes away.
    fn put(
        &self,
        fill: impl FnOnce(usize) -> Result<Vec<Frag>, Errno>,
    ) -> Result<Option<usize>, Errno> {
        let bytes = {
            let mut queue = self.lock();
            let frags = match (queue.readers, queue.room()) {
                (false, _) => return Err(Errno::PIPE),
                (true, 0) => return Ok(None),
                (true, room) => fill(room)?,
            };
            queue.append(frags)
        };
        if bytes > 0 {
            self.read_watch.wake(Events::READ);
        }
        Ok(Some(bytes))
    }

    /// Has up to `max` bytes used by `spend`; what it leaves stays. 0 is the end, `None`: nothing is
    /// there yet. The pipe is locked meanwhile, so that nobody else finds it empty.
    fn take(
        &self,
        max: usize,
        spend: impl FnOnce(&mut FragVec) -> Result<(), Errno>,
    ) -> Result<Option<usize>, Errno> {
        let (done, spent) = {
            let mut queue = self.lock();
            if queue.bytes == 0 {
                return Ok((!queue.writers).then_some(0));
            }
            let before = queue.bytes;
            let mut frags = queue.take(max);
            let done = spend(&mut frags);
            queue.put_back(frags);
            (done, before - queue.bytes)
        };
        if spent > 0 {
            self.write_watch.wake(Events::WRITE);
        }
        done.map(|()| Some(spent))
    }

    /// Moves up to `max` bytes to `other`; `None`: nothing is there, or no room for it.
    fn pour(&self, other: &Self, max: usize) -> Result<Option<usize>, Errno> {
        let bytes = {
            // In one order, whichever way others pour.
            let first = core::ptr::from_ref(self) < core::ptr::from_ref(other);
            let (mut from, mut into);
            if first {
                from = self.lock();
                into = other.lock();
            } else {
                into = other.lock();
                from = self.lock();
            }
            match (into.readers, into.room()) {
                (false, _) => return Err(Errno::PIPE),
                (true, 0) => return Ok(None),
                _ if from.bytes == 0 => return Ok((!from.writers).then_some(0)),
                (true, room) => {
                    let frags = from.take(max.min(room));
                    into.append(frags)
                }
            }
        };
        self.write_watch.wake(Events::WRITE);
        other.read_watch.wake(Events::READ);
        Ok(Some(bytes))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Counts are set last; a panic in between leaves them too small at worst.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PipeEnd {
    pub(crate) fn is_writing(&self) -> bool {
        self.writing
    }

    pub(crate) fn queued(&self) -> usize {
        self.pipe.lock().bytes
    }

    pub(crate) fn events(&self) -> Events {
        let queue = self.pipe.lock();
        let mut events = Events::empty();
        if self.writing {
            if queue.room() > 0 {
                events |= Events::WRITE;
            }
            if !queue.readers {
                events |= Events::ERR;
            }
        } else {
            if queue.bytes > 0 {
                events |= Events::READ;
            }
            if !queue.writers {
                events |= Events::HUP;
            }
        }
        events
    }

    pub(crate) fn release(&self) {
        {
            let mut queue = self.pipe.lock();
            if self.writing {
                queue.writers = false;
            } else {
                queue.readers = false;
                queue.pieces.clear();
                queue.bytes = 0;
            }
        }
        let other = if self.writing { &self.pipe.read_watch } else { &self.pipe.write_watch };
        other.wake(Events::empty());
    }
}

impl<B: Backend> Descriptors<B> {
    /// A pipe: the end to read from, and the one to write to. `flags` is 0, `O_NONBLOCK`,
    /// `O_CLOEXEC` or both.
    pub fn pipe2(&self, flags: i32) -> Result<(Fd, Fd), Errno> {
        if flags & !(libc::O_NONBLOCK | libc::O_CLOEXEC) != 0 {
            return Err(Errno::INVAL);
        }
        let (read_watch, write_watch) = (Arc::<Watch>::default(), Arc::<Watch>::default());
        let pipe = Arc::new(Pipe {
            queue: Mutex::new(Queue {
                pieces: VecDeque::new(),
                bytes: 0,
                readers: true,
                writers: true,
            }),
            read_watch: Arc::clone(&read_watch),
            write_watch: Arc::clone(&write_watch),
        });
        let (nonblocking, cloexec) = (flags & libc::O_NONBLOCK != 0, flags & libc::O_CLOEXEC != 0);
        let end = |writing, watch| {
            let end = Object::Pipe(PipeEnd { pipe: Arc::clone(&pipe), writing });
            File::with_watch(end, nonblocking, watch)
        };
        let read = self.install(end(false, read_watch), cloexec)?;
        let write = self.install(end(true, write_watch), cloexec);
        if write.is_err() {
            self.close(read)?;
        }
        Ok((read, write?))
    }

    pub(crate) fn read_pipe(
        &self,
        held: &Held<'_, B>,
        end: &PipeEnd,
        iov: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        if end.writing {
            return Err(Errno::BADF);
        }
        let wanted: usize = iov.iter().map(|piece| piece.len()).sum();
        if wanted == 0 {
            return Ok(0);
        }
        self.block_on(held, Events::IN, !held.is_nonblocking(), None, || {
            let mut taken = FragVec::new();
            let got = end.pipe.take(wanted, |frags| {
                taken = core::mem::take(frags);
                Ok(())
            })?;
            got.ok_or(Errno::AGAIN)?;
            Ok(self.backend.with(|stack, _| {
                let mut copied = 0;
                let mut room = iov.iter_mut().map(|piece| &mut **piece);
                let mut into = room.next().unwrap_or_default();
                for frag in &taken {
                    let mut at = 0;
                    while at < frag.len() {
                        if into.is_empty() {
                            into = room.next().unwrap_or_default();
                            continue;
                        }
                        let n = frag.copy_to(at, into, stack.ledger_mut(), CopyReason::AppRead);
                        (at, copied) = (at + n, copied + n);
                        into = &mut std::mem::take(&mut into)[n..];
                    }
                }
                copied
            }))
        })
    }

    pub(crate) fn write_pipe(
        &self,
        held: &Held<'_, B>,
        end: &PipeEnd,
        iov: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        if !end.writing {
            return Err(Errno::BADF);
        }
        let total: usize = iov.iter().map(|piece| piece.len()).sum();
        // As Linux, whatever the pipe is like.
        if total == 0 {
            return Ok(0);
        }
        let mut written = 0;
        let outcome = self.block_on(held, Events::OUT, !held.is_nonblocking(), None, || {
            let put = end.pipe.put(|room| {
                if total <= ATOMIC && room < total {
                    return Err(Errno::AGAIN);
                }
                let frags = self.copy_pieces(iov, written, room);
                let copied: usize = frags.iter().map(Frag::len).sum();
                // No page to copy into. Nobody would tell this pipe when one comes home, so it does
                // not wait for that; as Linux, which finds no page for a pipe.
                if copied == 0 || (total <= ATOMIC && copied < total) {
                    return Err(Errno::NOMEM);
                }
                Ok(frags)
            })?;
            written += put.ok_or(Errno::AGAIN)?;
            if written < total { Err(Errno::AGAIN) } else { Ok(()) }
        });
        match outcome {
            Err(error) if written == 0 => Err(error),
            _ => Ok(written),
        }
    }

    /// Copies of up to `room` bytes, but for the first `skip`; fewer without pages for more.
    fn copy_pieces(&self, iov: &[IoSlice<'_>], mut skip: usize, room: usize) -> Vec<Frag> {
        let mut frags = Vec::new();
        self.backend.with(|stack, _| {
            let mut left = room;
            for piece in iov {
                let from = skip.min(piece.len());
                skip -= from;
                let piece = &piece[from..];
                let piece = &piece[..piece.len().min(left)];
                let (copies, n) = stack.copy_in(piece);
                frags.extend(copies);
                left -= n;
                if n < piece.len() {
                    break;
                }
            }
        });
        frags
    }

    /// Moves up to `len` bytes from a socket to a pipe, a pipe to a socket, or a pipe to a pipe, by
    /// reference. Blocks until there is something, and room for it; `SPLICE_F_NONBLOCK` does not
    /// wait for the pipe.
    ///
    /// # Errors
    /// `EINVAL` if neither is a pipe or both are ends of one, `ESPIPE` for an offset, `EBADF` for an
    /// end that goes the other way, `EAGAIN`, `EPIPE`, and those of receiving and sending.
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
        match (&source.object, &target.object) {
            (Object::Pipe(source), _) if source.writing => Err(Errno::BADF),
            (_, Object::Pipe(target)) if !target.writing => Err(Errno::BADF),
            (Object::Pipe(read), Object::Pipe(write)) => {
                if Arc::ptr_eq(&read.pipe, &write.pipe) {
                    return Err(Errno::INVAL);
                }
                loop {
                    self.wait_room(&target, write, wait)?;
                    self.wait_data(&source, read, wait)?;
                    if let Some(moved) = read.pipe.pour(&write.pipe, len)? {
                        return Ok(moved);
                    }
                }
            }
            (Object::Socket(socket), Object::Pipe(write)) => {
                let limit = socket.lock().options.receive_timeout;
                loop {
                    self.wait_room(&target, write, wait)?;
                    let blocking = !source.is_nonblocking();
                    let moved = self.block_on(&source, Events::IN, blocking, limit, || {
                        write.pipe.put(|room| self.receive_frags(socket, len.min(room)))
                    })?;
                    // Otherwise somebody else has filled the pipe meanwhile.
                    if let Some(moved) = moved {
                        return Ok(moved);
                    }
                }
            }
            (Object::Pipe(read), Object::Socket(socket)) => {
                let more = if flags & SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
                loop {
                    self.wait_data(&source, read, wait)?;
                    if let Some(moved) = self.drain_pipe(read, &target, socket, len, more)? {
                        return Ok(moved);
                    }
                }
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Sends up to `len` bytes of a pipe, waiting for the socket's room, until the pipe is empty.
    /// `None`: there was nothing, and there may be something yet.
    fn drain_pipe(
        &self,
        read: &PipeEnd,
        target: &Held<'_, B>,
        socket: &Socket,
        len: usize,
        flags: i32,
    ) -> Result<Option<usize>, Errno> {
        let limit = socket.lock().options.send_timeout;
        let (mut moved, mut ended) = (0, false);
        let blocking = !target.is_nonblocking();
        let outcome = self.block_on(target, Events::OUT, blocking, limit, || {
            while moved < len {
                let sent = read.pipe.take(len - moved, |frags| {
                    let flags = flags | libc::MSG_DONTWAIT;
                    self.send_frags(target, socket, frags, flags).map(drop)
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

    /// Waits until there is room; `EPIPE` without a reader.
    fn wait_room(&self, file: &File, end: &PipeEnd, wait: bool) -> Result<(), Errno> {
        let blocking = wait && !file.is_nonblocking();
        self.block_on(file, Events::OUT, blocking, None, || {
            let queue = end.pipe.lock();
            match (queue.readers, queue.room()) {
                (false, _) => Err(Errno::PIPE),
                (true, 0) => Err(Errno::AGAIN),
                (true, _) => Ok(()),
            }
        })
    }

    /// Waits until there is something to read, or the end.
    fn wait_data(&self, file: &File, end: &PipeEnd, wait: bool) -> Result<(), Errno> {
        let blocking = wait && !file.is_nonblocking();
        self.block_on(file, Events::IN, blocking, None, || {
            let queue = end.pipe.lock();
            if queue.bytes == 0 && queue.writers { Err(Errno::AGAIN) } else { Ok(()) }
        })
    }

    /// Sends up to `len` bytes of a file of the kernel's from `offset` on, by reference to its
    /// mapping; `offset` is moved on. 0 is the end of the file.
    ///
    /// # Errors
    /// `EINVAL` if the file cannot be mapped, and those of sending.
    pub fn sendfile(
        &self,
        to: Fd,
        file: BorrowedFd<'_>,
        offset: &mut u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let target = self.file(to)?;
        let socket = target.socket()?;
        let file = std::fs::File::from(file.try_clone_to_owned().map_err(|_| Errno::MFILE)?);
        let size = file.metadata().map_err(|_| Errno::BADF)?.len();
        let left = usize::try_from(size.saturating_sub(*offset)).unwrap_or(usize::MAX);
        let len = len.min(left).min(MAX_SENDFILE);
        if len == 0 {
            return Ok(0);
        }
        // Mappings begin at a page.
        let skip = (*offset % PAGE_SIZE as u64) as usize;
        let region = Region::file(&file, *offset - skip as u64, skip + len);
        let region = region.map_err(|_| Errno::INVAL)?;
        let frag = region.frag(skip, len).map_err(|_| Errno::INVAL)?;
        let mut frags = FragVec::from_iter([frag]);
        let sent = self.send_frags(&target, socket, &mut frags, 0)?;
        *offset += sent as u64;
        Ok(sent)
    }
}

#[cfg(test)]
#[path = "pipe_tests.rs"]
mod tests;
