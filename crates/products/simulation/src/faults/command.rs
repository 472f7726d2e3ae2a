//! A [`Command`] of a test to its simulation, with its hosts found: what happens to hosts, links and clocks.

use crate::HostId;
use crate::host::clock::Skew;
use crate::network::link::Link;

/// The part of a host that [`Control::pause`](crate::Control::pause) stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// The process, as `SIGSTOP` does: its tasks stand still, its kernel still answers.
    Process,
    /// The machine: packets wait in front of it too.
    Machine,
}

/// A command, with its hosts found.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    Paths(Vec<(HostId, HostId)>, PathChange),
    DefaultLink(Link),
    Uplink(Vec<HostId>, Link),
    Downlink(Vec<HostId>, Link),
    Crash(Vec<HostId>),
    Kill(Vec<HostId>),
    Bounce(Vec<HostId>),
    Pause(Vec<HostId>, Pause),
    Resume(Vec<HostId>),
    Skew(Vec<HostId>, Skew),
}

impl Command {
    /// Whether no host is started, stopped or changed.
    pub(crate) fn is_for_network(&self) -> bool {
        matches!(
            self,
            Self::Paths(..) | Self::DefaultLink(..) | Self::Uplink(..) | Self::Downlink(..)
        )
    }
}

/// A change of the path between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathChange {
    Cut,
    Repair,
    Hold,
    Release,
    Link(Link),
    /// The begin of a slow link; there may be several at a time.
    Slow(Link),
    Recover,
}

/// Hosts or paths that the words for a command name at most.
const NAMED: usize = 8;

impl Command {
    /// The command in words, for people; `name` has the names of hosts.
    pub(crate) fn describe<'a>(&self, name: impl Fn(HostId) -> &'a str) -> String {
        let list = |all: &mut dyn ExactSizeIterator<Item = String>| {
            let more = all.len().saturating_sub(NAMED);
            let named = all.take(NAMED).collect::<Vec<_>>().join(", ");
            if more > 0 { format!("{named} and {more} more") } else { named }
        };
        let of = |hosts: &[HostId]| list(&mut hosts.iter().map(|&host| name(host).to_owned()));
        match self {
            Self::Paths(pairs, change) => {
                let what = match change {
                    PathChange::Cut => "cut".to_owned(),
                    PathChange::Repair => "repair".to_owned(),
                    PathChange::Hold => "hold".to_owned(),
                    PathChange::Release => "release".to_owned(),
                    PathChange::Link(link) => format!("link {link}"),
                    PathChange::Slow(link) => format!("slow link {link}"),
                    PathChange::Recover => "end of a slow link".to_owned(),
                };
                let path = |&(from, to): &_| format!("{} > {}", name(from), name(to));
                format!("{what}: {}", list(&mut pairs.iter().map(path)))
            }
            Self::DefaultLink(link) => format!("default link {link}"),
            Self::Uplink(hosts, link) => format!("uplink {link}: {}", of(hosts)),
            Self::Downlink(hosts, link) => format!("downlink {link}: {}", of(hosts)),
            Self::Crash(hosts) => format!("crash: {}", of(hosts)),
            Self::Kill(hosts) => format!("kill: {}", of(hosts)),
            Self::Bounce(hosts) => format!("bounce: {}", of(hosts)),
            Self::Pause(hosts, Pause::Process) => format!("pause the process: {}", of(hosts)),
            Self::Pause(hosts, Pause::Machine) => format!("pause the machine: {}", of(hosts)),
            Self::Resume(hosts) => format!("resume: {}", of(hosts)),
            Self::Skew(hosts, Skew { offset, drift }) => {
                format!("skew by {offset} ns, drift {drift} ppm: {}", of(hosts))
            }
        }
    }
}

/// The command with the numbers of its hosts, for the digest: a change here changes all digests.
impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |hosts: &[HostId]| {
            hosts.iter().map(|host| host.0.to_string()).collect::<Vec<_>>().join(" ")
        };
        match self {
            Self::Paths(pairs, change) => {
                write!(f, "{change:?}")?;
                pairs.iter().try_for_each(|(from, to)| write!(f, " {}-{}", from.0, to.0))
            }
            Self::DefaultLink(link) => write!(f, "DefaultLink {link:?}"),
            Self::Uplink(hosts, link) => write!(f, "Uplink {link:?} {}", list(hosts)),
            Self::Downlink(hosts, link) => write!(f, "Downlink {link:?} {}", list(hosts)),
            Self::Crash(hosts) => write!(f, "Crash {}", list(hosts)),
            Self::Kill(hosts) => write!(f, "Kill {}", list(hosts)),
            Self::Bounce(hosts) => write!(f, "Bounce {}", list(hosts)),
            Self::Pause(hosts, what) => write!(f, "Pause {what:?} {}", list(hosts)),
            Self::Resume(hosts) => write!(f, "Resume {}", list(hosts)),
            Self::Skew(hosts, skew) => write!(f, "{skew:?} {}", list(hosts)),
        }
    }
}
