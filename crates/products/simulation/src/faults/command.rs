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
    Hosts(Vec<HostId>, HostChange),
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

/// A change of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostChange {
    Uplink(Link),
    Downlink(Link),
    Crash,
    Kill,
    Bounce,
    Pause(Pause),
    Resume,
    Skew(Skew),
}

/// Hosts or paths that the words for a command name at most.
const NAMED: usize = 8;

impl Command {
    /// Whether no host is started, stopped or changed.
    pub(crate) fn is_for_network(&self) -> bool {
        match self {
            Self::Paths(..) | Self::DefaultLink(..) => true,
            Self::Hosts(_, change) => {
                matches!(change, HostChange::Uplink(_) | HostChange::Downlink(_))
            }
        }
    }

    /// The command in words, for people; `name` has the names of hosts.
    pub(crate) fn describe<'a>(&self, name: impl Fn(HostId) -> &'a str) -> String {
        let list = |all: &mut dyn ExactSizeIterator<Item = String>| {
            let more = all.len().saturating_sub(NAMED);
            let named = all.take(NAMED).collect::<Vec<_>>().join(", ");
            if more > 0 { format!("{named} and {more} more") } else { named }
        };
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
            Self::Hosts(hosts, change) => {
                let what = match change {
                    HostChange::Uplink(link) => format!("uplink {link}"),
                    HostChange::Downlink(link) => format!("downlink {link}"),
                    HostChange::Crash => "crash".to_owned(),
                    HostChange::Kill => "kill".to_owned(),
                    HostChange::Bounce => "bounce".to_owned(),
                    HostChange::Pause(Pause::Process) => "pause the process".to_owned(),
                    HostChange::Pause(Pause::Machine) => "pause the machine".to_owned(),
                    HostChange::Resume => "resume".to_owned(),
                    HostChange::Skew(Skew { offset, drift }) => {
                        format!("skew by {offset} ns, drift {drift} ppm")
                    }
                };
                format!("{what}: {}", list(&mut hosts.iter().map(|&host| name(host).to_owned())))
            }
        }
    }
}

/// The command with the numbers of its hosts, for the digest: a change here changes all digests.
impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Paths(pairs, change) => {
                write!(f, "{change:?}")?;
                pairs.iter().try_for_each(|(from, to)| write!(f, " {}-{}", from.0, to.0))
            }
            Self::DefaultLink(link) => write!(f, "DefaultLink {link:?}"),
            Self::Hosts(hosts, change) => {
                match change {
                    HostChange::Uplink(link) => write!(f, "Uplink {link:?}")?,
                    HostChange::Downlink(link) => write!(f, "Downlink {link:?}")?,
                    HostChange::Pause(what) => write!(f, "Pause {what:?}")?,
                    HostChange::Skew(skew) => write!(f, "{skew:?}")?,
                    change => write!(f, "{change:?}")?,
                }
                let numbers: Vec<String> = hosts.iter().map(|host| host.0.to_string()).collect();
                write!(f, " {}", numbers.join(" "))
            }
        }
    }
}
