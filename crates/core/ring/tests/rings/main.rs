//! The rings in virtual time: a server on rings alone, senders on ordinary sockets, a network
//! between them that may be bad.

mod client;
mod contract;
mod crowd;
mod datagram_properties;
mod datagrams;
mod errors;
mod hostile;
mod lies;
mod loom_ring;
mod properties;
mod support;
