//! [`Denials`]: the refusals of a guest, those that get a record each, and the sums for the rest and for the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagewire::services::Instant;

use crate::limits::{
    AUDIT_SEARCHES_PER_SECOND, DENIAL_LINES_BURST, DENIAL_LINES_PER_SECOND, DENIAL_SUM,
    DENIALS_REMEMBERED, REFUSALS_TOLD, RULES,
};
use crate::policy::{Rule, Rules};
use crate::rate::Rate;
use crate::request::{Ask, Direction, Name, Shown};

/// The refusals of a guest so far, as numbers of different names and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Denied {
    /// Names that the resolver refused; no more are counted than
    /// [`DENIALS_REMEMBERED`](crate::limits::DENIALS_REMEMBERED).
    pub names: usize,
    /// Addresses that rules denied, those of clients among them; the same limit holds.
    pub addresses: usize,
    /// The first of all, as text: a name, or an address with its port, protocol and latest name; `None`:
    /// nothing was refused.
    pub first: Option<String>,
    /// Refusals, at most [`REFUSALS_TOLD`](crate::limits::REFUSALS_TOLD), the most frequent in front.
    pub most: Vec<Refusal>,
    /// Some of these went on: the rules were an [audit](crate::Rules::audit).
    pub audit: bool,
}

/// A name or destination that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The name, or the address with its port, protocol and latest name, and the name that a connection showed.
    pub what: String,
    /// Number of times.
    pub times: u64,
    /// A rule that would permit it; `None`: a denial forbids it, or no permission is given at all.
    pub permission: Option<Rule>,
}

impl fmt::Display for Refusal {
    /// Without the permission, as in "7 times pypi.org".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, times, .. } = self;
        if *times == 1 { write!(f, "once {what}") } else { write!(f, "{times} times {what}") }
    }
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
        let verb = match (self.audit, self.names + self.addresses) {
            (true, _) => "would have been",
            (false, 1) => "was",
            (false, _) => "were",
        };
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
    /// Refusals by their text.
    refusals: BTreeMap<String, (u64, Option<Rule>)>,
    /// Rules that would permit what an audit has written down, by their text, and for how many flows.
    permissions: BTreeMap<String, (Rule, u64)>,
    audit: bool,
    /// Searches for rules that permit what an audit has found.
    searches: Rate,
}

impl Default for Denials {
    fn default() -> Self {
        Self {
            lines: Rate::new(DENIAL_LINES_PER_SECOND, DENIAL_LINES_BURST),
            beyond: None,
            names: BTreeSet::new(),
            addresses: BTreeSet::new(),
            first: None,
            refusals: BTreeMap::new(),
            permissions: BTreeMap::new(),
            audit: false,
            searches: Rate::new(AUDIT_SEARCHES_PER_SECOND, AUDIT_SEARCHES_PER_SECOND),
        }
    }
}

impl Denials {
    /// Notes a destination that is refused. `find` searches the rule that would permit the flow. `true`: the refusal is to be
    /// written down.
    pub(crate) fn note_destination(
        &mut self,
        now: Instant,
        ask: &Ask,
        find: impl FnOnce() -> Option<Rule>,
    ) -> bool {
        self.note_address(ask);
        self.count(ask.destination(), find);
        self.may_write(now)
    }

    /// Notes a flow that is refused for what it shows. `true`: it is to be written down.
    pub(crate) fn note_shown(
        &mut self,
        now: Instant,
        ask: &Ask,
        shown: &Shown,
        find: impl FnOnce() -> Option<Rule>,
    ) -> bool {
        self.note_address(ask);
        self.count(showing(ask, shown), find);
        self.may_write(now)
    }

    /// Notes a flow that rules would refuse. `find` searches the rule that would permit the flow. Returns whether the flow
    /// is to be written down, and the rule.
    pub(crate) fn note_audit(
        &mut self,
        now: Instant,
        ask: &Ask,
        shown: Option<&Shown>,
        find: impl FnOnce() -> Option<Rule>,
    ) -> (bool, Option<Rule>) {
        self.audit = true;
        self.note_address(ask);
        let what = shown.map_or_else(|| ask.destination(), |shown| showing(ask, shown));
        // A search compares the flow with all rules.
        let permission = match self.refusals.get(&what) {
            Some((_, permission)) => permission.clone(),
            None => self.searches.take(now).ok().and_then(|()| find()),
        };
        self.count(what, || permission.clone());
        if let Some(rule) = &permission {
            let text = rule.to_string();
            if let Some((_, flows)) = self.permissions.get_mut(&text) {
                *flows += 1;
            } else if self.permissions.len() < RULES {
                self.permissions.insert(text, (rule.clone(), 1));
            }
        }
        (self.may_write(now), permission)
    }

    /// Rules that would permit what an audit has written down, and for how many flows.
    pub(crate) fn permissions(&self) -> Vec<(Rule, u64)> {
        self.permissions.values().cloned().collect()
    }

    /// Notes a name that is refused; `None`: one that cannot be read. `true`: it is to be written down.
    pub(crate) fn note_name(&mut self, now: Instant, name: Option<&Name>, rules: &Rules) -> bool {
        if let Some(name) = name {
            if self.names.len() < DENIALS_REMEMBERED {
                self.first.get_or_insert_with(|| name.to_string());
                self.names.insert(name.clone());
            }
            self.count(name.to_string(), || rules.permission_of_name(name));
        }
        self.audit |= rules.is_audit();
        self.may_write(now)
    }

    fn note_address(&mut self, ask: &Ask) {
        if self.addresses.len() < DENIALS_REMEMBERED {
            self.first.get_or_insert_with(|| ask.destination());
            self.addresses.insert(match ask.direction {
                Direction::Out => ask.to.ip(),
                Direction::In => ask.from.ip(),
            });
        }
    }

    fn count(&mut self, what: String, permission: impl FnOnce() -> Option<Rule>) {
        if let Some((times, _)) = self.refusals.get_mut(&what) {
            *times += 1;
        } else if self.refusals.len() < DENIALS_REMEMBERED {
            self.refusals.insert(what, (1, permission()));
        }
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
        let refusal = |(what, (times, permission)): (&String, &(u64, Option<Rule>))| Refusal {
            what: what.clone(),
            times: *times,
            permission: permission.clone(),
        };
        let mut most: Vec<Refusal> = self.refusals.iter().map(refusal).collect();
        most.sort_by_key(|refusal| std::cmp::Reverse(refusal.times));
        most.truncate(REFUSALS_TOLD);
        Denied { names, addresses, first: self.first.clone(), most, audit: self.audit }
    }
}

/// The refusals of a guest, which the relays of all its cores note.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedDenials(Arc<(Mutex<Denials>, AtomicU64)>);

impl SharedDenials {
    /// Reads the refusals, or notes one.
    pub(crate) fn with<T>(&self, note: impl FnOnce(&mut Denials) -> T) -> T {
        let (denials, due) = &*self.0;
        // These are no guard: what a panic has left of them is of use.
        let mut denials = denials.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = note(&mut denials);
        let at = denials.poll_timeout().unwrap_or(Instant::FAR);
        due.store(at.as_nanos(), Ordering::Relaxed);
        noted
    }

    /// The time when the sum of refusals without a record is due. Takes no lock.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let due = Instant::from_nanos(self.0.1.load(Ordering::Relaxed));
        (Instant::ZERO < due && due < Instant::FAR).then_some(due)
    }

    /// As [`Denials::take_sum`]: one core gets the sum.
    pub(crate) fn take_sum(&self, now: Instant, at_the_end: bool) -> Option<(u64, Duration)> {
        let due = at_the_end || self.poll_timeout().is_some_and(|at| at <= now);
        due.then(|| self.with(|denials| denials.take_sum(now, at_the_end)))?
    }
}

/// A destination with what a flow to it shows.
fn showing(ask: &Ask, shown: &Shown) -> String {
    let name = shown.name.as_ref().map_or("no name", Name::as_str);
    format!("{}, which shows {name} ({})", ask.destination(), shown.by.name())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::request::ShownBy;
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
            written += u64::from(denials.note_destination(START, &ask(1), || None));
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
            denials.note_name(START, Some(&name.parse().unwrap()), &Rules::default());
        }
        let text = denials.so_far().to_string();
        assert_eq!(text, "2 names were refused; the first: a.org");
        denials.note_destination(START, &ask(1), || None);
        let text = denials.so_far().to_string();
        assert_eq!(text, "2 names and 1 address were refused; the first: a.org");
        for n in 0..2 * DENIALS_REMEMBERED as u32 {
            denials.note_destination(START, &ask(n), || None);
        }
        let most = denials.so_far().most;
        assert!(most.len() == REFUSALS_TOLD && most[0].times == 2, "{most:?}");
        let text = denials.so_far().to_string();
        assert!(text.contains(&format!("and {DENIALS_REMEMBERED} or more addresses")), "{text}");
        let mut one = Denials::default();
        one.note_destination(START, &ask(1), || None);
        assert_eq!(one.so_far().to_string(), "1 address was refused; the first: 192.0.2.1:443/tcp");
        // A guest knows a destination by its name.
        let mut named = Denials::default();
        named.note_destination(
            START,
            &Ask { names: ["a.org".parse().unwrap()].into(), ..ask(1) },
            || None,
        );
        let text = named.so_far().to_string();
        assert_eq!(text, "1 address was refused; the first: 192.0.2.1:443/tcp (a.org)");
        let ping = Ask { protocol: Protocol::Echo, ..ask(1) };
        assert_eq!(ping.destination(), "192.0.2.1/icmp");
    }

    #[test]
    fn a_refusal_has_its_number_and_the_rule_that_permits_it() {
        let rules = Rules::default().allow("good.org".parse().unwrap());
        let named = |port: u16, protocol| {
            let to = SocketAddr::new("192.0.2.1".parse().unwrap(), port);
            Ask { names: ["good.org".parse().unwrap()].into(), to, protocol, ..ask(1) }
        };
        let lines = |note: &dyn Fn(&mut Denials)| {
            let mut denials = Denials::default();
            note(&mut denials);
            let line = |refusal: &Refusal| match &refusal.permission {
                Some(rule) => format!("{refusal}: {rule}"),
                None => refusal.to_string(),
            };
            denials.so_far().most.iter().map(line).collect::<Vec<_>>()
        };
        let shown = |by, name: Option<&str>| Shown { by, name: name.map(|n| n.parse().unwrap()) };
        let show = |by, name: Option<&'static str>| {
            let (rules, ask) = (&rules, named(443, Protocol::Tcp));
            let shown = shown(by, name);
            let find = || rules.hint(&ask, Some(&shown));
            lines(&|d| _ = d.note_shown(START, &ask, &shown, find)).remove(0)
        };
        let name = |d: &mut Denials, name: &str| {
            d.note_name(START, Some(&name.parse().unwrap()), &rules);
        };
        assert_eq!(
            lines(&|d| ["a.org", "b.org", "b.org"].into_iter().for_each(|n| name(d, n))),
            ["2 times b.org: b.org", "once a.org: a.org"]
        );
        // Such a name would mean something else to a shell, or as a rule.
        assert_eq!(lines(&|d| name(d, "a.org;reboot")), ["once a.org;reboot"]);
        for name_of in ["*.org", "host", "10.0.0.1", "1.2.3", "-x", "ech", "http"] {
            assert_eq!(lines(&|d| name(d, name_of)), [format!("once {name_of}")]);
        }
        let refuse = |d: &mut Denials, ask: &Ask, rules: &Rules| {
            d.note_destination(START, ask, || rules.hint(ask, None));
        };
        let address = |d: &mut Denials| refuse(d, &ask(1), &rules);
        assert_eq!(lines(&address), ["once 192.0.2.1:443/tcp: 192.0.2.1:443/tcp"]);
        let quic = |d: &mut Denials| refuse(d, &named(443, Protocol::Udp), &rules);
        assert_eq!(lines(&quic), ["once 192.0.2.1:443/udp (good.org): good.org:443"]);
        let at = "once 192.0.2.1:443/tcp (good.org), which shows";
        assert_eq!(
            show(ShownBy::Tls, Some("evil.org")),
            format!("{at} evil.org (tls): evil.org:443")
        );
        assert_eq!(
            show(ShownBy::Unknown, None),
            format!("{at} no name (unknown): tcp:good.org:443")
        );
        assert_eq!(show(ShownBy::Ssh, None), format!("{at} no name (ssh): ssh:good.org:443"));
        assert_eq!(
            show(ShownBy::EncryptedHello, Some("good.org")),
            format!("{at} good.org (ech): ech:good.org:443")
        );
        // The clear name of an encrypted ClientHello may be anybody's.
        let cover = show(ShownBy::EncryptedHello, Some("cover.org"));
        assert_eq!(cover, format!("{at} cover.org (ech): tcp:good.org:443"));
        // Nothing leads past a denial.
        let rules = rules.clone().deny("bad.org".parse().unwrap());
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let shown = shown(ShownBy::Tls, Some("bad.org"));
            assert_eq!(rules.hint(&named(443, protocol), Some(&shown)), None);
        }
        // Without a name the address decides, which the resolver gave for a name.
        assert_eq!(show(ShownBy::Tls, None), format!("{at} no name (tls): tcp:good.org:443"));
        // What a denial forbids, no permission opens.
        let denied = Rules::default().deny("192.0.2.1".parse().unwrap());
        let address = |d: &mut Denials| refuse(d, &ask(1), &denied);
        assert_eq!(lines(&address), ["once 192.0.2.1:443/tcp"]);
    }
}
