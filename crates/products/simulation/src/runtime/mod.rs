//! The process of a host: its tokio runtime, blocking work, panics, and the watchdog that ends what does not end.

pub(crate) mod blocking_gate;
pub(crate) mod panic_hook;
pub(crate) mod panic_notes;
pub(crate) mod tokio_runtime;
pub(crate) mod watchdog;
