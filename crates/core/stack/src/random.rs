//! Keys, keyed hashes and random numbers that strangers cannot predict. Each follows from the
//! stack's secret, and reveals nothing about the others.

use core::hash::{BuildHasher, Hasher};

use siphasher::sip::SipHasher13;

/// Derives the key for one purpose from the stack's secret.
pub(crate) fn derive(secret: &[u8; 32], purpose: &[u8]) -> [u8; 16] {
    let (mut key, mut out) = ([0u8; 16], [0u8; 16]);
    for (half, to) in secret.chunks(16).zip(out.chunks_mut(8)) {
        key.copy_from_slice(half);
        let mut hasher = SipHasher13::new_with_key(&key);
        hasher.write(purpose);
        to.copy_from_slice(&hasher.finish().to_ne_bytes());
    }
    out
}

/// A hasher for tables whose keys peers choose. Peers do not know the hasher's own key.
#[derive(Clone, Debug)]
pub(crate) struct KeyedHash(pub(crate) [u8; 16]);

impl BuildHasher for KeyedHash {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

impl KeyedHash {
    /// Derives a key for another purpose, which `parts` name.
    pub(crate) fn key(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut key = [0; 16];
        for (half, name) in key.chunks_mut(8).zip([b"first", b"other"]) {
            let mut hasher = self.build_hasher();
            [name.as_slice()].iter().chain(parts).for_each(|part| hasher.write(part));
            half.copy_from_slice(&hasher.finish().to_ne_bytes());
        }
        key
    }

    /// Hashes `parts` to 64 bits that a peer cannot predict.
    pub(crate) fn digest(&self, parts: &[&[u8]]) -> u64 {
        let mut hasher = self.build_hasher();
        for part in parts {
            hasher.write(part);
        }
        hasher.finish()
    }
}

/// A sequence of random numbers: a keyed hash of a count. Known numbers reveal nothing of the others.
pub(crate) struct Random {
    key: [u8; 16],
    drawn: u64,
}

impl Random {
    /// Begins the sequence of `key`, which nothing else may use.
    pub(crate) const fn new(key: [u8; 16]) -> Self {
        Self { key, drawn: 0 }
    }

    /// Draws a number below `n`, each about equally often. `n` must not be 0.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u64(self.drawn);
        self.drawn = self.drawn.wrapping_add(1);
        // The upper half of a product: no number comes more often than another by more than 2^-32.
        ((hasher.finish() >> 32).wrapping_mul(u64::from(n)) >> 32) as u32
    }
}

impl core::fmt::Debug for Random {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Without the key.
        f.debug_struct("Random").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fall_evenly_and_follow_from_the_key() {
        let draw = |key| {
            let mut random = Random::new([key; 16]);
            (0..30_000).map(|_| random.below(3)).collect::<Vec<_>>()
        };
        let first = draw(1);
        for n in 0..3 {
            let times = first.iter().filter(|&&drawn| drawn == n).count();
            assert!((9_700..10_300).contains(&times), "{n} came {times} times of 30,000");
        }
        assert_eq!(first, draw(1));
        assert_ne!(first, draw(2));
    }
}
