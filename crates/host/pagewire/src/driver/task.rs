//! A task that drives a host: on a runtime's threads, in the place of a thread of its own.
//!
//! ```text
//!   thread:  device wakes the host's thread -> turn -> it wakes the runtime's thread -> task runs
//!   task:    device wakes the runtime's thread -> turn -> task runs
//! ```
//!
//! The task takes the same steps as the thread (`driver.rs`). Between them it waits on the same
//! descriptors, in the runtime's epoll instance. tokio reports edges there, and the steps count on
//! levels: so each wait forgets what was reported, and then asks for the level.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pagewire_mem::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::yield_now;

use crate::driver::{self, Driver, Next};
use crate::error::StartError;
use crate::inside;
use crate::shared::Shared;
use crate::timer::Timer;

/// How long a wait lasts at most where a descriptor cannot be registered, and so wakes nobody.
const UNREGISTERED: Duration = Duration::from_millis(1);

/// Begins to drive the host by a task of the runtime that this thread runs in.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Result<(), StartError> {
    let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
    // The clock and the eventfd are registered here, so that what is missing is seen here.
    let bells = catch_unwind(AssertUnwindSafe(|| Bells::new(shared)))
        .map_err(|_| StartError::NoRuntime)??;
    let alone = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
    if alone {
        // Calls before the task's first step have to drive the host, too.
        shared.drive_on_this_thread();
    } else {
        shared.drive_by_task();
    }
    runtime.spawn(drive(Driven { shared: Arc::clone(shared), alone, over: false }, bells));
    Ok(())
}

/// A host that a task drives. If the task ends before the host does, because its runtime ends, a thread
/// of its own drives the host from there: what is queued is still delivered.
struct Driven {
    shared: Arc<Shared>,
    /// The runtime has one thread: only that can take the steps.
    alone: bool,
    over: bool,
}

impl Driven {
    fn step(&mut self, driver: &mut Driver) -> Next {
        if self.alone {
            self.shared.drive_on_this_thread();
        }
        let _drives = inside::Drives::of(self.shared.id);
        // After a panic of this crate's own code it goes on, to report that.
        let step = catch_unwind(AssertUnwindSafe(|| driver.step(&self.shared)));
        step.unwrap_or(Next::Again)
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.shared.drive_by_no_task();
        if self.over {
            return;
        }
        if let Err(error) = driver::start(&self.shared) {
            tracing::warn!(%error, "no thread for a host whose runtime ended: it is reset");
            self.shared.reset_all();
        }
    }
}

async fn drive(mut host: Driven, mut bells: Bells) {
    let mut driver = Driver::new(&host.shared);
    loop {
        match host.step(&mut driver) {
            Next::Again | Next::Look => yield_now().await,
            Next::Rest(wait) => bells.wait(host.shared.now(), None, wait).await,
            Next::Sleep(devices, wait) => {
                bells.wait(host.shared.now(), Some(&devices), wait).await;
            }
            Next::Over => break,
        }
    }
    host.over = true;
}

/// What wakes the task.
struct Bells {
    /// The host's eventfd.
    wake: AsyncFd<Arc<OwnedFd>>,
    timer: AsyncFd<Timer>,
    /// When the timer rings, by the host's clock. It may ring too early, but never too late.
    rings_at: Option<Instant>,
    devices: Vec<AsyncFd<Arc<OwnedFd>>>,
    /// Those that `devices` has, or has tried to register.
    registered: Option<Arc<[Arc<OwnedFd>]>>,
}

impl Bells {
    fn new(shared: &Shared) -> io::Result<Self> {
        Ok(Self {
            wake: watch(Arc::clone(&shared.wake))?,
            timer: watch(Timer::new()?)?,
            rings_at: None,
            devices: Vec::new(),
            registered: None,
        })
    }

    /// Waits until the eventfd, the timer or one of the devices is readable.
    async fn wait(
        &mut self,
        now: Instant,
        devices: Option<&Arc<[Arc<OwnedFd>]>>,
        mut wait: Duration,
    ) {
        if let Some(devices) = devices {
            self.register(devices);
            if self.devices.len() < devices.len() {
                wait = wait.min(UNREGISTERED);
            }
        }
        self.set_timer(now, wait);
        let devices = devices.is_some();
        let mut asked = false;
        let rang = poll_fn(|cx| {
            let mut rang = self.take_edges(devices, cx);
            if !std::mem::replace(&mut asked, true) {
                // An edge from here on wakes the task; an earlier one is seen in the level.
                rang = self.levels(devices);
            }
            if rang == Rang::default() { Poll::Pending } else { Poll::Ready(rang) }
        })
        .await;
        self.forget(rang);
    }

    /// Registers the task with each descriptor; returns which were reported since the last time.
    fn take_edges(&self, devices: bool, cx: &mut Context<'_>) -> Rang {
        let (wake, timer) = (take_edge(&self.wake, cx), take_edge(&self.timer, cx));
        let devices = if devices { &self.devices[..] } else { &[] };
        // Each is registered.
        let device = devices.iter().fold(false, |rang, device| take_edge(device, cx) | rang);
        Rang { wake, timer, device }
    }

    /// Asks the kernel.
    fn levels(&self, devices: bool) -> Rang {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        let timer = PollFd::new(&self.timer, PollFlags::IN);
        match &self.devices[..] {
            [device] if devices => {
                rang(&mut [wake, timer, PollFd::new(device, PollFlags::IN)], &zero)
            }
            many if devices => {
                let many = many.iter().map(|device| PollFd::new(device, PollFlags::IN));
                rang(&mut [wake, timer].into_iter().chain(many).collect::<Vec<_>>(), &zero)
            }
            _ => rang(&mut [wake, timer], &zero),
        }
    }

    /// Registers the devices' descriptors in the place of those before.
    fn register(&mut self, devices: &Arc<[Arc<OwnedFd>]>) {
        if self.registered.as_ref().is_some_and(|before| Arc::ptr_eq(before, devices)) {
            return;
        }
        self.devices.clear();
        for device in devices.iter() {
            match watch(Arc::clone(device)) {
                Ok(device) => self.devices.push(device),
                Err(error) => tracing::debug!(%error, "a device is polled each millisecond"),
            }
        }
        self.registered = Some(Arc::clone(devices));
    }

    /// The timer is set anew only if it would ring too late: most deadlines move away before they come.
    fn set_timer(&mut self, now: Instant, wait: Duration) {
        let at = now + wait;
        if self.rings_at.is_some_and(|rings| rings <= at) {
            return;
        }
        if self.timer.get_ref().set(wait).is_ok() {
            self.rings_at = Some(at);
        }
    }

    /// Empties the eventfd and the timer, if they rang; neither blocks.
    fn forget(&mut self, rang: Rang) {
        if rang.wake {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if rang.timer && self.timer.get_ref().clear() {
            self.rings_at = None;
        }
    }
}

/// Which descriptors became readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rang {
    wake: bool,
    timer: bool,
    /// One of the devices.
    device: bool,
}

/// Polls the eventfd, the timer and then devices.
fn rang(fds: &mut [PollFd<'_>], timeout: &Timespec) -> Rang {
    // An error is no reason to sleep.
    let failed = poll(fds, Some(timeout)).is_err();
    let mut ready = fds.iter().map(|fd| failed || !fd.revents().is_empty());
    let (wake, timer) = (ready.next(), ready.next());
    Rang { wake: wake == Some(true), timer: timer == Some(true), device: ready.any(|ready| ready) }
}

/// Registers a descriptor with the runtime.
#[allow(
    deprecated,
    reason = "newer forms are unsafe, because a type could close or change its descriptor; these cannot"
)]
fn watch<T: AsRawFd>(fd: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

/// Registers the task, and forgets what was reported; returns whether something was.
fn take_edge<T: AsRawFd>(bell: &AsyncFd<T>, cx: &mut Context<'_>) -> bool {
    let mut rang = false;
    while let Poll::Ready(ready) = bell.poll_read_ready(cx) {
        rang = true;
        match ready {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime ends.
            Err(_) => break,
        }
    }
    rang
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
