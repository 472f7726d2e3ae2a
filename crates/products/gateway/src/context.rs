//! [`Context`], the state that all parts of a guest's relay share: the guest, its rules and judge, counters,
//! records, and the epoll set that wakes the relay. [`Context::judge`] decides about every new flow.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagewire::services::Instant;

use crate::asking::{Asked, Desk, QuestionId, Waiting};
use crate::counters::Counters;
use crate::denials::Denials;
use crate::dns::DnsServer;
use crate::epoll::EpollSet;
use crate::guest_link::GuestLink;
use crate::limits::{
    DESTINATIONS_BURST, DESTINATIONS_PER_SECOND, REDIRECTIONS, UDP_ENDPOINTS, UDP_PORTS,
};
use crate::policy::{Decision, LocalAddresses, Reason, Rule, Rules};
use crate::rate::{ByteRate, Rate};
use crate::request::{
    Ask, Audit, ByPolicy, Demand, Direction, FlowState, GuestId, How, Journal, Judge, Name,
    Protocol, Record, Shown, ShownBy, Verdict,
};
use crate::shown::DatagramGate;
use crate::source::Source;
use crate::via::{Vias, Way};

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
    pub(crate) denials: Denials,
    /// Bytes that the guest's connections hold until their names are judged.
    pub(crate) held: Arc<AtomicUsize>,
    /// The guest's flows of datagrams that must show a name.
    pub(crate) quic_flows: Arc<AtomicUsize>,
    /// The rates of permissions, by their numbers: of what the guest sends, and of what it receives.
    pub(crate) rates: Rates,
    /// The rate of new destinations of datagrams and echo requests.
    pub(crate) destinations: Rate,
    pub(crate) last_flow: Arc<AtomicU64>,
    pub(crate) share: DescriptorShare,
    /// Number of descriptors of the guest's connections, for parts that open others.
    pub(crate) descriptors: usize,
}

/// The rates of permissions.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<usize, [ByteRate; 2]>);

impl Rates {
    /// The rates of these rules, all of which are idle.
    pub(crate) fn of(rules: &Rules) -> Self {
        Self(rules.speeds().map(|(n, speed)| (n, [ByteRate::new(speed.bits()); 2])).collect())
    }

    /// The bytes that a flow may move out and in, each with the time of more if it is none.
    pub(crate) fn room(&self, now: Instant, ask: &Ask) -> Option<[Result<usize, Instant>; 2]> {
        let rates = self.0.get(&ask.rate?)?;
        Some(rates.map(|rate| rate.room(now)))
    }

    /// Counts bytes that a flow has moved out and in.
    pub(crate) fn charge(&mut self, now: Instant, ask: &Ask, moved: [usize; 2]) {
        let rates = ask.rate.and_then(|n| self.0.get_mut(&n));
        for (rate, bytes) in rates.into_iter().flatten().zip(moved) {
            rate.charge(now, bytes);
        }
    }

    /// Whether a datagram may pass in this direction.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        rate: Option<usize>,
        direction: Direction,
        bytes: usize,
    ) -> bool {
        let Some([out, inward]) = rate.and_then(|n| self.0.get_mut(&n)) else { return true };
        let rate = if direction == Direction::Out { out } else { inward };
        rate.admit(now, bytes)
    }
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

/// What is found about a flow.
enum Found {
    /// The verdict, and the final destination.
    Verdict(Verdict, SocketAddr),
    /// The rules are about this machine's addresses, and the kernel does not say whether this is one.
    Unknown,
    /// The policy is asked.
    Waits(QuestionId),
}

/// The record of a flow from its verdict on, logged when the flow ends.
pub(crate) struct FlowRecord {
    pub(crate) flow: u64,
    pub(crate) ask: Ask,
    /// The proxy by which the flow goes, for people.
    pub(crate) via: Option<Arc<str>>,
    pub(crate) began: Instant,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
    /// The protocol and the name that rules have permitted last.
    pub(crate) shown: Option<Shown>,
}

impl FlowRecord {
    pub(crate) fn new(now: Instant, flow: u64, ask: Ask) -> Self {
        let (via, shown) = (None, None);
        Self { flow, ask, via, began: now, bytes_out: 0, bytes_in: 0, shown }
    }

    /// The state of the flow, whose other side has this address.
    pub(crate) fn state(&self, now: Instant, peer: SocketAddr, open: bool) -> FlowState {
        let Self { flow, ask, began, bytes_out, bytes_in, shown, .. } = self;
        FlowState {
            flow: *flow,
            ask: ask.clone(),
            shown: shown.clone(),
            peer,
            bytes_out: *bytes_out,
            bytes_in: *bytes_in,
            age: now.saturating_since(*began),
            open,
        }
    }

    /// Payload bytes in both directions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_out + self.bytes_in
    }

    /// Writes down that both sides are connected, with the far side's address.
    pub(crate) fn open(&self, peer: SocketAddr, context: &Context) {
        let via = self.via.clone();
        context.note(|| Record::Opened { flow: self.flow, ask: self.ask.clone(), peer, via });
    }

    pub(crate) fn close(self, now: Instant, how: How, context: &Context) {
        let Self { flow, ask, began, bytes_out, bytes_in, .. } = self;
        let duration = now.saturating_since(began);
        context.note(|| Record::Closed { flow, ask, bytes_out, bytes_in, duration, how });
    }
}

/// Whether a flow goes on: `Ok` with the new demand on what the flow has yet to show, if that may be another; `Err` with
/// the reason of the end.
pub(crate) type Fate = Result<Option<Demand>, How>;

/// Decides about a flow, whose other side has the address.
pub(crate) type Decide<'a> = dyn FnMut(&mut Context, &mut FlowRecord, SocketAddr) -> Fate + 'a;

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
        if shows_by_quic && !DatagramGate::has_room(&self.quic_flows) {
            verdict = Verdict::Prohibit;
        }
        if permits_flow(verdict) && self.way(&ask, end).is_none() {
            verdict = Verdict::Prohibit;
            self.counters.no_way += 1;
            self.note_denial(now, flow, &ask, verdict, &Rules::default());
        } else {
            self.note_verdict(now, flow, &ask, verdict);
        }
        if permits_flow(verdict) && !self.rates.0.is_empty() {
            ask.rate = self.rules.rated(&ask, None);
        }
        self.counters.undecided += u64::from(!is_known);
        let to = if is_known { destination_or_denial(verdict, end) } else { Err(Denial::Forget) };
        self.counters.denied += u64::from(to.is_err());
        Judged::Flow(JudgedFlow { flow, ask, to })
    }

    /// The way of a flow that rules permit to `to`; `None`: it has none, and must not go another.
    pub(crate) fn way(&self, ask: &Ask, to: SocketAddr) -> Option<Way> {
        let (invented, name) = match self.dns.invented(to.ip()) {
            Some(name) => (true, Some(name?)),
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
            ByPolicy::Permitted(names) => {
                names.iter().find(|name| name.is_host_name() && !ask.given.contains(name))
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
        self.last_flow.fetch_add(1, Ordering::Relaxed) + 1
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
        if self.denials.note_destination(now, ask, rules) {
            let (guest, to) = (ask.guest, ask.destination());
            tracing::info!(%guest, to, "a destination was refused");
            self.note(|| Record::Verdict { flow, ask: ask.clone(), verdict });
        }
    }

    /// Writes down names that the resolver refused.
    pub(crate) fn note_refused_names(&mut self, now: Instant) {
        let (names, more) = self.dns.take_refused();
        let audit = self.rules.is_audit();
        self.denials.note_beyond(now, more);
        for name in names {
            if self.denials.note_name(now, name.as_ref(), &self.rules) {
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
        if let Some((count, duration)) = self.denials.take_sum(now, at_the_end) {
            let guest = self.guest;
            self.note(|| Record::Denials { guest, count, duration });
        }
    }

    /// Whether the guest may send to one more destination, if the rules permit that.
    pub(crate) fn may_add_destination(&mut self, now: Instant) -> bool {
        let may = self.destinations.check(now).is_ok();
        self.counters.destinations_refused += u64::from(!may);
        may
    }

    /// Counts a new destination, for which [`may_add_destination`](Self::may_add_destination) was true.
    pub(crate) fn count_destination(&mut self, now: Instant) {
        self.destinations.charge(now, 1);
    }

    pub(crate) fn rate_of_destinations() -> Rate {
        Rate::new(DESTINATIONS_PER_SECOND, DESTINATIONS_BURST)
    }

    /// The verdict on a flow, and its final destination: each destination that a redirection leads to is judged. The
    /// policy is asked about a `flow` with a number only.
    fn verdict(&mut self, now: Instant, flow: Option<u64>, ask: &mut Ask) -> Found {
        let (asked, given) = (ask.to, Arc::clone(&ask.given));
        ask.demand = Demand::Nothing;
        let mut verdict = Verdict::Refuse;
        let needs_local = self.rules.asks_for_ours()
            || self.vias.asks_for_ours()
            || self.judge.as_ref().is_some_and(|judge| judge.asks_for_ours());
        for _ in 0..REDIRECTIONS {
            let ours = if needs_local {
                self.local_addresses.is_ours(now, ask.to.ip())
            } else {
                Some(false)
            };
            let Some(ours) = ours else {
                (ask.to, ask.mapped, ask.given) = (asked, false, given);
                return Found::Unknown;
            };
            ask.ours = ours;
            let opinion = self.judge.as_ref().and_then(|judge| judge.judge(ask));
            let by_rules;
            (verdict, by_rules) = match opinion.map(|verdict| (verdict, false)) {
                Some(judged) => judged,
                None => match self.decide(now, flow, ask) {
                    Ok(decided) => decided,
                    Err(question) => {
                        (ask.to, ask.mapped, ask.given) = (asked, false, given);
                        return Found::Waits(question);
                    }
                },
            };
            if by_rules && permits_flow(verdict) && !ask.mapped {
                ask.demand = self.demand(ask);
            }
            match verdict {
                Verdict::To(to) if to != ask.to => {
                    (ask.to, ask.mapped) = (to, by_rules);
                    // The names were given for the first destination.
                    ask.given = Arc::default();
                }
                Verdict::To(_) => verdict = Verdict::Allow,
                _ => {}
            }
            if !matches!(verdict, Verdict::To(_)) {
                break;
            }
        }
        (ask.mapped, ask.given) = (false, given);
        let to = std::mem::replace(&mut ask.to, asked);
        let (verdict, to) = match verdict {
            // Rules redirect to each other without an end.
            Verdict::To(_) => (Verdict::Refuse, to),
            // Nobody but the gateway could answer, which did not take the flow.
            Verdict::Allow if to == asked && self.link.ends_here(to.ip()) => (Verdict::Refuse, to),
            Verdict::Allow if to != asked => (Verdict::To(to), to),
            verdict => (verdict, to),
        };
        Found::Verdict(verdict, to)
    }

    /// The verdict of the rules, or of the policy where these leave a flow open. `false`: the verdict is not the rules' to
    /// demand something for.
    fn decide(
        &mut self,
        now: Instant,
        flow: Option<u64>,
        ask: &mut Ask,
    ) -> Result<(Verdict, bool), QuestionId> {
        let Decision { verdict, reason } = self.rules.decide(ask);
        if !matches!(reason, Reason::Open | Reason::NotPermitted) {
            return Ok((verdict, true));
        }
        // A mapping of the rules leads on where the policy permits the mapped address.
        let opened = |rules: &Rules, ask: &Ask| match permits_flow(verdict) {
            true => verdict,
            false => rules.opened().judge(ask),
        };
        if matches!(ask.by_policy, ByPolicy::Permitted(_)) {
            return Ok((opened(&self.rules, ask), true));
        }
        let (Some(desk), Some(flow), false) = (&mut self.desk, flow, self.rules.is_audit()) else {
            return Ok((verdict, true));
        };
        match desk.ask(now, flow, ask) {
            Asked::Waits(question) => Err(question),
            Asked::Rules => Ok((verdict, true)),
            Asked::Decided { verdict: Verdict::Allow, shown } => {
                let names = if shown { Arc::clone(&ask.names) } else { Arc::default() };
                ask.by_policy = ByPolicy::Permitted(names);
                Ok((opened(&self.rules, ask), true))
            }
            Asked::Decided { verdict, .. } => Ok((verdict, false)),
        }
    }

    /// The demand on a flow that is permitted.
    fn demand(&self, ask: &Ask) -> Demand {
        match &ask.by_policy {
            ByPolicy::Unasked | ByPolicy::Asked => self.rules.demand(ask),
            ByPolicy::Permitted(_) if ask.protocol == Protocol::Echo => Demand::Nothing,
            ByPolicy::Permitted(names) if !names.is_empty() => Demand::PermittedName,
            ByPolicy::Permitted(_)
                if ask.protocol == Protocol::Tcp && self.rules.denies_names() =>
            {
                Demand::NoDeniedName
            }
            ByPolicy::Permitted(_) => Demand::Nothing,
        }
    }

    /// Whether the rules, or the policy that permits the flow, let it go on with what it shows.
    fn accepts_shown(&self, ask: &Ask, shown: &Shown) -> bool {
        let ByPolicy::Permitted(names) = &ask.by_policy else {
            return self.rules.permits_shown(ask, shown);
        };
        if let Some(name) = &shown.name {
            let named = Ask { names: [name.clone()].into(), ..ask.clone() };
            if matches!(self.rules.decide(&named).reason, Reason::Denial(_)) {
                return false;
            }
        }
        let shows = matches!(shown.by, ShownBy::Tls | ShownBy::Http | ShownBy::Quic);
        let is_one = || shows && shown.name.as_ref().is_some_and(|name| names.contains(name));
        let by_rules = || self.rules.is_restricted() && self.rules.permits_shown(ask, shown);
        names.is_empty() || is_one() || by_rules()
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
    pub(crate) fn set_rules(&mut self, rules: Arc<Rules>) {
        self.dns.set_rules(Arc::clone(&rules));
        self.rates = Rates::of(&rules);
        self.rules = rules;
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

    /// The verdict on a flow under rules that only write down what they refuse, and its destination.
    fn audit(
        &mut self,
        now: Instant,
        flow: u64,
        ask: &mut Ask,
        (verdict, end): (Verdict, SocketAddr),
    ) -> (Verdict, SocketAddr) {
        let demand = std::mem::take(&mut ask.demand);
        let is_refused = !permits_flow(verdict);
        let asks_for_name = demand == Demand::PermittedName;
        let (mut verdict, mut end) = (verdict, end);
        if is_refused {
            match self.opened(ask, end) {
                Some(opened) => (verdict, end) = opened,
                None => return (verdict, end),
            }
        }
        match ask.protocol {
            // The first bytes are looked at, and pass whatever they show.
            Protocol::Tcp => {
                ask.demand = Demand::NoDeniedName;
                ask.audit = match (is_refused, asks_for_name) {
                    (true, _) => Audit::Refused,
                    (false, true) => Audit::AsksForName,
                    (false, false) => Audit::Permitted,
                };
            }
            // Datagrams to port 443 are taken for QUIC's.
            Protocol::Udp if asks_for_name && end.port() != HTTPS => {
                let shown = Some(Shown { by: ShownBy::Unknown, name: None });
                self.note_audit(now, flow, ask, shown);
            }
            Protocol::Udp if is_refused => {
                let shown = Shown { by: ShownBy::Unknown, name: None };
                self.note_audit(now, flow, ask, (end.port() != HTTPS).then_some(shown));
            }
            Protocol::Echo if is_refused => self.note_audit(now, flow, ask, None),
            Protocol::Udp | Protocol::Echo => {}
        }
        (verdict, end)
    }

    /// The verdict, without permissions and denials, on a flow that was refused on its way to `end`, and its destination;
    /// `None`: the refusal is the embedding program's, or of limits that no rule sets.
    fn opened(&self, ask: &Ask, end: SocketAddr) -> Option<(Verdict, SocketAddr)> {
        let is_its =
            |ask: &Ask| self.judge.as_ref().is_some_and(|judge| judge.judge(ask).is_some());
        if is_its(ask) || (end != ask.to && is_its(&Ask { to: end, mapped: true, ..ask.clone() })) {
            return None;
        }
        let verdict = self.rules.opened().judge(ask);
        let end = if let Verdict::To(to) = verdict { to } else { ask.to };
        let is_ours = end == ask.to && self.link.ends_here(end.ip());
        (permits_flow(verdict) && !is_ours).then_some((verdict, end))
    }

    /// Writes down what rules would refuse.
    fn note_audit(&mut self, now: Instant, flow: u64, ask: &Ask, shown: Option<Shown>) {
        self.counters.audited += 1;
        let rules = Arc::clone(&self.rules);
        let find = || rules.permission(ask, shown.as_ref());
        let (is_written, permission) = self.denials.note_audit(now, ask, shown.as_ref(), find);
        if is_written {
            let permission = permission.map(|rule| rule.to_string());
            self.note(|| Record::Audit { flow, ask: ask.clone(), shown, permission });
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
            if !self.rates.0.is_empty() {
                record.ask.rate = self.rules.rated(&record.ask, Some(shown));
            }
            record.shown = Some(shown.clone());
        }
        permits
    }

    /// The rule that would permit a flow which an audit has not written down.
    pub(crate) fn missing_permission(&self, record: &FlowRecord) -> Option<Rule> {
        let is_missing = record.ask.audit != Audit::Permitted;
        let shown = Shown { by: ShownBy::Unknown, name: None };
        is_missing.then(|| self.rules.permission(&record.ask, Some(&shown))).flatten()
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
        if self.denials.note_shown(now, ask, shown, &self.rules) {
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

/// The port of HTTPS, and of HTTP/3.
const HTTPS: u16 = 443;

fn permits_flow(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Allow | Verdict::To(_))
}

#[cfg(test)]
#[path = "context_tests.rs"]
mod tests;
