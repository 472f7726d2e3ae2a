//! [`Gateway`] and [`Guest`]: adding a guest starts a host with a relay; dropping it resets its connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagewire::services::{DatagramKind, Error, EveryPort, Stack};
use pagewire::tcp::TcpConfig;
use pagewire::{Cidr, Cores, Device, Host, StartError};
use rustix::process::{Resource, getrlimit};

use crate::asking::Desk;
use crate::builder::{Builder, GuestConfig};
use crate::context::{Context, DescriptorShare, Ruling, Whole};
use crate::counters::Counters;
use crate::denials::Denied;
use crate::dns::{DnsConfig, DnsCounters, DnsServer};
use crate::echo::Echo;
use crate::epoll::EpollSet;
use crate::limits::{FINISH_LOOK, GUESTS, JOINED_LOOK, RESERVED_DESCRIPTORS, UNSENT};
use crate::netns::NsSockets;
use crate::policy::{LocalAddresses, Rule, RuleError, Rules};
use crate::publish::{OpenPort, Publish, PublishedPort, either_version};
use crate::relay::{Closer, Kernel, Loopback, Relay, RelayService, Setup, Siblings};
use crate::request::{FlowState, GuestId, How, Judge as _, Protocol};
use crate::splice::{
    Diverter, FlowSettings, Forward, ForwardPorts, JoinedFlow, Listens, OwnPort, listen_inside,
    loopbacks,
};
use crate::tally::Tally;
use crate::udp::Udp;

/// Connects guests with the network of this process.
///
/// A guest is whatever sends frames through a [device](pagewire::device): its connections to any
/// address leave through sockets of this process. Each guest has a stack and a thread of its own, or
/// [several](GuestConfig::cores), so guests do not see each other, and may have the same addresses.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::TcpListener;
/// use pagewire::{Host, Pair};
/// use pagewire_gateway::{Ask, Gateway, GuestConfig, Verdict};
///
/// // Anything that listens on this machine, and a guest: here a stack in this process.
/// let server = TcpListener::bind("127.0.0.1:0")?;
/// let (device, inner) = Pair::new()?;
/// let inside = Host::builder().device(inner).address("10.0.2.15/24").gateway("10.0.2.2").start()?;
///
/// let there = server.local_addr()?;
/// let rules = move |ask: &Ask| (ask.to.port() == 80).then_some(Verdict::To(there));
/// let loopback = move |ask: &Ask| if ask.to == there { Some(Verdict::Allow) } else { rules(ask) };
/// let gateway = Gateway::builder().judge(loopback).start();
/// let guest = gateway.add(device, GuestConfig::new().network("10.0.2.2/24")?)?;
///
/// let mut connection = inside.connect("203.0.113.7:80")?;
/// let (mut served, _) = server.accept()?;
/// served.write_all(b"hello")?;
/// connection.read_exact(&mut [0; 5])?;
/// assert_eq!(guest.counters().bytes_in, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

struct Shared {
    settings: Builder,
    last_guest: AtomicU32,
    guests: Arc<AtomicUsize>,
    share: DescriptorShare,
    closer: Closer,
}

/// Why a guest was not added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// Without an address the gateway cannot be reached.
    #[error("a guest needs a network: call `.network(\"10.0.2.2/24\")` on its settings")]
    NoNetwork,
    /// The gateway has its largest number of guests.
    #[error("a gateway has at most {GUESTS} guests")]
    TooMany,
    /// The guest's stack did not start.
    #[error(transparent)]
    Host(#[from] StartError),
    /// The guest's stack refused to take connections to all addresses.
    #[error("taking the guest's connections: {0}")]
    Stack(#[from] Error),
    /// A port cannot be published.
    #[error("publishing {what}: {error}")]
    Publish {
        /// The ports that were to be published.
        what: Publish,
        /// The error.
        error: io::Error,
    },
    /// A port of the namespace's loopback cannot be had.
    #[error("forwarding {what}: {error}")]
    Forward {
        /// The ports that were to lead here.
        what: Forward,
        /// The error.
        error: io::Error,
    },
    /// The system refused a descriptor.
    #[error("starting a guest's relay: {0}")]
    System(#[from] io::Error),
}

impl Builder {
    /// Starts the gateway, which has no guests yet. Its guests share the descriptors that the process
    /// may have at this time (`RLIMIT_NOFILE`), each an equal part.
    pub fn start(self) -> Gateway {
        if let Err(error) = self.routes.check()
            && (self.rules.asks_for_ours() || self.vias.asks_for_ours())
        {
            tracing::warn!(
                %error,
                "the kernel does not say which addresses are this machine's: nothing is permitted"
            );
        }
        let (last_guest, guests) = (AtomicU32::new(0), Arc::<AtomicUsize>::default());
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let all = limit.saturating_sub(RESERVED_DESCRIPTORS).max(RESERVED_DESCRIPTORS);
        let share = DescriptorShare { all, guests: Arc::clone(&guests) };
        Gateway(Arc::new(Shared {
            settings: self,
            last_guest,
            guests,
            share,
            closer: Closer::start(),
        }))
    }
}

impl Gateway {
    /// The default settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Adds a guest behind this device.
    ///
    /// # Errors
    /// See [`AddError`]; the device is dropped then.
    pub fn add(
        &self,
        device: impl Device + 'static,
        config: GuestConfig,
    ) -> Result<Guest, AddError> {
        self.add_boxed(Box::new(device), config)
    }

    /// As [`add`](Self::add), with the device chosen at run time.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_boxed(
        &self,
        device: Box<dyn Device>,
        config: GuestConfig,
    ) -> Result<Guest, AddError> {
        let link = config.link();
        if link.ours.is_empty() {
            return Err(AddError::NoNetwork);
        }
        let permit = GuestPermit::take(&self.0.guests).ok_or(AddError::TooMany)?;
        let id = GuestId(self.0.last_guest.fetch_add(1, Ordering::Relaxed) + 1);
        let tcp = TcpConfig { nagle: false, notsent_lowat: UNSENT, ..TcpConfig::default() };
        let mut host =
            Host::builder().device(device).transparent(true).tcp_config(tcp).memory(config.memory);
        host = host.proxy_arp(link.proxy_arp);
        for address in &link.ours {
            let network = config.networks.iter().find(|network| network.addr() == *address);
            host = host.address(network.copied().unwrap_or(Cidr::host(*address)));
        }
        for network in &config.on_link {
            host = host.on_link(*network);
        }
        if let Some(limit) = config.spin {
            host = host.spin(limit);
        }
        let cores = host.cores(config.cores).start()?;
        let settings = &self.0.settings;
        let whole = Whole::new(&settings.resolver);
        let ruling = Ruling::of(Rules::clone(&settings.rules));
        let mut loopback = match config.inside.clone() {
            None => None,
            Some(inside) => {
                let flows = FlowSettings {
                    journal: settings.journal.clone(),
                    idle: config.idle,
                    share: self.0.share.clone(),
                    numbers: Arc::clone(&whole.last_flow),
                };
                Some(Loopback::start(inside, config.local_clients, flows)?)
            }
        };
        let diverter = |loopback: &Option<Loopback>| loopback.as_ref()?.diverter();
        let diverters: Vec<_> = cores.shards().iter().map(|_| diverter(&loopback)).collect();
        let tallies = Tally::of_shards(config.cores);
        let siblings = Siblings::of_shards(config.cores)?;
        let mut shards = Vec::with_capacity(config.cores);
        let parts = tallies.into_iter().zip(siblings).zip(diverters);
        for (host, ((tally, siblings), diverter)) in cores.shards().iter().zip(parts) {
            let (whole, ruling, loopback) = (whole.clone(), ruling.clone(), loopback.take());
            let part = ShardPart { whole, ruling, tally, siblings, diverter, loopback };
            shards.push((host.clone(), self.open_shard(id, host, &config, part)?));
        }
        // Packets for one core may come in at any: all have their sockets by now.
        for (host, relay) in &shards {
            host.attach_as(Box::new(relay.clone()), true);
        }
        let mut shards = shards.into_iter();
        let (host, relay) = shards.next().ok_or(StartError::Cores(config.cores))?;
        let (others, ruled) = (shards.collect(), Mutex::default());
        let inside = config.inside;
        let guest = Guest { id, cores, host, relay, others, ruled, inside, _permit: permit };
        let publish = |what: &Publish| {
            let refused = |error| AddError::Publish { what: what.clone(), error };
            guest.publish(what).map(drop).map_err(refused)
        };
        let (follows, named): (Vec<_>, Vec<_>) =
            config.published.iter().partition(|what| what.is_auto());
        named.into_iter().try_for_each(publish)?;
        for what in &config.forwarded {
            let refused = |error| AddError::Forward { what: what.clone(), error };
            guest.forward(what).map_err(refused)?;
        }
        // Behind the ports that are this gateway's own.
        follows.into_iter().try_for_each(publish)?;
        Ok(guest)
    }

    /// Opens the sockets of a guest on one of its cores, and makes the relay for them.
    fn open_shard(
        &self,
        id: GuestId,
        host: &Host,
        config: &GuestConfig,
        part: ShardPart,
    ) -> Result<RelayService, AddError> {
        let ShardPart { whole, ruling, tally, siblings, diverter, loopback } = part;
        let settings = &self.0.settings;
        let (listener, udp, echo) = host.with_stack(|stack, _| {
            let link = stack.links().next().ok_or(Error::NoSuchLink)?;
            let every = EveryPort { link, every_shard: !tally.is_lone() };
            let datagrams = stack.bind_every(every, DatagramKind::Udp)?;
            let udp = Udp::new(stack, datagrams, &whole, &tally)?;
            let echo = Echo::new(stack.bind_every(every, DatagramKind::Echo)?, &tally);
            Ok::<_, Error>((stack.listen_every(every)?, udp, echo))
        })?;
        let dns = DnsConfig {
            on: config.resolvers(),
            resolver: settings.resolver.clone(),
            own: settings.names.clone(),
            rules: Arc::clone(&settings.rules),
            denied: settings.denied,
            resolves_open: settings.policy.is_some(),
        };
        let mut watch = EpollSet::new()?;
        let (memory, of_dns) = (whole.memory.clone(), tally.clone());
        let open = |stack: &mut Stack, _| DnsServer::open_shared(stack, dns, memory, of_dns);
        let dns = host.with_stack(open)?;
        watch.add_wakeup(dns.wait_fd())?;
        let desk = |policy| Desk::new(policy, whole.questions.clone(), tally.clone());
        let desk = settings.policy.clone().map(desk).transpose()?;
        if let Some(desk) = &desk {
            watch.add_wakeup(desk.wait_fd())?;
        }
        if let Some(loopback) = &loopback {
            watch.add_wakeup(loopback.inbox().wait_fd().as_fd())?;
        }
        if let Some(parcels) = siblings.as_ref().and_then(Siblings::wait_fd) {
            watch.add_wakeup(parcels)?;
        }
        let (rules, rates) = ruling.on_shard(tally.index());
        let context = Context {
            guest: id,
            link: config.link(),
            source: settings.source.clone(),
            rules,
            vias: Arc::clone(&settings.vias),
            judge: settings.judge.clone(),
            desk,
            dns,
            local_addresses: LocalAddresses::new(Arc::clone(&settings.routes)),
            journal: settings.journal.clone(),
            watch,
            share: self.0.share.clone(),
            descriptors: 0,
            counters: Counters::default(),
            rates,
            whole,
            tally,
        };
        let setup = Setup {
            listener,
            dialler: match &settings.dialler {
                Some(dialler) => Arc::clone(dialler),
                None => Arc::new(Kernel(settings.source.clone())),
            },
            closer: self.0.closer.clone(),
            connections: config.connections,
            idle: config.idle,
            addresses: config.addresses.clone(),
            loopback,
            diverter,
            siblings,
        };
        Ok(RelayService::new(Relay::new(context, setup, udp, echo)))
    }

    /// Number of guests.
    pub fn guests(&self) -> usize {
        self.0.guests.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("guests", &self.guests()).finish_non_exhaustive()
    }
}

/// What one core of a guest gets of the guest.
struct ShardPart {
    whole: Whole,
    ruling: Ruling,
    tally: Tally,
    siblings: Option<Siblings>,
    diverter: Option<Diverter>,
    /// The first core has it.
    loopback: Option<Loopback>,
}

/// The permission for one guest of a gateway, given back on drop.
struct GuestPermit(Arc<AtomicUsize>);

impl GuestPermit {
    fn take(guests: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |n: usize| (n < GUESTS).then_some(n + 1);
        let taken = guests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| Self(Arc::clone(guests)))
    }
}

impl Drop for GuestPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A guest of a gateway. Its drop resets its connections, on both sides, and drops its device.
pub struct Guest {
    id: GuestId,
    cores: Cores,
    /// The first core, which has the published ports.
    host: Host,
    relay: RelayService,
    /// The other cores.
    others: Vec<(Host, RelayService)>,
    /// Locked while rules change.
    ruled: Mutex<()>,
    inside: Option<NsSockets>,
    _permit: GuestPermit,
}

impl Guest {
    /// The guest's number, as in records.
    pub fn id(&self) -> GuestId {
        self.id
    }

    /// Publishes ports of the guest from now on. Returns the addresses of their sockets; a socket that was asked for
    /// as port 0 has a port of the kernel's choice.
    ///
    /// # Errors
    /// `AddrInUse`, `PermissionDenied` and the like for the sockets; `AddrNotAvailable` if the guest's
    /// address was not [given](GuestConfig::guest).
    pub fn publish(&self, what: &Publish) -> io::Result<Vec<SocketAddr>> {
        if let Some(follow) = what.follow() {
            let publish = |relay: &mut Relay| relay.publish_followed(what, follow);
            self.host.with_stack(|_, _| self.relay.with(publish))?;
            return Ok(Vec::new());
        }
        // Before they are bound: they are no programs'.
        let addresses = what.ports().flat_map(|(address, port, _)| match address {
            Some(address) => vec![(address, port).into()],
            None => either_version(port).to_vec(),
        });
        let addresses: Vec<SocketAddr> = addresses.collect();
        let _own = self.note_own(Listens::Outside, what.protocol(), &addresses);
        let opened = what.open()?;
        let addresses = opened.iter().filter_map(OpenPort::address).collect();
        self.serve(what, opened)?;
        Ok(addresses)
    }

    /// Publishes with sockets that [`Publish::open`] has opened before.
    ///
    /// # Errors
    /// `AddrNotAvailable` if the guest's address was not [given](GuestConfig::guest).
    pub fn serve(&self, what: &Publish, opened: Vec<OpenPort>) -> io::Result<()> {
        let publish = |now, relay: &mut Relay| relay.publish(now, what, opened);
        self.host.with_stack(|_, now| self.relay.with(|relay| publish(now, relay)))
    }

    /// Ends what was published so. Clients that are connected stay. Returns whether there was any.
    pub fn unpublish(&self, what: &Publish) -> bool {
        self.host.with_stack(|_, now| self.relay.with(|relay| relay.unpublish(now, what)))
    }

    /// What is published, in the order in which it was.
    pub fn published(&self) -> Vec<Publish> {
        self.relay.read(Relay::published)
    }

    /// The open ports of this machine that were published by name: neither as `auto` or `all`, nor as a path.
    pub fn published_ports(&self) -> Vec<PublishedPort> {
        self.relay.read(Relay::published_ports)
    }

    /// Closes these ports, of those that were published by name; what has no port left is published no more. Clients
    /// that are connected stay. Returns the number of ports closed.
    pub fn unpublish_ports(&self, ports: &[PublishedPort]) -> usize {
        let close = |now, relay: &mut Relay| relay.unpublish_ports(now, ports);
        self.host.with_stack(|_, now| self.relay.with(|relay| close(now, relay)))
    }

    fn note_own(&self, side: Listens, protocol: Protocol, at: &[SocketAddr]) -> Vec<OwnPort> {
        let note = |relay: &Relay| {
            at.iter().filter_map(|at| relay.note_own(side, protocol, *at)).collect()
        };
        self.relay.read(note)
    }

    /// Has ports of the namespace's loopback lead to this machine's from now on: all or none.
    ///
    /// # Errors
    /// `Unsupported` without [sockets in the namespace](GuestConfig::inside); `AddrInUse`, `PermissionDenied` and the
    /// like for the listeners in there; `BrokenPipe` if the namespace's helper is gone.
    pub fn forward(&self, what: &Forward) -> io::Result<()> {
        let none =
            "there are no sockets in the guest's namespace: give them in the guest's settings";
        let none = || io::Error::new(io::ErrorKind::Unsupported, none);
        let inside = self.inside.as_ref().ok_or_else(none)?;
        let Forward { ports, except, protocol } = what;
        let (first, last, to) = match *ports {
            ForwardPorts::Range { first, last, to } => (first, last, to),
            ForwardPorts::Auto => {
                let Some(follow) = what.follow() else { return Ok(()) };
                let forward = |relay: &mut Relay| relay.forward_followed(what, follow);
                return self.host.with_stack(|_, _| self.relay.with(forward));
            }
        };
        let ports = || (first..=last).filter(|port| !except.has(*port));
        // Before they are bound: they are no programs'.
        let addresses: Vec<SocketAddr> = ports().flat_map(loopbacks).collect();
        let _own = self.note_own(Listens::Inside, *protocol, &addresses);
        let mut listeners = Vec::new();
        for port in ports() {
            let opened = listen_inside(inside, *protocol, port, to + (port - first))?;
            listeners.extend(opened.into_iter().map(|(listener, to)| (port, listener, to)));
        }
        let forward = |now, relay: &mut Relay| relay.forward(now, what, listeners);
        self.host.with_stack(|_, now| self.relay.with(|relay| forward(now, relay)))
    }

    /// Ends what was [forwarded](Self::forward) so: closes its ports. Connections stay.
    ///
    /// # Errors
    /// `NotFound` if it is not forwarded.
    pub fn unforward(&self, what: &Forward) -> io::Result<()> {
        let end = |now, relay: &mut Relay| relay.unforward(now, what);
        let ended = self.host.with_stack(|_, now| self.relay.with(|relay| end(now, relay)));
        if ended { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Waits until all data that the guest has sent on its connections was passed on, with the ends of its
    /// streams, for guests that have ended: at least for `least`, the time for which a link may hold
    /// frames, and at most for `limit` more. Returns whether that time was enough.
    pub fn finish(&self, least: Duration, limit: Duration) -> bool {
        let soon = self.host.now() + least;
        while self.host.now() < soon {
            std::thread::park_timeout(soon.saturating_since(self.host.now()));
        }
        let end = soon + limit;
        loop {
            if self.shards().all(|(_, relay)| relay.read(Relay::is_finished)) {
                return true;
            }
            if self.host.now() >= end {
                return false;
            }
            std::thread::park_timeout(FINISH_LOOK);
        }
    }

    /// All cores, the first one in front.
    fn shards(&self) -> impl Iterator<Item = (&Host, &RelayService)> {
        let others = self.others.iter().map(|(host, relay)| (host, relay));
        std::iter::once((&self.host, &self.relay)).chain(others)
    }

    /// The counters of the guest's connections, the sums over all cores. The stacks' are in [`Cores::stats`].
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        self.shards().for_each(|(_, relay)| counters.add(&relay.read(Relay::counters)));
        counters
    }

    /// The rules of the guest.
    pub fn rules(&self) -> Arc<Rules> {
        self.relay.read(Relay::rules)
    }

    /// Has other rules decide about the guest from now on. Flows that they forbid end with [`How::Prohibited`]: the guest
    /// and the far side see a reset. A connection that only a name permits from now on must have shown the name, so one
    /// that began when rules asked for none ends, too. Returns the number of flows that have ended.
    ///
    /// # Errors
    /// Those of [`Rules::checked`]; the rules stay as they were.
    pub fn set_rules(&self, rules: Rules) -> Result<usize, RuleError> {
        self.change_rules(|_| rules)
    }

    /// As [`set_rules`](Self::set_rules), with rules that are made of the present ones; no other change comes in between.
    ///
    /// # Errors
    /// As [`set_rules`](Self::set_rules).
    pub fn change_rules(&self, change: impl FnOnce(Rules) -> Rules) -> Result<usize, RuleError> {
        // Refuses a call of code that the guest's own thread calls, which would wait for itself.
        self.host.with_stack(|_, _| ());
        let _ruled = self.ruled.lock().unwrap_or_else(PoisonError::into_inner);
        let ruling = Ruling::of(change(Rules::clone(&self.rules())).checked()?);
        let ended = self.shards().map(|(host, relay)| {
            host.with_stack(|stack, now| {
                relay.with(|relay| relay.set_rules(now, stack, ruling.clone()))
            })
        });
        Ok(ended.sum())
    }

    /// The flows of the guest, in the order of their numbers.
    pub fn flows(&self) -> Vec<FlowState> {
        let (sender, joined) = channel();
        let look = move |flow: &JoinedFlow<'_>| {
            if let Some(state) = flow.state() {
                let _ = sender.send(state);
            }
            Ok(None)
        };
        let of =
            |(host, relay): (&Host, &RelayService)| relay.read(|relay| relay.flows(host.now()));
        let mut flows: Vec<FlowState> = self.shards().flat_map(of).collect();
        let has_joined = self.relay.read(|relay| relay.review_joined(Box::new(look)));
        // The thread drops the sender when it has looked at all; a thread that is stuck keeps nobody.
        let until = std::time::Instant::now() + JOINED_LOOK;
        while has_joined
            && let Ok(state) =
                joined.recv_timeout(until.saturating_duration_since(std::time::Instant::now()))
        {
            flows.push(state);
        }
        flows.sort_by_key(|state| state.flow);
        flows
    }

    /// Ends the flow with this number, on both sides at once. Returns whether there was one.
    pub fn kill(&self, flow: u64) -> bool {
        let kill = |(host, relay): (&Host, &RelayService)| {
            host.with_stack(|stack, now| relay.with(|relay| relay.kill(now, stack, flow)))
        };
        if self.shards().any(kill) {
            return true;
        }
        let (sender, found) = channel();
        let look = move |joined: &JoinedFlow<'_>| {
            let is_it = joined.flow == Some(flow);
            if is_it {
                let _ = sender.send(());
            }
            if is_it { Err(How::Killed) } else { Ok(None) }
        };
        let has_joined = self.relay.read(|relay| relay.review_joined(Box::new(look)));
        has_joined && found.recv_timeout(JOINED_LOOK).is_ok()
    }

    /// The refusals so far.
    pub fn denied(&self) -> Denied {
        self.relay.read(Relay::denied)
    }

    /// The rules that would permit what an [audit](Rules::audit) has written down, each with the number of flows, at most
    /// [`RULES`](crate::limits::RULES).
    pub fn learned(&self) -> Vec<(Rule, u64)> {
        let mut all = self.relay.read(Relay::learned);
        let others = self.shards().skip(1);
        others.for_each(|(_, relay)| relay.read(|relay| relay.add_missing(&mut all)));
        all
    }

    /// The counters of the guest's resolver.
    pub fn dns_counters(&self) -> DnsCounters {
        let mut counters = DnsCounters::default();
        self.shards().for_each(|(_, relay)| counters.add(&relay.read(Relay::dns_counters)));
        counters
    }

    /// Number of connections, dials included.
    pub fn connections(&self) -> usize {
        self.shards().map(|(_, relay)| relay.read(Relay::connections)).sum()
    }

    /// The gateway's end of the guest's network: services for the guest alone may listen here, and
    /// [`Host::check`] says whether the device is lost, or the relay has failed. Of several cores this is the first; the
    /// failure of one is that of all.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// All cores of the gateway's end, a host of one core included.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        for (host, relay) in self.shards() {
            host.with_stack(|stack, now| relay.with(|relay| relay.end_all(now, stack)));
        }
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("id", &self.id).finish_non_exhaustive()
    }
}
