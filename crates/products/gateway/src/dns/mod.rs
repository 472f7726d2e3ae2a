//! The guests' resolver: a DNS forwarder on the gateway's own addresses.
//!
//! Read [`DnsServer`] first. `query.rs` reads messages, `upstream.rs` asks resolvers,
//! `resolvers.rs` knows which, `clients.rs` serves the guest's TCP connections.

mod clients;
mod invented;
mod memory;
mod own;
pub(crate) mod query;
#[cfg(test)]
mod query_tests;
mod resolvers;
mod server;
#[cfg(test)]
mod server_tests;
mod upstream;

pub(crate) use memory::Memory;
pub use own::OwnNames;
pub use resolvers::Resolver;
pub use server::{DeniedName, DnsConfig, DnsCounters, DnsServer};

/// The port of DNS.
pub(crate) const PORT: u16 = 53;
