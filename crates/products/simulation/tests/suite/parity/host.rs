//! The cases on sockets of a `pagewire` host.

use std::future::Future;
use std::time::Duration;

pub(crate) use pagewire::net;
use pagewire::{Dns, Host, Pair};

/// Runs a case on a host of its own, within ten seconds.
pub(crate) fn run(case: impl Future<Output = Result<(), Box<dyn std::error::Error>>> + 'static) {
    let (device, _far) = Pair::new().unwrap();
    let host = Host::builder().device(device).address("10.0.0.1/24").address("fd00::1/64");
    let host = host.resolver(Dns::default()).start().unwrap();
    let _entered = host.enter();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let case = async { tokio::time::timeout(Duration::from_secs(10), case).await };
    runtime.block_on(case).expect("within ten seconds").unwrap();
}

#[allow(clippy::duplicate_mod)]
#[path = "cases/mod.rs"]
mod cases;
