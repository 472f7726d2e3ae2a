//! [`Control`]: partitions, faults and crashes on demand. From outside of the running programs by
//! [`Sim::control`](crate::Sim::control), from inside by the functions of this module.
//!
//! A command takes effect at the same simulated time, after the run of the host that gave it: a command for
//! the network before the packets of that run leave, a command for hosts after. A command from outside takes
//! effect before anything else happens.

use std::io;
use std::net::IpAddr;

use crate::HostId;
use crate::faults::command::{Command, HostChange, PathChange, Pause};
use crate::host::clock::Skew;
use crate::host::selectors::{HostTable, Hosts};
use crate::host::world::{HostHandle, SharedWorld};
use crate::network::link::Link;

/// Gives commands to a simulation. Every function takes [`Hosts`]: a name, an address, a list of
/// these, or [`all`](crate::all). An unknown name is a mistake in the test: a panic.
#[derive(Clone)]
pub struct Control {
    world: SharedWorld,
}

impl Control {
    pub(crate) fn new(world: SharedWorld) -> Self {
        Self { world }
    }

    /// The simulation whose code runs on this thread.
    ///
    /// # Errors
    /// `Unsupported` outside of a simulation.
    pub fn current() -> io::Result<Self> {
        Ok(Self { world: HostHandle::get()?.world })
    }

    /// Loses all packets between these groups, in either direction, those on the way included.
    #[track_caller]
    pub fn partition(&self, a: impl Hosts, b: impl Hosts) {
        self.paths(&a, &b, true, PathChange::Cut);
    }

    /// Loses all packets from `from` to `to`.
    #[track_caller]
    pub fn partition_oneway(&self, from: impl Hosts, to: impl Hosts) {
        self.paths(&from, &to, false, PathChange::Cut);
    }

    /// Ends a [`partition`](Self::partition). A [`hold`](Self::hold) stays.
    #[track_caller]
    pub fn repair(&self, a: impl Hosts, b: impl Hosts) {
        self.paths(&a, &b, true, PathChange::Repair);
    }

    /// Ends a partition in one direction.
    #[track_caller]
    pub fn repair_oneway(&self, from: impl Hosts, to: impl Hosts) {
        self.paths(&from, &to, false, PathChange::Repair);
    }

    /// Lets packets between these groups wait, those on the way included. In a partition packets are lost, and
    /// packets that wait already are lost if they are released during one.
    #[track_caller]
    pub fn hold(&self, a: impl Hosts, b: impl Hosts) {
        self.paths(&a, &b, true, PathChange::Hold);
    }

    /// Ends a [`hold`](Self::hold): packets that wait arrive now, in their order. A partition stays.
    #[track_caller]
    pub fn release(&self, a: impl Hosts, b: impl Hosts) {
        self.paths(&a, &b, true, PathChange::Release);
    }

    /// Sets the link between these groups, in both directions, for packets from now on.
    #[track_caller]
    pub fn link(&self, a: impl Hosts, b: impl Hosts, link: Link) {
        self.paths(&a, &b, true, PathChange::Link(link));
    }

    /// Sets the link from `from` to `to`.
    #[track_caller]
    pub fn link_oneway(&self, from: impl Hosts, to: impl Hosts, link: Link) {
        self.paths(&from, &to, false, PathChange::Link(link));
    }

    /// Sets the link of every pair of hosts that has none of its own, also of hosts to come. The MTU of
    /// hosts' devices stays that of [`Builder::link`](crate::Builder::link).
    pub fn default_link(&self, link: Link) {
        self.world.lock().commands.push_back(Command::DefaultLink(link));
    }

    /// Sets a link that all packets from these hosts take first: their common bandwidth.
    #[track_caller]
    pub fn uplink(&self, hosts: impl Hosts, link: Link) {
        self.change(&hosts, HostChange::Uplink(link));
    }

    /// Sets a link that all packets to these hosts take last.
    #[track_caller]
    pub fn downlink(&self, hosts: impl Hosts, link: Link) {
        self.change(&hosts, HostChange::Downlink(link));
    }

    /// Takes the power away: nothing more is sent, and the memory is gone. Peers learn nothing, so
    /// their connections are half open.
    #[track_caller]
    pub fn crash(&self, hosts: impl Hosts) {
        self.change(&hosts, HostChange::Crash);
    }

    /// Kills the process: its kernel closes its sockets, as it does at the end of every process. Ends a
    /// [`pause`](Self::pause), as every stop and start of a host does.
    #[track_caller]
    pub fn kill(&self, hosts: impl Hosts) {
        self.change(&hosts, HostChange::Kill);
    }

    /// Starts the program again, after a [`crash`](Self::crash) on a machine without memory, after a
    /// [`kill`](Self::kill) on the same. One that runs is killed first.
    ///
    /// A client made of one future ([`Sim::client`](crate::Sim::client)) cannot start again: the run
    /// fails. [`Sim::client_with`](crate::Sim::client_with) makes one that can.
    #[track_caller]
    pub fn bounce(&self, hosts: impl Hosts) {
        self.change(&hosts, HostChange::Bounce);
    }

    /// Stops hosts until they [`resume`](Self::resume). Time goes on.
    #[track_caller]
    pub fn pause(&self, hosts: impl Hosts, what: Pause) {
        self.change(&hosts, HostChange::Pause(what));
    }

    /// Ends a [`pause`](Self::pause): timers that would have fired do so now.
    #[track_caller]
    pub fn resume(&self, hosts: impl Hosts) {
        self.change(&hosts, HostChange::Resume);
    }

    /// Sets how far the hosts' clocks are off from now on.
    #[track_caller]
    pub fn skew(&self, hosts: impl Hosts, skew: Skew) {
        self.change(&hosts, HostChange::Skew(skew));
    }

    /// Gives a name these addresses, for look-ups from now on.
    pub fn name(&self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) {
        self.world.lock().names.set(name, addresses.into_iter().collect());
    }

    /// Whether the programs of all these hosts run.
    #[track_caller]
    pub fn is_running(&self, hosts: impl Hosts) -> bool {
        let world = self.world.lock();
        let hosts = HostTable(&world).find(&hosts);
        hosts.iter().all(|host| world.hosts.get(host.index()).is_some_and(|host| host.running))
    }

    /// The addresses of a host, in the order of preference.
    #[track_caller]
    pub fn addresses(&self, host: impl Hosts) -> Vec<IpAddr> {
        let world = self.world.lock();
        let hosts = HostTable(&world).find(&host);
        let states = hosts.iter().filter_map(|host| world.hosts.get(host.index()));
        states.flat_map(|host| host.addresses.iter().copied()).collect()
    }

    /// The name of the host that has an address.
    pub fn host_name(&self, address: IpAddr) -> Option<String> {
        let world = self.world.lock();
        let host = world.names.host_of(address)?;
        world.hosts.get(host as usize).map(|host| host.name.clone())
    }

    /// Makes the link between two hosts slow, until [`recover`](Self::recover) was called as often.
    pub(crate) fn slow(&self, one: HostId, other: HostId, link: Link) {
        self.paths(&one, &other, true, PathChange::Slow(link));
    }

    pub(crate) fn recover(&self, one: HostId, other: HostId) {
        self.paths(&one, &other, true, PathChange::Recover);
    }

    #[track_caller]
    fn paths(&self, a: &impl Hosts, b: &impl Hosts, both: bool, change: PathChange) {
        let mut world = self.world.lock();
        let (a, b) = (HostTable(&world).find(a), HostTable(&world).find(b));
        let mut pairs = Vec::new();
        for &from in &a {
            for &to in b.iter().filter(|&&to| to != from) {
                pairs.push((from, to));
                if both {
                    pairs.push((to, from));
                }
            }
        }
        world.commands.push_back(Command::Paths(pairs, change));
    }

    #[track_caller]
    fn change(&self, hosts: &impl Hosts, change: HostChange) {
        let mut world = self.world.lock();
        let hosts = HostTable(&world).find(hosts);
        world.commands.push_back(Command::Hosts(hosts, change));
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

macro_rules! inside {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {$(
        #[doc = concat!("As [`Control::", stringify!($name), "`].")]
        ///
        /// # Panics
        /// Outside of a simulation.
        #[track_caller]
        pub fn $name($($arg: $kind),*) {
            match Control::current() {
                Ok(control) => control.$name($($arg),*),
                Err(error) => panic!("{}: {error}", stringify!($name)),
            }
        }
    )*};
}

inside! {
    partition(a: impl Hosts, b: impl Hosts);
    partition_oneway(from: impl Hosts, to: impl Hosts);
    repair(a: impl Hosts, b: impl Hosts);
    repair_oneway(from: impl Hosts, to: impl Hosts);
    hold(a: impl Hosts, b: impl Hosts);
    release(a: impl Hosts, b: impl Hosts);
    link(a: impl Hosts, b: impl Hosts, link: Link);
    link_oneway(from: impl Hosts, to: impl Hosts, link: Link);
    default_link(link: Link);
    uplink(hosts: impl Hosts, link: Link);
    downlink(hosts: impl Hosts, link: Link);
    crash(hosts: impl Hosts);
    kill(hosts: impl Hosts);
    bounce(hosts: impl Hosts);
    pause(hosts: impl Hosts, what: Pause);
    resume(hosts: impl Hosts);
    skew(hosts: impl Hosts, skew: Skew);
}
