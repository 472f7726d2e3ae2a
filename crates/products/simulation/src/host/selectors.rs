//! Names of hosts in calls ([`Hosts`]), and the options of a new host ([`HostOptions`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_stack::TcpConfig;

use crate::HostId;
use crate::host::clock::Skew;
use crate::host::world::World;
use crate::network::link::Link;

/// One or several hosts: a name, an address, a [`HostId`], lists of these, or [`all`].
pub trait Hosts: Select {}

impl<T: Select + ?Sized> Hosts for T {}

/// The lookup of hosts; not to be called, or implemented, outside of this crate.
pub trait Select {
    /// Adds the hosts, in this order. `Err`: there is no such host, in words.
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String>;
}

/// The table of all hosts, for look-ups.
#[derive(Clone, Copy)]
pub struct HostTable<'a>(pub(crate) &'a World);

impl HostTable<'_> {
    /// The hosts that `hosts` names.
    ///
    /// # Panics
    /// If there is no such host: a mistake in the test.
    #[track_caller]
    pub(crate) fn find(&self, hosts: &impl Hosts) -> Vec<HostId> {
        let mut out = Vec::new();
        if let Err(what) = hosts.select(self, &mut out) {
            let names: Vec<&str> = self.0.hosts.iter().map(|host| host.name.as_str()).collect();
            panic!("no host is {what}; there are: {}", names.join(", "));
        }
        out
    }
}

/// All hosts: see [`all`].
#[derive(Clone, Copy, Debug)]
pub struct All;

/// All hosts that were added so far.
pub fn all() -> All {
    All
}

impl Select for All {
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
        out.extend((0..table.0.hosts.len() as u32).map(HostId));
        Ok(())
    }
}

impl Select for HostId {
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
        if self.index() >= table.0.hosts.len() {
            return Err(format!("number {}", self.0));
        }
        out.push(*self);
        Ok(())
    }
}

impl Select for IpAddr {
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
        let host = table.0.names.host_of(*self);
        out.push(HostId(host.ok_or_else(|| format!("at {self}"))?));
        Ok(())
    }
}

impl Select for str {
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
        let found = table.0.names.resolve(self).and_then(|addresses| addresses.first());
        let host = found.and_then(|&addr| table.0.names.host_of(addr));
        out.push(HostId(host.ok_or_else(|| format!("called `{self}`"))?));
        Ok(())
    }
}

macro_rules! hosts_as {
    ($($kind:ty, $this:ident => $as:expr;)*) => {$(
        impl Select for $kind {
            fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
                let $this = self;
                $as.select(table, out)
            }
        }
    )*};
}

hosts_as! {
    String, this => this.as_str();
    Ipv4Addr, this => IpAddr::V4(*this);
    Ipv6Addr, this => IpAddr::V6(*this);
}

impl<T: Select + ?Sized> Select for &T {
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
        (**self).select(table, out)
    }
}

impl<T: Select> Select for [T] {
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
        self.iter().try_for_each(|hosts| hosts.select(table, out))
    }
}

impl<T: Select> Select for Vec<T> {
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
        self.as_slice().select(table, out)
    }
}

impl<T: Select, const N: usize> Select for [T; N] {
    fn select(&self, table: &HostTable<'_>, out: &mut Vec<HostId>) -> Result<(), String> {
        self.as_slice().select(table, out)
    }
}

/// The options of one host. By default it has the next free addresses and the settings of the
/// simulation.
#[derive(Clone, Debug)]
pub struct HostOptions {
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) memory: Option<usize>,
    pub(crate) tcp: Option<TcpConfig>,
    pub(crate) skew: Skew,
    pub(crate) uplink: Option<Link>,
    pub(crate) downlink: Option<Link>,
    pub(crate) may_fail: bool,
}

impl HostOptions {
    /// A host of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            addresses: Vec::new(),
            memory: None,
            tcp: None,
            skew: Skew::default(),
            uplink: None,
            downlink: None,
            may_fail: false,
        }
    }

    /// A further address; the first one given replaces those that the host would have got.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.addresses.push(address);
        self
    }

    /// A link in front of all its links to others, in both directions.
    pub fn link(mut self, link: Link) -> Self {
        (self.uplink, self.downlink) = (Some(link), Some(link));
        self
    }

    /// An error that its program returns ends the program, and not the run.
    pub fn may_fail(mut self) -> Self {
        self.may_fail = true;
        self
    }
}

pagewire_mem::setters! {
    HostOptions:
    /// Bytes of memory for payload that it sends.
    memory(bytes: usize): memory = Some(bytes);
    /// Settings of its connections.
    tcp(config: TcpConfig): tcp = Some(config);
    /// How far its clocks are off.
    skew(skew: Skew): skew = skew;
}

impl From<&str> for HostOptions {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}
