//! Stacks as an owner drives them: frames, sockets and virtual time. `common/` has the kit for two stacks
//! on one wire, `links/world.rs` the one for several stacks and links.

mod common;
mod links;
mod listen;
mod memory;
mod shards;
mod sockets;
mod tcp;
mod udp;
mod zerocopy;

/// Stacks of each host of a pair.
const SHARDS: usize = 1;
