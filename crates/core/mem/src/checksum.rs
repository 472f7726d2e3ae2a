//! The Internet checksum (RFC 1071), summed over pieces of any length: of headers, of fragments, and in
//! place of a device's offload.

use crate::copy::CopyLedger;
use crate::frag::Frag;

/// A running one's-complement sum. Pieces may have odd lengths: the sum remembers the parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    sum: u64,
    odd: bool,
}

impl Checksum {
    /// The sum of nothing.
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// Adds the bytes of a slice.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        // Native-endian words (RFC 1071 section 2(B)): the sum is byte-swapped, undone in `fold`.
        let mut sum: u64 = 0;
        let mut chunks = bytes.chunks_exact(4);
        for c in &mut chunks {
            if let Ok(word) = <[u8; 4]>::try_from(c) {
                sum += u64::from(u32::from_ne_bytes(word));
            }
        }
        let mut tail = [0u8; 4];
        for (to, from) in tail.iter_mut().zip(chunks.remainder()) {
            *to = *from;
        }
        sum += u64::from(u32::from_ne_bytes(tail));
        let folded = fold64(sum);
        // A piece that starts at an odd offset contributes byte-swapped (RFC 1071 section 2(B)).
        self.sum += u64::from(if self.odd { folded.swap_bytes() } else { folded });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds a 16-bit word in network order; only at an even offset.
    pub fn add_u16(&mut self, word: u16) {
        debug_assert!(!self.odd, "only at an even offset");
        self.sum += u64::from(word.to_be());
    }

    /// Adds a fragment's bytes. Shared memory is read through snapshots.
    pub fn add_frag(&mut self, frag: &Frag, ledger: &mut CopyLedger) {
        frag.for_each_piece(ledger, |piece| self.add_bytes(piece));
    }

    /// The 16-bit sum, not complemented, in host order.
    pub fn sum(&self) -> u16 {
        u16::from_be(fold64(self.sum))
    }

    /// The checksum: the complement of the sum, in host order.
    pub fn finish(&self) -> u16 {
        !self.sum()
    }
}

fn fold64(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}
