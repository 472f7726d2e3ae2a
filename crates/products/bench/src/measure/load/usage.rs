//! Processor time and sleeps of each side's threads, as the kernel counts them.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::gettid;

use crate::kit::machine::number_in;

/// The use of a side's threads so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Processor time, the kernel's work for them included.
    pub(super) cpu: Duration,
    /// How often they slept (voluntary context switches).
    pub(super) sleeps: u64,
}

/// The use of both sides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SidesUsage {
    pub(super) server: Usage,
    pub(super) client: Usage,
}

impl SidesUsage {
    pub(super) fn since(self, before: Self) -> Self {
        let part = |now: Usage, before: Usage| Usage {
            cpu: now.cpu.saturating_sub(before.cpu),
            sleeps: now.sleeps.saturating_sub(before.sleeps),
        };
        Self { server: part(self.server, before.server), client: part(self.client, before.client) }
    }
}

/// The threads of each side: its program's, and those of the host that the program uses.
#[derive(Debug, Default)]
pub(super) struct SideThreads {
    pub(super) server: Threads,
    pub(super) client: Threads,
}

impl SideThreads {
    pub(super) fn now(&self) -> SidesUsage {
        SidesUsage { server: self.server.usage(), client: self.client.usage() }
    }
}

/// Ids of some threads of this process.
#[derive(Debug, Default)]
pub(super) struct Threads(Mutex<BTreeSet<u32>>);

impl Threads {
    /// Notes the calling thread.
    pub(super) fn add_this(&self) {
        let this = gettid().as_raw_nonzero().get().unsigned_abs();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(this);
    }

    /// Notes the threads that `start` leaves behind.
    pub(super) fn add_those_of<T>(&self, start: impl FnOnce() -> T) -> T {
        let before = all();
        let started = start();
        let new = all().into_iter().filter(|thread| !before.contains(thread));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(new);
        started
    }

    fn usage(&self) -> Usage {
        let threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.iter().fold(Usage::default(), |sum, &thread| Usage {
            cpu: sum.cpu + cpu(thread).unwrap_or_default(),
            sleeps: sum.sleeps + sleeps(thread).unwrap_or_default(),
        })
    }
}

/// The threads of this process.
fn all() -> BTreeSet<u32> {
    let names = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A thread that has ended used nothing: both sides live longer than the measurement.
fn cpu(thread: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

fn sleeps(thread: u32) -> Option<u64> {
    number_in(&format!("/proc/self/task/{thread}/status"), "voluntary_ctxt_switches:")
}

/// Both ends of thousands of kernel connections are descriptors of this process.
pub(super) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused: connections beyond the limit fail, and say so.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_is_charged_to_its_side_and_no_other() {
        let threads = SideThreads::default();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            threads.server.add_those_of(|| {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            });
            let before = threads.now();
            let until = std::time::Instant::now() + Duration::from_secs(10);
            while threads.now().since(before).server.cpu.is_zero() {
                assert!(std::time::Instant::now() < until, "no processor time in ten seconds");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(threads.now().since(before).client.cpu, Duration::ZERO);
        });
    }
}
