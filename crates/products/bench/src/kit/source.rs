//! [`Source`], the data that is sent, and [`Reader`], which reads it: the same for every engine.

use std::ops::Range;

use bytes::Bytes;
use clap::ValueEnum;
use pagewire::memory::{CopyLedger, Frag, PAGE_SIZE};

use crate::sys::{prefer_huge_pages, region_of};

/// Bytes of the buffer that senders walk through in order: larger than any cache.
pub(crate) const SOURCE_LEN: usize = 256 << 20;

/// Parts of a piece that [`sum`] reads side by side.
const PARTS: usize = 4;

/// Bytes that it reads of each in turn.
const CACHE_LINE: usize = 64;

/// A page-aligned buffer to send from, on huge pages where the system has them. Clones share it.
#[derive(Clone)]
pub(crate) struct Source {
    bytes: Bytes,
}

impl Source {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; SOURCE_LEN + PAGE_SIZE];
        // Before the first write, which decides the size of the pages.
        prefer_huge_pages(&mut bytes);
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        }
        let start = bytes.as_ptr().align_offset(PAGE_SIZE).min(PAGE_SIZE);
        Self { bytes: Bytes::from(bytes).slice(start..start + SOURCE_LEN) }
    }

    /// Pieces of `len` bytes, in order, for ever.
    pub(crate) fn pieces(&self, len: usize) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(len.clamp(1, SOURCE_LEN)).cycle()
    }

    /// The pieces as fragments of one registered region, from piece `first` on.
    pub(crate) fn region_frags(
        &self,
        len: usize,
        first: usize,
    ) -> impl Iterator<Item = Frag> + use<> {
        let region = region_of(self.bytes.clone());
        let len = len.clamp(1, SOURCE_LEN);
        let pieces = (0..SOURCE_LEN / len).cycle().skip(first % (SOURCE_LEN / len));
        pieces.map(move |i| region.frag(i * len, len).unwrap_or_default())
    }

    /// A part, none if it is not all there.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// The whole source by reference.
    pub(crate) fn frag(&self) -> Frag {
        Frag::from_bytes(self.bytes.clone())
    }

    /// Pieces of `len` bytes by reference, in order, for ever.
    pub(crate) fn frags(&self, len: usize) -> impl Iterator<Item = Frag> + use<> {
        let whole = self.frag();
        let len = len.clamp(1, SOURCE_LEN);
        (0..SOURCE_LEN / len).cycle().map(move |i| whole.slice(i * len..(i + 1) * len))
    }
}

/// The work of a receiver on the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reader {
    /// Nothing
    None,
    /// Sums every byte
    Sum,
}

impl Reader {
    /// Touches every byte, or none.
    pub(crate) fn see(self, bytes: &[u8]) {
        if self == Self::Sum {
            std::hint::black_box(sum(bytes));
        }
    }

    pub(crate) fn see_frag(self, frag: &Frag) {
        if self == Self::Sum {
            frag.for_each_piece(&mut CopyLedger::new(), |piece| self.see(piece));
        }
    }
}

/// Whether data is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Copy,
    /// By reference; a sender reads completions.
    Zerocopy,
}

/// The sum of all bytes as eight-byte words: the least work that needs each of them. Four parts are
/// read side by side, because one stream of loads uses half of the memory's rate.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let lines = |bytes| <[u8]>::as_chunks::<CACHE_LINE>(bytes).0;
    let part = bytes.len() / PARTS / CACHE_LINE * CACHE_LINE;
    let (front, rest) = bytes.split_at(part * PARTS);
    let mut parts = front.chunks_exact(part.max(1)).map(lines);
    let parts: [&[[u8; CACHE_LINE]]; PARTS] =
        std::array::from_fn(|_| parts.next().unwrap_or_default());
    let mut total = sum_in_order(rest);
    for line in 0..part / CACHE_LINE {
        for part in parts {
            total = total.wrapping_add(part.get(line).map_or(0, |line| sum_in_order(line)));
        }
    }
    total
}

fn sum_in_order(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let tail: u64 = rest.iter().map(|&b| u64::from(b)).sum();
    words.iter().fold(tail, |sum, w| sum.wrapping_add(u64::from_le_bytes(*w)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_page_aligned_and_walked_in_order() {
        let source = Source::new();
        let mut pieces = source.pieces(100 << 20);
        let first = pieces.next().unwrap();
        assert!(first.as_ptr().addr().is_multiple_of(PAGE_SIZE));
        let second = pieces.next().unwrap();
        assert_eq!(second.as_ptr().addr() - first.as_ptr().addr(), 100 << 20);
        assert_eq!(pieces.next().unwrap().as_ptr(), first.as_ptr());
        let mut frags = source.frags(100 << 20);
        assert_eq!(frags.next().unwrap().addr(), first.as_ptr().addr());
        assert_eq!(frags.next().unwrap().addr(), second.as_ptr().addr());
    }

    #[test]
    fn a_sum_needs_every_byte() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        let all = sum(&bytes);
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 1;
            assert_ne!(sum(&changed), all, "byte {i}");
        }
    }
}
