//! [`Publish`]: published ports, which are sockets of this machine whose clients reach the guest.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{bind, connect, ipproto, listen, socket_with, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::PUBLISHED_BACKLOG;
use crate::request::Protocol;
use crate::splice::{Except, Follow, Listens};

/// Ports to publish: `[HOSTADDRESS:]PORT[:GUESTPORT][/udp]`, where a port may be a range, or
/// `PATH:GUESTPORT` for a Unix socket (a path has a slash), or `auto[,~PORTS][/udp]` for all ports on which programs in
/// the guest's namespace listen, as long as they do (needs [`GuestConfig::inside`](crate::GuestConfig::inside)).
///
/// ```
/// use pagewire_gateway::Publish;
/// for text in ["8080", "8080:80", "127.0.0.1:8080:80", "[::1]:53:5353/udp", "8000-8009:9000-9009", "8000-8009,~8003,~8005-8006/udp", "auto,~22", "all"] {
///     let publish: Publish = text.parse()?;
///     assert_eq!(publish.to_string(), text);
/// }
/// let socket: Publish = "/run/guest.sock:80".parse()?;
/// # Ok::<(), pagewire_gateway::PublishError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    on: On,
    to: u16,
    /// The guest's address; `None`: the first that is known.
    guest: Option<IpAddr>,
    protocol: Protocol,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum On {
    /// Ports of an address; `None`: of all addresses.
    Ports {
        address: Option<IpAddr>,
        first: u16,
        last: u16,
        /// Ports of this machine that are left out.
        except: Except,
    },
    /// All ports of this machine that are free when they are opened, but these and those that the kernel chooses for
    /// connections.
    All {
        except: Except,
    },
    Unix(PathBuf),
    /// The ports on which programs in the guest's namespace listen, but these.
    Auto {
        except: Except,
    },
}

/// The text does not say what to publish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot publish '{text}': {why}; write it as in 8080:80, 127.0.0.1:8080:80, 5353:53/udp, \
     8000-8009:9000-9009,~8003, auto,~22, all,~22 or /run/guest.sock:80"
)]
pub struct PublishError {
    text: String,
    why: &'static str,
}

/// An open socket for clients, not served yet; see [`Publish::open`].
#[derive(Debug)]
pub struct OpenPort {
    pub(crate) socket: OwnedFd,
    /// The port of the guest.
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    /// The socket's own address, by which clients of an unnamed port find it.
    pub(crate) local: Option<SocketAddr>,
    /// The address of the guest; `None`: the first that is known.
    pub(crate) guest: Option<IpAddr>,
    /// The socket need not be served: another one stands for it.
    pub(crate) optional: bool,
    pub(crate) path: Option<Unlink>,
}

impl OpenPort {
    /// The socket's address; none for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.local
    }
}

/// A port of this machine that is open, and the guest's that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PublishedPort {
    /// TCP, or UDP.
    pub protocol: Protocol,
    /// The socket's address.
    pub host: SocketAddr,
    /// The guest's.
    pub guest: SocketAddr,
}

impl PublishedPort {
    /// The port with these addresses.
    pub fn new(protocol: Protocol, host: SocketAddr, guest: SocketAddr) -> Self {
        Self { protocol, host, guest }
    }
}

/// Removes the path of a Unix socket when it is dropped.
#[derive(Debug)]
pub(crate) struct Unlink(PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Publish {
    /// Has clients reach this address of the guest.
    #[must_use]
    pub fn to_guest(self, address: IpAddr) -> Self {
        Self { guest: Some(address), ..self }
    }

    /// Opens the sockets, before a guest serves them ([`Guest::serve`](crate::Guest::serve)):
    /// several for a range, or for all addresses of both versions of IP. For processes that give up
    /// their right to open sockets.
    ///
    /// # Errors
    /// `AddrInUse`, `PermissionDenied` and the like.
    pub fn open(&self) -> io::Result<Vec<OpenPort>> {
        let (address, first, last) = match &self.on {
            On::Unix(path) => return Ok(vec![self.open_unix(path)?]),
            // They are opened as programs begin to listen.
            On::Auto { .. } => return Ok(Vec::new()),
            On::All { except } => return self.open_free(except),
            On::Ports { address, first, last, .. } => (*address, *first, *last),
        };
        self.open_range(address, (first, last), false)
    }

    /// `both`: a port that another program has for one version of IP is not opened for the other one.
    fn open_range(
        &self,
        address: Option<IpAddr>,
        (first, last): (u16, u16),
        both: bool,
    ) -> io::Result<Vec<OpenPort>> {
        let mut opened = Vec::new();
        for port in (first..=last).filter(|port| !self.leaves_out(*port)) {
            let to = self.to + (port - first);
            match address {
                Some(address) => opened.push(self.open_port((address, port).into(), to)?),
                None => {
                    let first = self.open_port((Ipv4Addr::UNSPECIFIED, port).into(), to)?;
                    let port = first.local.map_or(port, |local| local.port());
                    opened.push(first);
                    match self.open_port((Ipv6Addr::UNSPECIFIED, port).into(), to) {
                        Ok(second) => opened.push(OpenPort { optional: true, ..second }),
                        Err(error) if may_be_without(&error, both) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(opened)
    }

    fn leaves_out(&self, port: u16) -> bool {
        match &self.on {
            On::Ports { except, .. } | On::All { except } | On::Auto { except } => except.has(port),
            On::Unix(_) => false,
        }
    }

    /// Opens the ports that nobody has.
    fn open_free(&self, except: &Except) -> io::Result<Vec<OpenPort>> {
        let chosen = chosen_by_the_kernel();
        let those = || {
            let fits = |port: &u16| !chosen.contains(port) && !except.has(*port);
            (1..=u16::MAX).filter(fits)
        };
        // One for each version of IP, beside those of connections.
        let needed = 2 * those().count() as u64;
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX) / 2;
        if needed > most {
            let text = format!(
                "that takes {needed} descriptors, and this process may have {most} for it: leave ports out, as in \
                 all,~1024-65535, or raise the limit (ulimit -n)"
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        let limits = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
        let mut opened = Vec::new();
        for port in those() {
            match Self::one(port, self.protocol).open_both() {
                Ok(sockets) => opened.extend(sockets),
                Err(e)
                    if [io::ErrorKind::AddrInUse, io::ErrorKind::PermissionDenied]
                        .contains(&e.kind()) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(opened)
    }

    /// One port of all addresses, to the same port of the guest.
    pub(crate) fn one(port: u16, protocol: Protocol) -> Self {
        let (address, except) = (None, Except::default());
        let on = On::Ports { address, first: port, last: port, except };
        Self { on, to: port, guest: None, protocol }
    }

    /// Opens both versions of IP of one port, or neither, but for a version that this machine lacks.
    pub(crate) fn open_both(&self) -> io::Result<Vec<OpenPort>> {
        match self.on {
            On::Ports { address, first, last, .. } => self.open_range(address, (first, last), true),
            _ => self.open(),
        }
    }

    /// Whether these are all free ports of this machine.
    pub fn is_all(&self) -> bool {
        matches!(self.on, On::All { .. })
    }

    /// Whether these are ports that the text names, and no others.
    pub(crate) fn is_named(&self) -> bool {
        matches!(self.on, On::Ports { .. })
    }

    /// Whether these are the ports on which programs in the guest's namespace listen.
    pub fn is_auto(&self) -> bool {
        self.auto().is_some()
    }

    /// The ports that are left out, if this is about all ports of programs in the guest's namespace.
    pub(crate) fn auto(&self) -> Option<&Except> {
        match &self.on {
            On::Auto { except } => Some(except),
            _ => None,
        }
    }

    /// What is followed so.
    pub(crate) fn follow(&self) -> Option<Follow> {
        let except = self.auto()?.clone();
        Some(Follow { side: Listens::Inside, protocol: self.protocol, except })
    }

    /// The guest's address, if it was [given](Self::to_guest).
    pub fn guest(&self) -> Option<IpAddr> {
        self.guest
    }

    /// TCP, or UDP.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The ports of this machine with their address (`None`: all addresses), and the guest's ports that they lead to; none
    /// of a Unix socket, and of ports that follow programs.
    pub fn ports(&self) -> impl Iterator<Item = (Option<IpAddr>, u16, u16)> {
        let (address, first, last) = match self.on {
            On::Ports { address, first, last, .. } => (address, first, last),
            // A range without a port.
            On::Unix(_) | On::Auto { .. } | On::All { .. } => (None, 1, 0),
        };
        let ports = (first..=last).filter(|port| !self.leaves_out(*port));
        ports.map(move |port| (address, port, self.to + (port - first)))
    }

    fn open_port(&self, on: SocketAddr, to: u16) -> io::Result<OpenPort> {
        let family = if on.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (kind, protocol) = match self.protocol {
            Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
            _ => (SocketType::STREAM, ipproto::TCP),
        };
        let socket = socket_with(family, kind, flags, Some(protocol))?;
        if on.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        if self.protocol == Protocol::Tcp {
            sockopt::set_socket_reuseaddr(&socket, true)?;
        }
        bind(&socket, &on)?;
        if self.protocol == Protocol::Tcp {
            listen(&socket, PUBLISHED_BACKLOG)?;
        }
        let local = SocketAddr::try_from(rustix::net::getsockname(&socket)?).ok();
        let (protocol, guest, optional, path) = (self.protocol, self.guest, false, None);
        Ok(OpenPort { socket, port: to, protocol, local, guest, optional, path })
    }

    fn open_unix(&self, path: &PathBuf) -> io::Result<OpenPort> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new(path)?;
        if let Err(error) = bind(&socket, &address) {
            // A connection to the socket of a dead process is refused, and so is one to an ordinary file. Only
            // such a socket is replaced.
            if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
                let text = "there is a file that is no socket; take another path";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            if connect(&probe, &address) != Err(Errno::CONNREFUSED) {
                return Err(error.into());
            }
            std::fs::remove_file(path)?;
            bind(&socket, &address)?;
        }
        listen(&socket, PUBLISHED_BACKLOG)?;
        let path = Some(Unlink(path.clone()));
        let (port, protocol, guest) = (self.to, Protocol::Tcp, self.guest);
        Ok(OpenPort { socket, port, protocol, local: None, guest, optional: false, path })
    }
}

impl FromStr for Publish {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        parse(text).map_err(|why| PublishError { text: text.to_owned(), why })
    }
}

fn parse(text: &str) -> Result<Publish, &'static str> {
    if text.contains('/') && !text.ends_with("/udp") && !text.ends_with("/tcp") {
        let (path, port) = text.rsplit_once(':').ok_or("a path needs a port of the guest")?;
        let to = one_port(port)?;
        let (on, protocol) = (On::Unix(path.into()), Protocol::Tcp);
        return Ok(Publish { on, to, guest: None, protocol });
    }
    let (text, protocol) = match text.rsplit_once('/') {
        Some((rest, "udp")) => (rest, Protocol::Udp),
        Some((rest, _)) => (rest, Protocol::Tcp),
        None => (text, Protocol::Tcp),
    };
    if text == "auto" || text.starts_with("auto,") {
        let (_, except) = Except::split(text)?;
        return Ok(Publish { on: On::Auto { except }, to: 0, guest: None, protocol });
    }
    if text == "all" || text.starts_with("all,") {
        let (_, except) = Except::split(text)?;
        return Ok(Publish { on: On::All { except }, to: 0, guest: None, protocol });
    }
    let (text, except) = Except::split(text)?;
    let (address, ports) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, ports) = rest.split_once("]:").ok_or("no ']:' behind the address")?;
            (Some(address), ports)
        }
        None => match text.split_once(':') {
            Some((address, ports)) if address.contains('.') => (Some(address), ports),
            _ => (None, text),
        },
    };
    let address = address.map(|text| text.parse().map_err(|_| "that is no address")).transpose()?;
    let (host, guest) = ports.split_once(':').unwrap_or((ports, ports));
    let ((first, last), (to, end)) = (range(host)?, range(guest)?);
    if end - to != last - first && end != to {
        return Err("the two ranges differ in length");
    }
    if to.checked_add(last - first).is_none() {
        return Err("the guest's ports would end beyond 65535");
    }
    if to == 0 {
        return Err("the guest's port cannot be 0");
    }
    Ok(Publish { on: On::Ports { address, first, last, except }, to, guest: None, protocol })
}

/// This port of all addresses, of both versions of IP.
pub(crate) fn either_version(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]
}

/// Whether a port of all addresses may do without IPv6: this machine may lack it, and unless `both` are needed, another
/// program may have it.
fn may_be_without(error: &io::Error, both: bool) -> bool {
    let lacks = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| lacks.contains(&number))
        || (!both && error.kind() == io::ErrorKind::AddrInUse)
}

/// The ports that the kernel chooses for connections.
fn chosen_by_the_kernel() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let mut words = text.as_deref().unwrap_or_default().split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first..=last,
        // RFC 6335 section 6.
        _ => 49_152..=u16::MAX,
    }
}

fn range(text: &str) -> Result<(u16, u16), &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (one_port(first)?, one_port(last)?);
    if first > last { Err("a range ends before it begins") } else { Ok((first, last)) }
}

fn one_port(text: &str) -> Result<u16, &'static str> {
    text.parse().map_err(|_| "a port is a number up to 65535")
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports = |f: &mut fmt::Formatter<'_>, first: u16, last: u16| match first == last {
            true => write!(f, "{first}"),
            false => write!(f, "{first}-{last}"),
        };
        match &self.on {
            On::Unix(path) => write!(f, "{}:{}", path.display(), self.to)?,
            On::Auto { except } => write!(f, "auto{except}")?,
            On::All { except } => write!(f, "all{except}")?,
            On::Ports { address, first, last, except } => {
                match address {
                    Some(IpAddr::V4(v4)) => write!(f, "{v4}:")?,
                    Some(IpAddr::V6(v6)) => write!(f, "[{v6}]:")?,
                    None => {}
                }
                ports(f, *first, *last)?;
                if self.to != *first {
                    f.write_str(":")?;
                    ports(f, self.to, self.to + (last - first))?;
                }
                write!(f, "{except}")?;
            }
        }
        if self.protocol == Protocol::Udp { f.write_str("/udp") } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
