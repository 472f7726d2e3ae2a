//! The driver: the thread that takes turns (`turn.rs`), and sleeps on the devices and the next deadline.
//!
//! This file owns the step ([`Driver::step`]) and the thread that repeats it. A task of a runtime can be
//! the driver instead (`driver/task.rs`): the steps are the same, and only the waits between them differ.

#[cfg(feature = "tokio")]
pub(crate) mod task;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::{Deferral, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::reentrancy;
use crate::shared::{INLINE_GRACE, Poller, Shared};
use crate::spin::Spin;

/// How often the shutdown of a host checks its progress.
pub(crate) const SHUTDOWN_POLL: Duration = Duration::from_millis(1);

/// Longest sleep when nothing is due: bounds the cost of a lost wake-up.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Longest sleep of a thread that drives several shards of a host.
pub(crate) const SIBLING_POLL: Duration = Duration::from_millis(1);

/// Starts the thread that drives the host.
pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name("pagewire".into()).spawn(move || run(&shared)).map(drop)
}

/// Drives the host until it is shut down. After a panic of this crate's own code the thread goes on, to
/// report the failure.
fn run(shared: &Arc<Shared>) {
    reentrancy::become_driver_of(shared.id);
    while catch_unwind(AssertUnwindSafe(|| drive(shared))).is_err() {}
}

fn drive(shared: &Shared) {
    let mut driver = Driver::new(shared);
    loop {
        match driver.step(shared) {
            Next::StepAgain => {}
            Next::Pause => {
                driver.polled_at = Some(shared.now());
                pause();
            }
            Next::Sleep(wait) => sleep(shared, &[], wait),
            Next::SleepOnDevices(devices, wait) => sleep(shared, &devices, wait),
            Next::End => return,
        }
    }
}

/// The state that a driver keeps between its steps.
pub(crate) struct Driver {
    spin: Spin,
    idle_since: Instant,
    /// The end of a poll in vain, after which the thread paused. Unset for a task: others of the runtime run
    /// meanwhile.
    polled_at: Option<Instant>,
}

/// The wait of a driver before its next step.
pub(crate) enum Next {
    /// No wait: there is work.
    StepAgain,
    /// A pause of a busy poll, in which others get the lock.
    Pause,
    /// A sleep of this length, or until the eventfd wakes it: another thread polls the devices, or they are
    /// lost.
    Sleep(Duration),
    /// A sleep of this length, or until the eventfd or one of these descriptors wakes it.
    SleepOnDevices(Arc<[Arc<OwnedFd>]>, Duration),
    /// None: the host is shut down, and its driver ends.
    End,
}

impl Driver {
    pub(crate) fn new(shared: &Shared) -> Self {
        let spin = Spin::beside(&shared.spin, shared.spin_max);
        Self { spin, idle_since: shared.now(), polled_at: None }
    }

    /// Takes a turn, if it is this driver's, and decides how to wait for the next.
    pub(crate) fn step(&mut self, shared: &Shared) -> Next {
        shared.note_step();
        shared.end_sleep();
        let (mut inner, now) = shared.lock_now();
        let shutting_down = shared.shutdown.is_requested();
        if shutting_down && let Some(report) = shared.step_shutdown(&mut inner, now) {
            if !shared.shutdown.keeps_driver() {
                drop(inner);
                shared.shutdown.set_report(report);
                return Next::End;
            }
            shared.shutdown.set_report(report);
        }
        if inner.failed {
            // Only the failure is left to report.
            inner.flush(now);
            shared.unlock_and_wake(inner);
            return Next::Sleep(LONGEST_SLEEP);
        }
        if inner.last_inline.is_some_and(|at| now < at + INLINE_GRACE) {
            inner.poller = Poller::Deferred;
            return Next::Sleep(INLINE_GRACE);
        }
        inner.poller = Poller::Running;
        inner.devices.disarm();
        let (worked, polled_at) = (inner.turn(now), self.polled_at.take());
        if worked || !inner.waiters.ready.is_empty() {
            self.spin.ended(now.saturating_since(self.idle_since));
            self.idle_since = now;
        } else if let Some(at) = polled_at {
            self.spin.lost_core(at, now);
        }
        if !shutting_down && now.saturating_since(self.idle_since) < self.spin.limit(now) {
            shared.unlock_and_wake(inner);
            return Next::Pause;
        }
        let wait =
            inner.longest_sleep(now, if shutting_down { SHUTDOWN_POLL } else { LONGEST_SLEEP });
        if wait.is_zero()
            || Deferral::is_pending()
            || inner.devices.arm()
            || !shared.prepare_sleep(&mut inner)
        {
            inner.devices.disarm();
            shared.unlock_and_wake(inner);
            return Next::StepAgain;
        }
        inner.poller = Poller::Armed;
        inner.armed_until = now + wait;
        let fds = inner.devices.fds();
        shared.unlock_and_wake(inner);
        Next::SleepOnDevices(fds, wait)
    }
}

/// Sleeps until a device, the eventfd or the clock wakes the thread.
fn sleep(shared: &Shared, devices: &[Arc<OwnedFd>], wait: Duration) {
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    let wake = PollFd::new(&shared.wake, PollFlags::IN);
    let woken = match devices {
        [] => poll(&mut [wake], Some(&timeout)).is_ok_and(|n| n > 0),
        [device] => wakes(&mut [wake, PollFd::new(device, PollFlags::IN)], &timeout),
        devices => {
            let devices = devices.iter().map(|device| PollFd::new(device, PollFlags::IN));
            wakes(&mut std::iter::once(wake).chain(devices).collect::<Vec<_>>(), &timeout)
        }
    };
    if woken {
        let _ = rustix::io::read(&shared.wake, &mut [0u8; 8]);
    }
}

/// Waits for any of the descriptors; returns whether the first one is ready.
fn wakes(fds: &mut [PollFd<'_>], timeout: &Timespec) -> bool {
    let n = poll(fds, Some(timeout));
    n.is_ok() && !fds.first().is_none_or(|fd| fd.revents().is_empty())
}

/// Lets another thread have the core, or the lock, between two polls: those who would answer must not wait for
/// whoever polls. Without such a thread this is a short pause.
pub(crate) fn pause() {
    std::thread::yield_now();
}

/// Waits on the device without a driver thread, at most until `until`.
pub(crate) fn wait_for_device(shared: &Shared, until: Option<Instant>) {
    let (mut inner, now) = shared.lock_now();
    // The devices of other shards that this thread drives are not among those that wake it.
    let longest = if shared.drives_others() { SIBLING_POLL } else { LONGEST_SLEEP };
    let limit = until.map_or(longest, |at| at.saturating_since(now).min(longest));
    let wait = inner.longest_sleep(now, limit);
    if !wait.is_zero() && !inner.devices.arm() && shared.prepare_sleep(&mut inner) {
        let fds = inner.devices.fds();
        drop(inner);
        sleep(shared, &fds, wait);
        shared.end_sleep();
        inner = shared.lock();
    }
    inner.devices.disarm();
}
