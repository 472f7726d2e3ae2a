//! Hosts as a program uses them: threads, tasks, rings, adapters, examples.

mod adapters;
mod asynchronous;
mod chunks;
mod datagrams;
mod examples;
mod gibibyte;
mod groups_tap;
mod guests;
mod hostile;
mod leaving;
mod links;
mod mapping;
mod network_down;
mod options;
mod page_payload;
mod panics;
mod ring_to_file;
mod rings;
mod rings_datagrams;
mod rings_tap;
mod runtime;
mod services;
mod streams;
mod zerocopy;
mod zerocopy_memory;
mod zerocopy_tap;
