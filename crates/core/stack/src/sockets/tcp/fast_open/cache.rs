//! A client's memory of servers with Fast Open: cookies by local and remote address ([`CookieCache`]), and
//! refusals of data in a SYN, by remote port too ([`Refusals`]).
//!
//! RFC 7413 section 4.1.3: a client keeps cookies for later connections, the last one of each pair
//! of addresses, its own and the server's; with it the MSS that the server announced.
//!
//! Both tables are sets of a few slots, found by a keyed hash, so that servers cannot choose which others
//! they evict. Within a set, the oldest entry is evicted.

use core::hash::{Hash, Hasher};
use std::net::IpAddr;

use pagewire_mem::Instant;
use pagewire_tcp::{FastOpenCookie, FastOpenOutcome, SynData, TryExperimental};
use siphasher::sip::SipHasher13;

use crate::limits::{
    FAST_OPEN_CACHE_SETS, FAST_OPEN_CACHE_WAYS, FAST_OPEN_REFUSAL_DOUBLINGS, FAST_OPEN_REFUSAL_REST,
};
use crate::sockets::tuple::Tuple;

/// A bounded map.
struct BoundedMap<K, V> {
    key: [u8; 16],
    /// Empty until the first entry. In each set, the newest first.
    sets: Vec<Vec<(K, V)>>,
}

impl<K: Hash + Eq, V> BoundedMap<K, V> {
    const fn new(key: [u8; 16]) -> Self {
        Self { key, sets: Vec::new() }
    }

    fn get(&self, key: &K) -> Option<&V> {
        let set = self.sets.get(self.set_of(key))?;
        set.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.sets.is_empty() {
            self.sets.resize_with(FAST_OPEN_CACHE_SETS, Vec::new);
        }
        self.remove(&key);
        let index = self.set_of(&key);
        let Some(set) = self.sets.get_mut(index) else { return };
        set.truncate(FAST_OPEN_CACHE_WAYS - 1);
        set.insert(0, (key, value));
    }

    fn remove(&mut self, key: &K) {
        let index = self.set_of(key);
        if let Some(set) = self.sets.get_mut(index) {
            set.retain(|(k, _)| k != key);
        }
    }

    fn clear(&mut self) {
        self.sets = Vec::new();
    }

    fn set_of(&self, key: &K) -> usize {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        key.hash(&mut hasher);
        hasher.finish() as usize % FAST_OPEN_CACHE_SETS
    }
}

pub(crate) struct CookieCache(BoundedMap<(IpAddr, IpAddr), ServerRecord>);

/// The client's knowledge of one server.
#[derive(Clone, Copy, Default)]
pub(crate) struct ServerRecord {
    pub(crate) mss: Option<u16>,
    pub(crate) cookie: Option<FastOpenCookie>,
    try_experimental: TryExperimental,
}

impl ServerRecord {
    /// Whether to request a cookie with the experimental option.
    pub(crate) fn asks_experimentally(&self) -> bool {
        self.try_experimental == TryExperimental::Once
    }
}

impl CookieCache {
    pub(crate) const fn new(key: [u8; 16]) -> Self {
        Self(BoundedMap::new(key))
    }

    pub(crate) fn get(&self, local: IpAddr, remote: IpAddr) -> ServerRecord {
        self.0.get(&(local, remote)).copied().unwrap_or_default()
    }

    pub(crate) fn learn(&mut self, local: IpAddr, remote: IpAddr, outcome: &FastOpenOutcome) {
        // No answer, nothing to learn.
        let Some(mss) = outcome.mss else { return };
        let mut known = self.get(local, remote);
        known.mss = Some(mss);
        if outcome.cookie.is_some() {
            known.cookie = outcome.cookie;
        } else if known.cookie.is_none() {
            known.try_experimental = known.try_experimental.max(outcome.try_experimental);
        }
        self.0.insert((local, remote), known);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Servers that did not take the data of a SYN, or did not get it.
///
/// > RFC 7413 section 4.1.3.1: For any negative response, the client SHOULD disable Fast Open on the
/// > specific path (the source and destination IP addresses) at least temporarily. Since TFO is
/// > enabled on a per-service-port basis, but cookies are independent of service ports, the client's
/// > cache should include remote port numbers, too.
pub(crate) struct Refusals(BoundedMap<(IpAddr, IpAddr, u16), RefusalRecord>);

#[derive(Clone, Copy)]
struct RefusalRecord {
    /// Until then a SYN carries nothing that the refused one carried.
    until: Instant,
    /// Refusals in a row.
    times: u32,
    /// The SYN also had the option.
    with_option: bool,
}

impl Refusals {
    pub(crate) const fn new(key: [u8; 16]) -> Self {
        Self(BoundedMap::new(key))
    }

    /// Whether a SYN should carry no data, and no option either if `with_option`.
    pub(crate) fn is_suspended(&self, now: Instant, to: &Tuple, with_option: bool) -> bool {
        let known = self.0.get(&(to.local, to.remote, to.remote_port));
        known.is_some_and(|known| now < known.until && (known.with_option || !with_option))
    }

    /// Learns from an outcome; whether that is a refusal.
    pub(crate) fn learn(&mut self, now: Instant, to: &Tuple, outcome: &FastOpenOutcome) -> bool {
        let key = (to.local, to.remote, to.remote_port);
        match outcome.syn_data {
            SynData::Unknown => false,
            SynData::Taken => {
                self.0.remove(&key);
                false
            }
            SynData::Refused => {
                let before = self.0.get(&key).map_or(0, |known| known.times);
                let rest = FAST_OPEN_REFUSAL_REST * (1 << before.min(FAST_OPEN_REFUSAL_DOUBLINGS));
                let (until, times) = (now + rest, before.saturating_add(1));
                self.0.insert(key, RefusalRecord { until, times, with_option: outcome.had_option });
                true
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn ip(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(n).into()
    }

    fn outcome(mss: u16, cookie: Option<&[u8]>) -> FastOpenOutcome {
        let cookie = cookie.and_then(|c| FastOpenCookie::from_option(c, false));
        FastOpenOutcome { mss: Some(mss), cookie, ..FastOpenOutcome::default() }
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
        let entries: usize = cache.0.sets.iter().map(Vec::len).sum();
        assert!(entries <= FAST_OPEN_CACHE_SETS * FAST_OPEN_CACHE_WAYS);
        assert!(cache.get(ip(1), ip(many - 1)).cookie.is_some());
    }

    fn to(port: u16) -> Tuple {
        Tuple::new(SocketAddr::new(ip(1), 5000), SocketAddr::new(ip(2), port))
    }

    fn ended(syn_data: SynData, had_option: bool) -> FastOpenOutcome {
        FastOpenOutcome { syn_data, had_option, ..FastOpenOutcome::default() }
    }

    #[test]
    fn rfc7413_4_1_3_1_each_refusal_in_a_row_doubles_the_rest_up_to_a_limit() {
        let mut refusals = Refusals::new([1; 16]);
        let mut now = Instant::from_millis(1000);
        let mut rest = FAST_OPEN_REFUSAL_REST;
        for doublings in 0..FAST_OPEN_REFUSAL_DOUBLINGS + 3 {
            assert!(refusals.learn(now, &to(80), &ended(SynData::Refused, true)));
            let last = now + rest - core::time::Duration::from_millis(1);
            assert!(refusals.is_suspended(last, &to(80), true));
            now += rest;
            assert!(!refusals.is_suspended(now, &to(80), true));
            if doublings < FAST_OPEN_REFUSAL_DOUBLINGS {
                rest *= 2;
            }
        }
        refusals.learn(now, &to(80), &ended(SynData::Taken, true));
        refusals.learn(now, &to(80), &ended(SynData::Refused, true));
        assert!(
            !refusals.is_suspended(now + FAST_OPEN_REFUSAL_REST, &to(80), true),
            "the first again"
        );
    }

    #[test]
    fn rfc7413_4_1_3_1_a_refusal_is_of_one_port_and_of_what_was_tried() {
        let mut refusals = Refusals::new([1; 16]);
        let now = Instant::from_millis(1000);
        refusals.learn(now, &to(80), &ended(SynData::Refused, false));
        assert!(
            refusals.is_suspended(now, &to(80), false)
                && !refusals.is_suspended(now, &to(81), false)
        );
        assert!(!refusals.is_suspended(now, &to(80), true), "with a cookie it may be taken");
        refusals.learn(now, &to(81), &ended(SynData::Refused, true));
        assert!(
            refusals.is_suspended(now, &to(81), false) && refusals.is_suspended(now, &to(81), true)
        );
        assert!(!refusals.learn(now, &to(81), &ended(SynData::Unknown, true)));
        assert!(refusals.is_suspended(now, &to(81), true));
    }

    #[test]
    fn refusals_are_bounded() {
        let mut refusals = Refusals::new([1; 16]);
        for n in 0..u16::MAX {
            refusals.learn(Instant::ZERO, &to(n), &ended(SynData::Refused, true));
        }
        let entries: usize = refusals.0.sets.iter().map(Vec::len).sum();
        assert!(entries <= FAST_OPEN_CACHE_SETS * FAST_OPEN_CACHE_WAYS);
        assert!(refusals.is_suspended(Instant::ZERO, &to(u16::MAX - 1), true));
    }
}
