//! Ephemeral ports that a stranger cannot guess (RFC 6056).

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

use crate::limits::{EPHEMERAL_FIRST, EPHEMERAL_LAST};

/// Counters, so that connections to one peer do not tell how many go to another.
const COUNTERS: usize = 64;

/// Chooses ports by the double-hash algorithm.
///
/// > RFC 6056 section 3.3.4: The basic idea of this algorithm is to introduce a random offset and
/// > a table of counters: offset = F(local_IP, remote_IP, remote_port, secret_key1); index =
/// > G(local_IP, remote_IP, remote_port, secret_key2); port = min_ephemeral + (offset +
/// > table\[index\]) % num_ephemeral
pub(crate) struct Ports {
    key: [u8; 16],
    counters: [u16; COUNTERS],
}

impl Ports {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self { key, counters: [0; COUNTERS] }
    }

    /// A port for `local` towards `remote` (none for a datagram socket) that `is_free` allows;
    /// `None` when it allows no ephemeral port at all.
    pub(crate) fn choose(
        &mut self,
        local: IpAddr,
        remote: Option<SocketAddr>,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let hash = self.hash(local, remote);
        // One hash of 64 bits serves as both functions: its halves are independent.
        let (offset, index) = (hash as u32, (hash >> 32) as usize % COUNTERS);
        let counter = self.counters.get_mut(index)?;
        let span = u32::from(EPHEMERAL_LAST - EPHEMERAL_FIRST) + 1;
        for _ in 0..span {
            let step = (offset % span + u32::from(*counter)) % span;
            *counter = ((u32::from(*counter) + 1) % span) as u16;
            let port = EPHEMERAL_FIRST + step as u16;
            if is_free(port) {
                return Some(port);
            }
        }
        None
    }

    fn hash(&self, local: IpAddr, remote: Option<SocketAddr>) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        for ip in [Some(local), remote.map(|r| r.ip())].into_iter().flatten() {
            match ip {
                IpAddr::V4(ip) => hasher.write_u32(ip.to_bits()),
                IpAddr::V6(ip) => hasher.write_u128(ip.to_bits()),
            }
        }
        hasher.write_u16(remote.map_or(0, |r| r.port()));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn peer() -> SocketAddr {
        "10.0.0.2:80".parse().unwrap()
    }

    fn local() -> IpAddr {
        "10.0.0.1".parse().unwrap()
    }

    #[test]
    fn every_port_of_the_range_is_used_before_one_comes_again() {
        let mut ports = Ports::new([7; 16]);
        let mut seen = HashSet::new();
        let span = usize::from(EPHEMERAL_LAST - EPHEMERAL_FIRST) + 1;
        for _ in 0..span {
            let port = ports.choose(local(), Some(peer()), |p| !seen.contains(&p)).unwrap();
            assert!((EPHEMERAL_FIRST..=EPHEMERAL_LAST).contains(&port));
            assert!(seen.insert(port));
        }
        assert_eq!(ports.choose(local(), Some(peer()), |p| !seen.contains(&p)), None);
    }

    #[test]
    fn another_key_gives_other_ports() {
        let first = |key| Ports::new([key; 16]).choose(local(), Some(peer()), |_| true);
        let distinct: HashSet<_> = (0..32).map(first).collect();
        assert!(distinct.len() > 24, "{distinct:?}");
    }

    #[test]
    fn another_peer_starts_elsewhere() {
        let mut ports = Ports::new([1; 16]);
        let mut first = |p: u16| {
            let peer = SocketAddr::new("10.0.0.9".parse().unwrap(), p);
            ports.choose(local(), Some(peer), |_| true)
        };
        let distinct: HashSet<_> = (1..33).map(&mut first).collect();
        assert!(distinct.len() > 24, "{distinct:?}");
    }
}
