//! Other people's crates on simulated hosts.

mod axum;
mod half_open;
mod hyper;
mod idle_rpc;
mod quinn;
mod raft;
mod redis;
mod rustls;
mod tonic;
