//! [`LinkGroups`]: the groups that a link is a member of, for both versions of IP.

use std::net::IpAddr;

use pagewire_mem::Instant;

use super::groups::Groups;
use crate::net::links::config::LinkIndex;
use crate::net::wire::ethernet::Mac;
use crate::random::KeyedHash;
use crate::random::Random;

#[derive(Debug)]
pub(in crate::net) struct LinkGroups {
    /// When the next report is due. Cached, because every call reads it.
    at: Instant,
    /// By version of IP, IPv4 first.
    versions: Box<[Groups; 2]>,
}

impl LinkGroups {
    /// None yet, on the link at this index.
    pub(in crate::net) fn new(hash: &KeyedHash, index: LinkIndex, generation: u32) -> Self {
        let random = |version: &[u8]| {
            let parts: [&[u8]; 4] =
                [b"groups", version, &index.to_ne_bytes(), &generation.to_ne_bytes()];
            Groups::new(Random::new(hash.key(&parts)))
        };
        Self { at: Instant::FAR, versions: Box::new([random(b"4"), random(b"6")]) }
    }

    /// The groups of one version of IP.
    pub(super) fn of(&mut self, v6: bool) -> &mut Groups {
        let [v4_groups, v6_groups] = &mut *self.versions;
        if v6 { v6_groups } else { v4_groups }
    }

    pub(in crate::net) fn contains(&self, group: IpAddr) -> bool {
        let [v4, v6] = &*self.versions;
        if group.is_ipv4() { v4.contains(group) } else { v6.contains(group) }
    }

    /// Whether a frame to this group of stations may be to a group that the link is in.
    pub(in crate::net) fn accepts_mac(&self, mac: Mac) -> bool {
        self.versions.iter().flat_map(Groups::joined).any(|group| Mac::for_multicast(group) == mac)
    }

    /// When the next report is due; [`Instant::FAR`]: none is.
    #[inline(always)]
    pub(in crate::net) fn next_timeout(&self) -> Instant {
        self.at
    }

    /// The device is gone: nothing is reported any more.
    pub(in crate::net) fn quit(&mut self) {
        self.versions.iter_mut().for_each(Groups::quit);
        self.at = Instant::FAR;
    }

    pub(super) fn note(&mut self) {
        self.at = self.versions.iter().filter_map(Groups::poll_at).min().unwrap_or(Instant::FAR);
    }
}
