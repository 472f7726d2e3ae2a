//! Public types of links: the id ([`LinkId`]), the settings ([`LinkConfig`]), and the index inside the
//! stack.

use std::net::IpAddr;

use pagewire_mem::link::Capabilities;

use crate::cidr::Cidr;

/// A link of a stack: a device with addresses of its own. An id is never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    pub(in crate::net) index: LinkIndex,
    /// How many links had this index before.
    pub(in crate::net) generation: u32,
}

impl LinkId {
    /// The link that a stack is made with.
    pub const FIRST: Self = Self { index: 0, generation: 0 };

    /// The link's index among the links of the stack, from 0.
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// The link's number in the `scope_id` of an IPv6 socket address: the index plus 1.
    pub const fn scope_id(self) -> u32 {
        self.index as u32 + 1
    }
}

/// Place of a link.
pub(crate) type LinkIndex = u8;

/// Settings of a link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkConfig {
    /// The device's capabilities.
    pub capabilities: Capabilities,
    /// Our addresses on it, each with the length of its network's prefix. No two links have the
    /// same address. On Ethernet, a link-local address is added if any address is IPv6.
    pub addresses: Vec<Cidr>,
    /// Default gateways on it, in order of preference; those of earlier links come first.
    pub gateways: Vec<IpAddr>,
    /// Further routes: a network, and the gateway on this link that leads there. With an unspecified gateway the
    /// network is on the link itself: its hosts are neighbours, although none of our addresses is in it.
    pub routes: Vec<(Cidr, IpAddr)>,
    /// Every unicast address counts as ours on this link (Linux's AnyIP and `IP_TRANSPARENT`): as
    /// the destination of what comes in, and as the source of what leaves. Loopback and link-local
    /// addresses, groups and broadcast addresses do not. A socket that is bound to an unspecified
    /// address gets what comes for its port at any address; one of
    /// [`Stack::listen_every`](crate::Stack::listen_every) or
    /// [`Stack::bind_every`](crate::Stack::bind_every) gets all that no other takes. What comes in
    /// must come from an address that the routes assign to this link.
    pub transparent: bool,
    /// We answer ARP requests and neighbour solicitations for other hosts, too (Linux's `proxy_arp` and
    /// `proxy_ndp`): the hosts of this link reach every address of their networks through us. Not answered are probes
    /// for an address that is still free (RFC 5227, RFC 4862), and requests for addresses of known
    /// neighbours. For [transparent](Self::transparent) links.
    pub proxy_arp: bool,
}

impl LinkConfig {
    /// A link without gateways.
    pub fn new(capabilities: Capabilities, addresses: Vec<Cidr>) -> Self {
        let (gateways, routes) = (Vec::new(), Vec::new());
        Self { capabilities, addresses, gateways, routes, transparent: false, proxy_arp: false }
    }
}
