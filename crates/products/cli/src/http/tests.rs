//! Tests of server and client, over the kernel's loopback and over scripted streams.

#[cfg(feature = "full")]
mod fetching;
mod leaves;
mod messages;
mod serving;
