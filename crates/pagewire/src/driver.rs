//! The driver: the thread that takes turns (`turn.rs`), and sleeps on the devices and the next deadline.

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
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Pauses of a spinning thread between two turns, which leave the lock to others.
const PAUSES: u32 = 16;

/// Runs until the host has left. After a panic of this crate's own code it goes on, to report that.
pub(crate) fn run(shared: &Arc<Shared>) {
    inside::drive(shared.id);
    while catch_unwind(AssertUnwindSafe(|| drive(shared))).is_err() {}
}

fn drive(shared: &Arc<Shared>) {
    let spin = Spin::new(shared.spin_max);
    let mut idle_since = shared.now();
    // When it last looked for work while it polled, and found none.
    let mut looked = None;
    loop {
        shared.wake_up();
        let (mut inner, now) = shared.lock_now();
        let leaving = shared.departure.is_asked();
        if leaving && let Some(report) = shared.leave(&mut inner, now) {
            if !shared.departure.stays() {
                drop(inner);
                return shared.departure.set_report(report);
            }
            shared.departure.set_report(report);
        }
        if inner.failed {
            // Only the failure is left to report.
            inner.flush(now);
            shared.unlock_and_wake(inner);
            sleep(shared, &[], LONGEST_SLEEP);
            continue;
        }
        if inner.last_inline.is_some_and(|at| now < at + INLINE_GRACE) {
            inner.poller = Poller::Deferred;
            drop(inner);
            sleep(shared, &[], INLINE_GRACE);
            continue;
        }
        inner.poller = Poller::Running;
        inner.devices.disarm();
        let worked = inner.turn(now);
        let before = looked.take();
        let mut lost = false;
        if worked || !inner.waiters.ready.is_empty() {
            spin.ended(now.saturating_since(idle_since));
            idle_since = now;
        } else if let Some(before) = before {
            lost = spin.lost_core(before, now);
        }
        if !lost && !leaving && now.saturating_since(idle_since) < spin.limit(now) {
            looked = Some(now);
            shared.unlock_and_wake(inner);
            pause();
            continue;
        }
        let wait = inner.longest_sleep(now, if leaving { LEAVE_LOOK } else { LONGEST_SLEEP });
        if wait.is_zero()
            || Deferral::is_pending()
            || inner.devices.arm()
            || !shared.fall_asleep(&mut inner)
        {
            inner.devices.disarm();
            shared.unlock_and_wake(inner);
            continue;
        }
        inner.poller = Poller::Armed;
        inner.armed_until = now + wait;
        let fds = inner.devices.fds();
        shared.unlock_and_wake(inner);
        sleep(shared, &fds, wait);
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
