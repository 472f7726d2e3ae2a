//! The verdict on a flow: of the embedding program's judge, of rules, and of the policy that is asked after these.

use std::net::SocketAddr;
use std::sync::Arc;

use pagewire::services::Instant;

use super::{Context, permits_flow};
use crate::asking::{Asked, QuestionId};
use crate::limits::REDIRECTIONS;
use crate::policy::{Decision, Reason, Rules};
use crate::request::{Ask, ByPolicy, Demand, Judge as _, Owed, Protocol, Shown, ShownBy, Verdict};

/// What is found about a flow.
pub(super) enum Found {
    /// The verdict, and the final destination.
    Verdict(Verdict, SocketAddr),
    /// The rules are about this machine's addresses, and the kernel does not say whether this is one; or a panic of
    /// another core has broken the names that denials have.
    Unknown,
    /// The policy is asked.
    Waits(QuestionId),
}

impl Context {
    /// The verdict on a flow, and its final destination: each destination that a redirection leads to is judged. The
    /// policy is asked about a `flow` with a number only.
    pub(super) fn verdict(&mut self, now: Instant, flow: Option<u64>, ask: &mut Ask) -> Found {
        let (asked, given) = (ask.to, Arc::clone(&ask.given));
        ask.demand = Demand::Nothing;
        if self.dns.is_broken() {
            return Found::Unknown;
        }
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
            Asked::Decided { verdict: Verdict::Allow, shows } => {
                let Some(owed) = shows.owed(&ask.names) else {
                    return Ok((Verdict::Prohibit, false));
                };
                ask.by_policy = ByPolicy::Permitted(owed);
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
            ByPolicy::Permitted(owed) if !owed.names.is_empty() => Demand::PermittedName,
            ByPolicy::Permitted(_)
                if ask.protocol == Protocol::Tcp && self.rules.denies_names() =>
            {
                Demand::NoDeniedName
            }
            ByPolicy::Permitted(_) => Demand::Nothing,
        }
    }

    /// Whether the rules, or the policy that permits the flow, let it go on with what it shows.
    pub(super) fn accepts_shown(&self, ask: &Ask, shown: &Shown) -> bool {
        let ByPolicy::Permitted(Owed { names, encrypted }) = &ask.by_policy else {
            return self.rules.permits_shown(ask, shown);
        };
        if let Some(name) = &shown.name {
            let named = Ask { names: [name.clone()].into(), ..ask.clone() };
            if matches!(self.rules.decide(&named).reason, Reason::Denial(_)) {
                return false;
            }
        }
        let shows = matches!(shown.by, ShownBy::Tls | ShownBy::Http | ShownBy::Quic)
            || (*encrypted && shown.by == ShownBy::EncryptedHello);
        let is_one = || shows && shown.name.as_ref().is_some_and(|name| names.contains(name));
        let by_rules = || self.rules.is_restricted() && self.rules.permits_shown(ask, shown);
        names.is_empty() || is_one() || by_rules()
    }
}
