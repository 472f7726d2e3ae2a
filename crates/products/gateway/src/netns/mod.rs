//! Programs and taps in network namespaces of their own, without root.
//!
//! ```text
//!   this process                                    the helper: this program again
//!   InsideNetwork -------- socket pair ------------> enters or makes the namespaces   inside.rs
//!   writes its user map <--------------------------- asks for it
//!   Tap::adopt <------------ descriptors ----------- makes the tap, configures it
//!   a guest of the gateway                           resolv.conf, sysctls             mounts.rs
//!   "go" ------------------------------------------> becomes the program, or ends
//! ```
//!
//! Read [`Program`] (a program whose only network is a tap) and [`tap_in`] (a tap in a namespace
//! that exists) first, then [`NsSockets`] (sockets of a namespace). A process with threads cannot enter a user namespace, so a helper does. It is
//! this program, started again: its `main` begins with [`inside`]:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     if let Some(code) = pagewire_gateway::netns::inside() {
//!         return code;
//!     }
//!     // …
//!     std::process::ExitCode::SUCCESS
//! }
//! ```
//!
//! The program inside keeps its user and group, its directory, its terminal and its files. Its
//! network is the tap, whose other end the gateway has. It still reaches what it reaches by other
//! ways than IP, such as Unix sockets in the file system.

mod helper_socket;
mod inside;
mod lifetime;
mod mounts;
mod outside;
mod ports;
mod program;
mod socket_request;
mod sockets;
pub(crate) mod sys;

use std::fmt;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use pagewire::Cidr;
use pagewire::device::DeviceError;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys::netns_cookie;

pub use inside::inside;
pub use lifetime::Lifetime;
pub use outside::tap_in;
pub use ports::{ListeningPort, ListensAt};
pub use program::{Change, Program, ProgramError};
pub use sockets::NsSockets;

/// Whether the client of a connected Unix socket made its socket in this process's network namespace: it is no program of
/// a guest. `false` where the kernel does not say (before Linux 5.14).
pub fn is_ours(client: BorrowedFd<'_>) -> bool {
    let own = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let Ok(own) = own else { return false };
    match (netns_cookie(client), netns_cookie(own.as_fd())) {
        (Ok(client), Ok(own)) => client == own,
        _ => false,
    }
}

/// The network settings inside of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InsideNetwork {
    /// Name of the tap there, up to 15 bytes.
    pub tap: String,
    /// Largest IP packet, in bytes: 1,280 to 65,521.
    pub mtu: usize,
    /// The addresses with the lengths of their networks, as in `10.0.2.15/24`.
    pub addresses: Vec<String>,
    /// The gateway's addresses for the guest: the ways to everywhere else.
    pub routers: Vec<IpAddr>,
    /// Further routes: networks with the lengths of their prefixes, and the router that leads there; without one, a
    /// network is on the link.
    pub routes: Vec<(Cidr, Option<IpAddr>)>,
    /// The link address of the tap there; `None`: the kernel's choice.
    pub mac: Option<[u8; 6]>,
    /// The state, MTU, addresses and routes of the devices there are left to others.
    pub left_alone: bool,
    /// Domains in which short names are looked up.
    pub search: Vec<String>,
    /// Name servers. Without one, the program sees the host's `resolv.conf`.
    pub resolvers: Vec<IpAddr>,
}

impl InsideNetwork {
    /// The settings as lines of text.
    fn encode(&self) -> String {
        let Self { tap, mtu, addresses, routers, routes, mac, left_alone, resolvers, search } =
            self;
        let mut text = format!("tap {tap}\nmtu {mtu}\n");
        let route = |(to, via): &(Cidr, Option<IpAddr>)| match via {
            Some(via) => format!("route {to} {via}\n"),
            None => format!("route {to}\n"),
        };
        let lines = (addresses.iter().map(|a| format!("address {a}\n")))
            .chain(routers.iter().map(|a| format!("router {a}\n")))
            .chain(routes.iter().map(route))
            .chain(mac.map(|mac| format!("mac {}\n", mac.map(|b| format!("{b:02x}")).concat())))
            .chain(left_alone.then(|| "left alone\n".to_owned()))
            .chain(resolvers.iter().map(|a| format!("resolver {a}\n")))
            .chain(search.iter().map(|domain| format!("search {domain}\n")));
        text.extend(lines);
        text
    }

    fn decode(text: &str) -> Option<Self> {
        let mut network = Self::default();
        for line in text.lines() {
            match line.split_once(' ')? {
                ("tap", name) => network.tap = name.to_owned(),
                ("mtu", bytes) => network.mtu = bytes.parse().ok()?,
                ("address", address) => network.addresses.push(address.to_owned()),
                ("router", address) => network.routers.push(address.parse().ok()?),
                ("route", route) => {
                    let (to, via) = route.split_once(' ').unwrap_or((route, ""));
                    let via = (!via.is_empty()).then(|| via.parse()).transpose().ok()?;
                    network.routes.push((to.parse().ok()?, via));
                }
                ("mac", digits) => network.mac = Some(mac(digits)?),
                ("left", "alone") => network.left_alone = true,
                ("search", domain) => network.search.push(domain.to_owned()),
                ("resolver", address) => network.resolvers.push(address.parse().ok()?),
                _ => return None,
            }
        }
        Some(network)
    }
}

/// A link address of twelve digits.
fn mac(digits: &str) -> Option<[u8; 6]> {
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 12)?;
    let [_, _, mac @ ..] = number.to_be_bytes();
    Some(mac)
}

/// The users of a program's own user namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Users {
    /// Users and groups have the numbers that they have outside.
    #[default]
    Same,
    /// This process's user is root inside, and there is no other, unless this process is root itself.
    Root,
}

/// A network namespace that exists. It is entered by way of the user namespace that owns it: no root is
/// needed if that belongs to the same user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// The namespace of a process.
    Process(u32),
    /// A file such as `/run/netns/NAME`.
    Path(PathBuf),
}

impl Namespace {
    /// Opens the namespace's file, and that of the user namespace if one is named. This process does so, and not the
    /// helper, to which `/proc/self` would mean another process.
    fn open(&self, user: Option<&Path>) -> Result<Vec<OwnedFd>, NetnsError> {
        let open = |path: &Path| match File::open(path) {
            Ok(file) => Ok(file.into()),
            Err(e) => {
                let advice = match e.kind() {
                    io::ErrorKind::PermissionDenied => inside::not_permitted(),
                    _ => "",
                };
                let path = path.display();
                Err(NetnsError::Inside(format!("enter the namespace {path}{advice}: {e}")))
            }
        };
        // A single file is opened: by the next open, the number may be another process's.
        let net = match self {
            Self::Process(id) => open(Path::new(&format!("/proc/{id}/ns/net")))?,
            Self::Path(path) => open(path)?,
        };
        Ok([net].into_iter().chain(user.map(open).transpose()?).collect())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(id) => write!(f, "/proc/{id}/ns/net"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// Why there is no program, or no tap.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetnsError {
    /// A setting makes no sense; the text says which.
    #[error("{0}")]
    Config(String),
    /// The helper could not do its part; the text says what, why, and what to do.
    #[error("{0}")]
    Inside(String),
    /// The helper ended without a word: it was killed, or this program's `main` does not begin with
    /// [`inside`].
    #[error("the helper process ended early")]
    HelperEnded,
    /// This process could not do its part.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl NetnsError {
    fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

impl From<DeviceError> for NetnsError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Config(text) => Self::Config(text),
            other => Self::Inside(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
