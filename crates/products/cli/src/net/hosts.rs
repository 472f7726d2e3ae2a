//! [`Hosts`]: the host of a command, on one core or on several.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use pagewire::{
    BindOptions, ConnectOptions, Cores, Device, Host, HostBuilder, Link, LinkId, StartError,
    TcpListener, TcpStream,
};
use pagewire_control as control;

use crate::failure::Failure;

/// A host that runs.
#[derive(Clone)]
pub(crate) enum Hosts {
    /// A host of one core.
    One(Host),
    /// A host with a shard on each core.
    Several(Cores),
}

impl Hosts {
    /// Starts a host on these queues of one device: one for each core, or one for all.
    pub(super) fn start(
        builder: HostBuilder,
        queues: Vec<Box<dyn Device>>,
        cores: usize,
    ) -> Result<Self, Failure> {
        if cores > 1 {
            return Ok(Self::Several(builder.cores(cores).device_queues(queues).start()?));
        }
        let builder = queues.into_iter().fold(builder, HostBuilder::device);
        Ok(Self::One(builder.start()?))
    }

    /// The host of each core.
    pub(crate) fn shards(&self) -> &[Host] {
        match self {
            Self::One(host) => std::slice::from_ref(host),
            Self::Several(cores) => cores.shards(),
        }
    }

    /// Listens at an address: the listener of each core.
    pub(crate) fn listen(
        &self,
        at: SocketAddr,
        options: &BindOptions,
    ) -> io::Result<Vec<TcpListener>> {
        match self {
            Self::One(host) => Ok(vec![host.listen_with(at, options)?]),
            Self::Several(cores) => Ok(cores.listen_with(at, options)?.shards().to_vec()),
        }
    }

    /// Opens a connection, waiting at most `limit`.
    pub(crate) fn connect_timeout(&self, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
        match self {
            Self::One(host) => host.connect_timeout(to, limit),
            Self::Several(cores) => cores.connect_with(to, &ConnectOptions::new().timeout(limit)),
        }
    }

    /// Checks that no core has lost its device.
    pub(super) fn check(&self) -> io::Result<()> {
        self.shards().iter().try_for_each(Host::check)
    }

    /// Shuts the host down, all cores together.
    pub(super) fn shutdown(&self, limit: Duration) {
        match self {
            Self::One(host) => host.shutdown(limit),
            Self::Several(cores) => cores.shutdown(limit),
        };
    }

    /// Removes a link.
    pub(super) fn remove_link(&self, link: LinkId) {
        match self {
            Self::One(host) => drop(host.remove_link(link)),
            Self::Several(cores) => drop(cores.remove_link(link)),
        }
    }

    /// Adds a link on these queues of one device; `with_addresses` gives the link its settings.
    pub(super) fn add_link(
        &self,
        mut queues: Vec<Box<dyn Device>>,
        with_addresses: impl Fn(Link) -> Link,
    ) -> Result<LinkId, Failure> {
        match self {
            Self::Several(cores) => Ok(cores.add_link(queues, with_addresses)?),
            Self::One(host) => {
                let device = queues.pop().ok_or(StartError::NoDevice)?;
                Ok(host.add_link(with_addresses(Link::new(device)))?)
            }
        }
    }

    /// Shows the host by a control socket, under this name.
    pub(super) fn shown(&self, name: &str, shown: control::Builder) -> control::Builder {
        match self {
            Self::One(host) => shown.host(name, host),
            Self::Several(cores) => shown.cores(name, cores),
        }
    }
}

/// The report of `--stats`.
impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(host) => write!(f, "{}", host.stats()),
            Self::Several(cores) => write!(f, "{}", cores.stats()),
        }
    }
}
