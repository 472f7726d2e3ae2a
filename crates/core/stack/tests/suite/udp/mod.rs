//! Datagram sockets: one address, groups, and every address of a transparent link.

mod datagrams;
mod groups;
mod wildcard;
