//! The early hook: a program that looks at a frame before there is a packet, as XDP's do.

use super::table::PortId;
use crate::port::limits::MIN_ETHERNET;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on into the stack.
    Pass,
    /// It is dropped, and counted.
    Drop,
    /// It goes back to the writer of the port that it came in by.
    SendBack,
    /// It goes to the guest behind another port; dropped, and counted, if there is none.
    Redirect(PortId),
}

/// Looks at every frame that a port takes, whatever path it takes.
///
/// The bytes are private: the writer cannot change them under the hook, and what the hook saw and left
/// is what the stack parses.
pub trait EarlyHook: Send {
    /// Decides about a frame, which it may change.
    fn look(&mut self, frame: &mut RawFrame<'_>) -> Verdict;

    /// How many of a frame's first bytes it looks at; all, unless it says otherwise. What lies beyond
    /// is copied only when the frame is not dropped. The same at every call.
    fn reach(&self) -> usize {
        usize::MAX
    }
}

/// A hook that looks at no more of a frame than its first so many bytes, at least 14: a filter on
/// headers, to which the length of a frame that it drops makes no difference.
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
/// Of a frame that goes by reference only the headers are here, of one that is longer than the hook
/// reaches only so much, and then its end cannot be moved.
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

    /// The bytes that can be looked at.
    pub fn data(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// The bytes that can be changed.
    pub fn data_mut(&mut self) -> &mut [u8] {
        self.buffer.get_mut(self.start..self.end).unwrap_or_default()
    }

    /// Bytes of the whole frame, those included that are not here.
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

    /// Moves the frame's start: forward (`by` positive) takes bytes off, backward adds bytes, which
    /// are zero.
    ///
    /// # Errors
    /// [`OutOfBounds`], and nothing moves, if there is not that much headroom, or if fewer than 14
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

    /// Moves the frame's end: forward (`by` positive) adds bytes, which are zero, backward takes
    /// bytes off.
    ///
    /// # Errors
    /// [`OutOfBounds`], and nothing moves, if there is not that much tailroom, if fewer than 14
    /// bytes would be left, or if part of the frame is elsewhere.
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
