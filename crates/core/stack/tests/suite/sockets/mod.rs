//! Sockets of every kind: events, options, views, and what the network layer does for them.

mod events;
mod marks;
mod network;
mod operations;
mod options;
mod view;
