//! The names of turmoil, for tests that come from there: `use pagewire_simulation::turmoil;` in the
//! place of the crate.
//!
//! It only renames. What it does is this crate's: connections have a real TCP, so tests see round
//! trips, retransmissions and half-open connections that they did not see before.
//! `docs/COMING-FROM-TURMOIL.md` says what differs and why. New tests are better written with
//! [`Sim`](crate::Sim) itself.
//!
//! Not there, because there is no counterpart: the file system, barriers, the iterator over links,
//! `established_tcp_stream_count`, and hosts that borrow (`Sim` has a lifetime for the name only).
//! Calls that have no effect here say so.

use std::future::Future;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use crate::control::Control;
use crate::{Hosts, Link};

pub use crate::control::{hold, partition, partition_oneway, release, repair, repair_oneway};
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
    latency: (Duration, Duration),
    rates: (f64, f64),
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
            latency: (Duration::ZERO, Duration::from_millis(100)),
            rates: (0.0, 1.0),
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
        self.latency.0 = value;
        self
    }

    /// The largest latency of a packet. Latencies are spread evenly, and packets stay in order.
    pub fn max_message_latency(&mut self, value: Duration) -> &mut Self {
        self.latency.1 = value;
        self
    }

    /// The chance, a packet, that a link breaks.
    pub fn fail_rate(&mut self, value: f64) -> &mut Self {
        self.rates.0 = value;
        self
    }

    /// The chance, a packet, that a broken link works again.
    pub fn repair_rate(&mut self, value: f64) -> &mut Self {
        self.rates.1 = value;
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

    /// Hosts that are due at one moment run in an order of the seed.
    pub fn enable_random_order(&mut self) -> &mut Self {
        self.set(crate::Builder::random_order)
    }

    /// The seed.
    pub fn rng_seed(&mut self, value: u64) -> &mut Self {
        self.set(|inner| inner.seed(value))
    }

    /// A simulation.
    pub fn build<'a>(&self) -> Sim<'a> {
        let link = link(self.latency.0, self.latency.1).flaps(self.rates.0, self.rates.1);
        let inner = self.inner.clone().epoch(self.epoch).link(link).build();
        Sim {
            control: inner.control(),
            inner,
            latency: self.latency,
            rates: self.rates,
            tick: self.tick,
            epoch: self.epoch,
            lifetime: PhantomData,
        }
    }
}

/// The mean, and half the width as jitter.
fn link(least: Duration, most: Duration) -> Link {
    let most = most.max(least);
    Link::new().latency((least + most) / 2).jitter((most - least) / 2)
}

/// `turmoil::Sim`.
pub struct Sim<'a> {
    inner: crate::Sim,
    control: Control,
    latency: (Duration, Duration),
    rates: (f64, f64),
    tick: Duration,
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

    /// Runs until all clients are done.
    pub fn run(&mut self) -> Result {
        self.inner.run()?;
        Ok(())
    }

    /// Runs for a tick; whether all clients are done.
    pub fn step(&mut self) -> Result<bool> {
        self.inner.run_for(self.tick)?;
        Ok(self.inner.are_clients_done())
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

    /// Ends the software of hosts as turmoil does: streams are dropped, so their peers are told.
    /// [`Control::crash`] is a loss of power, of which nobody is told.
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

    /// The addresses of hosts.
    pub fn lookup_many(&self, hosts: impl ToIpAddrs) -> Vec<IpAddr> {
        self.control.addresses(hosts)
    }

    /// The name of the host that has an address.
    pub fn reverse_lookup(&self, address: IpAddr) -> Option<String> {
        let world = self.inner.world.lock();
        let host = world.names.host_of(address)?;
        world.hosts.get(host as usize).map(|host| host.name.clone())
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

    /// The latency between hosts.
    pub fn set_link_latency(&self, a: impl ToIpAddrs, b: impl ToIpAddrs, value: Duration) {
        self.set_link(a, b, (value, value), self.rates.0);
    }

    /// The largest latency between hosts.
    pub fn set_link_max_message_latency(
        &self,
        a: impl ToIpAddrs,
        b: impl ToIpAddrs,
        value: Duration,
    ) {
        self.set_link(a, b, (self.latency.0, value), self.rates.0);
    }

    /// The chance, a packet, that the link between hosts breaks.
    pub fn set_link_fail_rate(&mut self, a: impl ToIpAddrs, b: impl ToIpAddrs, value: f64) {
        self.set_link(a, b, self.latency, value);
    }

    fn set_link(
        &self,
        a: impl Hosts,
        b: impl Hosts,
        (least, most): (Duration, Duration),
        fail: f64,
    ) {
        self.control.link(a, b, link(least, most).flaps(fail, self.rates.1));
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
