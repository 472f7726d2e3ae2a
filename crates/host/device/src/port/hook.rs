//! The early hook: a program that sees a frame before there is a packet, as XDP's do.

use super::table::PortId;
use crate::port::limits::MIN_ETHERNET;

/// The hook's decision for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame passes to the stack.
    Pass,
    /// The frame is dropped, and counted.
    Drop,
    /// The frame goes back to the guest of its port.
    SendBack,
    /// The frame goes to the guest of another port; dropped, and counted, if there is none.
    Redirect(PortId),
}

/// Sees every frame that a port takes. The bytes are private: the stack parses what it leaves.
pub trait EarlyHook: Send {
    /// Decides about a frame, which it may change.
    fn look(&mut self, frame: &mut RawFrame<'_>) -> Verdict;

    /// How many of a frame's first bytes the hook needs; all by default. The same at every call.
    fn reach(&self) -> usize {
        usize::MAX
    }
}

/// A hook that sees only a frame's first bytes, at least 14: drops cost the same at any length.
#[derive(Debug)]
pub struct FirstBytes<H>(pub usize, pub H);

impl<H: EarlyHook> EarlyHook for FirstBytes<H> {
    fn look(&mut self, frame: &mut RawFrame<'_>) -> Verdict {
        self.1.look(frame)
    }

    fn reach(&self) -> usize {
        self.0.min(self.1.reach())
    }
}

impl<F: FnMut(&mut RawFrame<'_>) -> Verdict + Send> EarlyHook for F {
    fn look(&mut self, frame: &mut RawFrame<'_>) -> Verdict {
        self(frame)
    }
}

/// The frame would begin or end outside of its buffer, or be shorter than an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame cannot begin or end there")]
pub struct OutOfBounds;

/// A frame in its buffer.
///
/// ```text
///   buffer (private)                              elsewhere
///   | headroom | data, to be changed | tailroom |  rest: of some
///              ^ adjust_head         ^ adjust_tail
/// ```
///
/// For a frame by reference, the buffer has only the headers; for one longer than the hook's reach,
/// only so much, and then its end cannot be moved.
#[derive(Debug)]
pub struct RawFrame<'a> {
    buffer: &'a mut [u8],
    start: usize,
    end: usize,
    rest: usize,
}

impl<'a> RawFrame<'a> {
    /// `start <= end <= buffer.len()`.
    pub(super) fn new(buffer: &'a mut [u8], start: usize, end: usize, rest: usize) -> Self {
        debug_assert!(start <= end && end <= buffer.len());
        Self { buffer, start, end, rest }
    }

    /// The bytes in the buffer.
    pub fn data(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// The bytes in the buffer, mutable.
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.start..self.end).unwrap_or_default()
    }

    /// Bytes of the whole frame, including those outside the buffer.
    pub fn len(&self) -> usize {
        self.end - self.start + self.rest
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes by which the frame can grow in front.
    pub fn headroom(&self) -> usize {
        self.start
    }

    /// Bytes by which the frame can grow at its end.
    pub fn tailroom(&self) -> usize {
        if self.rest > 0 { 0 } else { self.buffer.len() - self.end }
    }

    /// Moves the frame's start: forward (`by` positive) removes bytes, backward adds zero bytes.
    ///
    /// # Errors
    /// [`OutOfBounds`], and nothing moves, if there is too little headroom, or if fewer than 14
    /// bytes would be left.
    pub fn adjust_head(&mut self, by: isize) -> Result<(), OutOfBounds> {
        let start = self.start.checked_add_signed(by).ok_or(OutOfBounds)?;
        // The comparison first: `end - start` must not wrap.
        if start > self.end || self.end - start < MIN_ETHERNET {
            return Err(OutOfBounds);
        }
        if let Some(new) = self.buffer.get_mut(start..self.start) {
            new.fill(0);
        }
        self.start = start;
        Ok(())
    }

    /// Moves the frame's end: forward (`by` positive) adds zero bytes, backward removes bytes.
    ///
    /// # Errors
    /// [`OutOfBounds`], and nothing moves, if there is too little tailroom, if fewer than 14 bytes
    /// would be left, or if part of the frame is elsewhere.
    pub fn adjust_tail(&mut self, by: isize) -> Result<(), OutOfBounds> {
        let end = self.end.checked_add_signed(by).ok_or(OutOfBounds)?;
        if self.rest > 0 || end > self.buffer.len() || end < self.start + MIN_ETHERNET {
            return Err(OutOfBounds);
        }
        if let Some(new) = self.buffer.get_mut(self.end..end) {
            new.fill(0);
        }
        self.end = end;
        Ok(())
    }

    /// Where the frame begins and ends in its buffer now.
    pub(super) fn bounds(&self) -> (usize, usize) {
        (self.start, self.end)
    }
}
