//! The cases on tokio's own sockets, of the kernel.

use std::future::Future;
use std::time::Duration;

pub(crate) use tokio::net;

/// Runs a case within ten seconds.
pub(crate) fn run(case: impl Future<Output = Result<(), Box<dyn std::error::Error>>> + 'static) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let case = async { tokio::time::timeout(Duration::from_secs(10), case).await };
    runtime.block_on(case).expect("within ten seconds").unwrap();
}

#[path = "cases/mod.rs"]
mod cases;
