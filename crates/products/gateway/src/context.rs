//! [`Context`], the state that all parts of a guest's relay share: the guest, its rules and judge, counters,
//! records, and the epoll set that wakes the relay. [`Context::judge`] decides about every new flow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use pagewire::services::Instant;

use crate::counters::Counters;
use crate::denials::Denials;
use crate::dns::DnsServer;
use crate::epoll::EpollSet;
use crate::guest_link::GuestLink;
use crate::limits::{
    DESTINATIONS_BURST, DESTINATIONS_PER_SECOND, REDIRECTIONS, UDP_ENDPOINTS, UDP_PORTS,
};
use crate::policy::{LocalAddresses, Rules};
use crate::rate::Rate;
use crate::request::{
    Ask, Demand, Direction, GuestId, How, Journal, Judge, Name, Protocol, Record, Shown, Verdict,
};
use crate::shown::DatagramGate;
use crate::source::Source;

pub(crate) struct Context {
    pub(crate) guest: GuestId,
    pub(crate) link: GuestLink,
    pub(crate) source: Source,
    pub(crate) rules: Arc<Rules>,
    /// The embedding program's judge, which is asked before the rules.
    pub(crate) judge: Option<Arc<dyn Judge>>,
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
    /// The rate of new destinations of datagrams and echo requests.
    pub(crate) destinations: Rate,
    pub(crate) last_flow: Arc<AtomicU64>,
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

/// The record of a flow from its verdict on, logged when the flow ends.
pub(crate) struct FlowRecord {
    pub(crate) flow: u64,
    pub(crate) ask: Ask,
    pub(crate) began: Instant,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
}

impl FlowRecord {
    pub(crate) fn new(now: Instant, flow: u64, ask: Ask) -> Self {
        Self { flow, ask, began: now, bytes_out: 0, bytes_in: 0 }
    }

    /// Payload bytes in both directions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_out + self.bytes_in
    }

    /// Writes down that both sides are connected, with the far side's address.
    pub(crate) fn open(&self, peer: SocketAddr, context: &Context) {
        context.note(|| Record::Opened { flow: self.flow, ask: self.ask.clone(), peer });
    }

    pub(crate) fn close(self, now: Instant, how: How, context: &Context) {
        let Self { flow, ask, began, bytes_out, bytes_in } = self;
        let duration = now.saturating_since(began);
        context.note(|| Record::Closed { flow, ask, bytes_out, bytes_in, duration, how });
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
    ) -> JudgedFlow {
        let ask = Ask::new(self.guest, protocol, from, to);
        self.judge_ask(now, ask)
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
        self.judge_ask(now, ask)
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
        permits_flow(opinion.unwrap_or_else(|| self.rules.judge(ask)))
    }

    fn judge_ask(&mut self, now: Instant, mut ask: Ask) -> JudgedFlow {
        let to = ask.to;
        ask.names = self.dns.names().of(now, to.ip());
        ask.given = self.dns.given(&ask.names, to.ip());
        ask.once = self.dns.names().denied(to.ip());
        let flow = self.next_flow();
        let decided = self.verdict(now, &mut ask);
        let (mut verdict, end) = decided.unwrap_or((Verdict::Drop, to));
        let shows_by_quic = ask.protocol == Protocol::Udp && ask.demand == Demand::PermittedName;
        if shows_by_quic && !DatagramGate::has_room(&self.quic_flows) {
            verdict = Verdict::Prohibit;
        }
        self.note_verdict(now, flow, &ask, verdict);
        self.counters.undecided += u64::from(decided.is_none());
        let to = if decided.is_some() {
            destination_or_denial(verdict, end)
        } else {
            Err(Denial::Forget)
        };
        self.counters.denied += u64::from(to.is_err());
        JudgedFlow { flow, ask, to }
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
        let verdict = opinion.unwrap_or_else(|| self.rules.judge(&ask));
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
        if permits_flow(verdict) || self.denials.note_destination(now, ask, &self.rules) {
            if !permits_flow(verdict) {
                let (guest, to) = (ask.guest, ask.destination());
                tracing::info!(%guest, to, "a destination was refused");
            }
            self.note(|| Record::Verdict { flow, ask: ask.clone(), verdict });
        }
    }

    /// Writes down names that the resolver refused.
    pub(crate) fn note_refused_names(&mut self, now: Instant) {
        let (names, more) = self.dns.take_refused();
        self.denials.note_beyond(now, more);
        for name in names {
            if self.denials.note_name(now, name.as_ref(), &self.rules) {
                let guest = self.guest;
                let text = name.as_ref().map_or("unreadable", |name| name.as_str());
                tracing::info!(%guest, name = text, "a name was refused");
                self.note(|| Record::DeniedName { guest, name });
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

    /// The verdict on a flow, and its final destination: each destination that a redirection leads to is judged.
    /// `None`: the rules are about this machine's addresses, and the kernel does not say whether this is one.
    fn verdict(&mut self, now: Instant, ask: &mut Ask) -> Option<(Verdict, SocketAddr)> {
        let asked = ask.to;
        ask.demand = Demand::Nothing;
        let mut verdict = Verdict::Refuse;
        let needs_local = self.rules.asks_for_ours()
            || self.judge.as_ref().is_some_and(|judge| judge.asks_for_ours());
        for _ in 0..REDIRECTIONS {
            let ours = if needs_local {
                self.local_addresses.is_ours(now, ask.to.ip())
            } else {
                Some(false)
            };
            let Some(ours) = ours else {
                (ask.to, ask.mapped) = (asked, false);
                return None;
            };
            ask.ours = ours;
            let opinion = self.judge.as_ref().and_then(|judge| judge.judge(ask));
            verdict = opinion.unwrap_or_else(|| self.rules.judge(ask));
            if opinion.is_none() && permits_flow(verdict) && !ask.mapped {
                ask.demand = self.rules.demand(ask);
            }
            match verdict {
                Verdict::To(to) if to != ask.to => {
                    (ask.to, ask.mapped) = (to, opinion.is_none());
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
        ask.mapped = false;
        let to = std::mem::replace(&mut ask.to, asked);
        Some(match verdict {
            // Rules redirect to each other without an end.
            Verdict::To(_) => (Verdict::Refuse, to),
            // Nobody but the gateway could answer, which did not take the flow.
            Verdict::Allow if to == asked && self.link.ends_here(to.ip()) => (Verdict::Refuse, to),
            Verdict::Allow if to != asked => (Verdict::To(to), to),
            verdict => (verdict, to),
        })
    }

    /// Whether a flow may go on with what it shows. Writes nothing down.
    pub(crate) fn permits_shown(&mut self, now: Instant, ask: &Ask, shown: &Shown) -> bool {
        // The resolver may have given the address for further names since.
        let names = self.dns.names().of(now, ask.to.ip());
        if names.iter().all(|name| ask.names.contains(name)) {
            return self.rules.permits_shown(ask, shown);
        }
        let mut ask = ask.clone();
        let more = names.iter().filter(|name| !ask.names.contains(name));
        ask.names = ask.names.iter().chain(more).cloned().collect();
        ask.given = self.dns.given(&ask.names, ask.to.ip());
        self.rules.permits_shown(&ask, shown)
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

fn permits_flow(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Allow | Verdict::To(_))
}

#[cfg(test)]
#[path = "context_tests.rs"]
mod tests;
