//! The kit of the measurements: the data that is sent, hosts and kernel sockets, links and namespaces, and the meters
//! of a round.

pub(crate) mod engine;
pub(crate) mod flows;
pub(crate) mod hosts;
pub(crate) mod hub;
pub(crate) mod kernel;
pub(crate) mod machine;
pub(crate) mod meter;
pub(crate) mod namespace;
pub(crate) mod source;
