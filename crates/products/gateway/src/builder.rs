//! Settings: [`Builder`] of a gateway, [`GuestConfig`] of each guest.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pagewire::{Cidr, CidrError};

use crate::asking::{Policy, PolicySettings};
use crate::dns::{DeniedName, OwnNames, Resolver};
use crate::guest_link::GuestLink;
use crate::limits::{CONNECTIONS, IDLE_TIME, MEMORY};
use crate::netns::NsSockets;
use crate::policy::{RouteSocket, Rules};
use crate::publish::Publish;
use crate::relay::Dial;
use crate::request::{Journal, Judge, Verdict};
use crate::source::Source;
use crate::splice::Forward;
use crate::via::Vias;

/// Settings of a new gateway; see [`Gateway::builder`](crate::Gateway::builder).
#[must_use]
pub struct Builder {
    pub(crate) rules: Arc<Rules>,
    pub(crate) judge: Option<Arc<dyn Judge>>,
    pub(crate) policy: Option<PolicySettings>,
    pub(crate) journal: Option<Arc<dyn Journal>>,
    pub(crate) dialler: Option<Arc<dyn Dial>>,
    pub(crate) source: Source,
    pub(crate) resolver: Resolver,
    pub(crate) names: OwnNames,
    pub(crate) vias: Arc<Vias>,
    pub(crate) denied: DeniedName,
    /// The socket for questions about routes; opened before a sandbox forbids that.
    pub(crate) routes: Arc<RouteSocket>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            rules: Arc::default(),
            judge: None,
            policy: None,
            journal: None,
            dialler: None,
            source: Source::default(),
            resolver: Resolver::default(),
            names: OwnNames::default(),
            vias: Arc::default(),
            denied: DeniedName::default(),
            routes: Arc::default(),
        }
    }

    /// Asks `policy` about flows of guests that the rules neither permit by a permission nor forbid by a denial, and that
    /// are to no closed address. A flow for which there is no answer within `limit`, or for which too many questions
    /// are open, gets the verdict `otherwise`; [`Verdict::Prohibit`] fails closed. The judge is asked before.
    ///
    /// Flows of rules that are an [audit](Rules::audit), clients of published ports and forwarded ports are no
    /// questions. Guests may resolve all names that no denial has, since the policy sees the names of flows: a query can
    /// carry data to the servers of a name.
    pub fn policy(
        mut self,
        policy: impl Policy + 'static,
        limit: Duration,
        otherwise: Verdict,
    ) -> Self {
        self.policy = Some(PolicySettings { policy: Arc::new(policy), limit, otherwise });
        self
    }
}

pagewire::parts::setters! {
    Builder:
    /// The destinations that guests may reach, and the names that they may ask for. By default: everything but this
    /// machine's loopback, and addresses of one link, such as those of cloud metadata.
    rules(rules: Rules): rules = Arc::new(rules);
    /// Asks `judge` first, in place of the rules where it has an opinion: for programs that embed a
    /// gateway. It may allow what the rules' built-in part forbids.
    judge(judge: impl Judge + 'static): judge = Some(Arc::new(judge));
    /// The resolvers that guests' DNS queries are passed to: those of this machine by default.
    resolver(resolver: Resolver): resolver = resolver;
    /// Names that the gateway itself knows.
    names(names: OwnNames): names = names;
    /// The answer to guests about names that the rules forbid.
    denied_names(answer: DeniedName): denied = answer;
    /// The receiver of records about verdicts and connections.
    journal(journal: impl Journal + 'static): journal = Some(Arc::new(journal));
    /// The way to open connections to the network, in place of this process's own sockets: for
    /// programs that have their own way out, and for tests.
    dialler(dialler: impl Dial + 'static): dialler = Some(Arc::new(dialler));
    /// The flows that leave by a proxy: none by default.
    vias(vias: Vias): vias = Arc::new(vias);
    /// The addresses, or interfaces, from which flows leave this machine.
    source(source: Source): source = source;
}

/// Settings of one guest.
#[derive(Clone, Debug)]
#[must_use]
pub struct GuestConfig {
    pub(crate) networks: Vec<Cidr>,
    pub(crate) further: Vec<IpAddr>,
    pub(crate) on_link: Vec<Cidr>,
    pub(crate) resolver: Vec<IpAddr>,
    pub(crate) proxy_arp: bool,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) published: Vec<Publish>,
    pub(crate) connections: usize,
    pub(crate) idle: Option<Duration>,
    pub(crate) memory: usize,
    pub(crate) spin: Option<Duration>,
    pub(crate) cores: usize,
    pub(crate) inside: Option<NsSockets>,
    pub(crate) local_clients: LocalClients,
    pub(crate) forwarded: Vec<Forward>,
}

/// How clients of published ports reach the guest that come over this machine's loopback, or by a Unix socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalClients {
    /// Over the guest's link, from the gateway's address.
    #[default]
    ByLink,
    /// By `splice(2)` and a socket in the guest's namespace, at the guest's address and from it. Datagrams go over the
    /// link, and so do clients of addresses that are not known to be the guest's.
    Spliced,
    /// By `splice(2)` and a socket in the guest's namespace, at its loopback.
    Loopback,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            networks: Vec::new(),
            further: Vec::new(),
            on_link: Vec::new(),
            resolver: Vec::new(),
            proxy_arp: false,
            addresses: Vec::new(),
            published: Vec::new(),
            connections: CONNECTIONS,
            idle: Some(IDLE_TIME),
            memory: MEMORY,
            spin: None,
            cores: 1,
            inside: None,
            local_clients: LocalClients::default(),
            forwarded: Vec::new(),
        }
    }
}

impl GuestConfig {
    /// The defaults; a guest needs at least one network.
    pub fn new() -> Self {
        Self::default()
    }

    /// The gateway's address in a network of the guest, with its prefix length: the guest has
    /// another address of this network, and this one as its default gateway. `"10.0.2.2/24"`, or
    /// `"fd00:2::2/64"`.
    ///
    /// # Errors
    /// The text is no address with a prefix length.
    pub fn network(self, cidr: impl AsRef<str>) -> Result<Self, CidrError> {
        Ok(self.network_of(cidr.as_ref().parse()?))
    }

    /// As [`network`](Self::network), of an address that is no text any more.
    pub fn network_of(mut self, ours: Cidr) -> Self {
        self.networks.push(ours);
        self
    }

    /// A further address of the gateway on the guest's link, within a network of the guest or outside of all: it answers
    /// ARP requests and pings, and is where a [mapping](Rules::map) of a link-local address begins.
    pub fn further(mut self, address: IpAddr) -> Self {
        self.further.push(address);
        self
    }

    /// A network of the guest in which the gateway has no address.
    pub fn on_link(mut self, network: Cidr) -> Self {
        self.on_link.push(network);
        self
    }

    /// An address of the gateway at which its resolver answers: in place of all its addresses in networks
    /// of the guest. The address becomes a [further](Self::further) one if it is none yet.
    pub fn resolver(mut self, address: IpAddr) -> Self {
        self.resolver.push(address);
        self
    }

    /// An address of the guest, for clients of published ports; one for each version of IP.
    pub fn guest(mut self, address: IpAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// Where the resolver answers.
    pub(crate) fn resolvers(&self) -> Vec<IpAddr> {
        match self.resolver.is_empty() {
            true => self.networks.iter().map(Cidr::addr).collect(),
            false => self.resolver.clone(),
        }
    }

    /// The guest's link, as these settings describe it.
    pub(crate) fn link(&self) -> GuestLink {
        let mut ours: Vec<IpAddr> = Vec::new();
        let networks = self.networks.iter().map(Cidr::addr);
        for address in networks.chain(self.further.iter().copied()).chain(self.resolver.clone()) {
            if !ours.contains(&address) {
                ours.push(address);
            }
        }
        let networks = self.networks.iter().chain(&self.on_link).copied().collect();
        GuestLink { ours, networks, guests: self.addresses.clone(), proxy_arp: self.proxy_arp }
    }

    /// Has ports of the namespace's loopback lead to this machine's; needs [`inside`](Self::inside).
    pub fn forward(mut self, what: Forward) -> Self {
        self.forwarded.push(what);
        self
    }

    /// Publishes ports of the guest, whose [address](Self::guest) is needed then.
    pub fn publish(mut self, what: Publish) -> Self {
        self.published.push(what);
        self
    }
}

pagewire::parts::setters! {
    GuestConfig:
    /// Whether the guest's networks have other hosts, for which the gateway answers ARP requests and neighbour
    /// solicitations, and which the guest reaches through the gateway. By default the gateway is the only other
    /// host there.
    proxy_arp(on: bool): proxy_arp = on;
    /// Connections at once, dials included; more wait.
    connections(limit: usize): connections = limit;
    /// Silence after which a connection is reset; `None`: never. 2 hours and 4 minutes by default.
    idle(limit: Option<Duration>): idle = limit;
    /// Bytes of memory that the guest's connections pin, for data that the network has not taken and
    /// for data that the guest has not acknowledged; 32 MiB by default.
    memory(bytes: usize): memory = bytes;
    /// How long the guest's thread polls the device before it sleeps; see
    /// [`pagewire::HostBuilder::spin`].
    spin(limit: Duration): spin = Some(limit);
    /// Cores that serve the guest, 1 to [`Cores::MAX`](pagewire::Cores::MAX), each with a stack and a thread. Flows spread by
    /// a hash: connections by both ends, datagrams and echo requests by the guest's address and port. Limits and rules
    /// hold for all cores together. What is about single ports, such as [`publish`](GuestConfig::publish), begins on
    /// the first core. 1 by default.
    cores(count: usize): cores = count;
    /// Sockets in the guest's network namespace, for [`local_clients`](GuestConfig::local_clients),
    /// [`forward`](GuestConfig::forward), and ports that follow the programs in there.
    inside(sockets: NsSockets): inside = Some(sockets);
    /// How clients of published ports reach the guest that come over this machine's loopback, or by a Unix socket; other
    /// ways than [`LocalClients::ByLink`] need [`inside`](GuestConfig::inside).
    local_clients(way: LocalClients): local_clients = way;
}
