//! `pagewire gateway`: the network of a guest that another program runs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagewire::device::{DatagramLink, StreamLink, TapBuilder, VhostUser, VhostUserBuilder};
use pagewire::{Device, Tap};
use pagewire_gateway::netns::{self, Lifetime, Namespace, NsSockets};
use pagewire_gateway::sandbox::SandboxPlan;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::activation::Passed;
use crate::args::guest::{GatewayOptions, GuestLink};
use crate::commands::api::ApiSocket;
use crate::commands::background::Background;
use crate::commands::guest;
use crate::commands::guest_network::{Advertised, GuestNetwork};
use crate::failure::{Failure, reason, socket_failure};
use crate::limits::{LAST_TIME, PROXY_CHECK_TIME, SHUTDOWN_TIME};
use crate::notify::Notifier;
use crate::signals;
use crate::sys::Inherited;
use crate::view::{Printed, ViewSockets};

/// Runs until an interrupt, until the device is lost, or until nobody needs it any more.
pub(crate) fn run(options: &GatewayOptions) -> Result<(), Failure> {
    let mut inherited = Inherited::find();
    let passed = Passed::find();
    check(options)?;
    // What --fd names may be a service manager's, too.
    let given = match options.fd {
        Some(fd) => Some(Given::Connected(take_link(&mut inherited, fd)?)),
        None => {
            passed.take(&mut inherited, options.link, options.socket.as_deref())?.map(Given::Bound)
        }
    };
    let mut ready = options.ready_fd.map(|fd| take_ready(&mut inherited, fd)).transpose()?;
    let exit = options.exit_fd.map(|fd| take_exit(&mut inherited, fd)).transpose()?;
    let background = Background::begin(options)?;
    let network = GuestNetwork::of(&options.guest)?;
    let (bound, lifetime) = bind(options, given, &network)?;
    let sockets = sockets_inside(options)?;
    // The kernel in a namespace has its addresses from the helper that made the tap.
    let advertises = options.netns.is_none() || options.no_configure || options.advertise;
    let advertised = advertises.then(|| Advertised::of(&options.guest, options.dhcp_range));
    let mtu = network.mtu as usize;
    let opened = guest::open(&options.guest, network, advertised, sockets)?;
    let api = options.api_socket.as_deref().map(ApiSocket::bind).transpose()?;
    let asked = ViewSockets::new(&options.guest.view)?;
    let manager = options.notify.then(Notifier::find).transpose();
    let manager = manager.map_err(|e| Failure::because("--notify: NOTIFY_SOCKET", reason(&e)))?;
    inherited.close();
    let mut plan = SandboxPlan::default();
    plan.unix_peers = options.link == GuestLink::Datagram;
    plan.source = !options.guest.source.is_empty();
    plan.low_ports = options.api_socket.is_some();
    plan.splices = guest::needs_sockets_inside(&options.guest);
    plan.read = opened.rule_folders();
    plan.listens = options.api_socket.is_some() || guest::opens_ports_later(&options.guest);
    guest::enter_sandbox(&options.guest, plan)?;

    // From here on there are threads.
    let refused = |e| socket_failure(options.socket.as_deref().unwrap_or(Path::new("")), e);
    let device = match bound {
        BoundLink::Device(device) => device,
        BoundLink::VhostUser(listener, path) => {
            let port = vhost_user(options, mtu).one_front_end(options.one_off);
            let port = match path {
                Some(path) => port.accept(listener, path),
                None => port.adopt(listener),
            };
            Box::new(port.map_err(refused)?)
        }
        BoundLink::FrontEnd(stream) => {
            Box::new(vhost_user(options, mtu).over(stream).map_err(refused)?)
        }
    };
    let served = opened.start(device)?;
    let control = asked.start_with(|shown| served.shown(shown))?;
    let api = api.map(|api| api.start(served.ports(), served.guests.clone())).transpose()?;
    let counted = Arc::clone(&served);
    let printed = Printed::new(options.guest.stats, &control, move || counted.report());
    let stop = printed.watch()?;
    if !options.guest.rules.is_empty() {
        let reloaded = Arc::clone(&served);
        signals::on_hangup(move || reloaded.reload_loudly(false))?;
    }
    if !options.quiet {
        crate::failure::complain!("ready");
    }
    background.served()?;
    if let Some(ready) = &mut ready {
        // Standard output stays open, so that a line's end says what the end of other descriptors does.
        let is_standard = options.ready_fd.is_some_and(|fd| fd <= 2);
        // Who no longer listens has no use for the answer.
        let _ = ready.write_all(if is_standard { b"1\n" } else { b"1" });
    }
    drop(ready);
    if let Some(manager) = manager {
        manager.ready();
    }
    let (mut end, mut is_gone) = (Ok(()), false);
    while !stop.is_set() && !is_gone && end.is_ok() {
        let over = is_over(exit.as_ref(), lifetime.as_ref());
        is_gone = over.map_err(|e| Failure::because("waiting", reason(&e)))?;
        end = served.host().check().map_err(|e| Failure::Failed(reason(&e)));
    }
    drop(api);
    printed.at_end();
    if is_gone {
        // Nobody takes data for the guest any more.
        served.finish(SHUTDOWN_TIME);
        served.end(LAST_TIME);
    } else {
        served.end(SHUTDOWN_TIME);
    }
    served.write_learned()?;
    // Whom it was for has gone.
    if is_gone || options.fd.is_some() || options.one_off { Ok(()) } else { end }
}

/// Waits a while. `true`: nobody needs the guest's network any more.
fn is_over(exit: Option<&File>, lifetime: Option<&Lifetime>) -> io::Result<bool> {
    let exit = exit.map(|file| PollFd::new(file, PollFlags::IN));
    let by_exit = exit.is_some();
    let ended = lifetime.map(|lifetime| PollFd::new(lifetime, PollFlags::IN));
    let mut watched: Vec<PollFd<'_>> = exit.into_iter().chain(ended).collect();
    let a_while = Timespec::try_from(PROXY_CHECK_TIME).unwrap_or_default();
    match poll(&mut watched, Some(&a_while)) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(e) => return Err(e.into()),
    }
    let exits = by_exit && watched.first().is_some_and(|fd| !fd.revents().is_empty());
    Ok(exits || lifetime.is_some_and(Lifetime::is_over))
}

/// A socket that was opened for the guest before this process.
enum Given {
    Connected(UnixStream),
    /// At --socket: a service manager's.
    Bound(OwnedFd),
}

/// A link, as far as it can be made without threads.
enum BoundLink {
    Device(Box<dyn Device>),
    /// With its path, if the socket is our own.
    VhostUser(UnixListener, Option<PathBuf>),
    FrontEnd(UnixStream),
}

/// The link, and how long it is needed if that is known.
fn bind(
    options: &GatewayOptions,
    given: Option<Given>,
    network: &GuestNetwork,
) -> Result<(BoundLink, Option<Lifetime>), Failure> {
    let mtu = network.mtu as usize;
    let path = options.socket.as_deref().unwrap_or(Path::new(""));
    let refused = |e| socket_failure(path, e);
    let device: Box<dyn Device> = match (options.link, given) {
        (GuestLink::Tap, _) => {
            let (tap, lifetime) = tap(options, network)?;
            return Ok((BoundLink::Device(Box::new(tap)), lifetime));
        }
        (GuestLink::Stream, given) => {
            let link = StreamLink::builder().mtu(mtu).one_peer(options.one_off);
            let link = match options.guest.mac {
                Some(mac) => link.mac(mac),
                None => link,
            };
            let link = match given {
                Some(Given::Connected(stream)) => link.over(stream),
                Some(Given::Bound(listener)) => link.adopt(listener.into()),
                None => link.listen(path),
            };
            Box::new(link.map_err(refused)?)
        }
        (GuestLink::Datagram, given) => {
            let link = DatagramLink::builder().mtu(mtu);
            let link = match options.guest.mac {
                Some(mac) => link.mac(mac),
                None => link,
            };
            let link = match given {
                Some(Given::Bound(socket)) => link.adopt(socket.into()),
                _ => link.bind(path),
            };
            Box::new(link.map_err(refused)?)
        }
        (GuestLink::VhostUser, Some(Given::Connected(stream))) => {
            return Ok((BoundLink::FrontEnd(stream), None));
        }
        (GuestLink::VhostUser, Some(Given::Bound(listener))) => {
            return Ok((BoundLink::VhostUser(listener.into(), None), None));
        }
        (GuestLink::VhostUser, None) => {
            let listener = VhostUserBuilder::bind(path).map_err(refused)?;
            return Ok((BoundLink::VhostUser(listener, Some(path.to_owned())), None));
        }
    };
    Ok((BoundLink::Device(device), None))
}

fn vhost_user(options: &GatewayOptions, mtu: usize) -> VhostUserBuilder {
    let port = VhostUser::builder().mtu(mtu);
    match options.guest.mac {
        Some(mac) => port.mac(mac),
        None => port,
    }
}

fn tap(
    options: &GatewayOptions,
    network: &GuestNetwork,
) -> Result<(Tap, Option<Lifetime>), Failure> {
    let name = options.tap.as_deref().or(network.copied.as_deref()).unwrap_or("pw0");
    let mut builder = TapBuilder::new();
    if let Some(mac) = options.guest.mac {
        builder = builder.mac(mac);
    }
    let Some(place) = &options.netns else {
        let mut builder = builder.name(name).mtu(network.mtu as usize);
        if let Some(mac) = options.guest.tap_mac {
            builder = builder.host_mac(mac);
        }
        return Ok((builder.open()?, None));
    };
    let place = namespace(place)?;
    let inside = network.inside(name, options.no_configure);
    let made = netns::tap_in(&place, options.userns.as_deref(), &inside);
    let (parts, lifetime) = made.map_err(|e| Failure::Failed(e.to_string()))?;
    Ok((builder.adopt(parts)?, Some(lifetime).filter(|_| !options.keep)))
}

/// The namespace of `--netns`.
fn namespace(place: &Path) -> Result<Namespace, Failure> {
    match place.to_str().and_then(|text| text.parse::<u32>().ok()) {
        Some(id) if !Path::new("/proc").join(id.to_string()).exists() => {
            Err(Failure::misused(format!("--netns {id}"), "there is no such process"))
        }
        Some(id) => Ok(Namespace::Process(id)),
        None if fs::metadata(place).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) => {
            let mut why = "there is no such file".to_owned();
            if place.components().count() == 1 {
                why += &format!("; a name of `ip netns` is /run/netns/{}", place.display());
            }
            Err(Failure::because(format!("--netns {}", place.display()), why))
        }
        None => Ok(Namespace::Path(place.to_owned())),
    }
}

/// Sockets in the guest's namespace, if the options need some.
fn sockets_inside(options: &GatewayOptions) -> Result<Option<NsSockets>, Failure> {
    match &options.netns {
        Some(place) if guest::needs_sockets_inside(&options.guest) => {
            let made = NsSockets::of(&namespace(place)?, options.userns.as_deref());
            Ok(Some(made.map_err(|e| Failure::Failed(e.to_string()))?))
        }
        _ => Ok(None),
    }
}

/// A connected socket that the caller has opened for the guest's frames.
fn take_link(inherited: &mut Inherited, number: u32) -> Result<UnixStream, Failure> {
    let is_stream = |file: &File| {
        let kind = rustix::net::sockopt::socket_type(file);
        kind == Ok(rustix::net::SocketType::STREAM) && rustix::net::getpeername(file).is_ok()
    };
    let file = inherited.take(number).filter(is_stream).ok_or_else(|| {
        let hint = "name an open descriptor of a connected Unix stream socket";
        Failure::misused(format!("--fd {number}"), hint)
    })?;
    Ok(OwnedFd::from(file).into())
}

/// A descriptor that the caller has opened for us to write to.
fn take_ready(inherited: &mut Inherited, number: u32) -> Result<File, Failure> {
    let is_open = |file: &File| {
        let way = fcntl_getfl(file).unwrap_or(OFlags::empty()) & OFlags::RWMODE;
        way == OFlags::WRONLY || way == OFlags::RDWR
    };
    inherited.take(number).filter(is_open).ok_or_else(|| {
        let hint = "name a descriptor that is open for writing, of a pipe, a socket or a file";
        Failure::misused(format!("--ready-fd {number}"), hint)
    })
}

/// A descriptor by whose other end the caller ends us.
fn take_exit(inherited: &mut Inherited, number: u32) -> Result<File, Failure> {
    inherited.take(number).ok_or_else(|| {
        let hint = "name an open descriptor, such as the end of a pipe that is read from";
        Failure::misused(format!("--exit-fd {number}"), hint)
    })
}

/// Options of one kind of link, given with another.
fn check(options: &GatewayOptions) -> Result<(), Failure> {
    let usage = |text: &str| Err(Failure::Usage(text.into()));
    let is_tap = options.link == GuestLink::Tap;
    match options {
        _ if is_tap && options.socket.is_some() => {
            usage("--socket needs --link vhost-user, stream or datagram")
        }
        _ if is_tap && options.fd.is_some() => usage("--fd needs --link stream or vhost-user"),
        _ if options.link == GuestLink::Datagram && options.fd.is_some() => {
            usage("--fd needs --link stream or vhost-user")
        }
        _ if options.link == GuestLink::Datagram && options.one_off => {
            usage("--one-off needs --link stream or vhost-user: datagrams have no end")
        }
        _ if options.no_configure && options.netns.is_none() => {
            usage("--no-configure needs --netns")
        }
        _ if !is_tap && options.fd.is_none() && options.socket.is_none() => usage(
            "--socket PATH is missing: where the guest is to be plugged in, such as \
             --socket /tmp/pw.sock",
        ),
        _ if !is_tap && options.tap.is_some() => usage("--tap needs --link tap"),
        _ if !is_tap && options.netns.is_some() => usage("--netns needs --link tap"),
        _ => Ok(()),
    }
}
