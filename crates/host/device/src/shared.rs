//! Variant of steps S6 and R1, for a host of several stacks (shards) over a device with one queue: a lock around
//! the device, and an end of it for each shard.
//!
//! ```text
//!   shard 0 --> end 0 --transmit, receive--> \
//!   shard 1 --> end 1 --transmit-----------> [ lock: device ]
//!   shard 2 --> end 2 --transmit-----------> /
//! ```
//!
//! End 0 receives. The stack of shard 0 passes packets on to their shards, so no other end receives any. All ends
//! send, each frame at once, under the lock. Frames of one end stay in order.
//!
//! **Room.** Frames that find no room stay with the end that sent them. The device counts on seeing these frames
//! first in its next call: captures and servers in front of a device count from there. So the turn to send stays with
//! that end until its frames have gone, at most for [`SHARED_TURN`] if the end does not come back. The frames of other
//! ends stay where they are meanwhile, as the device has no room for them either. Only the device's own descriptor
//! reports room, and end 0 alone waits on that. End 0 wakes the end that has the turn when a wait of end 0 is over.
//! An end whose last frame has gone wakes those that had to stay behind. Both are hints: while end 0 does not sleep,
//! nobody reports room. Every end tries again by itself, as a host does after a millisecond.
//!
//! **Time.** Delayed frames are end 0's task, whoever sent them. A `transmit` of another end that has the device
//! call for an earlier turn wakes end 0, if that sleeps.
//!
//! **Loss.** [`DeviceError::Closed`] closes all ends, and wakes those that sleep. So does a panic of the device.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pagewire_mem::link::{Capabilities, Steering};
use pagewire_mem::{CopyLedger, Instant, PacketBuf, PoolAudit};
use rustix::event::epoll;

use crate::device::{Device, DeviceCounters, DeviceError};
use crate::limits::{SHARED_REFUSED_FRAMES, SHARED_TURN};
use crate::wake_event::WakeEvent;

/// The end that receives.
const RECEIVER: usize = 0;

/// An end of a device that several stacks of one host share, each on a thread of its own.
///
/// End 0 is the device, as far as receiving goes: waiting, memory, counts, and time. The other ends send only:
/// `receive` returns 0, [`wait_fd`](Device::wait_fd) becomes readable when the device is lost or when `transmit` is
/// worth another try, and counts are 0, so that sums over all ends are right. Each end has an equal part of
/// the room for received frames, because shards keep frames that end 0 received.
///
/// - `transmit` leaves frames without room with the caller. No descriptor is sure to report room: try again after
///   about a millisecond.
/// - `take_refused` has the frames that this end lost.
/// - [`DeviceError::Closed`], met by any end, closes all of them. Other errors go to the end that met them.
/// - All ends have to use one clock: the device gets times of all.
/// - `steering` needs the device without a lock: there is none while other ends exist.
///
/// The device lives until the last end is dropped. Without end 0, the others still send, but nobody receives, and
/// delayed frames wait for the next `transmit`.
pub struct SharedDevice {
    core: Arc<Core>,
    index: usize,
    capabilities: Capabilities,
    /// Frames of this end that the device took and lost.
    refused: VecDeque<PacketBuf>,
    /// End 0: readable when the device's descriptor is, or the end's event. `None`: the device must be polled.
    ready: Option<OwnedFd>,
    /// When the device needs a turn, as this end was told last.
    told: Cell<u64>,
    armed: bool,
}

/// What all ends share.
struct Core {
    state: Mutex<State>,
    /// The device is gone, for all ends.
    closed: AtomicBool,
    /// [`Device::poll_timeout`] of the device in nanoseconds; [`NEVER`]. Written under the lock, as the next.
    timeout: AtomicU64,
    /// [`Device::room`] of the device; [`NO_BOUND`].
    room: AtomicUsize,
    /// Wakes each end.
    events: Vec<WakeEvent>,
}

/// The device, and whose frames it takes next.
struct State {
    device: Box<dyn Device>,
    /// The end whose frames the device left behind.
    turn: Option<Turn>,
    /// For each end, whether its last `transmit` left frames behind.
    left: Vec<bool>,
    /// Frames of servers in front of the device, which go with the next frames.
    kept: VecDeque<PacketBuf>,
    /// End 0 sleeps, or is about to.
    armed: bool,
    /// The latest time of any call: threads read the clock before they have the lock.
    now: Instant,
}

/// The right to send first.
struct Turn {
    end: usize,
    since: Instant,
    /// The end was woken since its last `transmit`.
    woken: bool,
}

const NEVER: u64 = u64::MAX;

const NO_BOUND: usize = usize::MAX;

impl SharedDevice {
    /// `ends` ends of a device, at least one; the first is end 0.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) for no end at all, or the system's if the process has no
    /// descriptor left, or the device's descriptor cannot be waited on.
    pub fn split(device: Box<dyn Device>, ends: usize) -> io::Result<Vec<Self>> {
        if ends == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a shared device has ends"));
        }
        let events = (0..ends).map(|_| WakeEvent::new()).collect::<io::Result<Vec<_>>>()?;
        let ready = match (device.wait_fd(), events.get(RECEIVER)) {
            (Some(fd), Some(event)) => Some(either(fd, event.fd())?),
            _ => None,
        };
        let capabilities = device.capabilities().clone();
        let (timeout, room) = (AtomicU64::new(NEVER), AtomicUsize::new(NO_BOUND));
        let (turn, left, kept) = (None, vec![false; ends], VecDeque::new());
        let state = State { device, turn, left, kept, armed: false, now: Instant::ZERO };
        let closed = AtomicBool::new(false);
        let core = Core { state: Mutex::new(state), closed, timeout, room, events };
        let core = Arc::new(core);
        core.with(|state| core.note(state));
        let mut ready = ready;
        let end = |index| Self {
            core: Arc::clone(&core),
            index,
            capabilities: capabilities.clone(),
            refused: VecDeque::new(),
            ready: ready.take(),
            told: Cell::new(NEVER),
            armed: false,
        };
        Ok((RECEIVER..ends).map(end).collect())
    }

    fn is_receiver(&self) -> bool {
        self.index == RECEIVER
    }

    /// Asks end 0's device something.
    fn ask<T: Default>(&self, question: impl FnOnce(&mut State) -> T) -> T {
        let answer = self.is_receiver().then(|| self.core.with(question));
        answer.flatten().unwrap_or_default()
    }

    /// Bounds the frames that nobody took: of more, the newest.
    fn forget_old_refused(&mut self) {
        let excess = self.refused.len().saturating_sub(SHARED_REFUSED_FRAMES);
        self.refused.drain(..excess);
    }
}

impl Core {
    /// Uses the device. `None`: a call of the device has panicked, and all ends are closed.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        // Dropped behind the lock, which a panic poisons.
        let _on_panic = CloseIfPoisoned(self);
        let mut state = self.state.lock().ok()?;
        Some(work(&mut state))
    }

    /// As `with`, until the device is closed. Its `Closed` closes all ends.
    fn with_open<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        if self.is_closed() {
            return Err(DeviceError::Closed);
        }
        let result = self.with(work).unwrap_or(Err(DeviceError::Closed));
        if matches!(result, Err(DeviceError::Closed)) {
            self.close();
        }
        result
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            self.events.iter().for_each(WakeEvent::wake);
        }
    }

    fn wake(&self, end: usize) {
        if let Some(event) = self.events.get(end) {
            event.wake();
        }
    }

    /// Notes what ends read without the lock. Returns whether the device needs a turn earlier than before.
    fn note(&self, state: &State) -> bool {
        self.room.store(state.device.room().unwrap_or(NO_BOUND), Ordering::Relaxed);
        let timeout = state.device.poll_timeout().map_or(NEVER, Instant::as_nanos);
        timeout < self.timeout.swap(timeout, Ordering::Relaxed)
    }

    /// Notes the same after `end` has sent. Wakes end 0 if that sleeps for too long now.
    fn note_sent(&self, state: &State, end: usize) {
        if self.note(state) && state.armed && end != RECEIVER {
            self.wake(RECEIVER);
        }
    }

    /// Wakes the end that has the turn, once for each try: there may be room.
    fn wake_turn(&self, state: &mut State) {
        if let Some(turn) = &mut state.turn
            && turn.end != RECEIVER
            && !std::mem::replace(&mut turn.woken, true)
        {
            self.wake(turn.end);
        }
    }

    /// Wakes the ends that were left with frames, now that nobody has the turn.
    fn wake_left(&self, state: &mut State) {
        for (end, left) in state.left.iter_mut().enumerate() {
            if std::mem::take(left) {
                self.wake(end);
            }
        }
    }
}

/// Closes all ends when a call of the device has panicked.
struct CloseIfPoisoned<'a>(&'a Core);

impl Drop for CloseIfPoisoned<'_> {
    fn drop(&mut self) {
        if self.0.state.is_poisoned() {
            self.0.close();
        }
    }
}

impl State {
    /// Time does not run backwards.
    fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }

    /// Whether another end has the turn. One that does not come back loses it.
    fn is_turn_of_another(&mut self, end: usize, now: Instant, ledger: &mut CopyLedger) -> bool {
        let Some(turn) = &self.turn else { return false };
        if turn.end == end || now.saturating_since(turn.since) < SHARED_TURN {
            return turn.end != end;
        }
        self.end_turn(now, ledger);
        false
    }

    /// Ends a turn before its frames have gone: tells the device that these do not come next.
    fn end_turn(&mut self, now: Instant, ledger: &mut CopyLedger) {
        if self.turn.take().is_some() {
            // An error comes again when there is something to send.
            let _ = self.device.transmit(now, &mut self.kept, ledger);
        }
    }

    fn note_left(&mut self, end: usize, frames: &VecDeque<PacketBuf>) {
        if let Some(left) = self.left.get_mut(end) {
            *left = !frames.is_empty();
        }
    }
}

impl Device for SharedDevice {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        let Self { core, index, refused, .. } = self;
        let end = *index;
        let result = core.with_open(|state| {
            let now = state.advance(now);
            if state.is_turn_of_another(end, now, ledger) {
                state.note_left(end, frames);
                if state.device.poll_timeout().is_some_and(|at| at <= now) {
                    // Only a `transmit` may end that.
                    core.wake_turn(state);
                }
                return Ok(());
            }
            while let Some(frame) = state.kept.pop_back() {
                frames.push_front(frame);
            }
            let result = state.device.transmit(now, frames, ledger);
            state.device.take_refused(refused);
            let had_turn = state.turn.is_some();
            state.turn = (!frames.is_empty()).then_some(Turn { end, since: now, woken: false });
            if result.is_err() {
                // The caller may drop what is left.
                state.end_turn(now, ledger);
            }
            state.note_left(end, frames);
            if had_turn && state.turn.is_none() {
                core.wake_left(state);
            }
            core.note_sent(state, end);
            result
        });
        self.forget_old_refused();
        result
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let (core, receiver, refused) = (&self.core, self.is_receiver(), &mut self.refused);
        if !receiver {
            return if core.is_closed() { Err(DeviceError::Closed) } else { Ok(0) };
        }
        let result = core.with_open(|state| {
            let now = state.advance(now);
            // The turn of an end that does not come back: the device would report room for ever.
            state.is_turn_of_another(RECEIVER, now, ledger);
            let result = state.device.receive(now, frames, max, ledger);
            // Wrappers send in `receive`, too.
            state.device.take_refused(refused);
            core.note(state);
            result
        });
        self.forget_old_refused();
        result
    }

    fn take_refused(&mut self, frames: &mut VecDeque<PacketBuf>) {
        frames.append(&mut self.refused);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.is_receiver() {
            return None;
        }
        // Relaxed: `arm` looks again, under the lock.
        let timeout = self.core.timeout.load(Ordering::Relaxed);
        self.told.set(timeout);
        (timeout != NEVER).then(|| Instant::from_nanos(timeout))
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.is_receiver() {
            return self.ready.as_ref().map(OwnedFd::as_fd);
        }
        self.core.events.get(self.index).map(WakeEvent::fd)
    }

    fn arm(&mut self) -> bool {
        self.armed = true;
        let (core, told) = (&self.core, &self.told);
        let ready = self.ask(|state| {
            state.armed = true;
            let ready = state.device.arm();
            if ready {
                core.wake_turn(state);
            }
            // Another end may have sent since `poll_timeout`, when nobody was to be woken.
            let timeout = core.timeout.load(Ordering::Relaxed);
            ready || timeout < told.replace(timeout)
        });
        ready || core.is_closed()
    }

    fn disarm(&mut self) {
        let (core, waited) = (&self.core, std::mem::take(&mut self.armed));
        // Before the device is looked at: a wake-up from here on is for the next wait.
        if waited && let Some(event) = core.events.get(self.index) {
            event.take();
        }
        self.ask(|state| {
            state.armed = false;
            state.device.disarm();
            if waited {
                core.wake_turn(state);
            }
        });
    }

    fn counters(&self) -> DeviceCounters {
        self.ask(|state| state.device.counters())
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        self.ask(|state| state.device.pool_audit())
    }

    fn room(&self) -> Option<usize> {
        let room = self.core.room.load(Ordering::Relaxed);
        (room != NO_BOUND).then_some(room / self.core.events.len().max(1))
    }

    fn trim(&mut self) {
        self.ask(|state| state.device.trim());
    }

    fn steering(&mut self) -> Option<&mut Steering> {
        // The rules are the device's own, so they are lent without a lock, to the only end.
        Arc::get_mut(&mut self.core)?.state.get_mut().ok()?.device.steering()
    }
}

impl Drop for SharedDevice {
    /// Lets the others send: frames that were left with this end do not come again.
    fn drop(&mut self) {
        let (core, end) = (&self.core, self.index);
        core.with(|state| {
            state.note_left(end, &VecDeque::new());
            if state.turn.as_ref().is_some_and(|turn| turn.end == end) {
                state.end_turn(state.now, &mut CopyLedger::new());
                core.wake_left(state);
                core.note_sent(state, end);
            }
        });
    }
}

impl std::fmt::Debug for SharedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (end, ends) = (self.index, self.core.events.len());
        f.debug_struct("SharedDevice")
            .field("end", &end)
            .field("ends", &ends)
            .field("closed", &self.core.is_closed())
            .finish_non_exhaustive()
    }
}

/// A descriptor that is readable when either of two is.
fn either(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [one, other] {
        epoll::add(&ready, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(ready)
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;
