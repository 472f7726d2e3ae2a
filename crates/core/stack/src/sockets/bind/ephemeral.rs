//! Ephemeral ports that a stranger cannot guess (RFC 6056).

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

use crate::limits::{EPHEMERAL_DRAWS, EPHEMERAL_FIRST, EPHEMERAL_LAST};
use crate::random::Random;

/// Counters, so that connections to one peer do not reveal how many go to another: two bytes each.
/// Their number is large because two peers that share a counter can find out that the same host
/// visits them (CVE-2022-32296).
const COUNTERS: usize = 4096;

const SPAN: u32 = (EPHEMERAL_LAST - EPHEMERAL_FIRST) as u32 + 1;

/// Chooses ports: by the double-hash algorithm, or for sockets without a peer at random.
///
/// Towards one peer the ports of connections are consecutive. Only that peer sees it, and each port
/// is used again as late as possible, after its TIME-WAIT at the peer.
///
/// > RFC 6056 section 3.3.4: The basic idea of this algorithm is to introduce a random offset and
/// > a table of counters: offset = F(local_IP, remote_IP, remote_port, secret_key1); index =
/// > G(local_IP, remote_IP, remote_port, secret_key2); port = min_ephemeral + (offset +
/// > table\[index\]) % num_ephemeral
///
/// A socket without a peer has nothing to hash: the port of one would reveal that of the next. A
/// random port is the main protection of a resolver against forged answers.
///
/// > RFC 6056 section 3.3.2: next_ephemeral = min_ephemeral + (random() % num_ephemeral)
pub(crate) struct EphemeralPorts {
    key: [u8; 16],
    counters: Box<[u16; COUNTERS]>,
    random: Random,
}

impl EphemeralPorts {
    pub(crate) fn new(key: [u8; 16], random: Random) -> Self {
        Self { key, counters: Box::new([0; COUNTERS]), random }
    }

    /// A port for `local` towards `remote`, if any, that `is_free` allows; `None` if there is none.
    pub(crate) fn choose(
        &mut self,
        local: IpAddr,
        remote: Option<SocketAddr>,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let port = |at: u32| EPHEMERAL_FIRST + (at % SPAN) as u16;
        let Some(remote) = remote else {
            let mut drawn = (0..EPHEMERAL_DRAWS).map(|_| port(self.random.below(SPAN)));
            if let Some(port) = drawn.find(|&port| is_free(port)) {
                return Some(port);
            }
            // Most are in use.
            let start = self.random.below(SPAN);
            return (start..start + SPAN).map(port).find(|&port| is_free(port));
        };
        let hash = self.hash(local, remote);
        // The two halves of one 64-bit hash are independent, and serve as RFC 6056's two functions.
        let (offset, index) = (hash as u32 % SPAN, (hash >> 32) as usize % COUNTERS);
        let counter = self.counters.get_mut(index)?;
        let start = offset + u32::from(*counter);
        let found = (start..start + SPAN).find(|&at| is_free(port(at)))?;
        *counter = ((u32::from(*counter) + found - start + 1) % SPAN) as u16;
        Some(port(found))
    }

    fn hash(&self, local: IpAddr, remote: SocketAddr) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        for ip in [local, remote.ip()] {
            match ip {
                IpAddr::V4(ip) => hasher.write_u32(ip.to_bits()),
                IpAddr::V6(ip) => hasher.write_u128(ip.to_bits()),
            }
        }
        hasher.write_u16(remote.port());
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

    fn ports(key: u8) -> EphemeralPorts {
        EphemeralPorts::new([key; 16], Random::new([key; 16]))
    }

    #[test]
    fn every_port_of_the_range_is_found_as_long_as_one_is_free() {
        for remote in [Some(peer()), None] {
            let mut ports = ports(7);
            let mut seen = HashSet::new();
            for _ in 0..SPAN {
                let port = ports.choose(local(), remote, |p| !seen.contains(&p)).unwrap();
                assert!((EPHEMERAL_FIRST..=EPHEMERAL_LAST).contains(&port));
                assert!(seen.insert(port));
            }
            assert_eq!(ports.choose(local(), remote, |p| !seen.contains(&p)), None);
        }
    }

    #[test]
    fn every_port_towards_one_peer_is_used_before_one_comes_again() {
        let mut ports = ports(5);
        let mut choose = || ports.choose(local(), Some(peer()), |_| true).unwrap();
        let found: HashSet<u16> = (0..SPAN).map(|_| choose()).collect();
        assert_eq!(found.len(), SPAN as usize);
    }

    #[test]
    fn port_of_a_socket_without_a_peer_says_nothing_of_the_next_one() {
        let mut ports = ports(9);
        let found: Vec<u16> =
            (0..10_000).map(|_| ports.choose(local(), None, |_| true).unwrap()).collect();
        // A draw of 10,000 numbers from 28,232 has some 8,400 distinct ones.
        let distinct: HashSet<_> = found.iter().collect();
        assert!((8_200..8_700).contains(&distinct.len()), "{}", distinct.len());
        let steps: HashSet<u16> = found.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 8_000, "{} distances", steps.len());
        let mut parts = [0; 16];
        for port in found {
            parts[usize::from(port - EPHEMERAL_FIRST) * 16 / SPAN as usize] += 1;
        }
        assert!(parts.iter().all(|n| (500..750).contains(n)), "{parts:?}");
    }

    #[test]
    fn another_key_gives_other_ports() {
        let first = |key| ports(key).choose(local(), Some(peer()), |_| true);
        let distinct: HashSet<_> = (0..32).map(first).collect();
        assert!(distinct.len() > 24, "{distinct:?}");
    }

    #[test]
    fn another_peer_starts_elsewhere() {
        let mut ports = ports(1);
        let mut first = |p: u16| {
            let peer = SocketAddr::new("10.0.0.9".parse().unwrap(), p);
            ports.choose(local(), Some(peer), |_| true)
        };
        let distinct: HashSet<_> = (1..33).map(&mut first).collect();
        assert!(distinct.len() > 24, "{distinct:?}");
    }
}
