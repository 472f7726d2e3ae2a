//! Rings on a host: receive by reference into memory of the application.
//!
//! [`Rings`] is an application's end of rings whose other side a host's driver serves; what lies in
//! them, and what may be asked, is `pagewire_ring`'s. [`AsyncRings`] puts futures on top, and buffers
//! that give themselves back.
//!
//! Nobody takes a lock to submit, to receive or to give buffers back. The driver is woken only if it
//! sleeps ([`Rings::flush`] looks).

mod buf;
mod futures;
pub(crate) mod serve;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use pagewire_device::{BindError, Rule};
use pagewire_mem::{Frag, Region, View};
use pagewire_ring::layout::COPY_GROUP;
use pagewire_ring::{
    Completion, Counters, Ends, Engine, EngineConfig, Entry, Fill, QueueConfig, RegisterError,
    Registered, Submission,
};

pub use buf::RingBuf;
pub use futures::{AsyncRings, Received, RingListener, RingStream};

use crate::host::{Handle, Host};
use crate::shared::io_error;
use serve::RingWaker;

/// An application's end of rings. One thread at a time; their drop closes the sockets made through
/// them and takes the memory from the device.
pub struct Rings {
    host: Arc<Handle>,
    id: u64,
    ends: Ends,
    groups: Vec<Registered>,
    waker: Arc<RingWaker>,
    /// Submissions or fill entries were put in and not shown yet.
    unshown: bool,
}

impl Host {
    /// New rings, served by this host.
    ///
    /// # Errors
    /// [`RegisterError`] if a size or the copy group's memory makes no sense.
    pub fn rings(&self, config: EngineConfig) -> Result<Rings, RegisterError> {
        let (engine, ends) = Engine::new(config)?;
        let host = self.handle();
        let (id, waker) = host.shared.attach(engine);
        Ok(Rings { host, id, ends, groups: Vec::new(), waker, unshown: false })
    }
}

impl Rings {
    /// Listens for connections; the handle is for accepts. Port 0 stands for a free one.
    ///
    /// # Errors
    /// As [`Host::listen`].
    pub fn listen(&self, on: impl ToSocketAddrs) -> io::Result<(u64, SocketAddr)> {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no address to bind to");
        for local in on.to_socket_addrs()? {
            let made = self.host.shared.with_rings(self.id, |engine, stack, now| {
                let id = stack.tcp_listen(now, local, BACKLOG)?;
                let local = stack.local_addr(id)?;
                engine.adopt(stack, id).map(|handle| (handle, local)).ok_or_else(|| {
                    stack.close(now, id);
                    pagewire_stack::Error::TooManySockets
                })
            });
            match made {
                Ok(made) => return Ok(made),
                Err(error) => last = io_error(error),
            }
        }
        Err(last)
    }

    /// Registers memory for a queue of the host's device, gives the queue all of its buffers, and
    /// sends flows there. Returns the group's number.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register(
        &mut self,
        queue: usize,
        config: QueueConfig,
        rules: &[Rule],
    ) -> Result<u16, RegisterError> {
        let mut inner = self.host.shared.lock();
        let steering = inner.devices.steering().ok_or(RegisterError::Unsupported)?;
        if queue >= steering.queues() {
            return Err(RegisterError::NoQueue(queue));
        }
        let engine = inner.rings.engine(self.id).ok_or(RegisterError::Gone)?;
        let (mut registered, memory) = engine.register_queue(queue, config)?;
        let group = registered.group;
        let bound = inner.devices.steering().ok_or(BindError::Unsupported).and_then(|steering| {
            steering.bind(queue, memory)?;
            let steered = rules.iter().try_for_each(|rule| steering.steer(*rule, queue));
            if steered.is_err() {
                drop(steering.unbind(queue));
            }
            steered
        });
        if let Err(why) = bound {
            if let Some(engine) = inner.rings.engine(self.id) {
                let _ = engine.unregister(group);
            }
            return Err(why.into());
        }
        drop(inner);
        for buffer in 0..registered.buffers {
            if registered.fill.push(Fill { buffer, group }).is_err() {
                break;
            }
        }
        self.groups.push(registered);
        self.unshown = true;
        self.flush();
        Ok(group)
    }

    /// Registers memory of a sender in this process: what arrives from there by reference is
    /// delivered as it is. Returns the group's number.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register_lent(&mut self, memory: Frag) -> Result<u16, RegisterError> {
        let mut inner = self.host.shared.lock();
        let engine = inner.rings.engine(self.id).ok_or(RegisterError::Gone)?;
        let registered = engine.register_lent(memory, LENT_ENTRIES)?;
        drop(inner);
        let group = registered.group;
        self.groups.push(registered);
        Ok(group)
    }

    /// Registers memory to send from, which counts as shared; returns the send group's number.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register_send(&mut self, region: Region) -> Result<u16, RegisterError> {
        let mut inner = self.host.shared.lock();
        inner.rings.engine(self.id).ok_or(RegisterError::Gone)?.register_send(region)
    }

    /// Ends the registration of memory to send from: nothing new is sent from there. What was
    /// submitted is still sent, and its memory must not change until it completes.
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`].
    pub fn unregister_send(&mut self, group: u16) -> Result<(), RegisterError> {
        let mut inner = self.host.shared.lock();
        inner.rings.engine(self.id).ok_or(RegisterError::Gone)?.unregister_send(group)
    }

    /// Ends a registration. What was delivered stays the application's until it gives it back; then
    /// a notice comes ([`Completion::UNREGISTERED`]).
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`].
    pub fn unregister(&mut self, group: u16) -> Result<(), RegisterError> {
        let mut inner = self.host.shared.lock();
        let engine = inner.rings.engine(self.id).ok_or(RegisterError::Gone)?;
        let queue = engine.queue_of(group);
        engine.unregister(group)?;
        if let (Some(queue), Some(steering)) = (queue, inner.devices.steering()) {
            drop(steering.unbind(queue));
        }
        Ok(())
    }

    /// Puts a submission in; `false`: the ring is full, look at completions first. Shown to the
    /// host by [`flush`](Self::flush).
    pub fn submit(&mut self, submission: Submission) -> bool {
        self.unshown = true;
        self.ends.submissions.push(submission).is_ok()
    }

    /// Gives a piece back; `false`: its fill ring is full, or there is none: later. Shown to the
    /// host by [`flush`](Self::flush).
    pub fn give_back(&mut self, entry: Entry) -> bool {
        self.unshown = true;
        match self.registered_mut(entry.group) {
            Some(group) => group.fill.push(entry.fill()).is_ok(),
            None => false,
        }
    }

    /// Shows the host what was submitted and given back, and wakes its driver if it sleeps.
    pub fn flush(&mut self) {
        if !std::mem::take(&mut self.unshown) {
            return;
        }
        let mut sleeps = self.ends.submissions.publish();
        sleeps |= self.ends.copy.fill.publish();
        for group in &mut self.groups {
            sleeps |= group.fill.publish();
        }
        if sleeps {
            self.host.shared.kick();
        }
    }

    /// The next completion, without waiting. Its entries are the next of
    /// [`next_entry`](Self::next_entry).
    pub fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.ends.completions.pop();
        if completion.is_none() {
            self.ends.completions.release();
            self.ends.entries.release();
        }
        completion
    }

    /// The next entry of the completions that were taken.
    pub fn next_entry(&mut self) -> Option<Entry> {
        self.ends.entries.pop()
    }

    /// Waits until there is a completion, at most `limit`; `false`: there is none. With
    /// [`manual`](crate::Builder::manual) hosts this drives the host.
    pub fn wait(&mut self, limit: Duration) -> bool {
        self.flush();
        self.ends.completions.release();
        self.ends.entries.release();
        let shared = &self.host.shared;
        let until = shared.now() + limit;
        if shared.manual {
            while self.ends.completions.available() == 0 && shared.now() < until {
                let left = until.saturating_since(shared.now());
                Host::from_handle(Arc::clone(&self.host)).wait_turn(left);
            }
            return self.ends.completions.available() > 0;
        }
        let spin_until = (shared.now() + shared.spin_max).min(until);
        loop {
            if self.ends.completions.available() > 0 {
                return true;
            }
            let now = shared.now();
            if now >= until {
                return false;
            }
            if now < spin_until {
                crate::driver::pause();
                continue;
            }
            self.waker.register(&crate::wait::thread_waker());
            if self.ends.completions.arm() {
                std::thread::park_timeout(until.saturating_since(now));
                self.ends.completions.disarm();
            }
        }
    }

    /// The application's look at a group's memory; there is none of a lent group.
    pub fn view(&self, group: u16) -> Option<&View> {
        self.registered(group)?.view.as_ref()
    }

    /// What the application has of a group. Not for others: whoever reaches the rings' memory can
    /// tell lies there, and `futures` relies on there being none.
    fn registered(&self, group: u16) -> Option<&Registered> {
        match group {
            COPY_GROUP => Some(&self.ends.copy),
            _ => self.groups.iter().rev().find(|registered| registered.group == group),
        }
    }

    fn registered_mut(&mut self, group: u16) -> Option<&mut Registered> {
        match group {
            COPY_GROUP => Some(&mut self.ends.copy),
            _ => self.groups.iter_mut().rev().find(|registered| registered.group == group),
        }
    }

    /// Counts so far.
    pub fn counters(&self) -> Counters {
        self.host.shared.lock().rings.engine(self.id).map(|e| e.counters()).unwrap_or_default()
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: usize = 1024;

/// Entries of a lent group's fill ring.
const LENT_ENTRIES: u32 = 4096;

impl Drop for Rings {
    fn drop(&mut self) {
        self.host.shared.detach(self.id);
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings").field("groups", &self.groups.len()).finish_non_exhaustive()
    }
}
