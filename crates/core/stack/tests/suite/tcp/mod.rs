//! Connections between two stacks: opening, ends, features, and the path.

mod connections;
mod fast_open;
mod lifecycle;
mod path_mtu;
mod refused;
mod time_wait;
mod unguessable;
