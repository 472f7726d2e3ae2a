//! What servers gave us for Fast Open, by our address and theirs.
//!
//! RFC 7413 section 4.1.3: a client keeps cookies for later connections, the last one of each pair of
//! addresses, its own and the server's; with it the MSS that the server announced.
//!
//! Sets of a few places each, found by a keyed hash: which servers push each other out is not for
//! them to choose. Within a set, the one that was learned of longest ago goes.

use core::hash::Hasher;
use std::net::IpAddr;

use pagewire_tcp::{FastOpenCookie, FastOpenOutcome, TryExperimental};
use siphasher::sip::SipHasher13;

use crate::limits::{FAST_OPEN_CACHE_SETS, FAST_OPEN_CACHE_WAYS};

/// All cookies.
pub(crate) struct CookieCache {
    key: [u8; 16],
    /// Empty until there is something to remember. In each set, the last learned first.
    sets: Vec<Vec<(IpAddr, IpAddr, Known)>>,
}

/// What is known of one server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Known {
    /// The MSS that it announced last.
    pub(crate) mss: Option<u16>,
    pub(crate) cookie: Option<FastOpenCookie>,
    try_experimental: TryExperimental,
}

impl Known {
    /// Whether to ask in the form from before the RFC.
    pub(crate) fn asks_experimentally(&self) -> bool {
        self.try_experimental == TryExperimental::Once
    }
}

impl CookieCache {
    pub(crate) const fn new(key: [u8; 16]) -> Self {
        Self { key, sets: Vec::new() }
    }

    pub(crate) fn get(&self, local: IpAddr, remote: IpAddr) -> Known {
        let set = self.sets.get(self.set_of(local, remote)).map_or(&[][..], Vec::as_slice);
        let found = set.iter().find(|(l, r, _)| *l == local && *r == remote);
        found.map_or_else(Known::default, |(_, _, known)| *known)
    }

    pub(crate) fn learn(&mut self, local: IpAddr, remote: IpAddr, outcome: &FastOpenOutcome) {
        let mut known = self.get(local, remote);
        known.mss = Some(outcome.mss);
        if outcome.cookie.is_some() {
            known.cookie = outcome.cookie;
        } else if known.cookie.is_none() {
            known.try_experimental = known.try_experimental.max(outcome.try_experimental);
        }
        if self.sets.is_empty() {
            self.sets.resize_with(FAST_OPEN_CACHE_SETS, Vec::new);
        }
        let index = self.set_of(local, remote);
        let Some(set) = self.sets.get_mut(index) else { return };
        set.retain(|(l, r, _)| !(*l == local && *r == remote));
        set.truncate(FAST_OPEN_CACHE_WAYS - 1);
        set.insert(0, (local, remote, known));
    }

    pub(crate) fn clear(&mut self) {
        self.sets = Vec::new();
    }

    fn set_of(&self, local: IpAddr, remote: IpAddr) -> usize {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        for ip in [local, remote] {
            match ip {
                IpAddr::V4(ip) => hasher.write_u32(ip.to_bits()),
                IpAddr::V6(ip) => hasher.write_u128(ip.to_bits()),
            }
        }
        hasher.finish() as usize % FAST_OPEN_CACHE_SETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(n).into()
    }

    fn outcome(mss: u16, cookie: Option<&[u8]>) -> FastOpenOutcome {
        let cookie = cookie.and_then(|c| FastOpenCookie::from_option(c, false));
        FastOpenOutcome { mss, cookie, ..FastOpenOutcome::default() }
    }

    #[test]
    fn rfc7413_4_1_3_the_last_cookie_and_mss_of_a_pair_of_addresses_are_kept() {
        let mut cache = CookieCache::new([1; 16]);
        cache.learn(ip(1), ip(2), &outcome(1460, Some(&[1, 2, 3, 4])));
        cache.learn(ip(1), ip(2), &outcome(940, None));
        let known = cache.get(ip(1), ip(2));
        assert_eq!(known.mss, Some(940));
        assert_eq!(known.cookie.map(|c| c.as_slice().to_vec()), Some(vec![1, 2, 3, 4]));
        assert!(cache.get(ip(2), ip(1)).cookie.is_none());
        cache.learn(ip(1), ip(2), &outcome(940, Some(&[5, 6, 7, 8])));
        let known = cache.get(ip(1), ip(2));
        assert_eq!(known.cookie.map(|c| c.as_slice().to_vec()), Some(vec![5, 6, 7, 8]));
        cache.clear();
        assert!(cache.get(ip(1), ip(2)).cookie.is_none());
    }

    #[test]
    fn rfc7413_4_1_3_1_a_server_without_answer_is_asked_in_the_old_form_once() {
        let mut cache = CookieCache::new([1; 16]);
        let answer = |try_experimental| FastOpenOutcome { try_experimental, ..outcome(1460, None) };
        assert!(!cache.get(ip(1), ip(2)).asks_experimentally());
        cache.learn(ip(1), ip(2), &answer(TryExperimental::Once));
        assert!(cache.get(ip(1), ip(2)).asks_experimentally());
        cache.learn(ip(1), ip(2), &answer(TryExperimental::Never));
        assert!(!cache.get(ip(1), ip(2)).asks_experimentally());
        cache.learn(ip(1), ip(2), &answer(TryExperimental::Once));
        assert!(!cache.get(ip(1), ip(2)).asks_experimentally());
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut cache = CookieCache::new([1; 16]);
        let many = 4 * (FAST_OPEN_CACHE_SETS * FAST_OPEN_CACHE_WAYS) as u32;
        for n in 0..many {
            cache.learn(ip(1), ip(n), &outcome(1460, Some(&[1, 2, 3, 4])));
        }
        let entries: usize = cache.sets.iter().map(Vec::len).sum();
        assert!(entries <= FAST_OPEN_CACHE_SETS * FAST_OPEN_CACHE_WAYS);
        assert!(cache.get(ip(1), ip(many - 1)).cookie.is_some());
    }
}
