//! [`Link`]: a further link of a host, which is a device with addresses of its own. [`IntoCidr`] are the forms
//! of an address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_device::Device;
use pagewire_stack::{Cidr, CidrError, LinkConfig};

use crate::error::{StartError, parse, parse_all};

/// A link to be added to a host that starts ([`HostBuilder::link`](crate::HostBuilder::link)) or runs
/// ([`Host::add_link`](crate::Host::add_link)).
///
/// ```
/// use pagewire::{Host, Link, Pair};
/// let (left, _peer) = Pair::new()?;
/// let (right, _other_peer) = Pair::new()?;
/// let host = Host::builder().device(left).address("10.0.0.1/24");
/// let host = host.link(Link::new(right).address("10.0.1.1/24")).ip_forwarding(true).start()?;
/// assert_eq!(host.stats().links.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Link {
    pub(crate) device: Box<dyn Device>,
    addresses: Vec<Cidr>,
    /// The error of the first address that cannot be parsed.
    wrong: Option<StartError>,
    gateways: Vec<String>,
    routes: Vec<(String, String)>,
    transparent: bool,
}

impl Link {
    /// A link without addresses; it needs at least one.
    pub fn new(device: impl Device + 'static) -> Self {
        Self {
            device: Box::new(device),
            addresses: Vec::new(),
            wrong: None,
            gateways: Vec::new(),
            routes: Vec::new(),
            transparent: false,
        }
    }

    /// Adds an address of the host on this link, with the prefix length of its network: `"10.77.1.2/24"` or
    /// `"fd78::2/64"`. Addresses are unique among links. A text that is no address is an error of the start.
    pub fn address(mut self, cidr: impl IntoCidr) -> Self {
        push(cidr, &mut self.addresses, &mut self.wrong);
        self
    }

    /// The default gateway, if the gateways of earlier links do not answer; one for each IP version.
    pub fn gateway(mut self, ip: impl ToString) -> Self {
        self.gateways.push(ip.to_string());
        self
    }

    /// Adds a network behind a gateway on this link: `"10.88.0.0/16"`, `"10.77.1.9"`.
    pub fn route(mut self, network: impl AsRef<str>, gateway: impl AsRef<str>) -> Self {
        self.routes.push((network.as_ref().to_owned(), gateway.as_ref().to_owned()));
        self
    }

    /// Whether every unicast address counts as ours on this link, see
    /// [`HostBuilder::transparent`](crate::HostBuilder::transparent).
    pub fn transparent(mut self, on: bool) -> Self {
        self.transparent = on;
        self
    }

    /// The link's settings for the stack.
    pub(crate) fn config(&mut self) -> Result<LinkConfig, StartError> {
        if let Some(error) = self.wrong.take() {
            return Err(error);
        }
        let addresses = self.addresses.clone();
        let mut config = LinkConfig::new(self.device.capabilities().clone(), addresses);
        config.transparent = self.transparent;
        config.gateways = parse_all::<IpAddr>(&self.gateways)?;
        for (network, gateway) in &self.routes {
            config.routes.push((parse(network)?, parse(gateway)?));
        }
        Ok(config)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// An address with the prefix length of its network: a text such as `"10.77.1.2/24"`, a [`Cidr`], or an
/// address and a number of bits.
///
/// ```
/// use std::net::Ipv4Addr;
/// use pagewire::{Host, Pair};
/// let (left, _peer) = Pair::new()?;
/// let host = Host::builder().device(left).address("fd77::1/64");
/// let host = host.address((Ipv4Addr::new(10, 0, 0, 1), 24)).start()?;
/// assert!(host.addresses().contains(&"10.0.0.1/24".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IntoCidr {
    /// The address.
    ///
    /// # Errors
    /// [`StartError::Address`], which the start of the host returns.
    fn into_cidr(self) -> Result<Cidr, StartError>;
}

impl IntoCidr for Cidr {
    fn into_cidr(self) -> Result<Cidr, StartError> {
        Ok(self)
    }
}

impl IntoCidr for &str {
    fn into_cidr(self) -> Result<Cidr, StartError> {
        parse(self)
    }
}

impl IntoCidr for &String {
    fn into_cidr(self) -> Result<Cidr, StartError> {
        parse(self)
    }
}

impl IntoCidr for String {
    fn into_cidr(self) -> Result<Cidr, StartError> {
        parse(&self)
    }
}

impl IntoCidr for (IpAddr, u8) {
    fn into_cidr(self) -> Result<Cidr, StartError> {
        let (addr, prefix) = self;
        let wrong = |e: CidrError| StartError::Address {
            text: format!("{addr}/{prefix}"),
            why: e.to_string(),
        };
        Cidr::new(addr, prefix).map_err(wrong)
    }
}

impl IntoCidr for (Ipv4Addr, u8) {
    fn into_cidr(self) -> Result<Cidr, StartError> {
        (IpAddr::V4(self.0), self.1).into_cidr()
    }
}

impl IntoCidr for (Ipv6Addr, u8) {
    fn into_cidr(self) -> Result<Cidr, StartError> {
        (IpAddr::V6(self.0), self.1).into_cidr()
    }
}

/// Adds an address to `all`, or the first error to `wrong`.
pub(crate) fn push(cidr: impl IntoCidr, all: &mut Vec<Cidr>, wrong: &mut Option<StartError>) {
    match cidr.into_cidr() {
        Ok(cidr) => all.push(cidr),
        Err(error) => {
            wrong.get_or_insert(error);
        }
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
