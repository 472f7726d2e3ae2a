//! What a gateway gives up once it has all that it needs: a guest that finds a bug in it finds
//! little behind it.
//!
//! | given up | by | file |
//! |---|---|---|
//! | core dumps, being traced by other processes of the user | resource limit, `PR_SET_DUMPABLE` | `caps.rs` |
//! | capabilities, also those that programs with the set-user-id bit would give | | `caps.rs` |
//! | files, but the few that are read again; abstract Unix sockets; signals | Landlock | `files.rs` |
//! | system calls, but those of a table with a reason each | seccomp | `calls.rs` |
//!
//! [`close_doors`] does it, for the calling thread and those that it starts: it is called after
//! sockets, taps and files are open and before there are other threads. What the kernel cannot do is
//! reported, and the rest is done all the same.

mod calls;
mod caps;
mod files;

use std::path::PathBuf;

/// What a gateway needs later.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SandboxPlan {
    /// Files and directories that it reads again. Those that do not exist are left out.
    pub read: Vec<PathBuf>,
    /// It listens on further TCP ports.
    pub listens: bool,
    /// Directories in which it makes Unix sockets, and removes files.
    pub sockets: Vec<PathBuf>,
    /// Directories in which it removes files, and makes none.
    pub remove: Vec<PathBuf>,
    /// It signals a process that it has started, and waits for it.
    pub child: bool,
}

/// What could not be given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct SandboxReport {
    /// A line for each, with the reason.
    pub missing: Vec<String>,
}

/// Gives up everything but what the plan says. There is no way back.
pub fn close_doors(plan: &SandboxPlan) -> SandboxReport {
    let mut missing = Vec::new();
    missing.extend(caps::no_core_dumps());
    // In this order: each step needs rights, or calls, that the next one gives up.
    missing.extend(files::restrict(plan));
    missing.extend(caps::drop_all());
    missing.extend(calls::restrict(plan));
    SandboxReport { missing }
}

/// The files by which this machine's resolvers are found, for [`SandboxPlan::read`]. They are
/// replaced by renaming, so directories are named: that which `/etc/resolv.conf` leads to, and those
/// of the services that write it. `/etc` itself, where it is an ordinary file, is named for ordinary
/// users only: root would read its secrets, so there only a file that is written in place is followed.
pub fn resolver_files() -> Vec<PathBuf> {
    let etc = PathBuf::from("/etc");
    let file = etc.join("resolv.conf");
    let leads_to =
        std::fs::canonicalize(&file).ok().and_then(|file| Some(file.parent()?.to_owned()));
    let services = ["/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager"];
    let mut all: Vec<PathBuf> = services.into_iter().map(PathBuf::from).collect();
    all.extend(leads_to.filter(|directory| *directory != etc));
    all.push(if rustix::process::geteuid().is_root() { file } else { etc });
    all
}
