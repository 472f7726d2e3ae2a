//! Stacks with several links, in virtual time: addresses and connections over each, and packets
//! that are passed on from one to the other.

mod addresses;
mod bound;
mod forwarding;
mod fragments;
mod hostile;
mod properties;
mod stuck;
mod world;
