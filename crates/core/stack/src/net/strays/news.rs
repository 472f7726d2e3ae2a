//! What one shard tells all others ([`News`]).

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::limits::STRAY_NEWS;
use crate::net::input::received::QuotedPacket;
use crate::net::links::config::LinkIndex;
use crate::net::neighbors::NeighborClaim;

/// News for all other shards, until they leave together. Newer news replace older ones of the same subject. The maps
/// are trees: peers choose the keys, and a hash would need a random key.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Claims about neighbours.
    pub(in crate::net) neighbors: BTreeMap<(LinkIndex, IpAddr), NeighborClaim>,
    /// Reports that a packet was too long for its path, and the MTU there.
    pub(in crate::net) path_reports: BTreeMap<QuotedPacket, usize>,
}

impl News {
    pub(super) fn is_empty(&self) -> bool {
        self.neighbors.is_empty() && self.path_reports.is_empty()
    }

    /// Adds a report about the path of a packet; without room, another follows the next packet that is too long.
    pub(super) fn add_path_report(&mut self, about: QuotedPacket, mtu: usize) {
        if self.path_reports.len() < STRAY_NEWS || self.path_reports.contains_key(&about) {
            self.path_reports.insert(about, mtu);
        }
    }

    /// Adds a claim about a neighbour; without room, the others learn of the neighbour from a later one.
    pub(super) fn add_neighbor(&mut self, link: LinkIndex, addr: IpAddr, claim: NeighborClaim) {
        let key = (link, addr);
        if self.neighbors.len() >= STRAY_NEWS && !self.neighbors.contains_key(&key) {
            return;
        }
        let older = self.neighbors.get(&key);
        let claim = older.map_or(claim, |older| claim.after(older));
        self.neighbors.insert(key, claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::wire::ethernet::Mac;

    #[test]
    fn newer_news_of_a_neighbour_lose_nothing_that_older_ones_had() {
        let claim = |mac: Option<u8>, [solicited, overrides, create]: [bool; 3]| NeighborClaim {
            mac: mac.map(|n| Mac([2, 0, 0, 0, 0, n])),
            solicited,
            overrides,
            create,
        };
        let (yes, no) = (true, false);
        for (older, newer, both) in [
            // An answer is one although a request comes after it.
            ((Some(1), [yes, yes, no]), (Some(1), [no, yes, yes]), (Some(1), [yes, yes, yes])),
            // An advertisement that names no station leaves the one that is known.
            ((Some(1), [no, yes, yes]), (None, [yes, no, no]), (Some(1), [yes, yes, yes])),
            // Another station takes the place of the one that answered.
            ((Some(1), [yes, yes, no]), (Some(2), [no, yes, no]), (Some(2), [no, yes, no])),
            // Without the flag it only puts that one in doubt.
            ((Some(1), [yes, yes, no]), (Some(2), [yes, no, no]), (Some(1), [no, yes, no])),
        ] {
            let mut news = News::default();
            let addr = "10.0.0.3".parse().unwrap();
            for (mac, bits) in [older, newer] {
                news.add_neighbor(0, addr, claim(mac, bits));
            }
            let NeighborClaim { mac, solicited, overrides, create } = news.neighbors[&(0, addr)];
            let got = (mac.map(|mac| mac.0[5]), [solicited, overrides, create]);
            assert_eq!(got, both, "{older:?} {newer:?}");
        }
    }

    #[test]
    fn news_are_of_a_limited_number_of_subjects() {
        let mut news = News::default();
        let claim = NeighborClaim { mac: None, solicited: false, overrides: false, create: true };
        for n in 0..2 * STRAY_NEWS as u32 {
            news.add_neighbor(0, std::net::Ipv4Addr::from_bits(n).into(), claim);
        }
        assert_eq!(news.neighbors.len(), STRAY_NEWS);
    }
}
