//! A writer's frame, in memory that may change at any time.

use pagewire_mem::copy::copy_bytes;
use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec};

/// The writer's memory could not be read to the frame's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// A frame of a writer, whose bytes are read at most once.
pub trait FrameSource {
    /// Bytes of the frame without the virtio header. The same at every call.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `offset` on into `into`, all of it: by the workspace's one function
    /// ([`copy_bytes`], [`Frag::copy_to`]), with a ledger of its own. The port counts the copy.
    ///
    /// # Errors
    /// [`Fault`] if not all of `into` could be filled.
    fn copy_out(&mut self, offset: usize, into: &mut [u8]) -> Result<(), Fault>;

    /// The bytes from `from` to the frame's end by reference, in at most `max` fragments; `None`,
    /// and nothing is taken, if that is impossible. Called at most once. The drop of the last
    /// fragment gives the memory back to its writer, whatever the port answers.
    fn take_frags(&mut self, from: usize, max: usize) -> Option<FragVec>;
}

/// A frame in this process's memory.
#[derive(Debug)]
pub struct BytesSource<'a> {
    bytes: &'a [u8],
    frag: Option<Frag>,
}

impl<'a> BytesSource<'a> {
    /// A frame that can only be copied.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, frag: None }
    }
}

impl BytesSource<'static> {
    /// A frame that can also be passed by reference.
    pub fn by_reference(bytes: &'static [u8]) -> Self {
        Self { bytes, frag: Some(Frag::from_static(bytes)) }
    }
}

impl FrameSource for BytesSource<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn copy_out(&mut self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        let end = offset.checked_add(into.len()).ok_or(Fault)?;
        let bytes = self.bytes.get(offset..end).ok_or(Fault)?;
        // The port knows and counts which part is payload.
        copy_bytes(into, bytes, &mut CopyLedger::new(), CopyReason::DeviceRx);
        Ok(())
    }

    fn take_frags(&mut self, from: usize, max: usize) -> Option<FragVec> {
        let frag = if max > 0 { self.frag.take()? } else { return None };
        Some(FragVec::from_iter([frag.slice(from..frag.len())]))
    }
}
