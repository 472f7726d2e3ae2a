//! What each side used: processor time and sleeps of its threads, from the kernel's books.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::thread::gettid;

use crate::machine::number_in;

/// What a side's threads have used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Processor time, the kernel's work for them included.
    pub(super) cpu: Duration,
    /// How often they slept (voluntary context switches).
    pub(super) sleeps: u64,
}

/// What both sides used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub(super) server: Usage,
    pub(super) client: Usage,
}

impl Used {
    pub(super) fn since(self, before: Self) -> Self {
        let part = |now: Usage, before: Usage| Usage {
            cpu: now.cpu.saturating_sub(before.cpu),
            sleeps: now.sleeps.saturating_sub(before.sleeps),
        };
        Self { server: part(self.server, before.server), client: part(self.client, before.client) }
    }
}

/// Which threads belong to which side: its program's, and those of the host that it uses.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) server: Threads,
    pub(super) client: Threads,
}

impl Books {
    pub(super) fn now(&self) -> Used {
        Used { server: self.server.usage(), client: self.client.usage() }
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

/// All threads of this process.
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
        let books = Books::default();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            books.server.add_those_of(|| {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            });
            let before = books.now();
            let until = std::time::Instant::now() + Duration::from_secs(10);
            while books.now().since(before).server.cpu.is_zero() {
                assert!(std::time::Instant::now() < until, "no processor time in ten seconds");
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(books.now().since(before).client.cpu, Duration::ZERO);
        });
    }
}
