//! [`Served`]: a gateway with its guest, made from the options that `run` and `gateway` share.
//!
//! A gateway is made in two steps: [`open`] does everything that needs rights or can be wrong;
//! [`OpenGateway::start`] follows behind the sandbox ([`enter_sandbox`]), when there may be threads.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pagewire::Host;
use pagewire::device::{Dhcp, DhcpConfig, FaultConfig, FaultWatch};
use pagewire::{Cidr, Device};
use pagewire_control as control;
use pagewire_gateway::netns::InsideNetwork;
use pagewire_gateway::sandbox::{self, SandboxError, SandboxPlan};
use pagewire_gateway::{
    Autoconf, AutoconfConfig, Builder, Gateway, Guest, GuestConfig, Log, OpenPort, OwnNames,
    Resolver, Rules,
};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::args::guest::{GuestOptions, HostAt};
use crate::failure::{Failure, reason};
use crate::net::user;
use crate::net::{self, LineWrappers};
use crate::view;

/// Our addresses if none are given.
const ADDRESSES: [&str; 2] = ["10.0.2.2/24", "fd00:2::2/64"];

/// Number of the guest's address in its network, as QEMU's built-in network has it.
const GUEST: u32 = 15;

/// A network of a guest: our address in it, and the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestNetwork {
    pub(crate) ours: Cidr,
    pub(crate) guest: IpAddr,
}

impl GuestNetwork {
    /// A device whose guest gets its address in this network: the same at each time.
    fn advertise_on(self, device: Box<dyn Device>) -> Result<Box<dyn Device>, Failure> {
        match (self.ours.addr(), self.guest) {
            (IpAddr::V4(ours), IpAddr::V4(guest)) => {
                let mut config =
                    DhcpConfig::network(ours, self.ours.prefix())?.range(guest, guest)?;
                (config.router, config.dns) = (Some(ours), vec![ours]);
                Ok(Box::new(Dhcp::new(device, config)?))
            }
            (IpAddr::V6(ours), IpAddr::V6(guest)) => {
                let mut config = AutoconfConfig::new(self.ours);
                (config.guest, config.dns) = (Some(guest), vec![ours]);
                Ok(Box::new(Autoconf::new(device, config)?))
            }
            _ => Ok(device),
        }
    }
}

/// The networks of the options: at most one of each version.
pub(crate) fn networks(options: &GuestOptions) -> Result<Vec<GuestNetwork>, Failure> {
    let given: Vec<String> = if options.addr.is_empty() {
        ADDRESSES.iter().map(|&text| text.to_owned()).collect()
    } else {
        options.addr.clone()
    };
    let ours = net::networks("--addr", &given)?;
    if [true, false].iter().any(|&v4| ours.iter().filter(|n| n.addr().is_ipv4() == v4).count() > 1)
    {
        let text = "--addr is given twice for one IP version; a guest has one network of each";
        return Err(Failure::Usage(text.into()));
    }
    let mut left = options.guest.clone();
    let mut all = Vec::new();
    for ours in ours {
        let of_it = left.iter().position(|guest| guest.is_ipv4() == ours.addr().is_ipv4());
        let guest = match of_it.map(|at| left.remove(at)) {
            Some(guest) => check(ours, guest)?,
            None => guest_of(ours).ok_or_else(|| {
                Failure::misused(format!("--addr {ours}"), "there is no address left for a guest")
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
fn check(ours: Cidr, guest: IpAddr) -> Result<IpAddr, Failure> {
    let failed = |why: &str| Err(Failure::misused(format!("--guest {guest}"), why));
    match guest {
        _ if guest == ours.addr() => failed("this is our own address; give another"),
        _ if !ours.contains(guest) => failed("it is not in the network of --addr"),
        _ if !is_host(ours, guest) => failed("it is the network's own or its broadcast address"),
        _ => Ok(guest),
    }
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

/// The network settings for the kernel inside of a namespace.
pub(crate) fn inside(
    options: &GuestOptions,
    tap: &str,
    networks: &[GuestNetwork],
) -> InsideNetwork {
    let routers: Vec<IpAddr> = networks.iter().map(|network| network.ours.addr()).collect();
    InsideNetwork {
        tap: tap.to_owned(),
        mtu: options.mtu as usize,
        addresses: networks.iter().map(|n| format!("{}/{}", n.guest, n.ours.prefix())).collect(),
        resolvers: routers.clone(),
        routers,
    }
}

/// The parts of a gateway that are opened before the sandbox, while this process still may.
pub(crate) struct OpenGateway {
    builder: Builder,
    config: GuestConfig,
    published: Vec<OpenPort>,
    log: Option<(File, u64)>,
    line: LineWrappers,
    /// How long a frame may be on the line, faults included.
    line_delay: Duration,
    /// The addresses that the guest gets by DHCP and advertisements, if it does not have them.
    advertised: Vec<GuestNetwork>,
}

/// Makes of the options what needs rights, or can be wrong.
/// With `advertises`, the guest gets its addresses by DHCP and router advertisements.
pub(crate) fn open(
    options: &GuestOptions,
    networks: &[GuestNetwork],
    advertises: bool,
) -> Result<OpenGateway, Failure> {
    let mut config = GuestConfig::new();
    for GuestNetwork { ours, guest } in networks {
        let text = ours.to_string();
        config = config.network(&text).map_err(|e| Failure::misused(text, e))?.guest(*guest);
    }
    let mut published = Vec::new();
    for what in &options.publish {
        let opened = what.open();
        let failed = |e| Failure::because(format!("--publish {what}"), publish_reason(&e));
        published.extend(opened.map_err(failed)?);
    }
    let fault = fault(options)?;
    let builder = Gateway::builder()
        .rules(rules(options, networks)?)
        .resolver(resolver(&options.dns)?)
        .names(names(options, networks));
    Ok(OpenGateway {
        builder,
        config,
        published,
        log: options.log.as_deref().map(|path| log(path, options.log_size)).transpose()?,
        line_delay: fault.map_or(Duration::ZERO, |fault| fault.delay + fault.jitter),
        line: LineWrappers::open(fault, options.pcap.as_deref())?,
        advertised: if advertises { networks.to_vec() } else { Vec::new() },
    })
}

impl OpenGateway {
    /// Starts the gateway, for the guest behind a device.
    pub(crate) fn start(self, device: Box<dyn Device>) -> Result<Served, Failure> {
        let failed = |e: &dyn std::fmt::Display| Failure::because("starting the gateway", e);
        let line = self.line.watch();
        let mut device = self.line.around(device)?;
        for network in self.advertised {
            device = network.advertise_on(device)?;
        }
        let mut builder = self.builder;
        if let Some((file, most)) = self.log {
            builder = builder.journal(Log::to_file(file, most).map_err(|e| failed(&e))?);
        }
        let gateway = builder.start();
        let guest = gateway.add_boxed(device, self.config).map_err(|e| failed(&e))?;
        guest.serve(self.published).map_err(|e| Failure::because("--publish", reason(&e)))?;
        Ok(Served { guest, line, line_delay: self.line_delay, _gateway: gateway })
    }
}

/// Opens the log.
fn log(path: &Path, most: u64) -> Result<(File, u64), Failure> {
    let failed = |e| Failure::because(format!("--log {}", path.display()), reason(&e));
    Log::open(path, most).map_err(failed)
}

fn rules(options: &GuestOptions, networks: &[GuestNetwork]) -> Result<Rules, Failure> {
    let mut rules = if options.offline { Rules::offline() } else { Rules::default() };
    for rule in &options.allow {
        rules = rules.allow(rule.clone());
    }
    for rule in &options.deny {
        rules = rules.deny(rule.clone());
    }
    for prefix in &options.nat64 {
        rules = rules.nat64(*prefix);
    }
    for address in hosts(options, networks) {
        check_host(address, networks)?;
        rules = rules.map(address, loopback_as(address));
    }
    rules.checked().map_err(|e| Failure::Usage(format!("--allow, --deny and --nat64: {e}")))
}

/// The addresses of --host.
fn hosts(options: &GuestOptions, networks: &[GuestNetwork]) -> Vec<IpAddr> {
    let routers = |v4: bool, v6: bool| {
        let ours = networks.iter().map(|network| network.ours.addr());
        ours.filter(move |ours| if ours.is_ipv4() { v4 } else { v6 })
    };
    let addresses = |at: &HostAt| match *at {
        HostAt::Address(address) => vec![address],
        HostAt::Router { v4, v6 } => routers(v4, v6).collect(),
    };
    options.host.iter().flat_map(addresses).collect()
}

/// This machine's loopback address of the same IP version.
fn loopback_as(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Whether what a guest sends to this address comes to us.
fn check_host(address: IpAddr, networks: &[GuestNetwork]) -> Result<(), Failure> {
    let failed = |why: &str| {
        let why = format!("{why}; give another, such as 192.0.2.1, and connect to that");
        Err(Failure::misused(format!("--host {address}"), why))
    };
    let is_beside =
        |network: &GuestNetwork| network.ours.contains(address) && network.ours.addr() != address;
    match address {
        _ if address.is_loopback() => failed("this is the guest's own loopback"),
        _ if address.is_unspecified()
            || address.is_multicast()
            || address == Ipv4Addr::BROADCAST =>
        {
            failed("this is no address of one host")
        }
        _ if networks.iter().any(is_beside) => {
            failed("it is in the guest's own network, where nobody else answers")
        }
        _ => Ok(()),
    }
}

/// The resolver of `--dns`.
fn resolver(words: &[String]) -> Result<Resolver, Failure> {
    let parse = |word: &String| {
        let address = word.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53));
        address.or_else(|_| word.parse()).map_err(|_| {
            let why = "give host, none, or addresses of name servers, as in 192.0.2.53";
            Failure::misused(format!("--dns {word}"), why)
        })
    };
    match words {
        [] => Ok(Resolver::Host),
        [word] if word == "host" => Ok(Resolver::Host),
        [word] if word == "none" => Ok(Resolver::None),
        words => Ok(Resolver::At(words.iter().map(parse).collect::<Result<_, _>>()?)),
    }
}

/// The names that the gateway answers for.
fn names(options: &GuestOptions, networks: &[GuestNetwork]) -> OwnNames {
    let mut names = OwnNames::default();
    let ours = networks.iter().map(|network| ("gateway", network.ours.addr()));
    let host = hosts(options, networks).into_iter().map(|address| ("host", address));
    for (word, address) in ours.chain(host) {
        // These words are names.
        let _ = names.add_word(word, address);
    }
    for (name, address) in &options.name {
        names.add(name.clone(), *address);
    }
    names
}

/// A gateway with its one guest.
pub(crate) struct Served {
    guest: Guest,
    /// Counts of `--fault` and `--rate`.
    line: Option<FaultWatch>,
    line_delay: Duration,
    // Behind the guest, which it serves.
    _gateway: Gateway,
}

impl Served {
    /// The gateway's end of the guest's network.
    pub(crate) fn host(&self) -> &Host {
        self.guest.host()
    }

    /// A sentence about what was refused; `None`: nothing was.
    pub(crate) fn refused(&self) -> Option<String> {
        let denied = self.guest.denied();
        denied.first.is_some().then(|| denied.to_string())
    }

    /// Adds the gateway to the view for a control socket.
    pub(crate) fn shown(self: &Arc<Self>, shown: control::Builder) -> control::Builder {
        let served = Arc::downgrade(self);
        crate::log::trace("guest", self.host());
        let mut shown = shown.host("guest", self.host());
        if let Some(line) = &self.line {
            shown = net::show_line(shown, line);
        }
        let counts = move || match served.upgrade() {
            Some(served) => served.guest.counters().iter().collect(),
            None => Vec::new(),
        };
        shown.section("gateway", counts)
    }

    /// The counters that `--stats` prints.
    pub(crate) fn report(&self) -> String {
        let counts = self.guest.counters().iter().filter(|(_, n)| *n > 0);
        let text = view::part("gateway", counts);
        let line = self.line.as_ref().map(net::line_text).unwrap_or_default();
        format!("{text}{}{line}", self.host().stats())
    }

    /// Waits, for `limit` at most, until the last data of a guest that has ended was passed on. Frames that are
    /// on the line at this time arrive in any case.
    pub(crate) fn finish(&self, limit: Duration) {
        self.guest.finish(self.line_delay, limit);
    }

    /// Ends all connections; those with data left to send have `limit` for it.
    pub(crate) fn end(&self, limit: Duration) {
        self.host().drain(limit);
        crate::log::trace_end("guest", self.host());
    }
}

/// Why a port cannot be published, and what to do about it.
fn publish_reason(error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program has it, or another --publish: take another, as in 8081:80"
        }
        io::ErrorKind::PermissionDenied => "; take a port from 1024 on, as in 8080:80",
        io::ErrorKind::AddrNotAvailable => "; this machine does not have the address",
        _ => "",
    };
    format!("{}{hint}", reason(error))
}

/// Gives up what is not needed any more, unless the options say otherwise. Before there are threads.
pub(crate) fn enter_sandbox(options: &GuestOptions, mut plan: SandboxPlan) -> Result<(), Failure> {
    plan.user = options.user.as_deref().map(user::find).transpose()?;
    // Connections have a descriptor each.
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    let _ = setrlimit(Resource::Nofile, files);
    if options.no_sandbox {
        eprintln!(
            "pagewire: NO SANDBOX: a guest that finds a bug in this process has all its rights"
        );
        return Ok(());
    }
    plan.read = sandbox::resolver_files();
    let report = sandbox::close_doors(&plan).map_err(|e| {
        let hint = match e {
            SandboxError::User { .. } => "leave out --user, or start it as that user",
            _ => {
                "update the kernel or the container's seccomp profile, or give --no-sandbox if you \
                 trust the guest"
            }
        };
        Failure::because("there is no sandbox", format!("{e}; {hint}"))
    })?;
    for line in report.missing {
        eprintln!("pagewire: the sandbox is incomplete: {line}");
    }
    Ok(())
}

/// The faults of `--fault` and `--rate` together.
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
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::{Cli, Command};

    fn options(args: &[&str]) -> GuestOptions {
        let words = ["pagewire", "run"].iter().chain(args).chain(&["--", "true"]);
        let Ok(Cli { command: Command::Run(options), .. }) = Cli::try_parse_from(words) else {
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
    fn an_address_for_this_machine_that_a_guest_never_sends_to_is_refused() {
        let checked = |address: &str| {
            let options = options(&["--host", address]);
            rules(&options, &networks(&options).expect("networks")).map(drop)
        };
        for (address, says) in [
            ("127.0.0.1", "own loopback"),
            ("127.9.9.9", "own loopback"),
            ("0.0.0.0", "no address of one host"),
            ("224.0.0.1", "no address of one host"),
            ("10.0.2.15", "own network"),
            ("10.0.2.99", "own network"),
        ] {
            match checked(address) {
                Err(Failure::Usage(text)) => assert!(text.contains(says), "{address}: {text}"),
                other => panic!("{address}: {other:?}"),
            }
        }
        for address in ["192.0.2.1", "10.0.2.2", "10.0.3.1"] {
            assert!(checked(address).is_ok(), "{address}");
        }
    }

    #[test]
    fn without_a_network_no_port_is_published() {
        let words = ["pagewire", "run", "--offline", "--publish", "8080", "--", "true"];
        let text = Cli::try_parse_from(words).unwrap_err().to_string();
        assert!(text.contains("--offline") && text.contains("--publish"), "{text}");
    }

    #[test]
    fn the_help_of_run_says_that_it_is_no_security_boundary() {
        let mut all = Cli::command();
        let help = all.find_subcommand_mut("run").unwrap().render_long_help().to_string();
        assert!(help.contains("isolates the network only, and is no security boundary"), "{help}");
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
