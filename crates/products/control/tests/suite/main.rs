//! The control socket and the metrics, with real clients.

mod control;
mod firewall;
mod metrics;
