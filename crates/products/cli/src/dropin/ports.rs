//! Port specifiers of passt, pasta and pesto: which ports of one side lead to which of the other.
//!
//! ```text
//!   none
//!   [ADDRESS[%INTERFACE]/]ENTRY,…     FIRST[-LAST][:[TARGET/]FIRST[-LAST]]  FIRST[-LAST]:TARGET
//!                                     ~FIRST[-LAST]  all[:TARGET]  auto
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A specifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    /// Where clients come; `None`: to every address.
    pub(super) on: Option<IpAddr>,
    pub(super) which: Which,
    /// The address behind the ports, if the specifier names one.
    pub(super) target: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Which {
    None,
    /// Those that are free.
    All {
        except: Vec<Range>,
    },
    /// Those on which somebody listens behind.
    Auto {
        except: Vec<Range>,
    },
    Ports(Vec<Mapping>),
}

/// Ports, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
}

/// Ports, and the first of as many ports behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) from: Range,
    pub(super) to: u16,
}

impl Spec {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        spec(text).map_err(|why| format!("'{text}' is no port specifier: {why}"))
    }

    /// The values of `--publish` of pagewire. `guest` are the addresses of the guest that are known.
    pub(super) fn published(&self, udp: bool, guest: &[IpAddr]) -> Result<Vec<String>, String> {
        if let Some(target) = self.target.filter(|target| !guest.contains(target)) {
            return Err(format!(
                "{target} is not the guest's address: give --address {target}, or ports without it"
            ));
        }
        let on = match self.on {
            None => String::new(),
            Some(IpAddr::V4(v4)) => format!("{v4}:"),
            Some(IpAddr::V6(v6)) => format!("[{v6}]:"),
        };
        let every = |word: &str, except: &[Range]| match self.on {
            None => Ok(vec![following(word, except, udp)]),
            Some(on) => Err(format!(
                "'{on}/{word}': {word} is for every address; name the ports, or leave out {on}/"
            )),
        };
        match &self.which {
            Which::None => Ok(Vec::new()),
            Which::All { except } => every("all", except),
            Which::Auto { except } => every("auto", except),
            Which::Ports(all) => {
                Ok(all.iter().map(|ports| format!("{on}{}{}", ports.text(), suffix(udp))).collect())
            }
        }
    }

    /// The values of `--forward` of pagewire, for listeners within the namespace.
    pub(super) fn forwarded(&self, udp: bool) -> Result<Vec<String>, String> {
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        if let Some(other) =
            [self.on, self.target].into_iter().flatten().find(|ip| !loopback.contains(ip))
        {
            return Err(format!(
                "{other}: from the namespace, ports of its loopback lead to this machine's; leave out the address"
            ));
        }
        match &self.which {
            Which::None => Ok(Vec::new()),
            Which::All { .. } => {
                Err("'all' is not for ports of the namespace: name them, or give auto".into())
            }
            Which::Auto { except } => Ok(vec![following("auto", except, udp)]),
            Which::Ports(all) => {
                Ok(all.iter().map(|ports| format!("{}{}", ports.text(), suffix(udp))).collect())
            }
        }
    }
}

impl Range {
    const EVERY: Self = Self { first: 1, last: u16::MAX };

    fn text(self) -> String {
        match self.first == self.last {
            true => self.first.to_string(),
            false => format!("{}-{}", self.first, self.last),
        }
    }
}

impl Mapping {
    fn text(self) -> String {
        let last = self.to + (self.from.last - self.from.first);
        match self.to == self.from.first {
            true => self.from.text(),
            false => format!("{}:{}", self.from.text(), Range { first: self.to, last }.text()),
        }
    }
}

/// A word for ports that are not named, and those among them that are left out.
fn following(word: &str, except: &[Range], udp: bool) -> String {
    let mut text = word.to_owned();
    except.iter().for_each(|range| text += &format!(",~{}", range.text()));
    text + suffix(udp)
}

fn suffix(udp: bool) -> &'static str {
    if udp { "/udp" } else { "" }
}

fn spec(text: &str) -> Result<Spec, String> {
    if text == "none" {
        return Ok(Spec { on: None, which: Which::None, target: None });
    }
    // A slash is also in front of the ports behind.
    let (on, entries) = match text.split_once('/') {
        Some((front, rest)) if address(front)?.is_some() => (address(front)?, rest),
        _ => (None, text),
    };
    let mut target = None;
    let (mut all, mut auto) = (false, false);
    let (mut included, mut except) = (Vec::new(), Vec::new());
    for entry in entries.split(',') {
        if let Some(excluded) = entry.strip_prefix('~') {
            except.push(range(excluded)?);
        } else if entry == "auto" {
            auto = true;
        } else {
            let (ports, behind) =
                entry.split_once(':').map_or((entry, None), |(a, b)| (a, Some(b)));
            let (address, to) = behind.map(destination).transpose()?.unwrap_or_default();
            if address.is_some() && target.is_some_and(|target| Some(target) != address) {
                return Err("the ports lead to several addresses".into());
            }
            target = target.or(address);
            match (ports, to) {
                ("all", None) => all = true,
                ("all", Some(_)) => return Err("'all' leads to the same ports".into()),
                (ports, to) => included.push(mapping(range(ports)?, to)?),
            }
        }
    }
    let which = match (all || included.is_empty(), auto) {
        (true, true) => Which::Auto { except },
        (true, false) => Which::All { except },
        (false, true) => Which::Auto { except: all_but(&included, &except)? },
        (false, false) => Which::Ports(without(&included, &except)),
    };
    Ok(Spec { on, which, target })
}

/// What stands in front of a slash, if that is an address.
fn address(text: &str) -> Result<Option<IpAddr>, String> {
    let (address, interface) = text.split_once('%').map_or((text, None), |(a, i)| (a, Some(i)));
    match (address.parse(), interface) {
        (address, None) => Ok(address.ok()),
        (_, Some(interface)) => {
            Err(format!("ports of one interface are not supported; leave out %{interface}"))
        }
    }
}

/// `TARGET`, `TARGET/PORTS`, or `PORTS`.
fn destination(text: &str) -> Result<(Option<IpAddr>, Option<Range>), String> {
    let ip = |text: &str| text.parse().map_err(|_| format!("{text} is no address"));
    match text.split_once('/') {
        Some((address, ports)) => Ok((Some(ip(address)?), Some(range(ports)?))),
        None if text.contains(['.', ':']) => Ok((Some(ip(text)?), None)),
        None => Ok((None, Some(range(text)?))),
    }
}

fn mapping(from: Range, to: Option<Range>) -> Result<Mapping, String> {
    let to = to.unwrap_or(from);
    match to.last - to.first == from.last - from.first {
        true => Ok(Mapping { from, to: to.first }),
        false => Err("the two ranges differ in length".into()),
    }
}

fn range(text: &str) -> Result<Range, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = Range { first: port(first)?, last: port(last)? };
    match range.first <= range.last {
        true => Ok(range),
        false => Err("a range ends before it begins".into()),
    }
}

fn port(text: &str) -> Result<u16, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|port: &u16| is_number && *port > 0);
    number.ok_or_else(|| format!("'{text}' is no port: give a number from 1 to 65535"))
}

/// The mappings without the excluded ports.
fn without(included: &[Mapping], except: &[Range]) -> Vec<Mapping> {
    let mut rest = included.to_vec();
    for gone in except {
        let cut = |ports: Mapping| {
            let Range { first, last } = ports.from;
            let below = (first < gone.first).then(|| (first, last.min(gone.first - 1)));
            let above = (last > gone.last).then(|| (first.max(gone.last + 1), last));
            let part = move |(from, last)| Mapping {
                from: Range { first: from, last },
                to: ports.to + (from - first),
            };
            below.into_iter().chain(above).map(part).collect::<Vec<_>>()
        };
        rest = rest.into_iter().flat_map(cut).collect();
    }
    rest
}

/// Every port that is not included, or excluded.
fn all_but(included: &[Mapping], except: &[Range]) -> Result<Vec<Range>, String> {
    if included.iter().any(|ports| ports.to != ports.from.first) {
        return Err("with auto, ports lead to the same ports".into());
    }
    let kept: Vec<Range> = without(included, except).into_iter().map(|ports| ports.from).collect();
    let every = Mapping { from: Range::EVERY, to: Range::EVERY.first };
    Ok(without(&[every], &kept).into_iter().map(|ports| ports.from).collect())
}
