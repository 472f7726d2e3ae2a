//! Takes the socket that the service manager which started this process listens at, as `sd_listen_fds(3)` says.
//!
//! ```text
//!   LISTEN_PID   whom sockets are for: this process, or one that has left its variables to us
//!   LISTEN_FDS   how many there are: the descriptors from 3 on
//! ```

use std::env;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, getsockname};

use crate::args::guest::GuestLink;
use crate::failure::{Failure, plain};
use crate::sys::{Inherited, remove_variables};

/// The first descriptor that a service manager passes.
const FIRST: u32 = 3;

/// Variables of the protocol, also of its later versions.
const VARIABLES: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID"];

const LISTENER: &str = "a listening stream socket";
const DATAGRAM: &str = "a datagram socket";

/// What a service manager has passed to this process: `LISTEN_FDS`, if there is one.
#[derive(Debug)]
pub(crate) struct Passed(Option<String>);

impl Passed {
    /// Reads the variables, and removes them: children are others. To be called before there are threads, and in
    /// the process that was started, since another has another number.
    pub(crate) fn find() -> Self {
        let value = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let passed = Self::of(value("LISTEN_PID"), value("LISTEN_FDS"), std::process::id());
        remove_variables(&VARIABLES);
        passed
    }

    fn of(process: Option<String>, count: Option<String>, own: u32) -> Self {
        Self(count.filter(|_| process.and_then(|text| text.parse().ok()) == Some(own)))
    }

    /// Takes the socket for a link at `path`, if any was passed. It is one, of the link's kind, and bound there.
    pub(crate) fn take(
        self,
        inherited: &mut Inherited,
        link: GuestLink,
        path: Option<&Path>,
    ) -> Result<Option<OwnedFd>, Failure> {
        let Some(count) = self.0.filter(|count| count != "0") else { return Ok(None) };
        let (needed, path) = match (link, path) {
            (GuestLink::Stream | GuestLink::VhostUser, Some(path)) => (LISTENER, path),
            (GuestLink::Datagram, Some(path)) => (DATAGRAM, path),
            _ => {
                let why = "the service manager passed sockets, and this link takes none";
                return Err(Failure::misused("--link tap", why));
            }
        };
        let refused = |found: String| {
            let why = format!(
                "the service manager passed {found}; it has to pass {needed} that is bound to this path, and no other"
            );
            Failure::misused(format!("--socket {}", path.display()), why)
        };
        if count.parse() != Ok(1) {
            return Err(refused(format!("{} sockets", plain(&count))));
        }
        let file = inherited.take(FIRST);
        let file = file.ok_or_else(|| refused(format!("no open descriptor {FIRST}")))?;
        let (kind, at) = judge(&file).map_err(|found| refused(found.into()))?;
        let is_there = at.as_deref().is_some_and(|at| is_same(at, path));
        if kind == needed && is_there {
            return Ok(Some(file.into()));
        }
        let at = at.map_or(" without a path".into(), |at| format!(" at {}", at.display()));
        Err(refused(kind.to_owned() + &at))
    }
}

/// What a descriptor is, and its path; or else, why no link can be over it.
fn judge(file: &File) -> Result<(&'static str, Option<PathBuf>), &'static str> {
    if socket_domain(file) != Ok(AddressFamily::UNIX) {
        return Err("what is no Unix socket");
    }
    let kind = match (socket_type(file), socket_acceptconn(file)) {
        (Ok(SocketType::STREAM), Ok(true)) => LISTENER,
        (Ok(SocketType::STREAM), _) => "a stream socket that does not listen",
        (Ok(SocketType::DGRAM), _) => DATAGRAM,
        _ => "a Unix socket of another kind",
    };
    let address = getsockname(file).ok().and_then(|any| SocketAddrUnix::try_from(any).ok());
    let path = address.as_ref().and_then(SocketAddrUnix::path_bytes);
    let path = path.map(|bytes| Path::new(std::ffi::OsStr::from_bytes(bytes)).to_owned());
    Ok((kind, path))
}

/// Whether both name one file, as far as their text says.
fn is_same(one: &Path, other: &Path) -> bool {
    let absolute = |path| std::path::absolute(path).ok();
    absolute(one).is_some_and(|one| Some(one) == absolute(other))
}

#[cfg(test)]
#[path = "activation_tests.rs"]
mod tests;
