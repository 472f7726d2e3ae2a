//! Programs on simulated hosts, and the simulation beside tokio itself.

mod between;
mod common;
mod determinism;
mod failures;
mod files;
mod life;
mod outlive;
mod panics;
mod parity;
mod real_time;
mod scale;
mod time;
mod tokio_facts;
mod trouble;
mod turmoil;
