//! Numbers that strangers cannot predict: a keyed hash of a count, under the stack's secret.

use core::hash::Hasher;

use siphasher::sip::SipHasher13;

/// A sequence of such numbers. Some of them reveal nothing of the others.
pub(crate) struct Random {
    key: [u8; 16],
    drawn: u64,
}

impl Random {
    /// The sequence of this key, which nothing else uses.
    pub(crate) const fn new(key: [u8; 16]) -> Self {
        Self { key, drawn: 0 }
    }

    /// A number below `n`, which is not 0, each about equally often.
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
