//! The driver as a task: it drives a host on a runtime's threads, in the place of a thread of its own.
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
use crate::reentrancy;
use crate::shared::Shared;
use crate::timer::Timer;

/// How long a wait lasts at most where a descriptor cannot be registered, and so wakes nobody.
const UNREGISTERED: Duration = Duration::from_millis(1);

/// Begins to drive the host by a task of the runtime that this thread runs in.
pub(crate) fn spawn(shared: &Arc<Shared>) -> Result<(), StartError> {
    let runtime = Handle::try_current().map_err(|_| StartError::NoRuntime)?;
    // The timer and the eventfd are registered here, so that a runtime without I/O is an error of the start.
    let sources = catch_unwind(AssertUnwindSafe(|| WakeSources::new(shared)))
        .map_err(|_| StartError::NoRuntime)??;
    let single_thread = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
    if single_thread {
        // Calls before the task's first step have to drive the host, too.
        shared.drive_on_this_thread();
    } else {
        shared.drive_by_task();
    }
    let task = DriverTask { shared: Arc::clone(shared), single_thread, ended: false };
    runtime.spawn(drive(task, sources));
    Ok(())
}

/// A host that a task drives. If the task ends before the host does, because its runtime ends, the drop
/// starts a driver thread, so that queued data is still delivered.
struct DriverTask {
    shared: Arc<Shared>,
    /// The runtime has one thread: only that can take the steps.
    single_thread: bool,
    /// The host was shut down: the drop has nothing to do.
    ended: bool,
}

impl DriverTask {
    fn step(&mut self, driver: &mut Driver) -> Next {
        if self.single_thread {
            self.shared.drive_on_this_thread();
        }
        let _guard = reentrancy::DriverGuard::of(self.shared.id);
        // After a panic of this crate's own code the task goes on, to report the failure.
        let step = catch_unwind(AssertUnwindSafe(|| driver.step(&self.shared)));
        step.unwrap_or(Next::StepAgain)
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        self.shared.drive_by_no_task();
        if self.ended {
            return;
        }
        if let Err(error) = driver::start(&self.shared) {
            tracing::warn!(%error, "no thread for a host whose runtime ended: it is reset");
            self.shared.reset_all();
        }
    }
}

async fn drive(mut host: DriverTask, mut sources: WakeSources) {
    let mut driver = Driver::new(&host.shared);
    loop {
        match host.step(&mut driver) {
            Next::StepAgain | Next::Pause => yield_now().await,
            Next::Sleep(wait) => sources.wait(host.shared.now(), None, wait).await,
            Next::SleepOnDevices(devices, wait) => {
                sources.wait(host.shared.now(), Some(&devices), wait).await;
            }
            Next::End => break,
        }
    }
    host.ended = true;
}

/// The descriptors that wake the task, registered with the runtime.
struct WakeSources {
    /// The host's eventfd.
    wake: AsyncFd<Arc<OwnedFd>>,
    timer: AsyncFd<Timer>,
    /// When the timer expires, by the host's clock. A timer may expire too early, but never too late.
    expires_at: Option<Instant>,
    devices: Vec<AsyncFd<Arc<OwnedFd>>>,
    /// The descriptors that `devices` has registered, or has tried to register.
    registered: Option<Arc<[Arc<OwnedFd>]>>,
}

impl WakeSources {
    fn new(shared: &Shared) -> io::Result<Self> {
        Ok(Self {
            wake: watch(Arc::clone(&shared.wake))?,
            timer: watch(Timer::new()?)?,
            expires_at: None,
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
        let readable = poll_fn(|cx| {
            let mut readable = self.take_edges(devices, cx);
            if !std::mem::replace(&mut asked, true) {
                // An edge from here on wakes the task; an earlier one is seen in the level.
                readable = self.levels(devices);
            }
            if readable == ReadableSources::default() {
                Poll::Pending
            } else {
                Poll::Ready(readable)
            }
        })
        .await;
        self.forget(readable);
    }

    /// Registers the task with each descriptor; returns which were reported since the last time.
    fn take_edges(&self, devices: bool, cx: &mut Context<'_>) -> ReadableSources {
        let (wake, timer) = (take_edge(&self.wake, cx), take_edge(&self.timer, cx));
        let devices = if devices { &self.devices[..] } else { &[] };
        // No short circuit: each device has to be registered.
        let device =
            devices.iter().fold(false, |readable, device| take_edge(device, cx) | readable);
        ReadableSources { wake, timer, device }
    }

    /// Asks the kernel which descriptors are readable now.
    fn levels(&self, devices: bool) -> ReadableSources {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let wake = PollFd::new(&self.wake, PollFlags::IN);
        let timer = PollFd::new(&self.timer, PollFlags::IN);
        match &self.devices[..] {
            [device] if devices => {
                poll_sources(&mut [wake, timer, PollFd::new(device, PollFlags::IN)], &zero)
            }
            many if devices => {
                let many = many.iter().map(|device| PollFd::new(device, PollFlags::IN));
                poll_sources(&mut [wake, timer].into_iter().chain(many).collect::<Vec<_>>(), &zero)
            }
            _ => poll_sources(&mut [wake, timer], &zero),
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

    /// Lets the timer expire after `wait` at the latest. The timer is set anew only if it would expire too
    /// late: most deadlines move away before they come.
    fn set_timer(&mut self, now: Instant, wait: Duration) {
        let at = now + wait;
        if self.expires_at.is_some_and(|expires| expires <= at) {
            return;
        }
        if self.timer.get_ref().set(wait).is_ok() {
            self.expires_at = Some(at);
        }
    }

    /// Empties the eventfd and the timer, if they were readable; neither blocks.
    fn forget(&mut self, readable: ReadableSources) {
        if readable.wake {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if readable.timer && self.timer.get_ref().clear() {
            self.expires_at = None;
        }
    }
}

/// The descriptors that became readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReadableSources {
    wake: bool,
    timer: bool,
    /// A device.
    device: bool,
}

/// Polls the eventfd, the timer and then devices.
fn poll_sources(fds: &mut [PollFd<'_>], timeout: &Timespec) -> ReadableSources {
    // An error is no reason to sleep.
    let failed = poll(fds, Some(timeout)).is_err();
    let mut ready = fds.iter().map(|fd| failed || !fd.revents().is_empty());
    let (wake, timer) = (ready.next(), ready.next());
    ReadableSources {
        wake: wake == Some(true),
        timer: timer == Some(true),
        device: ready.any(|ready| ready),
    }
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
fn take_edge<T: AsRawFd>(fd: &AsyncFd<T>, cx: &mut Context<'_>) -> bool {
    let mut readable = false;
    while let Poll::Ready(ready) = fd.poll_read_ready(cx) {
        readable = true;
        match ready {
            Ok(mut ready) => ready.clear_ready(),
            // The runtime ends.
            Err(_) => break,
        }
    }
    readable
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
