//! Packets for other shards of the host, on the network layer's side: the decision where a packet belongs, and
//! the reports to other shards. Read `shards/mod.rs` first.

pub(crate) mod news;
pub(crate) mod queue;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;

use pagewire_mem::{Instant, PacketBuf};

use crate::counters::DropReason;
use crate::error::StackError;
use crate::limits::NOTICES;
use crate::net::input::extensions::ReceivedPart;
use crate::net::input::reassembly::DatagramKey;
use crate::net::input::received::{IcmpKind, Inbound, QuotedPacket, Received};
use crate::net::links::config::LinkIndex;
use crate::net::neighbors::NeighborClaim;
use crate::net::strays::news::News;
use crate::net::strays::queue::{Stray, StrayKind, Strays};
use crate::net::wire::protocol;
use crate::net::{Flow, Net};
use crate::shards::{PortClaim, PortKind, Shard, ShardPlace, ShardPorts};
use crate::sockets::tuple::{Tuple, canonical};

/// The state of a stack that is one of several shards.
pub(super) struct ShardState {
    strays: Strays,
    tcp: ShardPorts,
    udp: ShardPorts,
    echo: ShardPorts,
    /// The last to go: another stack that takes the place finds nothing of this one.
    place: ShardPlace,
}

impl ShardState {
    /// # Errors
    /// As [`Shard::take`].
    pub(super) fn new(shard: &Shard, secret: &[u8; 32]) -> Result<Self, StackError> {
        let place = shard.take(secret)?;
        let ports = |kind| ShardPorts::new(shard, kind);
        Ok(Self {
            strays: Strays::new(shard.others()),
            tcp: ports(PortKind::Tcp),
            udp: ports(PortKind::Udp),
            echo: ports(PortKind::Echo),
            place,
        })
    }

    pub(super) fn shard(&self) -> &Shard {
        self.place.shard()
    }

    /// This shard's part of so many numbers.
    pub(super) fn part_of(&self, numbers: u64) -> Range<u64> {
        self.place.shard().part_of(numbers)
    }

    fn ports(&mut self, kind: PortKind) -> &mut ShardPorts {
        match kind {
            PortKind::Tcp => &mut self.tcp,
            PortKind::Udp => &mut self.udp,
            PortKind::Echo => &mut self.echo,
        }
    }
}

/// # Homes
impl Net {
    /// Whether the host has other stacks.
    #[inline]
    pub(crate) fn is_sharded(&self) -> bool {
        self.shard.is_some()
    }

    /// The other shard that packets between these ends belong to; `None`: they belong here.
    #[inline]
    pub(crate) fn foreign_home(&self, kind: PortKind, tuple: &Tuple) -> Option<usize> {
        let shard = self.shard.as_ref()?.shard();
        let home = shard.home(kind, tuple, || self.routes.is_foreign_host(tuple.local));
        Some(home).filter(|home| *home != shard.index())
    }

    /// The shard that the packets of a flow to this host belong to; the first if the host has no others.
    pub(crate) fn home_of(&self, flow: &Flow) -> usize {
        let kind = match flow.protocol {
            protocol::TCP => PortKind::Tcp,
            protocol::UDP => PortKind::Udp,
            _ => PortKind::Echo,
        };
        let tuple = Tuple::new(canonical(flow.to), canonical(flow.from));
        let is_foreign = || self.routes.is_foreign_host(tuple.local);
        self.shard.as_ref().map_or(0, |state| state.shard().home(kind, &tuple, is_foreign))
    }

    /// The other shard that sent the packet which an ICMP error quotes.
    pub(super) fn foreign_home_of_quote(&self, about: &QuotedPacket) -> Option<usize> {
        let kind = match about.protocol {
            protocol::TCP => PortKind::Tcp,
            protocol::UDP => PortKind::Udp,
            _ => return None,
        };
        self.foreign_home(kind, &about.tuple())
    }

    /// The other shard that puts a datagram together from its fragments.
    fn foreign_home_of_fragment(&self, key: &DatagramKey) -> Option<usize> {
        let shard = self.shard.as_ref()?.shard();
        Some(shard.by_hash_of(key)).filter(|home| *home != shard.index())
    }

    /// How a connection from this address uses its port.
    pub(crate) fn connection_claim(&self, local: IpAddr) -> PortClaim {
        match self.is_sharded() && self.routes.is_foreign_host(local) {
            true => PortClaim::Foreign,
            false => PortClaim::Connection,
        }
    }

    /// Begins a use of a local port; `false`: another shard's use excludes it.
    pub(crate) fn claim_port(&mut self, kind: PortKind, port: u16, claim: PortClaim) -> bool {
        self.shard.as_mut().is_none_or(|state| state.ports(kind).claim(port, claim))
    }

    /// Begins a use of a connection's local port; `false`: another shard's use excludes it, or makes that shard the
    /// home of the connection. The home is looked up after the claim: from then on, no other shard can become the owner.
    pub(crate) fn claim_home(&mut self, kind: PortKind, tuple: &Tuple, claim: PortClaim) -> bool {
        if !self.claim_port(kind, tuple.local_port, claim) {
            return false;
        }
        let is_home = self.foreign_home(kind, tuple).is_none();
        if !is_home {
            self.release_port(kind, tuple.local_port, claim);
        }
        is_home
    }

    /// Ends a use of a local port that began with this claim.
    pub(crate) fn release_port(&mut self, kind: PortKind, port: u16, claim: PortClaim) {
        if let Some(state) = &mut self.shard {
            state.ports(kind).release(port, claim);
        }
    }
}

/// # Strays
impl Net {
    /// Passes a packet on that belongs to another shard; whether it did.
    #[inline]
    pub(crate) fn pass_home(
        &mut self,
        kind: PortKind,
        tuple: &Tuple,
        received: &Received,
        packet: &mut PacketBuf,
    ) -> bool {
        let Some(home) = self.foreign_home(kind, tuple) else { return false };
        let inbound = match kind {
            PortKind::Tcp | PortKind::Udp => Inbound::Transport(*received),
            PortKind::Echo => Inbound::Echo(*received),
        };
        self.pass_to(home, StrayKind::Inbound(inbound), packet);
        true
    }

    /// Passes a fragment on if another shard puts its datagram together; else returns it.
    pub(super) fn keep_fragment(
        &mut self,
        key: &DatagramKey,
        fragment: ReceivedPart,
        packet: &mut PacketBuf,
    ) -> Option<ReceivedPart> {
        let Some(home) = self.foreign_home_of_fragment(key) else { return Some(fragment) };
        self.pass_to(home, StrayKind::Fragment(Some(Box::new(fragment))), packet);
        None
    }

    /// Passes a packet to another shard. An empty one is left, or the packet itself if there is no room.
    #[inline(never)]
    pub(crate) fn pass_to(&mut self, to: usize, kind: StrayKind, packet: &mut PacketBuf) {
        let Some(state) = &mut self.shard else { return };
        if !state.strays.push(to, kind, packet) {
            self.counters.drop_one(DropReason::StrayBacklogFull);
        }
    }

    /// News for all other shards; `None`: there are none.
    fn news(&mut self) -> Option<&mut News> {
        self.shard.as_mut()?.strays.news()
    }

    /// Tells all other shards of a neighbour.
    pub(super) fn spread_neighbor(&mut self, link: LinkIndex, addr: IpAddr, claim: NeighborClaim) {
        if let Some(news) = self.news() {
            news.add_neighbor(link, addr, claim);
        }
    }

    /// Tells all other shards of a path's MTU if any of them may have sent the packet: from a port that all have bound.
    /// Returns whether it did.
    pub(super) fn spread_path_report(&mut self, about: &QuotedPacket, mtu: usize) -> bool {
        let is_of_all =
            |state: &ShardState| state.shard().is_everybodys(PortKind::Udp, about.src_port);
        if about.protocol != protocol::UDP || !self.shard.as_deref().is_some_and(is_of_all) {
            return false;
        }
        if let Some(news) = self.news() {
            news.add_path_report(*about, mtu);
        }
        true
    }

    pub(crate) fn poll_strays(&mut self, into: &mut VecDeque<Stray>) -> Option<usize> {
        let to = self.shard.as_mut()?.strays.take(into)?;
        self.counters.strays_passed += into.len() as u64;
        Some(to)
    }

    /// Counts a stray that was taken, and then found no room.
    pub(crate) fn drop_stray(&mut self) {
        self.counters.strays_passed -= 1;
        self.counters.drop_one(DropReason::StrayBacklogFull);
    }

    pub(crate) fn has_strays(&self) -> bool {
        self.shard.as_ref().is_some_and(|state| !state.strays.is_empty())
    }

    /// Begins with a stray: returns what the sockets have to do with it.
    pub(crate) fn handle_stray(
        &mut self,
        now: Instant,
        stray: &mut Stray,
    ) -> Result<Option<Inbound>, DropReason> {
        self.now = now;
        self.counters.strays_taken += 1;
        match &mut stray.kind {
            StrayKind::Inbound(inbound) => return Ok(Some(*inbound)),
            StrayKind::Fragment(fragment) => {
                if let Some(fragment) = fragment.take() {
                    return self.handle_fragment(now, &mut stray.packet, *fragment);
                }
            }
            StrayKind::News(news) => self.handle_news(now, news),
        }
        Ok(None)
    }

    fn handle_news(&mut self, now: Instant, news: &News) {
        for (&(link, addr), claim) in &news.neighbors {
            self.handle_neighbor_news(now, link, addr, *claim);
        }
        for (&about, &mtu) in &news.path_reports {
            if self.notices.len() < NOTICES {
                let kind = IcmpKind::PacketTooBig { mtu };
                self.notices.push_back(Inbound::IcmpError { about, kind });
            }
        }
    }
}
