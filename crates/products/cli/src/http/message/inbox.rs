//! [`Inbox`]: received bytes that are not parsed yet. Heads are copied out of it, content passes as fragments.
//!
//! Server and client have one for each connection; [`Body`](super::body::Body) takes content out of it.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pagewire::memory::{CopyLedger, Frag};

use crate::http::connection::{Connection, is_timeout};
use crate::limits::{MAX_CHUNK_LINE, MAX_HEAD, RECV_PIECE, TICK};

/// How content is taken from the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// `read` into a buffer of ours.
    Copy,
    /// Fragments, as the stack holds them.
    Reference,
}

/// Bytes received and not yet used, in order.
pub(crate) struct Inbox {
    transfer: Transfer,
    frags: VecDeque<Frag>,
    /// The connection has nothing more to give.
    ended: bool,
    /// The end of every wait for more.
    deadline: Option<Instant>,
}

/// Why there is no message head.
#[derive(Debug)]
pub(crate) enum HeadError {
    /// The peer closed before the first byte of the head.
    Ended,
    /// The peer closed in the middle of the head.
    Cut,
    /// The first line alone is longer than the limit.
    LongLine,
    /// The whole head is longer than the limit.
    TooLong,
    /// No byte of the head came in time.
    Idle,
    /// A part of the head did not come in time.
    Slow,
    /// The wait was stopped before the first byte.
    Stopped,
    /// The connection failed.
    Failed(io::Error),
}

impl Inbox {
    pub(crate) fn new(transfer: Transfer) -> Self {
        Self { transfer, frags: VecDeque::new(), ended: false, deadline: None }
    }

    /// Ends every wait for more at this time. `None`: the connection's timeout bounds each wait.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frags.iter().all(Frag::is_empty)
    }

    /// Waits for more bytes; `false`: there will be none.
    pub(crate) fn fill(&mut self, connection: &mut impl Connection) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            connection.set_read_timeout(Some(left))?;
        }
        let n = match self.transfer {
            Transfer::Reference => {
                let mut taken = Vec::new();
                let n = connection.recv_frags(RECV_PIECE, &mut taken)?;
                self.frags.extend(taken);
                n
            }
            Transfer::Copy => {
                let mut buffer = vec![0; 16 * 1024];
                let n = connection.read(&mut buffer)?;
                buffer.truncate(n);
                self.frags.push_back(Frag::from_bytes(Bytes::from(buffer)));
                n
            }
        };
        self.ended = n == 0;
        Ok(n > 0)
    }

    /// Takes up to `max` bytes as one fragment.
    pub(crate) fn take(&mut self, max: usize) -> Option<Frag> {
        let first = self.frags.front_mut()?;
        if first.len() > max {
            return Some(first.split_to(max)).filter(|f| !f.is_empty());
        }
        let all = self.frags.pop_front()?;
        if all.is_empty() { self.take(max) } else { Some(all) }
    }

    /// Puts bytes back in front.
    fn put_back(&mut self, frag: Frag) {
        if !frag.is_empty() {
            self.frags.push_front(frag);
        }
    }

    /// Reads a message head, its empty line included. `idle` bounds the wait for the first byte,
    /// `time` the rest. `on_tick`, called regularly, stops it with `false` before the first byte.
    pub(crate) fn read_head(
        &mut self,
        connection: &mut impl Connection,
        idle: Duration,
        time: Duration,
        mut on_tick: impl FnMut() -> io::Result<bool>,
    ) -> Result<Vec<u8>, HeadError> {
        let mut head = Vec::new();
        let mut end = HeadEnd::default();
        let mut deadline = Instant::now() + idle;
        loop {
            while let Some(frag) = self.take(MAX_HEAD) {
                if head.is_empty() {
                    deadline = Instant::now() + time;
                }
                let before = head.len();
                append(&mut head, &frag);
                if let Some(n) = end.feed(head.get(before..).unwrap_or_default()) {
                    head.truncate(before + n);
                    self.put_back(frag.slice(n..frag.len()));
                    return if head.len() > MAX_HEAD { Err(too_long(&head)) } else { Ok(head) };
                }
                if head.len() > MAX_HEAD {
                    return Err(too_long(&head));
                }
            }
            let nothing_yet = head.iter().all(|b| matches!(b, b'\r' | b'\n'));
            if !on_tick().map_err(HeadError::Failed)? && nothing_yet {
                return Err(HeadError::Stopped);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(if nothing_yet { HeadError::Idle } else { HeadError::Slow });
            }
            connection.set_read_timeout(Some(left.min(TICK))).map_err(HeadError::Failed)?;
            match self.fill(connection) {
                Ok(true) => {}
                Ok(false) if nothing_yet => return Err(HeadError::Ended),
                Ok(false) => return Err(HeadError::Cut),
                Err(e) if is_timeout(&e) || e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(HeadError::Failed(e)),
            }
        }
    }

    /// Reads a line of chunk framing, without its end; `None`: the connection ended.
    pub(crate) fn read_line(
        &mut self,
        connection: &mut impl Connection,
    ) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        loop {
            while let Some(frag) = self.take(MAX_CHUNK_LINE) {
                let before = line.len();
                append(&mut line, &frag);
                let new = line.get(before..).unwrap_or_default();
                if let Some(n) = new.iter().position(|&b| b == b'\n') {
                    self.put_back(frag.slice(n + 1..frag.len()));
                    line.truncate(before + n);
                    if line.last() == Some(&b'\r') {
                        line.pop();
                    }
                    return Ok(Some(line));
                }
                if line.len() > MAX_CHUNK_LINE {
                    return Err(io::Error::other("a line that frames a chunk is too long"));
                }
            }
            match self.fill(connection) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(e) => {
                    // Kept to be read again: the wait may have timed out.
                    self.put_back(Frag::from_bytes(Bytes::from(line)));
                    return Err(e);
                }
            }
        }
    }
}

fn too_long(head: &[u8]) -> HeadError {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    let line = head.iter().take(crate::limits::MAX_TARGET).any(|&b| b == b'\n');
    if line { HeadError::TooLong } else { HeadError::LongLine }
}

/// Copies a fragment's bytes: for heads, not for content.
fn append(to: &mut Vec<u8>, frag: &Frag) {
    frag.for_each_piece(&mut CopyLedger::new(), |piece| to.extend_from_slice(piece));
}

/// Finds the empty line that ends a head, over any number of pieces, and reads each byte once.
#[derive(Default)]
struct HeadEnd {
    /// Something other than line ends has come: leading empty lines do not end a head.
    begun: bool,
    /// The line so far is empty, or a carriage return.
    line_empty: bool,
}

impl HeadEnd {
    /// How many of `bytes` belong to the head, if it ends among them.
    fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        for (i, &b) in bytes.iter().enumerate() {
            match b {
                b'\n' if self.begun && self.line_empty => return Some(i + 1),
                b'\n' => self.line_empty = true,
                b'\r' => {}
                _ => (self.begun, self.line_empty) = (true, false),
            }
        }
        None
    }
}
