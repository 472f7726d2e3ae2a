//! Settings: [`Builder`] of a gateway, [`GuestConfig`] of each guest.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pagewire::{Cidr, CidrError};

use crate::dns::{DeniedName, OwnNames, Resolver};
use crate::limits::{CONNECTIONS, IDLE_TIME, MEMORY};
use crate::policy::{RouteSocket, Rules};
use crate::publish::Publish;
use crate::relay::{Dial, Kernel};
use crate::request::{Journal, Judge};

/// Settings of a new gateway; see [`Gateway::builder`](crate::Gateway::builder).
#[must_use]
pub struct Builder {
    pub(crate) rules: Arc<Rules>,
    pub(crate) judge: Option<Arc<dyn Judge>>,
    pub(crate) journal: Option<Arc<dyn Journal>>,
    pub(crate) dialler: Arc<dyn Dial>,
    pub(crate) resolver: Resolver,
    pub(crate) names: OwnNames,
    pub(crate) denied: DeniedName,
    /// The socket for questions about routes; opened before a sandbox forbids that.
    pub(crate) routes: Arc<RouteSocket>,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self {
            rules: Arc::default(),
            judge: None,
            journal: None,
            dialler: Arc::new(Kernel),
            resolver: Resolver::default(),
            names: OwnNames::default(),
            denied: DeniedName::default(),
            routes: Arc::default(),
        }
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
    dialler(dialler: impl Dial + 'static): dialler = Arc::new(dialler);
}

/// Settings of one guest.
#[derive(Clone, Debug)]
#[must_use]
pub struct GuestConfig {
    pub(crate) networks: Vec<Cidr>,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) published: Vec<Publish>,
    pub(crate) connections: usize,
    pub(crate) idle: Option<Duration>,
    pub(crate) memory: usize,
    pub(crate) spin: Option<Duration>,
}

impl Default for GuestConfig {
    fn default() -> Self {
        Self {
            networks: Vec::new(),
            addresses: Vec::new(),
            published: Vec::new(),
            connections: CONNECTIONS,
            idle: Some(IDLE_TIME),
            memory: MEMORY,
            spin: None,
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
    pub fn network(mut self, cidr: impl AsRef<str>) -> Result<Self, CidrError> {
        self.networks.push(cidr.as_ref().parse()?);
        Ok(self)
    }

    /// An address of the guest, for clients of published ports; one for each version of IP.
    pub fn guest(mut self, address: IpAddr) -> Self {
        self.addresses.push(address);
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
}
