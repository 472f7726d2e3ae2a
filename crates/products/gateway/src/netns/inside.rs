//! The helper process: it enters the namespaces, makes the tap, and becomes the program.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use pagewire::Tap;
use pagewire::device::{TapParts, loopback_up};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Signal, getegid, geteuid, set_dumpable_behavior,
    set_parent_process_death_signal,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::helper_socket::{
    ERRNO, FAILED, GO, MAPS, Message, NETWORK, NOT_EXECUTED, READY, Ready, SERVES, SOCKET, Wire,
};
use super::ports::PortTables;
use super::socket_request::Request;
use super::{InsideNetwork, Namespace, mounts, sys};
use crate::sandbox;

/// The first argument of a helper; its socket's number, its namespace, and the program follow.
pub(super) const INSIDE: &str = "inside-namespace";

/// The first argument of a helper that stays, and makes sockets.
pub(super) const SOCKETS: &str = "sockets-of-namespace";

/// The namespace's argument: a new one.
const NEW: &str = "new";

/// The arguments of a helper.
pub(super) fn arguments(work: &str, socket: i32, namespace: Option<&Namespace>) -> [OsString; 3] {
    let namespace = match namespace {
        None => NEW.into(),
        Some(Namespace::Process(id)) => id.to_string().into(),
        // A relative path cannot be taken for one of the others.
        Some(Namespace::Path(path)) => Path::new(".").join(path).into_os_string(),
    };
    [work.into(), socket.to_string().into(), namespace]
}

/// If this process was started as a helper, does the helper's work: `main` ends with the status that
/// this returns. `None`: it is no helper. To be called first, before there are threads.
pub fn inside() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let work = args.next()?;
    if work != INSIDE && work != SOCKETS {
        return None;
    }
    Some(help(&work, args).unwrap_or(ExitCode::FAILURE))
}

/// `None`: the arguments are not those of a helper.
fn help(work: &OsStr, mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let number = args.next()?.to_str()?.parse().ok()?;
    let wire = Wire::new(sys::inherited(number).ok()?);
    let namespace = args.next()?;
    let program: Vec<OsString> = args.collect();
    let done = match (namespace.to_str(), program.split_first()) {
        (Some(NEW), Some((name, args))) => {
            become_program(&wire, name, args).map(|never| match never {})
        }
        _ => {
            let id = namespace.to_str().and_then(|text| text.parse().ok());
            let path = || Namespace::Path(PathBuf::from(&namespace));
            let namespace = id.map_or_else(path, Namespace::Process);
            if work == SOCKETS {
                make_sockets(&wire, &namespace)
            } else {
                make_tap(&wire, &namespace)
            }
        }
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Silently) => ExitCode::FAILURE,
        Err(Stop::Because(text)) => {
            let _ = wire.send(FAILED, text.as_bytes(), &[]);
            ExitCode::FAILURE
        }
    })
}

/// Why a helper ends early.
enum Stop {
    /// The other process is gone, or knows.
    Silently,
    Because(String),
}

impl Stop {
    fn because(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |e| Self::Because(format!("{what}: {e}"))
    }
}

fn become_program(wire: &Wire, name: &OsStr, args: &[OsString]) -> Result<Infallible, Stop> {
    let (network, _) = expect_network(wire)?;
    let mut notes = Vec::new();
    if geteuid().is_root()
        && let Err(e) = mounts::keep_the_machine()
    {
        notes.push(format!("the machine's settings in /proc/sys are not protected: {e}"));
    }
    let new = UnshareFlags::NEWUSER | UnshareFlags::NEWNET | UnshareFlags::NEWNS;
    sys::unshare(new).map_err(|e| Stop::Because(refused(&e)))?;
    wire.send(MAPS, b"", &[]).map_err(|_| Stop::Silently)?;
    expect(wire, MAPS)?;
    loopback_up().map_err(|e| Stop::Because(e.to_string()))?;
    notes.extend(allow_to_all());
    let parts = tap(&network)?;
    if !network.resolvers.is_empty() {
        let done = mounts::resolve_by(&network.resolvers, &network.search);
        notes.extend(done.map_err(Stop::because("put a resolv.conf in place"))?);
    }
    send_ready(wire, parts, notes)?;
    expect(wire, GO)?;
    // The socket and the tap's descriptors close as the program begins.
    let error = Command::new(name).args(args).exec();
    let number = error.raw_os_error().unwrap_or(0);
    let _ = wire.send(NOT_EXECUTED, &number.to_ne_bytes(), &[]);
    Err(Stop::Silently)
}

fn make_tap(wire: &Wire, namespace: &Namespace) -> Result<(), Stop> {
    // While this process is half in the namespace, nobody in there may trace it: it still has what is
    // this machine's.
    no_tracing()?;
    let (network, files) = expect_network(wire)?;
    enter_files(namespace, files)?;
    if !network.left_alone {
        loopback_up().map_err(|e| Stop::Because(e.to_string()))?;
    }
    send_ready(wire, tap(&network)?, Vec::new())
}

/// Enters the namespace by its file, and by that of a user namespace if there is a second one.
fn enter_files(namespace: &Namespace, files: Vec<OwnedFd>) -> Result<(), Stop> {
    let mut files = files.into_iter().map(File::from);
    let file = files.next().ok_or(Stop::Silently)?;
    enter(namespace, &file, files.next())
}

/// Stays in the namespace and makes sockets, until the other end of the wire is closed.
fn make_sockets(wire: &Wire, namespace: &Namespace) -> Result<(), Stop> {
    sys::close_all_but(wire.as_fd());
    no_tracing()?;
    let files = match wire.receive() {
        Ok(Some(message)) if message.kind == GO => message.fds,
        _ => return Err(Stop::Silently),
    };
    enter_files(namespace, files)?;
    // Before that, the change of rights would have reset it. A parent that has ended before has closed the wire.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|e| Stop::because("end with this process")(e.into()))?;
    loopback_up().map_err(|e| Stop::Because(e.to_string()))?;
    let tables = PortTables::open_files();
    let are_there: Vec<u8> = tables.iter().map(|table| table.is_some().into()).collect();
    let tables: Vec<OwnedFd> = tables.into_iter().flatten().collect();
    sandbox::close_doors_of_helper().map_err(Stop::Because)?;
    sys::close_standard_streams();
    wire.send(SERVES, &are_there, &tables).map_err(|_| Stop::Silently)?;
    drop(tables);
    while let Ok(Some(message)) = wire.receive() {
        // A request of another kind comes from a broken process.
        let made = Request::parse(&message.text())
            .filter(|_| message.kind == SOCKET)
            .ok_or(Errno::INVAL)
            .and_then(Request::make);
        let sent = match made {
            Ok(socket) => wire.send(SOCKET, b"", &[socket]),
            Err(error) => wire.send(ERRNO, &error.raw_os_error().to_ne_bytes(), &[]),
        };
        sent.map_err(|_| Stop::Silently)?;
    }
    Ok(())
}

/// The tables that a helper has passed on; `None`: that makes no sense.
pub(super) fn tables(message: Message) -> Option<Vec<Option<OwnedFd>>> {
    let mut fds = message.fds.into_iter();
    let take = |is_there: &u8| if *is_there == 1 { fds.next().map(Some) } else { Some(None) };
    message.body.iter().map(take).collect()
}

fn no_tracing() -> Result<(), Stop> {
    let done = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    done.map_err(|e| Stop::because("forbid tracing")(e.into()))
}

/// The advice for a user who may not enter a namespace.
pub(super) fn not_permitted() -> &'static str {
    match geteuid().is_root() {
        true => ": a container's profile, or another user namespace, forbids it",
        false => ": run as its owner or as root",
    }
}

/// Enters a network namespace by way of the user namespace that owns it. That of a process in there may
/// be another, of the program's own, in which nothing is permitted to it.
fn enter(namespace: &Namespace, file: &File, user: Option<File>) -> Result<(), Stop> {
    let what = format!("enter the namespace {namespace}");
    let is_own = |file: &File, kind: &str| -> Result<bool, Stop> {
        let own = fs::metadata(format!("/proc/self/ns/{kind}"));
        let ids = |found: io::Result<fs::Metadata>| found.map(|m| (m.dev(), m.ino()));
        let same = ids(file.metadata()).and_then(|found| Ok(found == ids(own)?));
        same.map_err(Stop::because("look at this process's namespaces"))
    };
    if is_own(file, "net")? {
        let why = "it is the network that this process is in; name that of a container";
        return Err(Stop::Because(format!("{what}: {why}")));
    }
    let moved = |kind, file: &File| {
        move_into_link_name_space(file.as_fd(), Some(kind)).map_err(|e| {
            let advice = match e {
                Errno::PERM => not_permitted(),
                Errno::INVAL => ": it is no such namespace",
                _ => "",
            };
            Stop::because(format!("{what}{advice}"))(e.into())
        })
    };
    // Without an owner that can be found, the next step reports the error.
    let owner = user.map_or_else(|| sys::owner(file.as_fd()).map(File::from), Ok);
    if let Ok(owner) = owner
        && !is_own(&owner, "user")?
    {
        moved(LinkNameSpaceType::User, &owner)?;
    }
    moved(LinkNameSpaceType::Network, file)?;
    // The change of rights may have reset it.
    no_tracing()
}

fn tap(network: &InsideNetwork) -> Result<TapParts, Stop> {
    let is_v6 = |text: &str| text.contains(':');
    // A kernel without IPv6 has no such directory.
    let v6 = Path::new("/proc/sys/net/ipv6").exists();
    let addresses = network.addresses.iter().filter(|a| v6 || !is_v6(a));
    let mut tap = Tap::builder(&network.tap).mtu(network.mtu).host_addresses(addresses);
    // A router outside of all networks has to be on the link first.
    for (to, via) in network.routes.iter().filter(|(to, _)| v6 || to.addr().is_ipv4()) {
        tap = tap.host_route((to.network(), to.prefix()), *via);
    }
    for router in network.routers.iter().filter(|router| v6 || router.is_ipv4()) {
        tap = tap.host_gateway(*router);
    }
    if let Some(mac) = network.mac {
        tap = tap.host_mac(mac);
    }
    tap = tap.left_alone(network.left_alone);
    tap.open_parts().map_err(|e| Stop::Because(e.to_string()))
}

fn send_ready(wire: &Wire, parts: TapParts, notes: Vec<String>) -> Result<(), Stop> {
    let TapParts { queues, name, kernel_mac, mtu } = parts;
    let ready = Ready { name, kernel_mac, mtu, notes };
    wire.send(READY, ready.encode().as_bytes(), &queues).map_err(Stop::because("pass the tap on"))
}

/// Settings of this network namespace that an ordinary user expects of the host's. Returns those
/// that could not be made: where `/proc` may only be read.
fn allow_to_all() -> Vec<String> {
    let group = getegid().as_raw();
    let set = |name: &str, value: &str| fs::write(Path::new("/proc/sys/net").join(name), value);
    // IPv6 may be off in new namespaces; it is the gateway that knows what is reachable.
    let _ = set("ipv6/conf/all/disable_ipv6", "0");
    let _ = set("ipv6/conf/default/disable_ipv6", "0");
    let _ = set("ipv6/conf/default/accept_ra", "0");
    let mut notes = Vec::new();
    if let Err(e) = set("ipv4/ip_unprivileged_port_start", "0") {
        notes.push(format!("ports below 1024 are for root only in there: {e}"));
    }
    // Allows all groups, where all are mapped in this user namespace.
    let ping = "ipv4/ping_group_range";
    if let Err(e) = set(ping, "0 2147483647").or_else(|_| set(ping, &format!("{group} {group}"))) {
        notes.push(format!("ping is for root only in there: {e}"));
    }
    notes
}

/// The settings, and the files of the namespaces that exist.
fn expect_network(wire: &Wire) -> Result<(InsideNetwork, Vec<OwnedFd>), Stop> {
    let message = match wire.receive() {
        Ok(Some(message)) if message.kind == NETWORK => message,
        _ => return Err(Stop::Silently),
    };
    let network = InsideNetwork::decode(&message.text());
    let network = network.ok_or_else(|| Stop::Because("the helper is another version".into()))?;
    Ok((network, message.fds))
}

fn expect(wire: &Wire, kind: u8) -> Result<String, Stop> {
    match wire.receive() {
        Ok(Some(message)) if message.kind == kind => Ok(message.text()),
        _ => Err(Stop::Silently),
    }
}

/// Why there are no new namespaces, and what to do.
fn refused(error: &io::Error) -> String {
    let advice = match Errno::from_io_error(error) {
        Some(Errno::PERM) => {
            "ordinary users may not make user namespaces here (see the sysctls \
             kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns; in a \
             container, its seccomp profile)"
        }
        Some(Errno::NOSPC | Errno::USERS) => {
            "there are too many (see the sysctls user.max_user_namespaces and \
             user.max_net_namespaces)"
        }
        Some(Errno::INVAL) => "this kernel has none",
        _ => "the kernel refused",
    };
    format!("make user, network and mount namespaces: {error}: {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_is_mistaken_for_a_process_or_for_a_new_namespace() {
        let namespace =
            |path: &str| arguments(INSIDE, 5, Some(&Namespace::Path(path.into())))[2].clone();
        assert_eq!(namespace("new"), "./new");
        assert_eq!(namespace("17"), "./17");
        assert_eq!(namespace("/run/netns/a"), "/run/netns/a");
        assert_eq!(arguments(INSIDE, 5, Some(&Namespace::Process(17)))[2], "17");
        assert_eq!(arguments(INSIDE, 5, None)[1..], [OsString::from("5"), OsString::from("new")]);
    }
}
