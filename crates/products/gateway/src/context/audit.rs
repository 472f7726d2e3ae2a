//! An audit: what rules refuse is written down, and goes on.

use std::net::SocketAddr;
use std::sync::Arc;

use pagewire::services::Instant;

use super::{Context, FlowRecord, lasting, permits_flow};
use crate::policy::{Pattern, Proof, Rule};
use crate::request::{Ask, Audit, Demand, Protocol, Record, Shown, ShownBy, Verdict};

/// The port of HTTPS, and of HTTP/3.
const HTTPS: u16 = 443;

impl Context {
    /// The verdict on a flow under rules that only write down what they refuse, and its destination.
    pub(super) fn audit(
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
    pub(super) fn opened(&self, ask: &Ask, end: SocketAddr) -> Option<(Verdict, SocketAddr)> {
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
    pub(super) fn note_audit(&mut self, now: Instant, flow: u64, ask: &Ask, shown: Option<Shown>) {
        self.counters.audited += 1;
        let rules = Arc::clone(&self.rules);
        let find = || {
            let rule = rules.permission(ask, shown.as_ref());
            lasting(&self.dns, ask, rule.map(|rule| of_browsers(rule, ask)))
        };
        let (is_written, permission) =
            self.whole.denials.with(|denials| denials.note_audit(now, ask, shown.as_ref(), find));
        if is_written {
            let permission = permission.map(|rule| rule.to_string());
            self.note(|| Record::Audit { flow, ask: ask.clone(), shown, permission });
        }
    }

    /// The rule that would permit a flow which an audit has not written down.
    pub(crate) fn missing_permission(&self, record: &FlowRecord) -> Option<Rule> {
        let is_missing = record.ask.audit != Audit::Permitted;
        let shown = Shown { by: ShownBy::Unknown, name: None };
        let rule = is_missing.then(|| self.rules.permission(&record.ask, Some(&shown))).flatten();
        lasting(&self.dns, &record.ask, rule)
    }
}

/// The permission for a flow of datagrams that nobody has looked at: by QUIC, browsers send encrypted ClientHellos.
fn of_browsers(mut rule: Rule, ask: &Ask) -> Rule {
    if ask.protocol == Protocol::Udp
        && rule.proof == Proof::Shown
        && matches!(rule.what, Pattern::Name(_))
    {
        rule.proof = Proof::Encrypted;
    }
    rule
}
