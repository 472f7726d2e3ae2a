//! The links of a stack, with the state of each.
//!
//! The first link is a field of its own. A new link takes the index of a removed one.

pub(super) mod config;

use std::collections::VecDeque;
use std::net::IpAddr;

use pagewire_mem::link::{Capabilities, Medium};
use pagewire_mem::{Instant, PacketBuf};

use crate::error::StackError;
use crate::limits::{ANNOUNCEMENTS, MAX_IP_PACKET, MAX_LINKS, MAX_SUPER_PACKET};
use crate::net::links::config::{LinkConfig, LinkId, LinkIndex};
use crate::net::multicast::link_groups::LinkGroups;
use crate::net::neighbors::Neighbors;
use crate::net::wire::ethernet::Mac;
use crate::random::{KeyedHash, Random};
use crate::rate_limit::IcmpLimit;

/// The properties of a device that this layer uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceLimits {
    pub(super) medium: Medium,
    pub(super) mac: Mac,
    /// Longest IP packet on the wire.
    pub(super) mtu: usize,
    /// Longest IP packet of a super-frame, by family, which software cuts if the device does not.
    pub(super) max_super_v4: usize,
    pub(super) max_super_v6: usize,
    pub(super) max_super_udp: usize,
    pub(super) tx_checksum: bool,
    pub(super) tso_v4: bool,
    pub(super) tso_v6: bool,
    pub(super) uso: bool,
    /// Fragments of one frame; 0: frames are one piece.
    pub(super) max_frags: usize,
}

impl DeviceLimits {
    fn new(caps: &Capabilities) -> Self {
        let max_super = |tso| match caps.medium {
            _ if tso => caps.max_super_frame.clamp(caps.mtu, MAX_SUPER_PACKET.max(caps.mtu)),
            Medium::Ethernet => MAX_IP_PACKET,
            Medium::Ip => caps.mtu,
        };
        Self {
            medium: caps.medium,
            mac: Mac(caps.mac),
            mtu: caps.mtu.min(MAX_IP_PACKET),
            max_super_v4: max_super(caps.tso_v4),
            max_super_v6: max_super(caps.tso_v6),
            max_super_udp: if caps.uso {
                max_super(true).min(MAX_IP_PACKET)
            } else {
                MAX_IP_PACKET
            },
            tx_checksum: caps.tx_checksum,
            tso_v4: caps.tso_v4,
            tso_v6: caps.tso_v6,
            uso: caps.uso,
            max_frags: caps.max_frags,
        }
    }

    /// Longest super-frame to `dst`, as an IP packet.
    pub(super) fn max_super(&self, dst: IpAddr) -> usize {
        if dst.is_ipv4() { self.max_super_v4 } else { self.max_super_v6 }
    }
}

pub(super) struct Interface {
    pub(super) device: DeviceLimits,
    pub(super) neighbors: Neighbors,
    pub(super) groups: LinkGroups,
    pub(super) has_v4: bool,
    pub(super) has_v6: bool,
    /// See [`LinkConfig::transparent`](super::LinkConfig).
    pub(super) transparent: bool,
    /// See [`LinkConfig::proxy_arp`](super::LinkConfig).
    pub(super) proxy_arp: bool,
    pub(super) out: VecDeque<PacketBuf>,
    /// Limit of ICMP errors about packets that came in here.
    pub(super) icmp_limit: IcmpLimit,
    /// Announcements left, and when the next is due.
    pub(super) announcements: u8,
    pub(super) announce_at: Instant,
    /// Before this moment no address is defended.
    pub(super) defend_after: Instant,
    generation: u32,
    pub(super) name: Option<Box<str>>,
    /// Not removed.
    pub(super) up: bool,
    /// The link's device failed for good.
    pub(super) lost: bool,
}

impl Interface {
    pub(super) fn new(
        now: Instant,
        caps: &Capabilities,
        hash: KeyedHash,
        announce: bool,
        (place, generation): (LinkIndex, u32),
    ) -> Self {
        let random = hash.key(&[b"icmp limit", &place.to_ne_bytes(), &generation.to_ne_bytes()]);
        let icmp_limit = IcmpLimit::new(now, hash.clone(), Random::new(random));
        let announce = announce && caps.medium == Medium::Ethernet;
        Self {
            device: DeviceLimits::new(caps),
            groups: LinkGroups::new(&hash, place, generation),
            neighbors: Neighbors::new(hash),
            has_v4: false,
            has_v6: false,
            transparent: false,
            proxy_arp: false,
            out: VecDeque::new(),
            icmp_limit,
            announcements: if announce { ANNOUNCEMENTS } else { 0 },
            announce_at: now,
            defend_after: now,
            generation,
            name: None,
            up: true,
            lost: false,
        }
    }

    /// Sets whose packets the link takes, and for whom it answers.
    pub(super) fn set_modes(&mut self, config: &LinkConfig) {
        self.transparent = config.transparent;
        self.proxy_arp = config.transparent && config.proxy_arp;
    }

    /// Whether solicitations to this group are read: it is that of some address that we answer for.
    pub(super) fn stands_for_group(&self, group: IpAddr) -> bool {
        const SOLICITED: [u8; 13] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];
        self.proxy_arp
            && matches!(group, IpAddr::V6(group) if group.octets().starts_with(&SOLICITED))
    }

    /// Whether frames to this group of stations may hold such solicitations.
    pub(super) fn stands_for_mac(&self, mac: Mac) -> bool {
        self.proxy_arp && mac.0.starts_with(&[0x33, 0x33, 0xff])
    }

    /// Closes a removed link; returns how many packets are lost.
    pub(super) fn close(&mut self, hash: KeyedHash) -> usize {
        let lost = self.lose(hash);
        (self.up, self.lost) = (false, false);
        lost
    }

    /// The device is gone for good, addresses and routes stay; returns how many packets are lost.
    pub(super) fn lose(&mut self, hash: KeyedHash) -> usize {
        let lost = self.out.len() + self.neighbors.queued();
        self.out = VecDeque::new();
        self.groups.quit();
        self.neighbors = Neighbors::new(hash);
        (self.lost, self.announcements) = (true, 0);
        lost
    }

    /// Whether frames can leave by it.
    pub(super) fn is_usable(&self) -> bool {
        self.up && !self.lost
    }

    /// When the next timeout is due; [`Instant::FAR`]: none is.
    #[inline]
    pub(super) fn next_timeout(&self) -> Instant {
        let announce = if self.announcements > 0 { self.announce_at } else { Instant::FAR };
        announce.min(self.neighbors.next_timeout()).min(self.groups.next_timeout())
    }
}

pub(super) struct Links {
    first: Interface,
    others: Vec<Interface>,
}

impl Links {
    pub(super) fn new(first: Interface) -> Self {
        Self { first, others: Vec::new() }
    }

    /// The link at a valid index.
    #[inline(always)]
    pub(super) fn at(&self, index: LinkIndex) -> &Interface {
        match usize::from(index).checked_sub(1) {
            None => &self.first,
            Some(other) => self.others.get(other).unwrap_or(&self.first),
        }
    }

    #[inline(always)]
    pub(super) fn at_mut(&mut self, index: LinkIndex) -> &mut Interface {
        match usize::from(index).checked_sub(1) {
            None => &mut self.first,
            Some(other) => self.others.get_mut(other).unwrap_or(&mut self.first),
        }
    }

    #[inline]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Interface> {
        core::iter::once(&self.first).chain(&self.others)
    }

    pub(super) fn indices(&self) -> impl Iterator<Item = LinkIndex> + use<> {
        0..=self.others.len() as LinkIndex
    }

    /// Whether there is, or was, more than one.
    pub(super) fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// The index of a link that was not removed.
    pub(super) fn find(&self, id: LinkId) -> Option<LinkIndex> {
        let known = id.index() <= self.others.len();
        let interface = self.at(id.index);
        (known && interface.up && interface.generation == id.generation).then_some(id.index)
    }

    pub(super) fn id_at(&self, index: LinkIndex) -> LinkId {
        LinkId { index, generation: self.at(index).generation }
    }

    /// An index for another link, and how many links had the index before.
    pub(super) fn vacancy(&self) -> Result<(LinkIndex, u32), StackError> {
        let free = self.indices().find(|&index| !self.at(index).up);
        if let Some(index) = free {
            return Ok((index, self.at(index).generation.wrapping_add(1)));
        }
        let given = self.others.len() + 2;
        if given > MAX_LINKS {
            return Err(StackError::TooMany { what: "links", given, limit: MAX_LINKS });
        }
        Ok((self.others.len() as LinkIndex + 1, 0))
    }

    /// Puts a link at the index that [`vacancy`](Self::vacancy) gave.
    pub(super) fn insert(&mut self, index: LinkIndex, interface: Interface) -> LinkId {
        let id = LinkId { index, generation: interface.generation };
        if usize::from(index) > self.others.len() {
            self.others.push(interface);
        } else {
            *self.at_mut(index) = interface;
        }
        id
    }
}
