//! Networking for sandboxes, microVMs and programs: what a guest sends leaves through sockets of
//! this process, so neither side needs root.
//!
//! ```text
//!   guest ---frames--- device [ stack | relay ] ---sockets--- kernel --- network
//! ```
//!
//! Start a [`Gateway`], then [add](Gateway::add) guests, each behind a device. To a guest the network
//! looks as it does to this process: a connection is accepted when the far side has accepted it, and
//! refused, unreachable or silent as the far side is. What a guest may reach is up to a [`Judge`].
//!
//! To read the code, begin with `request.rs`, the types that all parts share, then `relay/mod.rs`.

#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod asking;
mod autoconf;
mod bounded_log;
mod builder;
mod context;
mod counters;
mod denials;
mod dns;
mod echo;
mod epoll;
mod gateway;
mod guest_link;
pub mod limits;
mod log;
pub mod netns;
mod policy;
#[doc(hidden)]
pub mod probe;
mod publish;
mod rate;
mod relay;
mod request;
pub mod sandbox;
mod shown;
mod source;
mod splice;
mod sys;
mod tally;
mod template;
mod udp;
mod via;
#[cfg(test)]
#[path = "world_tests.rs"]
mod world;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzzing;

pub use asking::{Opinion, Policy, SocketPolicy};
pub use autoconf::{Autoconf, AutoconfConfig, AutoconfCounters, AutoconfWatch};
pub use bounded_log::BoundedLog;
pub use builder::{Builder, GuestConfig, LocalClients};
pub use counters::Counters;
pub use denials::{Denied, Refusal};
pub use dns::{DeniedName, DnsConfig, DnsCounters, DnsServer, OwnNames, Resolver};
pub use gateway::{AddError, Gateway, Guest};
pub use log::Log;
/// A network, as rules and guests' settings have it.
pub use pagewire::Cidr;
pub use policy::LocalAddresses as Whereabouts;
pub use policy::{
    Decision, Glob, Mistake, Mistakes, Names, Pattern, Place, Ports, Proof, Question,
    QuestionError, Reason, Resolved, Rule, RuleError, Rules, RulesEntry, RulesFile, Speed,
};
pub use publish::{OpenPort, Publish, PublishError, PublishedPort};
pub use relay::{Dial, Dialled};
pub use request::{
    Ask, Direction, FlowState, GuestId, How, Journal, Judge, Name, NameError, Protocol, Record,
    Shown, ShownBy, Verdict,
};
pub use source::Source;
pub use splice::{Forward, ForwardError};
pub use template::Template;
pub use via::{
    Credentials, CredentialsError, Proxy, ProxyError, ProxyKind, ProxyUrl, Via, ViaError, Vias,
};
