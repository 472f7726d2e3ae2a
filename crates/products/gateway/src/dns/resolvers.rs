//! [`Resolver`]: the resolvers of the gateway's machine, followed when they change, or given ones.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pagewire::services::Instant;
use resolv_conf::{Config, ScopedIp};

use super::PORT;
use crate::limits::{RESOLV_CONF_BYTES, RESOLV_CONF_LOOK, RESOLVERS};

/// The resolvers that the gateway asks for guests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resolver {
    /// The resolvers of `/etc/resolv.conf`, as it is at the time.
    #[default]
    Host,
    /// These resolvers, in order of preference.
    At(Vec<SocketAddr>),
    /// No resolver: only the gateway's own names have addresses, all others are refused.
    None,
    /// No resolver: each name that rules let resolve has an IPv4 address that stands for it, out of 198.18.0.0/15
    /// (RFC 2544), which is on no network. Connections to that address go by a proxy of
    /// [`Builder::vias`](crate::Builder::vias), which is told the name. Whatever the name has beside an IPv4 address,
    /// the guest does not learn. Nobody is asked.
    Invented,
}

/// Resolvers in order of preference.
#[derive(Debug)]
pub(crate) struct Resolvers {
    file: Option<FollowedFile>,
    list: Vec<SocketAddr>,
    /// The first to be asked: the last one that answered.
    preferred: usize,
}

/// A file that is read again when it is another one, or has changed.
#[derive(Debug)]
struct FollowedFile {
    path: PathBuf,
    checked_at: Option<Instant>,
    stamp: Option<Stamp>,
    /// The file could not be read at the last check, which was logged.
    refused: bool,
}

/// Device, file, bytes, and time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

impl Resolvers {
    pub(crate) fn new(resolver: &Resolver) -> Self {
        match resolver {
            Resolver::Host => Self::following(Path::new("/etc/resolv.conf")),
            Resolver::At(list) => Self::fixed(list.iter().copied().take(RESOLVERS).collect()),
            Resolver::None | Resolver::Invented => Self::fixed(Vec::new()),
        }
    }

    fn fixed(list: Vec<SocketAddr>) -> Self {
        Self { file: None, list, preferred: 0 }
    }

    /// The resolvers of a file as `resolv.conf(5)` describes it.
    pub(crate) fn following(path: &Path) -> Self {
        let file =
            FollowedFile { path: path.into(), checked_at: None, stamp: None, refused: false };
        Self { file: Some(file), ..Self::fixed(Vec::new()) }
    }

    /// Checks the file, at most each [`RESOLV_CONF_LOOK`]. A file that cannot be read, as while
    /// it is being replaced, changes nothing.
    pub(crate) fn refresh(&mut self, now: Instant) {
        let Some(file) = &mut self.file else { return };
        if file.checked_at.is_some_and(|at| now < at + RESOLV_CONF_LOOK) {
            return;
        }
        file.checked_at = Some(now);
        let Ok(meta) = fs::metadata(&file.path) else { return };
        let stamp = (meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
        if file.stamp == Some(stamp) || meta.size() > RESOLV_CONF_BYTES {
            return;
        }
        let text = match fs::read(&file.path) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() == io::ErrorKind::PermissionDenied && !file.refused {
                    tracing::warn!(path = %file.path.display(), "the resolvers stay as they are: {error}");
                }
                file.refused = error.kind() == io::ErrorKind::PermissionDenied;
                return;
            }
        };
        file.refused = false;
        file.stamp = Some(stamp);
        let list = servers(&text);
        if list != self.list {
            tracing::info!(resolvers = ?list, "resolvers");
            (self.list, self.preferred) = (list, 0);
        }
    }

    /// The resolver for an attempt of a query, the first being 0.
    pub(crate) fn get(&self, attempt: usize) -> Option<SocketAddr> {
        let at = (self.preferred + attempt).checked_rem(self.list.len())?;
        self.list.get(at).copied()
    }

    /// Whether there is never a resolver.
    pub(crate) fn is_none(&self) -> bool {
        self.file.is_none() && self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Notes that this resolver answered: it is asked first from now on.
    pub(crate) fn prefer(&mut self, resolver: SocketAddr) {
        if let Some(at) = self.list.iter().position(|one| *one == resolver) {
            self.preferred = at;
        }
    }
}

/// The resolvers that a file names; `resolv.conf(5)`: "If no nameserver entries are present, the
/// default is to use the name server on the local machine."
fn servers(text: &[u8]) -> Vec<SocketAddr> {
    let (config, _mistakes) = Config::parse_with_errors(text);
    let address = |server: &ScopedIp| match server {
        ScopedIp::V4(v4) => Some(SocketAddr::new((*v4).into(), PORT)),
        ScopedIp::V6(v6, scope) => {
            let scope = scope.as_ref().map_or(Some(0), |name| scope_id(name))?;
            Some(SocketAddrV6::new(*v6, PORT, 0, scope).into())
        }
    };
    let mut list: Vec<SocketAddr> =
        config.nameservers.iter().filter_map(address).take(RESOLVERS).collect();
    if list.is_empty() {
        list.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT));
    }
    list
}

/// The number of an interface that is given by name or number.
fn scope_id(name: &str) -> Option<u32> {
    name.parse().ok().or_else(|| {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let (family, kind) = (rustix::net::AddressFamily::INET6, rustix::net::SocketType::DGRAM);
        let socket = rustix::net::socket_with(family, kind, flags, None).ok()?;
        rustix::net::netdevice::name_to_index(&socket, name).ok()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn list(text: &str) -> Vec<String> {
        servers(text.as_bytes()).iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn a_file_names_resolvers_of_both_versions() {
        let text = "# comment\nsearch example.org\nnameserver 192.0.2.1\nnameserver fd00::53\n\
                    nameserver fe80::1%7\noptions edns0\n";
        assert_eq!(list(text), ["192.0.2.1:53", "[fd00::53]:53", "[fe80::1%7]:53"]);
        assert_eq!(list("nameserver fe80::1%lo\n"), ["[fe80::1%1]:53"]);
    }

    #[test]
    fn without_one_the_local_machine_is_asked_and_mistakes_are_passed_over() {
        assert_eq!(list(""), ["127.0.0.1:53"]);
        assert_eq!(list("nameserver x\nnonsense\nnameserver 192.0.2.1\n"), ["192.0.2.1:53"]);
        let many = "nameserver 192.0.2.1\n".repeat(2 * RESOLVERS);
        assert_eq!(servers(many.as_bytes()).len(), RESOLVERS);
    }

    #[test]
    fn a_changed_or_replaced_file_is_read_again_and_a_missing_one_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("pw-resolv-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("resolv.conf");
        let mut resolvers = Resolvers::following(&path);
        let mut now = Instant::from_millis(1);
        let mut check = |resolvers: &mut Resolvers| {
            now += RESOLV_CONF_LOOK;
            resolvers.refresh(now);
            resolvers.get(0).map(|resolver| resolver.ip().to_string())
        };
        assert_eq!(check(&mut resolvers), None);
        fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        assert_eq!(check(&mut resolvers).as_deref(), Some("192.0.2.1"));
        // Another length: the time of a change may be too coarse to tell.
        fs::write(&path, "nameserver 192.0.2.20\n").unwrap();
        assert_eq!(check(&mut resolvers).as_deref(), Some("192.0.2.20"));
        fs::remove_file(&path).unwrap();
        assert_eq!(check(&mut resolvers).as_deref(), Some("192.0.2.20"));
        fs::write(dir.join("next"), "nameserver 192.0.2.30\n").unwrap();
        fs::rename(dir.join("next"), &path).unwrap();
        assert_eq!(check(&mut resolvers).as_deref(), Some("192.0.2.30"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_file_is_looked_at_once_in_a_while() {
        let path = std::env::temp_dir().join(format!("pw-resolv-once-{}", std::process::id()));
        let mut resolvers = Resolvers::following(&path);
        let start = Instant::from_millis(1);
        resolvers.refresh(start);
        fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
        resolvers.refresh(start + RESOLV_CONF_LOOK - Duration::from_millis(1));
        assert_eq!(resolvers.len(), 0);
        resolvers.refresh(start + RESOLV_CONF_LOOK);
        assert_eq!(resolvers.len(), 1);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_one_that_answered_is_asked_first() {
        let all: Vec<SocketAddr> = ["192.0.2.1:53", "192.0.2.2:53", "192.0.2.3:53"]
            .map(|text| text.parse().unwrap())
            .into();
        let mut resolvers = Resolvers::new(&Resolver::At(all.clone()));
        let order = |r: &Resolvers| (0..4).map(|n| r.get(n).unwrap()).collect::<Vec<_>>();
        assert_eq!(order(&resolvers), [all[0], all[1], all[2], all[0]]);
        resolvers.prefer(all[1]);
        assert_eq!(order(&resolvers), [all[1], all[2], all[0], all[1]]);
        assert_eq!(Resolvers::new(&Resolver::None).get(0), None);
    }
}
