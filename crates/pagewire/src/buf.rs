//! Byte path, steps S1 and R7, the memory: what the application gives and gets.

use std::io::IoSlice;

use bytes::Bytes;
use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec};

/// Received bytes, by reference. The memory goes back when it is dropped, on any thread; it
/// outlives the connection and the host.
#[derive(Clone, Debug, Default)]
pub struct Chunk(Frag);

impl Chunk {
    /// Bytes in the chunk.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, unless somebody else may change them: what was sent out of a mapped file over a
    /// by-reference link is still that file.
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.0.as_slice()
    }

    /// The bytes as [`Bytes`], without a copy; the chunk back if somebody else may change them.
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        self.0.into_bytes().map_err(Self)
    }

    /// Copies up to `dst.len()` bytes out, and returns how many.
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        // The application's own look at its bytes: no stack is left to count it.
        self.0.copy_to(0, dst, &mut CopyLedger::new(), CopyReason::AppRead)
    }

    /// Shows the bytes to `f` in order: as they are where nobody can change them, else through
    /// small snapshots.
    pub fn for_each_piece(&self, f: impl FnMut(&[u8])) {
        self.0.for_each_piece(&mut CopyLedger::new(), f);
    }

    /// The fragment inside.
    pub fn as_frag(&self) -> &Frag {
        &self.0
    }

    /// The fragment inside.
    pub fn into_frag(self) -> Frag {
        self.0
    }
}

impl From<Frag> for Chunk {
    fn from(frag: Frag) -> Self {
        Self(frag)
    }
}

/// Received bytes in stream order, in as many pieces as they lie in memory.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    pub(crate) frags: Vec<Frag>,
    len: usize,
}

impl Chunks {
    pub(crate) fn from_frags(frags: Vec<Frag>) -> Self {
        let len = frags.iter().map(Frag::len).sum();
        Self { frags, len }
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
        self.frags.iter().cloned().map(Chunk)
    }

    /// Shows all bytes to `f` in order; see [`Chunk::for_each_piece`].
    pub fn for_each_piece(&self, mut f: impl FnMut(&[u8])) {
        for frag in &self.frags {
            frag.for_each_piece(&mut CopyLedger::new(), &mut f);
        }
    }

    /// The pieces as slices for a gathering write; `None` if somebody else may change one.
    pub fn io_slices(&self) -> Option<Vec<IoSlice<'_>>> {
        self.frags.iter().map(|f| f.as_slice().map(IoSlice::new)).collect()
    }
}

impl IntoIterator for Chunks {
    type Item = Chunk;
    type IntoIter = std::iter::Map<std::vec::IntoIter<Frag>, fn(Frag) -> Chunk>;

    fn into_iter(self) -> Self::IntoIter {
        self.frags.into_iter().map(Chunk)
    }
}

/// Memory to send by reference: [`Bytes`], chunks received elsewhere, ranges of a region
/// ([`Region::frag`](crate::Region::frag)), or several of them. It must not change until it is acknowledged, which is why it is owned.
#[derive(Debug, Default)]
pub struct SendBuf {
    pub(crate) frags: FragVec,
}

impl SendBuf {
    /// Bytes left to send.
    pub fn len(&self) -> usize {
        self.frags.iter().map(Frag::len).sum()
    }

    /// Whether everything was taken.
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
        Self::from_iter([frag])
    }
}

impl From<Chunk> for SendBuf {
    fn from(chunk: Chunk) -> Self {
        Self::from(chunk.0)
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
