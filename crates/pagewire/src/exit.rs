//! The end of the process: hosts that are still there leave before it is over.
//!
//! Without this, a program that sends and returns from `main` would take its stack with it, and its
//! peers would wait for segments that nobody sends. The hook runs after `main`, at
//! `std::process::exit`, and when `main` panicked; not at `abort`, nor when a signal ends the process.

use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::Duration;

use crate::inside;
use crate::shared::Shared;

/// The hosts of this process that have not ended.
static HOSTS: Mutex<Hosts> = Mutex::new(Hosts { all: Vec::new(), process: None });

struct Hosts {
    all: Vec<Weak<Shared>>,
    /// The process that has the hook: one that was forked has none of the threads.
    process: Option<u32>,
}

/// From now on, the end of the process waits for this host.
pub(crate) fn register(shared: &Arc<Shared>) {
    let mut hosts = HOSTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    hosts.all.retain(|host| host.strong_count() > 0);
    let process = Some(std::process::id());
    if hosts.process != process {
        // A process that was forked inherits the hook, and hosts that are its parent's.
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

/// Nothing here may panic, wait for long, or count on anything that is local to a thread.
extern "C" fn at_exit() {
    let _ = catch_unwind(leave_all);
}

fn leave_all() {
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
    // All at once: they may talk to each other, and one limit is enough.
    let mut until = Shared::latest_end(Duration::ZERO);
    for host in all.iter().filter(|host| host.departure.report().is_none()) {
        if host.manual {
            host.reset_all();
        } else if inside::drives(host.id) {
            // Who ends the process is code that the driver called: nobody else drives it any more.
            host.ask_to_leave(host.shutdown_limit, false);
            host.leave_here(Shared::latest_end(host.shutdown_limit));
        } else {
            until = until.max(Shared::latest_end(host.shutdown_limit));
            host.ask_to_leave(host.shutdown_limit, true);
        }
    }
    // Not for one whose lock this thread has: it ends the process from inside of a service.
    let waits = |host: &&Arc<Shared>| !host.manual && !inside::is_called_by(host.id);
    for host in all.iter().filter(waits) {
        host.departure.wait(until);
    }
    // Threads may still be at work on them.
    std::mem::forget(all);
}
