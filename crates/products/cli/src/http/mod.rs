//! HTTP/1.1 over any connection that can pass memory by reference.
//!
//! Read [`connection`] first, then [`server`] (the loop of a connection) or [`client`]. The rest are leaves:
//! [`request`] and [`response`] are the messages, [`path`] finds files, [`files`] maps them, [`paced`] resets slow
//! readers, [`range`] and [`conditional`] decide what is sent, [`access`] logs it.

pub(crate) mod access;
pub(crate) mod body;
pub(crate) mod client;
pub(crate) mod conditional;
pub(crate) mod connection;
pub(crate) mod files;
pub(crate) mod inbox;
pub(crate) mod listing;
pub(crate) mod paced;
pub(crate) mod path;
pub(crate) mod range;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod server;
pub(crate) mod service;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(feature = "full")]
pub(crate) mod url;
