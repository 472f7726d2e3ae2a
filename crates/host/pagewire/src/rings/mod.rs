//! Rings on a host: receive by reference into memory of the application.
//!
//! [`Rings`] is an application's end of rings whose other end a host's driver serves; `pagewire_ring`
//! defines their layout and operations. [`AsyncRings`] adds futures, and buffers whose drop gives their
//! memory back.
//!
//! Submitting, receiving and giving back take no lock. [`Rings::flush`] wakes a sleeping driver.
//!
//! ```no_run
//! use pagewire::device::Rule;
//! use pagewire::memory::Region;
//! use pagewire::rings::{EngineConfig, QueueConfig};
//! use pagewire::Host;
//!
//! async fn one_connection(host: &Host) -> Result<(), Box<dyn std::error::Error>> {
//!     // The memory for payload that has to be copied.
//!     let copy = QueueConfig::new(Region::memfd("copy", 4 << 20)?);
//!     let rings = host.rings(EngineConfig::new(copy))?.into_async();
//!     // The memory that a queue of the device fills with segments to port 9000.
//!     let region = QueueConfig::new(Region::memfd("region", 16 << 20)?);
//!     let group = rings.register(1, region, &[Rule::tcp_port(9000)])?;
//!     let stream = rings.listen("10.77.0.2:9000")?.accept().await?;
//!     loop {
//!         let received = stream.receive(group, 1 << 20).await?;
//!         if received.buffers.is_empty() {
//!             return Ok(());
//!         }
//!         for buffer in received.buffers {
//!             println!("{:?}", buffer.as_slice());
//!             // Dropped: the device may fill it again.
//!         }
//!     }
//! }
//! ```
//!
//! Datagrams work the same way: [`AsyncRings::bind`], then [`RingSocket::receive`], with rules made by
//! [`Rule::udp_port`](crate::device::Rule::udp_port).
//!
//! # Which device
//!
//! | device | queues that can be given memory | writer |
//! |---|---|---|
//! | `Tap` that was made here | 0, the default, and 1 to 15 | the kernel |
//! | `Tap` that existed | 0 | the kernel |
//! | any in `device::Queues` | as many as it was made with | `Queues`: one copy, counted as the device's |
//! | `Pair` as it is | none; [`Rings::register_lent`] | none: it is the sender's memory |
//!
//! A tap's kernel delivers a flow to the queue that sent the flow's last frame: after three seconds
//! without a sent frame, datagrams of a peer may arrive at any queue, and are copied.
//!
//! # Which memory
//!
//! A `Region::memfd` is *private*: no other process can write it, so [`RingBuf::as_slice`] lends its
//! bytes. A tap takes no other memory. A `Region::memfd_shared`, or adopted memory, is *shared*: its
//! bytes are copied out, or shown as snapshots. The user of raw [`Rings`] can claim anything about the
//! buffers it holds, so it reads only shared memory, by [`View::copy_out`]; private memory is for
//! [`AsyncRings`].

mod attach;
mod buf;
mod datagrams;
mod futures;
mod router;
pub(crate) mod serve;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pagewire_device::{BindError, Rule};
use pagewire_mem::{Frag, Region, View};
use pagewire_ring::{Ends, Engine, Registered};

pub use buf::RingBuf;
pub use datagrams::{Datagram, RingSocket};
pub use futures::{AsyncRings, Received, RingListener, RingStream};
pub use pagewire_ring::layout::{COPY_GROUP, NOTICE};
pub use pagewire_ring::{
    Completion, Counters, EngineConfig, Entry, Fill, Op, QueueConfig, RegisterError, Submission,
};

use crate::host::Host;
use pagewire_sockets::{ToSocketAddrs, first, resolve_blocking};
use serve::RingWaker;

/// An application's end of rings, for one thread at a time. A drop closes its sockets.
pub struct Rings {
    host: Host,
    id: u64,
    ends: Ends,
    groups: Vec<Registered>,
    waker: Arc<RingWaker>,
    /// Buffers of regions that their fill rings had no room for yet, by group.
    unposted: Vec<(u16, Range<u32>)>,
    /// There are submissions or fill entries that were not published yet.
    unpublished: bool,
}

impl Host {
    /// Makes new rings, served by this host.
    ///
    /// # Errors
    /// [`RegisterError`] if a size or the copy group's memory is invalid.
    pub fn rings(&self, config: EngineConfig) -> Result<Rings, RegisterError> {
        let (engine, ends) = Engine::new(config)?;
        let host = self.clone();
        let (id, waker) = host.shared().attach(engine);
        Ok(Rings {
            host,
            id,
            ends,
            groups: Vec::new(),
            waker,
            unposted: Vec::new(),
            unpublished: false,
        })
    }
}

impl Rings {
    /// Listens for connections; the handle is for accepts. Port 0 means a free one.
    ///
    /// # Errors
    /// As [`Host::listen`].
    pub fn listen(&self, on: impl ToSocketAddrs) -> io::Result<(u64, SocketAddr)> {
        let shared = self.host.shared();
        first(resolve_blocking(&self.host, on)?, |local| {
            let made = shared.with_rings(self.id, |engine, stack, now| {
                let id = stack.listen(local, BACKLOG)?;
                let local = stack.local_addr(id)?;
                engine.adopt(stack, id).map(|handle| (handle, local)).ok_or_else(|| {
                    stack.close(now, id);
                    pagewire_stack::Error::TooManySockets
                })
            });
            made.map_err(|e| shared.error(e))
        })
    }

    /// Registers memory for a queue of the host's device, gives the queue all its buffers, and steers flows
    /// there. Returns the group's number.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register(
        &mut self,
        queue: usize,
        config: QueueConfig,
        rules: &[Rule],
    ) -> Result<u16, RegisterError> {
        let mut inner = self.host.shared().lock();
        let steering = inner.devices.steering().ok_or(RegisterError::Unsupported)?;
        if queue >= steering.queues() {
            return Err(RegisterError::NoQueue(queue));
        }
        let engine = inner.rings.engine(self.id).ok_or(RegisterError::Gone)?;
        let (registered, memory) = engine.register_queue(queue, config)?;
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
                let _ = engine.discard(group);
            }
            return Err(why.into());
        }
        drop(inner);
        self.unposted.push((group, 0..registered.buffers));
        self.groups.push(registered);
        self.flush();
        Ok(group)
    }

    /// Registers memory of a sender in this process: payload that arrives from there by reference is
    /// delivered in place. Returns the group's number.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register_lent(&mut self, memory: Frag) -> Result<u16, RegisterError> {
        let mut inner = self.host.shared().lock();
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
        let mut inner = self.host.shared().lock();
        inner.rings.engine(self.id).ok_or(RegisterError::Gone)?.register_send(region)
    }

    /// Ends the registration of memory to send from: new sends from there are refused. Submitted sends go
    /// on, and their memory must not change until they complete.
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`].
    pub fn unregister_send(&mut self, group: u16) -> Result<(), RegisterError> {
        let mut inner = self.host.shared().lock();
        inner.rings.engine(self.id).ok_or(RegisterError::Gone)?.unregister_send(group)
    }

    /// Ends a registration. Delivered buffers stay the application's until it gives them back; then a
    /// notice follows ([`Completion::UNREGISTERED`]).
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`].
    pub fn unregister(&mut self, group: u16) -> Result<(), RegisterError> {
        let mut inner = self.host.shared().lock();
        let engine = inner.rings.engine(self.id).ok_or(RegisterError::Gone)?;
        let queue = engine.queue_of(group);
        engine.unregister(group)?;
        self.unposted.retain(|(other, _)| *other != group);
        if let (Some(queue), Some(steering)) = (queue, inner.devices.steering()) {
            drop(steering.unbind(queue));
        }
        drop(inner);
        // Without a wake-up, a sleeping driver would notice only later that all buffers are back.
        self.host.shared().wake_driver();
        Ok(())
    }

    /// Adds a submission, for [`flush`](Self::flush) to publish; `false`: the ring is full.
    pub fn submit(&mut self, submission: Submission) -> bool {
        self.unpublished = true;
        self.ends.submissions.push(submission).is_ok()
    }

    /// Gives a buffer back, for [`flush`](Self::flush) to publish; `false`: no ring, or no room.
    pub fn give_back(&mut self, entry: Entry) -> bool {
        self.unpublished = true;
        match self.registered_mut(entry.group) {
            Some(group) => group.fill.push(entry.fill()).is_ok(),
            None => false,
        }
    }

    /// Publishes submissions and fill entries, and wakes the host's driver if it sleeps.
    pub fn flush(&mut self) {
        self.post();
        if !std::mem::take(&mut self.unpublished) {
            return;
        }
        let mut sleeps = self.ends.submissions.publish();
        sleeps |= self.ends.copy.fill.publish();
        for group in &mut self.groups {
            sleeps |= group.fill.publish();
        }
        if sleeps {
            self.host.shared().wake_driver();
        }
    }

    /// Gives buffers of new regions, as far as their fill rings have room.
    fn post(&mut self) {
        for (group, buffers) in &mut self.unposted {
            let (group, mut newest) = (*group, self.groups.iter_mut().rev());
            let Some(registered) = newest.find(|registered| registered.group == group) else {
                continue;
            };
            while buffers.start < buffers.end
                && registered.fill.push(Fill { buffer: buffers.start, group }).is_ok()
            {
                buffers.start += 1;
                self.unpublished = true;
            }
        }
        self.unposted.retain(|(_, buffers)| buffers.start < buffers.end);
    }

    /// The next completion, without waiting. The next [entries](Self::next_entry) are its own.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let completion = self.ends.completions.pop();
        match &completion {
            None => {
                self.ends.completions.release();
                self.ends.entries.release();
            }
            Some(done) if done.user_data == NOTICE && done.has(Completion::UNREGISTERED) => {
                // The oldest group: the number may have been given again. Its memory is dropped here.
                let gone = |group: &Registered| u64::from(group.group) == done.handle;
                if let Some(at) = self.groups.iter().position(gone) {
                    drop(self.groups.remove(at));
                }
            }
            Some(_) => {}
        }
        completion
    }

    /// The next entry of the completions that were taken.
    pub fn next_entry(&mut self) -> Option<Entry> {
        self.ends.entries.pop()
    }

    /// Waits for a completion, at most `limit`; `false`: there is none. Drives a manual host.
    pub fn wait(&mut self, limit: Duration) -> bool {
        self.flush();
        self.ends.completions.release();
        self.ends.entries.release();
        let shared = self.host.shared();
        let until = shared.now() + limit;
        if shared.is_driven_by_waits() || crate::reentrancy::is_driver_of(shared.id) {
            while self.ends.completions.available() == 0 && shared.now() < until {
                let left = until.saturating_since(shared.now());
                self.host.wait_turn(left);
            }
            shared.hand_back();
            return self.ends.completions.available() > 0;
        }
        let began = shared.now();
        let mut spin_until = (began + shared.spin.limit(began)).min(until);
        loop {
            let now = shared.now();
            if self.ends.completions.available() > 0 {
                shared.spin.ended(now.saturating_since(began));
                return true;
            }
            if now >= until {
                shared.spin.ended(now.saturating_since(began));
                return false;
            }
            if now < spin_until {
                crate::driver::pause();
                if shared.spin.lost_core(now, shared.now()) {
                    spin_until = now;
                }
                continue;
            }
            self.waker.register(&crate::wait::thread_waker());
            if self.ends.completions.arm() {
                std::thread::park_timeout(until.saturating_since(now));
                self.ends.completions.disarm();
            }
        }
    }

    /// The application's view of a group's memory, if that is shared; a lent group has none.
    pub fn view(&self, group: u16) -> Option<&View> {
        self.registered(group)?.view.as_ref()
    }

    /// The application's part of a group. Private: with it, code could forge entries.
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
        self.host.shared().lock().rings.engine(self.id).map(|e| e.counters()).unwrap_or_default()
    }
}

/// Connections that may wait to be accepted.
const BACKLOG: usize = 1024;

/// Entries of a lent group's fill ring.
const LENT_ENTRIES: u32 = 4096;

impl Drop for Rings {
    fn drop(&mut self) {
        let id = self.id;
        self.host.handle().when_unlocked(move |host| host.shared.detach(id));
    }
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings").field("groups", &self.groups.len()).finish_non_exhaustive()
    }
}
