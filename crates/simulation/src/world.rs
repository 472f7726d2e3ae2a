//! What all hosts share: their stacks, the network between them, the time. One lock is around it.
//!
//! Sockets hold a [`Here`]: the world, and their host. The simulation's thread takes the lock
//! between the runs of hosts; a verb of a socket takes it during one.
//!
//! Law: nobody polls a task, or calls or drops a waker, while the lock is held. Wakers are collected
//! in [`World::wakes`] and called after the unlock.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use pagewire_mem::Instant;
use pagewire_stack::{Readiness, SocketId, Stack};

use crate::SimTime;
use crate::names::Names;
use crate::waiters::{Waiter, WaiterId, WaiterIds, Waiters};

/// Names a host of one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(crate) u32);

impl HostId {
    /// Its place: hosts are numbered from 0 in the order in which they were added.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A host between two of its crashes: sockets of an earlier incarnation are dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostRef {
    pub(crate) id: HostId,
    pub(crate) incarnation: u32,
}

/// The host has crashed since the socket was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

impl From<Gone> for io::Error {
    fn from(Gone: Gone) -> Self {
        Self::new(io::ErrorKind::NotConnected, "the socket's host has crashed in the simulation")
    }
}

/// Everything that hosts share.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) now: SimTime,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) names: Names,
    pub(crate) wakes: Vec<Waker>,
    waiter_ids: WaiterIds,
}

/// One host, without its tasks.
pub(crate) struct HostState {
    pub(crate) name: String,
    /// In the order of preference.
    pub(crate) addresses: Vec<IpAddr>,
    /// `None`: it has no power.
    pub(crate) stack: Option<Stack>,
    pub(crate) incarnation: u32,
    /// A verb was called since the stack's output was last taken.
    pub(crate) touched: bool,
    pub(crate) waiters: Waiters,
}

impl World {
    /// Calls a verb of the host's stack, at the simulated time. Output leaves, and others are woken,
    /// at the end of the host's run.
    pub(crate) fn with_host<R>(
        &mut self,
        host: HostRef,
        verb: impl FnOnce(&mut Stack, Instant) -> R,
    ) -> Result<R, Gone> {
        let now = self.now.into();
        let state = self.alive(host)?;
        state.touched = true;
        let stack = state.stack.as_mut().ok_or(Gone)?;
        Ok(verb(stack, now))
    }

    /// Wakes `waiter` once the socket becomes ready for one of `interest`. A waiter with the same id
    /// is replaced. Only what is not ready now can become ready: try the verb first.
    pub(crate) fn register(
        &mut self,
        host: HostRef,
        socket: SocketId,
        interest: Readiness,
        waiter: Waiter,
    ) -> Result<Option<Waker>, Gone> {
        Ok(self.alive(host)?.waiters.add(socket, interest, waiter))
    }

    /// Forgets a waiter. Drop the waker that it returns after the unlock.
    pub(crate) fn unregister(
        &mut self,
        host: HostRef,
        socket: SocketId,
        id: WaiterId,
    ) -> Option<Waker> {
        self.alive(host).ok()?.waiters.remove(socket, id)
    }

    /// A new id for a waiter.
    pub(crate) fn new_waiter(&mut self) -> WaiterId {
        self.waiter_ids.next()
    }

    /// The wakers to call after the unlock.
    pub(crate) fn take_wakes(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakes)
    }

    fn alive(&mut self, host: HostRef) -> Result<&mut HostState, Gone> {
        let state = self.hosts.get_mut(host.id.index()).ok_or(Gone)?;
        if state.incarnation == host.incarnation { Ok(state) } else { Err(Gone) }
    }
}

/// The world, to be shared.
#[derive(Clone, Default)]
pub(crate) struct SharedWorld(Arc<Mutex<World>>);

impl SharedWorld {
    /// Takes the lock. A panic in a verb leaves the world usable for the report.
    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The host whose code runs, or that a socket belongs to.
#[derive(Clone)]
pub(crate) struct Here {
    pub(crate) world: SharedWorld,
    pub(crate) host: HostRef,
}

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

impl Here {
    /// The host whose code runs on this thread.
    ///
    /// # Errors
    /// `Unsupported` outside of a simulation.
    pub(crate) fn get() -> io::Result<Self> {
        let here = HERE.try_with(|here| here.borrow().clone()).ok().flatten();
        here.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "no simulation is running on this thread: call this inside of a host or client",
            )
        })
    }

    /// Makes `here` the host whose code runs on this thread; returns the one before.
    pub(crate) fn set(here: Option<Self>) -> Option<Self> {
        HERE.try_with(|slot| slot.replace(here)).ok().flatten()
    }

    /// Takes the world's lock, for several calls.
    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Calls a verb of the host's stack, at the simulated time.
    ///
    /// # Errors
    /// `NotConnected` if the host has crashed since.
    pub(crate) fn with_stack<R>(
        &self,
        verb: impl FnOnce(&mut Stack, Instant) -> R,
    ) -> io::Result<R> {
        Ok(self.lock().with_host(self.host, verb)?)
    }
}

impl std::fmt::Debug for Here {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Here").field(&self.host).finish()
    }
}
