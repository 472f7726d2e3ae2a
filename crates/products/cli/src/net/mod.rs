//! [`OpenNetwork`]: a running host with its device, made from the network options of a command.
//!
//! `serve`, `fetch` and `proxy` open one with [`open`]. This file checks the options, opens the tap or port, puts
//! the wrappers of `--fault`, `--pcap` and `--dhcp` around it, and reports its counters ([`Report`]).

mod lost;
pub(crate) mod user;

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pagewire::device::{
    DeviceError, Dhcp, DhcpConfig, DhcpWatch, Fault, FaultConfig, FaultWatch, Pcap, PcapConfig,
    TapBuilder, VhostMonitor, VhostUser, VhostUserBuilder,
};
use pagewire::tcp::mtu_of_pages;
use pagewire::{Cidr, CidrError, Device, Tap};
use pagewire::{Cores, Host, HostBuilder, LinkId};
use pagewire_control as control;
use pagewire_gateway::sandbox::SandboxUser;
use rustix::io::Errno;

use crate::args::{NetLink, NetOptions};
use crate::failure::{Failure, reason, socket_failure};
use crate::limits::{LAST_TIME, PORT_CHECK_TIME};
use crate::signals::Stop;
use crate::view;

/// The tap if none is named.
const TAP_NAME: &str = "pw0";

/// A host on the link of the options.
pub(crate) struct OpenNetwork {
    /// The host, on one core or on several.
    pub(crate) host: Cores,
    pub(crate) addresses: Vec<IpAddr>,
    /// The counters that `--stats` prints.
    pub(crate) report: Report,
    /// The link of the device; none while there is no device.
    link: Option<LinkId>,
    /// The last reported reason why there is none although there is a device.
    waits_because: Option<String>,
    /// Why the first core receives for several, if so.
    one_receives: Option<String>,
    /// Bytes of memory that the device receives into.
    memory: Option<u64>,
    _socket: Option<SocketFile>,
}

/// The socket that we listen on: threads that wait keep the device, so the command removes it.
struct SocketFile {
    path: PathBuf,
    /// The file's inode: another program may have taken the path since.
    inode: u64,
}

impl SocketFile {
    fn new(path: &Path) -> Option<Self> {
        let inode = std::fs::symlink_metadata(path).ok()?.ino();
        Some(Self { path: path.to_owned(), inode })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl OpenNetwork {
    /// Shuts the host down: what is queued for peers has a short time to be delivered.
    pub(crate) fn end(&self, options: &NetOptions) {
        self.host.shutdown(LAST_TIME);
        for shard in self.host.shards() {
            crate::log::trace_end(host_name(options), shard);
        }
    }

    /// Warns of what would only be slow or silent. Called behind what may fail: a failure is one line.
    pub(crate) fn warn(&self, options: &NetOptions) {
        self.warn_of_idle_cores();
        self.warn_of_silence(options);
    }

    /// Warns of cores that the device leaves with little to do.
    fn warn_of_idle_cores(&self) {
        if let Some(why) = &self.one_receives {
            let cores = self.host.shards().len();
            crate::failure::complain!(
                "pagewire: the first of {cores} cores receives for all: {why}"
            );
        }
    }

    /// Warns of a tap by which this machine reaches none of our addresses.
    fn warn_of_silence(&self, options: &NetOptions) {
        let tap = tap_name(options);
        // The tap is a port of a bridge, where others have the addresses.
        let is_port = Path::new("/sys/class/net").join(tap).join("master").exists();
        if options.link != NetLink::Tap || is_port {
            return;
        }
        let ours = networks("--addr", &options.addr).unwrap_or_default();
        if let Some(our) = ours.into_iter().find(|our| !is_reached(our)) {
            let (prefix, first) = (our.prefix(), nth(&our, 1));
            let other = if first == our.addr() { nth(&our, 2) } else { first };
            crate::failure::complain!(
                "pagewire: this machine has no address in the network of {our}: give \
                 --host-addr {other}/{prefix}, or `ip addr add {other}/{prefix} dev {tap}` and \
                 `ip link set {tap} up`"
            );
        }
    }

    /// On a port, waits until a virtual machine's driver has set it up, or an interrupt comes.
    pub(crate) fn wait_for_peer(&self, options: &NetOptions, stop: &Stop) -> Result<(), Failure> {
        let Some(port) = self.report.port.as_ref().filter(|port| !port.is_up()) else {
            return Ok(());
        };
        let path = options.socket.as_deref().unwrap_or(Path::new(""));
        crate::failure::complain!("waiting for a virtual machine at {}", path.display());
        while !port.is_up() {
            if stop.is_set() {
                return Err(Failure::Interrupted(
                    "interrupted before a virtual machine came".into(),
                ));
            }
            std::thread::park_timeout(PORT_CHECK_TIME);
        }
        Ok(())
    }
}

/// Counters of a host and its link, read when they are printed.
#[derive(Clone)]
pub(crate) struct Report {
    host: Cores,
    port: Option<VhostMonitor>,
    dhcp: Option<DhcpWatch>,
    /// Counts of `--fault`.
    line: Option<FaultWatch>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.host.stats())?;
        if let Some(line) = &self.line {
            f.write_str(&line_text(line))?;
        }
        if let Some(port) = &self.port {
            f.write_str(&view::part("port", port.counters().iter().filter(|(_, n)| *n > 0)))?;
            if let Some(why) = port.refused() {
                writeln!(f, "  the last front end was disconnected: {why}")?;
            }
        }
        let Some(dhcp) = &self.dhcp else { return Ok(()) };
        f.write_str(&view::part("dhcp", dhcp.counters().iter()))?;
        for lease in dhcp.leases() {
            let client = lease.client.map(|byte| format!("{byte:02x}")).join(":");
            writeln!(f, "  {client:<24} {}", lease.address)?;
        }
        Ok(())
    }
}

/// The host's name for control sockets and logs.
fn host_name(options: &NetOptions) -> &str {
    match options.link {
        NetLink::VhostUser => "vhost-user",
        NetLink::Tap | NetLink::Pair => tap_name(options),
    }
}

impl Report {
    /// The wrappers of a device that replaces a lost one: they go on counting. Nothing is captured.
    pub(crate) fn wrappers_again(&self, fault: Option<FaultConfig>) -> LineWrappers {
        LineWrappers { fault: fault.zip(self.line.clone()), capture: None }
    }

    /// The view of the host and its link for a control socket.
    pub(crate) fn shown(&self, options: &NetOptions) -> control::Builder {
        let name = host_name(options);
        for shard in self.host.shards() {
            crate::log::trace(name, shard);
        }
        let mut shown = control::Builder::new().cores(name, &self.host);
        if let Some(port) = self.port.clone() {
            shown = shown.section("port", move || port.counters().iter().collect());
        }
        if let Some(line) = &self.line {
            shown = show_line(shown, line);
        }
        if let Some(dhcp) = self.dhcp.clone() {
            shown = shown.section("dhcp", move || dhcp.counters().iter().collect());
        }
        shown
    }
}

/// Adds the counts of `--fault` to a view.
pub(crate) fn show_line(shown: control::Builder, line: &FaultWatch) -> control::Builder {
    let line = line.clone();
    shown.section("line", move || line.iter().collect())
}

/// The counts of `--fault` as text.
pub(crate) fn line_text(line: &FaultWatch) -> String {
    view::part("line", line.iter().filter(|(_, n)| *n > 0))
}

/// Opens the device, puts the wrappers around it, and starts a stack on it for each of `cores`, with `memory` bytes to
/// receive into, all together. Becomes `user` once the device is open.
pub(crate) fn open(
    options: &NetOptions,
    cores: usize,
    memory: Option<u64>,
    user: Option<&SandboxUser>,
) -> Result<OpenNetwork, Failure> {
    if options.link == NetLink::Pair {
        let text = "--link pair joins two stacks of one process; this command needs --link tap \
                    (pagewire demo serves and fetches over a pair)";
        return Err(Failure::Usage(text.into()));
    }
    check_link(options)?;
    let ours = networks("--addr", &options.addr)?;
    let theirs = networks("--host-addr", &options.host_addr)?;
    check_addresses(&ours, &theirs)?;
    let gateways = gateways(options, &ours)?;
    let dhcp_config = dhcp_config(options, &ours, &gateways)?;

    let (queues, port) = match options.link {
        NetLink::VhostUser => {
            let ports = vhost_user(options, cores, memory)?;
            let monitor = ports.first().map(VhostUser::monitor);
            let one_receives = why_one_queue(options, cores);
            (CoreQueues { devices: boxed(ports), one_receives }, monitor)
        }
        NetLink::Tap | NetLink::Pair => (tap_queues(options, cores, memory)?, None),
    };
    let CoreQueues { devices, one_receives } = queues;
    let line = LineWrappers::open(options.fault, options.pcap.as_deref())?;
    let watch = line.watch();
    let mut queues = line.around_all(devices)?;
    let mut dhcp = None;
    if let Some(config) = dhcp_config
        && let Some(device) = queues.pop()
    {
        let server = Dhcp::new(device, config)?;
        dhcp = Some(server.watch());
        queues.push(Box::new(server));
    }

    // The host has a thread.
    user.map(user::become_it).transpose()?;

    let builder = with(Host::builder(), memory.map(bytes), HostBuilder::memory);
    let builder = with(builder, options.payload_pages, HostBuilder::payload_pages);
    let builder = options.addr.iter().fold(builder, HostBuilder::address);
    let gateways = gateways.iter().map(IpAddr::to_string);
    let builder = gateways.fold(builder, HostBuilder::gateway).cores(cores);
    let host = builder.device_queues(queues).start()?;
    let report = Report { host: host.clone(), port, dhcp, line: watch };
    let socket = options.socket.as_deref().and_then(SocketFile::new);
    let addresses = ours.iter().map(Cidr::addr).collect();
    let link = Some(LinkId::FIRST);
    let opened = OpenNetwork {
        host,
        addresses,
        report,
        link,
        waits_because: None,
        one_receives,
        memory,
        _socket: socket,
    };
    Ok(opened)
}

/// A builder with a setting, if there is a value for it.
fn with<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

/// Bytes of memory as this machine counts them.
fn bytes(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The MTU of the options, in bytes.
fn mtu(options: &NetOptions) -> Option<usize> {
    // Enough for both IP versions: over IPv4 the MSS alone limits segments to whole pages.
    let of_pages = options.payload_pages.map(|pages| mtu_of_pages(pages, true));
    options.mtu.map(|mtu| mtu as usize).or(of_pages)
}

pub(crate) fn tap_name(options: &NetOptions) -> &str {
    options.tap.as_deref().unwrap_or(TAP_NAME)
}

fn tap_builder(options: &NetOptions, memory: Option<u64>) -> TapBuilder {
    let tap = Tap::builder(tap_name(options)).host_addresses(&options.host_addr);
    let tap = with(tap, mtu(options), TapBuilder::mtu);
    with(tap, memory.map(bytes), TapBuilder::pool_bytes)
}

/// The queues of a device: one for each core, or fewer.
struct CoreQueues {
    devices: Vec<Box<dyn Device>>,
    /// Why the first core receives for several, if so.
    one_receives: Option<String>,
}

/// The queues of the tap: one for each core, or one for all if something is around the device, an existing tap has only
/// one, or the memory is too little for several.
fn tap_queues(
    options: &NetOptions,
    cores: usize,
    memory: Option<u64>,
) -> Result<CoreQueues, Failure> {
    let mut one_receives = why_one_queue(options, cores);
    if cores > 1 && one_receives.is_none() {
        let of_each = memory.map(|bytes| bytes / cores as u64);
        match tap_builder(options, of_each).open_queues(cores) {
            Ok(queues) => return Ok(CoreQueues { devices: boxed(queues), one_receives }),
            Err(error) => one_receives = Some(one_will_do(options, error)?),
        }
    }
    let tap = tap_builder(options, memory).open()?;
    Ok(CoreQueues { devices: vec![Box::new(tap)], one_receives })
}

/// Why a tap that cannot have several queues may be opened with one.
fn one_will_do(options: &NetOptions, error: DeviceError) -> Result<String, DeviceError> {
    match error {
        DeviceError::System { source, .. }
            if source.raw_os_error() == Some(Errno::INVAL.raw_os_error()) =>
        {
            Ok(format!("the tap {} was made without multi_queue", tap_name(options)))
        }
        // Settings that make no sense are refused again.
        DeviceError::Config(why) => Ok(why),
        error => Err(error),
    }
}

/// The options for which the device of several cores has one queue, if any are given.
fn why_one_queue(options: &NetOptions, cores: usize) -> Option<String> {
    let NetOptions { fault, pcap, dhcp, queues, .. } = options;
    let one_pair = *queues == Some(1);
    let given = [
        (fault.is_some(), "--fault"),
        (pcap.is_some(), "--pcap"),
        (dhcp.is_some(), "--dhcp"),
        (one_pair, "--queues 1"),
    ];
    let given: Vec<&str> =
        given.into_iter().filter_map(|(is_given, name)| is_given.then_some(name)).collect();
    let names = given.join(", ");
    (cores > 1 && !given.is_empty()).then(|| format!("the device has one queue with {names}"))
}

/// Least memory of a virtual machine's port for frames, in bytes.
const LEAST_POOL: u32 = 1 << 20;

fn boxed<D: Device + 'static>(devices: Vec<D>) -> Vec<Box<dyn Device>> {
    devices.into_iter().map(|device| Box::new(device) as Box<dyn Device>).collect()
}

/// A virtual machine's port: a device for each core, as far as there are queue pairs, or one for all if something is
/// around the device.
fn vhost_user(
    options: &NetOptions,
    cores: usize,
    memory: Option<u64>,
) -> Result<Vec<VhostUser>, Failure> {
    let pairs = options.queues.map_or(cores, usize::from);
    let devices = if why_one_queue(options, cores).is_some() { 1 } else { cores.min(pairs) };
    let memory = memory.map(|bytes| (bytes / devices as u64).max(LEAST_POOL.into()));
    let path = options.socket.as_deref().unwrap_or(Path::new(""));
    let port = VhostUser::builder().trust_front_end(options.trust_front_end);
    let port = with(port, mtu(options), VhostUserBuilder::mtu);
    let port = with(port, memory.map(bytes), VhostUserBuilder::pool_bytes);
    let port = port.queue_pairs(pairs);
    let port = with(port, options.mac, VhostUserBuilder::mac);
    let least = options.by_reference_from.map(bytes);
    let port = with(port, least, VhostUserBuilder::by_reference_from);
    port.listen_queues(path, devices).map_err(|error| socket_failure(path, error))
}

/// Options of one kind of link, given with another.
fn check_link(options: &NetOptions) -> Result<(), Failure> {
    let usage = |text: &str| Err(Failure::Usage(text.into()));
    let port = options.link == NetLink::VhostUser;
    match options {
        _ if options.wait_for_device
            && (port || options.pcap.is_some() || options.dhcp.is_some()) =>
        {
            usage("--wait-for-device needs --link tap, without --pcap and --dhcp")
        }
        _ if port && options.socket.is_none() => usage(
            "--link vhost-user needs --socket PATH: where a virtual machine is to be plugged in, \
             such as --socket /tmp/pw.sock",
        ),
        _ if port && options.tap.is_some() => usage("--tap needs --link tap"),
        _ if port && !options.host_addr.is_empty() => usage(
            "--host-addr is for a tap; a virtual machine has its addresses from inside, or with \
             --dhcp from us",
        ),
        _ if !port && options.socket.is_some() => usage("--socket needs --link vhost-user"),
        _ if !port && options.queues.is_some() => usage("--queues needs --link vhost-user"),
        _ if !port && options.mac.is_some() => usage("--mac needs --link vhost-user"),
        _ if !port && options.by_reference_from.is_some() => {
            usage("--by-reference-from needs --link vhost-user")
        }
        _ if !port && options.trust_front_end => usage("--trust-front-end needs --link vhost-user"),
        _ => Ok(()),
    }
}

/// How an address is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteKind {
    /// The address is our own.
    Ourselves,
    /// The address is in one of our networks.
    Link,
    /// A router leads to the address.
    Gateway,
    /// The address cannot be reached.
    None,
}

/// How `to` would be reached with these options.
pub(crate) fn way_to(options: &NetOptions, to: IpAddr) -> Result<RouteKind, Failure> {
    let ours = networks("--addr", &options.addr)?;
    check_addresses(&ours, &[])?;
    let gateways = gateways(options, &ours)?;
    Ok(if ours.iter().any(|our| our.addr() == to) {
        RouteKind::Ourselves
    } else if ours.iter().any(|our| our.contains(to)) {
        RouteKind::Link
    } else if gateways.iter().any(|gateway| gateway.is_ipv4() == to.is_ipv4()) {
        RouteKind::Gateway
    } else {
        RouteKind::None
    })
}

/// The wrappers between a stack and its device: `--fault`, and `--pcap` with its file open.
pub(crate) struct LineWrappers {
    fault: Option<(FaultConfig, FaultWatch)>,
    capture: Option<(File, PathBuf)>,
}

impl LineWrappers {
    pub(crate) fn open(fault: Option<FaultConfig>, pcap: Option<&Path>) -> Result<Self, Failure> {
        let create = |path: &Path| match File::create(path) {
            Ok(file) => Ok((file, path.to_owned())),
            Err(e) => Err(capture_failure(path, &e)),
        };
        let fault = fault.map(|config| (config, FaultWatch::default()));
        Ok(Self { fault, capture: pcap.map(create).transpose()? })
    }

    /// The watch that counts the faults.
    pub(crate) fn watch(&self) -> Option<FaultWatch> {
        self.fault.as_ref().map(|(_, watch)| watch.clone())
    }

    /// The only queue of a device with the wrappers around; several as they are, because nothing is to be around them.
    fn around_all(self, mut queues: Vec<Box<dyn Device>>) -> Result<Vec<Box<dyn Device>>, Failure> {
        if queues.len() == 1
            && let Some(queue) = queues.pop()
        {
            queues.push(self.around(queue)?);
        }
        Ok(queues)
    }

    /// The capture is next to the stack, so that it shows what the stack sees.
    pub(crate) fn around(self, mut device: Box<dyn Device>) -> Result<Box<dyn Device>, Failure> {
        if let Some((config, watch)) = self.fault {
            device = Box::new(Fault::new(device, config).watched_by(&watch));
        }
        if let Some((file, path)) = self.capture {
            let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            let config = PcapConfig { epoch, ..PcapConfig::default() };
            let capture = Pcap::new(device, file, config);
            device = Box::new(capture.map_err(|e| capture_failure(&path, &e))?);
        }
        Ok(device)
    }
}

fn capture_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::because(format!("--pcap {}", path.display()), reason(error))
}

/// The configuration of `--dhcp`, for the network of the first IPv4 address; clients get our router.
fn dhcp_config(
    options: &NetOptions,
    ours: &[Cidr],
    gateways: &[IpAddr],
) -> Result<Option<DhcpConfig>, Failure> {
    let Some(range) = &options.dhcp else { return Ok(None) };
    let failed = |why: &str| Failure::misused(format!("--dhcp={range}"), why);
    let first = ours.iter().find_map(|network| match network.addr() {
        IpAddr::V4(address) => Some((address, network.prefix())),
        IpAddr::V6(_) => None,
    });
    let (server, prefix) = first.ok_or_else(|| {
        Failure::Usage("--dhcp gives IPv4 addresses: give us one with --addr, too".into())
    })?;
    let refused = |e: DeviceError| Failure::misused("--dhcp", e);
    let router = gateways.iter().find_map(|gateway| match gateway {
        IpAddr::V4(gateway) => Some(*gateway),
        IpAddr::V6(_) => None,
    });
    let all = DhcpConfig { router, ..DhcpConfig::network(server, prefix).map_err(refused)? };
    if range.is_empty() {
        return Ok(Some(all));
    }
    let ends = range.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let (first, last) =
        ends.ok_or_else(|| failed("give two addresses, as in 10.77.0.10-10.77.0.99"))?;
    all.range(first, last).map(Some).map_err(refused)
}

/// Whether this machine's kernel has an address in our network from which it would send to ours.
fn is_reached(our: &Cidr) -> bool {
    let any: IpAddr = match our.addr() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Chooses the source; sends nothing. The port is discard's (RFC 863).
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((our.addr(), 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| our.contains(source.ip()))
}

/// The address that is `n` behind the network's first.
pub(crate) fn nth(network: &Cidr, n: u32) -> IpAddr {
    match network.network() {
        IpAddr::V4(first) => Ipv4Addr::from_bits(first.to_bits() | n).into(),
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() | u128::from(n)).into(),
    }
}

/// Addresses with their networks, as an option has them.
pub(crate) fn networks(option: &str, texts: &[String]) -> Result<Vec<Cidr>, Failure> {
    let parse = |text: &String| {
        text.parse().map_err(|e| {
            let why = match e {
                CidrError::TooLong { .. } => e.to_string(),
                CidrError::Prefix(bits) if bits.parse::<u32>().is_ok() => {
                    format!("prefix length {bits} is too long: addresses have 32 or 128 bits")
                }
                _ => "give an address with its prefix length, such as 10.77.0.2/24 or fd77::2/64"
                    .into(),
            };
            Failure::misused(format!("{option} {text}"), why)
        })
    };
    texts.iter().map(parse).collect()
}

/// Mistakes that would otherwise cause no error, only silence.
fn check_addresses(ours: &[Cidr], theirs: &[Cidr]) -> Result<(), Failure> {
    if ours.is_empty() {
        let text = "--addr is missing: give this stack an address, such as --addr 10.77.0.2/24";
        return Err(Failure::Usage(text.into()));
    }
    for their in theirs {
        if ours.iter().any(|our| our.addr() == their.addr()) {
            let text = format!(
                "--addr and --host-addr are both {}: the two ends of a link need different ones",
                their.addr()
            );
            return Err(Failure::Usage(text));
        }
        if !ours.iter().any(|our| our.contains(their.addr())) {
            let text = format!(
                "--host-addr {} is in no network of --addr: the two ends could not reach each other",
                their.addr()
            );
            return Err(Failure::Usage(text));
        }
    }
    Ok(())
}

fn gateways(options: &NetOptions, ours: &[Cidr]) -> Result<Vec<IpAddr>, Failure> {
    let parse = |text: &String| {
        let failed = |why: &str| Failure::misused(format!("--gateway {text}"), why);
        let gateway: IpAddr = text
            .parse()
            .map_err(|_| failed("give an address without a prefix length, such as 10.77.0.1"))?;
        if ours.iter().any(|our| our.addr() == gateway) {
            return Err(failed("this is our own address; give the router's"));
        }
        if !ours.iter().any(|our| our.contains(gateway)) {
            return Err(failed("it is in no network of --addr, so it cannot be reached"));
        }
        Ok(gateway)
    };
    options.gateway.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_of_either_version_are_accepted() {
        for (ours, theirs) in [
            (&["10.77.0.2/24"][..], &["10.77.0.1/24"][..]),
            (&["10.77.0.2/24", "fd77::2/64"], &["fd77::1/64", "10.77.0.1/24"]),
            (&["10.77.0.2/24"], &[]),
            (&["0.0.0.1/0"], &["255.0.0.1/0"]),
        ] {
            let read = |texts: &[&str]| {
                networks("--addr", &texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>())
            };
            let (ours, theirs) = (read(ours).expect("networks"), read(theirs).expect("networks"));
            assert!(check_addresses(&ours, &theirs).is_ok());
        }
    }
}
