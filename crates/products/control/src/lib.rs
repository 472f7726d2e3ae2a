//! A view of Pagewire hosts: by a socket that other programs ask, as metrics, and as
//! events of `tracing`.
//!
//! - [`Control`] answers on a Unix socket: `pagewire ss` and `pagewire top` ask there, and any program
//!   can ([`protocol`]; [`Client`] is the other side). Only the user of the process, and root, can
//!   connect.
//! - `metrics` (feature of the same name) gives a host's counters to any `metrics::Recorder`;
//!   with the feature `prometheus`, a [`Control`] also answers `GET /metrics`.
//! - [`trace`] and [`trace_end`] report connections that begin and end, and anomalies.
//!
//! Each of these is opt-in. One process may show several hosts, of one core or of several; none is kept running by being shown. The
//! thread that answers sleeps until somebody asks, reads a bounded part of a table before it gives the
//! lock back, and holds a bounded amount for each client ([`limits`]).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod client;
mod control;
mod events;
mod firewall;
#[cfg(feature = "prometheus")]
mod http;
pub mod limits;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod protocol;
mod server;
mod snapshot;
mod socket;
mod view;

pub use client::{AskError, Client};
pub use control::{Builder, Control};
pub use events::{trace, trace_end};
pub use firewall::Firewall;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use server::fuzzing;
pub use snapshot::{cores_stats, host_stats};
pub use socket::{BindError, ControlSocket};
