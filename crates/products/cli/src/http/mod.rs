//! HTTP/1.1 over any connection that can pass memory by reference.
//!
//! Read [`connection`] first, then [`server`] (the loop of a connection, and the service around it) or [`client`].
//! [`message`] has what both send and receive, [`site`] the files that are served.

pub(crate) mod client;
pub(crate) mod connection;
pub(crate) mod message;
pub(crate) mod server;
pub(crate) mod site;
mod stream;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(feature = "full")]
pub(crate) mod url;
