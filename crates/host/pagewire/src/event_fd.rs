//! [`EventFd`]: a host in a foreign event loop. Its one descriptor is readable when the host has to take a turn.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll;

use crate::driver::LONGEST_SLEEP;
use crate::host::Host;
use crate::shared::Poller;
use crate::timer::Timer;

/// Turns in one call of [`EventFd::drive`]: then the loop has its chance.
const TURNS: usize = 16;

/// A host's part of an event loop (mio, io_uring, GLib, libuv): [`Host::event_fd`].
///
/// The descriptor is readable when a device has frames, when another thread needs the host, and when the
/// stack's next timer is due: the loop keeps no deadline for the host. [`drive`](Self::drive) empties the
/// descriptor, so that edges (`EPOLLET`, mio) do as well as levels. Calls of sockets send at once and need
/// no `drive` after them. The descriptor does not tell which socket is ready: try the sockets after each
/// `drive`, or wait for them by the wakers of [`net`](crate::net).
///
/// An `EventFd` keeps its host running. To end without a reset of what is queued, drive on until
/// [`Host::socket_counts`] tells of no connection, or call [`Host::shutdown`], which blocks.
///
/// ```
/// use std::io::Read;
/// use std::os::fd::AsFd;
/// use pagewire::{Host, Pair};
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// let (left, right) = Pair::new()?;
/// let host = Host::builder().device(left).address("10.0.0.1/24").manual().start()?;
/// let peer = Host::builder().device(right).address("10.0.0.2/24").start()?;
/// let listener = host.listen("10.0.0.1:9000")?;
/// listener.set_nonblocking(true)?;
/// let near = std::thread::spawn(move || peer.connect("10.0.0.1:9000")?.send(vec![7; 3]));
///
/// let mut events = host.event_fd()?;
/// let accepted = loop {
///     events.drive()?; // at first, and whenever the descriptor is readable
///     if let Ok((stream, _)) = listener.accept() {
///         break stream;
///     }
///     poll(&mut [PollFd::new(&events.as_fd(), PollFlags::IN)], None)?; // the loop's own wait
/// };
/// assert_eq!((&accepted).read(&mut [0; 9])?, 3); // on a host without a thread, a wait takes turns, too
/// # near.join().expect("the peer ends")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EventFd {
    host: Host,
    epoll: OwnedFd,
    timer: Timer,
    devices: Arc<[Arc<OwnedFd>]>,
}

impl Host {
    /// A descriptor for a foreign event loop. For hosts started with
    /// [`manual`](crate::HostBuilder::manual).
    ///
    /// # Errors
    /// `InvalidInput` for a host that has a driver; `ResourceBusy` while another [`EventFd`] of the host lives;
    /// the system's, if there are too many descriptors.
    pub fn event_fd(&self) -> io::Result<EventFd> {
        if !self.shared().manual {
            let text = "the host has a driver: start it with `HostBuilder::manual`";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = Timer::new()?;
        add(&epoll, &timer)?;
        add(&epoll, &self.shared().wake)?;
        if self.shared().in_a_loop.swap(true, Ordering::AcqRel) {
            let text = "the host has a descriptor for another event loop";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
        Ok(EventFd { host: self.clone(), epoll, timer, devices: Arc::new([]) })
    }
}

impl EventFd {
    /// Takes the turns that are due, and prepares the descriptor for the next wait. Call this at first, and
    /// whenever the descriptor is readable.
    ///
    /// # Errors
    /// The system's, if a descriptor of a device cannot be waited on.
    pub fn drive(&mut self) -> io::Result<()> {
        let shared = self.host.shared();
        let mut count = [0; 8];
        // Neither blocks; a wake-up from here on leaves the descriptor readable.
        let _ = rustix::io::read(&shared.wake, &mut count);
        self.timer.clear();
        for _ in 0..TURNS {
            shared.end_sleep();
            let (mut inner, now) = shared.lock_now();
            inner.poller = Poller::Running;
            inner.devices.disarm();
            let worked = inner.turn(now);
            let wait = inner.longest_sleep(now, LONGEST_SLEEP);
            if worked || wait.is_zero() || inner.devices.arm() || !shared.prepare_sleep(&mut inner)
            {
                shared.unlock_and_wake(inner);
                continue;
            }
            inner.poller = Poller::Armed;
            inner.armed_until = now + wait;
            let devices = inner.devices.fds();
            shared.unlock_and_wake(inner);
            self.watch(devices)?;
            return self.timer.set(wait);
        }
        shared.wake_driver();
        Ok(())
    }

    /// Replaces the devices in the set that the descriptor waits on.
    fn watch(&mut self, devices: Arc<[Arc<OwnedFd>]>) -> io::Result<()> {
        if Arc::ptr_eq(&self.devices, &devices) {
            return Ok(());
        }
        for before in self.devices.iter() {
            // A descriptor that is closed is no longer in the set.
            let _ = epoll::delete(&self.epoll, before);
        }
        self.devices = Arc::new([]);
        devices.iter().try_for_each(|device| match add(&self.epoll, device) {
            // Several devices share the descriptor, or an earlier call failed on the way.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::EXIST.raw_os_error()) => {
                Ok(())
            }
            done => done,
        })?;
        self.devices = devices;
        Ok(())
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        self.host.shared().in_a_loop.store(false, Ordering::Release);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

fn add(epoll: &OwnedFd, fd: impl AsFd) -> io::Result<()> {
    let data = epoll::EventData::new_u64(0);
    Ok(epoll::add(epoll, fd, data, epoll::EventFlags::IN)?)
}
