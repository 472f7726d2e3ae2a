//! Memory that the application sends from and receives.

use std::io::IoSlice;

use bytes::Bytes;
use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec, Held};

/// Received bytes, by reference. A drop releases the memory; the chunk outlives the host.
///
/// Until then it counts, with the whole pages that it touches, against the receive buffer of its
/// connection: a program that keeps everything closes its window. Memory that is sent on does not count.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    frag: Frag,
    held: Held,
}

impl Chunk {
    /// Bytes in the chunk.
    pub fn len(&self) -> usize {
        self.frag.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.frag.is_empty()
    }

    /// The bytes, unless others may change them: those of a file sent over a by-reference link.
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.frag.as_slice()
    }

    /// The bytes as [`Bytes`], without a copy; the chunk back if others may change them.
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        self.frag.into_bytes_with(self.held).map_err(Self::from)
    }

    /// Copies up to `dst.len()` bytes out; returns how many.
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        // The application's own copy: no stack is left to count it.
        self.frag.copy_to(0, dst, &mut CopyLedger::new(), CopyReason::AppRead)
    }

    /// Shows the bytes to `f` in order: in place where they cannot change, else as small snapshots.
    pub fn for_each_piece(&self, f: impl FnMut(&[u8])) {
        self.frag.for_each_piece(&mut CopyLedger::new(), f);
    }

    /// The fragment inside.
    pub fn as_frag(&self) -> &Frag {
        &self.frag
    }

    /// The fragment inside, which does not count against the receive buffer.
    pub fn into_frag(self) -> Frag {
        self.frag
    }
}

impl From<Frag> for Chunk {
    fn from(frag: Frag) -> Self {
        Self { frag, held: Held::default() }
    }
}

/// Received bytes in stream order, as pieces of contiguous memory.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    pub(crate) frags: Vec<Frag>,
    len: usize,
    held: Held,
}

impl Chunks {
    pub(crate) fn new(frags: Vec<Frag>, held: Held) -> Self {
        let len = frags.iter().map(Frag::len).sum();
        Self { frags, len, held }
    }

    /// Bytes in all chunks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: the end of the stream.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, in order.
    pub fn iter(&self) -> impl Iterator<Item = Chunk> + '_ {
        self.frags.iter().map(|frag| {
            let held = self.held.clone().split(frag.pinned_pages());
            Chunk { frag: frag.clone(), held }
        })
    }

    /// Shows all bytes to `f` in order; see [`Chunk::for_each_piece`].
    pub fn for_each_piece(&self, mut f: impl FnMut(&[u8])) {
        for frag in &self.frags {
            frag.for_each_piece(&mut CopyLedger::new(), &mut f);
        }
    }

    /// The pieces as slices for a gathering write; `None` if others may change one.
    pub fn io_slices(&self) -> Option<Vec<IoSlice<'_>>> {
        self.frags.iter().map(|f| f.as_slice().map(IoSlice::new)).collect()
    }
}

impl IntoIterator for Chunks {
    type Item = Chunk;
    type IntoIter = IntoChunks;

    fn into_iter(self) -> IntoChunks {
        IntoChunks { frags: self.frags.into_iter(), held: self.held }
    }
}

/// The pieces of [`Chunks`], in order.
#[derive(Debug)]
pub struct IntoChunks {
    frags: std::vec::IntoIter<Frag>,
    held: Held,
}

impl Iterator for IntoChunks {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        let frag = self.frags.next()?;
        let held = self.held.split(frag.pinned_pages());
        Some(Chunk { frag, held })
    }
}

/// Memory to send by reference: [`Bytes`], received chunks, ranges of a region
/// ([`Region::frag`](crate::Region::frag)), or several of them. It is owned because it must not change
/// until it is acknowledged.
#[derive(Debug, Default)]
pub struct SendBuf {
    pub(crate) frags: FragVec,
}

impl SendBuf {
    /// Bytes left to send.
    pub fn len(&self) -> usize {
        self.frags.iter().map(Frag::len).sum()
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.frags.iter().all(Frag::is_empty)
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, frag: Frag) {
        if !frag.is_empty() {
            self.frags.push(frag);
        }
    }
}

impl From<Frag> for SendBuf {
    fn from(frag: Frag) -> Self {
        let mut buf = Self::default();
        buf.push(frag);
        buf
    }
}

impl From<Chunk> for SendBuf {
    fn from(chunk: Chunk) -> Self {
        Self::from(chunk.frag)
    }
}

impl From<Chunks> for SendBuf {
    fn from(chunks: Chunks) -> Self {
        Self { frags: FragVec::from_vec(chunks.frags) }
    }
}

impl From<Bytes> for SendBuf {
    fn from(mut bytes: Bytes) -> Self {
        let mut buf = Self::default();
        while !bytes.is_empty() {
            let n = bytes.len().min(pagewire_mem::limits::MAX_FRAG_LEN);
            buf.push(Frag::from_bytes(bytes.split_to(n)));
        }
        buf
    }
}

impl From<Vec<u8>> for SendBuf {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Bytes::from(bytes))
    }
}

impl From<&'static [u8]> for SendBuf {
    fn from(bytes: &'static [u8]) -> Self {
        Self::from(Bytes::from_static(bytes))
    }
}

impl From<Vec<Bytes>> for SendBuf {
    fn from(pieces: Vec<Bytes>) -> Self {
        Self::from_iter(pieces.into_iter().flat_map(|b| Self::from(b).frags))
    }
}

impl From<Vec<Frag>> for SendBuf {
    fn from(pieces: Vec<Frag>) -> Self {
        Self::from_iter(pieces)
    }
}

impl FromIterator<Frag> for SendBuf {
    fn from_iter<I: IntoIterator<Item = Frag>>(frags: I) -> Self {
        let mut buf = Self::default();
        frags.into_iter().for_each(|f| buf.push(f));
        buf
    }
}
