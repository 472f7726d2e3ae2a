//! The end of the process: hosts that still run are shut down first.
//!
//! Without this, a program that sends and returns from `main` would end its stack, too, and its peers
//! would wait in vain. The hook runs after `main`, at `std::process::exit`, and when `main` panicked;
//! not at `abort`, nor when a signal ends the process.

use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as WallClock};

use crate::reentrancy;
use crate::shared::Shared;

/// The hosts of this process that have not ended.
static HOSTS: Mutex<Hosts> = Mutex::new(Hosts { all: Vec::new(), process: None });

struct Hosts {
    all: Vec<Weak<Shared>>,
    /// The process that registered the hook; a forked process has none of its threads.
    process: Option<u32>,
}

/// From now on, the end of the process waits for this host.
pub(crate) fn register(shared: &Arc<Shared>) {
    let mut hosts = HOSTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    hosts.all.retain(|host| host.strong_count() > 0);
    let process = Some(std::process::id());
    if hosts.process != process {
        // A forked process inherits the hook, and the hosts of its parent.
        let hooked = hosts.process.is_some();
        hosts.all.clear();
        hosts.process = process;
        if !hooked {
            hook();
        }
    }
    hosts.all.push(Arc::downgrade(shared));
}

#[allow(unsafe_code)]
fn hook() {
    // SAFETY: `at_exit` is a function that takes and returns nothing and never unwinds. It may run
    // while other threads do, as any code of ours.
    let refused = unsafe { libc::atexit(at_exit) };
    if refused != 0 {
        tracing::warn!(
            "no room for an exit hook: connections end with the process, without a word"
        );
    }
}

/// Must not panic, wait for long, or use anything thread-local.
extern "C" fn at_exit() {
    let _ = catch_unwind(shut_down_all);
}

fn shut_down_all() {
    let hosts = match HOSTS.try_lock() {
        Ok(hosts) => hosts,
        Err(TryLockError::Poisoned(hosts)) => hosts.into_inner(),
        // The thread that ends the process is in the middle of `register`.
        Err(TryLockError::WouldBlock) => return,
    };
    if hosts.process != Some(std::process::id()) {
        return;
    }
    let all: Vec<Arc<Shared>> = hosts.all.iter().filter_map(Weak::upgrade).collect();
    drop(hosts);
    // The hosts end at the same time: they may talk to each other, and one limit is enough.
    let mut until = Shared::latest_shutdown_end(Duration::ZERO);
    let mut here = Vec::new();
    // Before any of them ends: the shutdown of one shard is that of all.
    for host in all.iter().filter(|host| !host.manual && !host.is_stepped_here()) {
        host.shutdown.keep_driver();
    }
    for host in all.iter().filter(|host| host.shutdown.report().is_none()) {
        // The process may end in code that the driver called, or in a task of the runtime that drives the host.
        let drives = host.is_stepped_here();
        if !host.manual {
            until = until.max(Shared::latest_shutdown_end(host.shutdown_limit));
            host.request_shutdown(host.shutdown_limit);
        }
        // Not a host whose lock this thread holds: a service ends the process.
        if (host.manual || drives) && !reentrancy::is_called_under_lock_of(host.host_id) {
            here.push(Arc::clone(host));
        }
    }
    let threads: Vec<_> = here.iter().map(|host| end_on_a_thread(host, until)).collect();
    for thread in threads.into_iter().flatten() {
        let _ = thread.join();
    }
    let waits =
        |host: &&Arc<Shared>| !host.manual && !reentrancy::is_called_under_lock_of(host.host_id);
    for host in all.iter().filter(waits) {
        host.shutdown.wait(until);
    }
    // Threads may still use them.
    std::mem::forget(all);
}

/// Ends a host that this thread drives, or nobody, on a thread of its own: its end wakes tasks, for which an
/// executor may need values of the thread, and those of this one are gone.
fn end_on_a_thread(host: &Arc<Shared>, until: WallClock) -> Option<JoinHandle<()>> {
    let end = move |host: &Shared| match host.manual {
        true => host.reset_all(),
        false => host.shut_down_here(until),
    };
    let ours = Arc::clone(host);
    let thread = std::thread::Builder::new().name("pagewire-exit".into());
    let thread = thread.spawn(move || end(&ours)).ok();
    if thread.is_none() {
        // The end matters more than the wake-ups.
        end(host);
    }
    thread
}
