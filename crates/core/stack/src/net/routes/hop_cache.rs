//! The cache of next hops: a small direct-mapped table of the last destinations, each with its
//! finished link header. Output tries the cache first; a packet that misses takes the slow path.

use std::net::IpAddr;

use pagewire_mem::Instant;

use crate::limits::ROUTE_CACHE;
use crate::net::links::config::LinkIndex;
use crate::net::wire::ethernet;

/// Destinations that are ready to send to; those chosen to collide take the slow path.
pub(crate) struct HopCache {
    slots: Box<[Option<CachedHop>; ROUTE_CACHE]>,
}

/// A destination that is ready to send to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedHop {
    /// Checked: an address of ours, or any on a transparent link.
    pub(crate) src: IpAddr,
    /// The way is the same from every other address that is not ours.
    pub(crate) any_source: bool,
    pub(crate) dst: IpAddr,
    /// Generation of the link's neighbours, the routes and the path MTUs together.
    pub(crate) generation: u32,
    pub(crate) until: Instant,
    /// The link that forwarded packets come in by.
    pub(crate) by: LinkIndex,
    /// The link it leaves by.
    pub(crate) out: LinkIndex,
    /// The finished link header; `None` on a medium without stations.
    pub(crate) link: Option<[u8; ethernet::LEN]>,
    /// The MTU of the path, in bytes of IP packet.
    pub(crate) mtu: usize,
}

impl HopCache {
    pub(crate) fn new() -> Self {
        Self { slots: Box::new([None; ROUTE_CACHE]) }
    }

    /// `generation` returns the current one of a link; `is_foreign`, called only where it matters, whether
    /// `src` may be sent from on a transparent link although it is not ours.
    #[inline(always)]
    pub(crate) fn get(
        &self,
        now: Instant,
        src: IpAddr,
        dst: IpAddr,
        generation: impl FnOnce(LinkIndex) -> u32,
        is_foreign: impl FnOnce() -> bool,
    ) -> Option<&CachedHop> {
        let hop = self.slots.get(slot(dst))?.as_ref()?;
        let same = hop.dst == dst
            && (hop.src == src || (hop.any_source && is_foreign()))
            && hop.generation == generation(hop.out);
        (same && now < hop.until).then_some(hop)
    }

    pub(crate) fn insert(&mut self, hop: CachedHop) {
        if let Some(place) = self.slots.get_mut(slot(hop.dst)) {
            *place = Some(hop);
        }
    }
}

fn slot(dst: IpAddr) -> usize {
    let bits = match dst {
        IpAddr::V4(a) => u64::from(a.to_bits()),
        IpAddr::V6(a) => {
            let bits = a.to_bits();
            (bits ^ (bits >> 64)) as u64
        }
    };
    // The high bits of a product depend on all bits of its factors (Fibonacci hashing).
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % ROUTE_CACHE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_any_source_may_take_serves_all_that_are_not_ours() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let mut cache = HopCache::new();
        let (guest, far, other) = (ip("10.0.0.1"), ip("192.0.2.1"), ip("192.0.2.2"));
        for any_source in [false, true] {
            cache.insert(CachedHop {
                src: far,
                any_source,
                dst: guest,
                generation: 7,
                until: Instant::FAR,
                by: 0,
                out: 0,
                link: None,
                mtu: 1500,
            });
            let hit =
                |src, foreign| cache.get(Instant::ZERO, src, guest, |_| 7, || foreign).is_some();
            assert!(hit(far, false));
            assert_eq!(hit(other, true), any_source);
            assert!(!hit(other, false), "an address of ours has its own way");
        }
    }
}
