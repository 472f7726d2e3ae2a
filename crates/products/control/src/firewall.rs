//! [`Firewall`]: the gateway of a process, which clients see and change by the control socket.

use std::os::fd::BorrowedFd;

use crate::limits::FLOWS_PER_ANSWER;
use crate::protocol::{Answer, Ask, Change, Flow, FlowPage, Refusals, Rules};

/// The rules, ports and flows of a gateway. Called by the thread that answers, which other clients wait for meanwhile.
pub trait Firewall: Send + Sync {
    /// Whether the client of this connected socket may make changes. A guest's programs may reach the control socket
    /// by its path: what they must not do, this has to refuse.
    fn may_change(&self, client: BorrowedFd<'_>) -> bool;

    /// The rules.
    fn rules(&self) -> Rules;

    /// The flows, in the order of their numbers.
    fn flows(&self) -> Vec<Flow>;

    /// What was refused most frequently.
    fn refusals(&self) -> Refusals;

    /// Makes a change. Returns what follows from the change, for people.
    ///
    /// # Errors
    /// Why nothing was changed, for people.
    fn change(&self, change: &Change) -> Result<String, String>;
}

/// The answer to a request about the gateway, of the client of this socket.
pub(crate) fn answer(firewall: Option<&dyn Firewall>, ask: &Ask, client: BorrowedFd<'_>) -> Answer {
    let error = |text: &str| Answer::Error { text: text.to_owned() };
    let Some(firewall) = firewall else {
        return error("this process has no gateway");
    };
    match ask {
        Ask::Rules => Answer::Rules(firewall.rules()),
        Ask::Refusals => Answer::Refusals(firewall.refusals()),
        Ask::Flows { after, limit } => {
            let limit = limit.unwrap_or(FLOWS_PER_ANSWER).clamp(1, FLOWS_PER_ANSWER) as usize;
            let from = after.unwrap_or(0);
            let mut flows = firewall.flows();
            flows.retain(|flow| flow.flow >= from);
            let next = flows.get(limit).map(|flow| flow.flow);
            flows.truncate(limit);
            Answer::Flows(FlowPage { flows, next })
        }
        Ask::Change(_) if !firewall.may_change(client) => error(
            "changes are taken only from the network namespace in which the gateway was started",
        ),
        Ask::Change(change) => match firewall.change(change) {
            Ok(text) => Answer::Done { text },
            Err(text) => Answer::Error { text },
        },
        _ => error("this is no question about a gateway"),
    }
}
