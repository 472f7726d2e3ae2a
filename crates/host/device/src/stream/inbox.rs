//! Bytes of a stream, cut into frames by reference.

use std::collections::VecDeque;

use pagewire_mem::{Frag, FragVec};

use super::PREFIX;
use crate::limits::MAX_SOCKET_FRAME;
use crate::port::limits::MIN_ETHERNET;

/// The length before a frame is one that no frame has: there is no next frame to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Bytes that have arrived and are not taken yet: at most one frame and the bytes of one call.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    frags: VecDeque<Frag>,
    bytes: usize,
    /// The socket had nothing more when it was last read.
    pub(super) drained: bool,
}

impl Inbox {
    /// Adds what came next, in private memory.
    pub(crate) fn push(&mut self, frag: Frag) {
        self.bytes += frag.len();
        let rest = match self.frags.back_mut() {
            Some(last) => last.try_append(frag),
            None => Err(frag),
        };
        if let Err(frag) = rest
            && !frag.is_empty()
        {
            self.frags.push_back(frag);
        }
    }

    /// The next whole frame and its length; `None`: more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<(FragVec, usize)>, Malformed> {
        let Some(len) = self.announced()? else { return Ok(None) };
        if self.bytes < PREFIX + len {
            return Ok(None);
        }
        drop(self.take(PREFIX));
        Ok(Some((self.take(len), len)))
    }

    /// Whether [`next`](Self::next) has something to say.
    pub(crate) fn has_frame(&self) -> bool {
        self.announced().map_or(true, |len| len.is_some_and(|len| self.bytes >= PREFIX + len))
    }

    /// The length of the next frame, if that has arrived.
    fn announced(&self) -> Result<Option<usize>, Malformed> {
        if self.bytes < PREFIX {
            return Ok(None);
        }
        let bytes = self.frags.iter().flat_map(|frag| frag.as_slice().unwrap_or_default());
        let len = bytes.take(PREFIX).fold(0, |len: u32, byte| len << 8 | u32::from(*byte));
        let len = usize::try_from(len).map_err(|_| Malformed)?;
        if (MIN_ETHERNET..=MAX_SOCKET_FRAME).contains(&len) {
            Ok(Some(len))
        } else {
            Err(Malformed)
        }
    }

    /// Takes `n` bytes off the front.
    fn take(&mut self, mut n: usize) -> FragVec {
        let mut taken = FragVec::new();
        while n > 0
            && let Some(mut frag) = self.frags.pop_front()
        {
            let front = frag.split_to(n.min(frag.len()));
            n -= front.len();
            self.bytes -= front.len();
            if !frag.is_empty() {
                self.frags.push_front(frag);
            }
            front.append_to(&mut taken);
        }
        taken
    }
}
