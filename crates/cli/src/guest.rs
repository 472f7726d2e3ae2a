//! From the gateway's options to a guest's network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use pagewire::Host;
use pagewire_device::{Device, FaultConfig};
use pagewire_gateway::netns::InsideNetwork;
use pagewire_gateway::sandbox::{self, SandboxPlan};
use pagewire_gateway::{Gateway, Guest, GuestConfig};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::args::guest::GuestOptions;
use crate::failure::Failure;
use crate::net::{self, Line, Network};

/// Our addresses if none are given.
const ADDRESSES: [&str; 2] = ["10.0.2.2/24", "fd00:2::2/64"];

/// Which address of the network is the guest's, as QEMU's built-in network has it.
const GUEST: u32 = 15;

/// One network of a guest, and who is who in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestNetwork {
    pub(crate) ours: Network,
    pub(crate) guest: IpAddr,
}

/// The networks of the options: at most one of each version.
pub(crate) fn networks(options: &GuestOptions) -> Result<Vec<GuestNetwork>, Failure> {
    let given: Vec<String> = if options.addr.is_empty() {
        ADDRESSES.iter().map(|&text| text.to_owned()).collect()
    } else {
        options.addr.clone()
    };
    let ours = net::networks("--addr", &given)?;
    if [true, false].iter().any(|&v4| ours.iter().filter(|n| n.address.is_ipv4() == v4).count() > 1)
    {
        let text = "--addr is given twice for one IP version; a guest has one network of each";
        return Err(Failure::Usage(text.into()));
    }
    let mut left = options.guest.clone();
    let mut all = Vec::new();
    for ours in ours {
        let of_it = left.iter().position(|guest| guest.is_ipv4() == ours.address.is_ipv4());
        let guest = match of_it.map(|at| left.remove(at)) {
            Some(guest) => check(ours, guest)?,
            None => guest_of(ours).ok_or_else(|| {
                let text = format!("{}/{}", ours.address, ours.prefix);
                Failure::misused(format!("--addr {text}"), "there is no address left for a guest")
            })?,
        };
        all.push(GuestNetwork { ours, guest });
    }
    match left.first() {
        None => Ok(all),
        Some(guest) => {
            let why = "there is no network for it: give our address in it with --addr";
            Err(Failure::misused(format!("--guest {guest}"), why))
        }
    }
}

/// A guest's address as given.
fn check(ours: Network, guest: IpAddr) -> Result<IpAddr, Failure> {
    let failed = |why: &str| Err(Failure::misused(format!("--guest {guest}"), why));
    match guest {
        _ if guest == ours.address => failed("this is our own address; give another"),
        _ if !ours.contains(guest) => failed("it is not in the network of --addr"),
        _ if !is_host(ours, guest) => failed("it is the network's own or its broadcast address"),
        _ => Ok(guest),
    }
}

/// A guest's address if none is given: the 15th of the network, or the first that is free.
fn guest_of(ours: Network) -> Option<IpAddr> {
    let nth = |n: u32| match ours.address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(ours.prefix)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from((u32::from(address) & mask) | n))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ours.prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from((u128::from(address) & mask) | u128::from(n)))
        }
    };
    let fits = |guest: &IpAddr| {
        *guest != ours.address && ours.contains(*guest) && is_host(ours, *guest)
    };
    [GUEST].into_iter().chain(0..GUEST).map(nth).find(fits)
}

/// Whether this is neither the network's first address nor, with IPv4, its last.
fn is_host(network: Network, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) if network.prefix < 31 => {
            let hosts = u32::MAX.checked_shr(network.prefix.into()).unwrap_or(0);
            let host = u32::from(address) & hosts;
            host != 0 && host != hosts
        }
        // RFC 3021: a network of two addresses has neither.
        IpAddr::V4(_) => true,
        IpAddr::V6(address) if network.prefix < 127 => {
            let hosts = u128::MAX.checked_shr(network.prefix.into()).unwrap_or(0);
            u128::from(address) & hosts != 0
        }
        IpAddr::V6(_) => true,
    }
}

/// What the kernel inside of a namespace is told.
pub(crate) fn inside(options: &GuestOptions, tap: &str, networks: &[GuestNetwork]) -> InsideNetwork {
    let routers: Vec<IpAddr> = networks.iter().map(|network| network.ours.address).collect();
    InsideNetwork {
        tap: tap.to_owned(),
        mtu: options.mtu as usize,
        addresses: networks.iter().map(|n| format!("{}/{}", n.guest, n.ours.prefix)).collect(),
        resolvers: routers.clone(),
        routers,
    }
}

/// A gateway with its one guest.
pub(crate) struct Served {
    guest: Guest,
    // Behind the guest, which it serves.
    _gateway: Gateway,
}

/// Starts a gateway for the guest behind a device.
pub(crate) fn start(
    networks: &[GuestNetwork],
    device: Box<dyn Device>,
) -> Result<Served, Failure> {
    let gateway = Gateway::builder().rules(judge).start();
    let mut config = GuestConfig::new();
    for GuestNetwork { ours, .. } in networks {
        let text = format!("{}/{}", ours.address, ours.prefix);
        config = config.network(&text).map_err(|e| Failure::misused(text, e))?;
    }
    let guest = gateway.add_boxed(device, config);
    let guest = guest.map_err(|e| Failure::because("starting the gateway", e))?;
    Ok(Served { guest, _gateway: gateway })
}

impl Served {
    /// The gateway's end of the guest's network.
    pub(crate) fn host(&self) -> &Host {
        self.guest.host()
    }

    /// What `--stats` prints.
    pub(crate) fn report(&self) -> String {
        format!("{}{}", self.guest.counters(), self.host().stats())
    }

    /// Ends all connections; those that have something left to say have so long for it.
    pub(crate) fn end(&self, limit: Duration) {
        self.host().drain(limit);
    }
}

/// The line of the options, with the file of its capture open.
pub(crate) fn line(options: &GuestOptions) -> Result<Line, Failure> {
    Line::open(fault(options)?, options.pcap.as_deref())
}

/// Gives up what is not needed any more, unless the options say otherwise. Before there are threads.
pub(crate) fn close_doors(options: &GuestOptions, mut plan: SandboxPlan) {
    // Connections have a descriptor each.
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    let _ = setrlimit(Resource::Nofile, files);
    if options.no_sandbox {
        eprintln!("pagewire: NO SANDBOX: a guest that finds a bug in this process has all its rights");
        return;
    }
    plan.read = sandbox::resolver_files();
    for line in sandbox::close_doors(&plan).missing {
        eprintln!("pagewire: the sandbox is incomplete: {line}");
    }
}

/// What `--fault` and `--rate` say together.
fn fault(options: &GuestOptions) -> Result<Option<FaultConfig>, Failure> {
    match (options.fault, options.rate) {
        (Some(fault), Some(_)) if fault.rate.is_some() => {
            Err(Failure::Usage("--rate and the rate of --fault contradict each other".into()))
        }
        (Some(fault), Some(rate)) => {
            Ok(Some(FaultConfig { rate: rate.rate, aqm: rate.aqm, ..fault }))
        }
        (fault, rate) => Ok(fault.or(rate)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn options(args: &[&str]) -> GuestOptions {
        let words = ["pagewire", "run"].iter().chain(args).chain(&["--", "true"]);
        let Ok(Cli { command: Command::Run(options) }) = Cli::try_parse_from(words) else {
            panic!("{args:?}");
        };
        options.guest
    }

    fn guests(args: &[&str]) -> Result<Vec<String>, String> {
        match networks(&options(args)) {
            Ok(all) => Ok(all.iter().map(|n| n.guest.to_string()).collect()),
            Err(Failure::Usage(text)) => Err(text),
            Err(other) => panic!("{other:?}"),
        }
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
            (&["--addr", "10.0.0.1/24", "--addr", "10.0.1.1/24"], "twice"),
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
    fn a_rate_joins_other_faults_and_contradicts_another_rate() {
        let both = fault(&options(&["--fault", "delay=50ms", "--rate", "2mbit"])).unwrap().unwrap();
        assert_eq!((both.rate, both.delay.as_millis()), (Some(2_000_000), 50));
        let rates = options(&["--fault", "rate=1mbit", "--rate", "2mbit"]);
        assert!(matches!(fault(&rates), Err(Failure::Usage(_))));
        assert!(fault(&options(&[])).unwrap().is_none());
    }
}
