//! [`IsnGenerator`]: initial sequence numbers (RFC 6528) and timestamp offsets, from a secret and the clock.
//! The stack has one.

use core::net::{IpAddr, SocketAddr};

use pagewire_mem::Instant;
use siphasher::sip::SipHasher13;

use crate::seq::Seq;

/// Makes numbers that an attacker cannot guess, from a secret of the host.
#[derive(Clone)]
pub struct IsnGenerator {
    hasher: SipHasher13,
}

/// The use of a hash: the same addresses give unrelated numbers for each.
#[derive(Clone, Copy)]
#[repr(u8)]
enum HashPurpose {
    Sequence = 1,
    Timestamp = 2,
}

impl IsnGenerator {
    /// From a secret of 128 random bits.
    pub fn new(key: [u8; 16]) -> Self {
        Self { hasher: SipHasher13::new_with_key(&key) }
    }

    /// The number of the next SYN from `local` to `remote`.
    ///
    /// > RFC 6528 section 3: ISN = M + F(localip, localport, remoteip, remoteport, secretkey),
    /// > where M is the 4 microsecond timer, and F() is a pseudorandom function (PRF) of the
    /// > connection-id.
    pub fn generate(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> Seq {
        let m = (now.as_micros() / 4) as u32;
        Seq(m.wrapping_add(self.hash(HashPurpose::Sequence, local, remote)))
    }

    /// The offset of timestamps to the clock.
    ///
    /// > RFC 7323 section 5.4: A random offset may be added to the timestamp clock on a
    /// > per-connection basis.
    ///
    /// Two ends always get the same offset, so that timestamps grow as RFC 6191 requires.
    pub fn timestamp_offset(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.hash(HashPurpose::Timestamp, local, remote)
    }

    fn hash(&self, purpose: HashPurpose, local: SocketAddr, remote: SocketAddr) -> u32 {
        hash_ends(&self.hasher, None, purpose as u64, local, remote) as u32
    }
}

/// Hashes the word `before`, if there is one, and the two ends of a connection for a purpose (at
/// most 24 bits). One of the words has the IP version, so no two pairs of ends are the same input.
#[inline]
pub(crate) fn hash_ends(
    hasher: &SipHasher13,
    before: Option<u64>,
    purpose: u64,
    local: SocketAddr,
    remote: SocketAddr,
) -> u64 {
    let first = purpose << 40 | u64::from(local.port()) << 16 | u64::from(remote.port());
    match (local.ip(), remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => {
            let addresses = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
            let first = first | 4 << 32;
            match before {
                None => hash_words(hasher, [first, addresses]),
                Some(before) => hash_words(hasher, [before, first, addresses]),
            }
        }
        (local, remote) => {
            let (local, remote) = (v6_bits(local), v6_bits(remote));
            let [a, b] = [local as u64, (local >> 64) as u64];
            let [c, d] = [remote as u64, (remote >> 64) as u64];
            let first = first | 6 << 32;
            match before {
                None => hash_words(hasher, [first, a, b, c, d]),
                Some(before) => hash_words(hasher, [before, first, a, b, c, d]),
            }
        }
    }
}

#[inline]
fn hash_words<const N: usize>(hasher: &SipHasher13, words: [u64; N]) -> u64 {
    hasher.hash(words.map(u64::to_le_bytes).as_flattened())
}

pub(crate) fn v6_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl core::fmt::Debug for IsnGenerator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key is a secret.
        f.debug_struct("IsnGenerator").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "isn_tests.rs"]
mod tests;
