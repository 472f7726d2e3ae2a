//! Calls with descriptors, as on Linux, mostly in virtual time.

mod datagrams;
mod errno;
mod groups;
mod links;
mod mapping;
mod pipes;
mod raw;
mod readiness;
mod realtime;
mod sharing;
mod streams;
mod support;
mod zerocopy;
