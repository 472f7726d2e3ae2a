//! Rate limits of answers to strangers, which reveal nothing to one stranger about another.

use core::net::IpAddr;
use std::collections::HashMap;

use pagewire_mem::Instant;

use crate::limits::{
    ICMP_DESTINATION_BURST, ICMP_DESTINATION_INTERVAL, ICMP_DESTINATIONS, ICMP_ERRORS_BURST,
    ICMP_ERRORS_PER_SECOND,
};
use crate::random::{KeyedHash, Random};

/// A bucket of permits that fills with time.
///
/// At an equal cost, a stranger could count the permits of others (CVE-2020-25705, CVE-2016-5696).
/// A permit costs zero, one or two, at random, and one on average.
#[derive(Debug)]
pub(crate) struct RateLimit {
    /// In nanoseconds: the credit, perhaps negative; the average cost of a permit; the most credit.
    credit: i64,
    cost: i64,
    full: i64,
    last: Instant,
    random: Random,
}

impl RateLimit {
    /// Limits to `per_second` permits on average, and `burst` at once.
    pub(crate) fn new(now: Instant, (per_second, burst): (u32, u32), random: Random) -> Self {
        let cost = 1_000_000_000 / i64::from(per_second.max(1));
        let full = cost * i64::from(burst);
        Self { credit: full, cost, full, last: now, random }
    }

    /// Takes a permit, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_since(self.last).as_nanos();
        self.last = self.last.max(now);
        let passed = i64::try_from(passed).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(passed).min(self.full);
        if self.credit < self.cost {
            return false;
        }
        self.credit -= self.cost * i64::from(self.random.below(3));
        true
    }
}

/// How many ICMP errors leave by one link (RFC 4443 section 2.4(f), RFC 1812 section 4.3.2.8).
///
/// Each destination's own bucket comes first: a refusal there takes nothing from the bucket for
/// all, so that packets with one forged source cannot empty that. Only the destination itself can
/// see how full its bucket is. A full table would reveal strangers to each other again; this one
/// has room for all that the bucket for all admits while a destination's fills.
pub(crate) struct IcmpLimit {
    all: RateLimit,
    /// When the bucket of a destination is full again; full buckets are forgotten.
    full_at: HashMap<IpAddr, Instant, KeyedHash>,
    /// Number of entries from which on to look for full buckets.
    sweep_at: usize,
}

impl IcmpLimit {
    const LEAST_SWEEP: usize = 64;

    pub(crate) fn new(now: Instant, key: KeyedHash, random: Random) -> Self {
        let all = RateLimit::new(now, (ICMP_ERRORS_PER_SECOND, ICMP_ERRORS_BURST), random);
        Self { all, full_at: HashMap::with_hasher(key), sweep_at: Self::LEAST_SWEEP }
    }

    /// Takes a permit for an error to this destination, if there is one; `None`: any destination.
    pub(crate) fn take(&mut self, now: Instant, to: Option<IpAddr>) -> bool {
        let Some(to) = to else { return self.all.take(now) };
        let full_at = self.full_at.get(&to).map_or(now, |&at| at.max(now));
        let next = full_at + ICMP_DESTINATION_INTERVAL;
        if next > now + ICMP_DESTINATION_INTERVAL * ICMP_DESTINATION_BURST {
            return false;
        }
        if self.full_at.len() >= self.sweep_at {
            self.full_at.retain(|_, at| *at > now);
            self.sweep_at = (2 * self.full_at.len()).clamp(Self::LEAST_SWEEP, ICMP_DESTINATIONS);
        }
        let known = self.full_at.contains_key(&to);
        if (!known && self.full_at.len() >= ICMP_DESTINATIONS) || !self.all.take(now) {
            return false;
        }
        self.full_at.insert(to, next);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;

    fn addr(n: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n).into())
    }

    fn limit(key: u8) -> IcmpLimit {
        IcmpLimit::new(Instant::ZERO, KeyedHash([key; 16]), Random::new([key; 16]))
    }

    #[test]
    fn a_burst_is_allowed_and_then_the_rate_on_average() {
        let mut limit = RateLimit::new(Instant::ZERO, (1000, 200), Random::new([7; 16]));
        let mut taken = |ms| (0..10_000).filter(|_| limit.take(Instant::from_millis(ms))).count();
        assert!((150..=260).contains(&taken(0)));
        assert_eq!(taken(0), 0);
        assert!((70..=130).contains(&taken(100)));
        assert!((150..=260).contains(&taken(60_000)));
    }

    #[test]
    fn how_many_permits_a_bucket_has_cannot_be_foretold() {
        let burst = |key| {
            let mut limit = RateLimit::new(Instant::ZERO, (1000, 50), Random::new([key; 16]));
            (0..1000).filter(|_| limit.take(Instant::ZERO)).count()
        };
        let found: Vec<usize> = (0..100).map(burst).collect();
        let distinct: HashSet<_> = found.iter().collect();
        assert!(distinct.len() >= 12, "{found:?}");
        let mean = found.iter().sum::<usize>() / found.len();
        assert!((48..=54).contains(&mean), "{mean}");
        assert!(found.iter().all(|n| (25..=90).contains(n)), "{found:?}");
    }

    #[test]
    fn what_one_destination_is_refused_takes_nothing_from_the_others() {
        // The scan of CVE-2020-25705: many packets in the name of one, then one in our own.
        let mut limit = limit(1);
        let told = (0..1000).filter(|_| limit.take(Instant::ZERO, Some(addr(1)))).count();
        assert_eq!(told, ICMP_DESTINATION_BURST as usize);
        assert!(limit.take(Instant::ZERO, Some(addr(2))));
    }

    #[test]
    fn a_destination_has_a_burst_and_then_one_in_each_interval() {
        let mut limit = limit(2);
        let mut told =
            |at| (0..100).filter(|_| limit.take(Instant::ZERO + at, Some(addr(1)))).count();
        assert_eq!(told(Duration::ZERO), ICMP_DESTINATION_BURST as usize);
        assert_eq!(told(ICMP_DESTINATION_INTERVAL * 3), 3);
        assert_eq!(told(ICMP_DESTINATION_INTERVAL * 1000), ICMP_DESTINATION_BURST as usize);
    }

    #[test]
    fn destinations_that_are_remembered_are_bounded_and_never_so_many_that_one_is_missed() {
        let mut limit = limit(3);
        let mut most = 0;
        // A flood from made-up addresses, each its own, for a minute.
        for ms in 0..60_000_u32 {
            for n in 0..3 {
                limit.take(Instant::from_millis(u64::from(ms)), Some(addr(3 * ms + n)));
            }
            most = most.max(limit.full_at.len());
        }
        assert!(most < ICMP_DESTINATIONS, "{most}: no destination is refused for want of room");
        limit.take(Instant::from_millis(1_000_000), Some(addr(0)));
        assert!(limit.full_at.len() <= most);
    }
}
