//! [`Context`], the state that all parts of a guest's relay share: the guest, its rules and judge, counters,
//! records, and the epoll set that wakes the relay. [`Context::judge`] decides about every new flow.

mod audit;
mod rates;
mod record;
mod time_wait;
mod verdict;
mod whole;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagewire::services::Instant;

use crate::asking::{Desk, QuestionId, Waiting};
use crate::counters::Counters;
use crate::denials::Denials;
use crate::dns::DnsServer;
use crate::epoll::EpollSet;
use crate::guest_link::GuestLink;
use crate::limits::{UDP_ENDPOINTS, UDP_PORTS};
use crate::policy::{LocalAddresses, Pattern, Reason, Rule, Rules};
use crate::request::{
    Ask, Audit, ByPolicy, Demand, Direction, GuestId, How, Journal, Judge, Name, Protocol, Record,
    Shown, ShownBy, Verdict,
};
use crate::shown::DatagramGate;
use crate::source::Source;
use crate::tally::Tally;
use crate::via::{Vias, Way};

pub(crate) use rates::{Rates, Ruling};
pub(crate) use record::{Decide, Fate, FlowRecord};
pub(crate) use time_wait::TimeWait;
use verdict::Found;
pub(crate) use whole::Whole;

pub(crate) struct Context {
    pub(crate) guest: GuestId,
    pub(crate) link: GuestLink,
    pub(crate) source: Source,
    pub(crate) rules: Arc<Rules>,
    pub(crate) vias: Arc<Vias>,
    /// The embedding program's judge, which is asked before the rules.
    pub(crate) judge: Option<Arc<dyn Judge>>,
    /// The questions to the embedding program's policy, which is asked after the rules.
    pub(crate) desk: Option<Desk>,
    /// The resolver, which answers the guest's queries and remembers names.
    pub(crate) dns: DnsServer,
    pub(crate) local_addresses: LocalAddresses,
    pub(crate) journal: Option<Arc<dyn Journal>>,
    pub(crate) watch: EpollSet,
    pub(crate) counters: Counters,
    /// The rates of permissions, by their numbers: of what the guest sends, and of what it receives.
    pub(crate) rates: Rates,
    /// What this relay has in common with those of the guest's other cores.
    pub(crate) whole: Whole,
    /// What the guest has of what has a limit.
    pub(crate) tally: Tally,
    pub(crate) share: DescriptorShare,
    /// Number of descriptors of the guest's connections, for parts that open others.
    pub(crate) descriptors: usize,
}

/// The descriptors that a gateway's guests share in equal parts.
#[derive(Clone)]
pub(crate) struct DescriptorShare {
    pub(crate) all: usize,
    pub(crate) guests: Arc<AtomicUsize>,
}

impl DescriptorShare {
    /// Number of descriptors that one guest may have.
    pub(crate) fn per_guest(&self) -> usize {
        self.all / self.guests.load(Ordering::Relaxed).max(1)
    }

    /// Number of ports for datagrams that one guest may have.
    pub(crate) fn ports_per_guest(&self) -> usize {
        UDP_ENDPOINTS.min(UDP_PORTS / self.guests.load(Ordering::Relaxed).max(1))
    }
}

/// A flow that was judged.
pub(crate) struct JudgedFlow {
    pub(crate) flow: u64,
    pub(crate) ask: Ask,
    /// The destination, or the reason of the denial.
    pub(crate) to: Result<SocketAddr, Denial>,
}

/// A flow that was judged, or that waits for a policy.
pub(crate) enum Judged {
    Flow(JudgedFlow),
    /// The flow is to be [judged](Context::judge_waiting) once its question has an answer.
    Waits(Waiting),
}

impl Judged {
    /// The judged flow; one that would wait is denied.
    pub(crate) fn at_once(self) -> JudgedFlow {
        match self {
            Self::Flow(judged) => judged,
            Self::Waits(Waiting { flow, ask, .. }) => {
                JudgedFlow { flow, ask, to: Err(Denial::Prohibit) }
            }
        }
    }
}

/// A verdict that ends a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    Refuse,
    Prohibit,
    Unreachable,
    Drop,
    /// The kernel did not say whether the address is local: the next attempt asks again.
    Forget,
}

impl Context {
    /// Judges a new flow of the guest, and writes down the verdict.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        protocol: Protocol,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Judged {
        let ask = Ask::new(self.guest, protocol, from, to);
        self.judge_ask(now, ask)
    }

    /// Judges a flow again whose question has an answer.
    pub(crate) fn judge_waiting(&mut self, now: Instant, flow: u64, mut ask: Ask) -> Judged {
        ask.once = self.dns.names().denied(ask.to.ip());
        ask.by_policy = ByPolicy::Unasked;
        self.judge_named(now, flow, ask)
    }

    /// Judges a flow of the guest to this machine's loopback, which its settings have opened. Denials hold.
    pub(crate) fn judge_forwarded(
        &mut self,
        now: Instant,
        protocol: Protocol,
        from: SocketAddr,
        to: SocketAddr,
    ) -> JudgedFlow {
        let ask = Ask { mapped: true, ..Ask::new(self.guest, protocol, from, to) };
        self.judge_ask(now, ask).at_once()
    }

    /// Whether such a flow may go to `to` itself. Writes nothing down.
    pub(crate) fn permits_forwarded(
        &self,
        protocol: Protocol,
        from: SocketAddr,
        to: SocketAddr,
    ) -> bool {
        let ask = Ask { mapped: true, ..Ask::new(self.guest, protocol, from, to) };
        let opinion = self.judge.as_ref().and_then(|judge| judge.judge(&ask));
        opinion.unwrap_or_else(|| self.rules.judge(&ask)) == Verdict::Allow
    }

    /// Whether clients of a published port are permitted. Writes nothing down.
    pub(crate) fn permits_client(&self, ask: &Ask) -> bool {
        let opinion = self.judge.as_ref().and_then(|judge| judge.judge(ask));
        let by_rules = || self.rules.is_audit() || permits_flow(self.rules.judge(ask));
        opinion.map_or_else(by_rules, permits_flow)
    }

    /// Ends the wait of a flow for an answer.
    pub(crate) fn release(&mut self, question: QuestionId) {
        if let Some(desk) = &mut self.desk {
            desk.release(question);
        }
    }

    fn judge_ask(&mut self, now: Instant, mut ask: Ask) -> Judged {
        let to = ask.to;
        ask.names = self.dns.names_of(now, to.ip());
        ask.given = self.dns.given(&ask.names, to.ip());
        ask.once = self.dns.names().denied(to.ip());
        let flow = self.next_flow();
        self.judge_named(now, flow, ask)
    }

    /// Judges a flow whose names are known.
    fn judge_named(&mut self, now: Instant, flow: u64, mut ask: Ask) -> Judged {
        let (mut verdict, mut end, is_known) = match self.verdict(now, Some(flow), &mut ask) {
            Found::Verdict(verdict, end) => (verdict, end, true),
            Found::Unknown => (Verdict::Drop, ask.to, false),
            Found::Waits(question) => {
                ask.by_policy = ByPolicy::Asked;
                return Judged::Waits(Waiting { flow, ask, question });
            }
        };
        if self.rules.is_audit() && is_known {
            (verdict, end) = self.audit(now, flow, &mut ask, (verdict, end));
        }
        let shows_by_quic = ask.protocol == Protocol::Udp && ask.demand == Demand::PermittedName;
        if shows_by_quic && !DatagramGate::has_room(&self.whole.quic_flows) {
            verdict = Verdict::Prohibit;
        }
        if permits_flow(verdict) && self.way(&ask, end).is_none() {
            verdict = Verdict::Prohibit;
            self.counters.no_way += 1;
            self.note_denial(now, flow, &ask, verdict, &Rules::default());
        } else {
            self.note_verdict(now, flow, &ask, verdict);
        }
        if permits_flow(verdict) && !self.rates.is_empty() {
            ask.rate = self.rules.rated(&ask, None);
        }
        self.counters.undecided += u64::from(!is_known);
        let to = if is_known { destination_or_denial(verdict, end) } else { Err(Denial::Forget) };
        self.counters.denied += u64::from(to.is_err());
        Judged::Flow(JudgedFlow { flow, ask, to })
    }

    /// The way of a flow that rules permit to `to`; `None`: it has none, and must not go another.
    pub(crate) fn way(&self, ask: &Ask, to: SocketAddr) -> Option<Way> {
        let invented = self.dns.invented(to.ip());
        let (invented, name) = match &invented {
            Some(name) => (true, Some(name.as_ref()?)),
            None if self.vias.is_direct() => return Some(Way::Direct),
            None => (false, (to == ask.to).then(|| self.name_for(ask)).flatten()),
        };
        match self.vias.way(ask, to, name) {
            // No network has the address.
            Way::Direct if invented => None,
            Way::Proxy(_) if ask.protocol != Protocol::Tcp => None,
            way => Some(way),
        }
    }

    /// The name by which a proxy may be asked for the destination of a flow that is permitted.
    fn name_for<'a>(&self, ask: &'a Ask) -> Option<&'a Name> {
        match &ask.by_policy {
            ByPolicy::Permitted(owed) => {
                owed.names.iter().find(|name| name.is_host_name() && !ask.given.contains(name))
            }
            ByPolicy::Unasked | ByPolicy::Asked => self.rules.name_for(ask),
        }
    }

    /// Judges a client of a published port, and writes down the verdict.
    pub(crate) fn judge_client(
        &mut self,
        now: Instant,
        protocol: Protocol,
        client: SocketAddr,
        to: SocketAddr,
    ) -> JudgedFlow {
        let judged = self.judge_client_quietly(now, protocol, client, to);
        self.note_client(&judged);
        judged
    }

    /// As [`judge_client`](Self::judge_client), but writes down denials only: the client's address may be forged.
    pub(crate) fn judge_client_quietly(
        &mut self,
        now: Instant,
        protocol: Protocol,
        client: SocketAddr,
        to: SocketAddr,
    ) -> JudgedFlow {
        let mut ask = Ask::new(self.guest, protocol, client, to);
        ask.direction = Direction::In;
        let flow = self.next_flow();
        let opinion = self.judge.as_ref().and_then(|judge| judge.judge(&ask));
        let mut verdict = opinion.unwrap_or_else(|| self.rules.judge(&ask));
        if !permits_flow(verdict) && opinion.is_none() && self.rules.is_audit() {
            self.note_audit(now, flow, &ask, None);
            verdict = Verdict::Allow;
        }
        if !permits_flow(verdict) {
            self.note_verdict(now, flow, &ask, verdict);
        }
        let to = destination_or_denial(verdict, to);
        self.counters.denied += u64::from(to.is_err());
        JudgedFlow { flow, ask, to }
    }

    pub(crate) fn note_client(&self, judged: &JudgedFlow) {
        let JudgedFlow { flow, ask, to } = judged;
        let Ok(to) = *to else { return };
        let verdict = if to == ask.to { Verdict::Allow } else { Verdict::To(to) };
        self.note(|| Record::Verdict { flow: *flow, ask: ask.clone(), verdict });
    }

    /// The number of a new flow.
    fn next_flow(&self) -> u64 {
        self.whole.last_flow.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Writes down a verdict; denials as far as their rate allows, further ones are counted.
    fn note_verdict(&mut self, now: Instant, flow: u64, ask: &Ask, verdict: Verdict) {
        if permits_flow(verdict) {
            self.note(|| Record::Verdict { flow, ask: ask.clone(), verdict });
        } else {
            let rules = Arc::clone(&self.rules);
            self.note_denial(now, flow, ask, verdict, &rules);
        }
    }

    /// Writes down a denial; `rules` are those whose permission would help.
    fn note_denial(&mut self, now: Instant, flow: u64, ask: &Ask, verdict: Verdict, rules: &Rules) {
        let find = || lasting(&self.dns, ask, rules.hint(ask, None));
        if self.whole.denials.with(|denials| denials.note_destination(now, ask, find)) {
            let (guest, to) = (ask.guest, ask.destination());
            tracing::info!(%guest, to, "a destination was refused");
            self.note(|| Record::Verdict { flow, ask: ask.clone(), verdict });
        }
    }

    /// Writes down names that the resolver refused.
    pub(crate) fn note_refused_names(&mut self, now: Instant) {
        let (names, more) = self.dns.take_refused();
        let audit = self.rules.is_audit();
        if names.is_empty() && more == 0 {
            return;
        }
        self.whole.denials.with(|denials| denials.note_beyond(now, more));
        for name in names {
            let note = |denials: &mut Denials| denials.note_name(now, name.as_ref(), &self.rules);
            if self.whole.denials.with(note) {
                let guest = self.guest;
                let text = name.as_ref().map_or("unreadable", |name| name.as_str());
                if !audit {
                    tracing::info!(%guest, name = text, "a name was refused");
                }
                self.note(|| Record::DeniedName { guest, name, audit });
            }
        }
    }

    /// Writes down the number of refusals without a record of their own, if that is due.
    pub(crate) fn note_denial_sum(&mut self, now: Instant, at_the_end: bool) {
        if let Some((count, duration)) = self.whole.denials.take_sum(now, at_the_end) {
            let guest = self.guest;
            self.note(|| Record::Denials { guest, count, duration });
        }
    }

    /// Whether the guest may send to one more destination, if the rules permit that.
    pub(crate) fn may_add_destination(&mut self, now: Instant) -> bool {
        let may = self.whole.destinations.check(now).is_ok();
        self.counters.destinations_refused += u64::from(!may);
        may
    }

    /// Counts a new destination, for which [`may_add_destination`](Self::may_add_destination) was true.
    pub(crate) fn count_destination(&mut self, now: Instant) {
        self.whole.destinations.charge(now, 1);
    }

    /// Adds the names for which the resolver has given the destination since.
    fn add_names(&mut self, now: Instant, ask: &mut Ask) {
        let names = self.dns.names_of(now, ask.to.ip());
        if names.iter().all(|name| ask.names.contains(name)) {
            return;
        }
        let more = names.iter().filter(|name| !ask.names.contains(name));
        ask.names = ask.names.iter().chain(more).cloned().collect();
        ask.given = self.dns.given(&ask.names, ask.to.ip());
    }

    /// Has other rules decide from now on. Flows that exist are to be [judged again](Self::judge_again).
    pub(crate) fn set_rules(&mut self, ruling: Ruling) {
        let (rules, rates) = ruling.on_shard(self.tally.index());
        self.dns.set_rules(Arc::clone(&rules));
        (self.rules, self.rates) = (rules, rates);
    }

    /// Judges a flow to `to` again, after a change of rules. Returns the new demand on what the flow has yet to show; `None`:
    /// the flow may not go on. Writes nothing down.
    pub(crate) fn judge_again(
        &mut self,
        now: Instant,
        record: &mut FlowRecord,
        to: SocketAddr,
    ) -> Option<Demand> {
        if record.ask.direction == Direction::In {
            return self.permits_client(&record.ask).then_some(Demand::Nothing);
        }
        if record.ask.by_policy == ByPolicy::Asked {
            // The answer will be judged by the rules of its time.
            let reason = self.rules.decide(&record.ask).reason;
            let asks =
                matches!(reason, Reason::Open | Reason::NotPermitted | Reason::Permission(_));
            return asks.then_some(Demand::Nothing);
        }
        let before = record.ask.demand;
        let ask = &mut record.ask;
        self.add_names(now, ask);
        ask.once = self.dns.names().denied(ask.to.ip());
        let mut ask = ask.clone();
        let Found::Verdict(verdict, end) = self.verdict(now, None, &mut ask) else { return None };
        record.ask.rate = self.rules.rated(&ask, record.shown.as_ref());
        if self.rules.is_audit() {
            let goes_on = permits_flow(verdict) || self.opened(&ask, end).is_some();
            return goes_on.then_some(record.ask.demand);
        }
        record.ask.audit = Audit::Permitted;
        // The other side of a flow by a proxy is the proxy.
        if !permits_flow(verdict) || (end != to && record.via.is_none()) {
            return None;
        }
        // The proxy has led the flow to the host of the name that it was told.
        if let Some(name) = &record.told {
            let mut told = Ask { names: [name.clone()].into(), ..ask.clone() };
            match self.verdict(now, None, &mut told) {
                Found::Verdict(verdict, _) if permits_flow(verdict) => {}
                _ => return None,
            }
        }
        record.ask.demand = ask.demand;
        match (ask.demand, &record.shown) {
            (Demand::Nothing, _) => Some(Demand::Nothing),
            (demand, Some(shown)) => self.accepts_shown(&ask, shown).then_some(demand),
            // The flow has yet to show its name.
            (demand, None) if before == demand || before == Demand::PermittedName => Some(demand),
            // Nobody has looked at the flow's first bytes. The names of its address are judged above.
            (Demand::NoDeniedName, None) => Some(Demand::Nothing),
            (Demand::PermittedName, None) => None,
        }
    }

    /// Whether a flow between two sockets of this machine's kernel may go on, by the rules of this time. The function may
    /// be called by other threads.
    pub(crate) fn permits_joined(&self) -> impl Fn(&Ask, SocketAddr) -> bool + Send + 'static {
        let (rules, judge) = (Arc::clone(&self.rules), self.judge.clone());
        move |ask, to| {
            let permits = |ask: &Ask| {
                let opinion = judge.as_ref().and_then(|judge| judge.judge(ask));
                let by_rules = || rules.is_audit() || permits_flow(rules.judge(ask));
                opinion.map_or_else(by_rules, permits_flow)
            };
            match ask.direction {
                Direction::In => permits(ask),
                Direction::Out => {
                    let ask = Ask { mapped: true, ..ask.clone() };
                    permits(&ask) && permits(&Ask { to, ..ask })
                }
            }
        }
    }

    /// Judges what a flow shows, and notes what rules permit.
    pub(crate) fn judge_shown(
        &mut self,
        now: Instant,
        record: &mut FlowRecord,
        shown: &Shown,
    ) -> bool {
        let audit = std::mem::take(&mut record.ask.audit);
        self.add_names(now, &mut record.ask);
        let permits = audit != Audit::Refused && self.accepts_shown(&record.ask, shown);
        if !permits && self.rules.is_audit() {
            self.note_audit(now, record.flow, &record.ask, Some(shown.clone()));
            record.shown = Some(shown.clone());
            return true;
        }
        if permits {
            if !self.rates.is_empty() {
                record.ask.rate = self.rules.rated(&record.ask, Some(shown));
            }
            record.shown = Some(shown.clone());
        }
        permits
    }

    /// Writes down how a flow ended, and the refusal of rules that nothing has caused to be written down so far.
    pub(crate) fn close(&mut self, now: Instant, mut record: FlowRecord, how: How) {
        if std::mem::take(&mut record.ask.audit) != Audit::Permitted {
            let has_name = !record.ask.names.is_empty();
            let shown = has_name.then_some(Shown { by: ShownBy::Unknown, name: None });
            self.note_audit(now, record.flow, &record.ask, shown);
        }
        record.close(now, how, self);
    }

    /// Writes down that a flow is refused for what it shows.
    pub(crate) fn note_mismatch(&mut self, now: Instant, record: &FlowRecord, shown: &Shown) {
        let FlowRecord { flow, ask, .. } = record;
        self.counters.denied += 1;
        self.counters.mismatched += 1;
        let find = || lasting(&self.dns, ask, self.rules.hint(ask, Some(shown)));
        if self.whole.denials.with(|denials| denials.note_shown(now, ask, shown, find)) {
            let (guest, to, by) = (ask.guest, ask.destination(), shown.by.name());
            let name = shown.name.as_ref().map(Name::as_str);
            tracing::info!(%guest, to, by, name, "a connection was refused for the name it shows");
            self.note(|| Record::Mismatch { flow: *flow, ask: ask.clone(), shown: shown.clone() });
        }
    }

    /// Gives a record to the journal, if there is one.
    pub(crate) fn note(&self, record: impl FnOnce() -> Record) {
        if let Some(journal) = &self.journal {
            journal.note(record());
        }
    }
}

/// The destination after a verdict, or the denial.
fn destination_or_denial(verdict: Verdict, to: SocketAddr) -> Result<SocketAddr, Denial> {
    match verdict {
        Verdict::Allow => Ok(to),
        Verdict::To(other) => Ok(other),
        Verdict::Refuse => Err(Denial::Refuse),
        Verdict::Prohibit => Err(Denial::Prohibit),
        Verdict::Unreachable => Err(Denial::Unreachable),
        Verdict::Drop => Err(Denial::Drop),
    }
}

/// The rule for the flow, if it means the same at the next start: an invented address may stand for another name then.
fn lasting(dns: &DnsServer, ask: &Ask, rule: Option<Rule>) -> Option<Rule> {
    let is_invented = dns.invented(ask.to.ip()).is_some();
    rule.filter(|rule| !is_invented || matches!(rule.what, Pattern::Name(_)))
}

fn permits_flow(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Allow | Verdict::To(_))
}

#[cfg(test)]
#[path = "context_tests.rs"]
mod tests;
