//! [`Pipe`]: a pipe, which keeps payload by reference.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewire_mem::{Frag, FragVec};

use super::{File, Object, block_on};
use crate::Errno;
use crate::backend::Backend;
use crate::events::Events;
use crate::limits::{PIPE_BYTES, PIPE_PIECES};
use crate::message::{copy_pieces, pieces};
use crate::runtime::Runtime;
use crate::watch::Watch;

/// Bytes that are written whole or not at all (`PIPE_BUF`).
const ATOMIC: usize = 4096;

#[derive(Debug)]
pub(crate) struct PipeEnd {
    pipe: Arc<Pipe>,
    writing: bool,
}

#[derive(Debug)]
pub(crate) struct Pipe {
    queue: Mutex<Queue>,
    /// The watchers of the end that reads, and of the end that writes.
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

    /// Puts back in front what was taken and not used.
    fn put_back(&mut self, frags: FragVec) {
        for frag in frags.into_iter().rev().filter(|frag| !frag.is_empty()) {
            self.bytes += frag.len();
            self.pieces.push_front(frag);
        }
    }
}

impl Pipe {
    fn new() -> Self {
        let queue = Queue { pieces: VecDeque::new(), bytes: 0, readers: true, writers: true };
        Self { queue: Mutex::new(queue), read_watch: Arc::default(), write_watch: Arc::default() }
    }

    /// Appends the fragments that `fill` returns for the room, under the pipe's lock; `None`: there
    /// is no room. `EPIPE` without a reader.
    pub(crate) fn put(
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

    /// Gives up to `max` bytes to `spend`, under the pipe's lock; 0 at the end, `None` without any.
    pub(crate) fn take(
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
    pub(crate) fn pour(&self, other: &Self, max: usize) -> Result<Option<usize>, Errno> {
        let bytes = {
            // Always in one order, so that two threads do not block each other.
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
        // Counts are set last; at worst, a panic leaves them too small.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PipeEnd {
    /// The files of a new pipe: the end that reads, and the one that writes.
    pub(crate) fn pair(nonblocking: bool) -> [Arc<File>; 2] {
        let pipe = Arc::new(Pipe::new());
        [false, true].map(|writing| {
            let watch = Arc::clone(if writing { &pipe.write_watch } else { &pipe.read_watch });
            let end = Self { pipe: Arc::clone(&pipe), writing };
            File::with_watch(Object::Pipe(end), nonblocking, watch)
        })
    }

    pub(crate) fn is_writing(&self) -> bool {
        self.writing
    }

    pub(crate) fn is_same_pipe(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipe, &other.pipe)
    }

    pub(crate) fn queued(&self) -> usize {
        self.pipe.lock().bytes
    }

    pub(crate) fn events(&self) -> Events {
        let queue = self.pipe.lock();
        if self.writing {
            Events::WRITE.when(queue.room() > 0) | Events::ERR.when(!queue.readers)
        } else {
            Events::READ.when(queue.bytes > 0) | Events::HUP.when(!queue.writers)
        }
    }

    pub(crate) fn close(&self) {
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

    /// Reads what there is, as much as there is room for.
    pub(crate) fn read<B: Backend>(
        &self,
        runtime: &Runtime<B>,
        file: &File,
        iov: &mut [IoSliceMut<'_>],
    ) -> Result<usize, Errno> {
        if self.writing {
            return Err(Errno::BADF);
        }
        let wanted: usize = iov.iter().map(|piece| piece.len()).sum();
        if wanted == 0 {
            return Ok(0);
        }
        block_on(runtime, &[file], Events::IN, !file.is_nonblocking(), None, || {
            let mut taken = FragVec::new();
            let got = self.pipe.take(wanted, |frags| {
                taken = core::mem::take(frags);
                Ok(())
            })?;
            got.ok_or(Errno::AGAIN)?;
            Ok(runtime.with(|stack, _| copy_pieces(stack, &taken, iov)))
        })
    }

    /// Writes copies, all of them unless the file does not block.
    pub(crate) fn write<B: Backend>(
        &self,
        runtime: &Runtime<B>,
        file: &File,
        iov: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        if !self.writing {
            return Err(Errno::BADF);
        }
        let total: usize = iov.iter().map(|piece| piece.len()).sum();
        // As on Linux, before the pipe's state is checked.
        if total == 0 {
            return Ok(0);
        }
        let mut written = 0;
        let attempt = || {
            let put = self.pipe.put(|room| {
                if total <= ATOMIC && room < total {
                    return Err(Errno::AGAIN);
                }
                let frags = copies(runtime, iov, written, room);
                let copied: usize = frags.iter().map(Frag::len).sum();
                // No page to copy into. The pipe does not wait, as nothing reports a page that is
                // free again; Linux fails too when it finds no page for a pipe.
                if copied == 0 || (total <= ATOMIC && copied < total) {
                    return Err(Errno::NOMEM);
                }
                Ok(frags)
            })?;
            written += put.ok_or(Errno::AGAIN)?;
            if written < total { Err(Errno::AGAIN) } else { Ok(()) }
        };
        let blocking = !file.is_nonblocking();
        match block_on(runtime, &[file], Events::OUT, blocking, None, attempt) {
            Err(error) if written == 0 => Err(error),
            _ => Ok(written),
        }
    }

    pub(crate) fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    /// Waits for room at the end that writes (`EPIPE` without a reader), or for bytes at the other.
    pub(crate) fn wait<B: Backend>(
        &self,
        runtime: &Runtime<B>,
        file: &File,
        wait: bool,
    ) -> Result<(), Errno> {
        let (interest, blocking) =
            (if self.writing { Events::OUT } else { Events::IN }, wait && !file.is_nonblocking());
        block_on(runtime, &[file], interest, blocking, None, || {
            let queue = self.pipe.lock();
            match self.writing {
                true if !queue.readers => Err(Errno::PIPE),
                true if queue.room() == 0 => Err(Errno::AGAIN),
                false if queue.bytes == 0 && queue.writers => Err(Errno::AGAIN),
                _ => Ok(()),
            }
        })
    }
}

/// Copies of up to `room` bytes, but for the first `skip`; fewer without pages for more.
fn copies<B: Backend>(
    runtime: &Runtime<B>,
    iov: &[IoSlice<'_>],
    skip: usize,
    room: usize,
) -> Vec<Frag> {
    let mut frags = Vec::new();
    runtime.with(|stack, _| {
        for piece in pieces(iov, skip, room) {
            let (copies, n) = stack.copy_in(piece);
            frags.extend(copies);
            if n < piece.len() {
                break;
            }
        }
    });
    frags
}

#[cfg(test)]
#[path = "pipe_tests.rs"]
mod tests;
