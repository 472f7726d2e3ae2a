//! The network layer: frames become transport packets, and transport packets become frames.
//!
//! Read [`Net`] first. It owns all links, tables and memory of the layer; each subject has a folder, with
//! the steps of the subject as methods of [`Net`]:
//!
//! | folder | subject |
//! |---|---|
//! | `input/` | parses frames (byte path, steps R2 and R3); reassembly |
//! | `output/` | makes frames (steps S4 and S5) |
//! | `ip_forward.rs` | passes packets from link to link |
//! | `links/`, `routes/`, `neighbors/` | our links and addresses; next hops; stations (ARP, NDP) |
//! | `icmp/`, `multicast/` | echo and errors; IGMP and MLD |
//! | `wire/` | formats of headers |
//!
//! The layer reads no clock and no random source: time and the secret are arguments.
//!
//! Not supported: routers and addresses learned from advertisements (RFC 4861 section 6, RFC 4862),
//! redirects, VLANs, multicast routing, jumbograms (RFC 2675), source routes. Such packets are counted.

use std::collections::VecDeque;
use std::net::IpAddr;

use pagewire_mem::{CopyLedger, Instant, PAGE_SIZE, PacketBuf, PagePool, PageWriter};
use pagewire_tcp::Shared;

use self::input::reassembly::Reassembly;
use self::input::received::Origin;
use self::ip_forward::ForwardingCache;
use self::links::{Interface, Links};
use self::output::answer::LastNeighbor;
use self::routes::hop_cache::HopCache;
use self::routes::path_mtu::{PathMtus, smallest_path_mtu};
use self::routes::{Delivery, Hop, Routes};
use self::strays::ShardState;
use crate::cidr::Cidr;
use crate::counters::{Counters, DropReason};
use crate::error::{Error, StackError};
use crate::limits::{CONGESTED_FRAMES, MAX_IP_PACKET};
use crate::random::{KeyedHash, Random};
use crate::shards::Shard;
use crate::sockets::pages::waiters::{FreePages, reserve};

mod head;
mod icmp;
mod input;
mod ip_forward;
mod links;
mod multicast;
mod neighbors;
mod output;
mod routes;
mod strays;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

pub use icmp::unreachable::{Flow, Unreachable};
pub(crate) use input::expected::Expected;
pub(crate) use input::received::{IcmpKind, Inbound, InputResult, QuotedPacket, Received};
pub(crate) use links::config::LinkIndex;
pub use links::config::{LinkConfig, LinkId};
pub(crate) use routes::is_link_local;
pub use strays::queue::Stray;
pub(crate) use wire::protocol;

/// The stack's memory for payload, and the limits that all TCP connections share.
pub(crate) struct Mem {
    pub pool: PagePool,
    /// Writes bytes into pages.
    pub writer: PageWriter,
    /// Hands out pages that the application's closures fill.
    pub filler: PageWriter,
    pub ledger: CopyLedger,
    pub shared: Shared,
}

impl Mem {
    /// Begins with no page taken from `pool`.
    pub(crate) fn new(pool: PagePool, shared: Shared) -> Self {
        let (writer, filler) = (PageWriter::new(), PageWriter::new());
        Self { pool, writer, filler, ledger: CopyLedger::new(), shared }
    }

    /// Counts the pool's pages that are in use in the account, and lets promises expire.
    #[inline]
    pub(crate) fn note(&mut self, now: Instant) {
        self.shared.memory.handle_time(now);
        self.note_pages();
    }

    /// Counts the pool's pages that are in use in the account.
    #[inline]
    pub(crate) fn note_pages(&mut self) {
        let stats = self.pool.stats();
        self.shared.memory.set_copies((stats.total - stats.free) * PAGE_SIZE);
    }

    /// Bytes that connections may still have copied to the pool's pages, but for data that can leave at once.
    #[inline]
    pub(crate) fn free_for_copies(&self) -> usize {
        let pages = self.pool.stats().free.saturating_sub(reserve(&self.pool));
        (pages * PAGE_SIZE).min(self.shared.memory.free_for_copies())
    }

    /// Pages that sockets which wait for some may have.
    pub(crate) fn free_pages(&self) -> FreePages {
        FreePages { all: self.pool.stats().free, shared: self.free_for_copies() / PAGE_SIZE }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct NetConfig {
    pub first_link: LinkConfig,
    /// Keys the tables that peers fill, and the identification fields.
    pub secret: [u8; 32],
    /// Whether payload that loops back to ourselves passes by reference; otherwise it is copied
    /// (`CopyReason::LoopPrivate`).
    pub loopback_by_reference: bool,
    /// Whether our addresses are announced on the link at the start.
    pub announce: bool,
    /// The place among the shards of the host.
    pub shard: Option<Shard>,
    /// Whether frames carry private copies of payload sent by reference with a notification.
    pub looped_copy: bool,
    /// Whether packets are dropped whose answers would leave by another link.
    pub reverse_path_check: bool,
}

/// When a packet is too long to be sent in one piece, and what is done then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// Beyond the known path MTU it is cut.
    #[default]
    CutToPath,
    /// Beyond the MTU of our link it is cut.
    CutToLink,
    /// Beyond the known path MTU it is refused.
    RefusedByPath,
    /// Beyond the MTU of our link it is refused: a probe learns a smaller MTU from ICMP.
    RefusedByLink,
}

/// A transport packet to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// An address of ours: see [`Net::source_for`].
    pub src: IpAddr,
    pub dst: IpAddr,
    /// See [`protocol`].
    pub protocol: u8,
    /// ECN bits for the IP header.
    pub ecn: u8,
    /// Routers may not cut it (IPv4; RFC 1191 section 3), if it leaves in one piece.
    pub dont_fragment: bool,
    pub too_long: TooLong,
    /// `None`: the default of 64.
    pub hop_limit: Option<u8>,
    /// The link that it leaves by; `None`: that of the route.
    pub by: Option<LinkIndex>,
    /// Offset of the checksum in the transport header, the field being 0; `None`: there is none.
    pub checksum_offset: Option<u16>,
    /// Head: the transport header. Fragments: the payload. `gso.header_len` counts the transport
    /// header only. Needs 62 bytes of headroom ([`PacketBuf::for_tx`] and a header of at most 66).
    pub packet: PacketBuf,
}

/// The link and network layers of a stack.
pub(crate) struct Net {
    /// Counters of the whole stack, sockets included.
    pub counters: Counters,
    /// Memory of the whole stack, sockets included.
    pub mem: Mem,
    links: Links,
    routes: Routes,
    cache: HopCache,
    paths: PathMtus,
    /// Counts changes of `paths`. Routes and neighbours count their own.
    path_generation: u32,
    reassembly: Reassembly,
    /// Keyed hash for tables that peers fill.
    table_key: KeyedHash,
    /// Keyed hash for everything else.
    keyed: KeyedHash,
    /// Counters behind identification fields, chosen by a hash of the addresses.
    ids: Box<[u32; 256]>,
    loopback_by_reference: bool,
    looped_copy: bool,
    reverse_path_check: bool,
    announce: bool,
    forwarding: Option<Box<ForwardingCache>>,
    shard: Option<Box<ShardState>>,
    /// Packets of this host to itself, their heads at the IP header. The link of a packet to a group is
    /// the one that is a member.
    loopback: VecDeque<(LinkIndex, PacketBuf)>,
    /// Errors for the sockets: the neighbour of a sent packet did not answer.
    notices: VecDeque<Inbound>,
    /// Source, destination and link of the last unicast packet that was found valid.
    last_delivered: Option<(IpAddr, IpAddr, LinkIndex)>,
    last_neighbor: Option<LastNeighbor>,
    /// The time of the last call.
    now: Instant,
}

impl Net {
    /// Checks the configuration.
    pub(crate) fn new(now: Instant, config: &NetConfig, mem: Mem) -> Result<Self, StackError> {
        let (mut table_key, mut keyed) = ([0; 16], [0; 16]);
        let (first, second) = config.secret.split_at(16);
        table_key.copy_from_slice(first);
        keyed.copy_from_slice(second);
        let table_key = KeyedHash(table_key);
        let mut routes = Routes::default();
        routes.add_link(0, &config.first_link)?;
        let (caps, hash) = (&config.first_link.capabilities, table_key.clone());
        let mut interface = Interface::new(now, caps, hash, config.announce, (0, 0));
        (interface.has_v4, interface.has_v6) =
            (routes.has_family(0, false), routes.has_family(0, true));
        interface.set_modes(&config.first_link);
        if let Some(shard) = config.shard.as_ref().filter(|_| interface.proxy_arp) {
            interface.neighbors.share(shard.neighbors_on(0));
        }
        let state = |shard| ShardState::new(shard, &config.secret);
        let shard = config.shard.as_ref().map(state).transpose()?;
        let mut net = Self {
            counters: Counters::new(),
            mem,
            links: Links::new(interface),
            routes,
            cache: HopCache::new(),
            paths: PathMtus::new(Random::new(table_key.key(&[b"paths"]))),
            path_generation: 0,
            reassembly: Reassembly::new(table_key.clone()),
            table_key,
            keyed: KeyedHash(keyed),
            ids: Box::new([0; 256]),
            loopback_by_reference: config.loopback_by_reference,
            looped_copy: config.looped_copy,
            reverse_path_check: config.reverse_path_check,
            announce: config.announce,
            shard: shard.map(Box::new),
            forwarding: None,
            loopback: VecDeque::new(),
            notices: VecDeque::new(),
            last_delivered: None,
            last_neighbor: None,
            now,
        };
        net.join_solicited(now, 0);
        Ok(net)
    }

    /// Adds a link. On an error nothing has changed.
    pub(crate) fn add_link(
        &mut self,
        now: Instant,
        config: &LinkConfig,
    ) -> Result<LinkId, StackError> {
        let (index, generation) = self.links.vacancy()?;
        self.routes.add_link(index, config)?;
        let (caps, hash) = (&config.capabilities, self.table_key.clone());
        let mut interface = Interface::new(now, caps, hash, self.announce, (index, generation));
        (interface.has_v4, interface.has_v6) =
            (self.routes.has_family(index, false), self.routes.has_family(index, true));
        interface.set_modes(config);
        if let Some(state) = self.shard.as_ref().filter(|_| interface.proxy_arp) {
            interface.neighbors.share(state.shard().neighbors_on(index));
        }
        let id = self.links.insert(index, interface);
        self.join_solicited(now, index);
        self.handle_links_changed();
        Ok(id)
    }

    /// Removes a link with its addresses, routes and waiting packets; `false` if it is gone.
    pub(crate) fn remove_link(&mut self, id: LinkId) -> bool {
        let Some(index) = self.links.find(id) else { return false };
        self.routes.remove_link(index);
        let interface = self.links.at_mut(index);
        let lost = interface.close(self.table_key.clone());
        self.counters.drop_many(DropReason::LinkRemoved, lost as u64);
        self.handle_links_changed();
        true
    }

    /// The device of a link is gone: waiting packets are lost. Whether no link is left to send.
    pub(crate) fn handle_link_lost(&mut self, link: LinkIndex) -> bool {
        let lost = self.links.at_mut(link).lose(self.table_key.clone());
        self.counters.drop_many(DropReason::LinkLost, lost as u64);
        self.handle_links_changed();
        !self.links.iter().any(Interface::is_usable)
    }

    /// Whether packets from `src` (ours) to `dst` would leave by a link whose device is gone.
    pub(crate) fn is_lost(
        &self,
        now: Instant,
        (src, dst): (IpAddr, IpAddr),
        by: Option<LinkIndex>,
    ) -> bool {
        self.links.iter().any(|link| link.lost)
            && self.outgoing_link(now, (src, dst), by).is_some_and(|link| self.links.at(link).lost)
    }

    /// The link, `by` if given, that packets from `src` to `dst` leave by; `None`: they stay here.
    pub(crate) fn outgoing_link(
        &self,
        now: Instant,
        (src, dst): (IpAddr, IpAddr),
        by: Option<LinkIndex>,
    ) -> Option<LinkIndex> {
        (!self.is_local(dst)).then(|| by.unwrap_or_else(|| self.link_to(now, Some(src), dst)))
    }

    /// The index of the link that a socket is bound to, if any.
    ///
    /// # Errors
    /// `NetworkDown` if the link was removed.
    pub(crate) fn bound_link(&self, to: Option<LinkId>) -> Result<Option<LinkIndex>, Error> {
        let Some(id) = to else { return Ok(None) };
        self.links.find(id).map(Some).ok_or(Error::NetworkDown)
    }

    /// The link that a packet came by; `None` for a packet of this host, except to a group.
    #[inline(always)]
    pub(crate) fn came_by(&self, received: &Received) -> Option<LinkId> {
        (!received.loopback || received.dst.is_multicast()).then(|| self.links.id_at(received.link))
    }

    /// As [`source_for`](Self::source_for), for a socket that may send `by` one link only.
    pub(crate) fn source_by(
        &self,
        dst: IpAddr,
        scope: u32,
        by: Option<LinkIndex>,
    ) -> Result<IpAddr, Error> {
        match by {
            None => self.source_for(dst, scope),
            // The source has the group's scope.
            Some(link) if dst.is_multicast() => self.routes.source_for(self.now, Some(link), dst),
            Some(link) => self.routes.source_by(self.now, link, dst),
        }
    }

    /// Whether packets wait for a neighbour's answer or for their device. Attempts to connect do not count:
    /// once their socket is closed, nobody wants them.
    pub(crate) fn has_waiting(&self) -> bool {
        self.links.iter().any(|link| link.neighbors.holds_data() || !link.out.is_empty())
    }

    #[inline]
    pub(crate) fn find_link(&self, id: LinkId) -> Option<LinkIndex> {
        self.links.find(id)
    }

    #[inline]
    pub(crate) fn link_id(&self, index: LinkIndex) -> LinkId {
        self.links.id_at(index)
    }

    pub(crate) fn link_name(&self, id: LinkId) -> Option<String> {
        let interface = self.links.at(self.links.find(id)?);
        let given = interface.name.as_deref().map(str::to_owned);
        Some(given.unwrap_or_else(|| format!("link{}", id.scope_id())))
    }

    /// Names a link; `false` if it is gone.
    pub(crate) fn name_link(&mut self, id: LinkId, name: &str) -> bool {
        let Some(index) = self.links.find(id) else { return false };
        self.links.at_mut(index).name = Some(name.into());
        true
    }

    /// The link that has this address of ours, or, if it is no address of ours, the only one.
    pub(crate) fn link_of_address(&self, local: IpAddr) -> Option<LinkId> {
        let only = || (!self.links.are_several() && !local.is_unspecified()).then_some(0);
        let index = self.routes.owner(local).or_else(only)?;
        Some(self.links.id_at(index)).filter(|&id| self.links.find(id).is_some())
    }

    pub(crate) fn link_addresses(&self, id: LinkId) -> impl Iterator<Item = Cidr> {
        self.links.find(id).into_iter().flat_map(|index| self.routes.of_link(index))
    }

    pub(crate) fn link_indices(&self) -> impl Iterator<Item = LinkIndex> + use<> {
        self.links.indices()
    }

    /// Iterates over the links that were not removed.
    pub(crate) fn link_ids(&self) -> impl Iterator<Item = LinkId> {
        self.links.indices().filter(|&i| self.links.at(i).up).map(|i| self.links.id_at(i))
    }

    // Getters.

    /// The address that packets to `dst`, if link-local on link `scope`, are sent from.
    pub(crate) fn source_for(&self, dst: IpAddr, scope: u32) -> Result<IpAddr, Error> {
        let scope = match dst {
            _ if scope == 0 || !self.links.are_several() => None,
            IpAddr::V6(_) => self.links.indices().find(|&i| u32::from(i) + 1 == scope),
            IpAddr::V4(_) => None,
        };
        self.routes.source_for(self.now, scope, dst)
    }

    /// The [`LinkId::scope_id`] of a link-local address if there are several links; else 0.
    #[inline(always)]
    pub(crate) fn scope_of(&self, addr: IpAddr, link: LinkIndex) -> u32 {
        let scoped = self.links.are_several() && is_link_local(addr);
        if scoped { u32::from(link) + 1 } else { 0 }
    }

    /// The scope of both ends of a connection from this address of ours.
    pub(crate) fn scope_of_local(&self, local: IpAddr) -> u32 {
        match is_link_local(local) {
            true => self.routes.owner(local).map_or(0, |link| self.scope_of(local, link)),
            false => 0,
        }
    }

    /// The link that packets from `src` (ours) to `dst` leave by; the first if there is none.
    fn link_to(&self, now: Instant, src: Option<IpAddr>, dst: IpAddr) -> LinkIndex {
        match self.links.are_several() {
            false => 0,
            true => self.routes.link_to(now, src, dst).unwrap_or(0),
        }
    }

    /// The longest IP packet known to reach `dst` in one piece.
    pub(crate) fn mtu_for(&self, dst: IpAddr) -> usize {
        match self.routes.is_local(dst) {
            true => MAX_IP_PACKET,
            false => self.path_mtu(self.now, self.link_to(self.now, None, dst), dst).0,
        }
    }

    /// The longest IP packet that gets from `src` to `dst` in one piece, and the longest
    /// super-frame (as an IP packet) that [`send`](Self::send) takes for it.
    pub(crate) fn link_limits(
        &self,
        src: IpAddr,
        dst: IpAddr,
        by: Option<LinkIndex>,
    ) -> (usize, usize) {
        let Some(link) = self.outgoing_link(self.now, (src, dst), by) else {
            return (MAX_IP_PACKET, MAX_IP_PACKET);
        };
        (self.path_mtu(self.now, link, dst).0, self.links.at(link).device.max_super(dst))
    }

    /// The longest IP packet that our link takes from `src` (ours) to `dst` in one piece.
    pub(crate) fn link_mtu(&self, src: IpAddr, dst: IpAddr, by: Option<LinkIndex>) -> usize {
        let link = self.outgoing_link(self.now, (src, dst), by);
        link.map_or(MAX_IP_PACKET, |link| self.links.at(link).device.mtu)
    }

    /// The longest IP packet that may come from `dst` to `src`: the link's MTU, unless the
    /// application set one for the path, as the MTU of a route in Linux.
    pub(crate) fn own_mtu(&self, src: IpAddr, dst: IpAddr, by: Option<LinkIndex>) -> usize {
        let link = self.link_mtu(src, dst, by);
        self.paths.set_for(dst).map_or(link, |mtu| mtu.min(link))
    }

    /// Whether the address is ours (loopback addresses are).
    pub(crate) fn is_local(&self, addr: IpAddr) -> bool {
        self.routes.is_local(addr)
    }

    /// Whether packets to `dst` may have this source: it is ours, or any is, because they leave by
    /// a transparent link.
    pub(crate) fn may_send_from(
        &self,
        (src, dst): (IpAddr, IpAddr),
        by: Option<LinkIndex>,
    ) -> bool {
        let transparent = |link| self.links.at(link).transparent;
        self.is_local(src)
            || (src.is_ipv4() == dst.is_ipv4()
                && self.routes.may_be_any_host(src)
                && self.outgoing_link(self.now, (src, dst), by).is_some_and(transparent))
    }

    /// Whether the link is there, and transparent.
    pub(crate) fn is_transparent(&self, id: LinkId) -> bool {
        let link = self.links.find(id).map(|index| self.links.at(index));
        link.is_some_and(|link| link.transparent && link.is_usable())
    }

    /// Whether we are a router to the link's hosts, which take packets to others from us. A host that
    /// hears from a router of its list that it is none forgets its default route (RFC 4861 section 7.2.5).
    pub(super) fn is_router(&self, link: LinkIndex) -> bool {
        self.forwarding.is_some() || self.links.at(link).transparent
    }

    /// Whether the packet is to another host's address, which counts as ours on its link.
    pub(super) fn is_for_another(&self, received: &Received) -> bool {
        received.delivery == Delivery::Unicast
            && !received.loopback
            && self.links.at(received.link).transparent
            && !self.is_local(received.dst)
    }

    pub(crate) fn is_broadcast(&self, addr: IpAddr) -> bool {
        self.routes.is_broadcast(addr)
    }

    /// Our addresses, the derived link-local one included.
    pub(crate) fn addresses(&self) -> &[Cidr] {
        self.routes.addresses()
    }

    /// Changes whenever a cached hop by this link may be wrong.
    #[inline(always)]
    fn generation(&self, link: LinkIndex) -> u32 {
        let neighbors = &self.links.at(link).neighbors;
        let parts = [self.routes.generation(), self.path_generation, neighbors.generation()];
        // Each only counts up: no two states share a sum until one of them wraps.
        parts.into_iter().fold(0, u32::wrapping_add)
    }

    // In. (Frames: `input.rs`.)

    /// Called when `now` has reached [`poll_timeout`](Self::poll_timeout).
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        for link in self.links.indices() {
            let interface = self.links.at(link);
            if interface.announcements > 0 && now >= interface.announce_at {
                self.announce(now, link);
            }
            self.handle_discovery_timeout(now, link);
            if self.links.at(link).groups.next_timeout() <= now {
                self.send_reports(now, link);
            }
        }
        if self.paths.expire(now) {
            self.path_generation = self.path_generation.wrapping_add(1);
        }
        let mut expired = Vec::new();
        self.reassembly.handle_timeout(now, &mut self.counters, &mut expired);
        for datagram in expired {
            self.send_reassembly_timeout(now, datagram);
        }
    }

    /// A path MTU that the owner of a socket has validated (RFC 8201 section 4, RFC 5927).
    pub(crate) fn handle_path_mtu(&mut self, now: Instant, dst: IpAddr, mtu: usize) {
        let link = self.link_to(now, None, dst);
        if mtu < self.links.at(link).device.mtu && self.paths.insert(now, dst, mtu) {
            self.path_generation = self.path_generation.wrapping_add(1);
        }
    }

    /// Fixes a path's MTU, whatever is reported; `None`: reports count again.
    pub(crate) fn set_path_mtu(&mut self, dst: IpAddr, mtu: Option<usize>) {
        self.paths.set(dst, mtu.map(|mtu| mtu.max(smallest_path_mtu(dst))));
        self.path_generation = self.path_generation.wrapping_add(1);
    }

    /// Changes when the MTU of some path does. A connection that checks once in 65,536 changes may miss them:
    /// then it learns the MTU from a report, as at first.
    pub(crate) fn path_generation(&self) -> u16 {
        self.path_generation as u16
    }

    /// Notes proof that packets from `src` reach `dst` (RFC 4861 section 7.3.1): spares a probe.
    pub(crate) fn handle_reachable(&mut self, now: Instant, (src, dst): (IpAddr, IpAddr)) {
        if let Ok((link, Hop::Neighbor(next))) = self.routes.hop(now, src, dst) {
            self.links.at_mut(link).neighbors.confirm(now, next);
        }
    }

    // Out. (`send`: `output.rs`.)

    /// Returns packets that looped back, in place of `packet`, and errors about silent neighbours,
    /// until `None`. While some are left, [`poll_timeout`](Self::poll_timeout) is already due.
    pub(crate) fn poll_inbound(&mut self, now: Instant, packet: &mut PacketBuf) -> Option<Inbound> {
        self.now = now;
        if let Some(notice) = self.notices.pop_front() {
            return Some(notice);
        }
        while let Some((link, looped)) = self.loopback.pop_front() {
            *packet = looped;
            match self.handle_ip(now, packet, Origin::loopback(link)) {
                Ok(None) => {}
                Ok(inbound) => return inbound,
                Err(reason) => self.counters.drop_one(reason),
            }
        }
        None
    }

    /// Whether [`poll_inbound`](Self::poll_inbound) has something to return.
    pub(crate) fn has_inbound(&self) -> bool {
        !self.notices.is_empty() || !self.loopback.is_empty()
    }

    /// The link of packets from `src` (ours) to `dst` if its queue is full; `None` with one link.
    pub(crate) fn congested_link(
        &self,
        now: Instant,
        (src, dst): (IpAddr, IpAddr),
        by: Option<LinkIndex>,
    ) -> Option<LinkIndex> {
        let is_full = |link: &Interface| link.out.len() >= CONGESTED_FRAMES;
        if !self.links.are_several() || !self.links.iter().any(is_full) || self.is_local(dst) {
            return None;
        }
        let cached = self
            .cache
            .get(now, src, dst, |out| self.generation(out), || self.routes.is_foreign_host(src))
            .map(|hop| hop.out);
        let link = by.or(cached).unwrap_or_else(|| self.link_to(now, Some(src), dst));
        is_full(self.links.at(link)).then_some(link)
    }

    pub(crate) fn has_frames(&self, link: LinkIndex) -> bool {
        !self.links.at(link).out.is_empty()
    }

    /// Whether no packet is on its way in or out.
    #[inline]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.links.iter().all(|interface| interface.out.is_empty()) && !self.has_inbound()
    }

    /// Moves all frames for the device of a link to the back of `out`.
    #[inline]
    pub(crate) fn poll_transmit(&mut self, link: LinkIndex, out: &mut VecDeque<PacketBuf>) {
        let Interface { out: queue, lost, .. } = self.links.at_mut(link);
        if *lost {
            self.counters.drop_many(DropReason::LinkLost, queue.len() as u64);
            return queue.clear();
        }
        if out.is_empty() {
            core::mem::swap(out, queue);
        } else {
            out.append(queue);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) or `poll_inbound` is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.has_inbound() {
            return Some(self.now);
        }
        // On the path of every call that sends.
        let others = self.reassembly.next_timeout().min(self.paths.next_timeout());
        let next = self.links.iter().fold(others, |next, link| next.min(link.next_timeout()));
        (next != Instant::FAR).then_some(next)
    }
}

impl Net {
    /// Voids everything cached.
    fn handle_links_changed(&mut self) {
        (self.last_delivered, self.last_neighbor) = (None, None);
        self.cache = HopCache::new();
        self.path_generation = self.path_generation.wrapping_add(1);
    }
}
