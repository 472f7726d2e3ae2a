//! [`Served`]: a gateway with its guest, made from the options that `run` and `gateway` share.
//!
//! A gateway is made in two steps: [`open`] does everything that needs rights or can be wrong;
//! [`OpenGateway::start`] follows behind the sandbox ([`enter_sandbox`]), when there may be threads.

mod firewall;
mod rules;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pagewire::device::{FaultConfig, FaultWatch};
use pagewire::{Device, Host};
use pagewire_control as control;
use pagewire_gateway::netns::NsSockets;
use pagewire_gateway::sandbox::{self, SandboxError, SandboxPlan};
use pagewire_gateway::{
    Builder, Forward, Gateway, Guest, GuestConfig, LocalClients, Log, OpenPort, OwnNames, Protocol,
    Publish, PublishedPort, Resolver, Rules, SocketPolicy, Source, Verdict,
};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::api::{HostPort, Ports, Refused};
use super::guest_network::{Advertised, GuestNetwork};
use super::ways;
use crate::args::guest::{self as args, GuestOptions, Interface};
use crate::failure::{Failure, complain, plain, reason, word};
use crate::net::{LineWrappers, line_text, show_line, user};
use crate::view;
use firewall::GuestFirewall;
use rules::{Mistaken, RulesSource, RulesWatch};

/// The parts of a gateway that are opened before the sandbox, while this process still may.
pub(crate) struct OpenGateway {
    builder: Builder,
    config: GuestConfig,
    published: Vec<(Publish, Vec<OpenPort>)>,
    log: Option<(File, u64)>,
    line: LineWrappers,
    /// How long a frame may be on the line, faults included.
    line_delay: Duration,
    network: GuestNetwork,
    forwarded: Vec<Forward>,
    /// What the guest learns by DHCP and advertisements, if it does not have its addresses.
    advertised: Option<Advertised>,
    rules: RulesSource,
    rule_folders: Vec<PathBuf>,
    watch: Option<RulesWatch>,
    learn: Option<(PathBuf, File)>,
    judge: Option<OutsideJudge>,
}

/// The program of `--judge`.
struct OutsideJudge {
    path: PathBuf,
    stream: UnixStream,
    limit: Duration,
    otherwise: Verdict,
}

/// Makes of the options what needs rights, or can be wrong.
pub(crate) fn open(
    options: &GuestOptions,
    network: GuestNetwork,
    advertised: Option<Advertised>,
    inside: Option<NsSockets>,
) -> Result<OpenGateway, Failure> {
    let local_clients = match () {
        () if options.loopback => LocalClients::Loopback,
        () if options.splice => LocalClients::Spliced,
        () => LocalClients::ByLink,
    };
    let mut config = network.config().local_clients(local_clients).cores(options.cores.cores);
    if let Some(inside) = inside {
        config = config.inside(inside);
    } else if needs_sockets_inside(options) {
        let why = "they are about a network namespace: give --link tap with --netns";
        return Err(Failure::misused("--loopback, --splice, --forward and --publish auto", why));
    }
    let mut published = Vec::new();
    for what in &options.publish {
        let opened = what.open();
        let failed = |e| Failure::because(format!("--publish {what}"), publish_reason(&e));
        published.push((what.clone(), opened.map_err(failed)?));
    }
    let fault = fault(options)?;
    let source_of_rules = RulesSource::new(options, network.mappings(options));
    let read = source_of_rules.begin().map_err(Mistaken::complain)?;
    let rule_folders = rules::folders(&read.files);
    let watch = options.rules_watch.then(|| RulesWatch::new(&rule_folders)).transpose()?;
    let builder = Gateway::builder()
        .rules(read.rules)
        .resolver(resolver(options)?)
        .vias(ways::open(options)?)
        .source(source(&options.source)?)
        .names(names(options, &network));
    Ok(OpenGateway {
        builder,
        config,
        published,
        learn: options.learn.clone().map(learn_file).transpose()?,
        judge: judge(options)?,
        log: options.log.as_deref().map(|path| log(path, options.log_size)).transpose()?,
        line_delay: fault.map_or(Duration::ZERO, |fault| fault.delay + fault.jitter),
        line: LineWrappers::open(fault, options.pcap.as_deref())?,
        network,
        forwarded: options.forward.clone(),
        advertised,
        rules: source_of_rules,
        rule_folders,
        watch,
    })
}

impl OpenGateway {
    /// The folders of the files of rules, which are read again.
    pub(crate) fn rule_folders(&self) -> Vec<PathBuf> {
        self.rule_folders.clone()
    }

    /// Starts the gateway, for the guest behind a device.
    pub(crate) fn start(self, device: Box<dyn Device>) -> Result<Arc<Served>, Failure> {
        let failed = |e: &dyn std::fmt::Display| Failure::because("starting the gateway", e);
        let line = self.line.watch();
        let mut device = self.line.around(device)?;
        if let Some(what) = self.advertised {
            device = self.network.advertise_on(device, what)?;
        }
        let mut builder = self.builder;
        if let Some((file, most)) = self.log {
            builder = builder.journal(Log::to_file(file, most).map_err(|e| failed(&e))?);
        }
        if let Some(OutsideJudge { path, stream, limit, otherwise }) = self.judge {
            let path = path.display().to_string();
            let on_end = move || {
                let _ = writeln!(
                    io::stderr(),
                    "pagewire: --judge {path}: the program has ended the connection: what it would be asked about gets \
                     the verdict of --judge-default"
                );
            };
            let policy = SocketPolicy::over(stream, on_end).map_err(|e| failed(&e))?;
            builder = builder.policy(policy, limit, otherwise);
        }
        let gateway = builder.start();
        let guest = gateway.add_boxed(device, self.config).map_err(|e| failed(&e))?;
        let refused = |what: &Publish, e| Failure::because(format!("--publish {what}"), reason(&e));
        let (follows, named): (Vec<_>, Vec<_>) =
            self.published.into_iter().partition(|(what, _)| what.is_auto());
        for (what, opened) in named {
            guest.serve(&what, opened).map_err(|e| refused(&what, e))?;
        }
        for what in &self.forwarded {
            let forwarded = guest.forward(what);
            forwarded.map_err(|e| Failure::because(format!("--forward {what}"), reason(&e)))?;
        }
        // Behind the ports that are this gateway's own, which are no programs'.
        for (what, _) in follows {
            guest.publish(&what).map_err(|e| refused(&what, e))?;
        }
        let guests = self.network.guests().collect();
        let (line_delay, rules, learn) = (self.line_delay, self.rules, self.learn);
        let served =
            Arc::new(Served { guest, guests, line, line_delay, rules, learn, _gateway: gateway });
        if let Some(watch) = self.watch {
            watch.start(Arc::downgrade(&served))?;
        }
        Ok(served)
    }
}

/// Opens the file for rules that are learned, which must have no content.
fn learn_file(path: PathBuf) -> Result<(PathBuf, File), Failure> {
    let failed = |why: String| Failure::because(format!("--learn {}", path.display()), why);
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = opened.map_err(|e| failed(reason(&e)))?;
    match file.metadata().map_err(|e| failed(reason(&e)))?.len() {
        0 => Ok((path, file)),
        _ => Err(failed("the file has content: remove it, or take another".to_owned())),
    }
}

/// Connects to the program of `--judge`, while this process still may.
fn judge(options: &GuestOptions) -> Result<Option<OutsideJudge>, Failure> {
    let Some(path) = options.judge.clone() else { return Ok(None) };
    let stream = UnixStream::connect(&path)
        .map_err(|e| Failure::because(format!("--judge {}", path.display()), reason(&e)))?;
    let (limit, otherwise) = (options.judge_time, options.judge_default);
    Ok(Some(OutsideJudge { path, stream, limit, otherwise }))
}

/// Opens the log.
fn log(path: &Path, most: u64) -> Result<(File, u64), Failure> {
    let failed = |e| Failure::because(format!("--log {}", path.display()), reason(&e));
    Log::open(path, most).map_err(failed)
}

/// The sources of `--source`.
fn source(all: &[args::Source]) -> Result<Source, Failure> {
    let mut source = Source::default();
    let twice = |option: &dyn std::fmt::Display| {
        Failure::misused(format!("--source {option}"), "there is another for this version of IP")
    };
    for one in all {
        let taken = match one {
            args::Source::Address(IpAddr::V4(v4)) => source.v4.replace(*v4).is_some(),
            args::Source::Address(IpAddr::V6(v6)) => source.v6.replace(*v6).is_some(),
            args::Source::Interface(Interface { name, v4, v6 }) => {
                let v4 = *v4 && std::mem::replace(&mut source.interface_v4, name.clone()).is_some();
                let v6 = *v6 && std::mem::replace(&mut source.interface_v6, name.clone()).is_some();
                v4 || v6
            }
        };
        if taken {
            return Err(twice(one));
        }
    }
    source.check().map_err(|e| {
        let why = format!("{}; name an address or an interface of this machine", reason(&e));
        Failure::because("--source", why)
    })?;
    Ok(source)
}

/// The resolver of `--dns`.
fn resolver(options: &GuestOptions) -> Result<Resolver, Failure> {
    let parse = |word: &String| {
        let address = word.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53));
        address.or_else(|_| word.parse()).map_err(|_| {
            let why = "give host, none, via, or addresses of name servers, as in 192.0.2.53";
            Failure::misused(format!("--dns {word}"), why)
        })
    };
    let is_direct = |text: &String| text == "direct" || text.ends_with("=direct");
    match options.dns.as_slice() {
        [] => Ok(Resolver::Host),
        [word] if word == "host" => Ok(Resolver::Host),
        [word] if word == "none" => Ok(Resolver::None),
        [word] if word == "via" && options.via.iter().all(is_direct) => {
            Err(Failure::misused("--dns via", "it needs a proxy: give --via"))
        }
        [word] if word == "via" => Ok(Resolver::Invented),
        words => Ok(Resolver::At(words.iter().map(parse).collect::<Result<_, _>>()?)),
    }
}

/// The names that the gateway answers for.
fn names(options: &GuestOptions, network: &GuestNetwork) -> OwnNames {
    let mut names = OwnNames::default();
    let ours = network.routers().map(|address| ("gateway", address));
    let loopback = network.mappings(options).into_iter().filter(|(_, to)| to.is_loopback());
    for (word, address) in ours.chain(loopback.map(|(address, _)| ("host", address))) {
        // These words are names.
        let _ = names.add_word(word, address);
    }
    for (name, address) in &options.name {
        names.add(name.clone(), *address);
    }
    names
}

/// The beginning of a file of rules that were learned.
const LEARNED: &str = "\
# Rules that permit what a guest has reached, written by pagewire --learn. Read them before you use them.

[[allow]]
to = [
";

/// A gateway with its one guest.
pub(crate) struct Served {
    guest: Guest,
    /// The guest's addresses.
    pub(crate) guests: Vec<IpAddr>,
    /// Counts of `--fault` and `--rate`.
    line: Option<FaultWatch>,
    line_delay: Duration,
    rules: RulesSource,
    /// The file for the rules that permit what the guest has reached.
    learn: Option<(PathBuf, File)>,
    // Behind the guest, which it serves.
    _gateway: Gateway,
}

impl Served {
    /// The gateway's end of the guest's network.
    pub(crate) fn host(&self) -> &Host {
        self.guest.host()
    }

    /// Where requests for ports go.
    pub(crate) fn ports(self: &Arc<Self>) -> Arc<dyn Ports> {
        Arc::new(GuestPorts(Arc::downgrade(self)))
    }

    /// What was refused: a sentence, and a line for each of the most frequent refusals; nothing: nothing was.
    pub(crate) fn refused(&self) -> Vec<String> {
        let denied = self.guest.denied();
        let sentence = denied.first.is_some().then(|| denied.to_string());
        let lines = denied.most.iter().map(|refusal| match &refusal.permission {
            Some(rule) => format!("  {refusal}: --allow {}", word(&rule.to_string())),
            None => format!("  {refusal}"),
        });
        sentence.into_iter().chain(lines).collect()
    }

    /// Writes the rules that permit what the guest has reached, if that was asked for.
    pub(crate) fn write_learned(&self) -> Result<(), Failure> {
        let Some((path, file)) = &self.learn else { return Ok(()) };
        let mut text = String::from(LEARNED);
        for (rule, flows) in self.guest.learned() {
            let many = if flows == 1 { "flow" } else { "flows" };
            text += &format!("    \"{rule}\", # {flows} {many}\n");
        }
        text += "]\n";
        let written = (&mut &*file).write_all(text.as_bytes());
        written.map_err(|e| Failure::because(format!("--learn {}", path.display()), reason(&e)))
    }

    /// Adds the gateway to the view for a control socket.
    pub(crate) fn shown(self: &Arc<Self>, shown: control::Builder) -> control::Builder {
        let served = Arc::downgrade(self);
        for shard in self.guest.cores().shards() {
            crate::log::trace("guest", shard);
        }
        let mut shown = shown.cores("guest", self.guest.cores());
        if let Some(line) = &self.line {
            shown = show_line(shown, line);
        }
        let counts = move || match served.upgrade() {
            Some(served) => served.guest.counters().iter().collect(),
            None => Vec::new(),
        };
        shown.section("gateway", counts).firewall(Arc::new(GuestFirewall(Arc::downgrade(self))))
    }

    pub(super) fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Changes the rules. Returns the number of flows that have ended by that.
    pub(super) fn change_rules(
        &self,
        change: impl FnOnce(Rules) -> Rules,
    ) -> Result<usize, String> {
        self.guest.change_rules(change).map_err(|error| error.to_string())
    }

    /// Reads the rules again. Returns the number of flows that have ended by that.
    pub(super) fn reload(&self) -> Result<usize, String> {
        self.rules.read_again(false, |rules| self.change_rules(|_| rules))
    }

    /// Reads the rules again, and says on standard error why they stay as they are if they do.
    /// `only_changes`: rules that are the same as at the last reading change nothing.
    pub(crate) fn reload_loudly(&self, only_changes: bool) {
        match self.rules.read_again(only_changes, |rules| self.change_rules(|_| rules)) {
            Ok(ended) => tracing::info!(ended, "the rules were read again"),
            Err(why) => complain!("pagewire: the rules stay as they are: {}", plain(&why)),
        }
    }

    /// The counters that `--stats` prints.
    pub(crate) fn report(&self) -> String {
        let counts = self.guest.counters().iter().filter(|(_, n)| *n > 0);
        let text = view::part("gateway", counts);
        let line = self.line.as_ref().map(line_text).unwrap_or_default();
        format!("{text}{}{line}", self.guest.cores().stats())
    }

    /// Waits, for `limit` at most, until the last data of a guest that has ended was passed on. Frames that are
    /// on the line at this time arrive in any case.
    pub(crate) fn finish(&self, limit: Duration) {
        self.guest.finish(self.line_delay, limit);
    }

    /// Ends all connections; those with data left to send have `limit` for it.
    pub(crate) fn end(&self, limit: Duration) {
        let end = Instant::now() + limit;
        for shard in self.guest.cores().shards() {
            shard.drain(end.saturating_duration_since(Instant::now()));
            crate::log::trace_end("guest", shard);
        }
    }
}

/// The ports of a guest, for as long as it is served.
struct GuestPorts(Weak<Served>);

impl GuestPorts {
    fn publish_of(port: &HostPort) -> Option<Publish> {
        let protocol = if port.udp { "/udp" } else { "" };
        let text = format!("{}:{}{protocol}", port.host, port.guest.port());
        Some(text.parse::<Publish>().ok()?.to_guest(port.guest.ip()))
    }

    fn publish(&self, what: &Publish) -> Result<(), Refused> {
        let served = self.0.upgrade().ok_or_else(|| refused_for("the guest has ended"))?;
        served.guest.publish(what).map(drop).map_err(|error| Refused {
            why: publish_reason(&error),
            taken: error.kind() == io::ErrorKind::AddrInUse,
            lacks: error.kind() == io::ErrorKind::AddrNotAvailable
                || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()),
        })
    }
}

impl Ports for GuestPorts {
    fn open(&self, port: &HostPort) -> Result<(), Refused> {
        let what = Self::publish_of(port).ok_or_else(|| refused_for("no such port"))?;
        self.publish(&what)
    }

    fn close(&self, ports: &[HostPort]) -> usize {
        let protocol = |udp| if udp { Protocol::Udp } else { Protocol::Tcp };
        let of = |port: &HostPort| PublishedPort::new(protocol(port.udp), port.host, port.guest);
        let those: Vec<PublishedPort> = ports.iter().map(of).collect();
        self.0.upgrade().map_or(0, |served| served.guest.unpublish_ports(&those))
    }

    fn all(&self) -> Vec<HostPort> {
        let Some(served) = self.0.upgrade() else { return Vec::new() };
        let ports = served.guest.published_ports().into_iter();
        let of = |port: PublishedPort| {
            HostPort::new(port.protocol == Protocol::Udp, port.host, port.guest)
        };
        ports.map(of).collect()
    }

    fn rules(&self) -> Vec<String> {
        let Some(served) = self.0.upgrade() else { return Vec::new() };
        let all = served.guest.published().into_iter();
        all.filter(|what| what.is_auto() || what.is_all()).map(|what| what.to_string()).collect()
    }

    fn open_rule(&self, rule: &str) -> Result<(), Refused> {
        self.publish(&rule.parse().map_err(|_| refused_for("no such rule"))?)
    }

    fn close_rule(&self, rule: &str) -> bool {
        let what = rule.parse::<Publish>().ok();
        what.zip(self.0.upgrade()).is_some_and(|(what, served)| served.guest.unpublish(&what))
    }
}

fn refused_for(why: &str) -> Refused {
    Refused { why: why.to_owned(), taken: false, lacks: false }
}

/// Whether the options are about sockets in the guest's network namespace.
pub(crate) fn needs_sockets_inside(options: &GuestOptions) -> bool {
    let of_clients = options.loopback || options.splice;
    of_clients || !options.forward.is_empty() || options.publish.iter().any(Publish::is_auto)
}

/// Whether ports are opened later, when this process has given up its rights: as programs listen, or by
/// `pagewire ctl`, for which the control socket has a path of the user's choice.
pub(crate) fn opens_ports_later(options: &GuestOptions) -> bool {
    let is_path = |path: &PathBuf| path != Path::new("none");
    options.publish.iter().any(Publish::is_auto)
        || options.view.control.as_ref().is_some_and(is_path)
}

/// Why a port cannot be published, and what to do about it.
pub(super) fn publish_reason(error: &io::Error) -> String {
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
        crate::failure::complain!(
            "pagewire: NO SANDBOX: a guest that finds a bug in this process has all its rights"
        );
        return Ok(());
    }
    plan.read.extend(sandbox::resolver_files());
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
        crate::failure::complain!("pagewire: the sandbox is incomplete: {line}");
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
    use std::net::{Ipv4Addr, TcpListener};

    use clap::{CommandFactory, Parser};
    use pagewire::Pair;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::commands::port_changes::{Change, PortSet, Step};

    fn options(args: &[&str]) -> GuestOptions {
        let words = ["pagewire", "run"].iter().chain(args).chain(&["--", "true"]);
        let Ok(Cli { command: Command::Run(options), .. }) = Cli::try_parse_from(words) else {
            panic!("{args:?}");
        };
        options.guest
    }

    /// A guest of this process with these ports, and its stack.
    fn served(published: &[&str]) -> (Arc<Served>, Host) {
        let (device, inner) = Pair::new().unwrap();
        let inside = Host::builder().device(inner).address("10.0.2.100/24").gateway("10.0.2.2");
        let gateway = Gateway::builder().start();
        let guests: Vec<IpAddr> = vec!["10.0.2.100".parse().unwrap()];
        let config = GuestConfig::new().network("10.0.2.2/24").unwrap().guest(guests[0]);
        let guest = gateway.add(device, config).unwrap();
        for what in published {
            guest.publish(&what.parse().unwrap()).unwrap();
        }
        let (line, line_delay) = (None, Duration::ZERO);
        let (rules, learn) = (RulesSource::new(&options(&[]), Vec::new()), None);
        let served = Served { guest, guests, line, line_delay, rules, learn, _gateway: gateway };
        (Arc::new(served), inside.start().unwrap())
    }

    /// The text of a port of 127.0.0.1 that leads to the guest's port 80.
    fn entry(port: u16) -> (String, String) {
        (format!("127.0.0.1:{port}"), "10.0.2.100:80".to_owned())
    }

    fn open(ports: &dyn Ports) -> Vec<(String, String)> {
        let text = |port: HostPort| (port.host.to_string(), port.guest.to_string());
        ports.all().into_iter().map(text).collect()
    }

    /// Ports that nobody has, for now.
    fn free<const N: usize>() -> [u16; N] {
        let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        listeners.map(|listener| listener.local_addr().unwrap().port())
    }

    #[test]
    fn ports_of_the_command_line_are_listed_and_closed_one_by_one() {
        let (served, _inside) = served(&["0:80", "127.0.0.1:32080-32081:80", "0:53/udp"]);
        let ports = served.ports();
        let all = ports.all();
        // Of both versions of IP, where this machine has them: datagrams have the guest's.
        assert!(all.iter().any(|port| port.host.ip().is_unspecified() && !port.udp), "{all:?}");
        assert!(all.iter().any(|port| port.udp && port.guest.port() == 53), "{all:?}");
        for port in &all {
            assert_eq!(ports.close(&[*port]), 1, "{port:?}");
            assert_eq!(ports.close(&[*port]), 0, "{port:?}");
        }
        assert!(ports.all().is_empty());
        TcpListener::bind("127.0.0.1:32081").expect("the port is free");
    }

    #[test]
    fn a_change_of_ports_is_made_whole_or_not_at_all() {
        let [old, new] = free();
        let (served, _inside) = served(&[&format!("127.0.0.1:{old}:80")]);
        let (ports, guests) = (served.ports(), &served.guests);
        let loopback = Some(Ipv4Addr::LOCALHOST.into());
        let set = |port| {
            let ports = vec![(port, port, 80)];
            PortSet { udp: false, on: loopback, ports, target: None }
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = set(listener.local_addr().unwrap().port());
        let replace = |sets: &[&PortSet]| {
            let adds = sets.iter().map(|set| Step::Add((*set).clone()));
            Change([Step::Clear].into_iter().chain(adds).collect()).execute(&*ports, guests)
        };
        let why = replace(&[&set(new), &taken]).unwrap_err();
        assert!(why.contains("another program has it"), "{why}");
        assert_eq!(open(&*ports), [entry(old)]);
        replace(&[&set(old), &set(new)]).unwrap();
        assert_eq!(open(&*ports), [entry(old), entry(new)]);
        replace(&[]).unwrap();
        assert!(open(&*ports).is_empty());
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
