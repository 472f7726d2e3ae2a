//! Ports that can redirect frames to each other, on any threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewire_mem::PacketBuf;

use super::account::Wake;
use super::limits::{MAX_PORTS, QUEUED_FRAMES};

/// Names a port while it exists: a later one in its place has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortId {
    index: u32,
    turn: u32,
}

/// The ports that frames can be redirected to: at most [`MAX_PORTS`], each with a bounded queue.
#[derive(Default)]
pub struct PortTable {
    seats: Mutex<Vec<Arc<Place>>>,
}

#[derive(Default)]
struct Place {
    /// Whether `queue` may have frames: a port without redirected frames takes no lock.
    pending: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Counts the ports that had this place; even: it is free.
    turn: u32,
    frames: VecDeque<PacketBuf>,
    wake: Option<Wake>,
}

/// Why a redirect failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Unknown,
    Full,
}

/// A port's place in a table, given up by its drop.
pub(super) struct Seat {
    place: Arc<Place>,
    id: PortId,
}

impl PortTable {
    /// A table without ports.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Takes a place; `None` if there are too many ports.
    pub(super) fn join(&self, wake: Option<Wake>) -> Option<Seat> {
        let mut seats = lock(&self.seats);
        let free = seats.iter().position(|place| lock(&place.queue).turn.is_multiple_of(2));
        let index = free.unwrap_or(seats.len());
        if free.is_none() {
            if seats.len() >= MAX_PORTS {
                return None;
            }
            seats.push(Arc::default());
        }
        let place = Arc::clone(seats.get(index)?);
        let mut queue = lock(&place.queue);
        queue.turn = queue.turn.wrapping_add(1);
        queue.wake = wake;
        let id = PortId { index: index as u32, turn: queue.turn };
        drop(queue);
        Some(Seat { place, id })
    }

    /// Queues a frame for a port's guest.
    pub(super) fn redirect(&self, to: PortId, frame: PacketBuf) -> Result<(), Refused> {
        let place = lock(&self.seats).get(to.index as usize).map(Arc::clone);
        let place = place.ok_or(Refused::Unknown)?;
        let mut queue = lock(&place.queue);
        if queue.turn != to.turn {
            return Err(Refused::Unknown);
        }
        if queue.frames.len() >= QUEUED_FRAMES {
            return Err(Refused::Full);
        }
        queue.frames.push_back(frame);
        // Under the lock, as the taker clears it: no change is lost.
        let first = !place.pending.swap(true, Ordering::Relaxed);
        let wake = if first { queue.wake.clone() } else { None };
        drop(queue);
        if let Some(wake) = wake {
            wake();
        }
        Ok(())
    }
}

impl core::fmt::Debug for PortTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PortTable({} places)", lock(&self.seats).len())
    }
}

impl Seat {
    pub(super) fn id(&self) -> PortId {
        self.id
    }

    /// Whether there are frames; the wake reports one that is being queued now.
    pub(super) fn has_some(&self) -> bool {
        self.place.pending.load(Ordering::Relaxed)
    }

    /// Moves the frames redirected here to the back of `out`.
    pub(super) fn take(&self, out: &mut VecDeque<PacketBuf>) {
        // Relaxed: a hint. A frame being queued now is found at the next call, after its wake.
        if !self.place.pending.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = lock(&self.place.queue);
        self.place.pending.store(false, Ordering::Relaxed);
        out.append(&mut queue.frames);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut queue = lock(&self.place.queue);
        queue.turn = queue.turn.wrapping_add(1);
        queue.wake = None;
        let frames = core::mem::take(&mut queue.frames);
        self.place.pending.store(false, Ordering::Relaxed);
        drop(queue);
        // Not under the lock: their memory may have other owners to wake.
        drop(frames);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
