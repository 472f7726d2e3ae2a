//! [`Denials`]: the refusals of a guest, those that get a record each, and the sums for the rest and for the end.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use pagewire::services::Instant;

use crate::limits::{DENIAL_LINES_BURST, DENIAL_LINES_PER_SECOND, DENIAL_SUM, DENIALS_REMEMBERED};
use crate::rate::Rate;
use crate::request::{Ask, Name};
use crate::shown::Shown;

/// The refusals of a guest so far, as numbers of different names and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denied {
    /// Names that the resolver refused; no more are counted than
    /// [`DENIALS_REMEMBERED`](crate::limits::DENIALS_REMEMBERED).
    pub names: usize,
    /// Addresses that rules denied; the same limit holds.
    pub addresses: usize,
    /// The first of all, as text: a name, or an address with its port, protocol and latest name; `None`:
    /// nothing was refused.
    pub first: Option<String>,
}

impl fmt::Display for Denied {
    /// As a sentence: "3 names and 1 address were refused; the first: pypi.org".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |n: usize, one: &str, many: &str| match n {
            0 => None,
            1 => Some(format!("1 {one}")),
            DENIALS_REMEMBERED.. => Some(format!("{n} or more {many}")),
            _ => Some(format!("{n} {many}")),
        };
        let names = part(self.names, "name", "names");
        let parts = names.into_iter().chain(part(self.addresses, "address", "addresses"));
        let parts: Vec<String> = parts.collect();
        let verb = if self.names + self.addresses == 1 { "was" } else { "were" };
        write!(f, "{} {verb} refused", parts.join(" and "))?;
        self.first.as_ref().map_or(Ok(()), |first| write!(f, "; the first: {first}"))
    }
}

/// The refusals of one guest.
#[derive(Debug)]
pub(crate) struct Denials {
    /// Refusals that are written down one by one.
    lines: Rate,
    /// Number of refusals without a record, and since when they are counted.
    beyond: Option<(u64, Instant)>,
    names: BTreeSet<Name>,
    addresses: BTreeSet<IpAddr>,
    first: Option<String>,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            lines: Rate::new(DENIAL_LINES_PER_SECOND, DENIAL_LINES_BURST),
            beyond: None,
            names: BTreeSet::new(),
            addresses: BTreeSet::new(),
            first: None,
        }
    }
}

impl Denials {
    /// Notes a destination that is refused. `true`: it is to be written down.
    pub(crate) fn note_destination(&mut self, now: Instant, ask: &Ask) -> bool {
        if self.addresses.len() < DENIALS_REMEMBERED {
            self.first.get_or_insert_with(|| ask.destination());
            self.addresses.insert(ask.to.ip());
        }
        self.may_write(now)
    }

    /// Notes a flow that is refused for what it shows. `true`: it is to be written down.
    pub(crate) fn note_shown(&mut self, now: Instant, ask: &Ask, shown: &Shown) -> bool {
        if let Some(name) = &shown.name {
            return self.note_name(now, Some(name));
        }
        self.note_destination(now, ask)
    }

    /// Notes a name that is refused; `None`: one that cannot be read. `true`: it is to be written down.
    pub(crate) fn note_name(&mut self, now: Instant, name: Option<&Name>) -> bool {
        if let Some(name) = name
            && self.names.len() < DENIALS_REMEMBERED
        {
            self.first.get_or_insert_with(|| name.to_string());
            self.names.insert(name.clone());
        }
        self.may_write(now)
    }

    fn may_write(&mut self, now: Instant) -> bool {
        let may = self.lines.take(now).is_ok();
        if !may {
            self.note_beyond(now, 1);
        }
        may
    }

    /// Counts refusals that are not written down one by one.
    pub(crate) fn note_beyond(&mut self, now: Instant, n: u64) {
        if n > 0 {
            self.beyond.get_or_insert((0, now)).0 += n;
        }
    }

    /// The time when the sum of refusals without a record is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.beyond.map(|(_, since)| since + DENIAL_SUM)
    }

    /// Takes the number of refusals without a record, and the time of counting, if that is due or at the end.
    pub(crate) fn take_sum(&mut self, now: Instant, at_the_end: bool) -> Option<(u64, Duration)> {
        let due = at_the_end || self.poll_timeout().is_some_and(|at| at <= now);
        let (n, since) = due.then(|| self.beyond.take())??;
        Some((n, now.saturating_since(since)))
    }

    /// The sum of all refusals so far.
    pub(crate) fn so_far(&self) -> Denied {
        let (names, addresses) = (self.names.len(), self.addresses.len());
        Denied { names, addresses, first: self.first.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::request::{GuestId, Protocol};

    const START: Instant = Instant::from_millis(1000);

    fn ask(n: u32) -> Ask {
        let to = SocketAddr::from((IpAddr::V4((0xc000_0200 + n).into()), 443));
        Ask::new(GuestId(1), Protocol::Tcp, "10.0.2.15:9".parse().unwrap(), to)
    }

    #[test]
    fn refusals_beyond_the_rate_are_summed_up_and_none_is_lost() {
        let mut denials = Denials::default();
        let all = 3 * u64::from(DENIAL_LINES_BURST);
        let mut written = 0;
        for _ in 0..all {
            written += u64::from(denials.note_destination(START, &ask(1)));
        }
        assert_eq!(written, u64::from(DENIAL_LINES_BURST));
        assert_eq!(denials.take_sum(START, false), None);
        let due = denials.poll_timeout().unwrap();
        assert_eq!(denials.take_sum(due, false), Some((all - written, DENIAL_SUM)));
        assert_eq!(denials.poll_timeout(), None);
        // At the end, nothing waits.
        denials.note_beyond(due, 7);
        assert_eq!(denials.take_sum(due, true), Some((7, Duration::ZERO)));
    }

    #[test]
    fn the_sentence_counts_names_and_addresses_that_differ() {
        let mut denials = Denials::default();
        assert_eq!(denials.so_far(), Denied::default());
        for name in ["a.org", "b.org", "a.org"] {
            denials.note_name(START, Some(&name.parse().unwrap()));
        }
        let text = denials.so_far().to_string();
        assert_eq!(text, "2 names were refused; the first: a.org");
        denials.note_destination(START, &ask(1));
        let text = denials.so_far().to_string();
        assert_eq!(text, "2 names and 1 address were refused; the first: a.org");
        for n in 0..2 * DENIALS_REMEMBERED as u32 {
            denials.note_destination(START, &ask(n));
        }
        let text = denials.so_far().to_string();
        assert!(text.contains(&format!("and {DENIALS_REMEMBERED} or more addresses")), "{text}");
        let mut one = Denials::default();
        one.note_destination(START, &ask(1));
        assert_eq!(one.so_far().to_string(), "1 address was refused; the first: 192.0.2.1:443/tcp");
        // A guest knows a destination by its name.
        let mut named = Denials::default();
        named.note_destination(START, &Ask { names: ["a.org".parse().unwrap()].into(), ..ask(1) });
        let text = named.so_far().to_string();
        assert_eq!(text, "1 address was refused; the first: 192.0.2.1:443/tcp (a.org)");
        let ping = Ask { protocol: Protocol::Echo, ..ask(1) };
        assert_eq!(ping.destination(), "192.0.2.1/icmp");
    }
}
