//! [`Forward`]: ports of the namespace's loopback that lead to the loopback of this machine.

use std::fmt;
use std::str::FromStr;

use super::{Follow, Listens};
use crate::request::Protocol;

/// Ports on the loopback of the guest's namespace that lead to this machine's loopback: `PORT[:PORT][/udp]`, where a
/// port may be a range, or `auto[/udp]` for all ports that programs of this machine listen on, as long as they do.
/// `,~PORTS` leaves some out. Of ports for datagrams, `auto` leaves out those that the kernel gives to clients
/// (`net.ipv4.ip_local_port_range`).
///
/// ```
/// use pagewire_gateway::Forward;
/// for text in ["8080", "8080:80", "5353:53/udp", "8000-8009:9000-9009,~8003", "auto", "auto,~22,~5000-5009/udp"] {
///     let forward: Forward = text.parse()?;
///     assert_eq!(forward.to_string(), text);
/// }
/// # Ok::<(), pagewire_gateway::ForwardError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    pub(crate) ports: Ports,
    pub(crate) except: Except,
    pub(crate) protocol: Protocol,
}

impl Forward {
    /// What is followed so.
    pub(crate) fn follow(&self) -> Option<Follow> {
        let (protocol, except) = (self.protocol, self.except.clone());
        (self.ports == Ports::Auto).then_some(Follow { side: Listens::Outside, protocol, except })
    }
}

/// Ports in the namespace, and those that they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    Range { first: u16, last: u16, to: u16 },
    Auto,
}

/// Ports that are left out, as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Except(Vec<(u16, u16)>);

/// The text does not say what to forward.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot forward '{text}': {why}; write it as in 8080, 8080:80, 5353:53/udp, 8000-8009,~8003 or auto,~22"
)]
pub struct ForwardError {
    text: String,
    why: &'static str,
}

impl Except {
    /// Splits `PORTS,~PORTS,~PORTS` into what comes first, and the rest.
    pub(crate) fn split(text: &str) -> Result<(&str, Self), &'static str> {
        let (first, rest) = text.split_once(',').map_or((text, None), |(a, b)| (a, Some(b)));
        let part = |part: &str| {
            range(part.strip_prefix('~').ok_or("ports that are left out begin with ~")?)
        };
        let parts = rest.map(|rest| rest.split(',').map(part).collect::<Result<_, _>>());
        Ok((first, Self(parts.transpose()?.unwrap_or_default())))
    }

    /// Whether this port is left out.
    pub(crate) fn has(&self, port: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }
}

impl fmt::Display for Except {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(first, last)| {
            f.write_str(",~")?;
            write_range(f, *first, *last)
        })
    }
}

fn write_range(f: &mut fmt::Formatter<'_>, first: u16, last: u16) -> fmt::Result {
    if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
}

impl FromStr for Forward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        parse(text).map_err(|why| ForwardError { text: text.to_owned(), why })
    }
}

fn parse(text: &str) -> Result<Forward, &'static str> {
    let (text, protocol) = match text.rsplit_once('/') {
        Some((rest, "udp")) => (rest, Protocol::Udp),
        Some((rest, "tcp")) => (rest, Protocol::Tcp),
        Some(_) => return Err("behind the slash is tcp or udp"),
        None => (text, Protocol::Tcp),
    };
    let (ports, except) = Except::split(text)?;
    if ports == "auto" {
        return Ok(Forward { ports: Ports::Auto, except, protocol });
    }
    let (inner, outer) = ports.split_once(':').unwrap_or((ports, ports));
    let ((first, last), (to, end)) = (range(inner)?, range(outer)?);
    if end - to != last - first && end != to {
        return Err("the two ranges differ in length");
    }
    if to.checked_add(last - first).is_none() {
        return Err("the ports would end beyond 65535");
    }
    if first == 0 || to == 0 {
        return Err("a port cannot be 0");
    }
    Ok(Forward { ports: Ports::Range { first, last, to }, except, protocol })
}

fn range(text: &str) -> Result<(u16, u16), &'static str> {
    let port = |text: &str| text.parse::<u16>().map_err(|_| "a port is a number up to 65535");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    if first > last { Err("a range ends before it begins") } else { Ok((first, last)) }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ports {
            Ports::Auto => f.write_str("auto")?,
            Ports::Range { first, last, to } => {
                write_range(f, first, last)?;
                if to != first {
                    f.write_str(":")?;
                    write_range(f, to, to + (last - first))?;
                }
            }
        }
        write!(f, "{}", self.except)?;
        if self.protocol == Protocol::Udp { f.write_str("/udp") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        text.parse::<Forward>().expect_err(text).to_string()
    }

    #[test]
    fn what_cannot_be_forwarded_says_why() {
        assert!(why("").contains("a port is a number"));
        assert!(why("0").contains("cannot be 0"));
        assert!(why("80:0").contains("cannot be 0"));
        assert!(why("9-1").contains("ends before it begins"));
        assert!(why("1-9:1-5").contains("differ in length"));
        assert!(why("1-9:65530").contains("beyond 65535"));
        assert!(why("80/sctp").contains("tcp or udp"));
        assert!(why("auto,22").contains("begin with ~"));
        assert!(why("auto,~x").contains("a port is a number"));
        assert!(why("127.0.0.1:80:80").contains("a port is a number"));
    }

    #[test]
    fn ports_that_are_left_out_are_single_ones_and_ranges() {
        let forward: Forward = "auto,~22,~5000-5009".parse().expect("ports");
        assert_eq!(forward.ports, Ports::Auto);
        let left_out = [21, 22, 23, 4999, 5000, 5009, 5010].map(|port| forward.except.has(port));
        assert_eq!(left_out, [false, true, false, false, true, true, false]);
    }
}
