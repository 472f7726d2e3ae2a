//! The names of turmoil, for tests that come from there: `use pagewire_simulation::turmoil;` in the
//! place of the crate.
//!
//! This module only renames: it behaves as this crate does. Connections have a real TCP, so tests see round
//! trips, retransmissions and half-open connections that they did not see before.
//! `docs/COMING-FROM-TURMOIL.md` says what differs and why. New tests are better written with
//!
//! Not there, because there is no counterpart: the file system, barriers, `links` and its iterators,
//! `Segment`, `Datagram` and `Protocol`, `established_tcp_stream_count`, `set_message_latency_curve`,
//! `enable_tokio_io`, regular expressions for hosts, and hosts that borrow (`Sim` has a lifetime for the
//! name only). Calls that have no effect here say so.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use crate::faults::control::Control;
use crate::host::selectors::HostTable;
use crate::{HostId, Link};

pub use crate::faults::control::{
    hold, partition, partition_oneway, release, repair, repair_oneway,
};
pub use crate::net::ToSocketAddrs;
pub use crate::time::in_simulation;
pub use crate::{IpVersion, Result, net};

/// `turmoil::ToIpAddr`: how one host is named.
pub use crate::Hosts as ToIpAddr;
/// `turmoil::ToIpAddrs`: how hosts are named.
pub use crate::Hosts as ToIpAddrs;

/// `turmoil::Builder`, with turmoil's defaults: ten seconds, 0 to 100 ms of latency.
#[derive(Clone, Debug)]
pub struct Builder {
    inner: crate::Builder,
    links: Links,
    tick: Duration,
    epoch: SystemTime,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// Settings with turmoil's defaults.
    pub fn new() -> Self {
        Self {
            inner: crate::Builder::new().limit(Duration::from_secs(10)),
            links: Links {
                latency: (Duration::ZERO, Duration::from_millis(100)),
                fail: 0.0,
                repair: 1.0,
                own: BTreeMap::new(),
            },
            tick: Duration::from_millis(1),
            epoch: SystemTime::UNIX_EPOCH,
        }
    }

    fn set(&mut self, change: impl FnOnce(crate::Builder) -> crate::Builder) -> &mut Self {
        self.inner = change(std::mem::take(&mut self.inner));
        self
    }

    /// How long the simulation may last.
    pub fn simulation_duration(&mut self, value: Duration) -> &mut Self {
        self.set(|inner| inner.limit(value))
    }

    /// How far one [`Sim::step`] goes. Time itself is exact: there are no ticks.
    pub fn tick_duration(&mut self, value: Duration) -> &mut Self {
        self.tick = value;
        self
    }

    /// The wall clock at the start.
    pub fn epoch(&mut self, value: SystemTime) -> &mut Self {
        self.epoch = value;
        self
    }

    /// The versions of IP that hosts speak.
    pub fn ip_version(&mut self, value: IpVersion) -> &mut Self {
        self.set(|inner| inner.ip(value))
    }

    /// The least latency of a packet.
    pub fn min_message_latency(&mut self, value: Duration) -> &mut Self {
        self.links.latency.0 = value;
        self
    }

    /// The largest latency of a packet. Latencies are spread evenly, and packets stay in order.
    pub fn max_message_latency(&mut self, value: Duration) -> &mut Self {
        self.links.latency.1 = value;
        self
    }

    /// The chance, a packet, that a link breaks.
    pub fn fail_rate(&mut self, value: f64) -> &mut Self {
        self.links.fail = value;
        self
    }

    /// The chance, a packet, that a broken link works again.
    pub fn repair_rate(&mut self, value: f64) -> &mut Self {
        self.links.repair = value;
        self
    }

    /// No effect: TCP has windows, in bytes.
    pub fn tcp_capacity(&mut self, _: usize) -> &mut Self {
        self
    }

    /// No effect: datagram sockets have buffers, in bytes.
    pub fn udp_capacity(&mut self, _: usize) -> &mut Self {
        self
    }

    /// No effect: the range is Linux's.
    pub fn ephemeral_ports(&mut self, _: RangeInclusive<u16>) -> &mut Self {
        self
    }

    /// Hosts that are due at one moment run in an order of the seed: one for the whole run, where
    /// turmoil draws one for each tick.
    pub fn enable_random_order(&mut self) -> &mut Self {
        self.set(crate::Builder::random_order)
    }

    /// The seed.
    pub fn rng_seed(&mut self, value: u64) -> &mut Self {
        self.set(|inner| inner.seed(value))
    }

    /// A simulation.
    pub fn build<'a>(&self) -> Sim<'a> {
        let link = self.links.of(None);
        let inner = self.inner.clone().epoch(self.epoch).link(link).build();
        Sim {
            control: inner.control(),
            inner,
            links: RefCell::new(self.links.clone()),
            tick: self.tick,
            steps: 0,
            epoch: self.epoch,
            lifetime: PhantomData,
        }
    }
}

/// The settings of links: those of all, and those of pairs that have some of their own.
#[derive(Clone, Debug)]
struct Links {
    /// The least, and the largest.
    latency: (Duration, Duration),
    fail: f64,
    repair: f64,
    own: BTreeMap<(HostId, HostId), Own>,
}

/// The settings that a pair has of its own. As in turmoil, the first setting of a kind copies the default.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    latency: Option<(Duration, Duration)>,
    fail: Option<f64>,
}

impl Links {
    /// The mean latency, and half the width as jitter.
    fn of(&self, own: Option<Own>) -> Link {
        let own = own.unwrap_or_default();
        let (least, most) = own.latency.unwrap_or(self.latency);
        let most = most.max(least);
        let link = Link::new().latency((least + most) / 2).jitter((most - least) / 2);
        link.flaps(own.fail.unwrap_or(self.fail), self.repair)
    }
}

/// `turmoil::Sim`.
pub struct Sim<'a> {
    inner: crate::Sim,
    control: Control,
    links: RefCell<Links>,
    tick: Duration,
    steps: u64,
    epoch: SystemTime,
    lifetime: PhantomData<&'a ()>,
}

impl std::fmt::Debug for Sim<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl Sim<'_> {
    /// Adds a client: the run ends with the last of them.
    pub fn client<F>(&mut self, name: impl AsRef<str>, client: F)
    where
        F: Future<Output = Result> + 'static,
    {
        self.inner.client(name.as_ref(), client);
    }

    /// Adds a host, whose software starts anew after a [`bounce`](Self::bounce).
    pub fn host<F, Fut>(&mut self, name: impl AsRef<str>, host: F)
    where
        F: Fn() -> Fut + 'static,
        Fut: Future<Output = Result> + 'static,
    {
        self.inner.host(name.as_ref(), host);
    }

    /// Runs until all clients are done. Without a client that is at once, as in turmoil.
    ///
    /// # Errors
    /// A program failed, or clients are not done after the simulation's duration.
    pub fn run(&mut self) -> Result {
        if self.inner.machines.iter().any(|machine| machine.client) {
            self.inner.run()?;
        }
        Ok(())
    }

    /// Runs for a tick; whether all clients are done.
    ///
    /// # Errors
    /// A program failed, or clients are not done after the simulation's duration.
    pub fn step(&mut self) -> Result<bool> {
        // Steps without a duration would never come to the end.
        let tick = if self.tick.is_zero() { Duration::from_millis(1) } else { self.tick };
        self.inner.run_for(tick)?;
        self.steps += 1;
        let done = self.inner.are_clients_done();
        if !done && self.elapsed() > self.inner.config.limit {
            return Err(self.inner.stall_failure().into());
        }
        Ok(done)
    }

    /// The simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        self.inner.elapsed()
    }

    /// The simulated time since the Unix epoch.
    pub fn since_epoch(&self) -> Duration {
        let epoch = self.epoch.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        epoch + self.elapsed()
    }

    /// Ends the software of hosts as turmoil does: streams are dropped, so their peers see the end.
    /// [`Control::crash`] is a loss of power, which no peer sees.
    pub fn crash(&mut self, hosts: impl ToIpAddrs) {
        self.control.kill(hosts);
    }

    /// Starts the software of hosts anew.
    pub fn bounce(&mut self, hosts: impl ToIpAddrs) {
        self.control.bounce(hosts);
    }

    /// Whether a host's software runs.
    pub fn is_host_running(&mut self, host: impl ToIpAddr) -> bool {
        self.control.is_running(host)
    }

    /// The address of a host, the preferred one if it has several.
    #[track_caller]
    pub fn lookup(&self, host: impl ToIpAddr) -> IpAddr {
        one(self.control.addresses(host))
    }

    /// The addresses of hosts.
    pub fn lookup_many(&self, hosts: impl ToIpAddrs) -> Vec<IpAddr> {
        self.control.addresses(hosts)
    }

    /// The name of the host that has an address.
    pub fn reverse_lookup(&self, address: IpAddr) -> Option<String> {
        self.control.host_name(address)
    }

    /// The names of two hosts.
    ///
    /// # Panics
    /// If no host has one of the addresses.
    #[track_caller]
    pub fn reverse_lookup_pair(&self, (a, b): (IpAddr, IpAddr)) -> (String, String) {
        let name = |address| match self.reverse_lookup(address) {
            Some(name) => name,
            None => panic!("no host is at {address}"),
        };
        (name(a), name(b))
    }

    /// Packets between hosts are lost: also those of open streams, which stall and go on later.
    pub fn partition(&self, a: impl ToIpAddrs, b: impl ToIpAddrs) {
        self.control.partition(a, b);
    }

    /// [`partition`](Self::partition) of one direction.
    pub fn partition_oneway(&self, from: impl ToIpAddrs, to: impl ToIpAddrs) {
        self.control.partition_oneway(from, to);
    }

    /// Ends a partition.
    pub fn repair(&self, a: impl ToIpAddrs, b: impl ToIpAddrs) {
        self.control.repair(a, b);
    }

    /// Ends a partition of one direction.
    pub fn repair_oneway(&self, from: impl ToIpAddrs, to: impl ToIpAddrs) {
        self.control.repair_oneway(from, to);
    }

    /// Packets between hosts wait.
    pub fn hold(&self, a: impl ToIpAddrs, b: impl ToIpAddrs) {
        self.control.hold(a, b);
    }

    /// Lets packets go that wait.
    pub fn release(&self, a: impl ToIpAddrs, b: impl ToIpAddrs) {
        self.control.release(a, b);
    }

    /// The latency between hosts, without any variance.
    #[track_caller]
    pub fn set_link_latency(&self, a: impl ToIpAddrs, b: impl ToIpAddrs, value: Duration) {
        self.set_links(&a, &b, |own, _| own.latency = Some((value, value)));
    }

    /// The largest latency between hosts; the least stays.
    #[track_caller]
    pub fn set_link_max_message_latency(
        &self,
        a: impl ToIpAddrs,
        b: impl ToIpAddrs,
        value: Duration,
    ) {
        self.set_links(&a, &b, |own, all| {
            own.latency = Some((own.latency.unwrap_or(all.latency).0, value));
        });
    }

    /// The chance, a packet, that the link between hosts breaks.
    #[track_caller]
    pub fn set_link_fail_rate(&mut self, a: impl ToIpAddrs, b: impl ToIpAddrs, value: f64) {
        self.set_links(&a, &b, |own, _| own.fail = Some(value));
    }

    /// The largest latency of all links that have none of their own.
    pub fn set_max_message_latency(&self, value: Duration) {
        self.set_all(|links| links.latency.1 = value);
    }

    /// The chance, a packet, that a link breaks, of all links that have none of their own.
    pub fn set_fail_rate(&mut self, value: f64) {
        self.set_all(|links| links.fail = value);
    }

    #[track_caller]
    fn set_links(&self, a: &impl ToIpAddrs, b: &impl ToIpAddrs, change: impl Fn(&mut Own, &Links)) {
        let (a, b) = {
            let world = self.inner.world.lock();
            (HostTable(&world).find(a), HostTable(&world).find(b))
        };
        let mut links = self.links.borrow_mut();
        for (&a, &b) in a.iter().flat_map(|a| b.iter().map(move |b| (a, b))).filter(|(a, b)| a != b)
        {
            let pair = (a.min(b), a.max(b));
            let mut own = links.own.get(&pair).copied().unwrap_or_default();
            change(&mut own, &links);
            links.own.insert(pair, own);
            self.control.link(a, b, links.of(Some(own)));
        }
    }

    fn set_all(&self, change: impl Fn(&mut Links)) {
        let mut links = self.links.borrow_mut();
        change(&mut links);
        self.control.default_link(links.of(None));
        // A pair may have only one setting of its own.
        for (&(a, b), &own) in &links.own {
            self.control.link(a, b, links.of(Some(own)));
        }
    }
}

/// How long the host whose code runs has been in the simulation.
///
/// # Panics
/// Outside of a simulation, as turmoil's.
#[track_caller]
pub fn elapsed() -> Duration {
    crate::time::elapsed().unwrap_or_else(|error| panic!("elapsed: {error}"))
}

/// How long the simulation has run; `None` outside of one.
pub fn sim_elapsed() -> Option<Duration> {
    crate::time::elapsed().ok()
}

/// The addresses of hosts.
///
/// # Panics
/// Outside of a simulation, as turmoil's.
#[track_caller]
pub fn lookup_many(hosts: impl ToIpAddrs) -> Vec<IpAddr> {
    match Control::current() {
        Ok(control) => control.addresses(hosts),
        Err(error) => panic!("lookup_many: {error}"),
    }
}

/// The address of a host, the preferred one if it has several.
///
/// # Panics
/// Outside of a simulation, as turmoil's, and if there is no such host.
#[track_caller]
pub fn lookup(host: impl ToIpAddr) -> IpAddr {
    one(lookup_many(host))
}

/// The name of the host that has an address.
///
/// # Panics
/// Outside of a simulation, as turmoil's.
#[track_caller]
pub fn reverse_lookup(address: IpAddr) -> Option<String> {
    match Control::current() {
        Ok(control) => control.host_name(address),
        Err(error) => panic!("reverse_lookup: {error}"),
    }
}

/// The simulated time since the Unix epoch; `None` outside of a simulation.
pub fn since_epoch() -> Option<Duration> {
    let now = if in_simulation() { crate::time::now() } else { return None };
    now.duration_since(SystemTime::UNIX_EPOCH).ok()
}

#[track_caller]
fn one(addresses: Vec<IpAddr>) -> IpAddr {
    match addresses.first() {
        Some(&address) => address,
        None => panic!("no host"),
    }
}
