//! The oracle for streams: every byte is a function of the stream's number and the byte's offset.

/// Names a stream of bytes that never repeats within what a test can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub u64);

/// A wrong byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Offset of the wrong byte in the stream.
    pub at: u64,
    /// The right byte.
    pub expected: u8,
    /// The byte that was received.
    pub found: u8,
}

impl Stream {
    /// The bytes from `offset` on.
    pub fn fill(self, offset: u64, into: &mut [u8]) {
        let mut at = offset;
        let mut rest = into;
        while !rest.is_empty() {
            let word = self.word(at / 8).to_le_bytes();
            let skip = (at % 8) as usize;
            let n = rest.len().min(8 - skip);
            let (now, later) = rest.split_at_mut(n);
            now.copy_from_slice(&word[skip..skip + n]);
            at += n as u64;
            rest = later;
        }
    }

    /// `n` bytes from `offset` on.
    pub fn bytes(self, offset: u64, n: usize) -> Vec<u8> {
        let mut out = vec![0; n];
        self.fill(offset, &mut out);
        out
    }

    /// Whether `bytes` are those from `offset` on; else the first wrong one.
    pub fn check(self, offset: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let word = self.word(at / 8).to_le_bytes();
            let skip = (at % 8) as usize;
            let n = rest.len().min(8 - skip);
            let (now, later) = rest.split_at(n);
            let expected = &word[skip..skip + n];
            if now != expected {
                let pairs = now.iter().zip(expected).enumerate();
                for (i, (&found, &expected)) in pairs {
                    if found != expected {
                        return Err(Mismatch { at: at + i as u64, expected, found });
                    }
                }
            }
            at += n as u64;
            rest = later;
        }
        Ok(())
    }

    /// Eight bytes, by their offset. A mixer whose every input bit affects every output bit.
    fn word(self, index: u64) -> u64 {
        let mut z = self.0.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(index);
        z = z.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        z ^ (z >> 32)
    }
}
