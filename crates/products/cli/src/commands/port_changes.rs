//! [`Change`]: several commands about ports, executed as one: what is open afterwards is worked out first, and a port
//! that cannot be opened leaves everything as it was. `pesto` asks for it over the socket of [`api`](super::api).
//!
//! ```text
//!   {"execute":"change_hostfwd","arguments":{"steps":[{"clear":true},
//!       {"add":{"proto":"tcp","host_addr":null,"guest_addr":null,"ports":[[8000,8009,9000]]}}]}}
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::thread;

use serde_json::{Value, json};

use crate::limits::{PORT_FREE_LOOK, PORT_FREE_LOOKS};

/// A port of this machine, and the guest's that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) udp: bool,
    pub(crate) host: SocketAddr,
    pub(crate) guest: SocketAddr,
}

impl HostPort {
    pub(crate) fn new(udp: bool, host: SocketAddr, guest: SocketAddr) -> Self {
        Self { udp, host, guest }
    }
}

/// Why a port was not opened.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) why: String,
    /// Another program, or another port, has it.
    pub(crate) taken: bool,
    /// This machine, or the guest, lacks the version of IP.
    pub(crate) lacks: bool,
}

/// Ports that are opened and closed while a guest runs.
pub(crate) trait Ports: Send + Sync {
    /// Opens a port, or says why it cannot be opened.
    fn open(&self, port: &HostPort) -> Result<(), Refused>;

    /// Closes ports. Their connections go on. Returns the number of those that were open.
    fn close(&self, ports: &[HostPort]) -> usize;

    /// All that are open by their number, those of the command line too.
    fn all(&self) -> Vec<HostPort>;

    /// What opens further ports: `auto`, `all`.
    fn rules(&self) -> Vec<String>;

    fn open_rule(&self, rule: &str) -> Result<(), Refused>;

    /// Closes the ports of a rule. `false`: there is none.
    fn close_rule(&self, rule: &str) -> bool;
}

/// The commands, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change(pub(crate) Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Closes all ports, and follows no more.
    Clear,
    Add(PortSet),
    Delete(PortSet),
}

/// Ports of this machine, and the guest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortSet {
    pub(crate) udp: bool,
    /// Where clients come; `None`: to every address.
    pub(crate) on: Option<IpAddr>,
    /// The first and the last port, and the guest's first one.
    pub(crate) ports: Vec<(u16, u16, u16)>,
    /// The guest's address; `None`: the first of the same version of IP.
    pub(crate) target: Option<IpAddr>,
}

/// Each socket of this machine, and where it leads to.
type Table = BTreeMap<(bool, SocketAddr), SocketAddr>;

impl Change {
    pub(crate) fn request(&self) -> Value {
        let step = |step: &Step| match step {
            Step::Clear => json!({ "clear": true }),
            Step::Add(set) => json!({ "add": set.value() }),
            Step::Delete(set) => json!({ "delete": set.value() }),
        };
        let steps: Vec<Value> = self.0.iter().map(step).collect();
        json!({ "execute": "change_hostfwd", "arguments": { "steps": steps } })
    }

    /// `None`: these are no commands.
    pub(super) fn of(steps: &Value) -> Option<Self> {
        let step = |step: &Value| match (step.get("add"), step.get("delete"), step.get("clear")) {
            (Some(set), None, None) => Some(Step::Add(PortSet::of(set)?)),
            (None, Some(set), None) => Some(Step::Delete(PortSet::of(set)?)),
            (None, None, Some(_)) => Some(Step::Clear),
            _ => None,
        };
        Some(Self(steps.as_array()?.iter().map(step).collect::<Option<_>>()?))
    }

    /// Executes all commands, or none.
    pub(super) fn execute(&self, ports: &dyn Ports, guests: &[IpAddr]) -> Result<(), String> {
        let all = ports.all();
        let before: Table = all.iter().map(|port| ((port.udp, port.host), port.guest)).collect();
        let (after, lackable) = self.outcome(before.clone(), guests)?;
        let differs = |all: &Table, other: &Table| -> Vec<HostPort> {
            let those = all.iter().filter(|(at, guest)| other.get(at) != Some(guest));
            those.map(|((udp, host), guest)| HostPort::new(*udp, *host, *guest)).collect()
        };
        let (added, removed) = (differs(&after, &before), differs(&before, &after));
        // Sockets that would be in the way of new ones are closed first, others last.
        let ways = |port: &HostPort| {
            let guest = if port.udp { port.guest.port() } else { 0 };
            [(port.udp, false, port.host.port()), (port.udp, true, guest)]
        };
        let wanted: BTreeSet<_> = added.iter().flat_map(ways).filter(|way| way.2 > 0).collect();
        let is_in_the_way = |port: &HostPort| ways(port).iter().any(|way| wanted.contains(way));
        let (first, last): (Vec<_>, Vec<_>) = removed.into_iter().partition(is_in_the_way);
        let rules = if self.0.contains(&Step::Clear) { ports.rules() } else { Vec::new() };
        let rules: Vec<String> = rules.into_iter().filter(|rule| ports.close_rule(rule)).collect();
        ports.close(&first);
        let closing = !rules.is_empty() || first.iter().any(|other| other.udp);
        let mut opened = Vec::new();
        for port in added {
            match open(ports, &port, closing) {
                Ok(()) => opened.push(port),
                // This machine, or the guest, has no IPv6.
                Err(refused) if refused.lacks && lackable.contains(&port.host) => {}
                Err(refused) => {
                    ports.close(&opened);
                    let mut why = format!("{}: {}", name(port.host), refused.why);
                    let again = first.iter().map(|port| (name(port.host), open(ports, port, true)));
                    let rules = rules.iter().map(|rule| (rule.clone(), ports.open_rule(rule)));
                    for (lost, result) in again.collect::<Vec<_>>().into_iter().chain(rules) {
                        if let Err(refused) = result {
                            why = format!("{why}; {lost} was lost: {}", refused.why);
                        }
                    }
                    return Err(why);
                }
            }
        }
        ports.close(&last);
        Ok(())
    }

    /// What is open afterwards, and the sockets that this machine may lack.
    fn outcome(
        &self,
        mut table: Table,
        guests: &[IpAddr],
    ) -> Result<(Table, BTreeSet<SocketAddr>), String> {
        let mut lackable = BTreeSet::new();
        for step in &self.0 {
            match step {
                Step::Clear => table.clear(),
                Step::Add(set) => {
                    for (port, to) in set.pairs() {
                        for host in set.hosts() {
                            let target = set.target.or_else(|| default_guest(guests, host));
                            let target = target.ok_or("the guest has no address")?;
                            let host = SocketAddr::new(host, port);
                            if set.on.is_none() && host.is_ipv6() {
                                lackable.insert(host);
                            }
                            let guest = SocketAddr::new(target, to);
                            if table.insert((set.udp, host), guest).is_some() {
                                return Err(format!("{}: the port is open already", name(host)));
                            }
                        }
                    }
                }
                Step::Delete(set) => {
                    for (port, to) in set.pairs() {
                        let fits = |at: &(bool, SocketAddr)| {
                            table.get(at).is_some_and(|guest| {
                                guest.port() == to
                                    && set.target.is_none_or(|target| target == guest.ip())
                            })
                        };
                        let at = |host| (set.udp, SocketAddr::new(host, port));
                        let found: Vec<_> = set.hosts().into_iter().map(at).filter(fits).collect();
                        if found.is_empty() {
                            return Err(format!("{} port {port} is not there", set.proto()));
                        }
                        for at in &found {
                            table.remove(at);
                        }
                    }
                }
            }
        }
        Ok((table, lackable))
    }
}

/// The guest's address for clients of this one.
pub(super) fn default_guest(guests: &[IpAddr], host: IpAddr) -> Option<IpAddr> {
    let same = guests.iter().find(|guest| guest.is_ipv4() == host.is_ipv4());
    same.or(guests.first()).copied()
}

fn name(host: SocketAddr) -> String {
    format!("{}/{}", host.ip(), host.port())
}

/// Opens a port. `closing`: another thread may be closing a socket of the same port.
fn open(ports: &dyn Ports, port: &HostPort, closing: bool) -> Result<(), Refused> {
    let mut looks = if closing && port.udp { PORT_FREE_LOOKS } else { 0 };
    loop {
        match ports.open(port) {
            Err(refused) if refused.taken && looks > 0 => {
                looks -= 1;
                thread::sleep(PORT_FREE_LOOK);
            }
            opened => return opened,
        }
    }
}

impl PortSet {
    fn value(&self) -> Value {
        json!({
            "proto": self.proto(),
            "host_addr": self.on.map(|ip| ip.to_string()),
            "guest_addr": self.target.map(|ip| ip.to_string()),
            "ports": self.ports,
        })
    }

    fn of(value: &Value) -> Option<Self> {
        let address = |name: &str| match value.get(name) {
            None | Some(Value::Null) => Some(None),
            Some(text) => text.as_str()?.parse().ok().map(Some),
        };
        let udp = match value.get("proto")?.as_str()? {
            "tcp" => false,
            "udp" => true,
            _ => return None,
        };
        let range = |range: &Value| {
            let number = |at: usize| u16::try_from(range.get(at)?.as_u64()?).ok();
            let (first, last, to) = (number(0)?, number(1)?, number(2)?);
            let fits =
                first > 0 && to > 0 && first <= last && to.checked_add(last - first).is_some();
            fits.then_some((first, last, to))
        };
        let ports = value.get("ports")?.as_array()?.iter().map(range).collect::<Option<_>>()?;
        Some(Self { udp, on: address("host_addr")?, ports, target: address("guest_addr")? })
    }

    fn proto(&self) -> &'static str {
        if self.udp { "udp" } else { "tcp" }
    }

    /// Each port of this machine, and the guest's.
    fn pairs(&self) -> impl Iterator<Item = (u16, u16)> {
        let each = |(first, last, to): (u16, u16, u16)| {
            (first..=last).map(move |port| (port, to + (port - first)))
        };
        self.ports.iter().copied().flat_map(each)
    }

    /// The addresses to listen at.
    fn hosts(&self) -> Vec<IpAddr> {
        match self.on {
            Some(address) => vec![address],
            None => vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()],
        }
    }
}
