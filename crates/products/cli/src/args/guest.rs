//! Options of the gateway: who is behind it, by which line, and what may pass.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pagewire::device::FaultConfig;
use pagewire_gateway::limits::LOG_BYTES_LEAST;
use pagewire_gateway::{Cidr, Forward, Name, Publish, Rule, RuleError, Verdict};

use super::cores::CoresOption;
use super::demo::size;
use super::host::link_address;
use super::view::{StatsFormat, ViewOptions};

/// The network that a guest of the gateway sees, and the line by which it is reached.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Network options")]
pub(crate) struct GuestOptions {
    /// Our address in the guest's network, with the prefix length in bits: the first of IPv4 and of
    /// IPv6 are its router and its name server; repeatable [default: 10.0.2.2/24 and fd00:2::2/64]
    #[arg(long, value_name = "CIDR")]
    pub(crate) addr: Vec<String>,

    /// Where our resolver answers, in place of every --addr; once for IPv4, once for IPv6. It becomes an
    /// address of ours
    #[arg(long, value_name = "IP")]
    pub(crate) dns_addr: Vec<IpAddr>,

    /// The guest's address in that network; once for IPv4, once for IPv6 [default: the 15th]
    #[arg(long, value_name = "IP")]
    pub(crate) guest: Vec<IpAddr>,

    /// Give the guest the addresses, routes, router and MTU (unless --mtu says another) of this machine's
    /// interface, whose name the tap gets, too (unless --tap says another). Has --proxy-arp with it. /4 or
    /// /6 behind the name: for one IP version only; repeatable. An --addr takes the place of what is copied
    /// for its IP version [default without a name: the interface of the default route, of each IP version]
    #[arg(
        long,
        value_name = "IFACE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = interface
    )]
    pub(crate) copy: Vec<Interface>,

    /// Answer for every address in the guest's networks but its own: there are other hosts, which it
    /// reaches through us
    #[arg(long)]
    pub(crate) proxy_arp: bool,

    /// Our MAC address [default: one that follows from the link]
    #[arg(long, value_name = "MAC", value_parser = link_address)]
    pub(crate) mac: Option<[u8; 6]>,

    /// MAC address of the tap's kernel side [default: the kernel's choice]
    #[arg(long, value_name = "MAC", value_parser = link_address)]
    pub(crate) tap_mac: Option<[u8; 6]>,

    /// Largest IP packet of the guest, in bytes: 1280 to 65521 [default: 1500, or that of --copy]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1280..=65521), value_name = "BYTES")]
    pub(crate) mtu: Option<u32>,

    /// Publish a port of the guest on this machine, for clients of anywhere: [ADDRESS:]PORT[:GUESTPORT]
    /// with /udp behind it for datagrams, a range of ports, or a Unix socket as PATH:GUESTPORT;
    /// repeatable. Clients keep their addresses where that is possible. auto: the ports on which the
    /// guest's namespace listens, from then to then; all: those that are free here; ,~PORTS leaves ports out
    #[arg(long, value_name = "PORT")]
    pub(crate) publish: Vec<Publish>,

    /// Have clients that come to a published port over this machine's loopback reach the loopback of the
    /// guest's namespace, in place of the guest's address
    #[arg(long)]
    pub(crate) loopback: bool,

    /// Have clients of published TCP ports that come from 127.0.0.0/8, ::1 or a Unix socket joined with the guest's
    /// address by splice(2) in its namespace: at the kernel's rate, and from the guest's own address. --rate, --fault
    /// and --pcap do not see them. Where the namespace lacks the address they go by the link
    #[arg(long, conflicts_with = "loopback")]
    pub(crate) splice: bool,

    /// Have a port of the loopback of the guest's namespace lead to this machine's loopback: PORT[:PORT],
    /// a range, or auto (the ports on which this machine listens), with ,~PORTS to leave out and /udp
    /// behind it for datagrams; repeatable
    #[arg(long, value_name = "PORT")]
    pub(crate) forward: Vec<Forward>,

    /// Permit what the guest reaches, and from the first of these on nothing else: CIDR[:PORTS][/tcp|udp|icmp],
    /// or a name, perhaps with * as in *.debian.org:443, by our resolver's answers; repeatable. A
    /// connection must show the name by TLS, HTTP or QUIC; tls: or http: in front permits that protocol alone,
    /// ech: TLS and QUIC with an encrypted ClientHello, as browsers send it, ssh: permits SSH, tcp: and udp: ask for no
    /// proof. A name opens no private address and none of this machine, unless --name gave it. With names only, no other name is resolved; with a CIDR
    /// every name is, unless --dns is none. @SPEED behind a rule, as in @10mbit, limits what passes by it
    #[arg(long, value_name = "RULE")]
    pub(crate) allow: Vec<Rule>,

    /// Forbid what the guest reaches, whatever is permitted; repeatable. Forbidden from the start are
    /// loopback and link-local addresses, and cloud metadata services unless --allow names their address.
    /// Behind a rule, =refuse, =unreachable (no route) or =drop (silence) say what the guest gets
    /// [default: =prohibit]
    #[arg(long, value_name = "RULE[=HOW]", value_parser = denial)]
    pub(crate) deny: Vec<(Rule, Verdict)>,

    /// Rules from a file of TOML, besides those of --allow and --deny; repeatable. `pagewire check rules FILE`
    /// tells its mistakes
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Vec<PathBuf>,

    /// Read the files of --rules again when they change; what the new rules forbid ends. Mistakes are printed, and
    /// leave the rules as they were. Without this option: by `pagewire ctl reload`, of `gateway` also by SIGHUP
    #[arg(long, requires = "rules")]
    pub(crate) rules_watch: bool,

    /// An IPv6 prefix behind which this network translates to IPv4, as in 2001:db8:64::/96: what the guest
    /// reaches there is judged as the IPv4 address, too; repeatable. 64:ff9b::/96 and 6to4 are known
    #[arg(long, value_name = "PREFIX")]
    pub(crate) nat64: Vec<Cidr>,

    /// Refuse nothing that --allow and --deny would refuse, but write it down: in --log, and at the end of `run`.
    /// Loopback, link-local and metadata addresses stay closed
    #[arg(long)]
    pub(crate) audit: bool,

    /// Ask the program that listens at this Unix socket about what neither a permission nor a denial is for: one JSON
    /// object a line. The guest waits meanwhile, and names that no denial has are resolved
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["audit", "learn", "offline"])]
    pub(crate) judge: Option<PathBuf>,

    /// How long the program of --judge may take for an answer, as in 500ms or 5s
    #[arg(long, requires = "judge", default_value = "5s", value_parser = judge_time, value_name = "TIME")]
    pub(crate) judge_time: Duration,

    /// What a connection gets for which the program of --judge gives no answer: prohibit, refuse, unreachable, drop or
    /// allow
    #[arg(long, requires = "judge", default_value = "prohibit", value_parser = judge_default, value_name = "HOW")]
    pub(crate) judge_default: Verdict,

    /// Write rules to FILE at the end that permit what the guest has reached beyond --allow; as with --audit,
    /// nothing is refused meanwhile. FILE must be new, or empty
    #[arg(long, value_name = "FILE")]
    pub(crate) learn: Option<PathBuf>,

    /// Forbid everything, names and clients of the guest's ports too. Programs of `run` still reach
    /// the services of this machine that have a path, such as /run/docker.sock
    #[arg(long, conflicts_with_all = ["allow", "deny", "rules", "publish", "forward", "host", "map", "audit", "learn"])]
    pub(crate) offline: bool,

    /// Have connections to this address go to 127.0.0.1 of this machine, or to ::1; router: to the guest's
    /// router, or to its IPv4 or IPv6 one with /4 or /6 behind it; repeatable
    #[arg(long, value_name = "IP|router", value_parser = host)]
    pub(crate) host: Vec<HostAt>,

    /// Have connections to the first address go to the second; host: to this machine's own, that of the
    /// interface of --copy or of the default route; repeatable
    #[arg(long, value_name = "IP=IP|host", value_parser = mapped)]
    pub(crate) map: Vec<(IpAddr, Mapped)>,

    /// Source of what leaves this machine: an address, once for IPv4, once for IPv6, or an interface
    /// with /4 or /6 behind it if it is for one of them only
    #[arg(long, value_name = "IP|IFACE", value_parser = source)]
    pub(crate) source: Vec<Source>,

    /// Have connections go by a proxy, socks5://HOST:PORT or http://HOST:PORT (CONNECT), which gets names as names.
    /// With RULE= in front, as of --allow, connections that match; RULE=direct: by none; repeatable, the first
    /// that matches counts. Datagrams and pings for which there is a proxy are refused
    #[arg(long, value_name = "[RULE=]URL|direct")]
    pub(crate) via: Vec<String>,

    /// Read the credentials for the proxy of --via from FILE, which has one line USER:PASSWORD; with the
    /// proxy's URL= in front where there are several proxies; repeatable
    #[arg(long, value_name = "[URL=]FILE")]
    pub(crate) via_credentials: Vec<OsString>,

    /// Whom to ask for names: host (those of /etc/resolv.conf), none, or addresses, in order of preference.
    /// via: nobody, each name gets an address of its own, by which the proxy of --via is told the name
    #[arg(long, value_name = "ADDR|host|none|via")]
    pub(crate) dns: Vec<String>,

    /// A name that we answer for, besides `gateway` (this end) and `host` (of --host); repeatable
    #[arg(long, value_name = "NAME=ADDR", value_parser = named)]
    pub(crate) name: Vec<(Name, IpAddr)>,

    /// A domain in which the guest looks up short names; repeatable
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) search: Vec<String>,

    /// Give no address by DHCP
    #[arg(long)]
    pub(crate) no_dhcp: bool,

    /// Give no address by DHCPv6
    #[arg(long)]
    pub(crate) no_dhcp6: bool,

    /// Name no resolver by DHCP, DHCPv6 and router advertisements
    #[arg(long)]
    pub(crate) no_dhcp_dns: bool,

    /// Send no router advertisements
    #[arg(long)]
    pub(crate) no_ra: bool,

    /// Write a line of JSON for each verdict, each refused name and each connection (names, bytes, how
    /// it ended) to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,

    /// Longest --log file: its older half goes when it would be longer. K, M and G are powers of 1024
    #[arg(long, default_value = "64M", value_parser = log_size, value_name = "BYTES", requires = "log")]
    pub(crate) log_size: u64,

    /// Write every frame to FILE, in pcapng
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,

    /// Make the line to the guest bad: loss, dup, reorder, corrupt (percent of packets), delay,
    /// jitter (ns, us, ms, s), rate (bit, kbit, mbit, gbit per second), limit and bytes (what may wait for
    /// rate), aqm (none, codel, or the wait from which on packets are marked), seed (a number), on (tx:
    /// to the guest, rx: from it, both), cut (no: super-frames stay whole, and are lost whole; quicker),
    /// as in 'loss=1%,reorder=0.5%,delay=10ms,seed=7'. --stats counts what it did
    #[arg(long, value_name = "SPEC")]
    pub(crate) fault: Option<FaultConfig>,

    /// Speed of the line in each direction, in bits a second: a number with bit, kbit, mbit or gbit.
    /// Packets that wait too long are marked or dropped, as controlled delay (RFC 8289) has it
    #[arg(long, value_name = "BITS", value_parser = rate)]
    pub(crate) rate: Option<FaultConfig>,

    #[command(flatten)]
    pub(crate) cores: CoresOption,

    /// Print counters on standard error at the end; of `gateway` also on SIGUSR1. json: as one line
    #[arg(long, value_enum, value_name = "FORMAT", num_args = 0..=1, require_equals = true, default_missing_value = "text")]
    pub(crate) stats: Option<StatsFormat>,

    /// Whom this process becomes once all is open, if root started it: a name or a number of
    /// /etc/passwd [default: 65534, which is nobody]
    #[arg(long, value_name = "NAME", conflicts_with = "no_sandbox")]
    pub(crate) user: Option<String>,

    /// Keep all rights of this process: files, capabilities, system calls. For finding out what is wrong
    #[arg(long)]
    pub(crate) no_sandbox: bool,

    #[command(flatten)]
    pub(crate) view: ViewOptions,
}

/// The limit of a log.
fn log_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match bytes < LOG_BYTES_LEAST {
        true => Err("a log has 64K at least".to_owned()),
        false => Ok(bytes),
    }
}

/// A line of this speed.
fn rate(text: &str) -> Result<FaultConfig, String> {
    let config: Result<FaultConfig, _> = format!("rate={text},aqm=codel").parse();
    config.ok().filter(|_| !text.contains([',', '='])).ok_or_else(|| {
        "give a speed as in 10mbit: a number with bit, kbit, mbit or gbit".to_owned()
    })
}

/// Kinds of links that guests speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GuestLink {
    /// A tap device, in the network namespace of --netns or in ours
    Tap,
    /// A port for QEMU, Cloud Hypervisor and others that share the guest's memory
    VhostUser,
    /// The stream socket of QEMU (`-netdev stream`), passt and libkrun
    Stream,
    /// The datagram socket of vfkit and gvproxy
    Datagram,
}

#[derive(Debug, Args)]
pub(crate) struct GatewayOptions {
    /// How the guest is plugged in
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) link: GuestLink,

    /// Unix socket of the link, up to 107 bytes: we listen there, and the program that runs the guest
    /// connects, again if it has ended or was told to (reconnect=1 of QEMU's vhost-user). With socket
    /// activation (LISTEN_FDS=1) the passed listening socket is used: it has to be bound to this path, with
    /// the same spelling, and is not removed; for Accept=yes take --fd 3
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Network namespace in which the tap is made: a file such as /run/netns/NAME, or the number of a
    /// process, which needs no root if that is ours. The kernel there gets addresses and routes. The
    /// command ends with the process, or when the file is removed
    #[arg(long, value_name = "PATH|PID")]
    pub(crate) netns: Option<PathBuf>,

    /// Name of the tap device, up to 15 bytes; made if it does not exist [default: pw0]
    #[arg(long, value_name = "NAME")]
    pub(crate) tap: Option<String>,

    /// User namespace to enter, a file: the one that owns --netns [default: asked of the kernel]
    #[arg(long, value_name = "PATH", requires = "netns")]
    pub(crate) userns: Option<PathBuf>,

    /// Leave the addresses, the routes and the state of the devices in the namespace to others
    #[arg(long)]
    pub(crate) no_configure: bool,

    /// Answer DHCP and send router advertisements also to a namespace that we configure
    #[arg(long)]
    pub(crate) advertise: bool,

    /// Addresses of DHCP, in place of --guest
    #[arg(long, value_name = "FIRST-LAST", value_parser = addresses)]
    pub(crate) dhcp_range: Option<(Ipv4Addr, Ipv4Addr)>,

    /// The link is this open descriptor, a connected socket, and the command ends with it
    #[arg(long, value_name = "FD", conflicts_with = "socket")]
    pub(crate) fd: Option<u32>,

    /// End after the first guest of --socket
    #[arg(long, requires = "socket")]
    pub(crate) one_off: bool,

    /// Stay when the file of --netns is removed, or the process has ended
    #[arg(long)]
    pub(crate) keep: bool,

    /// Return when guests are served, with status 0, or with 1 and a message. What stays has nothing open
    /// of the caller
    #[arg(long)]
    pub(crate) background: bool,

    /// Write the PID of the gateway to FILE, when guests are served
    #[arg(long, value_name = "FILE")]
    pub(crate) pid: Option<PathBuf>,

    /// Unix socket for requests that publish ports, as slirp4netns has them: add_hostfwd, list_hostfwd,
    /// remove_hostfwd. Whoever can open it can publish ports
    #[arg(long, value_name = "PATH")]
    pub(crate) api_socket: Option<PathBuf>,

    /// Print failures only
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Write messages to FILE, and not to standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,

    /// Longest --log-file: its older half goes when it would be longer. K, M and G are powers of 1024
    #[arg(long, default_value = "1M", value_parser = log_size, value_name = "BYTES", requires = "log_file")]
    pub(crate) log_file_size: u64,

    /// Tell the service manager of NOTIFY_SOCKET when guests are served
    #[arg(long)]
    pub(crate) notify: bool,

    /// Write 1 to this open descriptor, too, when guests are served, and close it
    #[arg(long, value_name = "FD")]
    pub(crate) ready_fd: Option<u32>,

    /// End when this open descriptor becomes readable, or its other end is closed
    #[arg(long, value_name = "FD")]
    pub(crate) exit_fd: Option<u32>,

    #[command(flatten)]
    pub(crate) guest: GuestOptions,
}

pub(super) const GATEWAY_EXAMPLES: &str = "\
Examples:
  pagewire gateway --link stream --socket /tmp/pw.sock
      then: qemu-system-x86_64 … -netdev stream,id=n0,addr.type=unix,addr.path=/tmp/pw.sock,server=off \\
            -device virtio-net-pci,netdev=n0
  pagewire gateway --link vhost-user --socket /tmp/pw.sock --stats
      faster: the guest's memory is shared; see pagewire serve --help for QEMU's options
  pagewire gateway --link tap --netns 4711
      for a container whose first process is 4711, as pasta and slirp4netns do
  pagewire gateway --link datagram --socket /tmp/pw.sock
      for vfkit and libkrun

Exit status: 0 asked to end, or its guest has gone; 1 failed; 2 a mistake in the options or the passed sockets.";

/// A rule, and what a guest gets that it denies.
pub(crate) fn denial(text: &str) -> Result<(Rule, Verdict), String> {
    let (rule, answer) = match text.rsplit_once('=') {
        None => (text, Verdict::Prohibit),
        Some((rule, "prohibit")) => (rule, Verdict::Prohibit),
        Some((rule, "refuse")) => (rule, Verdict::Refuse),
        Some((rule, "unreachable")) => (rule, Verdict::Unreachable),
        Some((rule, "drop")) => (rule, Verdict::Drop),
        Some((_, other)) => {
            return Err(format!("'{other}': write prohibit, refuse, unreachable or drop"));
        }
    };
    let rule: Rule = rule.parse().map_err(|error: RuleError| error.to_string())?;
    rule.check_denial().map_err(|error| error.to_string())?;
    match rule.rate {
        Some(rate) => Err(format!("'@{rate}': a denial has no rate")),
        None => Ok((rule, answer)),
    }
}

/// What a guest gets for want of an answer.
fn judge_default(text: &str) -> Result<Verdict, String> {
    match text {
        "prohibit" => Ok(Verdict::Prohibit),
        "refuse" => Ok(Verdict::Refuse),
        "unreachable" => Ok(Verdict::Unreachable),
        "drop" => Ok(Verdict::Drop),
        "allow" => Ok(Verdict::Allow),
        _ => Err("give prohibit, refuse, unreachable, drop or allow".to_owned()),
    }
}

/// A time in seconds or milliseconds, of a millisecond to an hour.
fn judge_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1),
        (None, Some(number)) => (number, 1000),
        (None, None) => ("", 0),
    };
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match millis {
        Some(millis @ 1..=3_600_000) => Ok(Duration::from_millis(millis)),
        _ => Err("give a time up to an hour, as in 500ms or 5s".to_owned()),
    }
}

/// The word for what a guest gets that a rule denies.
pub(crate) fn denial_word(answer: Verdict) -> &'static str {
    match answer {
        Verdict::Refuse => "refuse",
        Verdict::Unreachable => "unreachable",
        Verdict::Drop => "drop",
        Verdict::Prohibit | Verdict::Allow | Verdict::To(_) => "prohibit",
    }
}

fn named(text: &str) -> Result<(Name, IpAddr), String> {
    let parts = text.split_once('=').ok_or("give a name and its address, as in db=10.1.2.3")?;
    let name = parts.0.parse().map_err(|e| format!("{e}"))?;
    let address = parts.1.parse().map_err(|_| format!("{} is no IP address", parts.1))?;
    Ok((name, address))
}

/// Where a mapped address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// To this machine's own address.
    Host,
    To(IpAddr),
}

fn mapped(text: &str) -> Result<(IpAddr, Mapped), String> {
    let parts = text.split_once('=').ok_or("give two addresses, as in 192.0.2.1=127.0.0.1")?;
    let address = |text: &str| text.parse().map_err(|_| format!("{text} is no IP address"));
    let from: IpAddr = address(parts.0)?;
    let to = match parts.1 {
        "host" => Mapped::Host,
        text => Mapped::To(address(text)?),
    };
    match to {
        Mapped::To(to) if to.is_ipv4() != from.is_ipv4() => {
            Err("both addresses are of one IP version".to_owned())
        }
        _ => Ok((from, to)),
    }
}

/// What leaves this machine leaves from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Address(IpAddr),
    Interface(Interface),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Interface(interface) => {
                f.write_str(interface.name.as_deref().unwrap_or_default())
            }
        }
    }
}

fn source(text: &str) -> Result<Source, String> {
    match text.parse() {
        Ok(address) => Ok(Source::Address(address)),
        Err(_) if text.is_empty() => Err("give an address, or the name of an interface".to_owned()),
        Err(_) => interface(text).map(Source::Interface),
    }
}

/// A network interface of this machine, for some of the IP versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Without a name: the one of the default route.
    pub(crate) name: Option<String>,
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

fn interface(text: &str) -> Result<Interface, String> {
    let (name, v4, v6) = versions(text)?;
    if name.len() > 15 || name.contains(char::is_whitespace) {
        return Err("the name of an interface has at most 15 bytes".to_owned());
    }
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    Ok(Interface { name, v4, v6 })
}

/// What leads to this machine's loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostAt {
    Address(IpAddr),
    /// The guest's router, of one IP version or of both.
    Router {
        v4: bool,
        v6: bool,
    },
}

fn host(text: &str) -> Result<HostAt, String> {
    if let Ok(address) = text.parse() {
        return Ok(HostAt::Address(address));
    }
    match versions(text)? {
        ("router", v4, v6) => Ok(HostAt::Router { v4, v6 }),
        _ => Err("give an IP address, or `router`".to_owned()),
    }
}

/// A word, and whether it is for IPv4 and for IPv6: `/4` or `/6` behind it say of which.
fn versions(text: &str) -> Result<(&str, bool, bool), String> {
    match text.split_once('/') {
        None => Ok((text, true, true)),
        Some((word, "4")) => Ok((word, true, false)),
        Some((word, "6")) => Ok((word, false, true)),
        Some(_) => Err("behind the slash there is 4 or 6, for the IP version".to_owned()),
    }
}

fn addresses(text: &str) -> Result<(Ipv4Addr, Ipv4Addr), String> {
    let parsed = text.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let (first, last): (Ipv4Addr, Ipv4Addr) =
        parsed.ok_or("give two addresses, as in 10.0.2.15-10.0.2.30")?;
    if first > last { Err("a range ends before it begins".to_owned()) } else { Ok((first, last)) }
}

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// Name of the program's network device, up to 15 bytes [default: pw0, or that of --copy]
    #[arg(long, value_name = "NAME")]
    pub(crate) tap: Option<String>,

    /// Have the program be root in its user namespace, as `unshare --map-root-user` does
    #[arg(long)]
    pub(crate) map_root_user: bool,

    /// The program, which is looked up in PATH, and its arguments; after `--`
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,

    #[command(flatten)]
    pub(crate) guest: GuestOptions,
}

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  pagewire run -- curl -sS https://example.org/
      everything that curl sends leaves by this process
  pagewire run --fault 'delay=50ms,jitter=5ms,loss=1%' -- git clone https://example.org/a.git
      on a bad line, which otherwise takes root and netem
  pagewire run --rate 2mbit --pcap slow.pcapng -- ./client
      on a slow line, with a capture for Wireshark
  pagewire run --allow '*.debian.org' --log verdicts.jsonl -- apt-get update
      nothing else in reach, and who was reached
  pagewire run --publish 8080:80 -- nginx -g 'daemon off;'
      then, outside: curl http://127.0.0.1:8080/
  pagewire run --offline -- make test
      no network at all, and no root for it
  pagewire run -- bash
      a shell: everything started there

Exit status: that of the program; if a signal ended it, the same signal ends run. 127 there is no
such program, 126 it cannot be executed, 125 anything else went wrong (one line says what).";
