//! Policy, the decision what a guest may reach: [`Rules`] by address, port, protocol and name, [`Names`] that our
//! resolver gave the guest, and [`LocalAddresses`], the destinations on this machine.

mod file;
mod idna;
mod local_addresses;
mod names;
#[cfg(test)]
mod names_tests;
mod question;
#[cfg(test)]
mod question_tests;
mod rules;
#[cfg(test)]
mod rules_tests;

pub use file::{Mistake, Mistakes, Place, RulesEntry, RulesFile};
pub use local_addresses::LocalAddresses;
pub(crate) use local_addresses::RouteSocket;
pub use names::{Names, Resolved};
pub use question::{Question, QuestionError};
pub use rules::{Decision, Glob, Pattern, Ports, Proof, Reason, Rule, RuleError, Rules, Speed};
