//! The sandbox: rights that a gateway gives up once it has all that it needs, so that a guest that finds a bug in
//! it gains little.
//!
//! | given up | by | file |
//! |---|---|---|
//! | files, but the few that are read again | an empty root directory; Landlock | `root.rs`, `files.rs` |
//! | root: its files and the kernel's settings are another user's | user and group | `user.rs` |
//! | core dumps, being traced by other processes of the user | resource limit, `PR_SET_DUMPABLE` | `caps.rs` |
//! | capabilities, also those that programs with the set-user-id bit would give | | `caps.rs` |
//! | abstract Unix sockets; signals | Landlock | `files.rs` |
//! | system calls, but those of a table with a reason each | seccomp | `calls.rs` |
//!
//! [`close_doors`] does it, for the calling thread and those that it starts: it is called after
//! sockets, taps and files are open and before there are other threads. Either the empty root or
//! Landlock must take the files away, otherwise the call fails. What else the kernel cannot do is
//! reported, and the rest is done all the same.

mod calls;
mod caps;
mod files;
mod root;
mod user;

use std::path::PathBuf;

use rustix::process::geteuid;

/// The rights that a gateway still needs in the sandbox.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SandboxPlan {
    /// Files and directories that it reads again. Those that do not exist are left out.
    pub read: Vec<PathBuf>,
    /// The process listens on further TCP ports.
    pub listens: bool,
    /// If root started the process, some of these ports may be below 1024.
    pub low_ports: bool,
    /// The process joins connections between sockets of the kernel.
    pub splices: bool,
    /// The process binds connections to a source address, with a port of the kernel's choice.
    pub source: bool,
    /// Directories in which it makes Unix sockets, and removes files.
    pub sockets: Vec<PathBuf>,
    /// The process sends to Unix sockets whose paths it learns later, as a
    /// `DatagramLink` does. So it keeps the root directory, and root its
    /// user: Landlock alone takes the files away.
    pub unix_peers: bool,
    /// The process signals a process that it has started, and waits for it.
    pub child: bool,
    /// Whom root becomes. Without one, a user who owns nothing (65534, `nobody`).
    pub user: Option<SandboxUser>,
}

/// A user with its groups, by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxUser {
    /// The user.
    pub uid: u32,
    /// The group of the user.
    pub gid: u32,
    /// The other groups that it is in.
    pub groups: Vec<u32>,
}

/// Restrictions that could not be applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct SandboxReport {
    /// A line for each, with the reason.
    pub missing: Vec<String>,
}

/// There is no sandbox. What it took before that stays taken: the process is of no further use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// This process still reaches its user's files.
    #[error("files stay in reach: {landlock}; {root}")]
    Files {
        /// Why Landlock does not take them away.
        landlock: String,
        /// Why there is no empty root directory.
        root: String,
    },
    /// Root cannot become the user that [`SandboxPlan::user`] names.
    #[error("root cannot become the user with the number {uid}: {reason}")]
    User {
        /// The user.
        uid: u32,
        /// The system's.
        reason: String,
    },
}

/// Gives up everything but what the plan says. There is no way back.
///
/// # Errors
/// [`SandboxError`] where neither Landlock nor an empty root directory can be had, or where root cannot
/// become the plan's user.
pub fn close_doors(plan: &SandboxPlan) -> Result<SandboxReport, SandboxError> {
    let mut missing = Vec::new();
    let was_root = geteuid().is_root();
    // In this order: each step needs rights, or calls, that the next one gives up.
    let emptied = root::leave(plan);
    caps::limit_other_programs();
    let stays_root = user::leave_root(plan)?;
    // Root reads the secrets that are in the directory of a file that it needs.
    let emptied = emptied.and(stays_root.clone().map_or(Ok(()), Err));
    missing.extend(stays_root);
    missing.extend(caps::no_core_dumps());
    let landlocked = files::restrict(plan);
    let has_empty_root = emptied.is_ok();
    let landlock = match &landlocked {
        Ok(None) => "whole",
        Ok(Some(_)) => "in part",
        Err(_) => "none",
    };
    match (landlocked, emptied) {
        (Ok(partly), Ok(())) => missing.extend(partly),
        (Ok(partly), Err(root)) => {
            tracing::info!("the root directory is not empty: {root}");
            missing.extend(partly);
        }
        (Err(landlock), Ok(())) => missing.push(format!("abstract Unix sockets: {landlock}")),
        (Err(landlock), Err(root)) => return Err(SandboxError::Files { landlock, root }),
    }
    missing.extend(caps::drop_all(plan, was_root && !geteuid().is_root()));
    let calls_restricted = calls::restrict(plan);
    let has_seccomp = calls_restricted.is_none();
    missing.extend(calls_restricted);
    let uid = geteuid().as_raw();
    tracing::info!(uid, has_empty_root, landlock, has_seccomp, "in the sandbox");
    Ok(SandboxReport { missing })
}

/// Gives up all rights of a helper process that makes sockets of a namespace on request: but that to bind ports below
/// 1024 there. Returns what could not be given up.
pub(crate) fn close_doors_of_helper() -> Result<(), String> {
    caps::keep_only_ports()?;
    calls::restrict_helper()?;
    Ok(())
}

/// Directories in which services keep a `resolv.conf`, and nothing that is secret.
const OF_RESOLVERS: [&str; 3] = ["/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager"];

/// The files by which this machine's resolvers are found, for [`SandboxPlan::read`]. They are
/// replaced by renaming, so directories are named: `/etc`, and those of the services that write it.
/// Any other file that `/etc/resolv.conf` leads to is named itself, and followed while it is written
/// in place; so is each where root stays root, for which directories are not read.
pub fn resolver_files() -> Vec<PathBuf> {
    let file = PathBuf::from("/etc/resolv.conf");
    let leads_to = std::fs::canonicalize(&file).ok();
    let services = OF_RESOLVERS.into_iter().map(PathBuf::from);
    [file].into_iter().chain(leads_to).chain(services).chain([PathBuf::from("/etc")]).collect()
}
