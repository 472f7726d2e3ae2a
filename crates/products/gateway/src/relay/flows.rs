//! The flows of a guest as its owner sees them: listed, ended one by one, and judged again when the rules change.

use std::sync::Arc;

use pagewire::services::{Answer, Instant, RequestId, Stack, Unreachable};

use super::pair::{Flags, Step};
use super::{Flow, Relay};
use crate::context::{Decide, Ruling};
use crate::limits::RULES;
use crate::policy::{Rule, Rules};
use crate::request::{Demand, FlowState, How};
use crate::splice::{JoinedFlow, Review};

impl Relay {
    /// The rules.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.context.rules)
    }

    /// The rules that would permit what an audit has written down, and for how many flows. Connections of other relays
    /// that nothing has caused to be written down so far are left out.
    pub(crate) fn learned(&self) -> Vec<(Rule, u64)> {
        let mut all = self.context.whole.denials.with(|denials| denials.permissions());
        self.add_missing(&mut all);
        all
    }

    /// Adds the rules that would permit connections of this relay which an audit has not written down so far.
    pub(crate) fn add_missing(&self, all: &mut Vec<(Rule, u64)>) {
        for (_, (_, flow)) in &self.flows {
            // A connection that goes on, and has shown nothing so far.
            if let Flow::Pair(pair) = flow
                && let Some(rule) = self.context.missing_permission(&pair.record)
            {
                match all.iter().position(|(other, _)| *other == rule) {
                    Some(at) => all.iter_mut().skip(at).take(1).for_each(|(_, flows)| *flows += 1),
                    None if all.len() < RULES => all.push((rule, 1)),
                    None => {}
                }
            }
        }
    }

    /// Has other rules decide from now on. Flows that they forbid end. Returns the number of these, but for those between
    /// two sockets of this machine's kernel, which another thread ends soon.
    pub(crate) fn set_rules(&mut self, now: Instant, stack: &mut Stack, ruling: Ruling) -> usize {
        self.context.set_rules(ruling);
        let ended = self.end_flows(now, stack, &mut |context, record, to| {
            context.judge_again(now, record, to).map(Some).ok_or(How::Prohibited)
        });
        let permits = self.context.permits_joined();
        let review = move |flow: &JoinedFlow<'_>| {
            let permits = permits(flow.ask, flow.peer);
            permits.then_some(Some(Demand::Nothing)).ok_or(How::Prohibited)
        };
        self.review_joined(Box::new(review));
        ended
    }

    /// Ends the flow with this number. Returns whether there was one; a flow between two sockets of this machine's kernel
    /// is not known here, and ends by [`review_joined`](Self::review_joined).
    pub(crate) fn kill(&mut self, now: Instant, stack: &mut Stack, flow: u64) -> bool {
        let ended = self.end_flows(now, stack, &mut |_, record, _| match record.flow == flow {
            true => Err(How::Killed),
            false => Ok(None),
        });
        ended > 0
    }

    /// Has the thread that joins sockets of the kernel look at each of its flows. `false`: there is none.
    pub(crate) fn review_joined(&self, review: Review) -> bool {
        let loopback = self.setup.loopback.as_ref();
        loopback.map(|loopback| loopback.splicer().review(review)).is_some()
    }

    /// The flows, but for those between two sockets of this machine's kernel.
    pub(crate) fn flows(&self, now: Instant) -> Vec<FlowState> {
        let pairs = self.flows.iter().filter_map(|(_, (_, flow))| match flow {
            Flow::Pair(pair) => Some(pair.record.state(now, pair.peer, pair.is_open())),
            Flow::Dialling(_) | Flow::Replaced => None,
        });
        let dials = self.dials.flows(now);
        let mut flows: Vec<FlowState> = pairs.chain(dials).collect();
        flows.extend(self.udp.flows(now));
        flows.extend(self.echo.flows(now));
        flows
    }

    /// Ends the flows that `decide` ends. Returns their number.
    fn end_flows(&mut self, now: Instant, stack: &mut Stack, decide: &mut Decide<'_>) -> usize {
        let mut ended = self.end_dials(now, stack, decide);
        let mut over = Vec::new();
        let mut changed = Vec::new();
        for (at, (_, flow)) in &mut self.flows {
            let Flow::Pair(pair) = flow else { continue };
            match decide(&mut self.context, &mut pair.record, pair.peer) {
                Err(how) => over.push((at as u32, how)),
                Ok(Some(demand)) => {
                    let was_paced = pair.flags.contains(Flags::PACED);
                    pair.flags.remove(Flags::PACED);
                    if pair.set_demand(demand) || was_paced {
                        changed.push(at as u32);
                    }
                }
                Ok(_) => {}
            }
        }
        for at in changed {
            self.more_out = true;
            self.list(at);
        }
        ended += over.len();
        for (at, how) in over {
            self.end(now, stack, at, Step::ResetHost(how));
        }
        ended
            + self.udp.end_flows(now, &mut self.context, decide)
            + self.echo.end_flows(now, &mut self.context, decide)
    }

    fn end_dials(&mut self, now: Instant, stack: &mut Stack, decide: &mut Decide<'_>) -> usize {
        let context = &mut self.context;
        let over: Vec<(RequestId, How)> =
            self.dials.review(|record, to| decide(context, record, to).err());
        for (id, how) in &over {
            self.end_dial(now, *id, *how);
            self.answer(now, stack, *id, Answer::Unreachable(Unreachable::Prohibited));
        }
        over.len()
    }
}

#[cfg(test)]
#[path = "flows_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "policy_tests.rs"]
mod policy_tests;

#[cfg(test)]
#[path = "audit_tests.rs"]
mod audit_tests;

#[cfg(test)]
#[path = "rates_tests.rs"]
mod rates_tests;
