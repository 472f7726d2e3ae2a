//! [`Pipes`]: the pipes through which bytes move, which connections have only while bytes are in them.

use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::limits::{LARGE_PIPE, LARGE_PIPES, SMALL_PIPE, SPARE_PIPES};

/// A pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) read: OwnedFd,
    pub(super) write: OwnedFd,
    /// Bytes that it has room for.
    pub(super) size: usize,
    is_large: bool,
}

/// Empty pipes.
#[derive(Default)]
pub(super) struct Pipes {
    spare: Vec<Pipe>,
    /// Number of large ones, also those in use.
    large: usize,
}

impl Pipes {
    /// An empty pipe: a large one, as long as there are few of these.
    pub(super) fn take(&mut self) -> io::Result<Pipe> {
        let large = self.spare.iter().position(|pipe| pipe.is_large);
        if let Some(at) = large {
            return Ok(self.spare.swap_remove(at));
        }
        if self.large >= LARGE_PIPES
            && let Some(pipe) = self.spare.pop()
        {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let mut pipe = Pipe { read, write, size: SMALL_PIPE, is_large: false };
        // An ordinary user has a limit for all pipes: the default size is what is left then.
        if self.large < LARGE_PIPES
            && let Ok(size) = fcntl_setpipe_size(&pipe.write, LARGE_PIPE)
        {
            (pipe.size, pipe.is_large) = (size, true);
            self.large += 1;
        }
        Ok(pipe)
    }

    /// Takes an empty pipe back.
    pub(super) fn give_back(&mut self, pipe: Pipe) {
        if self.spare.len() < SPARE_PIPES {
            self.spare.push(pipe);
        } else {
            self.discard(pipe);
        }
    }

    /// Closes a pipe, with the bytes that are in it.
    pub(super) fn discard(&mut self, pipe: Pipe) {
        self.large -= usize::from(pipe.is_large);
        drop(pipe);
    }

    /// Closes the pipes that nobody has.
    pub(super) fn discard_spare(&mut self) {
        while let Some(pipe) = self.spare.pop() {
            self.discard(pipe);
        }
    }

    /// Number of descriptors of pipes that nobody has.
    pub(super) fn spare_descriptors(&self) -> usize {
        2 * self.spare.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pipes_are_large_and_few_are_kept() {
        let mut pipes = Pipes::default();
        let all: Vec<Pipe> = (0..LARGE_PIPES + 4).map(|_| pipes.take().expect("a pipe")).collect();
        let large = all.iter().filter(|pipe| pipe.is_large).count();
        assert_eq!(large, pipes.large);
        assert!(large <= LARGE_PIPES && all.iter().all(|pipe| pipe.size >= SMALL_PIPE));
        all.into_iter().for_each(|pipe| pipes.give_back(pipe));
        assert_eq!(pipes.spare_descriptors(), 2 * SPARE_PIPES);
        pipes.discard_spare();
        assert_eq!((pipes.spare_descriptors(), pipes.large), (0, 0));
    }

    #[test]
    fn a_large_pipe_is_used_first() {
        let mut pipes = Pipes::default();
        let first = pipes.take().expect("a pipe");
        let is_large = first.is_large;
        pipes.give_back(first);
        assert_eq!(pipes.take().expect("a pipe").is_large, is_large);
        assert!(pipes.spare.is_empty());
    }
}
