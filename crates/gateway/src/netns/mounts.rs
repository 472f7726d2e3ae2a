//! The files of the program's own mount namespace that say where names are resolved.
//!
//! ```text
//!   /etc/resolv.conf (wherever it leads)   a file of ours, in memory, mounted over it
//!   /run/systemd/resolve, /run/nscd, …     empty: sockets by which the C library would ask the
//!                                          host's resolver, past the gateway
//! ```
//!
//! All else stays the host's, and later mounts of the host appear here too.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

/// Directories of sockets at which the host's resolvers listen.
const RESOLVER_SOCKETS: [&str; 4] =
    ["/run/systemd/resolve", "/run/nscd", "/var/run/nscd", "/run/avahi-daemon"];

/// The file that the C library reads.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Makes this mount namespace resolve names by `resolvers`. Returns what could not be done.
pub(super) fn resolve_by(resolvers: &[IpAddr]) -> io::Result<Vec<String>> {
    let whole = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", whole)?;
    let lines = resolvers.iter().map(|address| format!("nameserver {address}\n"));
    let text: String =
        ["# by pagewire: the gateway\n".to_owned()].into_iter().chain(lines).collect();
    let target = fs::canonicalize(RESOLV_CONF);
    let mut written = false;
    let mut covered: Vec<PathBuf> = Vec::new();
    for directory in RESOLVER_SOCKETS.iter().filter_map(|path| fs::canonicalize(path).ok()) {
        if covered.contains(&directory) || !directory.is_dir() {
            continue;
        }
        cover(&directory)?;
        if let Ok(target) = &target
            && target.starts_with(&directory)
        {
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            write(target, &text)?;
            written = true;
        }
        covered.push(directory);
    }
    match target {
        Ok(_) if written => Ok(Vec::new()),
        Ok(target) => replace(&target, &text).map(|()| Vec::new()),
        Err(e) => {
            let note =
                format!("{RESOLV_CONF}: {e}; programs do not find the gateway's name server");
            Ok(vec![note])
        }
    }
}

/// An empty directory in memory over `directory`.
fn cover(directory: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("tmpfs", directory, "tmpfs", flags, Some(c"mode=0755"))?)
}

/// A file in memory over `file`.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // Its directory is covered for a moment, so that there is a place to make the file in.
    let directory = file.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let old = rustix::fs::open(file, flags, Mode::empty())?;
    cover(directory)?;
    let mounted = write(&directory.join("resolv.conf"), text).and_then(|new| {
        let path = |fd: i32| format!("/proc/self/fd/{fd}");
        Ok(mount_bind(path(new.as_raw_fd()), path(old.as_raw_fd()))?)
    });
    let uncovered = unmount(directory, UnmountFlags::DETACH);
    mounted?;
    Ok(uncovered?)
}

/// Writes a file that everybody may read, whatever the mask says.
fn write(path: &Path, text: &str) -> io::Result<File> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    Ok(file)
}
