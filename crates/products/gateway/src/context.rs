//! What all parts of a guest's relay share: who the guest is, what it may do, what is counted and
//! written down, and the descriptors that wake it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagewire::Cidr;
use pagewire::services::Instant;

use crate::ask::{Ask, Direction, GuestId, How, Journal, Judge, Protocol, Record, Verdict};
use crate::counters::Counters;
use crate::denials::Denials;
use crate::dns::DnsServer;
use crate::limits::{
    DESTINATIONS_BURST, DESTINATIONS_PER_SECOND, REDIRECTIONS, UDP_ENDPOINTS, UDP_PORTS,
};
use crate::policy::{Rules, Whereabouts};
use crate::rate::Rate;
use crate::watch::Watch;

pub(crate) struct Context {
    pub(crate) guest: GuestId,
    /// The guest's own networks.
    pub(crate) inside: Vec<Cidr>,
    pub(crate) rules: Arc<Rules>,
    /// Asked before the rules.
    pub(crate) judge: Option<Arc<dyn Judge>>,
    /// Answers the guest's queries, and remembers names.
    pub(crate) dns: DnsServer,
    pub(crate) whereabouts: Whereabouts,
    pub(crate) journal: Option<Arc<dyn Journal>>,
    pub(crate) watch: Watch,
    pub(crate) counters: Counters,
    pub(crate) denials: Denials,
    /// New destinations of datagrams and echo requests.
    pub(crate) destinations: Rate,
    pub(crate) last_flow: u64,
    pub(crate) share: Share,
    /// Descriptors of the guest's connections, for those who open others.
    pub(crate) descriptors: usize,
}

/// The descriptors of a gateway's guests, which have equal parts.
#[derive(Clone)]
pub(crate) struct Share {
    pub(crate) all: usize,
    pub(crate) guests: Arc<AtomicUsize>,
}

impl Share {
    /// How many one guest may have.
    pub(crate) fn of_one(&self) -> usize {
        self.all / self.guests.load(Ordering::Relaxed).max(1)
    }

    /// How many ports for datagrams one guest may have.
    pub(crate) fn ports_of_one(&self) -> usize {
        UDP_ENDPOINTS.min(UDP_PORTS / self.guests.load(Ordering::Relaxed).max(1))
    }
}

/// A flow that was judged.
pub(crate) struct Judged {
    pub(crate) flow: u64,
    pub(crate) ask: Ask,
    /// Where it goes, or why not.
    pub(crate) to: Result<SocketAddr, Denial>,
}

/// What is known of a flow from its verdict on, and logged when the flow ends.
pub(crate) struct Passed {
    pub(crate) flow: u64,
    pub(crate) ask: Ask,
    pub(crate) began: Instant,
    pub(crate) bytes_out: u64,
    pub(crate) bytes_in: u64,
}

impl Passed {
    /// Nothing yet.
    pub(crate) fn new(now: Instant, flow: u64, ask: Ask) -> Self {
        Self { flow, ask, began: now, bytes_out: 0, bytes_in: 0 }
    }

    /// Writes down how the flow ended.
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
    Drop,
    /// Nobody could say whose address it is: the next attempt asks again.
    Forget,
}

impl Context {
    /// Asks the rules about a new flow of the guest, and writes down what they say.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        protocol: Protocol,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Judged {
        let mut ask = Ask::new(self.guest, protocol, from, to);
        ask.names = self.dns.names().of(now, to.ip());
        ask.given = self.dns.given(&ask.names, to.ip());
        ask.once = self.dns.names().denied(to.ip());
        self.last_flow += 1;
        let flow = self.last_flow;
        let said = self.verdict(now, &mut ask);
        let (verdict, end) = said.unwrap_or((Verdict::Drop, to));
        self.note_verdict(now, flow, &ask, verdict);
        self.counters.undecided += u64::from(said.is_none());
        let to = if said.is_some() { outcome(verdict, end) } else { Err(Denial::Forget) };
        self.counters.denied += u64::from(to.is_err());
        Judged { flow, ask, to }
    }

    /// Asks the rules about a client of a published port, and writes down what they say.
    pub(crate) fn judge_client(
        &mut self,
        now: Instant,
        protocol: Protocol,
        client: SocketAddr,
        to: SocketAddr,
    ) -> Judged {
        let judged = self.consider_client(now, protocol, client, to);
        self.note_client(&judged);
        judged
    }

    /// The same, but writes down denials only: others may be nobody.
    pub(crate) fn consider_client(
        &mut self,
        now: Instant,
        protocol: Protocol,
        client: SocketAddr,
        to: SocketAddr,
    ) -> Judged {
        let mut ask = Ask::new(self.guest, protocol, client, to);
        ask.direction = Direction::In;
        self.last_flow += 1;
        let flow = self.last_flow;
        let opinion = self.judge.as_ref().and_then(|judge| judge.judge(&ask));
        let verdict = opinion.unwrap_or_else(|| self.rules.judge(&ask));
        if !is_leave(verdict) {
            self.note_verdict(now, flow, &ask, verdict);
        }
        let to = outcome(verdict, to);
        self.counters.denied += u64::from(to.is_err());
        Judged { flow, ask, to }
    }

    /// Writes down that a client may pass.
    pub(crate) fn note_client(&self, judged: &Judged) {
        let Judged { flow, ask, to } = judged;
        let Ok(to) = *to else { return };
        let verdict = if to == ask.to { Verdict::Allow } else { Verdict::To(to) };
        self.note(|| Record::Verdict { flow: *flow, ask: ask.clone(), verdict });
    }

    /// Writes down a verdict; denials as far as their rate allows, and then their number.
    fn note_verdict(&mut self, now: Instant, flow: u64, ask: &Ask, verdict: Verdict) {
        if is_leave(verdict) || self.denials.note_destination(now, ask) {
            if !is_leave(verdict) {
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
            if self.denials.note_name(now, name.as_ref()) {
                let guest = self.guest;
                let text = name.as_ref().map_or("unreadable", |name| name.as_str());
                tracing::info!(%guest, name = text, "a name was refused");
                self.note(|| Record::DeniedName { guest, name });
            }
        }
    }

    /// Writes down how many refusals had no record of their own, if that is due.
    pub(crate) fn sum_up(&mut self, now: Instant, at_the_end: bool) {
        if let Some((count, duration)) = self.denials.take_sum(now, at_the_end) {
            let guest = self.guest;
            self.note(|| Record::Denials { guest, count, duration });
        }
    }

    /// Whether the guest may send to one more destination, if the rules permit that.
    pub(crate) fn may_begin(&mut self, now: Instant) -> bool {
        let may = self.destinations.look(now).is_ok();
        self.counters.destinations_refused += u64::from(!may);
        may
    }

    /// Counts a new destination, to which the guest [may send](Self::may_begin).
    pub(crate) fn begin(&mut self, now: Instant) {
        self.destinations.charge(now, 1);
    }

    /// The rate of new destinations of a guest.
    pub(crate) fn rate_of_destinations() -> Rate {
        Rate::new(DESTINATIONS_PER_SECOND, DESTINATIONS_BURST)
    }

    /// The verdict on a flow, and where it is to go: each destination that rules lead to is judged.
    /// `None`: it is about this machine's addresses, and the kernel does not say whether this is one.
    fn verdict(&mut self, now: Instant, ask: &mut Ask) -> Option<(Verdict, SocketAddr)> {
        let asked = ask.to;
        let mut verdict = Verdict::Refuse;
        let looks = self.rules.asks_for_ours()
            || self.judge.as_ref().is_some_and(|judge| judge.asks_for_ours());
        for _ in 0..REDIRECTIONS {
            let ours = if looks { self.whereabouts.is_ours(now, ask.to.ip()) } else { Some(false) };
            let Some(ours) = ours else {
                (ask.to, ask.mapped) = (asked, false);
                return None;
            };
            ask.ours = ours;
            let opinion = self.judge.as_ref().and_then(|judge| judge.judge(ask));
            verdict = opinion.unwrap_or_else(|| self.rules.judge(ask));
            match verdict {
                Verdict::To(to) if to != ask.to => {
                    (ask.to, ask.mapped) = (to, opinion.is_none());
                    // They were said about the first destination.
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
            // Rules that lead to each other.
            Verdict::To(_) => (Verdict::Refuse, to),
            // Nobody answers there but this gateway, which did not take it.
            Verdict::Allow if to == asked && self.is_inside(to.ip()) => (Verdict::Refuse, to),
            Verdict::Allow if to != asked => (Verdict::To(to), to),
            verdict => (verdict, to),
        })
    }

    /// The gateway's address of the same version of IP.
    pub(crate) fn own_address(&self, like: IpAddr) -> Option<IpAddr> {
        let all = self.inside.iter().map(|cidr| cidr.addr());
        all.into_iter().find(|ip| ip.is_ipv4() == like.is_ipv4())
    }

    /// Whether the address is of the guest's own networks.
    fn is_inside(&self, ip: IpAddr) -> bool {
        self.inside.iter().any(|cidr| cidr.contains(ip))
    }

    /// Writes something down.
    pub(crate) fn note(&self, record: impl FnOnce() -> Record) {
        if let Some(journal) = &self.journal {
            journal.note(record());
        }
    }
}

/// Where a flow to this destination goes, or why not.
fn outcome(verdict: Verdict, to: SocketAddr) -> Result<SocketAddr, Denial> {
    match verdict {
        Verdict::Allow => Ok(to),
        Verdict::To(other) => Ok(other),
        Verdict::Refuse => Err(Denial::Refuse),
        Verdict::Prohibit => Err(Denial::Prohibit),
        Verdict::Drop => Err(Denial::Drop),
    }
}

/// Whether a flow may pass.
fn is_leave(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Allow | Verdict::To(_))
}

#[cfg(test)]
#[path = "context_tests.rs"]
mod tests;
