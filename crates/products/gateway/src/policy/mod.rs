//! What a guest may reach: [`Rules`] by address, port, protocol and name, [`Names`] that our resolver
//! told the guest, and [`Whereabouts`]: which destinations are this machine.

mod names;
#[cfg(test)]
mod names_tests;
mod rules;
#[cfg(test)]
mod rules_tests;
mod whereabouts;

pub use names::{Names, Resolved};
pub use rules::{Glob, Pattern, Ports, Rule, RuleError, Rules};
pub(crate) use whereabouts::Routes;
pub use whereabouts::Whereabouts;
