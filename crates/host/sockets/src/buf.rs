//! Memory that the application sends ([`SendBuf`]) and receives ([`Chunk`], [`Chunks`]).

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::OnceLock;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec, Held};

use crate::limits::READ_BUF;

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
    #[inline]
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
    #[inline]
    fn from(frag: Frag) -> Self {
        Self { frag, held: Held::default() }
    }
}

/// Received bytes in stream order, as pieces of contiguous memory.
///
/// Chunks are a [`Buf`], which is consumed from the front: what was consumed is released. Its
/// [`chunk`](Buf::chunk) is the memory itself where nobody else can change that, and
/// [`copy_to_bytes`](Buf::copy_to_bytes) gives such memory without a copy, as far as it lies in one piece.
///
/// Memory that others may change (a file that was sent over a by-reference link) is never lent as a
/// slice, because a slice must not change. `chunk` then shows a private copy of at most
/// [`SNAPSHOT`](Self::SNAPSHOT) bytes, made once; to pass such memory on without a copy, send the chunks.
///
/// ```
/// use bytes::Buf;
/// # use pagewire::{Host, Pair};
/// # let (left, right) = Pair::new()?;
/// # let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// # let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
/// # let listener = server.listen("10.0.0.1:9000")?;
/// # let conn = client.connect("10.0.0.1:9000")?;
/// # let (peer, _) = listener.accept()?;
/// conn.send(b"\x00\x05hello")?;
/// let mut message = peer.recv_chunks(100)?;
/// let len = message.get_u16();
/// assert_eq!(message.copy_to_bytes(len.into()), "hello"); // no copy
/// assert!(message.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Chunks {
    /// None is empty.
    pub(crate) frags: VecDeque<Frag>,
    len: usize,
    held: Held,
    /// The first bytes of the first fragment, if others may change those and they were asked for.
    shown: OnceLock<Bytes>,
}

impl Clone for Chunks {
    fn clone(&self) -> Self {
        let (frags, held) = (self.frags.clone(), self.held.clone());
        Self { frags, len: self.len, held, shown: self.shown.clone() }
    }
}

impl Chunks {
    /// Most bytes that [`Buf::chunk`] copies, of memory that others may change.
    pub const SNAPSHOT: usize = 16 << 10;

    pub(crate) fn new(mut frags: Vec<Frag>, held: Held) -> Self {
        frags.retain(|frag| !frag.is_empty());
        let len = frags.iter().map(Frag::len).sum();
        Self { frags: frags.into(), len, held, shown: OnceLock::new() }
    }

    /// The bytes as one [`Bytes`]: without a copy if they are one piece that others cannot change, else
    /// with one, which is the application's own. For the pieces as they are, see [`Chunk::into_bytes`].
    pub fn into_bytes(mut self) -> Bytes {
        self.copy_to_bytes(self.len)
    }

    /// Bytes in all chunks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: the end of the stream.
    #[inline]
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

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        let Some(front) = self.frags.front() else { return &[] };
        front.as_slice().unwrap_or_else(|| {
            self.shown.get_or_init(|| {
                let mut copy = vec![0; front.len().min(Self::SNAPSHOT)];
                // The application's own copy: no stack is left to count it.
                front.copy_to(0, &mut copy, &mut CopyLedger::new(), CopyReason::AppRead);
                copy.into()
            })
        })
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        let lent = self.frags.iter().map_while(Frag::as_slice);
        let lent = dst.iter_mut().zip(lent).map(|(dst, bytes)| *dst = IoSlice::new(bytes)).count();
        match dst.first_mut() {
            Some(first) if lent == 0 && self.len > 0 => {
                *first = IoSlice::new(self.chunk());
                1
            }
            _ => lent,
        }
    }

    /// # Panics
    /// As every [`Buf`], beyond its end.
    fn advance(&mut self, n: usize) {
        assert!(n <= self.len, "cannot advance by {n} of {} bytes", self.len);
        let mut left = n;
        self.len -= n;
        self.show_from(n);
        while let Some(front) = self.frags.front_mut() {
            let (before, step) = (front.pinned_pages(), left.min(front.len()));
            left -= step;
            front.advance(step);
            let done = front.is_empty();
            let after = if done { 0 } else { front.pinned_pages() };
            drop(self.held.split(before.saturating_sub(after)));
            if !done {
                break;
            }
            self.frags.pop_front();
        }
    }

    /// # Panics
    /// As every [`Buf`], beyond its end.
    fn copy_to_bytes(&mut self, n: usize) -> Bytes {
        assert!(n <= self.len, "cannot take {n} of {} bytes", self.len);
        if let Some(front) = self.frags.front()
            && front.len() >= n
        {
            let part = front.slice(0..n);
            let held = self.held.clone().split(part.pinned_pages());
            if let Ok(bytes) = part.into_bytes_with(held) {
                self.advance(n);
                return bytes;
            }
        }
        let (mut all, mut at) = (vec![0; n], 0);
        while let Some(room) = all.get_mut(at..).filter(|room| !room.is_empty()) {
            // Bytes that were shown do not change any more.
            let shown = self.shown.get().map(|shown| Frag::from_bytes(shown.clone()));
            let Some(front) = shown.or_else(|| self.frags.front().cloned()) else { break };
            let step = front.copy_to(0, room, &mut CopyLedger::new(), CopyReason::AppRead);
            self.advance(step);
            at += step;
        }
        all.into()
    }
}

impl Chunks {
    /// Forgets `n` bytes of the copy that is shown.
    fn show_from(&mut self, n: usize) {
        let rest = self.shown.take().and_then(|shown| (n < shown.len()).then(|| shown.slice(n..)));
        if let Some(rest) = rest {
            self.shown = rest.into();
        }
    }
}

/// The pieces of [`Chunks`], in order.
#[derive(Debug)]
pub struct IntoChunks {
    frags: std::collections::vec_deque::IntoIter<Frag>,
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

/// Memory to send by reference. It is owned because it must not change until it is acknowledged.
///
/// A `SendBuf` is made of
///
/// - [`Bytes`], [`BytesMut`], several [`Bytes`] in a vector or an array;
/// - a [`Vec`], a boxed slice or a [`String`], whose memory is taken over;
/// - a literal: `b"..."`, `"..."`, and every other `'static` slice;
/// - received [`Chunk`]s and [`Chunks`], which are passed on;
/// - a [`Frag`]: a range of a region ([`Region::frag`](pagewire_mem::Region::frag)), such as a file's.
///
/// ```
/// use std::borrow::Cow;
/// use bytes::{Bytes, BytesMut};
/// use pagewire_sockets::SendBuf;
/// let all: [SendBuf; 9] = [
///     b"hello".into(),
///     (&b"hello"[..]).into(),
///     "hello".into(),
///     String::from("hello").into(),
///     vec![0; 5].into(),
///     Box::<[u8]>::from(*b"hello").into(),
///     Cow::Borrowed(&b"hello"[..]).into(),
///     BytesMut::from("hello").into(),
///     [Bytes::from_static(b"hel"), Bytes::from_static(b"lo")].into(),
/// ];
/// assert!(all.iter().all(|buf| buf.len() == 5));
/// ```
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
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frags.iter().all(Frag::is_empty)
    }

    /// Adds a piece at the end.
    #[inline]
    pub fn push(&mut self, frag: Frag) {
        if !frag.is_empty() {
            self.frags.push(frag);
        }
    }
}

impl From<Frag> for SendBuf {
    #[inline]
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
        Self { frags: FragVec::from_vec(chunks.frags.into()) }
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

impl<const N: usize> From<&'static [u8; N]> for SendBuf {
    fn from(bytes: &'static [u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl From<&'static str> for SendBuf {
    fn from(text: &'static str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl From<String> for SendBuf {
    fn from(text: String) -> Self {
        Self::from(text.into_bytes())
    }
}

impl From<Box<[u8]>> for SendBuf {
    fn from(bytes: Box<[u8]>) -> Self {
        Self::from(Bytes::from(bytes))
    }
}

impl From<Cow<'static, [u8]>> for SendBuf {
    fn from(bytes: Cow<'static, [u8]>) -> Self {
        match bytes {
            Cow::Borrowed(bytes) => Self::from(bytes),
            Cow::Owned(bytes) => Self::from(bytes),
        }
    }
}

impl From<BytesMut> for SendBuf {
    fn from(bytes: BytesMut) -> Self {
        Self::from(bytes.freeze())
    }
}

impl<const N: usize> From<[Bytes; N]> for SendBuf {
    fn from(pieces: [Bytes; N]) -> Self {
        Self::from_iter(pieces.into_iter().flat_map(|b| Self::from(b).frags))
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

/// Reads into the free part of `buf`, at most [`READ_BUF`] bytes; `read` returns how many, and its
/// answer.
pub(crate) fn read_into<B: BufMut, T>(
    buf: &mut B,
    read: impl FnOnce(&mut [u8]) -> io::Result<(usize, T)>,
) -> io::Result<T> {
    // Without unsafe code there is no writing into memory that is not initialised.
    let mut room = vec![0; buf.remaining_mut().min(READ_BUF)];
    let (n, answer) = read(&mut room)?;
    buf.put_slice(room.get(..n).unwrap_or_default());
    Ok(answer)
}
