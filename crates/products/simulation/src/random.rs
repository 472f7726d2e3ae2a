//! [`SimRng`]: random numbers from the seed.
//!
//! Every consumer has numbers of its own, so a further host or link does not shift those of others.

use std::hash::Hasher;

use pagewire_device::FaultRng;
use rand_core::{Infallible, TryRng};
use siphasher::sip::SipHasher24;

/// Random numbers that depend on the seed alone; not for secrets. Implements `Rng` of `rand_core`
/// 0.10, so that `rand` 0.10 works with it.
#[derive(Clone, Debug)]
pub struct SimRng(FaultRng);

impl SimRng {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(FaultRng::new(seed))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.below(n)
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for n in (1..list.len()).rev() {
            list.swap(n, self.below(n as u64 + 1) as usize);
        }
    }

    /// Whether something happens that does so in `part` of all cases, from 0 to 1.
    pub fn chance(&mut self, part: f64) -> bool {
        // 53 bits, as many as an f64 holds exactly.
        ((self.next_u64() >> 11) as f64) < part * (1_u64 << 53) as f64
    }
}

impl TryRng for SimRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.next_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next_u64())
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        for chunk in dst.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        }
        Ok(())
    }
}

pub(crate) fn split(seed: u64, consumer: &str, number: u64) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(seed, 0x7061_6765_7769_7265);
    hasher.write(consumer.as_bytes());
    hasher.write(&[0xff]);
    hasher.write(&number.to_le_bytes());
    hasher.finish()
}

pub(crate) fn secret(seed: u64, host: &str, incarnation: u32) -> [u8; 32] {
    let mut random = SimRng::new(split(seed, host, u64::from(incarnation)));
    let mut secret = [0; 32];
    let Ok(()) = random.try_fill_bytes(&mut secret);
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_have_numbers_of_their_own() {
        let all = [split(7, "a", 0), split(7, "a", 1), split(7, "b", 0), split(8, "a", 0)];
        let mut distinct = all.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(split(7, "a", 0), all[0]);
        assert_ne!(secret(7, "a", 0), secret(7, "a", 1), "a restarted host has another secret");
    }

    #[test]
    fn a_chance_is_a_part_of_all_cases() {
        let mut random = SimRng::new(1);
        let count = |part, random: &mut SimRng| (0..10_000).filter(|_| random.chance(part)).count();
        assert_eq!(count(0.0, &mut random), 0);
        assert_eq!(count(1.0, &mut random), 10_000);
        assert!((2_300..2_700).contains(&count(0.25, &mut random)));
    }
}
