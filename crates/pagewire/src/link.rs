//! A further link of a host: a device with addresses of its own.

use std::net::IpAddr;

use pagewire_device::Device;
use pagewire_stack::{Cidr, LinkConfig};

use crate::error::{StartError, parse, parse_all};

/// A link to be added to a host that starts ([`Builder::link`](crate::Builder::link)) or runs
/// ([`Host::add_link`](crate::Host::add_link)).
///
/// ```
/// use pagewire::{Host, Link, Pair};
/// let (left, _peer) = Pair::new(Default::default())?;
/// let (right, _other_peer) = Pair::new(Default::default())?;
/// let host = Host::builder().device(left).address("10.0.0.1/24");
/// let host = host.link(Link::new(right).address("10.0.1.1/24")).ip_forwarding(true).start()?;
/// assert_eq!(host.stats().links.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct Link {
    pub(crate) device: Box<dyn Device>,
    addresses: Vec<String>,
    gateways: Vec<String>,
    routes: Vec<(String, String)>,
    transparent: bool,
}

impl Link {
    /// A link without addresses; it needs at least one.
    pub fn new(device: impl Device + 'static) -> Self {
        Self::boxed(Box::new(device))
    }

    /// As [`new`](Self::new), with the device chosen at run time.
    pub fn boxed(device: Box<dyn Device>) -> Self {
        let (addresses, gateways, routes) = (Vec::new(), Vec::new(), Vec::new());
        Self { device, addresses, gateways, routes, transparent: false }
    }

    /// Adds an address of the host on this link, with the prefix length of its network: `"10.77.1.2/24"` or
    /// `"fd78::2/64"`. Addresses are unique among links.
    pub fn address(mut self, cidr: impl AsRef<str>) -> Self {
        self.addresses.push(cidr.as_ref().to_owned());
        self
    }

    /// The default gateway, if the gateways of earlier links do not answer; one for each IP version.
    pub fn gateway(mut self, ip: impl AsRef<str>) -> Self {
        self.gateways.push(ip.as_ref().to_owned());
        self
    }

    /// Adds a network behind a gateway on this link: `"10.88.0.0/16"`, `"10.77.1.9"`.
    pub fn route(mut self, network: impl AsRef<str>, gateway: impl AsRef<str>) -> Self {
        self.routes.push((network.as_ref().to_owned(), gateway.as_ref().to_owned()));
        self
    }

    /// Whether every unicast address counts as ours on this link, see
    /// [`Builder::transparent`](crate::Builder::transparent).
    pub fn transparent(mut self, on: bool) -> Self {
        self.transparent = on;
        self
    }

    /// The link's settings for the stack.
    pub(crate) fn config(&self) -> Result<LinkConfig, StartError> {
        let addresses = parse_all::<Cidr>(&self.addresses)?;
        let mut config = LinkConfig::new(self.device.capabilities().clone(), addresses);
        config.transparent = self.transparent;
        config.gateways = parse_all::<IpAddr>(&self.gateways)?;
        for (network, gateway) in &self.routes {
            config.routes.push((parse(network)?, parse(gateway)?));
        }
        Ok(config)
    }
}
