//! `slirp4netns`, with the options of 1.3.3.
//!
//! Of a network, the address behind it by 2 is the router and leads to this machine's loopback, 3 is the name
//! server, 100 the guest's, and 15 to 30 are given by DHCP. With `-c` the namespace is configured; without it,
//! that is the caller's (RootlessKit).

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};

use clap::{ArgAction, Parser};

use crate::args::host::link_address;
use crate::dropin::getopt::{self, Early};
use crate::dropin::{Answer, Words};

/// User-mode networking for unprivileged network namespaces, by pagewire.
#[derive(Debug, Parser)]
#[command(
    name = "slirp4netns",
    version = "",
    disable_help_flag = true,
    disable_version_flag = true,
    override_usage = "slirp4netns [OPTION]... PID|PATH TAPNAME",
    after_help = "It runs `pagewire gateway`, always in a sandbox; see docs/DROP-INS.md for what differs.\n\nExit status: 0 \
                  when its namespace has gone, or SIGTERM, SIGINT or --exit-fd ends it; 1 otherwise (one line says \
                  why).\n\nSee also: pagewire-gateway(1), pagewire-check(1)"
)]
pub(super) struct Options {
    /// Bring up the interface and lo, with the network's 100th address and a default route
    #[arg(short, long)]
    configure: bool,

    /// End when this descriptor becomes readable, or its other end is closed
    #[arg(short, long, value_name = "FD")]
    exit_fd: Option<String>,

    /// Write 1 to this descriptor when the network is ready, and close it
    #[arg(short, long, value_name = "FD")]
    ready_fd: Option<String>,

    /// MTU: 1280 to 65521 [default: 1500]
    #[arg(short, long, value_name = "MTU")]
    mtu: Option<String>,

    /// IPv6, too, in fd00::/64
    #[arg(short = '6', long)]
    enable_ipv6: bool,

    /// Unix socket for requests that publish ports
    #[arg(short, long, value_name = "PATH")]
    api_socket: Option<OsString>,

    /// The guest's network [default: 10.0.2.0/24]
    #[arg(long, value_name = "CIDR")]
    cidr: Option<String>,

    /// Do not let the router's address lead to 127.0.0.1 of this machine
    #[arg(long)]
    disable_host_loopback: bool,

    /// What the first word is: path or pid [default: pid]
    #[arg(long, value_name = "TYPE")]
    netns_type: Option<String>,

    /// User namespace to enter [default: the one that owns the network namespace]
    #[arg(long, value_name = "PATH")]
    userns_path: Option<OsString>,

    /// Has no effect: it is always in a sandbox
    #[arg(long)]
    enable_sandbox: bool,

    /// Has no effect: its system calls are always filtered
    #[arg(long)]
    enable_seccomp: bool,

    /// Source of IPv4 packets that leave this machine: an address or an interface
    #[arg(long, value_name = "IPv4|INTERFACE")]
    outbound_addr: Option<String>,

    /// Source of IPv6 packets that leave this machine: an address or an interface
    #[arg(long, value_name = "IPv6|INTERFACE")]
    outbound_addr6: Option<String>,

    /// No name server at the network's 3rd address
    #[arg(long)]
    disable_dns: bool,

    /// MAC address of the tap, with -c
    #[arg(long, value_name = "MAC")]
    macaddress: Option<String>,

    /// netns [default]; bess is not supported
    #[arg(long, value_name = "TYPE")]
    target_type: Option<String>,

    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,

    /// Print the version
    #[arg(short, long, action = ArgAction::Version)]
    version: Option<bool>,

    #[arg(hide = true)]
    operands: Vec<OsString>,
}

/// Largest MTU, and our least: IPv6's.
const MTUS: std::ops::RangeInclusive<u32> = 1280..=65521;

pub(super) fn answer(words: &[OsString]) -> Result<Answer, Early> {
    let options: Options = getopt::parse(words, &version())?;
    Ok(Answer::Words(options.words()?, None))
}

/// The lines that callers read: Docker the first two, tests of slirp4netns the number. Another line with the
/// word "version" would be the version to Docker.
fn version() -> String {
    let own = concat!("pagewire ", env!("CARGO_PKG_VERSION"));
    format!(
        "slirp4netns version 1.3.3\ncommit: {own}\nlibslirp: none ({own})\n\
         SLIRP_CONFIG_VERSION_MAX: 5\nlibseccomp: none ({own})\n"
    )
}

impl Options {
    /// The words of `pagewire gateway`.
    fn words(&self) -> Result<Vec<OsString>, Early> {
        self.check()?;
        let mut words = Words::of("gateway");
        words.set("--link", "tap");
        self.put_namespace(&mut words)?;
        self.put_network(&mut words)?;
        for (option, given, v) in [
            ("--outbound-addr", &self.outbound_addr, '4'),
            ("--outbound-addr6", &self.outbound_addr6, '6'),
        ] {
            if let Some(given) = given {
                words.set("--source", source(option, given, v)?);
            }
        }
        for (option, ours, fd) in [
            ("--ready-fd", "--ready-fd", &self.ready_fd),
            ("--exit-fd", "--exit-fd", &self.exit_fd),
        ] {
            let Some(fd) = fd else { continue };
            let number: u32 = fd
                .parse()
                .map_err(|_| format!("{option} {fd}: give the number of an open descriptor"))?;
            words.set(ours, number.to_string());
        }
        if let Some(path) = &self.api_socket {
            words.set("--api-socket", path);
        }
        Ok(words.0)
    }

    /// What cannot be, or is not supported.
    fn check(&self) -> Result<(), Early> {
        match self.target_type.as_deref() {
            None | Some("netns") => {}
            Some("bess") => {
                return Err("--target-type=bess is not supported; User Mode Linux has other \
                            transports, such as a tap in a namespace"
                    .into());
            }
            Some(_) => return Err("--target-type must be \"netns\"".into()),
        }
        if self.operands.len() != 2 {
            return Err("give a PID or PATH, and the name of the tap, as in \
                        slirp4netns --configure 4711 tap0; see slirp4netns --help"
                .into());
        }
        if self.macaddress.is_some() && !self.configure {
            return Err("--macaddress is only for --configure".into());
        }
        Ok(())
    }

    fn put_namespace(&self, words: &mut Words) -> Result<(), Early> {
        let [target, tap] = self.operands.as_slice() else { return Ok(()) };
        match self.netns_type.as_deref() {
            None | Some("pid") => {
                let id = target.to_str().and_then(|text| text.parse().ok());
                let id = id.filter(|&id: &u32| id > 0).ok_or("PID must be a positive integer")?;
                words.set("--netns", id.to_string());
            }
            // A path of digits is no process.
            Some("path") if target.to_str().is_some_and(|text| text.parse::<u32>().is_ok()) => {
                let mut path = OsString::from("./");
                path.push(target);
                words.set("--netns", path);
            }
            Some("path") => words.set("--netns", target),
            Some(other) => {
                return Err(format!("--netns-type {other}: give \"path\" or \"pid\"").into());
            }
        }
        if let Some(path) = &self.userns_path {
            words.set("--userns", path);
        }
        words.set("--tap", tap);
        if !self.configure {
            words.flag("--no-configure");
        }
        if let Some(mac) = &self.macaddress {
            link_address(mac).map_err(|why| format!("--macaddress {mac}: {why}"))?;
            words.set("--tap-mac", mac);
        }
        Ok(())
    }

    fn put_network(&self, words: &mut Words) -> Result<(), Early> {
        let (network, prefix) = network(self.cidr.as_deref().unwrap_or("10.0.2.0/24"))?;
        let nth = |n: u32| Ipv4Addr::from_bits(network.to_bits() | n);
        words.set("--addr", format!("{}/{prefix}", nth(2)));
        words.set("--guest", nth(100).to_string());
        words.set("--dhcp-range", format!("{}-{}", nth(15), nth(30)));
        let quoted = |address: &str| match address.contains(':') {
            true => format!("[{address}]"),
            false => address.to_owned(),
        };
        let (mut routers, mut servers) =
            (vec![nth(2).to_string()], vec![(nth(3).to_string(), prefix)]);
        if self.enable_ipv6 {
            words.set("--addr", "fd00::2/64");
            // Where router advertisements come from.
            words.set("--addr", "fe80::2/64");
            words.set("--guest", "fd00::100");
            routers.push("fd00::2".into());
            servers.push(("fd00::3".into(), 64));
        }
        let mtu = self.mtu.as_deref().unwrap_or("1500");
        words.set("--mtu", mtu_of(mtu)?.to_string());
        for router in routers {
            match self.disable_host_loopback {
                false => words.set("--host", router),
                // Without ports it would be pings, too, which have an answer.
                true => words.set("--deny", format!("{}:1-65535=unreachable", quoted(&router))),
            }
        }
        if self.disable_dns {
            words.set("--dns", "none");
        }
        for (server, prefix) in servers {
            match self.disable_dns {
                false => words.set("--dns-addr", server),
                true => {
                    words.set("--addr", format!("{server}/{prefix}"));
                    words.set("--deny", format!("{}:53=drop", quoted(&server)));
                }
            }
        }
        Ok(())
    }
}

fn mtu_of(text: &str) -> Result<u32, Early> {
    let mtu: u32 = text.parse().unwrap_or(0);
    match mtu {
        _ if MTUS.contains(&mtu) => Ok(mtu),
        0 | 65522.. => Err("MTU must be a positive integer (< 65522)".into()),
        _ => Err(format!("--mtu {mtu}: pagewire needs 1280 at least, as IPv6 does").into()),
    }
}

/// A network that has room for all of these addresses.
fn network(text: &str) -> Result<(Ipv4Addr, u8), Early> {
    let parsed = text.split_once('/').and_then(|(address, prefix)| {
        Some((address.parse::<Ipv4Addr>().ok()?, prefix.parse::<u8>().ok()?))
    });
    let (address, prefix) = parsed.ok_or_else(|| format!("invalid CIDR: {text}"))?;
    if !(1..=25).contains(&prefix) {
        return Err("prefix length needs to be 1-25".into());
    }
    let network = Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - u32::from(prefix))));
    match address == network {
        true => Ok((network, prefix)),
        false => Err(format!(
            "CIDR needs to be a network address like {network}/{prefix}, not like {text}"
        )
        .into()),
    }
}

fn source(option: &str, given: &str, v: char) -> Result<String, Early> {
    match given.parse::<IpAddr>() {
        Ok(address) if address.is_ipv4() == (v == '4') => Ok(given.to_owned()),
        Err(_) if (1..=15).contains(&given.len()) && !given.contains(['/', ':']) => {
            Ok(format!("{given}/{v}"))
        }
        _ => Err(format!(
            "{option} {given}: it has to be an IPv{v} address or the name of an interface"
        )
        .into()),
    }
}
