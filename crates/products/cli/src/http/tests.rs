//! What the server and the client promise, over the kernel's loopback and over scripted streams.

mod fetching;
mod leaves;
mod messages;
mod serving;
