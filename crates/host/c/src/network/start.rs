//! Starting a network: the device, the host, the table of descriptors.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagewire::device::{
    DatagramLink, DeviceError, Frames, FramesConfig, FramesEnd, PairConfig, PairEnd, Queues,
    StreamLink, VhostUser,
};
use pagewire::{Cidr, Device, Host, Pair, StartError, Tap};
use pagewire_posix::{Descriptors, Errno};

use super::Network;
use super::numbering::Reserved;
use crate::boundary::{Failure, Result};
use crate::config::{self, LinkKind};

/// The second ends of pairs whose first end has a network, by name.
static PAIRS: Mutex<Option<HashMap<String, PairEnd>>> = Mutex::new(None);

/// Most receive queues of a link, as a tap has.
const MOST_QUEUES: usize = 16;

/// Starts the network that will have this index.
pub(super) fn start(config: &config::Network, index: usize) -> Result<Network> {
    // Before the device: a pair's end is taken once.
    for address in &config.addresses {
        cidr(address)?;
    }
    for (to, by) in &config.routes {
        cidr(to)?;
        ip(by)?;
    }
    config.gateways.iter().try_for_each(|gateway| ip(gateway))?;
    let (device, frames) = device(config)?;
    let device = match config.queues {
        Some(queues @ 1..=MOST_QUEUES) => Box::new(Queues::new(device, queues)),
        Some(_) => return Err(Failure::new(Errno::INVAL, format!("queues: 1 to {MOST_QUEUES}"))),
        None => device,
    };
    let mut builder = Host::builder().device(device);
    for address in &config.addresses {
        builder = builder.address(address.as_str());
    }
    for gateway in &config.gateways {
        builder = builder.gateway(gateway);
    }
    for (to, by) in &config.routes {
        builder = builder.route(to, by);
    }
    if let Some(us) = config.spin_us {
        builder = builder.spin(Duration::from_micros(us));
    }
    if let Some(bytes) = config.memory {
        builder = builder.memory(bytes);
    }
    let host = builder.start()?;
    let files = Descriptors::with_numbering(host, Box::new(Reserved::new(index)));
    let stats = config.stats.as_ref().map(PathBuf::from);
    Ok(Network { files, frames: frames.map(Mutex::new), stats })
}

fn cidr(text: &str) -> Result<()> {
    let wrong = |why| Failure::new(Errno::INVAL, format!("address {text:?}: {why}"));
    text.parse::<Cidr>().map(drop).map_err(wrong)
}

fn ip(text: &str) -> Result<()> {
    let wrong = |why| Failure::new(Errno::INVAL, format!("gateway {text:?}: {why}"));
    text.parse::<IpAddr>().map(drop).map_err(wrong)
}

type Opened = (Box<dyn Device>, Option<FramesEnd>);

/// Sets what the text names of a builder's `mtu` and `mac`.
macro_rules! set {
    ($builder:expr, $config:expr) => {{
        let mut builder = $builder;
        if let Some(mtu) = $config.mtu {
            builder = builder.mtu(mtu);
        }
        if let Some(mac) = $config.mac {
            builder = builder.mac(mac);
        }
        builder
    }};
}

fn device(config: &config::Network) -> Result<Opened> {
    let alone = |device: Box<dyn Device>| Ok((device, None));
    match &config.link {
        LinkKind::Tap(name) => {
            let tap = set!(Tap::builder(name), config).host_addresses(&config.host_addresses);
            alone(Box::new(tap.open()?))
        }
        LinkKind::VhostUser(path) => {
            alone(Box::new(set!(VhostUser::builder(), config).listen(path)?))
        }
        LinkKind::Stream(path) => {
            alone(Box::new(set!(StreamLink::builder(), config).listen(path)?))
        }
        LinkKind::Datagram(path) => {
            alone(Box::new(set!(DatagramLink::builder(), config).bind(path)?))
        }
        LinkKind::Frames => {
            let defaults = FramesConfig::default();
            let (mtu, mac) =
                (config.mtu.unwrap_or(defaults.mtu), config.mac.unwrap_or(defaults.mac));
            let (device, end) = Frames::new(FramesConfig { mtu, mac, ..defaults })?;
            Ok((Box::new(device), Some(end)))
        }
        LinkKind::Pair(name) => alone(Box::new(pair(name, config)?)),
    }
}

/// The end of a pair: a new pair's first, or the second of the pair with this name.
fn pair(name: &str, config: &config::Network) -> Result<PairEnd> {
    let mut pairs = PAIRS.lock().unwrap_or_else(PoisonError::into_inner);
    let pairs = pairs.get_or_insert_default();
    pairs.retain(|_, end| !end.is_peer_gone());
    if let Some(end) = pairs.remove(name) {
        if config.mtu.is_some() || config.mac.is_some() {
            let why = "mtu and mac of a pair are those of its first network";
            pairs.insert(name.to_owned(), end);
            return Err(Failure::new(Errno::INVAL, why));
        }
        return Ok(end);
    }
    let mut of = PairConfig::default();
    of.mtu = config.mtu.unwrap_or(of.mtu);
    of.macs[0] = config.mac.unwrap_or(of.macs[0]);
    let (first, second) = Pair::with(of)?;
    pairs.insert(name.to_owned(), second);
    Ok(first)
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        let errno = match &error {
            DeviceError::System { source, .. } => source.raw_os_error(),
            DeviceError::Closed => Some(libc::ENODEV),
            _ => Some(libc::EINVAL),
        };
        Self::new(errno.map_or(Errno::IO, Errno::from_raw_os_error), error)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let errno = match &error {
            StartError::System(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
            _ => Errno::INVAL,
        };
        Self::new(errno, error)
    }
}
