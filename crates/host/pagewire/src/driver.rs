//! The driver: the thread that takes turns (`turn.rs`), and sleeps on the devices and the next deadline.
//!
//! A task of a runtime can be the driver, too (`driver/task.rs`): the steps are the same, and only the
//! waits between them differ.

#[cfg(feature = "tokio")]
pub(crate) mod task;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use pagewire_mem::{Deferral, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::inside;
use crate::shared::{INLINE_GRACE, Poller, Shared};
use crate::spin::Spin;

/// How often a host that is shut down checks its progress.
pub(crate) const LEAVE_LOOK: Duration = Duration::from_millis(1);

/// Longest sleep when nothing is due: bounds the cost of a lost wake-up.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Pauses of a spinning thread between two turns, which leave the lock to others.
const PAUSES: u32 = 16;

/// Starts the thread that drives the host.
pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name("pagewire".into()).spawn(move || run(&shared)).map(drop)
}

/// Runs until the host has left. After a panic of this crate's own code it goes on, to report that.
fn run(shared: &Arc<Shared>) {
    inside::drive(shared.id);
    while catch_unwind(AssertUnwindSafe(|| drive(shared))).is_err() {}
}

fn drive(shared: &Shared) {
    let mut driver = Driver::new(shared);
    loop {
        match driver.step(shared) {
            Next::Again => {}
            Next::Look => pause(),
            Next::Rest(wait) => sleep(shared, &[], wait),
            Next::Sleep(devices, wait) => sleep(shared, &devices, wait),
            Next::Over => return,
        }
    }
}

/// What a driver has to remember between its steps.
pub(crate) struct Driver {
    spin: Spin,
    idle_since: Instant,
    /// When it last looked for work while it polled, and found none.
    looked: Option<Instant>,
}

/// What a driver does before its next step.
pub(crate) enum Next {
    /// Nothing: there is work.
    Again,
    /// A pause, in which others get the lock: it polls.
    Look,
    /// Sleeps so long, or until the eventfd wakes it: the devices are another thread's, or lost.
    Rest(Duration),
    /// The same, or until one of these descriptors wakes it.
    Sleep(Arc<[Arc<OwnedFd>]>, Duration),
    /// It ends: the host has left.
    Over,
}

impl Driver {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self { spin: Spin::new(shared.spin_max), idle_since: shared.now(), looked: None }
    }

    /// Takes a turn, if it is this driver's, and decides how to wait for the next.
    pub(crate) fn step(&mut self, shared: &Shared) -> Next {
        shared.note_step();
        shared.wake_up();
        let (mut inner, now) = shared.lock_now();
        let leaving = shared.departure.is_asked();
        if leaving && let Some(report) = shared.leave(&mut inner, now) {
            if !shared.departure.stays() {
                drop(inner);
                shared.departure.set_report(report);
                return Next::Over;
            }
            shared.departure.set_report(report);
        }
        if inner.failed {
            // Only the failure is left to report.
            inner.flush(now);
            shared.unlock_and_wake(inner);
            return Next::Rest(LONGEST_SLEEP);
        }
        if inner.last_inline.is_some_and(|at| now < at + INLINE_GRACE) {
            inner.poller = Poller::Deferred;
            return Next::Rest(INLINE_GRACE);
        }
        inner.poller = Poller::Running;
        inner.devices.disarm();
        let worked = inner.turn(now);
        let before = self.looked.take();
        let mut lost = false;
        if worked || !inner.waiters.ready.is_empty() {
            self.spin.ended(now.saturating_since(self.idle_since));
            self.idle_since = now;
        } else if let Some(before) = before {
            lost = self.spin.lost_core(before, now);
        }
        if !lost && !leaving && now.saturating_since(self.idle_since) < self.spin.limit(now) {
            self.looked = Some(now);
            shared.unlock_and_wake(inner);
            return Next::Look;
        }
        let wait = inner.longest_sleep(now, if leaving { LEAVE_LOOK } else { LONGEST_SLEEP });
        if wait.is_zero()
            || Deferral::is_pending()
            || inner.devices.arm()
            || !shared.fall_asleep(&mut inner)
        {
            inner.devices.disarm();
            shared.unlock_and_wake(inner);
            return Next::Again;
        }
        inner.poller = Poller::Armed;
        inner.armed_until = now + wait;
        let fds = inner.devices.fds();
        shared.unlock_and_wake(inner);
        Next::Sleep(fds, wait)
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

/// Waits; returns whether the first descriptor is ready.
fn wakes(fds: &mut [PollFd<'_>], timeout: &Timespec) -> bool {
    let n = poll(fds, Some(timeout));
    n.is_ok() && !fds.first().is_none_or(|fd| fd.revents().is_empty())
}

/// Pauses for a moment without the lock.
pub(crate) fn pause() {
    for _ in 0..PAUSES {
        std::hint::spin_loop();
    }
}

/// Waits on the device without a driver thread, at most until `until`.
pub(crate) fn wait_for_device(shared: &Shared, until: Option<Instant>) {
    let (mut inner, now) = shared.lock_now();
    let limit = until.map_or(LONGEST_SLEEP, |at| at.saturating_since(now).min(LONGEST_SLEEP));
    let wait = inner.longest_sleep(now, limit);
    if !wait.is_zero() && !inner.devices.arm() && shared.fall_asleep(&mut inner) {
        let fds = inner.devices.fds();
        drop(inner);
        sleep(shared, &fds, wait);
        shared.wake_up();
        inner = shared.lock();
    }
    inner.devices.disarm();
}
