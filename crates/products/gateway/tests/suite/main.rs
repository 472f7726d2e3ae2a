//! The gateway between guests in this process and sockets of this machine.

mod autoconf;
mod cores;
mod datagrams;
mod examples;
mod failures;
mod hostile;
mod ledger;
mod links;
mod published;
mod relay;
mod sandbox;
mod spliced;
mod support;
