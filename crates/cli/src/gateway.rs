//! `pagewire gateway`: the network of a guest that another program runs.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use pagewire_device::{
    DatagramLink, Device, StreamLink, Tap, TapBuilder, VhostUser, VhostUserBuilder,
};
use pagewire_gateway::netns::{self, Namespace};
use pagewire_gateway::sandbox::SandboxPlan;

use crate::args::guest::{GatewayOptions, GuestLink};
use crate::failure::{Failure, reason, socket_failure};
use crate::guest::{self, GuestNetwork};
use crate::limits::{PROXY_LOOK, SHUTDOWN_TIME};
use crate::signals;

/// Runs until an interrupt, or until the device is lost.
pub(crate) fn run(options: &GatewayOptions) -> Result<(), Failure> {
    check(options)?;
    let networks = guest::networks(&options.guest)?;
    let bound = bind(options, &networks)?;
    let mut ready = options.ready_fd.map(open_ready).transpose()?;
    // The kernel in a namespace has its addresses from the helper that made the tap.
    let opened = guest::open(&options.guest, &networks, options.netns.is_none())?;
    guest::close_doors(&options.guest, SandboxPlan::default());

    // From here on there are threads.
    let device = match bound {
        Bound::Device(device) => device,
        Bound::VhostUser(listener, path) => {
            let port = VhostUser::builder().mtu(options.guest.mtu as usize);
            let port = port.accept(listener, &path).map_err(|e| socket_failure(&path, e))?;
            Box::new(port)
        }
    };
    let served = Arc::new(opened.start(device)?);
    let shown = Arc::clone(&served);
    let stop = signals::watch(move || eprint!("{}", shown.report()))?;
    eprintln!("ready");
    if let Some(ready) = &mut ready {
        ready.write_all(b"ready\n").map_err(|e| Failure::because("--ready-fd", reason(&e)))?;
    }
    drop(ready);
    let mut end = Ok(());
    while stop.proceed() && end.is_ok() {
        thread::park_timeout(PROXY_LOOK);
        end = served.host().check().map_err(|e| Failure::Failed(reason(&e)));
    }
    if options.guest.stats {
        eprint!("{}", served.report());
    }
    served.end(SHUTDOWN_TIME);
    end
}

/// A link, as far as it can be made without threads.
enum Bound {
    Device(Box<dyn Device>),
    VhostUser(UnixListener, PathBuf),
}

fn bind(options: &GatewayOptions, networks: &[GuestNetwork]) -> Result<Bound, Failure> {
    let mtu = options.guest.mtu as usize;
    let path = options.socket.as_deref().unwrap_or(Path::new(""));
    let refused = |e| socket_failure(path, e);
    let device: Box<dyn Device> = match options.link {
        GuestLink::Tap => Box::new(tap(options, networks)?),
        GuestLink::Stream => {
            Box::new(StreamLink::builder().mtu(mtu).listen(path).map_err(refused)?)
        }
        GuestLink::Datagram => {
            Box::new(DatagramLink::builder().mtu(mtu).bind(path).map_err(refused)?)
        }
        GuestLink::VhostUser => {
            let listener = VhostUserBuilder::bind(path).map_err(refused)?;
            return Ok(Bound::VhostUser(listener, path.to_owned()));
        }
    };
    Ok(Bound::Device(device))
}

fn tap(options: &GatewayOptions, networks: &[GuestNetwork]) -> Result<Tap, Failure> {
    let name = options.tap.as_deref().unwrap_or("pw0");
    let Some(place) = &options.netns else {
        return Ok(Tap::builder(name).mtu(options.guest.mtu as usize).open()?);
    };
    let place = match place.to_str().and_then(|text| text.parse().ok()) {
        Some(id) => Namespace::Process(id),
        None => Namespace::Path(place.clone()),
    };
    let network = guest::inside(&options.guest, name, networks);
    let parts = netns::tap_in(&place, &network).map_err(|e| Failure::Failed(e.to_string()))?;
    Ok(TapBuilder::new().adopt(parts)?)
}

/// A descriptor that the caller has opened for us to write to.
fn open_ready(number: u32) -> Result<File, Failure> {
    let file = File::options().write(true).open(format!("/proc/self/fd/{number}"));
    file.map_err(|e| {
        let hint = "name a descriptor that is open for writing, of a pipe or a file";
        Failure::misused(format!("--ready-fd {number}"), format!("{}; {hint}", reason(&e)))
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
        _ if !is_tap && options.socket.is_none() => usage(
            "--socket PATH is missing: where the guest is to be plugged in, such as \
             --socket /tmp/pw.sock",
        ),
        _ if !is_tap && options.tap.is_some() => usage("--tap needs --link tap"),
        _ if !is_tap && options.netns.is_some() => usage("--netns needs --link tap"),
        _ => Ok(()),
    }
}
