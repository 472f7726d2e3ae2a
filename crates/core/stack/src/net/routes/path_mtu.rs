//! The table of path MTUs: what ICMP reported and a socket validated, and what the application set.
//! [`Net`](crate::net::Net) owns it; output reads the longest packet to a destination from it.

use std::net::IpAddr;

use pagewire_mem::Instant;

use crate::limits::{MIN_MTU_V6, MIN_PATH_MTU_V4, PATH_MTU_AGE, PATH_MTUS};
use crate::random::Random;

/// Path MTUs that were reported and validated.
#[derive(Debug)]
pub(crate) struct PathMtus {
    known: Vec<PathMtu>,
    /// When the next report expires, or earlier.
    next: Instant,
    random: Random,
}

#[derive(Debug)]
struct PathMtu {
    dst: IpAddr,
    mtu: usize,
    until: Instant,
}

impl PathMtus {
    pub(crate) fn new(random: Random) -> Self {
        Self { known: Vec::new(), next: Instant::FAR, random }
    }

    pub(crate) fn get(&self, now: Instant, dst: IpAddr) -> Option<(usize, Instant)> {
        let known = self.known.iter().find(|p| p.dst == dst && now < p.until)?;
        Some((known.mtu, known.until))
    }

    /// The MTU that was fixed, reports left aside.
    pub(crate) fn set_for(&self, dst: IpAddr) -> Option<usize> {
        let set = self.known.iter().find(|p| p.dst == dst && p.until == Instant::FAR)?;
        Some(set.mtu)
    }

    /// Notes a report; `false` if it changes nothing. A report only lowers an MTU.
    pub(crate) fn insert(&mut self, now: Instant, dst: IpAddr, mtu: usize) -> bool {
        let mtu = mtu.max(smallest_path_mtu(dst));
        let fixed = |until| until == Instant::FAR;
        if self.get(now, dst).is_some_and(|(known, until)| known <= mtu || fixed(until)) {
            return false;
        }
        self.known.retain(|p| p.dst != dst && now < p.until);
        if self.known.len() >= PATH_MTUS {
            // A random report goes: a peer that fills the table cannot tell from its own lost reports
            // whether that of another was believed (CVE-2021-20322). A fixed MTU is not evicted.
            let reports = self.known.iter().filter(|p| !fixed(p.until)).count() as u32;
            if reports == 0 {
                return false;
            }
            let one = self.random.below(reports) as usize;
            let places = self.known.iter().enumerate().filter(|(_, p)| !fixed(p.until));
            if let Some((place, _)) = places.into_iter().nth(one) {
                self.known.swap_remove(place);
            }
        }
        let until = now + PATH_MTU_AGE;
        self.known.push(PathMtu { dst, mtu, until });
        self.next = self.next.min(until);
        true
    }

    /// Fixes an MTU; `None` forgets it.
    pub(crate) fn set(&mut self, dst: IpAddr, mtu: Option<usize>) {
        self.known.retain(|p| p.dst != dst);
        let Some(mtu) = mtu else { return };
        if self.known.len() >= PATH_MTUS {
            self.known.remove(0);
        }
        self.known.push(PathMtu { dst, mtu, until: Instant::FAR });
    }

    /// Drops expired reports; returns whether there were any.
    ///
    /// > RFC 8201 section 4: An attempt to detect an increase (by sending a packet larger than the
    /// > current estimate) MUST NOT be done less than 5 minutes after a Packet Too Big message has
    /// > been received for the given path.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        let before = self.known.len();
        self.known.retain(|p| now < p.until);
        self.next = self.known.iter().map(|p| p.until).min().unwrap_or(Instant::FAR);
        self.known.len() < before
    }

    /// When the next report expires; [`Instant::FAR`]: none does.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Instant {
        self.next
    }
}

/// The smallest path MTU that a report may set.
pub(crate) fn smallest_path_mtu(dst: IpAddr) -> usize {
    match dst {
        IpAddr::V4(_) => MIN_PATH_MTU_V4,
        IpAddr::V6(_) => MIN_MTU_V6,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_path_mtu_is_lowered_only_bounded_and_forgotten_in_time() {
        let mut paths = PathMtus::new(Random::new([1; 16]));
        let (v4, v6): (IpAddr, IpAddr) = ("1.2.3.4".parse().unwrap(), "fd77::1".parse().unwrap());
        let t0 = Instant::ZERO;
        assert!(paths.insert(t0, v4, 1400));
        assert!(!paths.insert(t0, v4, 1450), "a report does not raise what is known");
        assert!(paths.insert(t0, v4, 100));
        assert_eq!(paths.get(t0, v4).map(|p| p.0), Some(MIN_PATH_MTU_V4));
        assert!(paths.insert(t0, v6, 68));
        assert_eq!(paths.get(t0, v6).map(|p| p.0), Some(MIN_MTU_V6));
        assert_eq!(paths.get(t0 + PATH_MTU_AGE, v4), None);
        for i in 0..2 * PATH_MTUS as u32 {
            paths.insert(t0, Ipv4Addr::from_bits(i).into(), 1000);
        }
        assert!(paths.known.len() <= PATH_MTUS);
    }

    #[test]
    fn reports_do_not_push_out_what_was_set_and_forgetting_pushes_out_nothing() {
        let mut paths = PathMtus::new(Random::new([1; 16]));
        let (t0, set, other): (_, IpAddr, IpAddr) =
            (Instant::ZERO, "1.2.3.4".parse().unwrap(), "1.2.3.5".parse().unwrap());
        paths.set(set, Some(1300));
        for i in 0..2 * PATH_MTUS as u32 {
            paths.insert(t0, Ipv4Addr::from_bits(i).into(), 1000);
        }
        assert_eq!(paths.get(t0, set).map(|p| p.0), Some(1300));
        let before = paths.known.len();
        paths.set(other, None);
        assert_eq!(paths.known.len(), before);
    }
}
