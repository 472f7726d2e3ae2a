//! [`GuestNetwork`]: the addresses on both sides of a guest's link, from the options, and as far as `--copy` asks
//! for that, from an interface of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire::device::{Dhcp, DhcpConfig};
use pagewire::{Cidr, Device};
use pagewire_gateway::netns::InsideNetwork;
use pagewire_gateway::{Autoconf, AutoconfConfig, GuestConfig, Template};

use crate::args::guest::{GuestOptions, HostAt, Mapped};
use crate::failure::{Failure, complain, reason};
use crate::net;

/// Our addresses if none are given.
const ADDRESSES: [&str; 2] = ["10.0.2.2/24", "fd00:2::2/64"];

/// Number of the guest's address in its network, as QEMU's built-in network has it.
const GUEST: u32 = 15;

/// Largest IP packet of a guest in bytes, if neither an option nor an interface says another.
const MTU: u32 = 1500;

/// Limits of that: of IPv6 (RFC 8200 section 5), and of a tap, whose frame has an Ethernet header.
const MTUS: [u32; 2] = [1280, 65_521];

/// The guest's address and its router's where this machine has no interface to copy (RFC 3927).
const LOCAL_GUEST: Ipv4Addr = Ipv4Addr::new(169, 254, 2, 1);
const LOCAL_ROUTER: Ipv4Addr = Ipv4Addr::new(169, 254, 2, 2);
const LOCAL_PREFIX: u8 = 16;

/// The guest's IPv6 router where the interface that is copied has none.
const LOCAL_ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// The network of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuestNetwork {
    /// The addresses of each version of IP, at most one of each.
    versions: Vec<VersionNetwork>,
    /// Our addresses beside the routers'.
    further: Vec<IpAddr>,
    /// Where the resolver answers, if not at each router's address.
    dns: Vec<IpAddr>,
    /// The guest's networks have other hosts.
    proxy_arp: bool,
    /// The guest's link address.
    tap_mac: Option<[u8; 6]>,
    pub(crate) mtu: u32,
    /// The name of the interface that was copied.
    pub(crate) copied: Option<String>,
    search: Vec<String>,
}

/// A guest's network of one version of IP.
#[derive(Clone, Debug, PartialEq, Eq)]
struct VersionNetwork {
    /// Our address, the guest's router.
    router: IpAddr,
    /// The guest's addresses, each with the length of its network's prefix.
    guests: Vec<Cidr>,
    /// The guest's routes beside the default one.
    routes: Vec<(Cidr, Option<IpAddr>)>,
    /// This machine's own address.
    host: Option<IpAddr>,
}

/// What the guest learns by DHCP, DHCPv6 and router advertisements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advertised {
    /// The addresses of DHCP, if not the guest's.
    pub(crate) range: Option<(Ipv4Addr, Ipv4Addr)>,
    pub(crate) dhcp: bool,
    pub(crate) dhcp6: bool,
    pub(crate) ra: bool,
    /// Resolvers and search list.
    pub(crate) dns: bool,
}

impl Advertised {
    pub(crate) fn of(options: &GuestOptions, range: Option<(Ipv4Addr, Ipv4Addr)>) -> Self {
        let GuestOptions { no_dhcp, no_dhcp6, no_ra, no_dhcp_dns, .. } = *options;
        Self { range, dhcp: !no_dhcp, dhcp6: !no_dhcp6, ra: !no_ra, dns: !no_dhcp_dns }
    }
}

impl GuestNetwork {
    /// The network of the options.
    pub(crate) fn of(options: &GuestOptions) -> Result<Self, Failure> {
        let templates = Templates::of(options)?;
        let given: Vec<String> = match options.addr.is_empty() && options.copy.is_empty() {
            true => ADDRESSES.iter().map(|&text| text.to_owned()).collect(),
            false => options.addr.clone(),
        };
        let ours = net::networks("--addr", &given)?;
        let mut left = options.guest.clone();
        let mut versions = Vec::new();
        for v4 in [true, false] {
            let of_it = |ip: &IpAddr| ip.is_ipv4() == v4;
            let guest = left.iter().position(of_it).map(|at| left.remove(at));
            let ours = ours.iter().find(|ours| of_it(&ours.addr()));
            let template = templates.get(v4);
            versions.extend(match (ours, template) {
                (Some(ours), _) => Some(VersionNetwork::given(*ours, guest)?),
                (None, Some(template)) => VersionNetwork::copied(template.as_ref(), guest, v4),
                (None, None) if guest.is_some() => {
                    left.extend(guest);
                    None
                }
                (None, None) => None,
            });
        }
        if let Some(guest) = left.first() {
            let why = "there is no network for it: give our address in it with --addr";
            return Err(Failure::misused(format!("--guest {guest}"), why));
        }
        if versions.is_empty() {
            let why = "this machine has no interface with such an address; give --addr";
            return Err(Failure::misused("--copy", why));
        }
        for version in &mut versions {
            let template = templates.get(version.router.is_ipv4());
            let host = template.and_then(Option::as_ref).and_then(|t| t.addresses.first());
            version.host = host.map(Cidr::addr);
        }
        let is_router = |ip: &IpAddr| versions.iter().any(|version| version.router == *ip);
        let further = ours.iter().map(Cidr::addr).filter(|ip| !is_router(ip)).collect();
        let copied = templates.first();
        let mtu = copied.map_or(MTU, |template| template.mtu.clamp(MTUS[0], MTUS[1]));
        let mut network = Self {
            versions,
            further,
            dns: options.dns_addr.clone(),
            proxy_arp: options.proxy_arp || !options.copy.is_empty(),
            tap_mac: options.tap_mac,
            mtu: options.mtu.unwrap_or(mtu),
            copied: copied.map(|template| template.name.clone()),
            search: options.search.clone(),
        };
        network.add_mapped(options)?;
        Ok(network)
    }

    /// Makes mapped addresses ours where the guest would ask for them on its link.
    fn add_mapped(&mut self, options: &GuestOptions) -> Result<(), Failure> {
        let maps = options.map.iter().map(|(from, _)| ("--map", *from));
        let hosts = options.host.iter().filter_map(|host| match host {
            HostAt::Address(address) => Some(("--host", *address)),
            HostAt::Router { .. } => None,
        });
        let dns = options.dns_addr.iter().map(|address| ("--dns-addr", *address));
        for (option, address) in hosts.chain(maps).chain(dns) {
            self.check_own(option, address)?;
            let networks = || self.versions.iter().flat_map(|version| &version.guests);
            let known = self.routers().chain(self.further.iter().copied()).any(|ip| ip == address);
            if !known && (is_link_local(address) || networks().any(|n| n.contains(address))) {
                self.further.push(address);
            }
        }
        Ok(())
    }

    /// Whether what a guest sends to this address may be for us.
    fn check_own(&self, option: &str, address: IpAddr) -> Result<(), Failure> {
        let failed = |why: &str| {
            let why = format!("{why}; give another, such as 192.0.2.1, and connect to that");
            Err(Failure::misused(format!("{option} {address}"), why))
        };
        let no_host = match address {
            IpAddr::V4(v4) => v4.is_unspecified() || v4.is_multicast() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unspecified() || v6.is_multicast(),
        };
        match address {
            _ if address.is_loopback() => failed("this is the guest's own loopback"),
            _ if no_host => failed("this is no address of one host"),
            _ if self.guests().any(|guest| guest == address) => failed("this is the guest's own"),
            _ => Ok(()),
        }
    }

    pub(crate) fn guests(&self) -> impl Iterator<Item = IpAddr> {
        self.versions.iter().flat_map(|version| version.guests.iter().map(Cidr::addr))
    }

    pub(crate) fn routers(&self) -> impl Iterator<Item = IpAddr> {
        self.versions.iter().map(|version| version.router)
    }

    fn resolvers(&self) -> Vec<IpAddr> {
        if self.dns.is_empty() { self.routers().collect() } else { self.dns.clone() }
    }

    /// The addresses that lead to others, with their targets.
    pub(crate) fn mappings(&self, options: &GuestOptions) -> Vec<(IpAddr, IpAddr)> {
        let loopback = |from: IpAddr| match from {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let mut all: Vec<(IpAddr, IpAddr)> = Vec::new();
        for host in &options.host {
            match *host {
                HostAt::Address(address) => all.push((address, loopback(address))),
                HostAt::Router { v4, v6 } => {
                    let wanted = |ip: &IpAddr| if ip.is_ipv4() { v4 } else { v6 };
                    all.extend(self.routers().filter(wanted).map(|ip| (ip, loopback(ip))));
                }
            }
        }
        for &(from, to) in &options.map {
            let to = match to {
                Mapped::To(to) => Some(to),
                Mapped::Host => self.host_address(from.is_ipv4()),
            };
            match to {
                Some(to) => all.push((from, to)),
                None => complain!(
                    "pagewire: --map {from}=host: this machine has no address of that version of IP"
                ),
            }
        }
        all
    }

    /// This machine's own address.
    fn host_address(&self, v4: bool) -> Option<IpAddr> {
        let copied = self.versions.iter().find(|version| version.router.is_ipv4() == v4)?.host;
        copied.or_else(|| {
            let found = Template::find(None, v4).ok().flatten()?;
            found.addresses.first().map(Cidr::addr)
        })
    }

    /// The settings of the guest.
    pub(crate) fn config(&self) -> GuestConfig {
        let mut config = GuestConfig::new().proxy_arp(self.proxy_arp);
        for version in &self.versions {
            let router = version.router;
            let around = version.guests.iter().find(|network| network.contains(router));
            let network = around.and_then(|network| Cidr::new(router, network.prefix()).ok());
            config = match network {
                Some(network) => config.network_of(network),
                None => config.further(router),
            };
            for guest in &version.guests {
                config = config.on_link(*guest).guest(guest.addr());
            }
        }
        config = self.further.iter().fold(config, |config, address| config.further(*address));
        self.resolvers().into_iter().fold(config, GuestConfig::resolver)
    }

    /// The network settings for the kernel inside of a namespace.
    pub(crate) fn inside(&self, tap: &str, left_alone: bool) -> InsideNetwork {
        let mut network = InsideNetwork::default();
        (network.tap, network.mtu) = (tap.to_owned(), self.mtu as usize);
        (network.mac, network.left_alone) = (self.tap_mac, left_alone);
        (network.resolvers, network.search) = (self.resolvers(), self.search.clone());
        if left_alone {
            return network;
        }
        network.routers = self.routers().collect();
        for version in &self.versions {
            network.addresses.extend(version.guests.iter().map(Cidr::to_string));
            network.routes.extend(version.routes.iter().copied());
        }
        network
    }

    /// A device whose guest gets its addresses: the same at each time.
    pub(crate) fn advertise_on(
        &self,
        mut device: Box<dyn Device>,
        what: Advertised,
    ) -> Result<Box<dyn Device>, Failure> {
        for version in &self.versions {
            let Some(guest) = version.guests.first() else { continue };
            match (version.router, guest.addr()) {
                (IpAddr::V4(router), IpAddr::V4(address)) if what.dhcp => {
                    let mut config = match what.range {
                        Some((first, last)) => {
                            DhcpConfig::network(router, guest.prefix())?.range(first, last)?
                        }
                        None => DhcpConfig::host(router, address, guest.prefix())?,
                    };
                    config.router = Some(router);
                    if what.dns {
                        config.dns = self.resolvers().into_iter().filter_map(v4).collect();
                        config.search.clone_from(&self.search);
                    }
                    device = Box::new(Dhcp::new(device, config)?);
                }
                (IpAddr::V6(router), IpAddr::V6(address)) if what.ra || what.dhcp6 => {
                    // The network's own address is that of its routers (RFC 4291 section 2.6.1).
                    let network = match guest.contains(router.into()) {
                        true => Cidr::new(router.into(), guest.prefix()),
                        false => Cidr::new(guest.network(), guest.prefix()),
                    };
                    let network = network.map_err(|e| Failure::misused(router, e))?;
                    let mut config = AutoconfConfig::new(network);
                    let ours = [version.router].into_iter().chain(self.further.iter().copied());
                    config.router = ours.filter_map(v6).find(Ipv6Addr::is_unicast_link_local);
                    config.guest = Some(address).filter(|_| what.dhcp6);
                    if !what.dhcp6 && guest.prefix() != 64 {
                        complain!(
                            "pagewire: no router advertisements: {guest} has no prefix of 64 bits"
                        );
                        continue;
                    }
                    (config.advertises, config.dhcp) = (what.ra, what.dhcp6);
                    if what.dns {
                        config.dns = self.resolvers().into_iter().filter_map(v6).collect();
                        config.search.clone_from(&self.search);
                    }
                    device = Box::new(Autoconf::new(device, config)?);
                }
                _ => {}
            }
        }
        Ok(device)
    }
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    if let IpAddr::V4(v4) = address { Some(v4) } else { None }
}

fn v6(address: IpAddr) -> Option<Ipv6Addr> {
    if let IpAddr::V6(v6) = address { Some(v6) } else { None }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

impl VersionNetwork {
    /// The network of an `--addr`.
    fn given(ours: Cidr, guest: Option<IpAddr>) -> Result<Self, Failure> {
        let guest = match guest {
            Some(guest) => check(ours, guest)?,
            None => guest_of(ours).ok_or_else(|| {
                Failure::misused(format!("--addr {ours}"), "there is no address left for a guest")
            })?,
        };
        let guest = Cidr::new(guest, ours.prefix()).map_err(|e| Failure::misused(guest, e))?;
        Ok(Self { router: ours.addr(), guests: vec![guest], routes: Vec::new(), host: None })
    }

    /// The network of an interface, or else one that leads nowhere else. `None`: there is no IPv6.
    fn copied(template: Option<&Template>, guest: Option<IpAddr>, v4: bool) -> Option<Self> {
        let local = || Cidr::new(LOCAL_GUEST.into(), LOCAL_PREFIX).ok();
        let mut guests = match template {
            Some(template) => template.addresses.clone(),
            None if v4 => local().into_iter().collect(),
            None => return None,
        };
        if let Some(guest) = guest {
            let whole = if v4 { 32 } else { 128 };
            let around = guests.iter().find(|network| network.contains(guest));
            let prefix = around.or(guests.first()).map_or(whole, Cidr::prefix);
            guests = Cidr::new(guest, prefix).ok().into_iter().collect();
        }
        let fallback = if v4 { LOCAL_ROUTER.into() } else { LOCAL_ROUTER_V6.into() };
        let router = template.and_then(|template| template.router).unwrap_or(fallback);
        let routes = template.map(|template| template.routes.clone()).unwrap_or_default();
        Some(Self { router, guests, routes, host: None })
    }
}

/// The interfaces that `--copy` names, for each version of IP: `None` for one that is not copied.
struct Templates {
    v4: Option<Option<Template>>,
    v6: Option<Option<Template>>,
}

impl Templates {
    fn of(options: &GuestOptions) -> Result<Self, Failure> {
        let find = |v4: bool| -> Result<Option<Option<Template>>, Failure> {
            let of_it = options.copy.iter().rev().find(|copy| if v4 { copy.v4 } else { copy.v6 });
            let Some(copy) = of_it else { return Ok(None) };
            let found = Template::find(copy.name.as_deref(), v4);
            let found = found.map_err(|e| Failure::because("--copy", reason(&e)))?;
            Ok(Some(found))
        };
        let all = Self { v4: find(true)?, v6: find(false)? };
        // A name that is wrong for both versions of IP is a mistake.
        for copy in &options.copy {
            let has = |found: &Option<Option<Template>>| {
                found.iter().flatten().any(|template| Some(&template.name) == copy.name.as_ref())
            };
            if let Some(name) = copy.name.as_ref().filter(|_| !has(&all.v4) && !has(&all.v6)) {
                let why = "there is no interface of that name with an address";
                return Err(Failure::misused(format!("--copy={name}"), why));
            }
        }
        Ok(all)
    }

    fn get(&self, v4: bool) -> Option<&Option<Template>> {
        if v4 { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    fn first(&self) -> Option<&Template> {
        [&self.v4, &self.v6].into_iter().flatten().flatten().next()
    }
}

/// A guest's address as given.
fn check(ours: Cidr, guest: IpAddr) -> Result<IpAddr, Failure> {
    let failed = |why: &str| Err(Failure::misused(format!("--guest {guest}"), why));
    match guest {
        _ if guest == ours.addr() => failed("this is our own address; give another"),
        // A router beyond the link's networks, as clouds have it, is reached all the same.
        _ if !ours.contains(guest) && !is_host_route(ours) => {
            failed("it is not in the network of --addr")
        }
        _ if !is_host(ours, guest) => failed("it is the network or broadcast address"),
        _ => Ok(guest),
    }
}

fn is_host_route(network: Cidr) -> bool {
    network.prefix() == if network.addr().is_ipv4() { 32 } else { 128 }
}

/// A guest's address if none is given: the 15th of the network, or the first that is free.
fn guest_of(ours: Cidr) -> Option<IpAddr> {
    let fits =
        |guest: &IpAddr| *guest != ours.addr() && ours.contains(*guest) && is_host(ours, *guest);
    [GUEST].into_iter().chain(0..GUEST).map(|n| net::nth(&ours, n)).find(fits)
}

/// Whether this is neither the network's first address nor, with IPv4, its last.
fn is_host(network: Cidr, address: IpAddr) -> bool {
    // RFC 3021, RFC 6164: a network of two addresses has neither.
    let has_edges = network.prefix() < if address.is_ipv4() { 31 } else { 127 };
    let edges = [Some(network.network()), network.broadcast().map(IpAddr::V4)];
    !has_edges || !edges.contains(&Some(address))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn network(args: &[&str]) -> Result<GuestNetwork, String> {
        let words = ["pagewire", "run"].iter().chain(args).chain(&["--", "true"]);
        let Ok(Cli { command: Command::Run(options), .. }) = Cli::try_parse_from(words) else {
            panic!("{args:?}");
        };
        match GuestNetwork::of(&options.guest) {
            Ok(network) => Ok(network),
            Err(Failure::Usage(text)) => Err(text),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn guests(args: &[&str]) -> Result<Vec<String>, String> {
        Ok(network(args)?.guests().map(|guest| guest.to_string()).collect())
    }

    #[test]
    fn a_guest_has_an_address_of_each_version_unless_the_networks_are_given() {
        assert_eq!(guests(&[]).unwrap(), ["10.0.2.15", "fd00:2::f"]);
        assert_eq!(guests(&["--addr", "10.9.0.1/16"]).unwrap(), ["10.9.0.15"]);
        assert_eq!(guests(&["--guest", "10.0.2.99"]).unwrap(), ["10.0.2.99", "fd00:2::f"]);
    }

    #[test]
    fn it_is_never_our_own_and_never_the_networks_first_or_last() {
        for (ours, guest) in [
            ("10.0.0.15/24", "10.0.0.1"),
            ("10.0.0.1/30", "10.0.0.2"),
            ("10.0.0.2/30", "10.0.0.1"),
            ("10.0.0.1/28", "10.0.0.2"),
            ("10.0.0.0/31", "10.0.0.1"),
            ("10.0.0.1/31", "10.0.0.0"),
            ("fd77::f/64", "fd77::1"),
            ("fd77::1/127", "fd77::"),
        ] {
            assert_eq!(guests(&["--addr", ours]).unwrap(), [guest], "{ours}");
        }
        assert!(guests(&["--addr", "10.0.0.1/32"]).unwrap_err().contains("no address left"));
    }

    #[test]
    fn addresses_that_cannot_work_are_refused_with_the_reason() {
        for (args, says) in [
            (&["--addr", "10.0.0.1"][..], "10.77.0.2/24"),
            (&["--guest", "10.0.2.2"], "our own"),
            (&["--guest", "10.0.3.2"], "not in the network"),
            (&["--guest", "10.0.2.255"], "broadcast"),
            (&["--guest", "10.0.2.3", "--guest", "10.0.2.4"], "no network"),
            (&["--addr", "10.0.2.2/24", "--guest", "fd00:2::3"], "no network"),
        ] {
            let text = guests(args).unwrap_err();
            assert!(text.contains(says), "{args:?}: {text}");
        }
    }

    #[test]
    fn an_address_for_this_machine_that_a_guest_never_sends_to_is_refused() {
        for (address, says) in [
            ("127.0.0.1", "own loopback"),
            ("127.9.9.9", "own loopback"),
            ("::1", "own loopback"),
            ("0.0.0.0", "no address of one host"),
            ("224.0.0.1", "no address of one host"),
            ("10.0.2.15", "the guest's own"),
        ] {
            let text = network(&["--host", address]).expect_err(address);
            assert!(text.contains(says), "{address}: {text}");
        }
    }

    #[test]
    fn an_address_of_the_guests_link_that_leads_here_is_ours() {
        for (address, ours) in [
            ("192.0.2.1", false),
            ("10.0.3.1", false),
            // The router's is ours already.
            ("10.0.2.2", false),
            ("10.0.2.99", true),
            ("169.254.1.2", true),
            ("fd00:2::99", true),
            ("fe80::99", true),
        ] {
            let found = network(&["--host", address]).expect(address);
            let expected: Vec<IpAddr> =
                ours.then(|| address.parse().unwrap()).into_iter().collect();
            assert_eq!(found.further, expected, "{address}");
        }
        let several = network(&["--addr", "10.0.2.2/24", "--addr", "10.0.2.3/24"]).expect("two");
        assert_eq!(several.routers().count(), 1);
        assert_eq!(several.further, ["10.0.2.3".parse::<IpAddr>().unwrap()]);
        let resolver = network(&["--dns-addr", "10.0.2.3"]).expect("a resolver");
        assert_eq!((resolver.resolvers(), resolver.further.len()), (resolver.further.clone(), 1));
    }
}
