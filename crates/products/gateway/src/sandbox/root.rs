//! An empty root directory: a file that is not in there has no name for this process.
//!
//! ```text
//!   /proc/self/fd          this process's descriptors, to tell of what kind they are
//!   /etc, /run/…           what the plan reads again: mounted from the old root, for reading only
//! ```
//!
//! Root makes it in a mount namespace of its own. Others need a user namespace around that.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::{chdir, getegid, geteuid, pivot_root};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities};

use super::SandboxPlan;
use crate::limits::PATH_LINKS;
use crate::netns::sys::unshare;

/// Flags of the new root: no programs, no devices, no writes.
const SEALED: MountFlags =
    MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC).union(MountFlags::RDONLY);

/// Directories over which the new root can be mounted: every system has some of them.
const BASES: [&str; 4] = ["/sys", "/mnt", "/tmp", "/usr"];

/// Moves this thread, and those that it starts, to an empty root directory.
pub(super) fn leave(plan: &SandboxPlan) -> Result<(), String> {
    if plan.unix_peers {
        return Err("the root directory is kept for the guest's Unix socket".into());
    }
    let own = [PathBuf::from("/proc/self/fd")];
    let all: Vec<(&PathBuf, bool)> = (own.iter().chain(&plan.read).map(|path| (path, false)))
        .chain(plan.sockets.iter().map(|path| (path, true)))
        .collect();
    let free = |dir: &&Path| dir.is_dir() && !all.iter().any(|(path, _)| path.starts_with(dir));
    let base = BASES.iter().map(Path::new).find(free);
    let base = base.ok_or("there is no place to make an empty root directory at")?;
    let step = |what: &str| {
        let what = what.to_owned();
        move |e: io::Error| format!("{what}: {e}")
    };
    new_mounts().map_err(step("make a mount namespace"))?;
    make(base).map_err(step("mount an empty directory"))?;
    for (path, writable) in all {
        bind_into(base, path, writable)
            .or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
            .map_err(step(&format!("mount {}", path.display())))?;
    }
    enter(base).map_err(step("change the root directory"))
}

fn new_mounts() -> io::Result<()> {
    if capabilities(None)?.effective.contains(CapabilitySet::SYS_ADMIN) {
        return unshare(UnshareFlags::NEWNS);
    }
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        // In a user namespace of its own it would stay the files' owner.
        return Err(io::Error::other("root needs CAP_SYS_ADMIN for that"));
    }
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{0} {0} 1\n", user.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("{0} {0} 1\n", group.as_raw()))
}

/// Begins the new root, over `base`.
fn make(base: &Path) -> io::Result<()> {
    // Later mounts of the host beneath a directory that is read appear, and none of ours go back.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let flags = SEALED.difference(MountFlags::RDONLY);
    mount("tmpfs", base, "tmpfs", flags, Some(c"mode=0755"))?;
    // Files that are read again are mostly in one of these.
    ["etc", "run"].iter().try_for_each(|name| passable(&base.join(name)))
}

/// Mounts `path` at the same path in the new root, with the symbolic links that lead to it.
fn bind_into(base: &Path, path: &Path, writable: bool) -> io::Result<()> {
    let names = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
    };
    let in_root = |at: &Path| base.join(at.strip_prefix("/").unwrap_or(at));
    let (mut left, mut at, mut links) = (names(path), PathBuf::from("/"), 0);
    while let Some(name) = left.pop() {
        let here = match Path::new(&name).components().next() {
            Some(Component::Normal(name)) => at.join(name),
            Some(Component::RootDir) => PathBuf::from("/"),
            Some(Component::ParentDir) => at.parent().unwrap_or(Path::new("/")).to_owned(),
            _ => at.clone(),
        };
        if let Ok(target) = fs::read_link(&here) {
            links += 1;
            if links > PATH_LINKS {
                return Err(io::ErrorKind::NotFound.into());
            }
            unless_there(symlink(&target, in_root(&here)))?;
            left.extend(names(&target));
            continue;
        }
        let is_dir = fs::metadata(&here)?.is_dir();
        let new = in_root(&here);
        if here != Path::new("/") {
            unless_there(if is_dir { passable(&new) } else { File::create_new(&new).map(drop) })?;
        }
        at = here;
    }
    let new = in_root(&at);
    mount_bind_recursive(&at, &new)?;
    let flags = if writable { SEALED.difference(MountFlags::RDONLY) } else { SEALED };
    Ok(mount_remount(&new, MountFlags::BIND | flags, c"")?)
}

/// Makes a directory that everybody may go through, whatever the mask says: root becomes another user.
fn passable(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Accepts that a directory is there already, made for an earlier path.
fn unless_there(made: io::Result<()>) -> io::Result<()> {
    made.or_else(|e| if e.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })
}

fn enter(base: &Path) -> io::Result<()> {
    mount_remount(base, MountFlags::BIND | SEALED, c"")?;
    chdir(base)?;
    // The old root lies over the new one for a moment.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}
