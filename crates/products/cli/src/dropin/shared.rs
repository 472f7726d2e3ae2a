//! Options that passt and pasta have in common, and their words.
//!
//! Both give the guest this machine's own addresses and routes (`--copy`), unless addresses are named: then, for
//! that IP version, the guest is in a network of its own, whose router is `--gateway` or the first address.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::{ArgAction, Args};
use pagewire_gateway::Cidr;
use pagewire_gateway::limits::LOG_BYTES_LEAST;

use crate::args::host::link_address;
use crate::dropin::Words;
use crate::dropin::getopt::Early;
use crate::dropin::ports::Spec;
use crate::net::nth;

#[derive(Clone, Debug, Default, Args)]
pub(super) struct Shared {
    /// Say on standard error what goes on
    #[arg(short, long)]
    pub(super) debug: bool,

    /// Say everything
    #[arg(long)]
    pub(super) trace: bool,

    /// Not supported: use `pagewire top`
    #[arg(long, value_name = "DELAY")]
    stats: Option<String>,

    /// Print failures only
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Stay in the foreground [default: return when ready]
    #[arg(short, long)]
    pub(super) foreground: bool,

    /// Has no effect
    #[arg(short = 'e', long)]
    stderr: bool,

    /// Write messages to PATH
    #[arg(short, long, value_name = "PATH")]
    pub(super) log_file: Option<OsString>,

    /// Longest --log-file, in bytes [default: 1048576]
    #[arg(long, value_name = "SIZE")]
    pub(super) log_size: Option<String>,

    /// User to switch to if started as root: UID or LOGIN [default: nobody]
    #[arg(long, value_name = "UID|UID:GID|LOGIN|LOGIN:GROUP")]
    runas: Option<String>,

    /// Unix socket for pesto
    #[arg(short, long, value_name = "PATH")]
    pub(super) conf_path: Option<OsString>,

    /// Write all frames to FILE, in pcapng
    #[arg(short, long, value_name = "FILE")]
    pcap: Option<OsString>,

    /// Write the PID to FILE when ready
    #[arg(short = 'P', long, value_name = "FILE")]
    pub(super) pid: Option<OsString>,

    /// MTU: 1280 to 65521; 0: 1500 [default: 65520]
    #[arg(short, long, value_name = "MTU")]
    mtu: Option<String>,

    /// The guest's address; once for IPv4, once for IPv6 [default: this machine's]
    #[arg(short, long, value_name = "ADDR[/PREFIX_LEN]")]
    address: Vec<String>,

    /// IPv4 mask of --address, dotted or in bits [default: that of the address's class]
    #[arg(short, long, value_name = "MASK")]
    netmask: Option<String>,

    /// Our MAC address
    #[arg(short = 'M', long, value_name = "ADDR")]
    mac_addr: Option<String>,

    /// The guest's router, with --address; once for IPv4, once for IPv6 [default: this machine's]
    #[arg(short, long, value_name = "ADDR")]
    gateway: Vec<String>,

    /// Interface whose addresses and routes the guest gets [default: that of the default route]
    #[arg(short, long, value_name = "NAME")]
    interface: Option<String>,

    /// Source address of what leaves this machine; once for IPv4, once for IPv6
    #[arg(short, long, value_name = "ADDR")]
    outbound: Vec<String>,

    /// Interface by which IPv4 leaves this machine
    #[arg(long, value_name = "NAME")]
    outbound_if4: Option<String>,

    /// Interface by which IPv6 leaves this machine
    #[arg(long, value_name = "NAME")]
    outbound_if6: Option<String>,

    /// Name server of the guest, or none; repeatable
    #[arg(short = 'D', long, value_name = "ADDR")]
    dns: Vec<String>,

    /// Address at which ours forwards to the host's resolvers; once for IPv4, once for IPv6
    #[arg(long, value_name = "ADDR")]
    dns_forward: Vec<String>,

    /// Resolver to which --dns-forward forwards
    #[arg(long, value_name = "ADDR")]
    dns_host: Vec<String>,

    /// Search list of the guest, with spaces, or none
    #[arg(short = 'S', long, value_name = "LIST")]
    search: Option<String>,

    /// No TCP
    #[arg(long)]
    no_tcp: bool,

    /// No UDP
    #[arg(long)]
    no_udp: bool,

    /// No ping
    #[arg(long)]
    no_icmp: bool,

    /// No DHCP
    #[arg(long)]
    no_dhcp: bool,

    /// No router advertisements; neighbour solicitations are answered all the same
    #[arg(long)]
    no_ndp: bool,

    /// No DHCPv6
    #[arg(long)]
    no_dhcpv6: bool,

    /// No router advertisements
    #[arg(long)]
    no_ra: bool,

    /// Not supported: publish at an address that this machine has
    #[arg(long)]
    freebind: bool,

    /// Address that leads to this machine's loopback, or none; once for IPv4, once for IPv6
    /// [default: the router's]
    #[arg(long, value_name = "ADDR")]
    map_host_loopback: Vec<String>,

    /// Do not let the router's address lead to this machine's loopback
    #[arg(long)]
    no_map_gw: bool,

    /// Has no effect: it goes on where pivot_root fails
    #[arg(long)]
    chroot_fallback: bool,

    /// Address that leads to this machine's own address, or none; once for IPv4, once for IPv6
    #[arg(long, value_name = "ADDR")]
    map_guest_addr: Vec<String>,

    /// IPv4 only
    #[arg(short = '4', long, overrides_with = "ipv6_only")]
    ipv4_only: bool,

    /// IPv6 only
    #[arg(short = '6', long, overrides_with = "ipv4_only")]
    ipv6_only: bool,

    /// Not supported: name the guest inside
    #[arg(short = 'H', long, value_name = "NAME")]
    hostname: Option<String>,

    /// Not supported: name the guest inside
    #[arg(long, value_name = "NAME")]
    fqdn: Option<String>,

    /// TCP ports of this machine that lead to the guest: none, auto (pasta), all, or
    /// [ADDR/]PORT[-PORT][:PORT[-PORT]],~PORT[-PORT]; repeatable [default: auto in pasta, none in passt]
    #[arg(short, long, value_name = "SPEC")]
    pub(super) tcp_ports: Vec<String>,

    /// UDP ports, as --tcp-ports
    #[arg(short, long, value_name = "SPEC")]
    pub(super) udp_ports: Vec<String>,

    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,

    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    version: Option<bool>,
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V4,
    V6,
}

impl Version {
    pub(super) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    fn has(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self == Self::V4)
    }

    fn digit(self) -> char {
        if self == Self::V4 { '4' } else { '6' }
    }
}

/// Where the guest's address of an IP version comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// There is none.
    Off,
    Copied,
    Given {
        guest: IpAddr,
        router: Cidr,
        gateway: Option<IpAddr>,
    },
}

/// The guest's addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addressing {
    pub(super) of: [(Version, Source); 2],
}

/// How the guest knows its name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    ByDhcp,
    /// There is DHCP, which does not name it.
    NotByDhcp,
    /// By the program's own /etc/resolv.conf.
    ByFile,
    /// By somebody else.
    Not,
}

impl Addressing {
    pub(super) const NONE: Self =
        Self { of: [(Version::V4, Source::Off), (Version::V6, Source::Off)] };

    pub(super) fn copies(&self) -> bool {
        self.of.iter().any(|(_, source)| matches!(source, Source::Copied))
    }

    /// The guest's addresses that are known.
    pub(super) fn guests(&self) -> Vec<IpAddr> {
        let guest = |(_, source): &(Version, Source)| match source {
            Source::Given { guest, .. } => Some(*guest),
            _ => None,
        };
        self.of.iter().filter_map(guest).collect()
    }
}

impl Shared {
    /// The options that are not supported, each with what to do instead.
    pub(super) fn check(&self) -> Result<(), Early> {
        let refused = [
            (self.stats.is_some(), "--stats is not supported: see `pagewire top`"),
            (
                self.freebind,
                "--freebind is not supported: publish at 0.0.0.0, or at an address that this machine has",
            ),
            (self.hostname.is_some(), "--hostname is not supported: set the name in the guest"),
            (self.fqdn.is_some(), "--fqdn is not supported: set the name in the guest"),
        ];
        match refused.into_iter().find(|(given, _)| *given) {
            Some((_, why)) => Err(why.into()),
            None => Ok(()),
        }
    }

    fn has(&self, version: Version) -> bool {
        match version {
            Version::V4 => !self.ipv6_only,
            Version::V6 => !self.ipv4_only,
        }
    }

    pub(super) fn addressing(&self) -> Result<Addressing, Early> {
        let [v4, v6] = Version::BOTH.map(|version| (version, self.source(version)));
        let of = [(v4.0, v4.1?), (v6.0, v6.1?)];
        let has_v4 = matches!(of, [(_, Source::Given { .. }), _]);
        match self.netmask.is_some() && !has_v4 && self.has(Version::V4) {
            true => Err("--netmask needs an IPv4 --address".into()),
            false => Ok(Addressing { of }),
        }
    }

    fn source(&self, version: Version) -> Result<Source, Early> {
        if !self.has(version) {
            return Ok(Source::Off);
        }
        let mut given = None;
        for text in &self.address {
            let (address, prefix) =
                text.split_once('/').map_or((text.as_str(), None), |(a, p)| (a, Some(p)));
            let address = ip("--address", address)?;
            if version.has(&address) {
                given = Some((address, prefix));
            }
        }
        let gateway = last("--gateway", &self.gateway, version)?;
        let Some((guest, prefix)) = given else {
            return match gateway {
                Some(gateway) => {
                    Err(format!("--gateway {gateway} needs an --address of that IP version").into())
                }
                None => Ok(Source::Copied),
            };
        };
        let prefix = self.prefix(guest, prefix)?;
        let network = Cidr::new(guest, prefix).map_err(|e| format!("--address {guest}: {e}"))?;
        // A router's link-local address is one of ours beside that of the network.
        let is_beside = matches!(gateway, Some(IpAddr::V6(g)) if g.is_unicast_link_local());
        let own = gateway.filter(|_| !is_beside).or_else(|| {
            let mut first = [1, 2].into_iter().map(|n| nth(&network, n));
            first.find(|address| *address != guest && network.contains(*address))
        });
        let own = own.ok_or_else(|| {
            format!(
                "--address {guest}/{prefix} leaves no address for a router: give a shorter prefix"
            )
        })?;
        if own == guest || !network.contains(own) {
            return Err(format!(
                "--gateway {own} must be another address in the network of --address {guest}/{prefix}"
            )
            .into());
        }
        let router = Cidr::new(own, prefix).map_err(|e| format!("--gateway {own}: {e}"))?;
        Ok(Source::Given { guest, router, gateway })
    }

    /// The length of the guest's network in bits. That of IPv6 is always 64.
    fn prefix(&self, guest: IpAddr, given: Option<&str>) -> Result<u8, Early> {
        let IpAddr::V4(v4) = guest else { return Ok(64) };
        let text = match (given, self.netmask.as_deref()) {
            (Some(_), Some(_)) => {
                return Err("--netmask contradicts the prefix of --address".into());
            }
            (Some(text), None) | (None, Some(text)) => text,
            // The class of the address (RFC 791 section 3.2).
            (None, None) => {
                return Ok(match v4.octets()[0] {
                    0..=127 => 8,
                    128..=191 => 16,
                    _ => 24,
                });
            }
        };
        let dotted = |mask: std::net::Ipv4Addr| {
            let ones = mask.to_bits().leading_ones();
            (mask.to_bits().checked_shl(ones).unwrap_or(0) == 0).then_some(ones as u8)
        };
        let bits = text.parse().ok().or_else(|| dotted(text.parse().ok()?));
        bits.filter(|bits| (1..=32).contains(bits)).ok_or_else(|| {
            format!("'{text}' is no IPv4 mask: give it as in 24 or 255.255.255.0").into()
        })
    }

    pub(super) fn put_addresses(
        &self,
        addressing: &Addressing,
        words: &mut Words,
    ) -> Result<(), Early> {
        self.put_copies(addressing, words)?;
        for (_, source) in addressing.of {
            let Source::Given { guest, router, gateway } = source else { continue };
            words.set("--addr", router.to_string());
            if let Some(gateway) = gateway.filter(|gateway| *gateway != router.addr()) {
                words.set("--addr", format!("{gateway}/64"));
            }
            words.set("--guest", guest.to_string());
        }
        // Other hosts of the guest's network are this machine's to reach.
        if !addressing.copies() {
            words.flag("--proxy-arp");
        }
        let mtu = self.mtu.as_deref().unwrap_or("65520");
        words.set("--mtu", mtu_of(mtu)?.to_string());
        if let Some(mac) = &self.mac_addr {
            link_address(mac).map_err(|why| format!("--mac-addr {mac}: {why}"))?;
            words.set("--mac", mac);
        }
        Ok(())
    }

    fn put_copies(&self, addressing: &Addressing, words: &mut Words) -> Result<(), Early> {
        let is_copied = |of: Version| {
            addressing.of.iter().any(|(v, source)| *v == of && matches!(source, Source::Copied))
        };
        let of = |version: Version| {
            let outbound = match version {
                Version::V4 => &self.outbound_if4,
                Version::V6 => &self.outbound_if6,
            };
            self.interface.as_ref().or(outbound.as_ref()).map(String::as_str).unwrap_or_default()
        };
        let [v4, v6] = Version::BOTH;
        interface("--interface", self.interface.as_deref())?;
        let copy = |words: &mut Words, value: &str| match value {
            "" => words.flag("--copy"),
            value => words.set("--copy", value),
        };
        if is_copied(v4) && is_copied(v6) && of(v4) == of(v6) {
            copy(words, of(v4));
            return Ok(());
        }
        for version in [v4, v6].into_iter().filter(|version| is_copied(*version)) {
            copy(words, &format!("{}/{}", of(version), version.digit()));
        }
        Ok(())
    }

    /// Which addresses lead to this machine.
    pub(super) fn put_mapped(
        &self,
        addressing: &Addressing,
        words: &mut Words,
    ) -> Result<(), Early> {
        let (given, none) = named("--map-host-loopback", &self.map_host_loopback)?;
        let by_router = !self.no_map_gw && !none;
        let default = |(version, source): (Version, Source)| match source {
            _ if given.iter().any(|address| version.has(address)) || !by_router => None,
            Source::Off => None,
            Source::Copied => Some(format!("router/{}", version.digit())),
            Source::Given { router, gateway, .. } => {
                Some(gateway.unwrap_or(router.addr()).to_string())
            }
        };
        let defaults: Vec<String> = addressing.of.into_iter().filter_map(default).collect();
        match defaults.as_slice() {
            [a, b] if a == "router/4" && b == "router/6" => words.set("--host", "router"),
            all => all.iter().for_each(|host| words.set("--host", host)),
        }
        for address in self.each_last(&given) {
            words.set("--host", address.to_string());
        }
        let (guest, _) = named("--map-guest-addr", &self.map_guest_addr)?;
        for address in self.each_last(&guest) {
            words.set("--map", format!("{address}=host"));
        }
        Ok(())
    }

    /// The last address of each IP version that there is.
    fn each_last(&self, all: &[IpAddr]) -> Vec<IpAddr> {
        let versions = Version::BOTH.into_iter().filter(|version| self.has(*version));
        versions
            .filter_map(|version| all.iter().rev().find(|ip| version.has(ip)).copied())
            .collect()
    }

    /// Name servers. The guest's is ours in any case: at the address that it was told, ours asks the server
    /// there.
    pub(super) fn put_names(&self, told: Told, words: &mut Words) -> Result<(), Early> {
        let all = |option, texts: &[String]| {
            texts.iter().map(|text| ip(option, text)).collect::<Result<Vec<_>, _>>()
        };
        let forward = self.each_last(&all("--dns-forward", &self.dns_forward)?);
        let hosts = self.each_last(&all("--dns-host", &self.dns_host)?);
        let (servers, none) = named("--dns", &self.dns)?;
        let first = |version: Version| servers.iter().find(|ip| version.has(ip)).copied();
        if let Some(server) = servers.iter().find(|ip| ip.is_loopback() || ip.is_unspecified()) {
            let why = "a guest's own name server is set in the guest; leave it out, or give none";
            return Err(format!("--dns {server}: {why}").into());
        }
        let other = servers.iter().find(|ip| !forward.contains(ip));
        if let (Some(other), false, false) = (other, forward.is_empty(), hosts.is_empty()) {
            return Err(format!(
                "--dns {other}: the guest has one name server, that of --dns-forward; leave out --dns"
            )
            .into());
        }
        let at = match forward.is_empty() {
            false => forward.clone(),
            true => {
                self.each_last(&Version::BOTH.into_iter().filter_map(first).collect::<Vec<_>>())
            }
        };
        for address in at {
            words.set("--dns-addr", address.to_string());
        }
        let asked: Vec<IpAddr> = match hosts.is_empty() || forward.is_empty() && !servers.is_empty()
        {
            false => hosts,
            // Ours at --dns-forward asks the others.
            true => servers.into_iter().filter(|ip| !forward.contains(ip)).collect(),
        };
        for address in asked {
            words.set("--dns", address.to_string());
        }
        match told {
            Told::ByFile if none => words.set("--dns", "none"),
            Told::ByDhcp if none => words.flag("--no-dhcp-dns"),
            Told::NotByDhcp => words.flag("--no-dhcp-dns"),
            Told::ByFile | Told::ByDhcp | Told::Not => {}
        }
        Ok(())
    }

    /// The search list. `own`: without --search, this machine's.
    pub(super) fn put_search(&self, own: Option<fn() -> Vec<String>>, words: &mut Words) {
        let list = match (self.search.as_deref(), own) {
            (Some("none" | ""), _) | (None, None) => Vec::new(),
            (Some(list), _) => list.split_whitespace().map(str::to_owned).collect(),
            (None, Some(own)) => own(),
        };
        list.iter().for_each(|domain| words.set("--search", domain));
    }

    /// What does not pass, and what is not offered.
    pub(super) fn put_refusals(&self, words: &mut Words) {
        for (off, protocol) in [(self.no_tcp, "tcp"), (self.no_udp, "udp"), (self.no_icmp, "icmp")]
        {
            if off {
                words.set("--deny", format!("0.0.0.0/0/{protocol}=drop"));
                words.set("--deny", format!("::/0/{protocol}=drop"));
            }
        }
        for (off, option) in [
            (self.no_dhcp, "--no-dhcp"),
            (self.no_dhcpv6, "--no-dhcp6"),
            (self.no_ra || self.no_ndp || self.no_icmp, "--no-ra"),
        ] {
            if off {
                words.flag(option);
            }
        }
    }

    /// By which way packets leave this machine.
    pub(super) fn put_sources(&self, words: &mut Words) -> Result<(), Early> {
        let mut addresses = Vec::new();
        for text in &self.outbound {
            addresses.push(ip("--outbound", text)?);
        }
        for address in self.each_last(&addresses) {
            words.set("--source", address.to_string());
        }
        interface("--outbound-if4", self.outbound_if4.as_deref())?;
        interface("--outbound-if6", self.outbound_if6.as_deref())?;
        match (&self.outbound_if4, &self.outbound_if6) {
            (Some(v4), Some(v6)) if v4 == v6 => words.set("--source", v4),
            (v4, v6) => {
                v4.iter().for_each(|name| words.set("--source", format!("{name}/4")));
                v6.iter().for_each(|name| words.set("--source", format!("{name}/6")));
            }
        }
        Ok(())
    }

    /// The ports of this machine that lead to the guest. `default`: what there is without a specifier.
    pub(super) fn put_ports(
        &self,
        addressing: &Addressing,
        default: &str,
        words: &mut Words,
    ) -> Result<(), Early> {
        let guests = addressing.guests();
        for (option, given, off, udp) in [
            ("--tcp-ports", &self.tcp_ports, self.no_tcp, false),
            ("--udp-ports", &self.udp_ports, self.no_udp, true),
        ] {
            for spec in specs(option, given, default)?.iter().filter(|_| !off) {
                let values = spec.published(udp, &guests);
                for value in values.map_err(|why| format!("{option}: {why}"))? {
                    words.set("--publish", value);
                }
            }
        }
        Ok(())
    }

    /// Messages, the user, the capture: what `run` and `gateway` have.
    pub(super) fn put_process(&self, words: &mut Words) -> Result<(), Early> {
        if self.quiet && (self.debug || self.trace) {
            return Err("--quiet and --debug exclude each other".into());
        }
        if self.trace {
            words.flag("-vv");
        } else if self.debug {
            words.flag("-v");
        }
        if let Some(user) = &self.runas {
            words.set("--user", user_of(user)?);
        }
        if let Some(file) = &self.pcap {
            words.set("--pcap", file);
        }
        Ok(())
    }

    /// What only `gateway` has.
    pub(super) fn put_service(&self, words: &mut Words) -> Result<(), Early> {
        if !self.foreground {
            words.flag("--background");
        }
        if self.quiet {
            words.flag("--quiet");
        }
        for (option, file) in [
            ("--pid", &self.pid),
            ("--log-file", &self.log_file),
            ("--api-socket", &self.conf_path),
        ] {
            if let Some(file) = file {
                words.set(option, file);
            }
        }
        let Some(size) = &self.log_size else { return Ok(()) };
        if self.log_file.is_none() {
            return Err("--log-size needs --log-file".into());
        }
        match size.parse::<u64>() {
            Ok(bytes) if bytes >= LOG_BYTES_LEAST => words.set("--log-file-size", size),
            _ => {
                return Err(format!(
                    "--log-size {size}: give a number of bytes from {LOG_BYTES_LEAST} on"
                )
                .into());
            }
        }
        Ok(())
    }
}

/// The specifiers of an option. `none` stands alone, or first.
pub(super) fn specs(option: &str, given: &[String], default: &str) -> Result<Vec<Spec>, Early> {
    let texts: Vec<&str> = match given.is_empty() {
        true => vec![default],
        false => given.iter().map(String::as_str).collect(),
    };
    if texts.iter().skip(1).any(|text| *text == "none") {
        return Err(format!("{option} none contradicts the ports in front of it").into());
    }
    let parse = |text: &&str| Spec::parse(text).map_err(|why| format!("{option}: {why}").into());
    texts.iter().map(parse).collect()
}

fn ip(option: &str, text: &str) -> Result<IpAddr, Early> {
    text.parse().map_err(|_| format!("{option} {text}: not an IP address").into())
}

/// The last address of an IP version.
fn last(option: &str, texts: &[String], version: Version) -> Result<Option<IpAddr>, Early> {
    let mut found = None;
    for text in texts {
        found = Some(ip(option, text)?).filter(|address| version.has(address)).or(found);
    }
    Ok(found)
}

/// Addresses, and whether `none` was said. What stands in front of a `none` does not count.
fn named(option: &str, texts: &[String]) -> Result<(Vec<IpAddr>, bool), Early> {
    let (mut addresses, mut none) = (Vec::new(), false);
    for text in texts {
        match text.as_str() {
            "none" | "" => {
                addresses.clear();
                none = true;
            }
            text => addresses.push(ip(option, text)?),
        }
    }
    Ok((addresses, none))
}

fn interface(option: &str, name: Option<&str>) -> Result<(), Early> {
    match name {
        Some(name) if name.is_empty() || name.len() > 15 || name.contains(['/', ' ']) => {
            Err(format!("{option} {name}: not the name of an interface").into())
        }
        _ => Ok(()),
    }
}

fn mtu_of(text: &str) -> Result<u32, Early> {
    match text.parse::<u32>() {
        // Nothing is assigned: the guest's own default.
        Ok(0) => Ok(1500),
        Ok(mtu @ 1280..=65521) => Ok(mtu),
        _ => Err(format!("--mtu {text}: give 0, or a number from 1280 to 65521").into()),
    }
}

/// A user: the group is that user's.
fn user_of(text: &str) -> Result<&str, Early> {
    match text.split_once(':') {
        None => Ok(text),
        Some((user, group)) if user == group => Ok(user),
        Some((user, _)) => {
            Err(format!("--runas {text}: the group is the user's own; give --runas {user}").into())
        }
    }
}
