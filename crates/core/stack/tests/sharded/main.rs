//! The tests of `suite/`, of hosts of several shards: each frame comes to any of them, and all sockets are those of
//! one. What they see is what the sockets of one stack see.

#[path = "../suite/common/mod.rs"]
mod common;
#[path = "../suite/links/mod.rs"]
mod links;
#[path = "../suite/listen/mod.rs"]
mod listen;
#[path = "../suite/memory/mod.rs"]
mod memory;
#[path = "../suite/sockets/mod.rs"]
mod sockets;
#[path = "../suite/tcp/mod.rs"]
mod tcp;
#[path = "../suite/udp/mod.rs"]
mod udp;
#[path = "../suite/zerocopy/mod.rs"]
mod zerocopy;

/// Stacks of each host of a pair.
const SHARDS: usize = 3;
