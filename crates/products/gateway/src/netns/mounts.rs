//! The program's own mount namespace: files that set where names are resolved.
//!
//! ```text
//!   /etc/resolv.conf (wherever it leads)   a file of ours, in memory, mounted over it
//!   /run/systemd/resolve, /run/nscd, …     empty: sockets by which the C library would ask the
//!   /run/dbus/system_bus_socket            host's resolver, past the gateway; the bus is for all else,
//!                                          too, and is covered only where the C library asks there
//!   /proc/sys but net, /proc/sysrq-trigger of root's programs: only to be read
//! ```
//!
//! All other files stay the host's, and later mounts of the host appear here, too.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use rustix::thread::UnshareFlags;

use super::sys::unshare;

/// Directories of sockets at which the host's resolvers listen.
const RESOLVER_SOCKETS: [&str; 4] =
    ["/run/systemd/resolve", "/run/nscd", "/var/run/nscd", "/run/avahi-daemon"];

/// A socket at which resolvers are asked among much else: nss-resolve did before systemd 247.
const BUS: &str = "/run/dbus/system_bus_socket";

/// The socket at which nss-resolve asks since then.
const RESOLVE_SOCKET: &str = "/run/systemd/resolve/io.systemd.Resolve";

/// The list of services that the C library asks for names.
const NSSWITCH: &str = "/etc/nsswitch.conf";

/// Files by which root changes the whole machine. They ask who writes, not in which namespace.
const OF_THE_MACHINE: [&str; 2] = ["/proc/sys", "/proc/sysrq-trigger"];

/// Among them, what belongs to the writer's network namespace.
const OF_THE_NETWORK: &str = "/proc/sys/net";

/// The file that the C library reads.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Moves this process, which is root, to a mount namespace in which the machine's settings can only be
/// read. A user namespace that is made in there cannot undo it.
pub(super) fn keep_the_machine() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    detach()?;
    let sealed = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    for path in OF_THE_MACHINE.into_iter().filter(|path| Path::new(path).exists()) {
        mount_bind(path, path)?;
        mount_remount(path, sealed | MountFlags::RDONLY, c"")?;
    }
    mount_bind(OF_THE_NETWORK, OF_THE_NETWORK)?;
    // A container's may be for reading only, whoever asks.
    let _ = mount_remount(OF_THE_NETWORK, sealed, c"");
    Ok(())
}

/// Later mounts of the host appear here, and none of these there.
fn detach() -> io::Result<()> {
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

/// The gateway's `resolv.conf`: its own addresses, and how names are completed as the host has it.
fn resolv_conf(resolvers: &[IpAddr], search: &[String], hosts: &str) -> String {
    let kept = |line: &&str| {
        let word = line.split_whitespace().next();
        word.is_some_and(|word| match word {
            "search" | "domain" => search.is_empty(),
            word => word == "options",
        })
    };
    let mut text = "# by pagewire: the gateway\n".to_owned();
    text.extend(resolvers.iter().map(|address| format!("nameserver {address}\n")));
    if !search.is_empty() {
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    text.extend(hosts.lines().filter(kept).map(|line| format!("{line}\n")));
    text
}

/// Whether this `nsswitch.conf` has names resolved by nss-resolve.
fn asks_resolved(nsswitch: &str) -> bool {
    let lines = nsswitch.lines().map(|line| line.split('#').next().unwrap_or_default());
    let mut hosts = lines.filter_map(|line| line.trim_start().strip_prefix("hosts:"));
    // An action may follow a service without a space: `resolve[!UNAVAIL=return]`.
    hosts.any(|line| {
        let ends = |c: char| c.is_whitespace() || c == '[' || c == ']';
        line.split(ends).any(|word| word == "resolve")
    })
}

/// Makes this mount namespace resolve names by `resolvers`. Returns what could not be done.
pub(super) fn resolve_by(resolvers: &[IpAddr], search: &[String]) -> io::Result<Vec<String>> {
    detach()?;
    let hosts = fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let text = resolv_conf(resolvers, search, &hosts);
    let target = fs::canonicalize(RESOLV_CONF);
    let mut notes = Vec::new();
    // The check comes before that directory is covered.
    if !Path::new(RESOLVE_SOCKET).exists()
        && asks_resolved(&fs::read_to_string(NSSWITCH).unwrap_or_default())
        && let Ok(bus) = fs::canonicalize(BUS)
        && let Err(e) = replace(&bus, "")
    {
        notes.push(format!("{BUS}: {e}; programs may ask the host's resolver there"));
    }
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
        Ok(_) if written => {}
        Ok(target) => replace(&target, &text)?,
        Err(e) => notes
            .push(format!("{RESOLV_CONF}: {e}; programs do not find the gateway's name server")),
    }
    Ok(notes)
}

/// An empty directory in memory over `directory`.
fn cover(directory: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("tmpfs", directory, "tmpfs", flags, Some(c"mode=0755"))?)
}

/// A file in memory over `file`.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // The file's directory is covered for a moment, so that there is a place to make the file in.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bus_is_for_names_only_where_the_c_library_has_the_service_resolve() {
        for (text, expected) in [
            ("hosts: mymachines resolve [!UNAVAIL=return] files myhostname dns", true),
            ("passwd: files\n  hosts:\tresolve[!UNAVAIL=return] dns", true),
            ("hosts: files dns", false),
            ("hosts: files dns # resolve", false),
            ("passwd: files resolve\nhosts: files mdns4_minimal [NOTFOUND=return] dns", false),
            ("", false),
        ] {
            assert_eq!(asks_resolved(text), expected, "{text}");
        }
    }

    #[test]
    fn the_hosts_search_list_and_options_stay_and_its_name_servers_do_not() {
        let hosts = "# the host's\nnameserver 192.0.2.1\nsearch example.org\n\toptions ndots:2\n\
                     sortlist 192.0.2.0\n";
        let ours = ["10.0.2.2".parse().expect("an address")];
        let lines = |search: &[&str]| -> Vec<String> {
            let search: Vec<String> = search.iter().map(|&domain| domain.to_owned()).collect();
            let text = resolv_conf(&ours, &search, hosts);
            text.lines().skip(1).map(str::to_owned).collect()
        };
        assert_eq!(lines(&[]), ["nameserver 10.0.2.2", "search example.org", "\toptions ndots:2"]);
        let given = ["nameserver 10.0.2.2", "search a.test b.test", "\toptions ndots:2"];
        assert_eq!(lines(&["a.test", "b.test"]), given);
    }
}
